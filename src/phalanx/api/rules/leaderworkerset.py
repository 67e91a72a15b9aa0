"""Rules of LeaderWorkerSets: groups of pods, each of a leader and its workers.

Groups come and go by number; what they are made of may change, and rolls out group by group. How
a group is divided is said once. How its pods are scheduled together is said in the words of Jobs
(`jobscheduling.py`), but where nothing is said they are a gang; `basic` lets them go singly.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, under, unsupported
from phalanx.api.errors import Cause
from phalanx.api.rules.budget import check_share
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    again,
    at_least,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
)
from phalanx.api.rules.claimtemplate import CLAIM_TEMPLATE, claim_name, with_claims
from phalanx.api.rules.jobscheduling import BLOCKS, check_single, check_variant, settled
from phalanx.api.rules.meta import check_conditions
from phalanx.api.rules.template import POD_TEMPLATE_SPEC
from phalanx.api.wire import Object

MAX_REPLICAS = 1_000_000
MAX_PODS = 2**31 - 1
SUBGROUP_TOPOLOGY = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"

_TEMPLATES = ("leaderTemplate", "workerTemplate")
_RESTARTS = ("None", "RecreateGroupAfterStart", "RecreateGroupOnPodRestart")
_WHEN = given(one_of("Delete", "Retain"))
_SUBGROUP_SIZE = "subGroupPolicy.subGroupSize"

# ---------------------------------------------------------------------------------------- numbers


def _replicas(new: Any, old: Any) -> Causes:
    if new < 0:
        return [invalid("", new, "replicas must be equal or greater than 0")]
    detail = f"replicas must be equal or less than {MAX_REPLICAS}"
    return [invalid("", new, detail)] if new > MAX_REPLICAS else ()


def _size(new: Any, old: Any) -> Causes:
    return () if new >= 1 else [invalid("", new, "size must be equal or greater than 1")]


def _pods(new: Any, old: Any) -> Causes:
    replicas = new.get("replicas", 1)
    if replicas * new.get("leaderWorkerTemplate", {}).get("size", 1) <= MAX_PODS:
        return ()
    detail = f"the product of replicas and worker replicas must not exceed {MAX_PODS}"
    return [invalid("replicas", replicas, detail)]


# ---------------------------------------------------------------------------------------- rollout


def _progress(new: Any, old: Any) -> Causes:
    """A rollout that may take nothing down needs room for something new."""
    replicas = new.get("replicas", 1)
    rolling = new.get("rolloutStrategy", {}).get("rollingUpdateConfiguration")
    if rolling is None or replicas <= 0:
        return ()
    down, more = rolling.get("maxUnavailable", 1), rolling.get("maxSurge", 0)
    if check_share(down, CREATED) or check_share(more, CREATED):
        return ()
    if _share(down, replicas, up=False) or _share(more, replicas, up=True):
        return ()
    field = "rolloutStrategy.rollingUpdateConfiguration.maxUnavailable"
    return [invalid(field, down, "must not be 0 when `maxSurge` is 0")]


def _share(part: int | str, whole: int, *, up: bool) -> int:
    """A number, or so many per cent of the whole, rounded up or down."""
    if isinstance(part, int):
        return part
    percent = int(part[:-1].lstrip("0") or 0)
    return (percent * whole + (99 if up else 0)) // 100


# -------------------------------------------------------------------------------------- subgroups


def _subgroups(new: Any, old: Any) -> Causes:
    """Groups are divided into equal parts; the leader may be one too many, or none of them."""
    policy = new.get("subGroupPolicy")
    if policy is None:
        return ()
    size, part = new.get("size", 1), policy.get("subGroupSize")
    if part is None:
        return [required(_SUBGROUP_SIZE)]
    if part < 1:
        return [invalid(_SUBGROUP_SIZE, part, "subGroupSize must be equal or greater than 1")]
    faults: list[str] = []
    if size % part and (size - 1) % part:
        faults.append("size or size - 1 must be divisible by subGroupSize")
    if size < part:
        faults.append("subGroupSize cannot be larger than size")
    if policy.get("subGroupPolicyType") == "LeaderExcluded" and (size - 1) % part:
        faults.append("size-1 must be divisible by subGroupSize when using LeaderExcluded")
    return [invalid(_SUBGROUP_SIZE, part, fault) for fault in faults]


def _subgroups_stay(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    after, before = (one.get("subGroupPolicy") for one in (new, old or {}))
    size, was = (None if one is None else one.get("subGroupSize") for one in (after, before))
    if before is None and after is not None:
        detail, shown = "cannot enable subGroupSize after the lws is already created", size
    elif after is None and before is not None:
        detail, shown = "cannot remove subGroupSize after enabled", was
    elif size != was:
        detail, shown = "field is immutable", size
    else:
        return ()
    return [invalid(_SUBGROUP_SIZE, shown, detail)]


def _topology_needs_subgroups(new: Any, old: Any) -> Causes:
    value = new["metadata"].get("annotations", {}).get(SUBGROUP_TOPOLOGY)
    group = new.get("spec", {}).get("leaderWorkerTemplate", {})
    if value is None or "subGroupPolicy" in group:
        return ()
    detail = "cannot have subgroup-exclusive-topology without subGroupSize set"
    return [invalid(f"metadata.annotations.{SUBGROUP_TOPOLOGY}", value, detail)]


# -------------------------------------------------------------------------------------- templates


def _templates(new: Any, old: Any) -> Causes:
    """What the pods are made of, with the volumes that each has of its own."""
    claims = [claim_name(template) for template in new.get("volumeClaimTemplates", ())]
    found: list[Cause] = []
    for field in _TEMPLATES:
        if field in new:
            template = with_claims(new[field], claims)
            found += under(field, [*POD_TEMPLATE_SPEC(template, CREATED), *_lasting(template)])
    return found


def _lasting(template: Object) -> list[Cause]:
    """Pods of a group serve until they are taken down."""
    policy = template.get("spec", {}).get("restartPolicy")
    known = ("Always",)
    return [] if policy in known else [unsupported("spec.restartPolicy", policy, known)]


def _distinct_claims(new: Any, old: Any) -> Causes:
    names = [claim_name(template) for template in new]
    return [duplicate(f"[{at}].metadata.name", names[at]) for at in again(names) if names[at]]


# ------------------------------------------------------------------------------------- scheduling


def _is_gang(scheduling: Object) -> bool:
    policy = scheduling.get("schedulingPolicy")
    return policy is None or ("gang" in policy and "basic" not in policy)


def _fits_group(new: Any, old: Any) -> Causes:
    """What may be said of how a group is scheduled, given the spec."""
    scheduling = new.get("scheduling")
    if scheduling is None:
        return ()
    found = list(_gang(new)) if _is_gang(scheduling) else list(check_single(scheduling))
    return [*under("scheduling", found), *_one_group(new), *_no_other_groups(new)]


def _gang(spec: Object) -> list[Cause]:
    found: list[Cause] = []
    size = spec.get("leaderWorkerTemplate", {}).get("size", 1)
    policy = spec["scheduling"].get("schedulingPolicy") or {}
    count = policy.get("gang", {}).get("minCount", size)
    if count != size:
        detail = f"must be equal to leaderWorkerTemplate.size ({size})"
        found.append(invalid("schedulingPolicy.gang.minCount", count, detail))
    if spec.get("startupPolicy") == "LeaderReady":
        detail = "a leader that must be ready first cannot be placed together with its workers"
        found.append(forbidden("schedulingPolicy.gang", detail))
    return found


def _one_group(spec: Object) -> list[Cause]:
    """All pods of a group have the priority of the group."""
    group = spec.get("leaderWorkerTemplate", {})
    leader, worker = (
        group[field].get("spec", {}).get("priorityClassName", "") if field in group else None
        for field in _TEMPLATES
    )
    if leader is None or leader == worker:
        return []
    field = "leaderWorkerTemplate.leaderTemplate.spec.priorityClassName"
    return [invalid(field, leader, f'must be that of the workers ("{worker}")')]


def _no_other_groups(spec: Object) -> list[Cause]:
    """Pods whose groups are made for them are in no other."""
    group = spec.get("leaderWorkerTemplate", {})
    return [
        forbidden(
            f"leaderWorkerTemplate.{field}.spec.schedulingGroup",
            "may not be set where spec.scheduling is",
        )
        for field in _TEMPLATES
        if "schedulingGroup" in group.get(field, {}).get("spec", {})
    ]


# -------------------------------------------------------------------------------- LeaderWorkerSet

_ROLLING = struct(
    ("maxUnavailable", present(check_share)),
    ("maxSurge", present(check_share)),
    ("partition", given(at_least(0))),
)
_SUBGROUP_POLICY = struct(
    ("subGroupPolicyType", given(one_of("LeaderWorker", "LeaderExcluded"))),
)
_GROUP = every(
    struct(
        ("size", given(_size)),
        ("restartPolicy", needed(one_of(*_RESTARTS))),
        ("subGroupPolicy", present(_SUBGROUP_POLICY)),
        ("volumeClaimTemplates", given(every(each(CLAIM_TEMPLATE), _distinct_claims))),
        ("persistentVolumeClaimRetentionPolicy",
         given(struct(("whenDeleted", _WHEN), ("whenScaled", _WHEN)))),
    ),
    _templates,
    _subgroups,
    _subgroups_stay,
)  # fmt: skip

_SPEC = every(
    struct(
        ("replicas", given(_replicas)),
        ("leaderWorkerTemplate", present(_GROUP)),
        (
            "rolloutStrategy",
            present(
                struct(
                    ("type", needed(one_of("RollingUpdate"))),
                    ("rollingUpdateConfiguration", present(_ROLLING)),
                )
            ),
        ),
        ("startupPolicy", given(one_of("LeaderCreated", "LeaderReady"))),
        (
            "networkConfig",
            given(struct(("subdomainPolicy", given(one_of("Shared", "UniquePerReplica"))))),
        ),
        ("scheduling", settled(BLOCKS)),
    ),
    _pods,
    _progress,
    check_variant,
    _fits_group,
)

LEADER_WORKER_SET: Check = every(struct(("spec", present(_SPEC))), _topology_needs_subgroups)

_NATURAL = given(at_least(0))
_STATUS = struct(
    ("conditions", check_conditions),
    *(
        (f, _NATURAL)
        for f in ("observedGeneration", "readyReplicas", "replicas", "updatedReplicas")
    ),
)
LEADER_WORKER_SET_STATUS: Check = struct(("status", present(_STATUS)))
