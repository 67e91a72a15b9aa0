"""Pods, groups and nodes of every sort, drawn by lot: what `plan` has people create.

Few values for everything, so that things meet: labels that match, ports that clash, domains that
fill up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from phalanx.api.meta import Key
from phalanx.api.wire import Object

HOSTNAME = "kubernetes.io/hostname"
#: The Workload that trees are made of.
WORKLOAD = "work"
GPU = "example.com/gpu"
#: The priority classes beside none: what they are worth, and whether others make way for them.
HIGH, HIGHEST, LOW, POLITE = "high", "highest", "low", "polite"
CLASSES: Mapping[str, Object] = {
    HIGH: {"value": 100},
    HIGHEST: {"value": 1000},
    LOW: {"value": -10},
    POLITE: {"value": 100, "preemptionPolicy": "Never"},
}
TAINTS = (
    {"key": "dedicated", "value": "train", "effect": "NoSchedule"},
    {"key": "broken", "value": "", "effect": "NoExecute"},
    {"key": "slow", "value": "", "effect": "PreferNoSchedule"},
)
NODE_LABELS: tuple[Mapping[str, str], ...] = (
    {"zone": "a"}, {"zone": "a", "disk": "ssd"}, {"zone": "b"}, {"zone": "b", "disk": "ssd"}, {},
)  # fmt: skip
ROOMS: tuple[Mapping[str, str], ...] = (
    {"cpu": "4", "memory": "8Gi", "pods": "10"},
    {"cpu": "4", "memory": "8Gi", "pods": "10"},
    {"cpu": "3", "memory": "4Gi", "pods": "6", GPU: "2"},
    {"cpu": "6", "memory": "8Gi", "pods": "4"},
)
POD_LABELS: tuple[Mapping[str, str], ...] = ({}, {"app": "web"}, {"app": "db"})
_ASKS: tuple[Mapping[str, str], ...] = (
    {}, {"cpu": "500m"}, {"cpu": "1"}, {"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}, {"cpu": "2"},
    {"cpu": "1", GPU: "1"},
)  # fmt: skip
_KEYS = (HOSTNAME, "zone", "disk")
_SELECTORS: tuple[Object, ...] = (
    {"matchLabels": {"app": "web"}},
    {"matchLabels": {"app": "db"}},
    {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
)


def pod(
    lot: Random, key: Key, *, group: str = "", priority: str = "", gated: bool = False
) -> Object:
    """A pod that asks for something, and now and then for something special."""
    asks = lot.choice(_ASKS)
    resources = {"requests": asks, "limits": {k: v for k, v in asks.items() if k == GPU}}
    container: Object = {"name": "main", "image": "main", "resources": resources}
    spec: Object = {"containers": [container], "restartPolicy": "Never"}
    if lot.random() < _SPECIAL:
        lot.choice(_WISHES)(lot, spec)
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    if priority:
        spec["priorityClassName"] = priority
    if gated:
        spec["schedulingGates"] = [{"name": "later"}]
    return {"metadata": _meta(key, lot.choice(POD_LABELS)), "spec": spec}


def named(manifest: Object, key: Key) -> Object:
    """The same pod under another name."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": key.name}}


def group(
    key: Key, quorum: int | None, priority: str = "", topology: str = "", *, mode: str = "",
    parent: str = "", workload: str = WORKLOAD,
) -> Object:  # fmt: skip
    """A gang that needs so many, or a basic group; perhaps all in one domain of a topology."""
    policy: Object = {"basic": {}} if quorum is None else {"gang": {"minCount": quorum}}
    spec = {"schedulingPolicy": policy, **_terms(priority, topology, mode, parent)}
    if parent:
        spec["workloadRef"] = _made_of(workload)
    return {"metadata": _meta(key, {}), "spec": spec}


def composite(
    key: Key, quorum: int | None, priority: str = "", topology: str = "", *, mode: str = "",
    parent: str = "",
) -> Object:  # fmt: skip
    """A group of groups that needs so many of them, or takes what fits."""
    policy: Object = {"basic": {}} if quorum is None else {"gang": {"minGroupCount": quorum}}
    spec = {
        "schedulingPolicy": policy, "workloadRef": _made_of(WORKLOAD),
        **_terms(priority, topology, mode, parent),
    }  # fmt: skip
    return {"metadata": _meta(key, {}), "spec": spec}


def _terms(priority: str, topology: str, mode: str, parent: str) -> Object:
    """What both sorts of groups may ask for."""
    terms: Object = {"disruptionMode": {mode: {}}} if mode else {}
    if priority:
        terms["priorityClassName"] = priority
    if priority == POLITE:
        terms["preemptionPolicy"] = "Never"
    if topology:
        terms["schedulingConstraints"] = {"topology": [{"key": topology}]}
    if parent:
        terms["parentCompositePodGroupName"] = parent
    return terms


def _made_of(workload: str) -> Object:
    return {"workloadName": workload, "templateName": "main"}


def budget(lot: Random, key: Key) -> Object:
    """A disruption budget over some pods."""
    spec = {"maxUnavailable": 1, "selector": lot.choice(_SELECTORS)}
    return {"metadata": _meta(key, {}), "spec": spec}


def node(lot: Random, name: str) -> Object:
    """A node, which others come to know as unready first."""
    room = dict(lot.choice(ROOMS))
    labels = {HOSTNAME: name, **lot.choice(NODE_LABELS)}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room},
    }


def _meta(key: Key, labels: Mapping[str, str]) -> Object:
    return {"name": key.name, "namespace": key.namespace, "labels": dict(labels)}


def _selector(lot: Random, spec: Object) -> None:
    spec["nodeSelector"] = lot.choice(({"disk": "ssd"}, {"zone": "a"}))


def _node_affinity(lot: Random, spec: Object) -> None:
    need = lot.choice((
        {"key": "zone", "operator": "In", "values": ["b"]},
        {"key": "disk", "operator": "DoesNotExist"},
        {"key": "zone", "operator": "Exists"},
    ))  # fmt: skip
    terms = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _preference(lot: Random, spec: Object) -> None:
    need = {"key": "disk", "operator": "In", "values": ["ssd"]}
    term = {"weight": lot.randint(1, 100), "preference": {"matchExpressions": [need]}}
    spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def _company(lot: Random, spec: Object) -> None:
    """Near some pods, or apart from some, for sure or rather."""
    term: Object = {"topologyKey": lot.choice(_KEYS), "labelSelector": lot.choice(_SELECTORS)}
    if lot.random() < 0.3:
        term["namespaceSelector"] = lot.choice(({}, {"matchLabels": {"team": "a"}}))
    kind = lot.choice(("podAffinity", "podAntiAffinity", "podAntiAffinity"))
    if lot.random() < 0.7:
        spec["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    else:
        rather = [{"weight": lot.randint(1, 100), "podAffinityTerm": term}]
        spec["affinity"] = {kind: {"preferredDuringSchedulingIgnoredDuringExecution": rather}}


def _spread(lot: Random, spec: Object) -> None:
    one = {
        "topologyKey": lot.choice(_KEYS),
        "maxSkew": lot.randint(1, 2),
        "whenUnsatisfiable": lot.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": lot.choice(_SELECTORS),
    }
    spec["topologySpreadConstraints"] = [one]


def _toleration(lot: Random, spec: Object) -> None:
    spec["tolerations"] = [
        lot.choice((
            {"key": "dedicated", "operator": "Equal", "value": "train", "effect": "NoSchedule"},
            {"operator": "Exists"},
        ))
    ]  # fmt: skip


def _port(lot: Random, spec: Object) -> None:
    port = {"containerPort": 80, "hostPort": lot.choice((80, 81))}
    spec["containers"][0]["ports"] = [port]


#: How often a pod asks for something special, and for what.
_SPECIAL = 0.4
_WISHES: tuple[Callable[[Random, Object], None], ...] = (
    _selector, _node_affinity, _preference, _company, _company, _company, _spread, _spread,
    _toleration, _port,
)  # fmt: skip
