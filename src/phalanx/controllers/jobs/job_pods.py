"""The pods of one Job: which belong to it, which state each is in, and which index it has.

The first step of a sync. `claim_pods` decides which pods the Job owns, adopts and releases;
`JobPods` classifies the owned ones for the other modules of this package. Pure: the controller
performs adoptions and releases.

    a pod of the Job         matches its selector   action
    controlled by the Job    yes                    owned
    controlled by the Job    no                     released: owner reference and finalizer removed
    without a controller     yes                    adopted: owner reference and finalizer added

    >>> format_index_set([7, 0, 1, 3, 4, 5])
    '0,1,3-5,7'
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import NamedTuple

from phalanx.api.batch import BadIndexes, Job, parse_indexes
from phalanx.api.core import Pod
from phalanx.api.kinds import JOB
from phalanx.api.meta import Key, find_condition, parse_timestamp
from phalanx.api.selectors import BadSelector, LabelRequirement, selector_requirements

Indexes = frozenset[int]


def parse_index_set(text: str | None, completions: int) -> Indexes:
    """Parse the index set of a status, below `completions`. Malformed text is the empty set."""
    try:
        runs = parse_indexes(text or "", 1 << 31)
    except BadIndexes:
        return frozenset()
    return frozenset(
        i for first, last in runs for i in range(first, min(last, completions - 1) + 1)
    )


def format_index_set(indexes: Iterable[int]) -> str:
    """Format indexes as `status.completedIndexes` does: runs of three or more as a range."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )


#: Keeps a pod from being removed before its result is counted in the status of the Job.
TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
#: The completion index of a pod, as annotation and label.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
#: How many earlier pods of the index failed: counted failures, and failures that the pod failure
#: policy ignores.
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURE_COUNT = "batch.kubernetes.io/job-index-ignored-failure-count"

SUCCEEDED, FAILED = "Succeeded", "Failed"
_NO_INDEX = -1


class JobPods:
    """The pods that one Job owns, classified by phase, deletion and finalizer."""

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
        """Pods that are pending or running and not being deleted."""
        return [pod for pod in self.pods if not pod.is_terminal and not is_terminating(pod)]

    @cached_property
    def terminating(self) -> list[Pod]:
        """Pods that are being deleted and have not terminated yet."""
        return [pod for pod in self.pods if not pod.is_terminal and is_terminating(pod)]

    @cached_property
    def tracked_pods(self) -> list[Pod]:
        """Pods with the tracking finalizer: running, or terminated and not counted yet."""
        return [pod for pod in self.pods if is_tracked(pod)]

    @cached_property
    def uncounted_uids(self) -> frozenset[str]:
        """The uids in `status.uncountedTerminatedPods`: recorded, and not yet added to a total."""
        uncounted = self.job.status.uncounted_terminated_pods
        return frozenset((*uncounted.succeeded, *uncounted.failed))

    @cached_property
    def unrecorded_successes(self) -> list[Pod]:
        """Succeeded pods that the status does not record yet."""
        return [
            pod
            for pod in self.tracked_pods
            if pod.status.phase == SUCCEEDED
            and self.is_unrecorded(pod)
            and self.has_valid_index(pod)
        ]

    @cached_property
    def unrecorded_failures(self) -> list[Pod]:
        """Failed pods that the status does not record yet."""
        return [
            pod
            for pod in self.tracked_pods
            if self.has_failed(pod) and self.is_unrecorded(pod) and self.has_valid_index(pod)
        ]

    @cached_property
    def succeeded_indexes(self) -> Indexes:
        """The indexes of which a pod succeeded, without those that failed before."""
        new = {completion_index(pod) for pod in self.unrecorded_successes}
        return self.recorded_succeeded_indexes | (new - self.recorded_failed_indexes)

    def is_unrecorded(self, pod: Pod) -> bool:
        """Whether the status does not record the result of a pod yet."""
        if self.job.spec.is_indexed and pod.status.phase == SUCCEEDED:
            recorded = self.recorded_succeeded_indexes | self.recorded_failed_indexes
            if completion_index(pod) in recorded:
                return False
        return pod.metadata.uid not in self.uncounted_uids

    def has_valid_index(self, pod: Pod) -> bool:
        """Whether a pod counts. In an indexed Job its index must be below `completions`."""
        return not self.job.spec.is_indexed or 0 <= completion_index(pod) < self.completions

    def has_failed(self, pod: Pod) -> bool:
        """Whether a pod counts as failed.

        A pod that is being deleted counts before it terminates, unless `podReplacementPolicy` is
        `Failed`.
        """
        if pod.status.phase == FAILED:
            return True
        if pod.status.phase == SUCCEEDED or not is_terminating(pod):
            return False
        return not self.job.spec.replaces_failed_only


def is_tracked(pod: Pod) -> bool:
    """Whether a pod has the tracking finalizer."""
    return TRACKING_FINALIZER in pod.metadata.finalizers


def is_terminating(pod: Pod) -> bool:
    """Whether a pod is being deleted."""
    return bool(pod.metadata.deletion_timestamp)


def is_ready(pod: Pod) -> bool:
    """Whether the condition Ready of a pod is True."""
    return pod.is_ready


def completion_index(pod: Pod) -> int:
    """Return the completion index of a pod; -1 if it has none."""
    return _int_annotation(pod, COMPLETION_INDEX, _NO_INDEX)


def index_failure_count(pod: Pod, annotation: str = FAILURE_COUNT) -> int:
    """Return how many counted failures the index had before this pod."""
    return _int_annotation(pod, annotation, 0)


def previous_attempts(pod: Pod) -> int:
    """Return how many pods of the index failed before this pod, ignored failures included."""
    return index_failure_count(pod) + index_failure_count(pod, IGNORED_FAILURE_COUNT)


def finish_time(pod: Pod) -> float:
    """Return when a pod finished.

    In this order: when its last container terminated, when it ceased to be ready, when it was
    deleted, when it was created.
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
    """The pods that a Job owns, the pods to adopt, and the pods to release."""

    owned: list[Pod]
    to_adopt: list[Pod]
    to_release: list[Pod]


def claim_pods(job: Job, owned: Iterable[Pod], orphans: Iterable[Pod]) -> ClaimedPods:
    """Classify pods that a Job controls, and pods without a controller, by the Job's selector.

    A Job that is being deleted neither adopts nor releases pods.
    """
    requirements = _selector_requirements(job)
    matching: list[Pod] = []
    mismatched: list[Pod] = []
    for pod in owned:
        (matching if _matches_selector(requirements, pod) else mismatched).append(pod)
    if job.metadata.deletion_timestamp:
        return ClaimedPods(matching, [], [])
    to_adopt = [
        pod for pod in orphans if not is_terminating(pod) and _matches_selector(requirements, pod)
    ]
    return ClaimedPods(matching, to_adopt, mismatched)


def would_adopt(job: Job, pod: Pod) -> bool:
    """Whether a Job would adopt a pod without a controller."""
    return not job.is_finished and bool(claim_pods(job, (), [pod]).to_adopt)


def job_keys(pod: Pod) -> list[Key]:
    """Return the key of the Job that controls a pod, or nothing: an index function."""
    found = pod.metadata.controller
    is_job = found is not None and (found.kind, found.api_version) == _JOB_KIND
    return [Key(pod.metadata.namespace, found.name)] if found and is_job else []


def orphan_index_keys(pod: Pod) -> list[Hashable]:
    """Return the index keys of a pod without a controller: its namespace, and each label in it."""
    meta = pod.metadata
    if meta.controller is not None:
        return []
    return [(meta.namespace,), *((meta.namespace, *label) for label in meta.labels.items())]


def selector_index_key(job: Job) -> Hashable:
    """Return the index key under which all pods are that a Job may adopt.

    By one of the labels that its selector requires, or by its namespace.
    """
    labels = (job.spec.selector or {}).get("matchLabels") or {}
    return (job.metadata.namespace, *min(labels.items(), default=()))


def _selector_requirements(job: Job) -> tuple[LabelRequirement, ...] | None:
    try:
        return selector_requirements(job.spec.selector) if job.spec.selector is not None else None
    except BadSelector:
        return None


def _matches_selector(requirements: tuple[LabelRequirement, ...] | None, pod: Pod) -> bool:
    return requirements is not None and all(
        requirement.matches(pod.metadata.labels) for requirement in requirements
    )
