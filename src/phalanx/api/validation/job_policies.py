"""Validation of a Job's pod failure policy, success policy and pod replacement policy.

Each check gets the whole spec of the Job, because the policies depend on other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.batch import BadIndexes, count_indexes, parse_indexes
from phalanx.api.errors import Cause
from phalanx.api.field_errors import (
    Causes,
    duplicate,
    invalid,
    prefix_causes,
    required,
    too_long,
    too_many,
    unsupported,
)
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    each,
    find_duplicate_values,
    optional,
    struct,
)
from phalanx.api.validation.metadata import LABEL_KEY
from phalanx.api.wire import Object

MAX_POLICY_RULES = 20
_MAX_CONDITIONS, _MAX_EXIT_CODES = 20, 255
_MAX_INDEXES_TEXT = 64 * 1024
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
_STATUSES = ("False", "True", "Unknown")
_REPLACEMENT_POLICIES = ("Failed", "TerminatingOrFailed")


def check_policies(new: Any, old: Any) -> Causes:
    """Check the policies of a Job's spec."""
    return [
        *_check_failure_policy(new),
        *_check_success_policy(new),
        *_check_replacement_policy(new),
    ]


def is_indexed(spec: Object) -> bool:
    """Whether the completion mode is Indexed."""
    return spec.get("completionMode") == "Indexed"


def _mandatory_one_of(supported: Sequence[str]) -> Check:
    """Require one of the supported values; a missing value lists them."""
    quoted = " ".join(f'"{one}"' for one in supported)

    def check(new: Any, old: Any) -> Causes:
        if not new:
            return [required("", f"valid values: [{quoted}]")]
        return () if new in supported else [unsupported("", new, supported)]

    return check


# -------------------------------------------------------------------------------------- failure


def _check_failure_policy(spec: Object) -> list[Cause]:
    rules = spec.get("podFailurePolicy", {}).get("rules", ())
    found = [too_many("", len(rules), MAX_POLICY_RULES)] if len(rules) > MAX_POLICY_RULES else []
    for at, rule in enumerate(rules):
        found += prefix_causes(f"[{at}]", _check_failure_rule(rule, spec))
    return prefix_causes("podFailurePolicy.rules", found)


def _check_failure_rule(rule: Object, spec: Object) -> list[Cause]:
    codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions", ())
    found = list(_ACTION(rule, CREATED))
    if rule.get("action") == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        detail = "requires the backoffLimitPerIndex to be set"
        found.append(invalid("action", "FailIndex", detail))
    if codes is not None:
        found += prefix_causes("onExitCodes", _check_exit_codes(codes, spec))
    found += _CONDITIONS(rule, CREATED)
    if len(conditions) > _MAX_CONDITIONS:
        found.append(too_many("onPodConditions", len(conditions), _MAX_CONDITIONS))
    if (codes is None) == (not conditions):
        which = "one of OnExitCodes and OnPodConditions is required"
        if conditions:
            which = "both OnExitCodes and OnPodConditions is not supported"
        found.append(Cause("", "FieldValueInvalid", f"Invalid value: specifying {which}"))
    return found


def _check_exit_codes(codes: Object, spec: Object) -> list[Cause]:
    name, operator = codes.get("containerName"), codes.get("operator", "")
    found = list(_OPERATOR(codes, CREATED))
    if name is not None and name not in _container_names(spec):
        detail = "must be one of the container or initContainer names in the pod template"
        found.append(invalid("containerName", name, detail))
    return [
        *found,
        *prefix_causes("values", _check_exit_code_values(codes.get("values", []), operator)),
    ]


def _check_exit_code_values(codes: list[int], operator: str) -> list[Cause]:
    """Require unique exit codes in ascending order, without 0 for the operator In."""
    if not codes:
        return [invalid("", [], "at least one value is required")]
    found = [too_many("", len(codes), _MAX_EXIT_CODES)] if len(codes) > _MAX_EXIT_CODES else []
    if operator == "In":
        zeros = (at for at, code in enumerate(codes) if code == 0)
        found += [invalid(f"[{at}]", 0, "must not be 0 for the In operator") for at in zeros]
    found += [duplicate(f"[{at}]", codes[at]) for at in find_duplicate_values(codes)]
    return found if codes == sorted(codes) else [*found, invalid("", codes, "must be ordered")]


def _container_names(spec: Object) -> list[str]:
    pod = spec.get("template", {}).get("spec", {})
    containers = (*pod.get("containers", ()), *pod.get("initContainers", ()))
    return [container.get("name", "") for container in containers]


_ACTION = struct(("action", _mandatory_one_of(_ACTIONS)))
_OPERATOR = struct(("operator", _mandatory_one_of(_OPERATORS)))
_CONDITION_PATTERN = struct(("type", LABEL_KEY), ("status", _mandatory_one_of(_STATUSES)))
_CONDITIONS = struct(("onPodConditions", optional(each(_CONDITION_PATTERN))))

# -------------------------------------------------------------------------------------- success


def _check_success_policy(spec: Object) -> list[Cause]:
    policy = spec.get("successPolicy")
    if policy is None:
        return []
    if not is_indexed(spec):
        return [invalid("successPolicy", policy, "requires indexed completion mode")]
    rules = policy.get("rules", ())
    found: list[Cause] = []
    if not rules:
        detail = "at least one rules must be specified when the successPolicy is specified"
        found.append(required("", detail))
    if len(rules) > MAX_POLICY_RULES:
        found.append(too_many("", len(rules), MAX_POLICY_RULES))
    for at, rule in enumerate(rules):
        found += prefix_causes(f"[{at}]", _check_success_rule(rule, spec.get("completions", 0)))
    return prefix_causes("successPolicy.rules", found)


def _check_success_rule(rule: Object, completions: int) -> list[Cause]:
    text, enough = rule.get("succeededIndexes"), rule.get("succeededCount")
    if text is None and enough is None:
        detail = "at least one of succeededCount or succeededIndexes must be specified"
        return [required("", detail)]
    total, found = _count_indexes(text, completions)
    if enough is None:
        return found
    if enough < 0:
        found.append(invalid("succeededCount", enough, "must be greater than or equal to 0"))
    if enough > completions:
        what = f"{completions} (the number of specified completions)"
        found.append(invalid("succeededCount", enough, f"must be less than or equal to {what}"))
    if text is not None and enough > total:
        what = f"{total} (the number of indexes in the specified succeededIndexes field)"
        found.append(invalid("succeededCount", enough, f"must be less than or equal to {what}"))
    return found


def _count_indexes(text: str | None, completions: int) -> tuple[int, list[Cause]]:
    """Return the number of indexes in a text, and the faults of the text."""
    field, found = "succeededIndexes", list[Cause]()
    if len(text or "") > _MAX_INDEXES_TEXT:
        found.append(too_long(field, _MAX_INDEXES_TEXT))
    try:
        return count_indexes(parse_indexes(text or "", completions)), found
    except BadIndexes as error:
        found.append(invalid(field, text, f"error parsing succeededIndexes: {error}"))
    return 0, found


# ---------------------------------------------------------------------------------- replacement


def _check_replacement_policy(spec: Object) -> list[Cause]:
    """Require podReplacementPolicy Failed with a pod failure policy."""
    policy = spec.get("podReplacementPolicy")
    supported = _REPLACEMENT_POLICIES[:1] if "podFailurePolicy" in spec else _REPLACEMENT_POLICIES
    if policy is None or policy in supported:
        return []
    return [unsupported("podReplacementPolicy", policy, supported)]
