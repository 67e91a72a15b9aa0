"""Leader election: of several candidates, the holder of a Lease leads.

The Lease's fields are those of client-go, so candidates of both implementations can share a Lease.
Clocks of other machines are not trusted: a lease has expired when it was not seen to change for its
duration. Leadership is no guarantee: for a moment two candidates may believe to lead, and their
writes must be safe by their preconditions.

    free, or expired ──acquire──▶ held ──renew, every `retry_period`──▶ held
                                   ├─ held by another candidate ──────────▶ lost, at once
                                   ├─ not renewed for `renew_deadline` ───▶ lost
                                   └─ the work ends ──────────────────────▶ released
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.api.errors import ApiError, NotFound, Timeout
from phalanx.api.kinds import LEASE
from phalanx.api.meta import Key, micro_timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.telemetry import Gauge, MetricSpec

LEADS = MetricSpec(
    Gauge,
    "leader_election_master_status",
    "1 if this process holds the lease, 0 if it waits for it.",
    ("name",),
)
#: Upper factor of the retry jitter, which spreads candidates that started together.
_RETRY_JITTER = 2.2
#: Seconds that releasing a lease may take.
_RELEASE_TIMEOUT = 0.7


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    """Seconds: the duration of a lease, the deadline for renewing it, the retry period.

    The duration exceeds the deadline, so that a leader that loses the server stops before another
    candidate starts.
    """

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0


class LeaderElector:
    """One candidate for a lease.

    The lease has the `annotations` while it is held. `holder` is the identity that held the lease
    when it was last seen ("": none), `failure` the present error of reading or writing the lease.
    """

    def __init__(
        self, client: Client, key: Key, identity: str, *, clock: Clock, random: Random,
        timings: LeaseTimings | None = None, annotations: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._client, self._key, self._identity = client, key, identity
        self._clock, self._random, self._timings = clock, random, timings or LeaseTimings()
        self._annotations = dict(annotations or {})
        self.holder = ""
        self.failure: ApiError | Unreachable | None = None
        self._observed_spec: Object = {}
        self._observed_at = self._renewed_at = 0.0
        self._leads = client.metrics.series(LEADS, key.name)
        self._leads.value = 0

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for leadership, then run `work` until it ends or the leadership is lost."""
        while not await self._try_acquire_or_renew():
            retry = self._timings.retry_period
            await asyncio.sleep(self._random.between(retry, retry * _RETRY_JITTER))
        self._leads.value = 1
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work()), group.create_task(self._renew_until_lost())]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
        finally:
            self._leads.value = 0
            await self._release()

    async def _renew_until_lost(self) -> None:
        """Renew the lease until it is lost."""
        loop, timings = asyncio.get_running_loop(), self._timings
        while True:
            await asyncio.sleep(timings.retry_period)
            deadline = self._renewed_at + timings.renew_deadline
            try:
                async with asyncio.timeout_at(deadline):
                    leads = await self._try_acquire_or_renew()
            except TimeoutError:
                return
            if not leads and (self.failure is None or loop.time() >= deadline):
                return

    async def _try_acquire_or_renew(self) -> bool:
        """Acquire or renew the lease; return whether it is held."""
        begin = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timings.renew_deadline / 2):
                self.holder = await self._acquire_or_renew()
        except (ApiError, Unreachable) as error:
            self.failure = error
            return False
        except TimeoutError:
            self.failure = Timeout("the server did not answer in time")
            return False
        self.failure, leads = None, self.holder == self._identity
        self._renewed_at = begin if leads else self._renewed_at
        return leads

    async def _acquire_or_renew(self) -> str:
        """Acquire or renew the lease if possible; return its holder."""
        try:
            lease = await self._client.get(LEASE, self._key)
        except NotFound:
            meta = {"name": self._key.name, "namespace": self._key.namespace}
            new = {"metadata": self._annotate(meta), "spec": self._held_spec({})}
            self._observe(await self._client.create(LEASE, new))
            return self._identity
        self._observe(lease)
        spec = lease.get("spec") or {}
        holder: str = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._is_expired(spec):
            return holder
        held = {"metadata": self._annotate(lease["metadata"]), "spec": self._held_spec(spec)}
        self._observe(await self._client.update(LEASE, lease | held))
        return self._identity

    def _annotate(self, metadata: Object) -> Object:
        if not self._annotations:
            return metadata
        return metadata | {"annotations": (metadata.get("annotations") or {}) | self._annotations}

    def _observe(self, lease: Object) -> None:
        """Record the content of the lease and the time of its last change."""
        spec = lease.get("spec") or {}
        if spec != self._observed_spec:
            self._observed_spec, self._observed_at = spec, asyncio.get_running_loop().time()

    def _is_expired(self, spec: Object) -> bool:
        duration = spec.get("leaseDurationSeconds") or self._timings.lease_duration
        return asyncio.get_running_loop().time() >= self._observed_at + duration

    def _held_spec(self, old: Object) -> Object:
        """Return the spec of the lease with this candidate as its holder."""
        now = micro_timestamp(self._clock.now())
        new = {**old, "leaseDurationSeconds": self._timings.lease_duration, "renewTime": now}
        if old.get("holderIdentity") == self._identity:
            return new
        transitions = (old.get("leaseTransitions") or 0) + 1 if old else 0
        return new | {
            "holderIdentity": self._identity, "acquireTime": now, "leaseTransitions": transitions,
        }  # fmt: skip

    async def _release(self) -> None:
        """Release the lease if it is still held, so that another candidate can start at once."""
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                lease = await self._client.get(LEASE, self._key)
                spec = lease.get("spec") or {}
                if spec.get("holderIdentity") != self._identity:
                    return
                now = micro_timestamp(self._clock.now())
                spec = {name: value for name, value in spec.items() if name != "holderIdentity"}
                spec |= {"leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
                await self._client.update(LEASE, {**lease, "spec": spec})
        except (ApiError, Unreachable, TimeoutError):
            return
