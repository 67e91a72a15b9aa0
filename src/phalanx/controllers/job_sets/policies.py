"""What becomes of a JobSet whose Jobs fail or succeed, and which replicated Jobs may start.

The failure policy: the first rule that matches a failed Job decides; of several failed Jobs that it
matches, the first one that failed is named. Without a matching rule the JobSet restarts; without a
policy, or once it has restarted `maxRestarts` times, it fails.

    action                               restarts  counts towards maxRestarts
    FailJobSet                           nothing
    RestartJobSet                        all Jobs  yes
    RestartJobSetAndIgnoreMaxRestarts    all Jobs  no
    RestartJob                           the Job   yes
    RestartJobAndIgnoreMaxRestarts       the Job   no
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from phalanx.api.batch import FAILED as JOB_FAILED
from phalanx.api.batch import Job
from phalanx.api.job_sets import (
    JobSet,
    JobSetFailureRule,
    JobSetStatus,
    ReplicatedJobSpec,
    ReplicatedJobStatus,
)
from phalanx.api.regex import BadPattern, compile_pattern
from phalanx.controllers.job_sets.child_jobs import (
    ChildJobs,
    find_status,
    has_started,
    job_index,
    role_name,
)

_RESTART_ALL = ("RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")
_UNLIMITED = ("RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts")


@dataclass(frozen=True, slots=True)
class JobSetFailed:
    """The JobSet fails: reason and message of its condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class JobSetRestart:
    """The JobSet, or one of its Jobs, restarts: reason and message of the event, the new status."""

    reason: str
    message: str
    status: JobSetStatus


def apply_failure_policy(job_set: JobSet, failed: Sequence[Job]) -> JobSetFailed | JobSetRestart:
    """Decide what becomes of a JobSet with failed Jobs."""
    first = _first_failed(failed)
    policy = job_set.spec.failure_policy
    if policy is None:
        text = "jobset failed due to one or more job failures"
        return JobSetFailed("FailedJobs", _name_job(text, first))
    action = "RestartJobSet"
    for rule in policy.rules:
        matching = [job for job in failed if _rule_matches(rule, job)]
        if matching:
            first, action = _first_failed(matching), rule.action
            break
    if action == "FailJobSet":
        text = "applying FailJobSet failure policy action"
        return JobSetFailed("FailJobSetFailurePolicyAction", _name_job(text, first))
    if action not in _UNLIMITED and _count_restarts(job_set.status) >= policy.max_restarts:
        text = "jobset failed due to reaching max number of restarts"
        return JobSetFailed("ReachedMaxRestarts", _name_job(text, first))
    status = (
        _restart_all(job_set.status, counts=action not in _UNLIMITED)
        if action in _RESTART_ALL
        else _restart_one(job_set, first, counts=action not in _UNLIMITED)
    )
    text = _name_job(f"applying {action} failure policy action", first)
    return JobSetRestart(f"{action}FailurePolicyAction", text, status)


def _rule_matches(rule: JobSetFailureRule, job: Job) -> bool:
    failure = job.true_condition(JOB_FAILED)
    reason, message = (failure.reason, failure.message) if failure else ("", "")
    if rule.target_replicated_jobs and role_name(job) not in rule.target_replicated_jobs:
        return False
    if rule.on_job_failure_reasons and reason not in rule.on_job_failure_reasons:
        return False
    patterns = rule.on_job_failure_message_patterns
    return not patterns or any(_pattern_matches(pattern, message) for pattern in patterns)


def _pattern_matches(pattern: str, message: str) -> bool:
    try:
        return compile_pattern(pattern).matches(message)
    except BadPattern:  # Refused by validation; an older object may have it.
        return False


def _first_failed(failed: Sequence[Job]) -> Job:
    def failure_time(job: Job) -> str:
        failure = job.true_condition(JOB_FAILED)
        return (failure.last_transition_time or "") if failure else ""

    return min(failed, key=lambda job: (failure_time(job), job.metadata.name))


def _name_job(text: str, job: Job) -> str:
    return f"{text} (first failed job: {job.metadata.name})"


def _restart_all(status: JobSetStatus, *, counts: bool) -> JobSetStatus:
    return replace(
        status,
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + counts,
    )


def _count_restarts(status: JobSetStatus) -> int:
    """How many restarts count towards the maximum: of the JobSet, and of single Jobs."""
    alone = (sum(one.job_restarts_count_towards_max) for one in status.replicated_jobs_status)
    return status.restarts_count_towards_max + sum(alone)


def _restart_one(job_set: JobSet, job: Job, *, counts: bool) -> JobSetStatus:
    def add(numbers: tuple[int, ...], replicas: int, amount: int) -> tuple[int, ...]:
        padded = [*numbers, *[0] * (replicas - len(numbers))]
        padded[job_index(job)] += amount
        return tuple(padded)

    statuses = []
    for role in job_set.spec.replicated_jobs:
        status = find_status(job_set.status.replicated_jobs_status, role.name)
        if role.name == role_name(job) and 0 <= job_index(job) < role.replicas:
            status = replace(
                status,
                job_restarts=add(status.job_restarts, role.replicas, 1),
                job_restarts_count_towards_max=add(
                    status.job_restarts_count_towards_max, role.replicas, int(counts)
                ),
            )
        statuses.append(status)
    return replace(job_set.status, replicated_jobs_status=tuple(statuses))


def has_succeeded(job_set: JobSet, jobs: ChildJobs) -> bool:
    """Whether the success policy is fulfilled: all target Jobs have succeeded, or any has."""
    policy = job_set.spec.success_policy
    targets = [
        role
        for role in job_set.spec.replicated_jobs
        if not policy.target_replicated_jobs or role.name in policy.target_replicated_jobs
    ]
    names = {role.name for role in targets}
    succeeded = sum(role_name(job) in names for job in jobs.successful)
    if policy.operator == "Any":
        return succeeded > 0
    return succeeded > 0 and succeeded >= sum(role.replicas for role in targets)


def startable_roles(
    job_set: JobSet, statuses: Sequence[ReplicatedJobStatus]
) -> tuple[list[ReplicatedJobSpec], bool]:
    """Return the replicated Jobs that may run now, and whether others must wait for them.

    In order, those up to the first that has not started; otherwise those whose dependencies are
    Ready or Complete.
    """
    roles = list(job_set.spec.replicated_jobs)
    if job_set.spec.starts_in_order:
        for number, role in enumerate(roles):
            if not has_started(role, find_status(statuses, role.name)):
                return roles[: number + 1], True
        return roles, False
    by_name = {role.name: role for role in roles}
    ready = [
        role
        for role in roles
        if all(
            _is_reached(by_name[one.name], find_status(statuses, one.name), one.status)
            for one in role.depends_on
            if one.name in by_name
        )
    ]
    return ready, False


def _is_reached(role: ReplicatedJobSpec, status: ReplicatedJobStatus, wanted: str) -> bool:
    if wanted == "Complete":
        return status.succeeded == role.replicas
    return has_started(role, status)
