"""Indexes of an indexed Job: sets of numbers, and the text that a status holds of them.

Roll: the pods of a Job, sorted by how they are. What the other parts of a sync read.

Claiming: which pods are a Job's. Its own that fit its selector, and those of nobody that do.

A pod whose labels were changed so that it fits no more is let go. Pure; the controller performs it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import NamedTuple

from phalanx.api.batch import BadIndexes, Job, parse_indexes
from phalanx.api.core import Pod
from phalanx.api.kinds import JOB
from phalanx.api.meta import Key, ObjectMeta, OwnerReference, find_condition, parse_timestamp
from phalanx.api.selectors import BadSelector, LabelRequirement, selector_requirements

Indexes = frozenset[int]


def parse_index_set(text: str | None, completions: int) -> Indexes:
    """The indexes of a text below a number; what cannot be read is as good as nothing."""
    try:
        runs = parse_indexes(text or "", 1 << 31)
    except BadIndexes:
        return frozenset()
    return frozenset(
        i for first, last in runs for i in range(first, min(last, completions - 1) + 1)
    )


def format_index_set(indexes: Iterable[int]) -> str:
    """Indexes as a status has them: runs of three and more in short.

    >>> written([7, 0, 1, 3, 4, 5])
    '0,1,3-5,7'
    """
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_format_run(run) for run in runs)


def _format_run(run: list[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run))


#: Keeps a pod from going before it was counted.
TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
#: The number of a pod, as annotation and label.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
#: How often an index has failed before this pod, with and without what is to be ignored.
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURE_COUNT = "batch.kubernetes.io/job-index-ignored-failure-count"

SUCCEEDED, FAILED = "Succeeded", "Failed"
_NO_INDEX = -1


class JobPods:
    """The pods of one Job at one moment."""

    def __init__(self, job: Job, pods: Iterable[Pod]) -> None:
        self.job = job
        self.pods = sorted(pods, key=lambda pod: pod.metadata.name)
        spec = job.spec
        self.completions = spec.completions if spec.completions is not None else 0
        self.recorded_failed_indexes = parse_index_set(job.status.failed_indexes, self.completions)
        done = parse_index_set(job.status.completed_indexes, self.completions)
        self.recorded_succeeded_indexes = done - self.recorded_failed_indexes

    @cached_property
    def active(self) -> list[Pod]:
        """Pods that run or are to run."""
        return [pod for pod in self.pods if not pod.is_terminal and not is_terminating(pod)]

    @cached_property
    def terminating(self) -> list[Pod]:
        """Pods on their way out that have not ended yet."""
        return [pod for pod in self.pods if not pod.is_terminal and is_terminating(pod)]

    @cached_property
    def tracked(self) -> list[Pod]:
        """Pods that wait to be counted, or run."""
        return [pod for pod in self.pods if is_tracked(pod)]

    @cached_property
    def uncounted_uids(self) -> frozenset[str]:
        """Pods whose result is in the status and not yet in its numbers, by uid."""
        uncounted = self.job.status.uncounted_terminated_pods
        return frozenset((*uncounted.succeeded, *uncounted.failed))

    @cached_property
    def newly_succeeded(self) -> list[Pod]:
        """Pods that succeeded and are in no count yet."""
        return [
            pod
            for pod in self.tracked
            if pod.status.phase == SUCCEEDED and self.is_new(pod) and self.has_valid_index(pod)
        ]

    @cached_property
    def newly_failed(self) -> list[Pod]:
        """Pods that failed and are in no count yet."""
        return [
            pod
            for pod in self.tracked
            if self.has_failed(pod) and self.is_new(pod) and self.has_valid_index(pod)
        ]

    @cached_property
    def succeeded_indexes(self) -> Indexes:
        """The indexes of which a pod has succeeded, unless they were given up before."""
        fresh = {completion_index(pod) for pod in self.newly_succeeded}
        return self.recorded_succeeded_indexes | (fresh - self.recorded_failed_indexes)

    def is_new(self, pod: Pod) -> bool:
        """Whether a pod is in no count yet."""
        if self.job.spec.is_indexed and pod.status.phase == SUCCEEDED:
            counted = self.recorded_succeeded_indexes | self.recorded_failed_indexes
            return (
                pod.metadata.uid not in self.uncounted_uids and completion_index(pod) not in counted
            )
        return pod.metadata.uid not in self.uncounted_uids

    def has_valid_index(self, pod: Pod) -> bool:
        """Whether a pod counts: in an indexed Job only those with an index that there is."""
        return not self.job.spec.is_indexed or 0 <= completion_index(pod) < self.completions

    def has_failed(self, pod: Pod) -> bool:
        """Whether a pod counts as failed: at its end, or as soon as it is told to go."""
        if pod.status.phase == FAILED:
            return True
        leaving = is_terminating(pod) and pod.status.phase != SUCCEEDED
        return leaving and not self.job.spec.replaces_failed_only


def is_tracked(pod: Pod) -> bool:
    """Whether a pod waits to be counted before it may go."""
    return TRACKING_FINALIZER in pod.metadata.finalizers


def is_terminating(pod: Pod) -> bool:
    """Whether a pod was told to go."""
    return bool(pod.metadata.deletion_timestamp)


def is_ready(pod: Pod) -> bool:
    """Whether a pod says that it can do its work."""
    found = find_condition(pod.status.conditions, "Ready")
    return found is not None and found.status == "True"


def completion_index(pod: Pod) -> int:
    """The number of a pod; -1 if it has none."""
    return _int_annotation(pod, COMPLETION_INDEX, _NO_INDEX)


def index_failure_count(pod: Pod, annotation: str = FAILURE_COUNT) -> int:
    """How often the index of a pod had failed before it."""
    return _int_annotation(pod, annotation, 0)


def previous_attempts(pod: Pod) -> int:
    """How many pods of its index came before a pod, those included whose failures are ignored."""
    return index_failure_count(pod) + index_failure_count(pod, IGNORED_FAILURE_COUNT)


def finished_at(pod: Pod) -> float:
    """When a pod ended: when its last container did, it ceased to be ready, or was told to go.

    Of one that says none of this, all that is known is when it began.
    """
    ends = [status.state.terminated for status in pod.status.container_statuses]
    times = [parse_timestamp(end.finished_at) for end in ends if end and end.finished_at]
    if times and len(times) == len(ends):
        return max(times)
    meta, ready = pod.metadata, find_condition(pod.status.conditions, "Ready")
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return parse_timestamp(ready.last_transition_time)
    if meta.deletion_timestamp:
        return parse_timestamp(meta.deletion_timestamp) - meta.deletion_grace_period_seconds
    return parse_timestamp(meta.creation_timestamp)


def _int_annotation(pod: Pod, annotation: str, default: int) -> int:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default


_JOB_KIND = JOB.name, JOB.api_version


class ClaimedPods(NamedTuple):
    """The pods of a Job, those that are to become its own, and those that cease to be."""

    owned: list[Pod]
    to_adopt: list[Pod]
    to_disown: list[Pod]


def claim_pods(job: Job, owned: Iterable[Pod], orphans: Iterable[Pod]) -> ClaimedPods:
    """Sort pods that a Job controls, and pods that nobody does.

    A Job that is being deleted neither takes nor gives.
    """
    needs = _selector_requirements(job)
    fitting: list[Pod] = []
    others: list[Pod] = []
    for pod in owned:
        (fitting if _matches_selector(needs, pod) else others).append(pod)
    if job.metadata.deletion_timestamp:
        return ClaimedPods(fitting, [], [])
    adopted = [pod for pod in orphans if not is_terminating(pod) and _matches_selector(needs, pod)]
    return ClaimedPods(fitting, adopted, others)


def would_adopt(job: Job, pod: Pod) -> bool:
    """Whether a Job would adopt a pod."""
    return not job.is_finished and bool(claim_pods(job, (), [pod]).to_adopt)


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """Whoever controls an object."""
    for one in meta.owner_references:
        if one.controller:
            return one
    return None


def job_of(pod: Pod) -> OwnerReference | None:
    """The Job that controls a pod."""
    found = controller_of(pod.metadata)
    return found if found and (found.kind, found.api_version) == _JOB_KIND else None


def job_keys(pod: Pod) -> list[Key]:
    """Where the Job is that controls a pod, if one does."""
    found = job_of(pod)
    return [Key(pod.metadata.namespace, found.name)] if found else []


def is_controlled_by(pod: Pod, job: Job) -> bool:
    """Whether a pod belongs to this very Job, not to an earlier one of the same name."""
    found = job_of(pod)
    return found is not None and found.uid == job.metadata.uid


def orphan_index_keys(pod: Pod) -> list[Hashable]:
    """Where to look for a pod that nobody controls: in its namespace, and by each of its labels."""
    meta = pod.metadata
    if controller_of(meta) is not None:
        return []
    return [(meta.namespace,), *((meta.namespace, *label) for label in meta.labels.items())]


def selector_index_key(job: Job) -> Hashable:
    """The place where all pods are that a Job may adopt: by one label, if it asks for any."""
    labels = (job.spec.selector or {}).get("matchLabels") or {}
    return (job.metadata.namespace, *min(labels.items(), default=()))


def _selector_requirements(job: Job) -> tuple[LabelRequirement, ...] | None:
    """What labels a Job's pods have; None if that cannot be told."""
    try:
        return selector_requirements(job.spec.selector) if job.spec.selector is not None else None
    except BadSelector:
        return None


def _matches_selector(needs: tuple[LabelRequirement, ...] | None, pod: Pod) -> bool:
    return needs is not None and all(need.matches(pod.metadata.labels) for need in needs)
