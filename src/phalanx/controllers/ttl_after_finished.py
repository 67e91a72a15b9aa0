"""Jobs that have ended and are not to be kept: deleted with their pods when their time is up.

The Job that was judged is the one that is deleted, in that very version: whoever gives it more time
at the last moment is heard. On a foreign API server this loop is off: it has one of its own.
"""

from __future__ import annotations

from phalanx.api.batch import COMPLETE, FAILED, Job
from phalanx.api.kinds import JOB
from phalanx.api.meta import Key, parse_timestamp
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Delete, Informers, ReconcileLoop, ReconcilePlan

_WORKERS = 5


class TTLAfterFinishedController:
    """Deletes Jobs `ttlSecondsAfterFinished` seconds after their end, what they own first."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._clock = clock
        self._jobs = informers.of(JOB, Job).cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile, _WORKERS)
        self._jobs.subscribe(self._changed)

    async def run(self) -> None:
        """Delete until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Delete a Job whose time is up, or come back then."""
        job = self._jobs.get(key)
        end = _expiry_time(job) if job is not None else None
        if job is None or end is None:
            return ReconcilePlan()
        left = end - self._clock.now()
        if left > 0:
            return ReconcilePlan(requeue_after=left)
        meta = job.metadata
        version = meta.resource_version
        return ReconcilePlan(
            [Delete(JOB, key, meta.uid, version=version, propagation="Foreground")]
        )

    def _changed(self, old: Job | None, new: Job | None) -> None:
        if new is not None and _expiry_time(new) is not None:
            self._loop.queue.add(new.metadata.key)


def _expiry_time(job: Job) -> float | None:
    """When a Job is to go; None if it is not, or not known yet, or going already."""
    ttl, end = (
        job.spec.ttl_seconds_after_finished,
        job.true_condition(COMPLETE) or job.true_condition(FAILED),
    )
    if (
        ttl is None
        or end is None
        or not end.last_transition_time
        or job.metadata.deletion_timestamp
    ):
        return None
    return parse_timestamp(end.last_transition_time) + ttl
