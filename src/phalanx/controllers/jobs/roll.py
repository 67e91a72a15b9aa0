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
        self.failed_before = read(job.status.failed_indexes, self.completions)
        done = read(job.status.completed_indexes, self.completions)
        self.succeeded_before = done - self.failed_before

    @cached_property
    def active(self) -> list[Pod]:
        """Pods that run or are to run."""
        return [pod for pod in self.pods if not pod.ended and not is_leaving(pod)]

    @cached_property
    def terminating(self) -> list[Pod]:
        """Pods on their way out that have not ended yet."""
        return [pod for pod in self.pods if not pod.ended and is_leaving(pod)]

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
        """The indexes of which a pod has succeeded, unless they were given up before."""
        fresh = {index_of(pod) for pod in self.newly_succeeded}
        return self.succeeded_before | (fresh - self.failed_before)

    def is_new(self, pod: Pod) -> bool:
        """Whether a pod is in no count yet."""
        if self.job.spec.is_indexed and pod.status.phase == SUCCEEDED:
            counted = self.succeeded_before | self.failed_before
            return pod.metadata.uid not in self.known and index_of(pod) not in counted
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


def is_ready(pod: Pod) -> bool:
    """Whether a pod says that it can do its work."""
    found = condition(pod.status.conditions, "Ready")
    return found is not None and found.status == "True"


def index_of(pod: Pod) -> int:
    """The number of a pod; -1 if it has none."""
    return _number(pod, INDEX, _NO_INDEX)


def failures_before(pod: Pod, mark: str = FAILURES) -> int:
    """How often the index of a pod had failed before it."""
    return _number(pod, mark, 0)


def attempts_before(pod: Pod) -> int:
    """How many pods of its index came before a pod, those included whose failures are ignored."""
    return failures_before(pod) + failures_before(pod, IGNORED_FAILURES)


def finished_at(pod: Pod) -> float:
    """When a pod ended: when its last container did, it ceased to be ready, or was told to go.

    Of one that says none of this, all that is known is when it began.
    """
    ends = [status.state.terminated for status in pod.status.container_statuses]
    times = [seconds(end.finished_at) for end in ends if end and end.finished_at]
    if times and len(times) == len(ends):
        return max(times)
    meta, ready = pod.metadata, condition(pod.status.conditions, "Ready")
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return seconds(ready.last_transition_time)
    if meta.deletion_timestamp:
        return seconds(meta.deletion_timestamp) - meta.deletion_grace_period_seconds
    return seconds(meta.creation_timestamp)


def _number(pod: Pod, mark: str, default: int) -> int:
    text = pod.metadata.annotations.get(mark, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default
