"""Job as its controller reads it. Partial and frozen, but for the template, which pods copy.

The indexes of an indexed Job as it writes them: `0,2-4,7`, each once and rising.

Read by the rules of Jobs (success policies, status) and by whoever counts their pods.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from phalanx.api.meta import Condition, ObjectMeta

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
#: Said before the end, while pods are still to be counted.
FAILURE_TARGET, SUCCESS_CRITERIA_MET = "FailureTarget", "SuccessCriteriaMet"
#: That its pods are scheduled one by one, because the objects that say otherwise cannot be used.
SCHEDULING_FALLBACK = "SchedulingFallback"
#: The controller of Jobs that name none.
JOB_CONTROLLER = "kubernetes.io/job-controller"
#: The name by which a Job asks for our controller on any API server.
OWN_JOB_CONTROLLER = "phalanx.dev/job-controller"


class ExitCodes(Struct, frozen=True, rename="camel"):
    """The exit codes that a rule is about, of one container or of any."""

    operator: str = "In"
    values: tuple[int, ...] = ()
    container_name: str = ""


class ConditionPattern(Struct, frozen=True):
    """A pod condition that a rule is about."""

    type: str = ""
    status: str = "True"


class FailureRule(Struct, frozen=True, rename="camel"):
    """What to do about a failed pod of some sort."""

    action: str = "Count"
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[ConditionPattern, ...] = ()


class FailurePolicy(Struct, frozen=True):
    """Rules of which the first that fits counts."""

    rules: tuple[FailureRule, ...] = ()


class SuccessRule(Struct, frozen=True, rename="camel"):
    """Which indexes, or how many, must have succeeded."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Struct, frozen=True):
    """Rules of which any makes the Job a success."""

    rules: tuple[SuccessRule, ...] = ()


class JobSpec(Struct, frozen=True, rename="camel"):
    """What the Job asks for."""

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
        """Whether every pod has a number."""
        return self.completion_mode == "Indexed"

    @property
    def restarts_in_place(self) -> bool:
        """Whether containers are started again in their pod."""
        return bool(self.template.get("spec", {}).get("restartPolicy") == "OnFailure")

    @property
    def replaces_failed_only(self) -> bool:
        """Whether a pod that is on its way out is replaced only when it has ended."""
        return self.pod_replacement_policy == "Failed"


class UncountedTerminatedPods(Struct, frozen=True):
    """Pods that have ended, by uid, and are still to be counted."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobCondition(Condition, frozen=True, rename="camel"):
    """One observation about a Job; it also says when that was last made."""

    last_probe_time: str | None = None


class JobStatus(Struct, frozen=True, rename="camel"):
    """What has come of the Job so far."""

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
    """Pods that run to their end."""

    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    def true_condition(self, kind: str) -> JobCondition | None:
        """A condition that holds."""
        held = (c for c in self.status.conditions if c.type == kind and c.status == "True")
        return next(held, None)

    @property
    def is_finished(self) -> bool:
        """Whether it is over, for better or worse."""
        return self.true_condition(COMPLETE) is not None or self.true_condition(FAILED) is not None


#: First and last of a run of indexes.
IndexInterval = tuple[int, int]

_MATCH_INTEGER = re.compile(r"[+-]?\d{1,18}").fullmatch


class BadIndexes(ValueError):
    """The text names no indexes, or some that there are not."""


def parse_indexes(text: str, completions: int) -> list[IndexInterval]:
    """The runs of a text, all below the number of completions. Raises BadIndexes."""
    runs: list[IndexInterval] = []
    for part in text.split(",") if text else ():
        first, last = _parse_interval(part, completions)
        if runs and runs[-1][1] >= first:
            raise _order_error(runs[-1][1], first)
        runs.append((first, last))
    return runs


def count_indexes(runs: list[IndexInterval]) -> int:
    """How many indexes there are in runs."""
    return sum(last - first + 1 for first, last in runs)


def first_shared_index(some: list[IndexInterval], others: list[IndexInterval]) -> int | None:
    """The first index that is in both."""
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
