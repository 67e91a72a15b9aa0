"""The TTL-after-finished controller: deletes finished Jobs when their TTL has expired.

A Job is deleted with its pods, in the version that was examined: a longer `ttlSecondsAfterFinished`
written at the last moment still counts. The controller is disabled on a foreign API server, which
has its own.
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
    """Deletes Jobs, in the foreground, `ttlSecondsAfterFinished` seconds after they finished."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._clock = clock
        self._jobs = informers.of(Job).cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile, _WORKERS)
        self._jobs.subscribe(self._on_change)

    async def run(self) -> None:
        """Delete expired Jobs until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: delete an expired Job, or reconcile again when it expires."""
        job = self._jobs.get(key)
        expiry = _expiry_time(job) if job is not None else None
        if job is None or expiry is None:
            return ReconcilePlan()
        remaining = expiry - self._clock.now()
        if remaining > 0:
            return ReconcilePlan(requeue_after=remaining)
        meta = job.metadata
        version = meta.resource_version
        return ReconcilePlan(
            [Delete(JOB, key, meta.uid, version=version, propagation="Foreground")]
        )

    def _on_change(self, old: Job | None, new: Job | None) -> None:
        if new is not None and _expiry_time(new) is not None:
            self._loop.queue.add(new.metadata.key)


def _expiry_time(job: Job) -> float | None:
    """When a Job expires; None without a TTL, before it finishes and while it is deleted."""
    ttl = job.spec.ttl_seconds_after_finished
    finished = job.true_condition(COMPLETE) or job.true_condition(FAILED)
    if ttl is None or finished is None or job.metadata.deletion_timestamp:
        return None
    if not finished.last_transition_time:
        return None
    return parse_timestamp(finished.last_transition_time) + ttl
