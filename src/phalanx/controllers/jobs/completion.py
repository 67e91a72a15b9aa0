"""Whether a Job is over, and why: pod failure policy, back-off limits, deadline, completions.

`find_outcome` runs the checks of `OUTCOME_CHECKS` in order; the first that returns an outcome
decides. A Job first gets the target condition of the outcome (FailureTarget or SuccessCriteriaMet),
and the final condition (Failed or Complete) once every pod is counted and gone. Pure.

    a Job with backoffLimit 1      outcome
    one failed pod                 None: the Job goes on
    two failed pods                FailureTarget, reason BackoffLimitExceeded
    status has FailureTarget       the same outcome, whatever the pods do meanwhile

In a gang Job without a pod failure policy, a pod that was disrupted (preempted, evicted, lost with
its node: the condition DisruptionTarget) is no failure: it is replaced and counted nowhere.
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
from phalanx.api.core import Pod
from phalanx.api.meta import find_condition, parse_timestamp
from phalanx.api.scheduling import DISRUPTION_TARGET
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
    """The action of the pod failure policy for a failed pod, and the message of the rule."""

    action: str
    message: str = ""


class PodFailures:
    """The failed pods of a Job under its pod failure policy; each pod is matched once.

    `ignores_disruptions`: without a policy, disrupted pods are ignored.
    """

    def __init__(self, job_pods: JobPods, *, ignores_disruptions: bool = False) -> None:
        self._job_pods = job_pods
        self._spec = job_pods.job.spec
        self._ignores_disruptions = ignores_disruptions and self._spec.pod_failure_policy is None
        self._matches: dict[str, PolicyMatch] = {}

    def match_policy(self, pod: Pod) -> PolicyMatch:
        """Return the action for a failed pod. A pod that no rule matches is counted."""
        uid = pod.metadata.uid
        if uid not in self._matches:
            self._matches[uid] = self._match_policy(pod)
        return self._matches[uid]

    def is_ignored(self, pod: Pod) -> bool:
        """Whether the failure of a pod is ignored."""
        return self.match_policy(pod).action == IGNORE

    def is_ignored_disruption(self, pod: Pod) -> bool:
        """Whether a pod is ignored because it was disrupted; its replacement needs no back-off."""
        return self._ignores_disruptions and is_disrupted(pod)

    @cached_property
    def failed_indexes(self) -> Indexes:
        """The indexes that get no more pods: over their back-off limit, or failed by the policy."""
        pods, limit = self._job_pods, self._spec.backoff_limit_per_index
        if limit is None:
            return pods.recorded_failed_indexes
        new = {
            completion_index(pod)
            for pod in pods.tracked_pods
            if pods.has_failed(pod) and pods.has_valid_index(pod) and self._fails_index(pod, limit)
        }
        return pods.recorded_failed_indexes | (new - pods.succeeded_indexes)

    @cached_property
    def last_failed_by_index(self) -> dict[int, Pod]:
        """The latest failed pod of each index, while it has the tracking finalizer."""
        failed = [pod for pod in self._job_pods.tracked_pods if self._job_pods.has_failed(pod)]
        failed.sort(
            key=lambda pod: (
                previous_attempts(pod),
                pod.metadata.creation_timestamp,
                pod.metadata.name,
            )
        )
        return {completion_index(pod): pod for pod in failed}

    def is_needed_for_backoff(self, pod: Pod) -> bool:
        """Whether the next pod of the index still has to read its failure count from this one."""
        if self._spec.backoff_limit_per_index is None or not self._job_pods.has_valid_index(pod):
            return False
        index = completion_index(pod)
        is_over = index in self.failed_indexes or index in self._job_pods.succeeded_indexes
        is_last = self._attempts_by_index[index] == previous_attempts(pod)
        return not is_over and is_last and self.last_failed_by_index[index] is pod

    def has_stale_failure_count(self, pod: Pod) -> bool:
        """Whether a pod was created without counting the last failure of its index."""
        last = self.last_failed_by_index.get(completion_index(pod))
        has_limit = self._spec.backoff_limit_per_index is not None
        return has_limit and last is not None and previous_attempts(pod) <= previous_attempts(last)

    @cached_property
    def _attempts_by_index(self) -> dict[int, int]:
        """The highest number of previous attempts that a pod of each index records."""
        attempts = sorted(
            (previous_attempts(pod), completion_index(pod)) for pod in self._job_pods.pods
        )
        return {index: number for number, index in attempts}

    def _match_policy(self, pod: Pod) -> PolicyMatch:
        if self.is_ignored_disruption(pod):
            return PolicyMatch(IGNORE)
        policy = self._spec.pod_failure_policy
        for number, rule in enumerate(policy.rules if policy else ()):
            # A FailIndex rule has no effect without backoffLimitPerIndex.
            if rule.action == FAIL_INDEX and self._spec.backoff_limit_per_index is None:
                continue
            if reason := _match_rule(rule, pod):
                text = f"{reason} matching {rule.action} rule at index {number}"
                return PolicyMatch(rule.action, text)
        return PolicyMatch(COUNT)

    def _fails_index(self, pod: Pod, limit: int) -> bool:
        action = self.match_policy(pod).action
        if action in (FAIL_INDEX, IGNORE):
            return action == FAIL_INDEX
        return index_failure_count(pod) >= limit


def is_disrupted(pod: Pod) -> bool:
    """Whether a pod was preempted, evicted or lost with its node."""
    condition = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return condition is not None and condition.status == "True"


def _match_rule(rule: FailureRule, pod: Pod) -> str:
    """Return why a rule matches a pod; "" if it does not."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if rule.on_exit_codes:
        return _match_exit_code(rule.on_exit_codes, pod, name)
    conditions = {(condition.type, condition.status) for condition in pod.status.conditions}
    for pattern in rule.on_pod_conditions:
        if (pattern.type, pattern.status or "True") in conditions:
            return f"Pod {name} has condition {pattern.type}"
    return ""


def _match_exit_code(codes: ExitCodes, pod: Pod, name: str) -> str:
    status = pod.status
    for container in (*status.container_statuses, *status.init_container_statuses):
        terminated = container.state.terminated
        if terminated is None or codes.container_name not in ("", container.name):
            continue
        code = terminated.exit_code
        if code and (code in codes.values) == (codes.operator == "In"):
            return f"Container {container.name} for pod {name} failed with exit code {code}"
    return ""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a Job ends: the target condition with its reason and message."""

    target_condition: str
    reason: str
    message: str

    @property
    def is_success(self) -> bool:
        """Whether the Job completes; otherwise it fails."""
        return self.target_condition == SUCCESS_CRITERIA_MET

    @property
    def final_condition(self) -> str:
        """The condition that the Job gets once all its pods are counted and gone."""
        return COMPLETE if self.is_success else FAILED


class JobSnapshot:
    """The input of one sync: the pods of a Job, its pod failures, and the time."""

    def __init__(
        self,
        job_pods: JobPods,
        now: float,
        *,
        ignores_disruptions: bool = False,
        gang_size: int | None = None,
        restarted_at: float = 0.0,
    ) -> None:
        self.job_pods, self.now = job_pods, now
        #: The `minCount` of a gang Job under a ResourceQuota; None for any other.
        self.gang_size = gang_size
        #: Pods that were created before are evicted: the gang was restarted.
        self.restarted_at = restarted_at
        self.failures = PodFailures(job_pods, ignores_disruptions=ignores_disruptions)

    @cached_property
    def failed_count(self) -> int:
        """The number of failed pods, including those that the status does not count yet."""
        status = self.job_pods.job.status
        uncounted = len(status.uncounted_terminated_pods.failed)
        unrecorded = sum(
            not self.failures.is_ignored(pod) for pod in self.job_pods.unrecorded_failures
        )
        return status.failed + uncounted + unrecorded

    @cached_property
    def succeeded_count(self) -> int:
        """The number of succeeded pods, or of succeeded indexes in an indexed Job."""
        status, pods = self.job_pods.job.status, self.job_pods
        if pods.job.spec.is_indexed:
            return len(pods.succeeded_indexes)
        uncounted = len(status.uncounted_terminated_pods.succeeded)
        return status.succeeded + uncounted + len(pods.unrecorded_successes)


def find_outcome(snapshot: JobSnapshot) -> JobOutcome | None:
    """Return how a Job ends; None while it goes on.

    A Job that is being deleted does not fail any more: its pods end because they are deleted.
    """
    job = snapshot.job_pods.job
    for check in OUTCOME_CHECKS:
        if (outcome := check(snapshot)) is not None:
            is_announced = job.true_condition(outcome.target_condition) is not None
            if outcome.is_success or is_announced or not job.metadata.deletion_timestamp:
                return outcome
    return None


def seconds_until_deadline(snapshot: JobSnapshot) -> float | None:
    """Return the seconds until `activeDeadlineSeconds` of a running Job; None without one."""
    job = snapshot.job_pods.job
    limit, start = job.spec.active_deadline_seconds, job.status.start_time
    if limit is None or start is None or job.spec.suspend:
        return None
    return limit - (snapshot.now - parse_timestamp(start))


def _check_condition(kind: str) -> Callable[[JobSnapshot], JobOutcome | None]:
    """A check for a target condition that an earlier sync has set."""

    def check(snapshot: JobSnapshot) -> JobOutcome | None:
        condition = snapshot.job_pods.job.true_condition(kind)
        return JobOutcome(kind, condition.reason, condition.message) if condition else None

    return check


def _check_pod_failure_policy(snapshot: JobSnapshot) -> JobOutcome | None:
    for pod in snapshot.job_pods.unrecorded_failures:
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
    pods, spec = snapshot.job_pods, snapshot.job_pods.job.spec
    if spec.backoff_limit_per_index is None:
        return None
    failed = snapshot.failures.failed_indexes
    if spec.max_failed_indexes is not None and len(failed) > spec.max_failed_indexes:
        text = "Job has exceeded the specified maximal number of failed indexes"
        return JobOutcome(FAILURE_TARGET, "MaxFailedIndexesExceeded", text)
    if failed and len(failed) + snapshot.succeeded_count >= pods.completions:
        return JobOutcome(FAILURE_TARGET, "FailedIndexes", "Job has failed indexes")
    return None


def _check_success_policy(snapshot: JobSnapshot) -> JobOutcome | None:
    pods = snapshot.job_pods
    policy = pods.job.spec.success_policy
    for number, rule in enumerate(policy.rules if policy else ()):
        succeeded, required = pods.succeeded_indexes, None
        if rule.succeeded_indexes is not None:
            required = parse_index_set(rule.succeeded_indexes, pods.completions)
            succeeded &= required
        count = rule.succeeded_count if rule.succeeded_count is not None else len(required or ())
        if len(succeeded) >= max(count, 1):
            text = f"Matched rules at index {number}"
            return JobOutcome(SUCCESS_CRITERIA_MET, "SuccessPolicy", text)
    return None


def _check_completions(snapshot: JobSnapshot) -> JobOutcome | None:
    pods, succeeded = snapshot.job_pods, snapshot.succeeded_count
    # Without `completions` one success is enough: the pods share a work queue.
    required = 1 if pods.job.spec.completions is None else pods.completions
    if succeeded < required or pods.active:
        return None
    text = "Reached expected number of succeeded pods"
    return JobOutcome(SUCCESS_CRITERIA_MET, "CompletionsReached", text)


#: Every reason for which a Job ends, in order of precedence. A target condition comes first: an
#: outcome that was announced is final.
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
