"""Rules of the status of Jobs: counts, times and conditions that go together.

Most of them are asked only when one of the facts that they are about has changed, so that whoever
reports something else is not blamed for what was there. A fact is a field of the status, a
condition that is true (`Complete`), or that the Job has `Finished` either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.api.causes import Causes, duplicate, invalid, required, under
from phalanx.api.errors import Cause
from phalanx.api.indexes import BadIndexes, Run, parse_indexes, shared_index
from phalanx.api.rules.checks import CREATED, Check, at_least, every, given, present, struct
from phalanx.api.rules.jobpolicy import is_indexed
from phalanx.api.wire import Object

_TERMINAL = ("Failed", "Complete", "FailureTarget")
_NATURAL = given(at_least(0))


class _State:
    """A Job as these rules see it."""

    def __init__(self, job: Any) -> None:
        known: Object = {} if job is CREATED else job
        self.spec: Object = known.get("spec") or {}
        self.status: Object = known.get("status") or {}
        conditions = self.status.get("conditions", ())
        self._true = [c.get("type") for c in conditions if c.get("status") == "True"]

    def fact(self, name: str) -> Any:
        """A field of the status, or whether a condition holds."""
        if name == "Finished":
            return self.fact("Complete") or self.fact("Failed")
        return name in self._true if name[0].isupper() else self.status.get(name)

    def number(self, name: str) -> int:
        """A count; what is absent is none."""
        return self.status.get(name) or 0

    def has(self, *names: str) -> bool:
        """Whether all of these facts hold."""
        return all(self.fact(name) for name in names)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The facts it is about, when it is broken, and what to say then."""

    facts: tuple[str, ...]
    is_broken: Callable[[_State], bool]
    cause: Callable[[_State], Cause]


def _unfit(field: str, detail: str) -> Cause:
    """Wrong in itself, whatever value it has."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {detail}")


def _excluding(one: str, other: str, detail: str) -> _Rule:
    """Two conditions that cannot both be true."""
    return _Rule(
        (one, other), lambda job: job.has(one, other), lambda job: _unfit("conditions", detail)
    )


def _following(one: str, other: str) -> _Rule:
    """A condition that cannot be true before another."""
    detail = f"cannot set {one}=True condition without the {other}=true condition"
    return _Rule(
        (one, other),
        lambda job: job.has(one) and not job.has(other),
        lambda job: _unfit("conditions", detail),
    )


def _when_finished(field: str, detail: str) -> _Rule:
    """A field that must be empty in the end."""
    return _Rule(
        ("Finished", field),
        lambda job: job.has("Finished", field),
        lambda job: invalid(field, job.fact(field), detail),
    )


def _ends_too_early(job: _State) -> bool:
    """Both times are written in one form, so that their texts have their order."""
    started, completed = job.fact("startTime"), job.fact("completionTime")
    return bool(started and completed) and completed < started


_RULES = (
    _excluding("Complete", "Failed", "cannot set Complete=True and Failed=true conditions"),
    _excluding(
        "Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"
    ),
    _Rule(
        ("Complete", "completionTime"),
        lambda job: job.has("completionTime") and not job.has("Complete"),
        lambda job: invalid(
            "completionTime", job.fact("completionTime"),
            "cannot set completionTime when there is no Complete=True condition",
        ),
    ),
    _Rule(
        ("Complete", "completionTime"),
        lambda job: job.has("Complete") and not job.has("completionTime"),
        lambda job: required("completionTime", "completionTime is required for Complete jobs"),
    ),
    _Rule(
        ("startTime", "completionTime"),
        _ends_too_early,
        lambda job: invalid(
            "completionTime", job.fact("completionTime"),
            "completionTime cannot be set before startTime",
        ),
    ),
    _following("Failed", "FailureTarget"),
    _following("Complete", "SuccessCriteriaMet"),
    _excluding(
        "SuccessCriteriaMet", "Failed",
        "cannot set Failed=True and SuccessCriteriaMet=true conditions",
    ),
    _excluding(
        "SuccessCriteriaMet", "FailureTarget",
        "cannot set SuccessCriteriaMet=true and FailureTarget=true conditions",
    ),
    _when_finished("active", "active>0 is invalid for finished job"),
    _Rule(
        ("Finished", "startTime"),
        lambda job: job.has("Finished") and not job.has("startTime"),
        lambda job: required("startTime", "startTime is required for finished job"),
    ),
    _when_finished(
        "uncountedTerminatedPods", "uncountedTerminatedPods needs to be empty for finished job"
    ),
    _when_finished("terminating", "terminating>0 is invalid for finished job"),
    _Rule(
        ("active", "ready"),
        lambda job: job.has("ready") and job.number("ready") > job.number("active"),
        lambda job: invalid(
            "ready", job.number("ready"), "cannot set more ready pods than active"
        ),
    ),
)  # fmt: skip


def _together(new: Any, old: Any) -> Causes:
    """What the facts of one moment say about each other."""
    job, before = _State(new), _State(old)
    broken = [
        rule
        for rule in _RULES
        if rule.is_broken(job) and any(job.fact(f) != before.fact(f) for f in rule.facts)
    ]
    return under("status", (rule.cause(job) for rule in broken))


# -------------------------------------------------------------------------------------- indexes


def _runs(job: _State, field: str) -> tuple[list[Run], list[Cause]]:
    """The indexes in a field, and what is wrong with them."""
    completions, text = job.spec.get("completions"), job.fact(field)
    if completions is None or not text:
        return [], []
    try:
        return parse_indexes(text, completions), []
    except BadIndexes as error:
        return [], [invalid(field, text, f"error parsing {field}: {error}")]


def _indexes(new: Any, old: Any) -> Causes:
    """Indexes that have completed or failed, never both; asked only when they have changed."""
    job, before = _State(new), _State(old)
    completed, failed = "completedIndexes", "failedIndexes"
    changed = [f for f in (completed, failed) if job.fact(f) != before.fact(f)]
    found: list[Cause] = []
    for field in changed:
        found += _runs(job, field)[1]
    if completed in changed and job.has(completed) and not is_indexed(job.spec):
        detail = "cannot set non-empty completedIndexes when non-indexed completion mode"
        found.append(invalid(completed, job.fact(completed), detail))
    is_limited = job.spec.get("backoffLimitPerIndex") is not None
    if failed in changed and job.fact(failed) is not None and not is_limited:
        detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
        found.append(invalid(failed, job.fact(failed), detail))
    shared = shared_index(_runs(job, completed)[0], _runs(job, failed)[0]) if changed else None
    if shared is not None:
        detail = f'failedIndexes and completedIndexes overlap at index: "{shared}"'
        found.append(invalid(failed, job.fact(failed), detail))
    return under("status", found)


def _uncounted(new: Any, old: Any) -> Causes:
    """Each pod waits to be counted once, on one side."""
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


# -------------------------------------------------------------------------------------- changes


def _onwards(new: Any, old: Any) -> Causes:
    """What has happened stays so."""
    if old is CREATED:
        return ()
    job, before = _State(new), _State(old)
    found = [
        _unfit("conditions", f"cannot disable the terminal {name}=True condition")
        for name in _TERMINAL
        if before.has(name) and not job.has(name)
    ]
    for field in ("failed", "succeeded"):
        if job.number(field) < before.number(field) and not _may_shrink(job, field):
            detail = f"cannot decrease the {field} counter"
            found.append(invalid(field, job.number(field), detail))
    return under("status", [*found, *_times(job, before), *_criteria(job, before)])


def _may_shrink(job: _State, field: str) -> bool:
    """An indexed Job that is as wide as long may lose indexes, and their successes with them."""
    even = job.spec.get("completions") == job.spec.get("parallelism")
    return field == "succeeded" and is_indexed(job.spec) and even


def _times(job: _State, before: _State) -> list[Cause]:
    found: list[Cause] = []
    completed = job.fact("completionTime")
    if job.has("completionTime") and before.fact("completionTime") not in (None, completed):
        found.append(invalid("completionTime", completed, "completionTime cannot be mutated"))
    started = before.fact("startTime")
    if started and job.fact("startTime") != started and not job.spec.get("suspend"):
        detail = "startTime cannot be removed for unsuspended job"
        found.append(required("startTime", detail))
    return found


def _criteria(job: _State, before: _State) -> list[Cause]:
    met, was_met = job.has("SuccessCriteriaMet"), before.has("SuccessCriteriaMet")
    if was_met and not met:
        return [_unfit("conditions", "cannot disable the SuccessCriteriaMet=True condition")]
    if before.has("Complete") and met and not was_met:
        detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"
        return [_unfit("conditions", detail)]
    return []


_COUNTS = struct(
    ("active", _NATURAL),
    ("succeeded", _NATURAL),
    ("failed", _NATURAL),
    ("ready", _NATURAL),
    ("terminating", _NATURAL),
    ("uncountedTerminatedPods", present(_uncounted)),
)

JOB_STATUS: Check = every(struct(("status", present(_COUNTS))), _together, _indexes, _onwards)
