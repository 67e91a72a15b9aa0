"""The StatefulSets of the leaders and of the workers of one leader, and the headless Services.

    leaders     StatefulSet llm, owned by the LeaderWorkerSet
    workers     StatefulSet llm-0, owned by the pod llm-0: the workers go with their leader
    Service     llm, owned by the LeaderWorkerSet; or llm-0, owned by the pod llm-0

What differs between the pods of one StatefulSet is added when they are created
(`server/leader_worker_set_pods.py`).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec

from phalanx.api.apps import StatefulSet
from phalanx.api.core import Pod
from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.kinds import LEADER_WORKER_SET, POD, STATEFUL_SET
from phalanx.api.leader_worker_sets import (
    EXCLUSIVE_TOPOLOGY_ANNOTATION,
    GROUP_INDEX_LABEL,
    GROUP_KEY_LABEL,
    LEADER_INDEX,
    LEADER_NAME_ANNOTATION,
    LEADER_TPU_ANNOTATION,
    LWS_REVISION_LABEL,
    NAME_LABEL,
    REPLICAS_ANNOTATION,
    SIZE_ANNOTATION,
    SUBDOMAIN_POLICY_ANNOTATION,
    SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION,
    SUBGROUP_POLICY_ANNOTATION,
    SUBGROUP_SIZE_ANNOTATION,
    UNIQUE_PER_REPLICA,
    WORKER_INDEX_LABEL,
    WORKLOAD_NAME_ANNOTATION,
    LeaderWorkerSet,
    requests_tpus,
)
from phalanx.api.wire import Object
from phalanx.controllers.leader_worker_sets.revisions import revision_key
from phalanx.controllers.leader_worker_sets.rollout import RolloutStep
from phalanx.controllers.pod_ownership import controller_reference
from phalanx.controllers.reconcile_loop import Patch


def group_size(lws: LeaderWorkerSet) -> int:
    """Return the number of pods of a group, with the leader."""
    size: int = lws.spec.leader_worker_template.get("size", 1)
    return size


def has_own_subdomain(lws: LeaderWorkerSet) -> bool:
    """Whether each group has a Service of its own."""
    return (lws.spec.network_config or {}).get("subdomainPolicy") == UNIQUE_PER_REPLICA


# ---- StatefulSets --------------------------------------------------------------------------------


def build_leader_set(
    lws: LeaderWorkerSet, revision: str, step: RolloutStep, *, workload: str
) -> Object:
    """Build the StatefulSet of the leaders; `workload` is the prefix of the names of groups."""
    meta, group = lws.metadata, lws.spec.leader_worker_template
    labels = {NAME_LABEL: meta.name, LWS_REVISION_LABEL: revision}
    annotations = _pod_annotations(lws, workload)
    if policy := group.get("subGroupPolicy"):
        kind = policy.get("subGroupPolicyType", "LeaderWorker")
        annotations[SUBGROUP_POLICY_ANNOTATION] = kind
    if has_own_subdomain(lws):
        annotations[SUBDOMAIN_POLICY_ANNOTATION] = UNIQUE_PER_REPLICA
    template = group.get("leaderTemplate") or group.get("workerTemplate") or {}
    leader_labels = {WORKER_INDEX_LABEL: LEADER_INDEX, NAME_LABEL: meta.name}
    strategy = lws.spec.rollout_strategy
    # The bound of the StatefulSet must allow one pod; its partition sets the pace.
    share = strategy.rolling_update_configuration.max_unavailable
    allows_pod = resolve_int_or_percent(share, lws.spec.replicas, round_up=False)
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": {REPLICAS_ANNOTATION: str(lws.spec.replicas)},
            "ownerReferences": [controller_reference(LEADER_WORKER_SET, meta)],
        },
        "spec": {
            "serviceName": meta.name,
            "replicas": step.replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": leader_labels},
            "template": _build_template(template, {**labels, **leader_labels}, annotations),
            "updateStrategy": {
                "type": strategy.type,
                "rollingUpdate": {
                    "maxUnavailable": share if allows_pod else 1,
                    "partition": step.partition,
                },
            },
            **_claim_fields(lws),
        },
    }


def build_worker_set(
    lws: LeaderWorkerSet, leader: Pod, *, workload: str, node_selector: dict[str, str]
) -> Object:
    """Build the StatefulSet of the workers of a leader; `lws` has the template of the leader."""
    meta, group = leader.metadata, lws.spec.leader_worker_template
    selector = {
        NAME_LABEL: lws.metadata.name,
        GROUP_INDEX_LABEL: meta.labels.get(GROUP_INDEX_LABEL, ""),
        GROUP_KEY_LABEL: meta.labels.get(GROUP_KEY_LABEL, ""),
    }
    labels = {**selector, LWS_REVISION_LABEL: revision_key(meta)}
    annotations = {**_pod_annotations(lws, workload), LEADER_NAME_ANNOTATION: meta.name}
    leader_template = group.get("leaderTemplate") or group.get("workerTemplate") or {}
    if requests_tpus(leader_template.get("spec") or {}):
        annotations[LEADER_TPU_ANNOTATION] = "true"
    template = _build_template(group.get("workerTemplate") or {}, labels, annotations)
    if node_selector:
        spec = template["spec"]
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **node_selector}
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": labels,
            "ownerReferences": [controller_reference(POD, meta)],
        },
        "spec": {
            "serviceName": meta.name if has_own_subdomain(lws) else lws.metadata.name,
            "replicas": group_size(lws) - 1,
            "podManagementPolicy": "Parallel",
            "ordinals": {"start": 1},
            "selector": {"matchLabels": selector},
            "template": template,
            **_claim_fields(lws),
        },
    }


def _pod_annotations(lws: LeaderWorkerSet, workload: str) -> dict[str, str]:
    set_annotations, group = lws.metadata.annotations, lws.spec.leader_worker_template
    annotations = {SIZE_ANNOTATION: str(group_size(lws))}
    if workload:
        annotations[WORKLOAD_NAME_ANNOTATION] = workload
    copied = [EXCLUSIVE_TOPOLOGY_ANNOTATION]
    if policy := group.get("subGroupPolicy"):
        annotations[SUBGROUP_SIZE_ANNOTATION] = str(policy.get("subGroupSize", 1))
        copied.append(SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION)
    return annotations | {key: set_annotations[key] for key in copied if set_annotations.get(key)}


def _build_template(
    template: Object, labels: dict[str, str], annotations: dict[str, str]
) -> dict[str, Any]:
    # A copy: the receiver of a request may change its object.
    built = deepcopy(template)
    meta = built.setdefault("metadata", {})
    meta["labels"] = {**(meta.get("labels") or {}), **labels}
    meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
    return built


def _claim_fields(lws: LeaderWorkerSet) -> Object:
    group = lws.spec.leader_worker_template
    fields = ("volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy")
    return {field: deepcopy(group[field]) for field in fields if group.get(field)}


def plan_leader_set_change(leaders: StatefulSet, wanted: Object) -> list[Patch]:
    """Plan the patch that gives the StatefulSet of the leaders the wanted fields."""
    meta, spec = leaders.metadata, leaders.spec
    rolling = spec.update_strategy.rolling_update
    current: Object = {
        "metadata": {"labels": meta.labels, "annotations": meta.annotations},
        "spec": {
            "replicas": spec.replicas,
            "template": spec.template,
            "updateStrategy": {
                "type": spec.update_strategy.type,
                "rollingUpdate": {
                    "maxUnavailable": rolling.max_unavailable,
                    "partition": rolling.partition,
                },
            },
            "persistentVolumeClaimRetentionPolicy": msgspec.to_builtins(
                spec.persistent_volume_claim_retention_policy
            ),
            "volumeClaimTemplates": list(spec.volume_claim_templates),
        },
    }
    fields = {
        part: {key: value for key, value in wanted[part].items() if key in current[part]}
        for part in current
    }
    if contains_fields(current, fields):
        return []
    change = {part: _difference(current[part], fields[part]) for part in current}
    # Removed fields of a template are removed; claim templates only by the user.
    if "template" in change["spec"]:
        change["spec"]["template"] = merge_difference(spec.template, fields["spec"]["template"])
    precondition = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change["metadata"] = {**change["metadata"], **precondition}
    return [Patch(STATEFUL_SET, meta.key, change)]


def _difference(current: Object, wanted: Object) -> Object:
    """The wanted fields that the current object does not have."""
    return {
        key: value for key, value in wanted.items() if not contains_fields(current.get(key), value)
    }


def contains_fields(stored: Any, wanted: Any) -> bool:
    """Whether a stored value has all wanted fields; the server adds defaults to it."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(
            contains_fields(stored.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(stored, list | tuple)
            and len(stored) == len(wanted)
            and all(map(contains_fields, stored, wanted))
        )
    return bool(stored == wanted)


def merge_difference(old: Object, new: Object) -> Object:
    """Return the merge patch from one object to another, with null for removed fields."""
    change: Object = dict.fromkeys(key for key in old if key not in new)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := merge_difference(before, value):
                change[key] = inner
        elif before != value:
            change[key] = value
    return change


# ---- Services ------------------------------------------------------------------------------------


def build_service(lws: LeaderWorkerSet, leader: Pod | None) -> Object:
    """Build the headless Service of all groups, or of the group of one leader."""
    selector = {NAME_LABEL: lws.metadata.name}
    owner = controller_reference(LEADER_WORKER_SET, lws.metadata)
    name = lws.metadata.name
    if leader is not None:
        selector[GROUP_INDEX_LABEL] = leader.metadata.labels.get(GROUP_INDEX_LABEL, "")
        owner, name = controller_reference(POD, leader.metadata), leader.metadata.name
    return {
        "metadata": {
            "name": name,
            "namespace": lws.metadata.namespace,
            "labels": {NAME_LABEL: lws.metadata.name},
            "ownerReferences": [owner],
        },
        "spec": {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
    }
