"""Validation of LeaderWorkerSets: groups of one leader pod and its worker pods.

The number of groups and the templates may change; template changes roll out group by group. The
size of subgroups is immutable. Scheduling uses the building blocks of Jobs (`job_policies.py`), but
the default is a gang; `basic` schedules the pods one by one.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    unsupported,
)
from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    find_duplicate_values,
    if_present,
    mandatory,
    minimum,
    one_of,
    optional,
    struct,
)
from phalanx.api.validation.job_policies import (
    SCHEDULING_FIELDS,
    check_basic_disruption_mode,
    check_policy_variant_unchanged,
    immutable_presence,
)
from phalanx.api.validation.metadata import check_conditions
from phalanx.api.validation.pod_template import (
    POD_TEMPLATE_SPEC,
    VOLUME_CLAIM_TEMPLATE,
    add_claim_volumes,
    claim_template_name,
)
from phalanx.api.validation.policy import check_int_or_percent
from phalanx.api.wire import Object

MAX_REPLICAS = 1_000_000
MAX_PODS = 2**31 - 1
SUBGROUP_TOPOLOGY = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"

_TEMPLATES = ("leaderTemplate", "workerTemplate")
_RESTART_POLICIES = ("None", "RecreateGroupAfterStart", "RecreateGroupOnPodRestart")
_RETENTION_POLICY = optional(one_of("Delete", "Retain"))
_SUBGROUP_SIZE = "subGroupPolicy.subGroupSize"

# ---------------------------------------------------------------------------------------- numbers


def _check_replicas(new: Any, old: Any) -> Causes:
    if new < 0:
        return [invalid("", new, "replicas must be equal or greater than 0")]
    detail = f"replicas must be equal or less than {MAX_REPLICAS}"
    return [invalid("", new, detail)] if new > MAX_REPLICAS else ()


def _check_size(new: Any, old: Any) -> Causes:
    return () if new >= 1 else [invalid("", new, "size must be equal or greater than 1")]


def _check_pod_count(new: Any, old: Any) -> Causes:
    replicas = new.get("replicas", 1)
    if replicas * new.get("leaderWorkerTemplate", {}).get("size", 1) <= MAX_PODS:
        return ()
    detail = f"the product of replicas and worker replicas must not exceed {MAX_PODS}"
    return [invalid("replicas", replicas, detail)]


# ---------------------------------------------------------------------------------------- rollout


def _check_rollout_progress(new: Any, old: Any) -> Causes:
    """Refuse a rollout that may neither remove nor add a group."""
    replicas = new.get("replicas", 1)
    rolling = new.get("rolloutStrategy", {}).get("rollingUpdateConfiguration")
    if rolling is None or replicas <= 0:
        return ()
    down, more = rolling.get("maxUnavailable", 1), rolling.get("maxSurge", 0)
    if check_int_or_percent(down, CREATED) or check_int_or_percent(more, CREATED):
        return ()
    if resolve_int_or_percent(down, replicas, round_up=False) or resolve_int_or_percent(
        more, replicas, round_up=True
    ):
        return ()
    field = "rolloutStrategy.rollingUpdateConfiguration.maxUnavailable"
    return [invalid(field, down, "must not be 0 when `maxSurge` is 0")]


# -------------------------------------------------------------------------------------- subgroups


def _check_subgroups(new: Any, old: Any) -> Causes:
    """Require that subgroups divide the group evenly, with or without the leader."""
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


def _check_subgroups_immutable(new: Any, old: Any) -> Causes:
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


def _check_subgroup_topology(new: Any, old: Any) -> Causes:
    value = new["metadata"].get("annotations", {}).get(SUBGROUP_TOPOLOGY)
    group = new.get("spec", {}).get("leaderWorkerTemplate", {})
    if value is None or "subGroupPolicy" in group:
        return ()
    detail = "cannot have subgroup-exclusive-topology without subGroupSize set"
    return [invalid(f"metadata.annotations.{SUBGROUP_TOPOLOGY}", value, detail)]


# -------------------------------------------------------------------------------------- templates


def _check_templates(new: Any, old: Any) -> Causes:
    """Check leader and worker templates, with their volume claim templates."""
    claims = [claim_template_name(template) for template in new.get("volumeClaimTemplates", ())]
    found: list[Cause] = []
    for field in _TEMPLATES:
        if field in new:
            template = add_claim_volumes(new[field], claims)
            causes = list(POD_TEMPLATE_SPEC(template, CREATED))
            policy = template.get("spec", {}).get("restartPolicy")
            if policy != "Always":
                causes.append(unsupported("spec.restartPolicy", policy, ("Always",)))
            found += prefix_causes(field, causes)
    return found


def _check_unique_claims(new: Any, old: Any) -> Causes:
    names = [claim_template_name(template) for template in new]
    return [
        duplicate(f"[{at}].metadata.name", names[at])
        for at in find_duplicate_values(names)
        if names[at]
    ]


# ------------------------------------------------------------------------------------- scheduling


def _check_scheduling(new: Any, old: Any) -> Causes:
    """Check the scheduling of a group against the spec."""
    scheduling = new.get("scheduling")
    if scheduling is None:
        return ()
    policy = scheduling.get("schedulingPolicy")
    is_gang = policy is None or ("gang" in policy and "basic" not in policy)
    found = _check_gang(new) if is_gang else check_basic_disruption_mode(scheduling)
    return [
        *prefix_causes("scheduling", found),
        *_check_equal_priority(new),
        *_check_no_scheduling_group(new),
    ]


def _check_gang(spec: Object) -> list[Cause]:
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


def _check_equal_priority(spec: Object) -> list[Cause]:
    """Require one priority class for all pods of a group."""
    group = spec.get("leaderWorkerTemplate", {})
    leader, worker = (
        group[field].get("spec", {}).get("priorityClassName", "") if field in group else None
        for field in _TEMPLATES
    )
    if leader is None or leader == worker:
        return []
    field = "leaderWorkerTemplate.leaderTemplate.spec.priorityClassName"
    return [invalid(field, leader, f'must be that of the workers ("{worker}")')]


def _check_no_scheduling_group(spec: Object) -> list[Cause]:
    """Refuse `schedulingGroup` in pods whose groups are created for them."""
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

_ROLLING_UPDATE = struct(
    ("maxUnavailable", if_present(check_int_or_percent)),
    ("maxSurge", if_present(check_int_or_percent)),
    ("partition", optional(minimum(0))),
)
_SUBGROUP_POLICY = struct(
    ("subGroupPolicyType", optional(one_of("LeaderWorker", "LeaderExcluded"))),
)
_LEADER_WORKER_TEMPLATE = all_of(
    struct(
        ("size", optional(_check_size)),
        ("restartPolicy", mandatory(one_of(*_RESTART_POLICIES))),
        ("subGroupPolicy", if_present(_SUBGROUP_POLICY)),
        (
            "volumeClaimTemplates",
            optional(all_of(each(VOLUME_CLAIM_TEMPLATE), _check_unique_claims)),
        ),
        (
            "persistentVolumeClaimRetentionPolicy",
            optional(struct(("whenDeleted", _RETENTION_POLICY), ("whenScaled", _RETENTION_POLICY))),
        ),
    ),
    _check_templates,
    _check_subgroups,
    _check_subgroups_immutable,
)

_LEADER_WORKER_SET_SPEC = all_of(
    struct(
        ("replicas", optional(_check_replicas)),
        ("leaderWorkerTemplate", if_present(_LEADER_WORKER_TEMPLATE)),
        (
            "rolloutStrategy",
            if_present(
                struct(
                    ("type", mandatory(one_of("RollingUpdate"))),
                    ("rollingUpdateConfiguration", if_present(_ROLLING_UPDATE)),
                )
            ),
        ),
        ("startupPolicy", optional(one_of("LeaderCreated", "LeaderReady"))),
        (
            "networkConfig",
            optional(struct(("subdomainPolicy", optional(one_of("Shared", "UniquePerReplica"))))),
        ),
        ("scheduling", immutable_presence(SCHEDULING_FIELDS)),
    ),
    _check_pod_count,
    _check_rollout_progress,
    check_policy_variant_unchanged,
    _check_scheduling,
)

check_leader_worker_set: Check = all_of(
    struct(("spec", if_present(_LEADER_WORKER_SET_SPEC))), _check_subgroup_topology
)

_NON_NEGATIVE = optional(minimum(0))
_LEADER_WORKER_SET_STATUS = struct(
    ("conditions", check_conditions),
    *(
        (f, _NON_NEGATIVE)
        for f in ("observedGeneration", "readyReplicas", "replicas", "updatedReplicas")
    ),
)
check_leader_worker_set_status: Check = struct(("status", if_present(_LEADER_WORKER_SET_STATUS)))
