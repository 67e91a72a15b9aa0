"""Validation of a Job's policies: scheduling, pod failure, success and pod replacement.

`spec.scheduling` has the building blocks of PodGroups with two differences: a gang may omit
`minCount`, which then follows the parallelism, and absent fields stay absent. Only `minCount` may
change; in the Job template of a CronJob, `basic` and `gang` may replace each other.

`spec.gangPolicy` is the short form: JobAsGang makes all pods that run at a time a gang, NoGang
creates no group; without it `scheduling` alone decides. Both fields together must agree. `job.py`
makes the policy immutable in Jobs; templates may change it.

The other policies get the whole spec of the Job, because they depend on other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.batch import BadIndexes, count_indexes, parse_indexes
from phalanx.api.errors import (
    Cause,
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
    all_of,
    each,
    find_duplicate_values,
    if_present,
    immutable,
    mandatory,
    minimum,
    one_of,
    optional,
    struct,
    union,
)
from phalanx.api.validation.metadata import LABEL_KEY
from phalanx.api.validation.pod_group import (
    DISRUPTION_MODE,
    RESOURCE_CLAIMS,
    SCHEDULING_CONSTRAINTS,
)
from phalanx.api.wire import Object

JOB_AS_GANG, NO_GANG = "JobAsGang", "NoGang"
#: Fields that need a PodGroup.
_GROUP_ONLY_FIELDS = ("schedulingConstraints", "resourceClaims")

GANG_POLICY: Check = struct(("policy", mandatory(one_of(JOB_AS_GANG, NO_GANG))))


def is_gang_by_policy(spec: Object) -> bool:
    """Whether a Job is a gang by `gangPolicy` alone."""
    return has_gang_policy_only(spec) and _gang_policy_of(spec) == JOB_AS_GANG


def has_gang_policy_only(spec: Object) -> bool:
    """Whether `gangPolicy` alone decides how the pods of a Job are scheduled."""
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return not policy and bool(_gang_policy_of(spec))


def asks_for_gang(spec: Object) -> bool:
    """Whether a Job names a gang policy, in `scheduling` or in `gangPolicy`."""
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or {}
    return "gang" in policy or _gang_policy_of(spec) == JOB_AS_GANG


def is_inferred_gang(spec: Object) -> bool:
    """Whether an indexed Job without a policy counts as a gang.

    It does if it has more than one pod and runs all completions at a time. Used only with the
    feature gate JobGangInference.
    """
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or _gang_policy_of(spec)
    count = spec.get("parallelism") or 0
    is_whole = count > 1 and spec.get("completions") == count
    return not policy and spec.get("completionMode") == "Indexed" and is_whole


def check_inferred_gang_size(new: Any, old: Any) -> Causes:
    """Refuse a change of parallelism of an inferred gang."""
    if old is CREATED or new.get("parallelism") == (old or {}).get("parallelism"):
        return ()
    if not is_inferred_gang(new):
        return ()
    detail = "may not change while the Job is taken for a gang by its shape; name its policy in "
    return [invalid("parallelism", new.get("parallelism"), f"{detail}spec.scheduling")]


def check_gang_policy_conflicts(new: Any, old: Any) -> Causes:
    """Require that `gangPolicy` and `scheduling` agree."""
    scheduling = new.get("scheduling") or {}
    policy = scheduling.get("schedulingPolicy") or {}
    mode = scheduling.get("disruptionMode") or {}
    conflicting_fields: dict[str, list[str]] = {
        JOB_AS_GANG: ["schedulingPolicy.basic"] if "basic" in policy else [],
        NO_GANG: [
            *(["schedulingPolicy.gang"] if "gang" in policy else []),
            *(["disruptionMode.all"] if "all" in mode and not policy else []),
            *(field for field in _GROUP_ONLY_FIELDS if scheduling.get(field)),
        ],
    }
    gang_policy = _gang_policy_of(new)
    return [
        invalid(
            "gangPolicy.policy",
            gang_policy,
            f"may not be {gang_policy} when scheduling.{field} is set",
        )
        for field in conflicting_fields.get(gang_policy, ())
    ]


def _gang_policy_of(spec: Object) -> str:
    return str((spec.get("gangPolicy") or {}).get("policy", ""))


_POLICY_PATH = "scheduling.schedulingPolicy"
_POLICY_VARIANTS = ("basic", "gang")


def immutable_presence(check: Check) -> Check:
    """Refuse adding or removing a field after creation, whatever its content."""
    inner = if_present(check)

    def check_settled(new: Any, old: Any) -> Causes:
        if old is CREATED or (new is None) == (old is None):
            return inner(new, old)
        cleared = "field cannot be cleared once set"
        return [invalid("", None, cleared if new is None else "field cannot be set once created")]

    return check_settled


def policy_with_optional_count(count: str) -> Check:
    """Check a basic policy, or a gang policy whose size (the field `count`) is optional."""
    size = struct((count, optional(minimum(1))))
    return all_of(union(*_POLICY_VARIANTS), struct(("gang", if_present(size))))


#: The building blocks of a Job.
SCHEDULING_FIELDS: Check = struct(
    ("schedulingPolicy", immutable_presence(policy_with_optional_count("minCount"))),
    ("schedulingConstraints", immutable(optional(SCHEDULING_CONSTRAINTS))),
    ("disruptionMode", immutable(if_present(DISRUPTION_MODE))),
    ("resourceClaims", immutable(optional(RESOURCE_CLAIMS))),
)


def _check_fits_job(new: Any, old: Any) -> Causes:
    """Check the building blocks against the Job's spec."""
    pods, has_policy_elsewhere = new.get("parallelism", 1), has_gang_policy_only(new)
    return prefix_causes(
        "scheduling",
        check_scheduling_fits(
            new.get("scheduling"), pods, has_policy_elsewhere=has_policy_elsewhere
        ),
    )


def check_scheduling_fits(
    scheduling: Object | None, parallelism: int, *, has_policy_elsewhere: bool = False
) -> Causes:
    """Check the building blocks of a Job with a given parallelism.

    Without a policy the Job is basic, unless `has_policy_elsewhere`.
    """
    if scheduling is None:
        return ()
    policy = scheduling.get("schedulingPolicy") or {}
    found: list[Cause] = []
    size = policy.get("gang", {}).get("minCount")
    if size is not None and size > parallelism:
        detail = f"must not be greater than parallelism ({parallelism})"
        found.append(invalid("schedulingPolicy.gang.minCount", size, detail))
    is_gang = "gang" in policy and "basic" not in policy
    return (
        found
        if is_gang or has_policy_elsewhere
        else [*found, *check_basic_disruption_mode(scheduling)]
    )


def check_basic_disruption_mode(scheduling: Object) -> Causes:
    """Refuse disruption mode All with a basic policy."""
    mode = scheduling.get("disruptionMode") or {}
    if "all" not in mode or "single" in mode:
        return ()
    detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
    return [invalid("disruptionMode", "", detail)]


def check_policy_variant_unchanged(new: Any, old: Any) -> Causes:
    """Refuse a change between basic and gang."""
    before, after = _policy_variants(old), _policy_variants(new)
    if old is CREATED or before is None or after is None or before == after:
        return ()
    detail = (
        "the basic/gang policy variant is immutable after creation; "
        "only schedulingPolicy.gang.minCount may be updated"
    )
    return [invalid(_POLICY_PATH, None, detail)]


def _policy_variants(spec: Any) -> list[str] | None:
    """Return the policy variants that a spec names; None without a policy."""
    if spec is CREATED or not spec:
        return None
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return None if policy is None else [name for name in _POLICY_VARIANTS if name in policy]


#: The scheduling of a Job, given its spec.
JOB_SCHEDULING: Check = all_of(
    struct(
        ("gangPolicy", if_present(GANG_POLICY)),
        ("scheduling", immutable_presence(SCHEDULING_FIELDS)),
    ),
    _check_fits_job,
    check_gang_policy_conflicts,
)


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
    pod = spec.get("template", {}).get("spec", {})
    containers = (*pod.get("containers", ()), *pod.get("initContainers", ()))
    if name is not None and name not in [one.get("name", "") for one in containers]:
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
    """Check podReplacementPolicy; a pod failure policy allows only Failed."""
    policy = spec.get("podReplacementPolicy")
    supported = _REPLACEMENT_POLICIES[:1] if "podFailurePolicy" in spec else _REPLACEMENT_POLICIES
    if policy is None or policy in supported:
        return []
    return [unsupported("podReplacementPolicy", policy, supported)]
