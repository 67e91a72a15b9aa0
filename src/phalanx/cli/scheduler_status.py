"""Whether a scheduler runs, and whose: what `queue`, `top` and `why` say about pods that wait.

`phalanx up` with a scheduler says so itself: its `/readyz` has a check of that name, which every
user may read. Elsewhere the holder of the scheduler's Lease runs; a lease that is not held, or was
not renewed for its duration, means that none does. Where neither can be read, nothing is said.

Pods select their scheduler by `spec.schedulerName`. `find_other_schedulers` returns the names that
no scheduler of Phalanx serves: such pods are neither placed nor explained by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.errors import ApiError
from phalanx.api.kinds import GROUP_BINDING, LEASE
from phalanx.api.meta import Key, parse_timestamp
from phalanx.api.printing.cells import format_duration
from phalanx.api.wire import Object
from phalanx.client.client import Client, is_served
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER, SCHEDULER_NAMES
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

    A scheduler of Phalanx serves the profiles of the server, or holds a Lease that has its name or,
    with several profiles, an annotation with their names.
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
    try:
        leases = await _list_leases(client)
    except ApiError:
        # Forbidden to a user with rights in one namespace only.
        leases, unique = [], unique if knows_names else set()
    held = [lease for lease in leases if not _describe_outage(lease, now)]
    served = tuple(
        dict.fromkeys([*served, *(name for one in held for name in _profile_names(one))])
    )
    unique -= {*served, *(lease["metadata"]["name"] for lease in held)}
    return {name: OtherScheduler(name, served) for name in sorted(unique)}


async def find_scheduler_outage(client: Client, schedulers: Iterable[str], now: float) -> str:
    """Return why no scheduler of these names runs; "" if one does, or if that is unknown."""
    reply = await client.get_reply("/readyz?verbose")
    if check := _CHECK.search(reply.body.decode(errors="replace")):
        return check[2] or ""
    names = sorted(set(schedulers))
    try:
        leases = await _list_leases(client) if names else []
    except ApiError:
        # Forbidden to a user with rights in one namespace only.
        return ""
    for name in names:
        if outage := _find_lease_outage(leases, name, now):
            return f'{NO_SCHEDULER} for the schedulerName "{name}": {outage}'
    return ""


async def _list_leases(client: Client) -> Sequence[Object]:
    return (await client.list(LEASE, namespace=_LEASE_NAMESPACE)).items


def _profile_names(lease: Object) -> list[str]:
    """Return the scheduler names that the holder of a Lease of Phalanx serves."""
    names = (lease["metadata"].get("annotations") or {}).get(SCHEDULER_NAMES, "")
    return [name for name in names.split(",") if name]


def _find_lease_outage(leases: Iterable[Object], scheduler: str, now: float) -> str:
    """Return why no holder of a Lease serves a scheduler name; "" if one does, or if none is known.

    The Lease has the name of the scheduler, or an annotation with its names.
    """
    names = _LEASE_NAMES.get(scheduler, (scheduler,))
    found = [
        lease
        for lease in leases
        if lease["metadata"]["name"] in names or scheduler in _profile_names(lease)
    ]
    outages = [_describe_outage(lease, now) for lease in found]
    if "" in outages:
        return ""
    if not outages and scheduler in _LEASE_NAMES:
        keys = " or ".join(str(Key(_LEASE_NAMESPACE, name)) for name in names)
        return f"there is no Lease {keys} (a scheduler with --no-leader-elect has none)"
    return outages[0] if outages else ""


def _describe_outage(lease: Object, now: float) -> str:
    key, spec = Key(_LEASE_NAMESPACE, lease["metadata"]["name"]), lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return f"nothing holds the Lease {key}"
    silent = now - parse_timestamp(renewed)
    if silent <= (spec.get("leaseDurationSeconds") or _DEFAULT_DURATION):
        return ""
    return f"{holder} has not renewed the Lease {key} for {format_duration(silent)}"
