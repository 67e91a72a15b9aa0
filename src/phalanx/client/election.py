"""Who leads: of several equal candidates the one that holds a Lease, and for how long.

Beside the informers: whoever may not act twice at the same time stands for election and does its
duty while it leads. The records are those of client-go, so that candidates of both kinds can share
a Lease. Never trusts another machine's clock: a lease has expired when it was not seen to change
for as long as it lasts. Leading is no licence: for a moment two may believe to lead, and what they
write must be safe by its preconditions.

    nobody's, or expired ──take──▶ ours ──renew, every `retry` seconds──▶ ours
                                    ├─ somebody else's ─────────────────▶ lost, at once
                                    ├─ not renewed for `renew` seconds ─▶ lost
                                    └─ the end of the duty ─────────────▶ given back
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from phalanx.api.errors import ApiError, NotFound, Timeout
from phalanx.api.kinds import LEASE
from phalanx.api.meta import Key, micro_timestamp
from phalanx.api.wire import Object
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock

#: Candidates that began together drift apart: they wait up to so many times longer.
_JITTER = 2.2
#: Seconds that giving a lease back may take.
_FAREWELL = 0.7


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds: how long a lease lasts, how long a leader tries to renew it, how often anyone tries.

    The first is longer than the second, so that who loses the server stops before another begins.
    """

    lease: int = 15
    renew: float = 10.0
    retry: float = 2.0


class Election:
    """One candidate, by its identity, for the lease of that name.

    `holder` is who led when the lease was last seen ("": nobody), `failure` what is wrong with
    reading or writing it at present, if anything.
    """

    def __init__(
        self, client: Client, key: Key, identity: str, clock: Clock, chance: Chance,
        terms: Terms | None = None,
    ) -> None:  # fmt: skip
        self._client, self._key, self._identity = client, key, identity
        self._clock, self._chance, self._terms = clock, chance, terms or Terms()
        self.holder = ""
        self.failure: ApiError | Unreachable | None = None
        self._seen: Object = {}
        self._seen_at = self._renewed_at = 0.0

    async def serve(self, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait to be the leader and do a duty; ends with it, or with the leadership."""
        while not await self._try():
            retry = self._terms.retry
            await asyncio.sleep(self._chance.between(retry, retry * _JITTER))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(duty()), group.create_task(self._keep())]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
        finally:
            await self._give_back()

    async def _keep(self) -> None:
        """Renew for as long as that works."""
        loop, terms = asyncio.get_running_loop(), self._terms
        while True:
            await asyncio.sleep(terms.retry)
            deadline = self._renewed_at + terms.renew
            try:
                async with asyncio.timeout_at(deadline):
                    leads = await self._try()
            except TimeoutError:
                return
            if not leads and (self.failure is None or loop.time() >= deadline):
                return

    async def _try(self) -> bool:
        """Take or renew the lease; whether it is ours then."""
        begin = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._terms.renew / 2):
                self.holder = await self._take()
        except (ApiError, Unreachable) as error:
            self.failure = error
            return False
        except TimeoutError:
            self.failure = Timeout("the server did not answer in time")
            return False
        self.failure, leads = None, self.holder == self._identity
        self._renewed_at = begin if leads else self._renewed_at
        return leads

    async def _take(self) -> str:
        """Have the lease if it can be had; who holds it then."""
        try:
            lease = await self._client.get(LEASE, self._key)
        except NotFound:
            space, name = self._key
            made = {"metadata": {"name": name, "namespace": space}, "spec": self._record({})}
            self._look(await self._client.create(LEASE, made))
            return self._identity
        self._look(lease)
        spec = lease.get("spec") or {}
        holder: str = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._expired(spec):
            return holder
        self._look(await self._client.update(LEASE, {**lease, "spec": self._record(spec)}))
        return self._identity

    def _look(self, lease: Object) -> None:
        """Note what the lease says, and since when."""
        spec = lease.get("spec") or {}
        if spec != self._seen:
            self._seen, self._seen_at = spec, asyncio.get_running_loop().time()

    def _expired(self, spec: Object) -> bool:
        lasts = spec.get("leaseDurationSeconds") or self._terms.lease
        return asyncio.get_running_loop().time() >= self._seen_at + lasts

    def _record(self, old: Object) -> Object:
        """What the lease is to say: that it is ours, from now or still."""
        now = micro_timestamp(self._clock.now())
        new = {**old, "leaseDurationSeconds": self._terms.lease, "renewTime": now}
        if old.get("holderIdentity") == self._identity:
            return new
        transitions = (old.get("leaseTransitions") or 0) + 1 if old else 0
        return new | {
            "holderIdentity": self._identity, "acquireTime": now, "leaseTransitions": transitions,
        }  # fmt: skip

    async def _give_back(self) -> None:
        """Let the next one begin at once, if the lease is still ours and the server is there."""
        try:
            async with asyncio.timeout(_FAREWELL):
                lease = await self._client.get(LEASE, self._key)
                spec = lease.get("spec") or {}
                if spec.get("holderIdentity") == self._identity:
                    await self._client.update(LEASE, {**lease, "spec": self._free(spec)})
        except (ApiError, Unreachable, TimeoutError):
            return

    def _free(self, old: Object) -> Object:
        now = micro_timestamp(self._clock.now())
        kept = {name: value for name, value in old.items() if name != "holderIdentity"}
        return {**kept, "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
