"""Rules of `spec.scheduling`, where a Job says how its pods are scheduled together.

The pieces are those of PodGroups, with two differences: a gang may leave its size to the
parallelism of the Job, and what is absent stays absent. Only that size may ever change; in the
template of a CronJob basic and gang may also take each other's place.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import (
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
from phalanx.api.rules.gangpolicy import GANG_POLICY, check_agreement, is_left_to_word
from phalanx.api.rules.group import CLAIMS, CONSTRAINTS, DISRUPTION_MODE
from phalanx.api.wire import Object

_POLICY = "scheduling.schedulingPolicy"
_VARIANTS = ("basic", "gang")


def settled(check: Check) -> Check:
    """It neither comes nor goes after the creation, whatever is in it."""
    inner = present(check)

    def check_settled(new: Any, old: Any) -> Causes:
        if old is CREATED or (new is None) == (old is None):
            return inner(new, old)
        gone = "field cannot be cleared once set"
        return [invalid("", None, gone if new is None else "field cannot be set once created")]

    return check_settled


def sized_policy(count: str) -> Check:
    """Basic, or a gang that may leave out of how many."""
    size = struct((count, given(at_least(1))))
    return every(union(*_VARIANTS), struct(("gang", present(size))))


#: What pods that are scheduled together may ask for.
BLOCKS: Check = struct(
    ("schedulingPolicy", settled(sized_policy("minCount"))),
    ("schedulingConstraints", frozen(given(CONSTRAINTS))),
    ("disruptionMode", frozen(present(DISRUPTION_MODE))),
    ("resourceClaims", frozen(given(CLAIMS))),
)


def _fits_job(new: Any, old: Any) -> Causes:
    """What the blocks may say in this Job, given its spec."""
    pods, is_told = new.get("parallelism", 1), is_left_to_word(new)
    return under("scheduling", check_fit(new.get("scheduling"), pods, is_told=is_told))


def check_fit(scheduling: Object | None, parallelism: int, *, is_told: bool = False) -> Causes:
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
    return found if is_gang or is_told else [*found, *check_single(scheduling)]


def check_single(scheduling: Object) -> Causes:
    """Pods that are placed one by one are disrupted one by one."""
    mode = scheduling.get("disruptionMode") or {}
    if "all" not in mode or "single" in mode:
        return ()
    detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
    return [invalid("disruptionMode", "", detail)]


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
SCHEDULING: Check = every(
    struct(("gangPolicy", present(GANG_POLICY)), ("scheduling", settled(BLOCKS))),
    _fits_job,
    check_agreement,
)
