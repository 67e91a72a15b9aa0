"""Roll: the pods of a Job, sorted by how they are. What the other parts of a sync read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import condition, seconds
from phalanx.controllers.jobs.indexset import Indexes, read

#: Keeps a pod from going before it was counted.
TRACKING = "batch.kubernetes.io/job-tracking"
#: The number of a pod, as annotation and label.
INDEX = "batch.kubernetes.io/job-completion-index"
#: How often an index has failed before this pod, with and without what is to be ignored.
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"

SUCCEEDED, FAILED = "Succeeded", "Failed"
_NO_INDEX = -1


class Roll:
    """The pods of one Job at one moment."""

    def __init__(self, job: Job, pods: Iterable[Pod]) -> None:
        self.job = job
        self.pods = sorted(pods, key=lambda pod: pod.metadata.name)
        spec = job.spec
        self.completions = spec.completions if spec.completions is not None else 0
        self.succeeded_before = read(job.status.completed_indexes, self.completions)
        self.failed_before = read(job.status.failed_indexes, self.completions)

    @cached_property
    def active(self) -> list[Pod]:
        """Pods that run or are to run."""
        return [pod for pod in self.pods if not pod.ended and not is_leaving(pod)]

    @cached_property
    def terminating(self) -> list[Pod]:
        """Pods on their way out that have not ended yet."""
        return [pod for pod in self.pods if not pod.ended and is_leaving(pod)]

    @cached_property
    def ready(self) -> int:
        """How many active pods are ready."""
        found = [condition(pod.status.conditions, "Ready") for pod in self.active]
        return sum(one is not None and one.status == "True" for one in found)

    @cached_property
    def tracked(self) -> list[Pod]:
        """Pods that wait to be counted, or run."""
        return [pod for pod in self.pods if is_tracked(pod)]

    @cached_property
    def known(self) -> frozenset[str]:
        """Pods whose result is in the status and not yet in its numbers, by uid."""
        uncounted = self.job.status.uncounted_terminated_pods
        return frozenset((*uncounted.succeeded, *uncounted.failed))

    @cached_property
    def newly_succeeded(self) -> list[Pod]:
        """Pods that succeeded and are in no count yet."""
        return [
            pod
            for pod in self.tracked
            if pod.status.phase == SUCCEEDED and self.is_new(pod) and self.belongs(pod)
        ]

    @cached_property
    def newly_failed(self) -> list[Pod]:
        """Pods that failed and are in no count yet."""
        return [
            pod
            for pod in self.tracked
            if self.has_failed(pod) and self.is_new(pod) and self.belongs(pod)
        ]

    @cached_property
    def succeeded_indexes(self) -> Indexes:
        """The indexes of which a pod has succeeded."""
        return self.succeeded_before | {index_of(pod) for pod in self.newly_succeeded}

    def is_new(self, pod: Pod) -> bool:
        """Whether a pod is in no count yet."""
        if self.job.spec.is_indexed and pod.status.phase == SUCCEEDED:
            return index_of(pod) not in self.succeeded_before
        return pod.metadata.uid not in self.known

    def belongs(self, pod: Pod) -> bool:
        """Whether a pod counts: in an indexed Job only those with an index that there is."""
        return not self.job.spec.is_indexed or 0 <= index_of(pod) < self.completions

    def has_failed(self, pod: Pod) -> bool:
        """Whether a pod counts as failed: at its end, or as soon as it is told to go."""
        if pod.status.phase == FAILED:
            return True
        leaving = is_leaving(pod) and pod.status.phase != SUCCEEDED
        return leaving and not self.job.spec.replaces_ended_only


def is_tracked(pod: Pod) -> bool:
    """Whether a pod waits to be counted before it may go."""
    return TRACKING in pod.metadata.finalizers


def is_leaving(pod: Pod) -> bool:
    """Whether a pod was told to go."""
    return bool(pod.metadata.deletion_timestamp)


def index_of(pod: Pod) -> int:
    """The number of a pod; -1 if it has none."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdecimal() and len(text) < 10 else _NO_INDEX


def failures_before(pod: Pod, mark: str = FAILURES) -> int:
    """How often the index of a pod had failed before it."""
    text = pod.metadata.annotations.get(mark, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def finished_at(pod: Pod, now: float) -> float:
    """When a pod ended: its last container, else when it was ready for the last time."""
    ends = [
        seconds(status.state.terminated.finished_at)
        for status in pod.status.container_statuses
        if status.state.terminated and status.state.terminated.finished_at
    ]
    if ends:
        return max(ends)
    ready = condition(pod.status.conditions, "Ready")
    for moment in (ready and ready.last_transition_time, pod.metadata.deletion_timestamp):
        if moment:
            return min(seconds(moment), now)
    return now
