"""Whether a scheduler runs, and whose: what `queue`, `top` and `why` say about pods that wait.

`phalanx up` with a scheduler says so itself: its `/readyz` has a check of that name, which every
user may read. Elsewhere the holder of the scheduler's Lease runs; a lease that is not held, or was
not renewed for its duration, means that none does. Where neither can be read, nothing is said.

Pods select their scheduler by `spec.schedulerName`. `find_other_schedulers` returns the names that
no scheduler of Phalanx serves: such pods are neither placed nor explained by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import GROUP_BINDING, LEASE
from phalanx.api.meta import Key, parse_timestamp
from phalanx.api.printing.cells import format_duration
from phalanx.api.wire import Object
from phalanx.client.client import Client, is_served
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from phalanx.server.health import NO_SCHEDULER, PROFILE_CHECK

_LEASE_NAMESPACE = "kube-system"
#: The names of leases by scheduler name. Another scheduler may have its lease anywhere, or none.
_LEASE_NAMES = {
    DEFAULT_SCHEDULER: (DEFAULT_SCHEDULER, "kube-scheduler"),
    FOREIGN_SCHEDULER: (FOREIGN_SCHEDULER,),
}
_CHECK = re.compile(r"^\[([+-])\]scheduler (?:ok|failed: (.*))$", re.MULTILINE)
_PROFILE_CHECK = re.compile(rf"^\[[+-]\]{PROFILE_CHECK}(\S+) ", re.MULTILINE)
_DEFAULT_DURATION = 15
#: The reason of workloads that wait for a scheduler that is not Phalanx.
OTHER_SCHEDULER = "OtherScheduler"


class OtherScheduler(NamedTuple):
    """A schedulerName that Phalanx does not serve, and those that it serves."""

    name: str
    served: tuple[str, ...]

    @property
    def message(self) -> str:
        """Say which scheduler the pods name, and which ones Phalanx serves."""
        names = " and ".join(f'"{name}"' for name in self.served)
        return f'schedulerName is "{self.name}", and Phalanx serves {names} here'

    @property
    def cures(self) -> tuple[str, ...]:
        """Say how the pods get a scheduler that is Phalanx."""
        name = self.served[0]
        cures: tuple[str, ...] = (
            f"set schedulerName: {name} in the pod template, and create the pods again: "
            "existing pods keep theirs",
        )
        if self.name != DEFAULT_SCHEDULER:
            # Two schedulers that serve one name would both place its pods.
            cures += (f"run phalanx scheduler --scheduler-name {self.name}, if nothing serves it",)
        return cures


async def find_other_schedulers(
    client: Client, names: Iterable[str], now: float
) -> dict[str, OtherScheduler]:
    """Return those of the scheduler names that no scheduler of Phalanx serves.

    A scheduler of Phalanx serves the profiles of the server, or holds a Lease of its name.
    """
    unique = set(names)
    if not unique:
        return {}
    text = (await client.get_reply("/readyz?verbose")).body.decode(errors="replace")
    knows_names = _CHECK.search(text) is not None
    served = tuple(_PROFILE_CHECK.findall(text))
    if not served:
        is_ours = knows_names or await is_served(client, GROUP_BINDING)
        served = (DEFAULT_SCHEDULER if is_ours else FOREIGN_SCHEDULER,)
    others: dict[str, OtherScheduler] = {}
    for name in sorted(unique.difference(served)):
        key = Key(_LEASE_NAMESPACE, name)
        try:
            spec = (await client.get(LEASE, key)).get("spec") or {}
            is_held = not _describe_outage(key, spec, now)
        except NotFound:
            is_held = False
        except ApiError:
            # Forbidden to a user with rights in one namespace only.
            is_held = not knows_names
        if not is_held:
            others[name] = OtherScheduler(name, served)
    return others


async def find_scheduler_outage(client: Client, schedulers: Iterable[str], now: float) -> str:
    """Return why no scheduler of these names runs; "" if one does, or if that is unknown."""
    reply = await client.get_reply("/readyz?verbose")
    if check := _CHECK.search(reply.body.decode(errors="replace")):
        return check[2] or ""
    for name in sorted(set(schedulers)):
        outage = await _find_lease_outage(client, name, now)
        if outage:
            return f'{NO_SCHEDULER} for the schedulerName "{name}": {outage}'
    return ""


async def _find_lease_outage(client: Client, scheduler: str, now: float) -> str:
    names, outages = _LEASE_NAMES.get(scheduler, (scheduler,)), list[str]()
    for name in names:
        key = Key(_LEASE_NAMESPACE, name)
        try:
            outage = _describe_outage(key, (await client.get(LEASE, key)).get("spec") or {}, now)
        except NotFound:
            continue
        except ApiError:
            # Forbidden to a user with rights in one namespace only.
            return ""
        if not outage:
            return ""
        outages.append(outage)
    if not outages and scheduler in _LEASE_NAMES:
        leases = " or ".join(str(Key(_LEASE_NAMESPACE, name)) for name in names)
        return f"there is no Lease {leases} (a scheduler with --no-leader-elect has none)"
    return outages[0] if outages else ""


def _describe_outage(key: Key, spec: Object, now: float) -> str:
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return f"nothing holds the Lease {key}"
    silent = now - parse_timestamp(renewed)
    if silent <= (spec.get("leaseDurationSeconds") or _DEFAULT_DURATION):
        return ""
    return f"{holder} has not renewed the Lease {key} for {format_duration(silent)}"
