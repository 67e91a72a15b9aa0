"""One sync of a Job as a pure function: pods to create and delete, and the new status.

`plan_sync` decides from a snapshot; the controller performs the plan in this order, so that a crash
between any two steps is harmless: delete or create pods, write the status, remove finalizers.

A pod is counted exactly once. Its uid is written to `status.uncountedTerminatedPods` before its
finalizer is removed, and moves to the total once the finalizer is gone:

    pod fails            uncountedTerminatedPods.failed: [u]    the finalizer is removed next
    finalizer removed    failed: 1                              the uid is removed

Successes of an indexed Job are recorded as indexes. An index cannot be counted twice, so its pod
needs no uid.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.batch import (
    COMPLETE,
    QUOTA_EXCEEDED,
    SCHEDULING_FALLBACK,
    SUSPENDED,
    Job,
    JobCondition,
)
from phalanx.api.core import Pod
from phalanx.api.meta import parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.completion import (
    JobOutcome,
    JobSnapshot,
    find_outcome,
    seconds_until_deadline,
)
from phalanx.controllers.jobs.job_pods import (
    FAILED,
    SUCCEEDED,
    Indexes,
    JobPods,
    completion_index,
    format_index_set,
    is_ready,
    is_terminating,
)
from phalanx.controllers.jobs.replicas import (
    MAX_PODS_PER_SYNC,
    PodToCreate,
    ReplicaPlan,
    count_desired_pods,
    plan_replicas,
    plan_under_quota,
)
from phalanx.controllers.jobs.restart import created_at

#: The most uids in `status.uncountedTerminatedPods`.
MAX_UNCOUNTED_PODS = 500
#: The phase of a pod that is added to no total: it is counted already, or must not be.
_NOT_COUNTED = ""


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The totals of a status, and the pods to untrack (remove the finalizer) once it is written."""

    succeeded: int
    failed: int
    uncounted_succeeded: tuple[str, ...]
    uncounted_failed: tuple[str, ...]
    completed_indexes: Indexes
    failed_indexes: Indexes
    to_untrack: tuple[Pod, ...]

    @property
    def is_fully_counted(self) -> bool:
        """Whether every terminated pod is in the totals."""
        return not (self.uncounted_succeeded or self.uncounted_failed or self.to_untrack)


def count_pods(snapshot: JobSnapshot, outcome: JobOutcome | None) -> PodCounts:
    """Count the terminated pods of a Job."""
    pods, counter = snapshot.job_pods, _PodCounter(snapshot.job_pods)
    for pod in pods.tracked_pods:
        if _can_remove_finalizer(snapshot, pod, outcome):
            counter.add(pod, _phase_to_count(snapshot, pod, outcome))
    return PodCounts(
        succeeded=counter.succeeded_total,
        failed=pods.job.status.failed + counter.newly_counted[FAILED],
        uncounted_succeeded=tuple(counter.uncounted[SUCCEEDED]),
        uncounted_failed=tuple(counter.uncounted[FAILED]),
        completed_indexes=frozenset(counter.completed_indexes),
        failed_indexes=snapshot.failures.failed_indexes,
        to_untrack=tuple(counter.to_untrack),
    )


class _PodCounter:
    """Moves uids between `uncountedTerminatedPods` and the totals; adds up to the limit of uids."""

    def __init__(self, job_pods: JobPods) -> None:
        self._job_pods = job_pods
        recorded = job_pods.job.status.uncounted_terminated_pods
        tracked = {pod.metadata.uid for pod in job_pods.tracked_pods}
        self.uncounted = {
            SUCCEEDED: [uid for uid in recorded.succeeded if uid in tracked],
            FAILED: [uid for uid in recorded.failed if uid in tracked],
        }
        self.newly_counted = {
            SUCCEEDED: len(recorded.succeeded) - len(self.uncounted[SUCCEEDED]),
            FAILED: len(recorded.failed) - len(self.uncounted[FAILED]),
        }
        self.completed_indexes = set(job_pods.recorded_succeeded_indexes)
        self.to_untrack: list[Pod] = []

    def add(self, pod: Pod, phase: str) -> None:
        """Plan to untrack a pod, and record its phase first if that counts."""
        if phase != _NOT_COUNTED:
            new_indexes = len(self.completed_indexes) - len(
                self._job_pods.recorded_succeeded_indexes
            )
            if sum(map(len, self.uncounted.values())) + new_indexes >= MAX_UNCOUNTED_PODS:
                return
            if self._job_pods.job.spec.is_indexed and phase == SUCCEEDED:
                self.completed_indexes.add(completion_index(pod))
            else:
                self.uncounted[phase].append(pod.metadata.uid)
        self.to_untrack.append(pod)

    @property
    def succeeded_total(self) -> int:
        """The total of successes; less than before only for an elastic indexed Job."""
        spec, before = self._job_pods.job.spec, self._job_pods.job.status.succeeded
        if not spec.is_indexed:
            return before + self.newly_counted[SUCCEEDED]
        completed = len(self.completed_indexes)
        return completed if spec.completions == spec.parallelism else max(completed, before)


def _can_remove_finalizer(snapshot: JobSnapshot, pod: Pod, outcome: JobOutcome | None) -> bool:
    pods = snapshot.job_pods
    if pods.job.metadata.deletion_timestamp or outcome is not None:
        return pod.is_terminal or is_terminating(pod)
    if pod.status.phase == SUCCEEDED:
        return True
    return pods.has_failed(pod) and not snapshot.failures.is_needed_for_backoff(pod)


def _phase_to_count(snapshot: JobSnapshot, pod: Pod, outcome: JobOutcome | None) -> str:
    """The total to which a pod without a finalizer is added."""
    pods = snapshot.job_pods
    if not (pods.has_valid_index(pod) and pods.is_unrecorded(pod)):
        return _NOT_COUNTED
    if pod.status.phase == SUCCEEDED:
        return SUCCEEDED
    # A pod that is deleted because the Job succeeded early is no failure.
    is_superseded = outcome is not None and outcome.is_success and is_terminating(pod)
    return _NOT_COUNTED if is_superseded or snapshot.failures.is_ignored(pod) else FAILED


WARNING = "Warning"


class JobEvent(NamedTuple):
    """An event about a Job, without the reference to it."""

    reason: str
    message: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What the controller has performed of a plan: the pods deleted, the number of pods created.

    `fallback` is why pods are in no PodGroup although the Job asks for one. It is meaningful only
    if `is_group_known`.
    """

    deleted: Collection[Pod] = ()
    created: int = 0
    fallback: JobEvent | None = None
    is_group_known: bool = True
    #: Which ResourceQuota did not admit the pods of a gang; "" if none refused.
    quota_excess: str = ""


class JobStatusUpdate(NamedTuple):
    """The fields of the status that change, and the events to record once they are written."""

    status: Object
    events: tuple[JobEvent, ...] = ()


class _ConditionChange(NamedTuple):
    type: str
    status: str
    event: JobEvent
    #: The time of the transition; "": the time of this sync.
    since: str = ""


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What to do about a Job; `build_status_update` adds the status once that is done."""

    snapshot: JobSnapshot
    outcome: JobOutcome | None
    replicas: ReplicaPlan
    counts: PodCounts

    @property
    def pods_to_create(self) -> tuple[PodToCreate, ...]:
        """The pods to create."""
        return self.replicas.to_create

    @property
    def pods_to_delete(self) -> tuple[Pod, ...]:
        """The pods to delete that count as failed: the active pods of a failed Job."""
        has_failed = self.outcome is not None and not self.outcome.is_success
        return self.replicas.to_delete if has_failed else ()

    @property
    def pods_to_discard(self) -> tuple[Pod, ...]:
        """The pods to delete that are not counted: surplus, suspended or superseded pods."""
        has_failed = self.outcome is not None and not self.outcome.is_success
        return () if has_failed else self.replicas.to_delete

    @property
    def pods_to_untrack(self) -> tuple[Pod, ...]:
        """The pods whose finalizer is removed once the status is written."""
        return self.counts.to_untrack

    @property
    def requeue_after(self) -> float | None:
        """After how many seconds to sync again if nothing changes."""
        delays = (self.replicas.requeue_after, seconds_until_deadline(self.snapshot))
        return min((delay for delay in delays if delay is not None and delay > 0), default=None)

    def build_status_update(self, result: SyncResult) -> JobStatusUpdate:
        """Build the changed fields of the status from the plan and what was performed of it."""
        changes, events = self._change_conditions(result)
        status = self._build_status(result, changes)
        current = _current_status(self.snapshot.job_pods.job)
        changed = {name: value for name, value in status.items() if value != current[name]}
        return JobStatusUpdate(changed, tuple(events))

    def _change_conditions(self, result: SyncResult) -> tuple[list[Object], list[JobEvent]]:
        """The conditions that are added or changed, and their events."""
        job, now = self.snapshot.job_pods.job, timestamp(self.snapshot.now)
        changes: list[_ConditionChange] = []
        if self.outcome is None and not job.metadata.deletion_timestamp:
            changes += _suspension_changes(job)
        if result.is_group_known:
            changes += _fallback_changes(job, result.fallback)
        changes += self._quota_changes(result)
        events = [change.event for change in changes]
        conditions = [
            _build_condition(
                change.type, change.status, cause=change.event, time=now, since=change.since
            )
            for change in changes
        ]
        if self.outcome is None:
            return conditions, events
        if job.true_condition(self.outcome.target_condition) is None:
            final = self.outcome.target_condition
            events += self._excess_success_events()
        elif self.is_finished(result):
            final = self.outcome.final_condition
            events.append(
                JobEvent("Completed", "Job completed")
                if self.outcome.is_success
                else JobEvent(self.outcome.reason, self.outcome.message, WARNING)
            )
        else:
            return conditions, events
        conditions.append(_build_condition(final, "True", cause=self.outcome, time=now))
        return conditions, events

    def _quota_changes(self, result: SyncResult) -> list[_ConditionChange]:
        """The change of the condition QuotaExceeded.

        Its message is that of the first refusal: the usage of a quota changes all the time.
        """
        job, active = self.snapshot.job_pods.job, self.snapshot.job_pods.active
        current = job.true_condition(QUOTA_EXCEEDED)
        if self.replicas.releases_quota and current is not None:
            text = f"{current.message.removesuffix(_RELEASED)}{_RELEASED}"
            event = JobEvent(QUOTA_EXCEEDED, text, WARNING)
            since = current.last_transition_time or ""
            return [_ConditionChange(QUOTA_EXCEEDED, "True", event, since=since)]
        if result.quota_excess:
            event = JobEvent(QUOTA_EXCEEDED, result.quota_excess, WARNING)
            return [] if current else [_ConditionChange(QUOTA_EXCEEDED, "True", event)]
        is_over = self.outcome is not None or job.spec.suspend
        is_complete = len(active) + result.created >= count_desired_pods(self.snapshot)
        if current is None or not (is_over or is_complete):
            return []
        event = JobEvent("QuotaAvailable", "The Job waits for no ResourceQuota")
        return [_ConditionChange(QUOTA_EXCEEDED, "False", event)]

    def _excess_success_events(self) -> list[JobEvent]:
        completions = self.snapshot.job_pods.job.spec.completions
        if completions is None or self.snapshot.succeeded_count <= completions:
            return []
        text = "Too many succeeded pods running after completion count reached"
        return [JobEvent("TooManySucceededPods", text, WARNING)]

    def is_finished(self, result: SyncResult) -> bool:
        """Whether the Job gets its final condition: all pods are counted, and none is left."""
        pods = self.snapshot.job_pods
        is_announced = (
            self.outcome is not None
            and pods.job.true_condition(self.outcome.target_condition) is not None
        )
        has_pods = pods.active or pods.terminating or result.deleted
        return is_announced and not has_pods and self.counts.is_fully_counted

    def _build_status(self, result: SyncResult, changes: list[Object]) -> Object:
        pods, counts = self.snapshot.job_pods, self.counts
        job, changed_types = pods.job, {condition["type"] for condition in changes}
        unchanged = [
            _encode_condition(condition)
            for condition in job.status.conditions
            if condition.type not in changed_types
        ]
        deleted = {pod.metadata.uid for pod in result.deleted}
        active = [pod for pod in pods.active if pod.metadata.uid not in deleted]
        start, completion = self._start_time(changed_types), job.status.completion_time
        if COMPLETE in changed_types:
            # Never before `startTime`, even if the clock was set back.
            now = self.snapshot.now
            completion = timestamp(max(now, parse_timestamp(start) if start else now))
        return {
            "conditions": [*unchanged, *changes],
            "startTime": start,
            "completionTime": completion,
            "active": len(active) + result.created,
            "ready": sum(map(is_ready, active)),
            "terminating": len(pods.terminating) + len(deleted),
            "succeeded": counts.succeeded,
            "failed": counts.failed,
            "completedIndexes": format_index_set(counts.completed_indexes) or None,
            "failedIndexes": (
                format_index_set(counts.failed_indexes)
                if job.spec.backoff_limit_per_index is not None
                else None
            ),
            "uncountedTerminatedPods": {
                "succeeded": list(counts.uncounted_succeeded),
                "failed": list(counts.uncounted_failed),
            },
        }

    def _start_time(self, changed_types: Collection[str]) -> str | None:
        """`startTime`: set anew when the Job is resumed, and set in any case when it ends."""
        job, now = self.snapshot.job_pods.job, timestamp(self.snapshot.now)
        if self.outcome is not None:
            return job.status.start_time or now
        if job.spec.suspend:
            return None if not job.metadata.deletion_timestamp else job.status.start_time
        is_resumed = SUSPENDED in changed_types
        return now if is_resumed else job.status.start_time or now


def plan_sync(snapshot: JobSnapshot) -> SyncPlan:
    """Plan one sync of a Job without a final condition."""
    outcome = find_outcome(snapshot)
    job, active = snapshot.job_pods.job, snapshot.job_pods.active
    if outcome is not None:
        replicas = ReplicaPlan(to_delete=tuple(active[:MAX_PODS_PER_SYNC]))
    elif job.metadata.deletion_timestamp:
        replicas = ReplicaPlan()
    elif job.spec.suspend:
        replicas = ReplicaPlan(to_delete=tuple(active[:MAX_PODS_PER_SYNC]))
    elif outdated := [pod for pod in active if created_at(pod) < snapshot.restarted_at]:
        replicas = ReplicaPlan(to_delete=tuple(outdated[:MAX_PODS_PER_SYNC]), restarts_gang=True)
    elif snapshot.now < snapshot.restarted_at:
        replicas = ReplicaPlan(requeue_after=snapshot.restarted_at - snapshot.now)
    else:
        replicas = plan_under_quota(snapshot, plan_replicas(snapshot))
    return SyncPlan(snapshot, outcome, replicas, counts=count_pods(snapshot, outcome))


def _suspension_changes(job: Job) -> list[_ConditionChange]:
    """The change of the condition Suspended. A Job that was never suspended has none."""
    if bool(job.true_condition(SUSPENDED)) == job.spec.suspend:
        return []
    if job.spec.suspend:
        return [_ConditionChange(SUSPENDED, "True", JobEvent("Suspended", "Job suspended"))]
    return [_ConditionChange(SUSPENDED, "False", JobEvent("Resumed", "Job resumed"))]


def _fallback_changes(job: Job, fallback: JobEvent | None) -> list[_ConditionChange]:
    """The change of the condition SchedulingFallback."""
    current = job.true_condition(SCHEDULING_FALLBACK)
    if fallback is not None:
        if current is not None and (current.reason, current.message) == fallback[:2]:
            return []
        return [_ConditionChange(SCHEDULING_FALLBACK, "True", fallback)]
    if current is None:
        return []
    text = "New pods are scheduled as the Job requests"
    restored = JobEvent("SchedulingRestored", text)
    return [_ConditionChange(SCHEDULING_FALLBACK, "False", restored)]


#: Completes the message of QuotaExceeded once the pods that were created have been removed.
_RELEASED = "; the pods that were created are removed until all fit"
#: Conditions whose reason differs from the reason of their event.
_CONDITION_REASONS = {"Suspended": "JobSuspended", "Resumed": "JobResumed"}


def _build_condition(
    kind: str, status: str, *, cause: JobEvent | JobOutcome, time: str, since: str = ""
) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": _CONDITION_REASONS.get(cause.reason, cause.reason),
        "message": cause.message,
        "lastProbeTime": time,
        "lastTransitionTime": since or time,
    }


def _current_status(job: Job) -> Object:
    """The present status, in the form of a new one."""
    status = job.status
    uncounted = status.uncounted_terminated_pods
    return {
        "conditions": [_encode_condition(condition) for condition in status.conditions],
        "startTime": status.start_time,
        "completionTime": status.completion_time,
        "active": status.active,
        "ready": status.ready,
        "terminating": status.terminating,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "completedIndexes": status.completed_indexes or None,
        "failedIndexes": status.failed_indexes,
        "uncountedTerminatedPods": {
            "succeeded": list(uncounted.succeeded),
            "failed": list(uncounted.failed),
        },
    }


def _encode_condition(condition: JobCondition) -> Object:
    fields = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastProbeTime": condition.last_probe_time,
        "lastTransitionTime": condition.last_transition_time,
    }
    return {name: value for name, value in fields.items() if value}
