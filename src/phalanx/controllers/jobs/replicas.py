"""Which pods of a Job to create and which to delete, so that the desired number runs.

`plan_replicas` compares the active pods with `parallelism`, the remaining completions and, in an
indexed Job, the free indexes. After a failure the next pod waits for a back-off that doubles up to
`MAX_BACKOFF`; with `backoffLimitPerIndex` each index has its own back-off. The replacement of a
disrupted gang member does not wait. Pure; used by `sync` for a Job that is neither over, nor
suspended, nor being deleted.

    parallelism 3, completions 5         plan
    succeeded 0, active 1                create 2 pods
    succeeded 4, active 3                delete 2 pods
    active 2, a pod failed 4 s ago       requeue after 6 s

Under ResourceQuotas all pods of a gang are created, or none (`plan_under_quota`):

    the quotas refuse            the Job
    before a pod is created      creates none; the condition QuotaExceeded says why; it tries again
                                 when a quota changes (`quota_estimator` asks the quotas)
    some pods, after a race      holds the others for a while, in which it creates the rest if it
                                 can; then removes them, waits, and tries again

Holding and waiting end at different times for different Jobs. So of two Jobs that each got a part
of one quota, one gives its part back first and the other completes: they never block each other.
Nothing is kept in memory. The condition has the times: its transition is the first refusal, its
probe is the last time that pods were removed. A Job waits as long again as it has tried so far.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from phalanx.api.batch import QUOTA_EXCEEDED, Job, JobCondition
from phalanx.api.core import Pod
from phalanx.api.meta import parse_timestamp
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import (
    FAILURE_COUNT,
    IGNORED_FAILURE_COUNT,
    SUCCEEDED,
    completion_index,
    finish_time,
    index_failure_count,
    is_ready,
    is_terminating,
    is_tracked,
    previous_attempts,
)

#: The most pods that one sync creates or deletes.
MAX_PODS_PER_SYNC = 500
#: Seconds of back-off after the first failure, and at most.
INITIAL_BACKOFF, MAX_BACKOFF = 10.0, 600.0
#: Seconds for which the pods of an incomplete gang are held at least; a Job adds up to as many.
HOLD_SECONDS = 10.0
#: Seconds after which a Job that released its pods tries again, at least and at most.
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 10.0, 300.0


@dataclass(frozen=True, slots=True)
class PodToCreate:
    """A pod to create: its completion index, and the annotations with its failure counts."""

    index: int | None = None
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The pods to delete or to create, and after how many seconds to sync again."""

    to_delete: tuple[Pod, ...] = ()
    to_create: tuple[PodToCreate, ...] = ()
    requeue_after: float | None = None
    #: Whether the pods are deleted to release a ResourceQuota that admits only a part of a gang.
    releases_quota: bool = False
    #: Whether the pods are evicted to restart a gang that cannot replace lost members.
    restarts_gang: bool = False


def plan_replicas(snapshot: JobSnapshot) -> ReplicaPlan:
    """Plan the pods of a Job that goes on. Deletes surplus pods before it creates any."""
    pods, desired = snapshot.job_pods, count_desired_pods(snapshot)
    if surplus := _select_surplus_pods(snapshot, desired):
        return ReplicaPlan(to_delete=tuple(surplus[:MAX_PODS_PER_SYNC]))
    terminating = len(pods.terminating) if pods.job.spec.replaces_failed_only else 0
    missing = min(desired - len(pods.active) - terminating, MAX_PODS_PER_SYNC)
    if missing <= 0:
        return ReplicaPlan()
    if pods.job.spec.backoff_limit_per_index is not None:
        return _plan_per_index(snapshot, missing)
    backoff = _remaining_backoff(snapshot)
    if backoff > 0:
        return ReplicaPlan(requeue_after=backoff)
    if not pods.job.spec.is_indexed:
        return ReplicaPlan(to_create=(PodToCreate(),) * missing)
    indexes = islice(_free_indexes(snapshot), missing)
    return ReplicaPlan(to_create=tuple(PodToCreate(index) for index in indexes))


def count_desired_pods(snapshot: JobSnapshot) -> int:
    """Return how many pods of a Job should be active."""
    pods, spec = snapshot.job_pods, snapshot.job_pods.job.spec
    if spec.completions is None:
        return len(pods.active) if snapshot.succeeded_count else spec.parallelism
    remaining = pods.completions - snapshot.succeeded_count
    if spec.backoff_limit_per_index is not None:
        remaining -= len(snapshot.failures.failed_indexes)
    return max(min(spec.parallelism, remaining), 0)


def _select_surplus_pods(snapshot: JobSnapshot, desired: int) -> list[Pod]:
    """The active pods to delete: first those without a valid index, then the lowest ranked."""
    pods = snapshot.job_pods
    invalid = _select_invalid_pods(snapshot) if pods.job.spec.is_indexed else []
    surplus = len(pods.active) - len(invalid) - desired
    if surplus <= 0:
        return invalid
    invalid_uids = {pod.metadata.uid for pod in invalid}
    valid = [pod for pod in pods.active if pod.metadata.uid not in invalid_uids]
    return invalid + sorted(valid, key=_keep_rank)[:surplus]


def _select_invalid_pods(snapshot: JobSnapshot) -> list[Pod]:
    """The active pods of an indexed Job that must not run.

    Their index is missing, too high, finished or used by another pod, or their failure count is
    stale: the next pod would repeat attempts that the index already had.
    """
    pods = snapshot.job_pods
    seen: set[int] = set()
    invalid = []
    finished = pods.succeeded_indexes | snapshot.failures.failed_indexes
    by_rank = sorted(
        pods.active, key=lambda pod: (previous_attempts(pod), _keep_rank(pod)), reverse=True
    )
    for pod in by_rank:
        index = completion_index(pod)
        is_wrong = not pods.has_valid_index(pod) or snapshot.failures.has_stale_failure_count(pod)
        if is_wrong or index in seen or index in finished:
            invalid.append(pod)
        seen.add(index)
    return invalid


def _keep_rank(pod: Pod) -> tuple[bool, bool, bool, float, str]:
    """Rank pods to keep: bound before unbound, then running, then ready, then older."""
    return (
        bool(pod.spec.node_name),
        pod.status.phase == "Running",
        is_ready(pod),
        -parse_timestamp(pod.metadata.creation_timestamp),
        pod.metadata.name,
    )


def _free_indexes(snapshot: JobSnapshot) -> Iterator[int]:
    """The indexes that are neither finished nor used by a pod, lowest first."""
    pods = snapshot.job_pods
    users = pods.active + (pods.terminating if pods.job.spec.replaces_failed_only else [])
    finished = pods.succeeded_indexes | snapshot.failures.failed_indexes
    taken = {completion_index(pod) for pod in users} | finished
    return (index for index in range(pods.completions) if index not in taken)


def _plan_per_index(snapshot: JobSnapshot, missing: int) -> ReplicaPlan:
    """Plan new pods where each index has its own back-off."""
    last_failed = snapshot.failures.last_failed_by_index
    to_create: list[PodToCreate] = []
    requeue_after: float | None = None
    for index in _free_indexes(snapshot):
        if len(to_create) == missing:
            break
        new, backoff = _next_pod_for_index(snapshot, index, last_failed.get(index))
        if backoff <= 0:
            to_create.append(new)
        else:
            requeue_after = backoff if requeue_after is None else min(requeue_after, backoff)
    return ReplicaPlan(to_create=tuple(to_create), requeue_after=requeue_after)


def _next_pod_for_index(
    snapshot: JobSnapshot, index: int, last_failed: Pod | None
) -> tuple[PodToCreate, float]:
    """The next pod of an index, and its remaining back-off in seconds."""
    if last_failed is None:
        return PodToCreate(index, ((FAILURE_COUNT, "0"),)), 0.0
    is_ignored = snapshot.failures.is_ignored(last_failed)
    failures = index_failure_count(last_failed) + (not is_ignored)
    ignored = index_failure_count(last_failed, IGNORED_FAILURE_COUNT) + is_ignored
    annotations = [(FAILURE_COUNT, str(failures))]
    if ignored:
        annotations.append((IGNORED_FAILURE_COUNT, str(ignored)))
    if snapshot.failures.is_ignored_disruption(last_failed):
        return PodToCreate(index, tuple(annotations)), 0.0
    due = min(finish_time(last_failed), snapshot.now) + _backoff_duration(failures + ignored)
    return PodToCreate(index, tuple(annotations)), due - snapshot.now


def _remaining_backoff(snapshot: JobSnapshot) -> float:
    """The seconds to wait after the failures since the last success."""
    pods = snapshot.job_pods
    # A pod that this controller deleted as surplus loses its finalizer first; it is no failure.
    finished = [
        (finish_time(pod), pod.metadata.name, pod.status.phase == SUCCEEDED)
        for pod in pods.pods
        if (pod.is_terminal or pods.has_failed(pod))
        and (is_tracked(pod) or not is_terminating(pod))
        and not snapshot.failures.is_ignored_disruption(pod)
    ]
    failures, last_failure = 0, 0.0
    for time, _, is_success in sorted(finished):
        failures, last_failure = (0, 0.0) if is_success else (failures + 1, time)
    if not failures:
        return 0.0
    return min(last_failure, snapshot.now) + _backoff_duration(failures) - snapshot.now


def _backoff_duration(failures: int) -> float:
    return min(INITIAL_BACKOFF * 2.0 ** min(failures - 1, 20), MAX_BACKOFF) if failures else 0.0


# ---- quotas --------------------------------------------------------------------------------------


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
