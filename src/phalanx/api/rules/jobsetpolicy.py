"""Rules of a JobSet's policies: whose success counts, and what a failed Job leads to.

Each looks at the whole spec of the JobSet, as it names sorts of Jobs in it.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid, too_long, under
from phalanx.api.errors import Cause
from phalanx.api.fields import condition_reason_faults
from phalanx.api.regex import BadPattern, pattern
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    at_least,
    each,
    every,
    given,
    needed,
    one_of,
    struct,
    unique_field,
)
from phalanx.api.rules.jobsets import job_spec, replicated_jobs
from phalanx.api.wire import Object

MAX_RULE_NAME = 128
#: Where Jobs are restarted one by one, this many of a sort are counted.
MAX_COUNTED = 1024
MAX_BACKOFF = 2**31 - 1

_SINGLE = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
_ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", *_SINGLE)
_STRATEGIES = ("Recreate", "BlockingRecreate", "InPlaceRestart")
_REASONS = (
    "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)  # fmt: skip


def _unknown(spec: Object, targets: list[str]) -> list[Cause]:
    """Targets that are no sort of Jobs."""
    names = {job.get("name") for job in replicated_jobs(spec)}
    detail = "invalid replicatedJob name '{}' does not appear in .spec.ReplicatedJobs"
    return [
        invalid(f"targetReplicatedJobs[{at}]", target, detail.format(target))
        for at, target in enumerate(targets)
        if target not in names
    ]


def check_targets(new: Any, old: Any) -> Causes:
    """The sorts of Jobs that policies name are there, given the spec."""
    rules = new.get("failurePolicy", {}).get("rules", ())
    places = [("successPolicy", new.get("successPolicy", {}))]
    places += [(f"failurePolicy.rules[{at}]", rule) for at, rule in enumerate(rules)]
    return [
        cause
        for place, policy in places
        for cause in under(place, _unknown(new, policy.get("targetReplicatedJobs", [])))
    ]


# ---------------------------------------------------------------------------------------- failure


def _rule_name(new: Any, old: Any) -> Causes:
    if len(new) > MAX_RULE_NAME:
        return [too_long("", MAX_RULE_NAME)]
    detail = (
        "a failure policy rule name must start with an alphabetic character, optionally followed "
        "by a string of alphanumeric characters or '_,:', and must end with an alphanumeric "
        "character or '_'"
    )
    return [invalid("", new, detail)] if condition_reason_faults(new) else ()


def _pattern(new: Any, old: Any) -> Causes:
    try:
        pattern(new)
    except BadPattern as error:
        return [invalid("", new, f"must be a valid regular expression: {error}")]
    return ()


_RULE = struct(
    ("name", needed(_rule_name)),
    ("action", needed(one_of(*_ACTIONS))),
    ("onJobFailureReasons", given(each(one_of(*_REASONS)))),
    ("onJobFailureMessagePatterns", given(each(_pattern))),
)
_POLICY = struct(
    ("maxRestarts", given(at_least(0))),
    ("restartStrategy", given(one_of(*_STRATEGIES))),
    ("rules", given(every(each(_RULE), unique_field("name")))),
)


def _failure_policy(new: Any, old: Any) -> Causes:
    policy = new.get("failurePolicy")
    return () if policy is None else under("failurePolicy", _POLICY(policy, CREATED))


def _few_to_restart(new: Any, old: Any) -> Causes:
    rules = new.get("failurePolicy", {}).get("rules", ())
    if not any(rule.get("action") in _SINGLE for rule in rules):
        return ()
    detail = f"must be less than or equal to {MAX_COUNTED} where a failure policy restarts Jobs"
    return [
        invalid(f"replicatedJobs[{at}].replicas", job["replicas"], f"{detail} one by one")
        for at, job in enumerate(replicated_jobs(new))
        if job.get("replicas", 1) > MAX_COUNTED
    ]


def _restarted_in_place(new: Any, old: Any) -> Causes:
    """Where pods are restarted in place, no Job ever fails or lets a pod go before its time."""
    if new.get("failurePolicy", {}).get("restartStrategy") != "InPlaceRestart":
        return ()
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new)):
        found += under(f"replicatedJobs[{at}].template.spec", _lasting(job_spec(job)))
    return found


def _lasting(spec: Object) -> list[Cause]:
    wanted = (
        ("backoffLimit", MAX_BACKOFF),
        ("podReplacementPolicy", "Failed"),
        ("completions", spec.get("parallelism")),
    )
    when = "when in-place restart is enabled"
    return [
        invalid(field, spec.get(field), f"must be set to {value} {when}")
        for field, value in wanted
        if spec.get(field) != value
    ]


#: What a failed Job leads to, given the spec.
FAILURE_POLICY: Check = every(_failure_policy, _few_to_restart, _restarted_in_place)
