"""One look at a Job: what to make, delete, write down and let go. Pure; the controller performs it.

In this order: pods are deleted or made, then the status is written, then finalizers go. What is
written before the next step makes a crash between any two of them harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.batch import SUSPENDED, Job
from phalanx.api.core import Pod
from phalanx.api.meta import Condition, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.count import Count, count
from phalanx.controllers.jobs.ending import Ending, Situation, ending, remaining
from phalanx.controllers.jobs.indexset import written
from phalanx.controllers.jobs.roll import Roll
from phalanx.controllers.jobs.staffing import MOST_AT_ONCE, Order, Staffing, staffing


class Remark(NamedTuple):
    """Something to tell about a Job once its status is written."""

    reason: str
    message: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class Sync:
    """What to do about a Job now, and in how many seconds to look again."""

    delete: tuple[Pod, ...] = ()
    #: Pods to delete that are not wanted any more: they count as nothing.
    dismiss: tuple[Pod, ...] = ()
    make: tuple[Order, ...] = ()
    #: The whole status where it is to change.
    status: Object | None = None
    release: tuple[Pod, ...] = ()
    remarks: tuple[Remark, ...] = ()
    again: float | None = None


def sync(job: Job, pods: Sequence[Pod], now: float) -> Sync:
    """What is due."""
    roll = Roll(job, pods)
    if job.ended:
        return Sync(release=tuple(roll.tracked))
    situation = Situation(roll, now)
    end = ending(situation)
    staff = _staff(situation, end)
    counted = count(roll, end)
    conditions, remarks = _conditions(situation, end, counted, staff)
    status = _status(situation, counted, staff, conditions)
    left = remaining(situation)
    waits = [pause for pause in (staff.again, left) if pause is not None and pause > 0]
    ended = staff.delete if end is not None else ()
    dismissed = staff.delete if end is None else ()
    return Sync(
        ended, dismissed, staff.make, status if status != _said(job) else None, counted.release,
        tuple(remarks), min(waits, default=None),
    )  # fmt: skip


def _staff(situation: Situation, end: Ending | None) -> Staffing:
    job, active = situation.roll.job, situation.roll.active
    if end is not None or job.spec.suspend:
        return Staffing(delete=tuple(active[:MOST_AT_ONCE]))
    return Staffing() if job.metadata.deletion_timestamp else staffing(situation)


def _conditions(
    situation: Situation, end: Ending | None, counted: Count, staff: Staffing
) -> tuple[list[Object], list[Remark]]:
    """The conditions that come or change, and what to tell of them."""
    job, moment = situation.roll.job, timestamp(situation.now)
    found: list[Object] = []
    remarks: list[Remark] = []
    if end is None:
        if change := _suspension(job):
            found.append(_condition(SUSPENDED, *change, moment))
            remarks.append(Remark(change[1].removeprefix("Job"), change[2]))
    elif job.said(end.target) is None:
        found.append(_condition(end.target, "True", end.reason, end.message, moment))
    elif _is_over(situation.roll, counted, staff):
        found.append(_condition(end.condition, "True", end.reason, end.message, moment))
        success, failure = Remark("Completed", "Job completed"), end.reason
        remarks.append(success if end.is_success else Remark(failure, end.message, "Warning"))
    return found, remarks


def _is_over(roll: Roll, counted: Count, staff: Staffing) -> bool:
    """Whether nothing is left to be counted or to go."""
    return counted.is_settled and not (roll.active or roll.terminating or staff.delete)


def _suspension(job: Job) -> tuple[str, str, str] | None:
    """Status, reason and message of a condition that is to change; one that is over stays."""
    if job.spec.suspend:
        return None if job.said(SUSPENDED) else ("True", "JobSuspended", "Job suspended")
    return ("False", "JobResumed", "Job resumed") if job.said(SUSPENDED) else None


def _condition(kind: str, status: str, reason: str, message: str, moment: str) -> Object:
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastProbeTime": moment, "lastTransitionTime": moment,
    }  # fmt: skip


def _status(situation: Situation, counted: Count, staff: Staffing, changed: list[Object]) -> Object:
    roll, job = situation.roll, situation.roll.job
    spec, kinds = job.spec, {one["type"] for one in changed}
    kept = [_written(one) for one in job.status.conditions if one.type not in kinds]
    active = len(roll.active) - len(staff.delete) + len(staff.make)
    completed = timestamp(situation.now) if "Complete" in kinds else job.status.completion_time
    return {
        "conditions": [*kept, *changed],
        "startTime": _start(situation, changed),
        "completionTime": completed,
        "active": active,
        "ready": min(roll.ready, active),
        "terminating": len(roll.terminating),
        "succeeded": counted.succeeded,
        "failed": counted.failed,
        "completedIndexes": written(counted.completed) if spec.is_indexed else "",
        "failedIndexes": (
            written(counted.given_up) if spec.backoff_limit_per_index is not None else None
        ),
        "uncountedTerminatedPods": {
            "succeeded": list(counted.waiting_succeeded), "failed": list(counted.waiting_failed),
        },
    }  # fmt: skip


def _start(situation: Situation, changed: list[Object]) -> str | None:
    """When it began to run, anew after every rest."""
    job = situation.roll.job
    if job.spec.suspend:
        return None
    resumed = any(one["type"] == SUSPENDED for one in changed)
    begun = None if resumed else job.status.start_time
    return begun or timestamp(situation.now)


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
        "completedIndexes": status.completed_indexes,
        "failedIndexes": status.failed_indexes,
        "uncountedTerminatedPods": {
            "succeeded": list(uncounted.succeeded), "failed": list(uncounted.failed),
        },
    }  # fmt: skip


def _written(one: Condition) -> Object:
    """A condition that stays as it is."""
    return {
        "type": one.type, "status": one.status, "reason": one.reason, "message": one.message,
        "lastProbeTime": one.last_transition_time, "lastTransitionTime": one.last_transition_time,
    }  # fmt: skip
