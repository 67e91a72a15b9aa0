"""Rules of `spec.gangPolicy`, by which a Job says in one word whether its pods are a gang.

JobAsGang is a gang of all pods that run at a time, NoGang is no group at all; absent, it says
nothing. A Job that has `spec.scheduling` too must not contradict itself. That the word never
changes is a rule of Jobs alone (`job.py`): templates may.

Rules of `spec.scheduling`, where a Job says how its pods are scheduled together.

The pieces are those of PodGroups, with two differences: a gang may leave its size to the
parallelism of the Job, and what is absent stays absent. Only that size may ever change; in the
template of a CronJob basic and gang may also take each other's place.
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
#: What only a group can have.
_GROUP_ONLY_FIELDS = ("schedulingConstraints", "resourceClaims")

GANG_POLICY: Check = struct(("policy", mandatory(one_of(JOB_AS_GANG, NO_GANG))))


def is_gang_by_policy(spec: Object) -> bool:
    """Whether a Job is a gang because it says so in one word and nothing else of it."""
    return has_gang_policy_only(spec) and _gang_policy_of(spec) == JOB_AS_GANG


def has_gang_policy_only(spec: Object) -> bool:
    """Whether what the pods of a Job are is said in one word alone."""
    said = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return not said and bool(_gang_policy_of(spec))


def is_inferred_gang(spec: Object) -> bool:
    """Whether a Job says nothing of it but looks like a gang: every pod has a number and all run.

    Only asked where the gate JobGangInference is on.
    """
    said = (spec.get("scheduling") or {}).get("schedulingPolicy") or _gang_policy_of(spec)
    count = spec.get("parallelism") or 0
    is_whole = count > 1 and spec.get("completions") == count
    return not said and spec.get("completionMode") == "Indexed" and is_whole


def check_inferred_gang_size(new: Any, old: Any) -> Causes:
    """What is a gang by its shape keeps its size, given the spec."""
    if old is CREATED or new.get("parallelism") == (old or {}).get("parallelism"):
        return ()
    if not is_inferred_gang(new):
        return ()
    detail = "may not change while the Job is taken for a gang by its shape; name its policy in "
    return [invalid("parallelism", new.get("parallelism"), f"{detail}spec.scheduling")]


def check_gang_policy_conflicts(new: Any, old: Any) -> Causes:
    """What is said in one word and what is said in full must be the same, given the spec."""
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
    """It neither comes nor goes after the creation, whatever is in it."""
    inner = if_present(check)

    def check_settled(new: Any, old: Any) -> Causes:
        if old is CREATED or (new is None) == (old is None):
            return inner(new, old)
        gone = "field cannot be cleared once set"
        return [invalid("", None, gone if new is None else "field cannot be set once created")]

    return check_settled


def policy_with_optional_count(count: str) -> Check:
    """Basic, or a gang that may leave out of how many."""
    size = struct((count, optional(minimum(1))))
    return all_of(union(*_POLICY_VARIANTS), struct(("gang", if_present(size))))


#: What pods that are scheduled together may ask for.
SCHEDULING_FIELDS: Check = struct(
    ("schedulingPolicy", immutable_presence(policy_with_optional_count("minCount"))),
    ("schedulingConstraints", immutable(optional(SCHEDULING_CONSTRAINTS))),
    ("disruptionMode", immutable(if_present(DISRUPTION_MODE))),
    ("resourceClaims", immutable(optional(RESOURCE_CLAIMS))),
)


def _check_fits_job(new: Any, old: Any) -> Causes:
    """What the blocks may say in this Job, given its spec."""
    pods, is_told = new.get("parallelism", 1), has_gang_policy_only(new)
    return prefix_causes(
        "scheduling",
        check_scheduling_fits(new.get("scheduling"), pods, has_policy_elsewhere=is_told),
    )


def check_scheduling_fits(
    scheduling: Object | None, parallelism: int, *, has_policy_elsewhere: bool = False
) -> Causes:
    """What the blocks may say of a Job that runs so many pods at a time.

    One that has no policy is basic, unless what it is `is_told` elsewhere.
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
    """Pods that are placed one by one are disrupted one by one."""
    mode = scheduling.get("disruptionMode") or {}
    if "all" not in mode or "single" in mode:
        return ()
    detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
    return [invalid("disruptionMode", "", detail)]


def check_policy_variant_unchanged(new: Any, old: Any) -> Causes:
    """A Job stays basic or a gang, given its spec."""
    before, after = _policy_variants(old), _policy_variants(new)
    if old is CREATED or before is None or after is None or before == after:
        return ()
    detail = (
        "the basic/gang policy variant is immutable after creation; "
        "only schedulingPolicy.gang.minCount may be updated"
    )
    return [invalid(_POLICY_PATH, None, detail)]


def _policy_variants(spec: Any) -> list[str] | None:
    """Which variants a spec names; None where it has no policy."""
    if spec is CREATED or not spec:
        return None
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return None if policy is None else [name for name in _POLICY_VARIANTS if name in policy]


#: How the pods of a Job are scheduled together, given its spec.
JOB_SCHEDULING: Check = all_of(
    struct(
        ("gangPolicy", if_present(GANG_POLICY)),
        ("scheduling", immutable_presence(SCHEDULING_FIELDS)),
    ),
    _check_fits_job,
    check_gang_policy_conflicts,
)
