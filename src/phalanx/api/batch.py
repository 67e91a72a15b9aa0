"""Job and CronJob as their controllers read them, and the index lists of Indexed Jobs.

The structs are partial and frozen; templates stay JSON, because pods and Jobs copy them. Index
lists (`0,2-4,7`: unique and ascending) are read by the validation of Jobs and by the Job
controller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from phalanx.api.cel.timestamps import parse_duration
from phalanx.api.cel.values import EvaluationError
from phalanx.api.kinds import JOB
from phalanx.api.meta import Condition, ObjectMeta, parse_timestamp

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
#: Set before the final condition, while terminated pods are still to be counted.
FAILURE_TARGET, SUCCESS_CRITERIA_MET = "FailureTarget", "SuccessCriteriaMet"
#: The pods are scheduled one by one, because the Workload or PodGroup cannot be used.
SCHEDULING_FALLBACK = "SchedulingFallback"
#: A ResourceQuota does not admit all pods of a gang.
QUOTA_EXCEEDED = "QuotaExceeded"
#: The default of `spec.managedBy`.
JOB_CONTROLLER = "kubernetes.io/job-controller"
#: The value of `spec.managedBy` that selects our controller on any API server.
OWN_JOB_CONTROLLER = "phalanx.dev/job-controller"


#: On a Job, a PodGroup or a pod: how long the pods run, as a Go duration.
EXPECTED_RUN_TIME_ANNOTATION = "phalanx.dev/expected-run-time"
_MAX_DURATION_TEXT = 64


class JobRunTime(Struct, frozen=True):
    """What a Job says about how long its pods run, in seconds and seconds since the epoch."""

    uid: str
    active_deadline_seconds: int | None = None
    start_time: float | None = None
    expected_run_time: float | None = None


class ExitCodes(Struct, frozen=True, rename="camel"):
    """The exit codes that a pod failure rule matches, of one container or of any."""

    operator: str = "In"
    values: tuple[int, ...] = ()
    container_name: str = ""


class ConditionPattern(Struct, frozen=True):
    """A pod condition that a pod failure rule matches."""

    type: str = ""
    status: str = "True"


class FailureRule(Struct, frozen=True, rename="camel"):
    """A pod failure rule: its action, and the failed pods that it matches."""

    action: str = "Count"
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[ConditionPattern, ...] = ()


class FailurePolicy(Struct, frozen=True):
    """A pod failure policy; the first matching rule applies."""

    rules: tuple[FailureRule, ...] = ()


class SuccessRule(Struct, frozen=True, rename="camel"):
    """The indexes, or the number of indexes, that must have succeeded."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Struct, frozen=True):
    """A success policy; one matching rule completes the Job."""

    rules: tuple[SuccessRule, ...] = ()


class JobSpec(Struct, frozen=True, rename="camel"):
    """The spec of a Job."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    pod_replacement_policy: str = "TerminatingOrFailed"
    managed_by: str = ""
    selector: dict[str, Any] | None = None
    pod_failure_policy: FailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    template: dict[str, Any] = {}
    scheduling: dict[str, Any] | None = None
    gang_policy: dict[str, Any] | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether each pod has a completion index."""
        return self.completion_mode == "Indexed"

    @property
    def restarts_in_place(self) -> bool:
        """Whether the kubelet restarts failed containers in their pod."""
        return bool(self.template.get("spec", {}).get("restartPolicy") == "OnFailure")

    @property
    def replaces_failed_only(self) -> bool:
        """Whether a terminating pod is replaced only after it has failed."""
        return self.pod_replacement_policy == "Failed"


class UncountedTerminatedPods(Struct, frozen=True):
    """The uids of terminated pods that are not in the counters yet."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobCondition(Condition, frozen=True, rename="camel"):
    """A condition of a Job, with its last probe time."""

    last_probe_time: str | None = None


class JobStatus(Struct, frozen=True, rename="camel"):
    """The status of a Job."""

    conditions: tuple[JobCondition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedTerminatedPods = UncountedTerminatedPods()


class Job(Struct, frozen=True):
    """A Job."""

    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    def true_condition(self, kind: str) -> JobCondition | None:
        """Return the condition of a type if its status is True."""
        held = (c for c in self.status.conditions if c.type == kind and c.status == "True")
        return next(held, None)

    @property
    def is_finished(self) -> bool:
        """Whether the Job is complete or failed."""
        return self.true_condition(COMPLETE) is not None or self.true_condition(FAILED) is not None

    @property
    def end_time(self) -> float | None:
        """When the Job became complete or failed; None if it is not finished."""
        end = self.true_condition(COMPLETE) or self.true_condition(FAILED)
        time = end.last_transition_time if end else None
        return parse_timestamp(time) if time else None


def job_run_time(job: Job) -> JobRunTime:
    """Return what a Job says about how long its pods run."""
    start = job.status.start_time
    return JobRunTime(
        job.metadata.uid,
        job.spec.active_deadline_seconds,
        parse_timestamp(start) if start else None,
        expected_run_time=parse_run_time(job.metadata.annotations),
    )


def parse_run_time(annotations: Mapping[str, str]) -> float | None:
    """Return the expected run time in seconds; None without one, or if it is no duration."""
    text = annotations.get(EXPECTED_RUN_TIME_ANNOTATION, "")
    return _parse_positive_duration(text) if 0 < len(text) <= _MAX_DURATION_TEXT else None


@lru_cache(maxsize=1024)
def _parse_positive_duration(text: str) -> float | None:
    try:
        seconds = parse_duration(text).nanos / 1e9
    except EvaluationError:
        return None
    return seconds if seconds > 0 else None


#: First and last index of an interval.
IndexInterval = tuple[int, int]

_MATCH_INTEGER = re.compile(r"[+-]?\d{1,18}").fullmatch


class BadIndexes(ValueError):
    """The text is not an index list, or has an index that the Job has not."""


def parse_indexes(text: str, completions: int) -> list[IndexInterval]:
    """Parse an index list to intervals below the number of completions. Raises BadIndexes."""
    runs: list[IndexInterval] = []
    for part in text.split(",") if text else ():
        first, last = _parse_interval(part, completions)
        if runs and runs[-1][1] >= first:
            raise _order_error(runs[-1][1], first)
        runs.append((first, last))
    return runs


def count_indexes(runs: list[IndexInterval]) -> int:
    """Return the number of indexes in intervals."""
    return sum(last - first + 1 for first, last in runs)


def first_shared_index(some: list[IndexInterval], others: list[IndexInterval]) -> int | None:
    """Return the first index that two lists share, if any."""
    mine, theirs = 0, 0
    while mine < len(some) and theirs < len(others):
        (first, last), (start, end) = some[mine], others[theirs]
        if max(first, start) <= min(last, end):
            return max(first, start)
        mine, theirs = (mine + 1, theirs) if last < end else (mine, theirs + 1)
    return None


def _parse_interval(part: str, completions: int) -> IndexInterval:
    ends = part.split("-")
    if len(ends) > 2:
        raise BadIndexes(
            f'the fragment "{part}" violates the requirement that an index interval can have at '
            "most two parts separated by '-'"
        )
    first, last = _parse_index(ends[0], completions), _parse_index(ends[-1], completions)
    if len(ends) == 2 and first >= last:
        raise _order_error(first, last)
    return first, last


def _parse_index(text: str, completions: int) -> int:
    if not _MATCH_INTEGER(text):
        raise BadIndexes(f'cannot convert string to integer for index: "{text}"')
    if int(text) >= completions:
        raise BadIndexes(f'too large index: "{text}"')
    return int(text)


def _order_error(previous: int, current: int) -> BadIndexes:
    return BadIndexes(f"non-increasing order, previous: {previous}, current: {current}")


class JobReference(Struct, frozen=True, rename="camel"):
    """An active Job in the status of a CronJob."""

    api_version: str = JOB.api_version
    kind: str = JOB.name
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class CronJobSpec(Struct, frozen=True, rename="camel"):
    """The spec of a CronJob."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool = False
    job_template: dict[str, Any] = {}
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Struct, frozen=True, rename="camel"):
    """The status of a CronJob."""

    active: tuple[JobReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Struct, frozen=True):
    """A CronJob."""

    metadata: ObjectMeta
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()
