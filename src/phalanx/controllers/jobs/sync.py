"""One look at a Job: what to make, delete, write down and let go. Pure; the controller performs it.

In this order: pods are deleted or made, then the status is written, then finalizers go. What is
written before the next step makes a crash between any two of them harmless.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.batch import COMPLETE, SCHEDULING_FALLBACK, SUSPENDED, Job, JobCondition
from phalanx.api.core import Pod
from phalanx.api.meta import seconds, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.count import Count, count
from phalanx.controllers.jobs.ending import Ending, Situation, ending, remaining
from phalanx.controllers.jobs.indexset import written
from phalanx.controllers.jobs.roll import is_ready
from phalanx.controllers.jobs.staffing import MOST_AT_ONCE, Order, Staffing, staffing

WARNING = "Warning"


class Remark(NamedTuple):
    """Something to tell about a Job."""

    reason: str
    message: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a sync: the pods that were told to go, and how many were made.

    `fallback` says why pods are in no group although they should be; if that is known at all.
    """

    gone: Collection[Pod] = ()
    made: int = 0
    fallback: Remark | None = None
    is_placed: bool = True


class Report(NamedTuple):
    """The fields of the status that change, and what to tell once they are written."""

    status: Object
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True)
class Sync:
    """What to do about a Job now; and then, given what came of it, what to say."""

    situation: Situation
    end: Ending | None
    staff: Staffing
    counted: Count

    @property
    def make(self) -> tuple[Order, ...]:
        """Pods to make."""
        return self.staff.make

    @property
    def delete(self) -> tuple[Pod, ...]:
        """Pods to delete that count as failed: those that a failed Job leaves behind."""
        return self.staff.delete if self.end is not None and not self.end.is_success else ()

    @property
    def dismiss(self) -> tuple[Pod, ...]:
        """Pods to delete that are not wanted any more: they count as nothing."""
        return self.staff.delete if self.end is None or self.end.is_success else ()

    @property
    def release(self) -> tuple[Pod, ...]:
        """Pods to let go once the status is written."""
        return self.counted.release

    @property
    def again(self) -> float | None:
        """In how many seconds to look again, unless something happens before."""
        waits = (self.staff.again, remaining(self.situation))
        return min((pause for pause in waits if pause is not None and pause > 0), default=None)

    def report(self, done: Done) -> Report:
        """What to say now that all this was done, or some of it."""
        job = self.situation.roll.job
        changed, remarks = self._conditions(done)
        status, said = self._status(done, changed), _said(job)
        return Report(
            {name: value for name, value in status.items() if value != said[name]}, tuple(remarks)
        )

    def _conditions(self, done: Done) -> tuple[list[Object], list[Remark]]:
        """The conditions that come or change, and what to tell of them."""
        job, moment = self.situation.roll.job, timestamp(self.situation.now)
        news: list[tuple[str, str, Remark]] = []
        if self.end is None and not job.metadata.deletion_timestamp:
            news += _suspension(job)
        if done.is_placed:
            news += _fallback(job, done.fallback)
        remarks = [remark for _, _, remark in news]
        found = [_condition(kind, status, remark, moment) for kind, status, remark in news]
        if self.end is not None and job.said(self.end.target) is None:
            found.append(_condition(self.end.target, "True", self.end, moment))
            remarks += self._excess()
        elif self.end is not None and self.is_over(done):
            found.append(_condition(self.end.condition, "True", self.end, moment))
            remarks.append(_farewell(self.end))
        return found, remarks

    def _excess(self) -> list[Remark]:
        completions, succeeded = self.situation.roll.job.spec.completions, self.situation.succeeded
        if completions is None or succeeded <= completions:
            return []
        text = "Too many succeeded pods running after completion count reached"
        return [Remark("TooManySucceededPods", text, WARNING)]

    def is_over(self, done: Done) -> bool:
        """Whether the end that was announced has come: nothing is left to be counted or to go."""
        roll = self.situation.roll
        is_announced = self.end is not None and roll.job.said(self.end.target) is not None
        is_empty = not (roll.active or roll.terminating or done.gone)
        return is_announced and is_empty and self.counted.is_settled

    def _status(self, done: Done, changed: list[Object]) -> Object:
        roll, counted = self.situation.roll, self.counted
        job, kinds = roll.job, {one["type"] for one in changed}
        kept = [_written(one) for one in job.status.conditions if one.type not in kinds]
        gone = {pod.metadata.uid for pod in done.gone}
        staying = [pod for pod in roll.active if pod.metadata.uid not in gone]
        start = self._start(changed)
        return {
            "conditions": [*kept, *changed],
            "startTime": start,
            "completionTime": _completion(self.situation, start, kinds),
            "active": len(staying) + done.made,
            "ready": sum(map(is_ready, staying)),
            "terminating": len(roll.terminating) + len(gone),
            "succeeded": counted.succeeded,
            "failed": counted.failed,
            "completedIndexes": written(counted.completed) or None,
            "failedIndexes": (
                written(counted.given_up) if job.spec.backoff_limit_per_index is not None else None
            ),
            "uncountedTerminatedPods": {
                "succeeded": list(counted.waiting_succeeded),
                "failed": list(counted.waiting_failed),
            },
        }

    def _start(self, changed: list[Object]) -> str | None:
        """When it began to run, anew after every rest; one that ends must have begun."""
        job, now = self.situation.roll.job, timestamp(self.situation.now)
        if self.end is not None:
            return job.status.start_time or now
        if job.spec.suspend:
            return None if not job.metadata.deletion_timestamp else job.status.start_time
        is_resumed = any(one["type"] == SUSPENDED for one in changed)
        return now if is_resumed else job.status.start_time or now


def sync(situation: Situation) -> Sync:
    """What is due about a Job that has not ended."""
    end = ending(situation)
    return Sync(situation, end, _staff(situation, end), count(situation, end))


def _staff(situation: Situation, end: Ending | None) -> Staffing:
    job, active = situation.roll.job, situation.roll.active
    if end is not None:
        return Staffing(delete=tuple(active[:MOST_AT_ONCE]))
    if job.metadata.deletion_timestamp:
        return Staffing()
    if job.spec.suspend:
        return Staffing(delete=tuple(active[:MOST_AT_ONCE]))
    return staffing(situation)


def _suspension(job: Job) -> list[tuple[str, str, Remark]]:
    """What changes about the rest of a Job; that one rests no more is said only if it did."""
    if bool(job.said(SUSPENDED)) == job.spec.suspend:
        return []
    word, status = ("suspended", "True") if job.spec.suspend else ("resumed", "False")
    return [(SUSPENDED, status, Remark(word.capitalize(), f"Job {word}"))]


def _fallback(job: Job, why: Remark | None) -> list[tuple[str, str, Remark]]:
    """What changes about why pods are in no group."""
    held = job.said(SCHEDULING_FALLBACK)
    if why is not None and (held is None or (held.reason, held.message) != why[:2]):
        return [(SCHEDULING_FALLBACK, "True", why)]
    if why is None and held is not None:
        text = "New pods are scheduled as the Job asks for"
        return [(SCHEDULING_FALLBACK, "False", Remark("SchedulingRestored", text))]
    return []


def _farewell(end: Ending) -> Remark:
    if end.is_success:
        return Remark("Completed", "Job completed")
    return Remark(end.reason, end.message, WARNING)


#: Conditions whose reason is not that of the event.
_REASONS = {"Suspended": "JobSuspended", "Resumed": "JobResumed"}


def _condition(kind: str, status: str, why: Remark | Ending, moment: str) -> Object:
    return {
        "type": kind, "status": status, "reason": _REASONS.get(why.reason, why.reason),
        "message": why.message, "lastProbeTime": moment, "lastTransitionTime": moment,
    }  # fmt: skip


def _completion(situation: Situation, start: str | None, changed: Collection[str]) -> str | None:
    """When it was complete: never before it began, whatever clocks say."""
    if COMPLETE not in changed:
        return situation.roll.job.status.completion_time
    return timestamp(max(situation.now, seconds(start) if start else situation.now))


def _said(job: Job) -> Object:
    """The status as it is, in the form of a new one."""
    status = job.status
    uncounted = status.uncounted_terminated_pods
    return {
        "conditions": [_written(one) for one in status.conditions],
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


def _written(one: JobCondition) -> Object:
    """A condition that stays as it is."""
    said = {
        "type": one.type, "status": one.status, "reason": one.reason, "message": one.message,
        "lastProbeTime": one.last_probe_time, "lastTransitionTime": one.last_transition_time,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value}
