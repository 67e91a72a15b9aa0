"""Ending: is a Job over, and why? The first reason of a table counts.

A Job says first that it is to end (FailureTarget, SuccessCriteriaMet), then, when every pod has
been counted and is gone, that it has (Failed, Complete).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from phalanx.api.batch import COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET
from phalanx.api.meta import seconds
from phalanx.controllers.jobs.failures import FAIL_JOB, Failures
from phalanx.controllers.jobs.indexset import read
from phalanx.controllers.jobs.roll import Roll


@dataclass(frozen=True, slots=True)
class Ending:
    """How a Job is to end."""

    target: str
    reason: str
    message: str

    @property
    def is_success(self) -> bool:
        """Whether for better."""
        return self.target == SUCCESS_CRITERIA_MET

    @property
    def condition(self) -> str:
        """What the Job says at the very end."""
        return COMPLETE if self.is_success else FAILED


class Situation:
    """A roll, what is to be thought of its failed pods, and the moment."""

    def __init__(self, roll: Roll, now: float) -> None:
        self.roll, self.now, self.failures = roll, now, Failures(roll)

    @cached_property
    def failed(self) -> int:
        """How many pods have failed, those included that are not in the status yet."""
        status, roll = self.roll.job.status, self.roll
        waiting = len(status.uncounted_terminated_pods.failed)
        fresh = sum(not self.failures.is_ignored(pod) for pod in roll.newly_failed)
        return status.failed + waiting + fresh

    @cached_property
    def succeeded(self) -> int:
        """How many pods, or indexes, have succeeded."""
        status, roll = self.roll.job.status, self.roll
        if roll.job.spec.is_indexed:
            return len(roll.succeeded_indexes)
        waiting = len(status.uncounted_terminated_pods.succeeded)
        return status.succeeded + waiting + len(roll.newly_succeeded)


def ending(situation: Situation) -> Ending | None:
    """How a Job is to end, if it is."""
    return next((found for row in ENDINGS if (found := row(situation)) is not None), None)


def remaining(situation: Situation) -> float | None:
    """Seconds until the deadline of a Job, if it has one and runs."""
    job = situation.roll.job
    limit, start = job.spec.active_deadline_seconds, job.status.start_time
    if limit is None or start is None or job.spec.suspend:
        return None
    return limit - (situation.now - seconds(start))


def _said(kind: str) -> Callable[[Situation], Ending | None]:
    def found(situation: Situation) -> Ending | None:
        held = situation.roll.job.said(kind)
        return Ending(kind, held.reason, held.message) if held else None

    return found


def _failed_by_policy(situation: Situation) -> Ending | None:
    for pod in situation.roll.newly_failed:
        match = situation.failures.judge(pod)
        if match.action == FAIL_JOB:
            return Ending(FAILURE_TARGET, "PodFailurePolicy", match.message)
    return None


def _failed_too_often(situation: Situation) -> Ending | None:
    spec = situation.roll.job.spec
    if situation.failed > spec.backoff_limit or (spec.restarts and _restarted_too_often(situation)):
        text = "Job has reached the specified backoff limit"
        return Ending(FAILURE_TARGET, "BackoffLimitExceeded", text)
    return None


def _restarted_too_often(situation: Situation) -> bool:
    restarts = sum(
        status.restart_count
        for pod in situation.roll.pods
        if not pod.ended
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
    limit = situation.roll.job.spec.backoff_limit
    return restarts >= limit if limit else restarts > 0


def _took_too_long(situation: Situation) -> Ending | None:
    left = remaining(situation)
    if left is None or left > 0:
        return None
    text = "Job was active longer than specified deadline"
    return Ending(FAILURE_TARGET, "DeadlineExceeded", text)


def _indexes_failed(situation: Situation) -> Ending | None:
    roll, spec = situation.roll, situation.roll.job.spec
    if spec.backoff_limit_per_index is None:
        return None
    failed = situation.failures.given_up
    if spec.max_failed_indexes is not None and len(failed) > spec.max_failed_indexes:
        text = "Job has exceeded the specified maximal number of failed indexes"
        return Ending(FAILURE_TARGET, "MaxFailedIndexesExceeded", text)
    if failed and len(failed) + situation.succeeded >= roll.completions:
        return Ending(FAILURE_TARGET, "FailedIndexes", "Job has failed indexes")
    return None


def _succeeded_by_policy(situation: Situation) -> Ending | None:
    roll = situation.roll
    policy = roll.job.spec.success_policy
    for number, rule in enumerate(policy.rules if policy else ()):
        done, wanted = roll.succeeded_indexes, None
        if rule.succeeded_indexes is not None:
            wanted = read(rule.succeeded_indexes, roll.completions)
            done &= wanted
        enough = rule.succeeded_count if rule.succeeded_count is not None else len(wanted or ())
        if len(done) >= max(enough, 1):
            text = f"Matched rules at index {number}"
            return Ending(SUCCESS_CRITERIA_MET, "SuccessPolicy", text)
    return None


def _completed(situation: Situation) -> Ending | None:
    roll, succeeded = situation.roll, situation.succeeded
    if roll.job.spec.completions is None:
        done = succeeded > 0 and not roll.active
    else:
        done = succeeded >= roll.completions and not roll.active
    if not done:
        return None
    text = "Reached expected number of succeeded pods"
    return Ending(SUCCESS_CRITERIA_MET, "CompletionsReached", text)


#: Every reason to end, in the order in which they count.
ENDINGS: tuple[Callable[[Situation], Ending | None], ...] = (
    _said(SUCCESS_CRITERIA_MET),
    _said(FAILURE_TARGET),
    _failed_by_policy,
    _failed_too_often,
    _took_too_long,
    _indexes_failed,
    _succeeded_by_policy,
    _completed,
)
