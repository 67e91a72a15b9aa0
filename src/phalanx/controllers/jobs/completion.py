"""What to do about failed pods: the Job's failure policy, and the limits of each index.

Ending: is a Job over, and why? The first reason of a table counts.

A Job says first that it is to end (FailureTarget, SuccessCriteriaMet), then, when every pod has
been counted and is gone, that it has (Failed, Complete).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from phalanx.api.batch import (
    COMPLETE,
    FAILED,
    FAILURE_TARGET,
    SUCCESS_CRITERIA_MET,
    ExitCodes,
    FailureRule,
)
from phalanx.api.core import ContainerStatus, Pod
from phalanx.api.meta import parse_timestamp
from phalanx.controllers.jobs.job_pods import (
    Indexes,
    JobPods,
    completion_index,
    index_failure_count,
    parse_index_set,
    previous_attempts,
)

COUNT, IGNORE, FAIL_INDEX, FAIL_JOB = "Count", "Ignore", "FailIndex", "FailJob"


class PolicyMatch(NamedTuple):
    """The rule that a failed pod falls under: what it does, and why, in words."""

    action: str
    message: str = ""


class PodFailures:
    """The failed pods of a roll in the light of the Job's policy; each is judged once."""

    def __init__(self, job_pods: JobPods) -> None:
        self._job_pods = job_pods
        self._spec = job_pods.job.spec
        self._matches: dict[str, PolicyMatch] = {}

    def match_policy(self, pod: Pod) -> PolicyMatch:
        """What the policy says of a failed pod; without a word from it the failure counts."""
        uid = pod.metadata.uid
        if uid not in self._matches:
            self._matches[uid] = self._match_policy(pod)
        return self._matches[uid]

    def is_ignored(self, pod: Pod) -> bool:
        """Whether the failure of a pod does not count."""
        return self.match_policy(pod).action == IGNORE

    @cached_property
    def failed_indexes(self) -> Indexes:
        """The indexes of which no more pods are made: failed too often, or by the policy."""
        roll, limit = self._job_pods, self._spec.backoff_limit_per_index
        if limit is None:
            return roll.recorded_failed_indexes
        failed = (pod for pod in roll.tracked if roll.has_failed(pod) and roll.has_valid_index(pod))
        last = {completion_index(pod) for pod in failed if self._fails_index(pod, limit)}
        return roll.recorded_failed_indexes | (last - roll.succeeded_indexes)

    @cached_property
    def last_failed_by_index(self) -> dict[int, Pod]:
        """Of each index the failed pod that came last, as long as it was not let go."""
        failed = [pod for pod in self._job_pods.tracked if self._job_pods.has_failed(pod)]
        return {completion_index(pod): pod for pod in sorted(failed, key=_attempt_order)}

    def is_needed_for_backoff(self, pod: Pod) -> bool:
        """Whether the next pod of the index must still read from this one how often it failed."""
        if self._spec.backoff_limit_per_index is None or not self._job_pods.has_valid_index(pod):
            return False
        index = completion_index(pod)
        is_over = index in self.failed_indexes or index in self._job_pods.succeeded_indexes
        is_last = self._attempts_by_index[index] == previous_attempts(pod)
        return not is_over and is_last and self.last_failed_by_index[index] is pod

    def has_stale_failure_count(self, pod: Pod) -> bool:
        """Whether a pod does not know that its index has failed before it: it was made in error."""
        last = self.last_failed_by_index.get(completion_index(pod))
        has_limit = self._spec.backoff_limit_per_index is not None
        return has_limit and last is not None and previous_attempts(pod) <= previous_attempts(last)

    @cached_property
    def _attempts_by_index(self) -> dict[int, int]:
        """The most that a pod of each index knows of."""
        known = sorted(
            (previous_attempts(pod), completion_index(pod)) for pod in self._job_pods.pods
        )
        return {index: attempts for attempts, index in known}

    def _match_policy(self, pod: Pod) -> PolicyMatch:
        policy = self._spec.pod_failure_policy
        for number, rule in enumerate(policy.rules if policy else ()):
            if why := _match_rule(rule, pod):
                text = f"{why} matching {rule.action} rule at index {number}"
                if rule.action != FAIL_INDEX or self._spec.backoff_limit_per_index is not None:
                    return PolicyMatch(rule.action, text)
        return PolicyMatch(COUNT)

    def _fails_index(self, pod: Pod, limit: int) -> bool:
        match self.match_policy(pod).action:
            case "FailIndex":
                return True
            case "Ignore":
                return False
            case _:
                return index_failure_count(pod) >= limit


def _attempt_order(pod: Pod) -> tuple[int, str, str]:
    """By when pods of one index came."""
    return previous_attempts(pod), pod.metadata.creation_timestamp, pod.metadata.name


def _match_rule(rule: FailureRule, pod: Pod) -> str:
    """Why a rule is about a pod; "" if it is not."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if rule.on_exit_codes:
        return _match_exit_code(rule.on_exit_codes, pod, name)
    held = {(one.type, one.status) for one in pod.status.conditions}
    for pattern in rule.on_pod_conditions:
        if (pattern.type, pattern.status or "True") in held:
            return f"Pod {name} has condition {pattern.type}"
    return ""


def _match_exit_code(codes: ExitCodes, pod: Pod, name: str) -> str:
    status = pod.status
    for container in (*status.container_statuses, *status.init_container_statuses):
        code = _failed_exit_code(container, codes)
        if code and (code in codes.values) == (codes.operator == "In"):
            return f"Container {container.name} for pod {name} failed with exit code {code}"
    return ""


def _failed_exit_code(container: ContainerStatus, codes: ExitCodes) -> int:
    """The exit code of a container that is meant; 0 if there is none."""
    ended = container.state.terminated
    meant = codes.container_name in ("", container.name)
    return ended.exit_code if ended and meant else 0


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a Job is to end."""

    target_condition: str
    reason: str
    message: str

    @property
    def is_success(self) -> bool:
        """Whether for better."""
        return self.target_condition == SUCCESS_CRITERIA_MET

    @property
    def final_condition(self) -> str:
        """What the Job says at the very end."""
        return COMPLETE if self.is_success else FAILED


class JobSnapshot:
    """A roll, what is to be thought of its failed pods, and the moment."""

    def __init__(self, job_pods: JobPods, now: float) -> None:
        self.job_pods, self.now, self.failures = job_pods, now, PodFailures(job_pods)

    @cached_property
    def failed_count(self) -> int:
        """How many pods have failed, those included that are not in the status yet."""
        status, roll = self.job_pods.job.status, self.job_pods
        waiting = len(status.uncounted_terminated_pods.failed)
        fresh = sum(not self.failures.is_ignored(pod) for pod in roll.newly_failed)
        return status.failed + waiting + fresh

    @cached_property
    def succeeded_count(self) -> int:
        """How many pods, or indexes, have succeeded."""
        status, roll = self.job_pods.job.status, self.job_pods
        if roll.job.spec.is_indexed:
            return len(roll.succeeded_indexes)
        waiting = len(status.uncounted_terminated_pods.succeeded)
        return status.succeeded + waiting + len(roll.newly_succeeded)


def find_outcome(snapshot: JobSnapshot) -> JobOutcome | None:
    """How a Job is to end, if it is."""
    return next((found for row in OUTCOME_CHECKS if (found := row(snapshot)) is not None), None)


def seconds_until_deadline(snapshot: JobSnapshot) -> float | None:
    """Seconds until the deadline of a Job, if it has one and runs."""
    job = snapshot.job_pods.job
    limit, start = job.spec.active_deadline_seconds, job.status.start_time
    if limit is None or start is None or job.spec.suspend:
        return None
    return limit - (snapshot.now - parse_timestamp(start))


def _check_condition(kind: str) -> Callable[[JobSnapshot], JobOutcome | None]:
    def found(situation: JobSnapshot) -> JobOutcome | None:
        held = situation.job_pods.job.true_condition(kind)
        return JobOutcome(kind, held.reason, held.message) if held else None

    return found


def _check_pod_failure_policy(snapshot: JobSnapshot) -> JobOutcome | None:
    for pod in snapshot.job_pods.newly_failed:
        match = snapshot.failures.match_policy(pod)
        if match.action == FAIL_JOB:
            return JobOutcome(FAILURE_TARGET, "PodFailurePolicy", match.message)
    return None


def _check_backoff_limit(snapshot: JobSnapshot) -> JobOutcome | None:
    spec = snapshot.job_pods.job.spec
    if snapshot.failed_count > spec.backoff_limit or (
        spec.restarts_in_place and _exceeds_restart_limit(snapshot)
    ):
        text = "Job has reached the specified backoff limit"
        return JobOutcome(FAILURE_TARGET, "BackoffLimitExceeded", text)
    return None


def _exceeds_restart_limit(snapshot: JobSnapshot) -> bool:
    restarts = sum(
        status.restart_count
        for pod in snapshot.job_pods.pods
        if not pod.is_terminal
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
    limit = snapshot.job_pods.job.spec.backoff_limit
    return restarts >= limit if limit else restarts > 0


def _check_active_deadline(snapshot: JobSnapshot) -> JobOutcome | None:
    left = seconds_until_deadline(snapshot)
    if left is None or left > 0:
        return None
    text = "Job was active longer than specified deadline"
    return JobOutcome(FAILURE_TARGET, "DeadlineExceeded", text)


def _check_failed_indexes(snapshot: JobSnapshot) -> JobOutcome | None:
    roll, spec = snapshot.job_pods, snapshot.job_pods.job.spec
    if spec.backoff_limit_per_index is None:
        return None
    failed = snapshot.failures.failed_indexes
    if spec.max_failed_indexes is not None and len(failed) > spec.max_failed_indexes:
        text = "Job has exceeded the specified maximal number of failed indexes"
        return JobOutcome(FAILURE_TARGET, "MaxFailedIndexesExceeded", text)
    if failed and len(failed) + snapshot.succeeded_count >= roll.completions:
        return JobOutcome(FAILURE_TARGET, "FailedIndexes", "Job has failed indexes")
    return None


def _check_success_policy(snapshot: JobSnapshot) -> JobOutcome | None:
    roll = snapshot.job_pods
    policy = roll.job.spec.success_policy
    for number, rule in enumerate(policy.rules if policy else ()):
        done, wanted = roll.succeeded_indexes, None
        if rule.succeeded_indexes is not None:
            wanted = parse_index_set(rule.succeeded_indexes, roll.completions)
            done &= wanted
        enough = rule.succeeded_count if rule.succeeded_count is not None else len(wanted or ())
        if len(done) >= max(enough, 1):
            text = f"Matched rules at index {number}"
            return JobOutcome(SUCCESS_CRITERIA_MET, "SuccessPolicy", text)
    return None


def _check_completions(snapshot: JobSnapshot) -> JobOutcome | None:
    roll, succeeded = snapshot.job_pods, snapshot.succeeded_count
    if roll.job.spec.completions is None:
        done = succeeded > 0 and not roll.active
    else:
        done = succeeded >= roll.completions and not roll.active
    if not done:
        return None
    text = "Reached expected number of succeeded pods"
    return JobOutcome(SUCCESS_CRITERIA_MET, "CompletionsReached", text)


#: Every reason to end, in the order in which they count.
OUTCOME_CHECKS: tuple[Callable[[JobSnapshot], JobOutcome | None], ...] = (
    _check_condition(SUCCESS_CRITERIA_MET),
    _check_condition(FAILURE_TARGET),
    _check_pod_failure_policy,
    _check_backoff_limit,
    _check_active_deadline,
    _check_failed_indexes,
    _check_success_policy,
    _check_completions,
)
