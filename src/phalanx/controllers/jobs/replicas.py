"""Staffing: which pods to make and which to delete, so that as many run as should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from phalanx.api.core import Pod
from phalanx.api.meta import parse_timestamp
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import (
    FAILURE_COUNT,
    IGNORED_FAILURE_COUNT,
    SUCCEEDED,
    JobPods,
    completion_index,
    finished_at,
    index_failure_count,
    is_ready,
    is_terminating,
    is_tracked,
    previous_attempts,
)

#: Pods that one sync makes or deletes at most.
MAX_PODS_PER_SYNC = 500
#: Seconds to wait after a failure, doubled with each, up to the longest.
INITIAL_BACKOFF, MAX_BACKOFF = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class PodToCreate:
    """A pod to be made: its index, if it has one, and how often that has failed."""

    index: int | None = None
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Pods to delete, or pods to make; and in how many seconds to look again."""

    to_delete: tuple[Pod, ...] = ()
    to_create: tuple[PodToCreate, ...] = ()
    requeue_after: float | None = None


def plan_replicas(snapshot: JobSnapshot) -> ReplicaPlan:
    """What to do about the number of pods of a Job that goes on."""
    roll, wanted = snapshot.job_pods, count_desired_pods(snapshot)
    if surplus := _select_surplus_pods(snapshot, wanted):
        return ReplicaPlan(to_delete=tuple(surplus[:MAX_PODS_PER_SYNC]))
    leaving = len(roll.terminating) if roll.job.spec.replaces_failed_only else 0
    missing = min(wanted - len(roll.active) - leaving, MAX_PODS_PER_SYNC)
    if missing <= 0:
        return ReplicaPlan()
    if roll.job.spec.backoff_limit_per_index is not None:
        return _plan_per_index(snapshot, missing)
    pause = _remaining_backoff(snapshot)
    if pause > 0:
        return ReplicaPlan(requeue_after=pause)
    return ReplicaPlan(to_create=tuple(_pods_to_create(snapshot, missing)))


def count_desired_pods(snapshot: JobSnapshot) -> int:
    """How many pods a Job will still run at a time."""
    roll, spec = snapshot.job_pods, snapshot.job_pods.job.spec
    if spec.completions is None:
        return len(roll.active) if snapshot.succeeded_count else spec.parallelism
    left = roll.completions - snapshot.succeeded_count
    if spec.backoff_limit_per_index is not None:
        left -= len(snapshot.failures.failed_indexes)
    return max(min(spec.parallelism, left), 0)


def _select_surplus_pods(snapshot: JobSnapshot, wanted: int) -> list[Pod]:
    """The pods that are not wanted: strays first, then the least worth keeping."""
    roll = snapshot.job_pods
    strays = _select_invalid_pods(snapshot) if roll.job.spec.is_indexed else []
    too_many = len(roll.active) - len(strays) - wanted
    if too_many <= 0:
        return strays
    gone = {pod.metadata.uid for pod in strays}
    rest = [pod for pod in roll.active if pod.metadata.uid not in gone]
    return strays + sorted(rest, key=_keep_rank)[:too_many]


def _select_invalid_pods(snapshot: JobSnapshot) -> list[Pod]:
    """Pods whose index is none, too high, done, given up, or another pod's already.

    And those that would make it forgotten how often their index has failed.
    """
    roll = snapshot.job_pods
    seen: set[int] = set()
    strays = []
    over = roll.succeeded_indexes | snapshot.failures.failed_indexes
    for pod in sorted(roll.active, key=_attempt_rank, reverse=True):
        index = completion_index(pod)
        is_wrong = not roll.has_valid_index(pod) or snapshot.failures.has_stale_failure_count(pod)
        if is_wrong or index in seen or index in over:
            strays.append(pod)
        seen.add(index)
    return strays


def _attempt_rank(pod: Pod) -> tuple[int, tuple[bool, bool, bool, float, str]]:
    """Which pod of an index to keep: the one that knows of more that came before it."""
    return previous_attempts(pod), _keep_rank(pod)


def _keep_rank(pod: Pod) -> tuple[bool, bool, bool, float, str]:
    """Which pods to keep: those with a node, that run, that are ready, that are older."""
    return (
        bool(pod.spec.node_name), pod.status.phase == "Running", is_ready(pod),
        -parse_timestamp(pod.metadata.creation_timestamp), pod.metadata.name,
    )  # fmt: skip


def _pods_to_create(snapshot: JobSnapshot, missing: int) -> Iterator[PodToCreate]:
    if not snapshot.job_pods.job.spec.is_indexed:
        yield from (PodToCreate() for _ in range(missing))
        return
    yield from (PodToCreate(index) for index in islice(_free_indexes(snapshot), missing))


def _free_indexes(snapshot: JobSnapshot) -> Iterator[int]:
    """The lowest indexes that are neither done nor given up nor taken."""
    roll = snapshot.job_pods
    busy = roll.active + (roll.terminating if roll.job.spec.replaces_failed_only else [])
    over = roll.succeeded_indexes | snapshot.failures.failed_indexes
    taken = {completion_index(pod) for pod in busy} | over
    return (index for index in range(roll.completions) if index not in taken)


def _plan_per_index(snapshot: JobSnapshot, missing: int) -> ReplicaPlan:
    """Each index waits for itself after a failure."""
    failed = snapshot.failures.last_failed_by_index
    make: list[PodToCreate] = []
    soonest: float | None = None
    for index in _free_indexes(snapshot):
        if len(make) == missing:
            break
        order, pause = _next_pod_for_index(snapshot, index, failed.get(index))
        if pause <= 0:
            make.append(order)
        else:
            soonest = pause if soonest is None else min(soonest, pause)
    return ReplicaPlan(to_create=tuple(make), requeue_after=soonest)


def _next_pod_for_index(
    snapshot: JobSnapshot, index: int, last: Pod | None
) -> tuple[PodToCreate, float]:
    """The next pod of an index after the last one, and in how many seconds it is due."""
    if last is None:
        return PodToCreate(index, ((FAILURE_COUNT, "0"),)), 0.0
    is_ignored = snapshot.failures.is_ignored(last)
    times = index_failure_count(last) + (not is_ignored)
    ignored = index_failure_count(last, IGNORED_FAILURE_COUNT) + is_ignored
    marks = [(FAILURE_COUNT, str(times))]
    if ignored:
        marks.append((IGNORED_FAILURE_COUNT, str(ignored)))
    due = min(finished_at(last), snapshot.now) + _backoff_duration(times + ignored)
    return PodToCreate(index, tuple(marks)), due - snapshot.now


def _remaining_backoff(snapshot: JobSnapshot) -> float:
    """Seconds to wait after the failures since the last success."""
    now, roll = snapshot.now, snapshot.job_pods
    over = [pod for pod in roll.pods if _has_finished(roll, pod)]
    times, last = 0, 0.0
    for moment, _, is_success in sorted(map(_finish_order, over)):
        times, last = (0, 0.0) if is_success else (times + 1, moment)
    return min(last, now) + _backoff_duration(times) - now if times else 0.0


def _has_finished(job_pods: JobPods, pod: Pod) -> bool:
    """Whether a pod is over by itself; one that was dismissed is let go first, then told to go."""
    return (pod.is_terminal or job_pods.has_failed(pod)) and (
        is_tracked(pod) or not is_terminating(pod)
    )


def _finish_order(pod: Pod) -> tuple[float, str, bool]:
    return finished_at(pod), pod.metadata.name, pod.status.phase == SUCCEEDED


def _backoff_duration(times: int) -> float:
    return min(INITIAL_BACKOFF * 2.0 ** min(times - 1, 20), MAX_BACKOFF) if times else 0.0
