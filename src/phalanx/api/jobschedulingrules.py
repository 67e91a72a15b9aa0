"""Rules of `spec.scheduling`, where a Job says how its pods are scheduled together.

The pieces are those of PodGroups, with two differences: a gang may leave its size to the
parallelism of the Job, and what is absent stays absent. Only that size may ever change; in the
template of a CronJob basic and gang may also take each other's place.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid
from phalanx.api.checks import (
    CREATED,
    Check,
    at_least,
    every,
    frozen,
    given,
    present,
    struct,
    union,
)
from phalanx.api.errors import Cause
from phalanx.api.grouprules import CLAIMS, CONSTRAINTS, DISRUPTION_MODE

_POLICY = "scheduling.schedulingPolicy"
_VARIANTS = ("basic", "gang")


def _settled(check: Check) -> Check:
    """It neither comes nor goes after the creation, whatever is in it."""
    inner = present(check)

    def check_settled(new: Any, old: Any) -> Causes:
        if old is CREATED or (new is None) == (old is None):
            return inner(new, old)
        gone = "field cannot be cleared once set"
        return [invalid("", None, gone if new is None else "field cannot be set once created")]

    return check_settled


_check_policy = every(
    union(*_VARIANTS),
    struct(("gang", present(struct(("minCount", given(at_least(1))))))),
)
_check_blocks = struct(
    ("schedulingPolicy", _settled(_check_policy)),
    ("schedulingConstraints", frozen(given(CONSTRAINTS))),
    ("disruptionMode", frozen(present(DISRUPTION_MODE))),
    ("resourceClaims", frozen(given(CLAIMS))),
)


def _fits_job(new: Any, old: Any) -> Causes:
    """What the blocks may say in this Job, given its spec."""
    scheduling = new.get("scheduling")
    if scheduling is None:
        return ()
    policy = scheduling.get("schedulingPolicy") or {}
    found: list[Cause] = []
    size, parallelism = policy.get("gang", {}).get("minCount"), new.get("parallelism", 1)
    if size is not None and size > parallelism:
        detail = f"must not be greater than parallelism ({parallelism})"
        found.append(invalid(f"{_POLICY}.gang.minCount", size, detail))
    is_gang = "gang" in policy and "basic" not in policy
    mode = scheduling.get("disruptionMode") or {}
    if "all" in mode and "single" not in mode and not is_gang:
        detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
        found.append(invalid("scheduling.disruptionMode", "", detail))
    return found


def check_variant(new: Any, old: Any) -> Causes:
    """A Job stays basic or a gang, given its spec."""
    before, after = _variants(old), _variants(new)
    if old is CREATED or before is None or after is None or before == after:
        return ()
    detail = (
        "the basic/gang policy variant is immutable after creation; "
        "only schedulingPolicy.gang.minCount may be updated"
    )
    return [invalid(_POLICY, None, detail)]


def _variants(spec: Any) -> list[str] | None:
    """Which variants a spec names; None where it has no policy."""
    if spec is CREATED or not spec:
        return None
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return None if policy is None else [name for name in _VARIANTS if name in policy]


#: How the pods of a Job are scheduled together, given its spec.
SCHEDULING: Check = every(struct(("scheduling", _settled(_check_blocks))), _fits_job)
