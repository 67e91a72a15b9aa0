"""Supposition: the same cluster, if something were otherwise. Nodes more, a node less, a quorum.

Each takes a Cluster and gives another; what cannot be supposed is an Absent with its sentence.
`phalanx what-if` puts them together and has `forecast.py` judge. Changes nothing that is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Node, NodeSpec, NodeStatus, Pod, PodStatus, Taint
from phalanx.api.meta import Key, Meta
from phalanx.api.scheduling import MEMBERS_TO_RUN, CompositePodGroup, PodGroup
from phalanx.scheduler.asking.additions import HOSTNAME, by_shape, node_shape
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.cluster.forest import Group


class Absent(NamedTuple):
    """What was named and is not there."""

    message: str


class Model(NamedTuple):
    """What new nodes are like."""

    room: Mapping[str, str]
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()


def model(cluster: Cluster, name: str = "") -> Model | Absent:
    """A node that is there, or else one of the sort that there is most of."""
    nodes = {node.metadata.name: node for node in cluster.nodes}
    if name and name not in nodes:
        return Absent(f"there is no node {name} that new ones could be like")
    if not nodes:
        return Absent("there is no node yet that new ones could be like; say --add-nodes N:cpu=8")
    most = max(by_shape(nodes.values()).values(), key=len)[0]
    shape = node_shape(nodes[name] if name else most)
    room = {what: f"{n}m" if what == "cpu" else str(n) for what, n in shape.room}
    return Model(room, dict(shape.labels), shape.taints)


def with_nodes(cluster: Cluster, count: int, like: Model) -> Cluster:
    """So many more nodes, empty and ready."""
    there = {node.metadata.name for node in cluster.nodes}
    names = (f"new-{n}" for n in range(len(there) + count))
    free = [name for name in names if name not in there][:count]
    return replace(cluster, nodes=[*cluster.nodes, *(_node(name, like) for name in free)])


def _node(name: str, like: Model) -> Node:
    return Node(
        Meta(name=name, uid=name, labels={**like.labels, HOSTNAME: name}),
        NodeSpec(taints=like.taints),
        NodeStatus(allocatable=dict(like.room)),
    )


def drained(cluster: Cluster, name: str) -> Cluster | Absent:
    """One node less. Its pods wait again if somebody would make them again, and are gone if not."""
    nodes = [node for node in cluster.nodes if node.metadata.name != name]
    if len(nodes) == len(list(cluster.nodes)):
        return Absent(f"there is no node {name} to drain; see kubectl get nodes")
    pods = [_driven_off(pod) if pod.node == name else pod for pod in cluster.pods]
    return replace(cluster, nodes=nodes, pods=[pod for pod in pods if pod is not None])


def _driven_off(pod: Pod) -> Pod | None:
    """What comes in place of a pod that was evicted."""
    meta = pod.metadata
    is_lost = pod.is_daemon or meta.deletion_timestamp
    if is_lost or not any(one.controller for one in meta.owner_references):
        return None
    return Pod(but(meta, uid=f"{meta.uid}-again"), but(pod.spec, node_name=""), PodStatus())


def with_quorum(cluster: Cluster, space: str, name: str, count: int) -> Cluster | Absent:
    """Another `minCount` for a gang, by its name, its Workload's, or that of what it was made for.

    For a gang of groups it is `minGroupCount`.
    """
    changed = [
        _needing(group, count) if _is_meant(group, space, name) else group
        for group in cluster.groups
    ]
    if all(new is old for new, old in zip(changed, cluster.groups, strict=True)):
        return Absent(f"there is no gang {Key(space, name)}; see phalanx queue")
    return replace(cluster, groups=changed)


def _is_meant(group: Group, space: str, name: str) -> bool:
    meta, ref = group.metadata, group.spec.workload_ref
    owners = [one.name for one in meta.owner_references if one.controller]
    names = (meta.name, ref.workload_name if ref else "", *owners)
    return meta.namespace == space and name in names


def _needing(group: Group, count: int) -> Group:
    policy = group.spec.scheduling_policy
    if isinstance(group, CompositePodGroup):
        if policy.gang is None:
            return group
        own = but(group.spec.scheduling_policy, gang=but(policy.gang, min_group_count=count))
        return but(group, spec=but(group.spec, scheduling_policy=own))
    return _gang_of(group, count)


def _gang_of(group: PodGroup, count: int) -> PodGroup:
    policy = group.spec.scheduling_policy
    if policy.gang is None:
        return group
    notes = {k: v for k, v in group.metadata.annotations.items() if k != MEMBERS_TO_RUN}
    own = but(policy, gang=but(policy.gang, min_count=count))
    meta = but(group.metadata, annotations=notes)
    return but(group, metadata=meta, spec=but(group.spec, scheduling_policy=own))
