"""Gang Jobs under ResourceQuotas: all pods of a gang are created, or none.

    the quotas refuse            the Job
    before a pod is created      creates none; the condition QuotaExceeded says why; it tries again
                                 when a quota changes
    some pods, after a race      holds the others for a while, in which it creates the rest if it
                                 can; then removes them, waits, and tries again

Holding and waiting end at different times for different Jobs. So of two Jobs that each got a part
of one quota, one gives its part back first and the other completes: they never block each other.

Nothing is kept in memory. The condition has the times: its transition is the first refusal, its
probe is the last time that pods were removed. A Job waits as long again as it has tried so far.
`quota_estimator` asks the quotas before pods are created; this module is pure.
"""

from __future__ import annotations

import zlib

from phalanx.api.batch import QUOTA_EXCEEDED, Job, JobCondition
from phalanx.api.meta import parse_timestamp
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.replicas import MAX_PODS_PER_SYNC, ReplicaPlan, count_desired_pods

#: Seconds for which the pods of an incomplete gang are held at least; a Job adds up to as many.
HOLD_SECONDS = 10.0
#: Seconds after which a Job that released its pods tries again, at least and at most.
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 10.0, 300.0


def plan_under_quota(snapshot: JobSnapshot, replicas: ReplicaPlan) -> ReplicaPlan:
    """Adjust the replicas of a gang Job that a quota has refused: hold, release or wait."""
    job, minimum = snapshot.job_pods.job, snapshot.gang_size
    refused = job.true_condition(QUOTA_EXCEEDED)
    if refused is None or minimum is None or replicas.to_delete or not replicas.to_create:
        return replicas
    active = snapshot.job_pods.active
    if not active:
        wait = _seconds_to_wait(job, refused, snapshot.now)
        return ReplicaPlan(requeue_after=wait) if wait > 0 else replicas
    is_placed = any(pod.spec.node_name for pod in active)
    if is_placed or len(active) >= min(minimum, count_desired_pods(snapshot)):
        return replicas
    oldest = min(parse_timestamp(pod.metadata.creation_timestamp) for pod in active)
    left = oldest + HOLD_SECONDS * (1 + _job_fraction(job)) - snapshot.now
    if left <= 0:
        return ReplicaPlan(to_delete=tuple(active[:MAX_PODS_PER_SYNC]), releases_quota=True)
    return ReplicaPlan(to_create=replicas.to_create, requeue_after=left)


def _seconds_to_wait(job: Job, refused: JobCondition, now: float) -> float:
    """How long a Job that has released its pods waits from now; 0 if it never released any."""
    if not (refused.last_probe_time and refused.last_transition_time):
        return 0.0
    released = parse_timestamp(refused.last_probe_time)
    tried = released - parse_timestamp(refused.last_transition_time)
    if tried <= 0:
        return 0.0
    wait = min(max(tried, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
    return released + wait * (1 + _job_fraction(job)) - now


def _job_fraction(job: Job) -> float:
    """A number from 0 to 1 that differs between Jobs, so that they do not act at the same time."""
    return zlib.crc32(job.metadata.uid.encode()) % 1000 / 1000
