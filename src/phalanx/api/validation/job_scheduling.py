"""Validation of `spec.scheduling` and `spec.gangPolicy` of Jobs.

`spec.scheduling` has the building blocks of PodGroups with two differences: a gang may omit
`minCount`, which then follows the parallelism, and absent fields stay absent. Only `minCount` may
change; in the Job template of a CronJob, `basic` and `gang` may replace each other.

`spec.gangPolicy` is the short form: JobAsGang is a gang of all pods that run at a time, NoGang
creates no group at all, absent means nothing. Both fields together must agree. `job.py` makes the
policy immutable in Jobs; templates may change it.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, invalid, prefix_causes
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    if_present,
    immutable,
    mandatory,
    minimum,
    one_of,
    optional,
    struct,
    union,
)
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
    said = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return not said and bool(_gang_policy_of(spec))


def is_inferred_gang(spec: Object) -> bool:
    """Whether an indexed Job without a policy looks like a gang: all completions run at a time.

    Used only with the feature gate JobGangInference.
    """
    said = (spec.get("scheduling") or {}).get("schedulingPolicy") or _gang_policy_of(spec)
    count = spec.get("parallelism") or 0
    is_whole = count > 1 and spec.get("completions") == count
    return not said and spec.get("completionMode") == "Indexed" and is_whole


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
    unlike: dict[str, list[str]] = {
        JOB_AS_GANG: ["schedulingPolicy.basic"] if "basic" in policy else [],
        NO_GANG: [
            *(["schedulingPolicy.gang"] if "gang" in policy else []),
            *(["disruptionMode.all"] if "all" in mode and not policy else []),
            *(field for field in _GROUP_ONLY_FIELDS if scheduling.get(field)),
        ],
    }
    word = _gang_policy_of(new)
    return [
        invalid("gangPolicy.policy", word, f"may not be {word} when scheduling.{field} is set")
        for field in unlike.get(word, ())
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
        gone = "field cannot be cleared once set"
        return [invalid("", None, gone if new is None else "field cannot be set once created")]

    return check_settled


def policy_with_optional_count(count: str) -> Check:
    """Check a basic policy, or a gang policy whose `minCount` is optional."""
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
