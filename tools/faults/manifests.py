"""Random pods, groups and nodes for `plan`.

Few different values for everything, so that labels match, ports conflict and domains fill up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from phalanx.api.meta import Key
from phalanx.api.wire import Object

HOSTNAME = "kubernetes.io/hostname"
#: The Workload of all trees.
WORKLOAD = "work"
GPU = "example.com/gpu"
#: Priority classes, their values, and whether they preempt.
HIGH, HIGHEST, LOW, NON_PREEMPTING = "high", "highest", "low", "polite"
PRIORITY_CLASSES: Mapping[str, Object] = {
    HIGH: {"value": 100},
    HIGHEST: {"value": 1000},
    LOW: {"value": -10},
    NON_PREEMPTING: {"value": 100, "preemptionPolicy": "Never"},
}
TAINTS = (
    {"key": "dedicated", "value": "train", "effect": "NoSchedule"},
    {"key": "broken", "value": "", "effect": "NoExecute"},
    {"key": "slow", "value": "", "effect": "PreferNoSchedule"},
)
NODE_LABELS: tuple[Mapping[str, str], ...] = (
    {"zone": "a"}, {"zone": "a", "disk": "ssd"}, {"zone": "b"}, {"zone": "b", "disk": "ssd"}, {},
)  # fmt: skip
ALLOCATABLES: tuple[Mapping[str, str], ...] = (
    {"cpu": "4", "memory": "8Gi", "pods": "10"},
    {"cpu": "4", "memory": "8Gi", "pods": "10"},
    {"cpu": "3", "memory": "4Gi", "pods": "6", GPU: "2"},
    {"cpu": "6", "memory": "8Gi", "pods": "4"},
)
POD_LABELS: tuple[Mapping[str, str], ...] = ({}, {"app": "web"}, {"app": "db"})
_REQUESTS: tuple[Mapping[str, str], ...] = (
    {}, {"cpu": "500m"}, {"cpu": "1"}, {"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}, {"cpu": "2"},
    {"cpu": "1", GPU: "1"},
)  # fmt: skip
_TOPOLOGY_KEYS = (HOSTNAME, "zone", "disk")
_SELECTORS: tuple[Object, ...] = (
    {"matchLabels": {"app": "web"}},
    {"matchLabels": {"app": "db"}},
    {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
)


def create_pod(
    rng: Random, key: Key, *, group: str = "", priority: str = "", gated: bool = False
) -> Object:
    """Return a pod, sometimes with constraints."""
    asks = rng.choice(_REQUESTS)
    resources = {"requests": asks, "limits": {k: v for k, v in asks.items() if k == GPU}}
    container: Object = {"name": "main", "image": "main", "resources": resources}
    spec: Object = {"containers": [container], "restartPolicy": "Never"}
    if rng.random() < _CONSTRAINT_SHARE:
        rng.choice(_CONSTRAINTS)(rng, spec)
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    if priority:
        spec["priorityClassName"] = priority
    if gated:
        spec["schedulingGates"] = [{"name": "later"}]
    return {"metadata": _meta(key, rng.choice(POD_LABELS)), "spec": spec}


def renamed_pod(manifest: Object, key: Key) -> Object:
    """Return the pod under another name."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": key.name}}


def create_group(
    key: Key, min_count: int | None, priority: str = "", *, topology: str = "", mode: str = "",
    parent: str = "", workload: str = WORKLOAD,
) -> Object:  # fmt: skip
    """Return a gang or a basic group, sometimes with a topology."""
    policy: Object = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    spec = {"schedulingPolicy": policy, **_group_fields(priority, topology, mode, parent=parent)}
    if parent:
        spec["workloadRef"] = _workload_ref(workload)
    return {"metadata": _meta(key, {}), "spec": spec}


def create_composite(
    key: Key, min_count: int | None, priority: str = "", *, topology: str = "", mode: str = "",
    parent: str = "",
) -> Object:  # fmt: skip
    """Return a composite group, gang or basic."""
    policy: Object = {"basic": {}} if min_count is None else {"gang": {"minGroupCount": min_count}}
    spec = {
        "schedulingPolicy": policy, "workloadRef": _workload_ref(WORKLOAD),
        **_group_fields(priority, topology, mode, parent=parent),
    }  # fmt: skip
    return {"metadata": _meta(key, {}), "spec": spec}


def _group_fields(priority: str, topology: str, mode: str, *, parent: str) -> Object:
    """Return the fields that both kinds of groups may have."""
    terms: Object = {"disruptionMode": {mode: {}}} if mode else {}
    if priority:
        terms["priorityClassName"] = priority
    if priority == NON_PREEMPTING:
        terms["preemptionPolicy"] = "Never"
    if topology:
        terms["schedulingConstraints"] = {"topology": [{"key": topology}]}
    if parent:
        terms["parentCompositePodGroupName"] = parent
    return terms


def _workload_ref(workload: str) -> Object:
    return {"workloadName": workload, "templateName": "main"}


def create_budget(rng: Random, key: Key) -> Object:
    """Return a PodDisruptionBudget."""
    spec = {"maxUnavailable": 1, "selector": rng.choice(_SELECTORS)}
    return {"metadata": _meta(key, {}), "spec": spec}


def create_node(rng: Random, name: str) -> Object:
    """Return a node, which starts as not ready."""
    allocatable = dict(rng.choice(ALLOCATABLES))
    labels = {HOSTNAME: name, **rng.choice(NODE_LABELS)}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": allocatable, "allocatable": allocatable},
    }


def _meta(key: Key, labels: Mapping[str, str]) -> Object:
    return {"name": key.name, "namespace": key.namespace, "labels": dict(labels)}


def _add_node_selector(rng: Random, spec: Object) -> None:
    spec["nodeSelector"] = rng.choice(({"disk": "ssd"}, {"zone": "a"}))


def _add_node_affinity(rng: Random, spec: Object) -> None:
    need = rng.choice((
        {"key": "zone", "operator": "In", "values": ["b"]},
        {"key": "disk", "operator": "DoesNotExist"},
        {"key": "zone", "operator": "Exists"},
    ))  # fmt: skip
    terms = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _add_node_preference(rng: Random, spec: Object) -> None:
    need = {"key": "disk", "operator": "In", "values": ["ssd"]}
    term = {"weight": rng.randint(1, 100), "preference": {"matchExpressions": [need]}}
    spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def _add_pod_affinity(rng: Random, spec: Object) -> None:
    """Add required or preferred pod affinity or anti-affinity."""
    term: Object = {
        "topologyKey": rng.choice(_TOPOLOGY_KEYS),
        "labelSelector": rng.choice(_SELECTORS),
    }
    if rng.random() < 0.3:
        term["namespaceSelector"] = rng.choice(({}, {"matchLabels": {"team": "a"}}))
    kind = rng.choice(("podAffinity", "podAntiAffinity", "podAntiAffinity"))
    if rng.random() < 0.7:
        spec["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    else:
        rather = [{"weight": rng.randint(1, 100), "podAffinityTerm": term}]
        spec["affinity"] = {kind: {"preferredDuringSchedulingIgnoredDuringExecution": rather}}


def _add_topology_spread(rng: Random, spec: Object) -> None:
    one = {
        "topologyKey": rng.choice(_TOPOLOGY_KEYS),
        "maxSkew": rng.randint(1, 2),
        "whenUnsatisfiable": rng.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": rng.choice(_SELECTORS),
    }
    spec["topologySpreadConstraints"] = [one]


def _add_toleration(rng: Random, spec: Object) -> None:
    spec["tolerations"] = [
        rng.choice((
            {"key": "dedicated", "operator": "Equal", "value": "train", "effect": "NoSchedule"},
            {"operator": "Exists"},
        ))
    ]  # fmt: skip


def _add_host_port(rng: Random, spec: Object) -> None:
    port = {"containerPort": 80, "hostPort": rng.choice((80, 81))}
    spec["containers"][0]["ports"] = [port]


#: The probability of constraints, and their kinds.
_CONSTRAINT_SHARE = 0.4
_CONSTRAINTS: tuple[Callable[[Random, Object], None], ...] = (
    _add_node_selector,
    _add_node_affinity,
    _add_node_preference,
    _add_pod_affinity,
    _add_pod_affinity,
    _add_pod_affinity,
    _add_topology_spread,
    _add_topology_spread,
    _add_toleration,
    _add_host_port,
)
