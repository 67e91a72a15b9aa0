"""Count: what the status says of ended pods, and whose finalizer may go.

A uid is written down before the finalizer goes; once that is gone, the uid turns into a number.

    pod ends          uncounted: [u]         written, the finalizer goes next
    finalizer gone    failed: 1              the uid goes, the number comes

Of an indexed Job the successes are indexes, which cannot be counted twice and need no uid.

One look at a Job: what to make, delete, write down and let go. Pure; the controller performs it.

In this order: pods are deleted or made, then the status is written, then finalizers go. What is
written before the next step makes a crash between any two of them harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.batch import COMPLETE, SCHEDULING_FALLBACK, SUSPENDED, Job, JobCondition
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
    plan_replicas,
)

#: Uids that wait in a status at most.
MAX_UNCOUNTED_PODS = 500
#: A pod that is in no count: because it is there already, or because it is not to be.
_NOT_COUNTED = ""


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The numbers of a status, and the pods that may go once it is written."""

    succeeded: int
    failed: int
    uncounted_succeeded: tuple[str, ...]
    uncounted_failed: tuple[str, ...]
    completed_indexes: Indexes
    failed_indexes: Indexes
    to_release: tuple[Pod, ...]

    @property
    def is_fully_counted(self) -> bool:
        """Whether every pod that has ended is in the numbers."""
        return not (self.uncounted_succeeded or self.uncounted_failed or self.to_release)


def count_pods(snapshot: JobSnapshot, outcome: JobOutcome | None) -> PodCounts:
    """Take in every pod that has ended."""
    roll, tally = snapshot.job_pods, _PodCounter(snapshot.job_pods)
    for pod in roll.tracked:
        if _can_remove_finalizer(snapshot, pod, outcome):
            tally.add(pod, _counted_phase(snapshot, pod, outcome))
    return PodCounts(
        tally.succeeded_total,
        roll.job.status.failed + tally.newly_counted[FAILED],
        tuple(tally.uncounted[SUCCEEDED]),
        tuple(tally.uncounted[FAILED]),
        frozenset(tally.completed_indexes),
        snapshot.failures.failed_indexes,
        tuple(tally.to_release),
    )


class _PodCounter:
    """Who waits to be counted; as many new ones are taken in as there is room for."""

    def __init__(self, job_pods: JobPods) -> None:
        self._job_pods = job_pods
        before = job_pods.job.status.uncounted_terminated_pods
        tracked = {pod.metadata.uid for pod in job_pods.tracked}
        self.uncounted = {
            SUCCEEDED: _still_tracked(before.succeeded, tracked),
            FAILED: _still_tracked(before.failed, tracked),
        }
        self.newly_counted = {
            SUCCEEDED: len(before.succeeded) - len(self.uncounted[SUCCEEDED]),
            FAILED: len(before.failed) - len(self.uncounted[FAILED]),
        }
        self.completed_indexes = set(job_pods.recorded_succeeded_indexes)
        self.to_release: list[Pod] = []

    def add(self, pod: Pod, result: str) -> None:
        """Let a pod go, and write down what became of it if that is to be counted."""
        if result != _NOT_COUNTED:
            if not self._has_room():
                return
            if self._job_pods.job.spec.is_indexed and result == SUCCEEDED:
                self.completed_indexes.add(completion_index(pod))
            else:
                self.uncounted[result].append(pod.metadata.uid)
        self.to_release.append(pod)

    @property
    def succeeded_total(self) -> int:
        """How many have succeeded; fewer than before only where a Job may shrink."""
        spec, before = self._job_pods.job.spec, self._job_pods.job.status.succeeded
        if not spec.is_indexed:
            return before + self.newly_counted[SUCCEEDED]
        found = len(self.completed_indexes)
        return found if spec.completions == spec.parallelism else max(found, before)

    def _has_room(self) -> bool:
        fresh = len(self.completed_indexes) - len(self._job_pods.recorded_succeeded_indexes)
        return sum(map(len, self.uncounted.values())) + fresh < MAX_UNCOUNTED_PODS


def _still_tracked(uids: Iterable[str], tracked: set[str]) -> list[str]:
    """Those whose finalizer has yet to go."""
    return [uid for uid in uids if uid in tracked]


def _can_remove_finalizer(snapshot: JobSnapshot, pod: Pod, outcome: JobOutcome | None) -> bool:
    """Whether a pod is done with: it has ended, or the Job has no use for it any more."""
    roll = snapshot.job_pods
    if roll.job.metadata.deletion_timestamp or outcome is not None:
        return pod.is_terminal or is_terminating(pod)
    if pod.status.phase == SUCCEEDED:
        return True
    return roll.has_failed(pod) and not snapshot.failures.is_needed_for_backoff(pod)


def _counted_phase(snapshot: JobSnapshot, pod: Pod, outcome: JobOutcome | None) -> str:
    """As what a pod that may go is to be counted."""
    roll = snapshot.job_pods
    if not (roll.has_valid_index(pod) and roll.is_new(pod)):
        return _NOT_COUNTED
    if pod.status.phase == SUCCEEDED:
        return SUCCEEDED
    is_spared = outcome is not None and outcome.is_success and is_terminating(pod)
    return _NOT_COUNTED if is_spared or snapshot.failures.is_ignored(pod) else FAILED


WARNING = "Warning"


class JobEvent(NamedTuple):
    """Something to tell about a Job."""

    reason: str
    message: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What came of a sync: the pods that were told to go, and how many were made.

    `fallback` says why pods are in no group although they should be; if that is known at all.
    """

    deleted: Collection[Pod] = ()
    created: int = 0
    fallback: JobEvent | None = None
    is_group_known: bool = True


class JobStatusUpdate(NamedTuple):
    """The fields of the status that change, and what to tell once they are written."""

    status: Object
    events: tuple[JobEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What to do about a Job now; and then, given what came of it, what to say."""

    snapshot: JobSnapshot
    outcome: JobOutcome | None
    replicas: ReplicaPlan
    counts: PodCounts

    @property
    def pods_to_create(self) -> tuple[PodToCreate, ...]:
        """Pods to make."""
        return self.replicas.to_create

    @property
    def pods_to_delete(self) -> tuple[Pod, ...]:
        """Pods to delete that count as failed: those that a failed Job leaves behind."""
        return (
            self.replicas.to_delete
            if self.outcome is not None and not self.outcome.is_success
            else ()
        )

    @property
    def pods_to_discard(self) -> tuple[Pod, ...]:
        """Pods to delete that are not wanted any more: they count as nothing."""
        return self.replicas.to_delete if self.outcome is None or self.outcome.is_success else ()

    @property
    def pods_to_release(self) -> tuple[Pod, ...]:
        """Pods to let go once the status is written."""
        return self.counts.to_release

    @property
    def requeue_after(self) -> float | None:
        """In how many seconds to look again, unless something happens before."""
        waits = (self.replicas.requeue_after, seconds_until_deadline(self.snapshot))
        return min((pause for pause in waits if pause is not None and pause > 0), default=None)

    def build_status_update(self, result: SyncResult) -> JobStatusUpdate:
        """What to say now that all this was done, or some of it."""
        job = self.snapshot.job_pods.job
        changed, remarks = self._changed_conditions(result)
        status, said = self._build_status(result, changed), _current_status(job)
        return JobStatusUpdate(
            {name: value for name, value in status.items() if value != said[name]}, tuple(remarks)
        )

    def _changed_conditions(self, result: SyncResult) -> tuple[list[Object], list[JobEvent]]:
        """The conditions that come or change, and what to tell of them."""
        job, moment = self.snapshot.job_pods.job, timestamp(self.snapshot.now)
        news: list[tuple[str, str, JobEvent]] = []
        if self.outcome is None and not job.metadata.deletion_timestamp:
            news += _suspension_changes(job)
        if result.is_group_known:
            news += _fallback_changes(job, result.fallback)
        remarks = [remark for _, _, remark in news]
        found = [_build_condition(kind, status, remark, moment) for kind, status, remark in news]
        if self.outcome is not None and job.true_condition(self.outcome.target_condition) is None:
            found.append(
                _build_condition(self.outcome.target_condition, "True", self.outcome, moment)
            )
            remarks += self._excess_success_events()
        elif self.outcome is not None and self.is_finished(result):
            found.append(
                _build_condition(self.outcome.final_condition, "True", self.outcome, moment)
            )
            remarks.append(_completion_event(self.outcome))
        return found, remarks

    def _excess_success_events(self) -> list[JobEvent]:
        completions, succeeded = (
            self.snapshot.job_pods.job.spec.completions,
            self.snapshot.succeeded_count,
        )
        if completions is None or succeeded <= completions:
            return []
        text = "Too many succeeded pods running after completion count reached"
        return [JobEvent("TooManySucceededPods", text, WARNING)]

    def is_finished(self, result: SyncResult) -> bool:
        """Whether the end that was announced has come: nothing is left to be counted or to go."""
        roll = self.snapshot.job_pods
        is_announced = (
            self.outcome is not None
            and roll.job.true_condition(self.outcome.target_condition) is not None
        )
        is_empty = not (roll.active or roll.terminating or result.deleted)
        return is_announced and is_empty and self.counts.is_fully_counted

    def _build_status(self, result: SyncResult, changed: list[Object]) -> Object:
        roll, counted = self.snapshot.job_pods, self.counts
        job, kinds = roll.job, {one["type"] for one in changed}
        kept = [_encode_condition(one) for one in job.status.conditions if one.type not in kinds]
        gone = {pod.metadata.uid for pod in result.deleted}
        staying = [pod for pod in roll.active if pod.metadata.uid not in gone]
        start = self._start_time(changed)
        return {
            "conditions": [*kept, *changed],
            "startTime": start,
            "completionTime": _completion_time(self.snapshot, start, kinds),
            "active": len(staying) + result.created,
            "ready": sum(map(is_ready, staying)),
            "terminating": len(roll.terminating) + len(gone),
            "succeeded": counted.succeeded,
            "failed": counted.failed,
            "completedIndexes": format_index_set(counted.completed_indexes) or None,
            "failedIndexes": (
                format_index_set(counted.failed_indexes)
                if job.spec.backoff_limit_per_index is not None
                else None
            ),
            "uncountedTerminatedPods": {
                "succeeded": list(counted.uncounted_succeeded),
                "failed": list(counted.uncounted_failed),
            },
        }

    def _start_time(self, changed: list[Object]) -> str | None:
        """When it began to run, anew after every rest; one that ends must have begun."""
        job, now = self.snapshot.job_pods.job, timestamp(self.snapshot.now)
        if self.outcome is not None:
            return job.status.start_time or now
        if job.spec.suspend:
            return None if not job.metadata.deletion_timestamp else job.status.start_time
        is_resumed = any(one["type"] == SUSPENDED for one in changed)
        return now if is_resumed else job.status.start_time or now


def plan_sync(snapshot: JobSnapshot) -> SyncPlan:
    """What is due about a Job that has not ended."""
    end = find_outcome(snapshot)
    return SyncPlan(snapshot, end, _plan_replica_changes(snapshot, end), count_pods(snapshot, end))


def _plan_replica_changes(snapshot: JobSnapshot, outcome: JobOutcome | None) -> ReplicaPlan:
    job, active = snapshot.job_pods.job, snapshot.job_pods.active
    if outcome is not None:
        return ReplicaPlan(to_delete=tuple(active[:MAX_PODS_PER_SYNC]))
    if job.metadata.deletion_timestamp:
        return ReplicaPlan()
    if job.spec.suspend:
        return ReplicaPlan(to_delete=tuple(active[:MAX_PODS_PER_SYNC]))
    return plan_replicas(snapshot)


def _suspension_changes(job: Job) -> list[tuple[str, str, JobEvent]]:
    """What changes about the rest of a Job; that one rests no more is said only if it did."""
    if bool(job.true_condition(SUSPENDED)) == job.spec.suspend:
        return []
    word, status = ("suspended", "True") if job.spec.suspend else ("resumed", "False")
    return [(SUSPENDED, status, JobEvent(word.capitalize(), f"Job {word}"))]


def _fallback_changes(job: Job, why: JobEvent | None) -> list[tuple[str, str, JobEvent]]:
    """What changes about why pods are in no group."""
    held = job.true_condition(SCHEDULING_FALLBACK)
    if why is not None and (held is None or (held.reason, held.message) != why[:2]):
        return [(SCHEDULING_FALLBACK, "True", why)]
    if why is None and held is not None:
        text = "New pods are scheduled as the Job asks for"
        return [(SCHEDULING_FALLBACK, "False", JobEvent("SchedulingRestored", text))]
    return []


def _completion_event(outcome: JobOutcome) -> JobEvent:
    if outcome.is_success:
        return JobEvent("Completed", "Job completed")
    return JobEvent(outcome.reason, outcome.message, WARNING)


#: Conditions whose reason is not that of the event.
_CONDITION_REASONS = {"Suspended": "JobSuspended", "Resumed": "JobResumed"}


def _build_condition(kind: str, status: str, why: JobEvent | JobOutcome, moment: str) -> Object:
    return {
        "type": kind, "status": status, "reason": _CONDITION_REASONS.get(why.reason, why.reason),
        "message": why.message, "lastProbeTime": moment, "lastTransitionTime": moment,
    }  # fmt: skip


def _completion_time(
    snapshot: JobSnapshot, start: str | None, changed: Collection[str]
) -> str | None:
    """When it was complete: never before it began, whatever clocks say."""
    if COMPLETE not in changed:
        return snapshot.job_pods.job.status.completion_time
    return timestamp(max(snapshot.now, parse_timestamp(start) if start else snapshot.now))


def _current_status(job: Job) -> Object:
    """The status as it is, in the form of a new one."""
    status = job.status
    uncounted = status.uncounted_terminated_pods
    return {
        "conditions": [_encode_condition(one) for one in status.conditions],
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
            "succeeded": list(uncounted.succeeded), "failed": list(uncounted.failed),
        },
    }  # fmt: skip


def _encode_condition(one: JobCondition) -> Object:
    """A condition that stays as it is."""
    said = {
        "type": one.type, "status": one.status, "reason": one.reason, "message": one.message,
        "lastProbeTime": one.last_probe_time, "lastTransitionTime": one.last_transition_time,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value}
