"""Validation of the status of Jobs: counts, times and conditions that must agree.

Most rules run only if one of the facts that they read has changed, so that an update of other
fields is not refused because of older inconsistencies. A fact is a field of the status, a condition
that is true (`Complete`), or `Finished` (complete or failed).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.api.batch import BadIndexes, IndexInterval, first_shared_index, parse_indexes
from phalanx.api.errors import Cause, Causes, duplicate, invalid, prefix_causes, required
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    if_present,
    minimum,
    optional,
    struct,
)
from phalanx.api.validation.job_policies import is_indexed
from phalanx.api.wire import Object

_TERMINAL_CONDITIONS = ("Failed", "Complete", "FailureTarget")
_NON_NEGATIVE = optional(minimum(0))


class _JobView:
    """A Job as the status rules read it."""

    def __init__(self, job: Any) -> None:
        known: Object = {} if job is CREATED else job
        self.spec: Object = known.get("spec") or {}
        self.status: Object = known.get("status") or {}
        conditions = self.status.get("conditions", ())
        self._true_conditions = [c.get("type") for c in conditions if c.get("status") == "True"]

    def fact(self, name: str) -> Any:
        """Return a field of the status, or whether a condition is true."""
        if name == "Finished":
            return self.fact("Complete") or self.fact("Failed")
        return name in self._true_conditions if name[0].isupper() else self.status.get(name)

    def count(self, name: str) -> int:
        """Return a count; an absent count is zero."""
        return self.status.get(name) or 0

    def has_all(self, *names: str) -> bool:
        """Whether all these facts hold."""
        return all(self.fact(name) for name in names)


@dataclass(frozen=True, slots=True)
class _StatusRule:
    """A rule: the facts that it reads, its violation test, its message."""

    facts: tuple[str, ...]
    is_violated: Callable[[_JobView], bool]
    cause: Callable[[_JobView], Cause]


def _invalid_status(field: str, detail: str) -> Cause:
    """Return a cause that does not quote the value."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {detail}")


def _exclusive_conditions(one: str, other: str, detail: str) -> _StatusRule:
    """Refuse two conditions that are true together."""
    return _StatusRule(
        (one, other),
        lambda job: job.has_all(one, other),
        lambda job: _invalid_status("conditions", detail),
    )


def _dependent_condition(one: str, other: str) -> _StatusRule:
    """Refuse a true condition `one` while the condition `other` is not true."""
    detail = f"cannot set {one}=True condition without the {other}=true condition"
    return _StatusRule(
        (one, other),
        lambda job: job.has_all(one) and not job.has_all(other),
        lambda job: _invalid_status("conditions", detail),
    )


def _empty_when_finished(field: str, detail: str) -> _StatusRule:
    """Require an empty field once the Job has finished."""
    return _StatusRule(
        ("Finished", field),
        lambda job: job.has_all("Finished", field),
        lambda job: invalid(field, job.fact(field), detail),
    )


def _completes_before_start(job: _JobView) -> bool:
    """Whether completion precedes the start; RFC 3339 texts of one form compare as times."""
    started, completed = job.fact("startTime"), job.fact("completionTime")
    return bool(started and completed) and completed < started


_STATUS_RULES = (
    _exclusive_conditions(
        "Complete", "Failed", "cannot set Complete=True and Failed=true conditions"
    ),
    _exclusive_conditions(
        "Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"
    ),
    _StatusRule(
        ("Complete", "completionTime"),
        lambda job: job.has_all("completionTime") and not job.has_all("Complete"),
        lambda job: invalid(
            "completionTime",
            job.fact("completionTime"),
            "cannot set completionTime when there is no Complete=True condition",
        ),
    ),
    _StatusRule(
        ("Complete", "completionTime"),
        lambda job: job.has_all("Complete") and not job.has_all("completionTime"),
        lambda job: required("completionTime", "completionTime is required for Complete jobs"),
    ),
    _StatusRule(
        ("startTime", "completionTime"),
        _completes_before_start,
        lambda job: invalid(
            "completionTime",
            job.fact("completionTime"),
            "completionTime cannot be set before startTime",
        ),
    ),
    _dependent_condition("Failed", "FailureTarget"),
    _dependent_condition("Complete", "SuccessCriteriaMet"),
    _exclusive_conditions(
        "SuccessCriteriaMet",
        "Failed",
        "cannot set Failed=True and SuccessCriteriaMet=true conditions",
    ),
    _exclusive_conditions(
        "SuccessCriteriaMet",
        "FailureTarget",
        "cannot set SuccessCriteriaMet=true and FailureTarget=true conditions",
    ),
    _empty_when_finished("active", "active>0 is invalid for finished job"),
    _StatusRule(
        ("Finished", "startTime"),
        lambda job: job.has_all("Finished") and not job.has_all("startTime"),
        lambda job: required("startTime", "startTime is required for finished job"),
    ),
    _empty_when_finished(
        "uncountedTerminatedPods", "uncountedTerminatedPods needs to be empty for finished job"
    ),
    _empty_when_finished("terminating", "terminating>0 is invalid for finished job"),
    _StatusRule(
        ("active", "ready"),
        lambda job: job.has_all("ready") and job.count("ready") > job.count("active"),
        lambda job: invalid("ready", job.count("ready"), "cannot set more ready pods than active"),
    ),
)


def _check_status_rules(new: Any, old: Any) -> Causes:
    """Evaluate the rules about one status."""
    job, before = _JobView(new), _JobView(old)
    broken = [
        rule
        for rule in _STATUS_RULES
        if rule.is_violated(job) and any(job.fact(f) != before.fact(f) for f in rule.facts)
    ]
    return prefix_causes("status", (rule.cause(job) for rule in broken))


# -------------------------------------------------------------------------------------- indexes


def _parse_index_field(job: _JobView, field: str) -> tuple[list[IndexInterval], list[Cause]]:
    """Return the indexes of a field, and the faults of its text."""
    completions, text = job.spec.get("completions"), job.fact(field)
    if completions is None or not text:
        return [], []
    try:
        return parse_indexes(text, completions), []
    except BadIndexes as error:
        return [], [invalid(field, text, f"error parsing {field}: {error}")]


def _check_indexes(new: Any, old: Any) -> Causes:
    """Require disjoint completed and failed indexes; runs only if they changed."""
    job, before = _JobView(new), _JobView(old)
    completed, failed = "completedIndexes", "failedIndexes"
    changed = [f for f in (completed, failed) if job.fact(f) != before.fact(f)]
    found: list[Cause] = []
    for field in changed:
        found += _parse_index_field(job, field)[1]
    if completed in changed and job.has_all(completed) and not is_indexed(job.spec):
        detail = "cannot set non-empty completedIndexes when non-indexed completion mode"
        found.append(invalid(completed, job.fact(completed), detail))
    is_limited = job.spec.get("backoffLimitPerIndex") is not None
    if failed in changed and job.fact(failed) is not None and not is_limited:
        detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
        found.append(invalid(failed, job.fact(failed), detail))
    shared = (
        first_shared_index(
            _parse_index_field(job, completed)[0], _parse_index_field(job, failed)[0]
        )
        if changed
        else None
    )
    if shared is not None:
        detail = f'failedIndexes and completedIndexes overlap at index: "{shared}"'
        found.append(invalid(failed, job.fact(failed), detail))
    return prefix_causes("status", found)


def _check_uncounted_pods(new: Any, old: Any) -> Causes:
    """Require that each uncounted pod has a uid and is listed once."""
    seen: set[str] = set()
    found: list[Cause] = []
    for side in ("succeeded", "failed"):
        for at, uid in enumerate(new.get(side, ())):
            if not uid:
                found.append(invalid(f"{side}[{at}]", uid, "must not be empty"))
            elif uid in seen:
                found.append(duplicate(f"{side}[{at}]", uid))
            seen.add(uid)
    return found


# ------------------------------------------------------------------------------------- transitions


def _check_transitions(new: Any, old: Any) -> Causes:
    """Refuse changes that undo what has happened."""
    if old is CREATED:
        return ()
    job, before = _JobView(new), _JobView(old)
    found = [
        _invalid_status("conditions", f"cannot disable the terminal {name}=True condition")
        for name in _TERMINAL_CONDITIONS
        if before.has_all(name) and not job.has_all(name)
    ]
    # An elastic indexed Job loses indexes with their successes when it is scaled down.
    has_equal_counts = job.spec.get("completions") == job.spec.get("parallelism")
    is_elastic = is_indexed(job.spec) and has_equal_counts
    for field in ("failed", "succeeded"):
        may_decrease = field == "succeeded" and is_elastic
        if job.count(field) < before.count(field) and not may_decrease:
            detail = f"cannot decrease the {field} counter"
            found.append(invalid(field, job.count(field), detail))
    return prefix_causes(
        "status", [*found, *_check_times(job, before), *_check_success_criteria(job, before)]
    )


def _check_times(job: _JobView, before: _JobView) -> list[Cause]:
    found: list[Cause] = []
    completed = job.fact("completionTime")
    if job.has_all("completionTime") and before.fact("completionTime") not in (None, completed):
        found.append(invalid("completionTime", completed, "completionTime cannot be mutated"))
    started = before.fact("startTime")
    if started and job.fact("startTime") != started and not job.spec.get("suspend"):
        detail = "startTime cannot be removed for unsuspended job"
        found.append(required("startTime", detail))
    return found


def _check_success_criteria(job: _JobView, before: _JobView) -> list[Cause]:
    met, was_met = job.has_all("SuccessCriteriaMet"), before.has_all("SuccessCriteriaMet")
    if was_met and not met:
        return [
            _invalid_status("conditions", "cannot disable the SuccessCriteriaMet=True condition")
        ]
    if before.has_all("Complete") and met and not was_met:
        detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"
        return [_invalid_status("conditions", detail)]
    return []


_COUNTS = struct(
    ("active", _NON_NEGATIVE),
    ("succeeded", _NON_NEGATIVE),
    ("failed", _NON_NEGATIVE),
    ("ready", _NON_NEGATIVE),
    ("terminating", _NON_NEGATIVE),
    ("uncountedTerminatedPods", if_present(_check_uncounted_pods)),
)

check_job_status: Check = all_of(
    struct(("status", if_present(_COUNTS))), _check_status_rules, _check_indexes, _check_transitions
)
