"""Builders of nodes, pods, groups, clusters and entities; a test states only what matters to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from phalanx.api.core import (
    Affinity,
    Container,
    ContainerImage,
    ContainerPort,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGroup,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from phalanx.api.meta import Key, ObjectMeta, pod_ref
from phalanx.api.scheduling import (
    CompositeGangPolicy,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositePolicy,
    DisruptionMode,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    SchedulingConstraints,
    SchedulingPolicy,
    TopologyConstraint,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.entity import Entity, Member

NAMESPACE = "default"
Amounts = Mapping[str, str | int | float]


def key(name: str) -> Key:
    return Key(NAMESPACE, name)


def node(
    name: str,
    labels: dict[str, str] | None = None,
    *,
    taints: tuple[Taint, ...] = (),
    cordoned: bool = False,
    allocatable: Amounts | None = None,
    images: dict[str, int] | None = None,
    **amounts: str,
) -> Node:
    """A node with 4 CPU, 8Gi of memory and 110 pods unless given otherwise."""
    defaults: dict[str, str | int | float] = {"cpu": "4", "memory": "8Gi", "pods": 110}
    return Node(
        ObjectMeta(name=name, labels=labels or {}),
        NodeSpec(unschedulable=cordoned, taints=taints),
        NodeStatus(
            allocatable={**defaults, **amounts, **(allocatable or {})},
            images=tuple(ContainerImage((name,), size) for name, size in (images or {}).items()),
        ),
    )


def pod(
    name: str,
    group: str = "",
    *,
    uid: str = "",
    on: str = "",
    phase: str = "Pending",
    deleting: bool = False,
    scheduler: str = "default-scheduler",
    priority: int = 0,
    preemption: str = "PreemptLowerPriority",
    gates: Iterable[str] = (),
    selector: dict[str, str] | None = None,
    tolerations: tuple[Toleration, ...] = (),
    labels: dict[str, str] | None = None,
    affinity: Affinity | None = None,
    spreads: tuple[TopologySpreadConstraint, ...] = (),
    ports: tuple[ContainerPort, ...] = (),
    image: str = "",
    requests: Amounts | None = None,
    **amounts: str,
) -> Pod:
    """A pod of one container that requests these amounts, or nothing."""
    all_requests = {**amounts, **(requests or {})}
    return Pod(
        ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=uid or f"uid-{name}",
            labels=labels or {},
            deletion_timestamp="2026-01-01T00:00:00Z" if deleting else "",
        ),
        PodSpec(
            node_name=on,
            scheduler_name=scheduler,
            scheduling_group=SchedulingGroup(group) if group else None,
            scheduling_gates=tuple(PodSchedulingGate(gate) for gate in gates),
            containers=(
                Container(
                    image=image,
                    resources=ResourceRequirements(requests=dict(all_requests)),
                    ports=ports,
                ),
            ),
            node_selector=selector or {},
            tolerations=tolerations,
            affinity=affinity,
            topology_spread_constraints=spreads,
            priority=priority,
            preemption_policy=preemption,
        ),
        PodStatus(phase=phase),
    )


def pod_like(original: Pod, name: str, *, uid: str = "", on: str = "") -> Pod:
    """A copy of a pod under another name, or bound."""
    meta = replace(original.metadata, name=name, uid=uid or original.metadata.uid)
    return replace(original, metadata=meta, spec=replace(original.spec, node_name=on))


def nominated(original: Pod, node: str) -> Pod:
    """A copy of a pod that is pending and nominated to a node."""
    return replace(
        original,
        spec=replace(original.spec, node_name=""),
        status=replace(original.status, nominated_node_name=node),
    )


def gang(
    name: str,
    quorum: int,
    *,
    priority: int = 0,
    parent: str = "",
    disrupted_as_unit: bool = False,
    topology: str = "",
) -> PodGroup:
    spec = PodGroupSpec(
        scheduling_policy=SchedulingPolicy(gang=GangPolicy(quorum)),
        priority=priority,
        parent_composite_pod_group_name=parent,
        disruption_mode=_mode(disrupted_as_unit),
        scheduling_constraints=_constraints(topology),
    )
    return PodGroup(ObjectMeta(name=name, namespace=NAMESPACE), spec)


def basic(name: str, *, priority: int = 0, parent: str = "", topology: str = "") -> PodGroup:
    spec = PodGroupSpec(
        scheduling_policy=SchedulingPolicy(basic={}),
        priority=priority,
        parent_composite_pod_group_name=parent,
        scheduling_constraints=_constraints(topology),
    )
    return PodGroup(ObjectMeta(name=name, namespace=NAMESPACE), spec)


def composite(
    name: str,
    quorum: int = 0,
    *,
    priority: int = 0,
    parent: str = "",
    disrupted_as_unit: bool = False,
    topology: str = "",
) -> CompositePodGroup:
    """A CompositePodGroup that needs so many groups; a basic one if the quorum is 0."""
    policy = CompositePolicy(gang=CompositeGangPolicy(quorum)) if quorum else CompositePolicy({})
    spec = CompositePodGroupSpec(
        scheduling_policy=policy,
        priority=priority,
        parent_composite_pod_group_name=parent,
        disruption_mode=_mode(disrupted_as_unit),
        scheduling_constraints=_constraints(topology),
    )
    return CompositePodGroup(ObjectMeta(name=name, namespace=NAMESPACE), spec)


def _mode(disrupted_as_unit: bool) -> DisruptionMode | None:
    return DisruptionMode(all={}) if disrupted_as_unit else None


def _constraints(topology: str) -> SchedulingConstraints | None:
    return SchedulingConstraints((TopologyConstraint(topology),)) if topology else None


def cluster(nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> SchedulerCache:
    cache = SchedulerCache()
    for one in nodes:
        cache.update_node(one.metadata.name, one)
    for running in pods:
        cache.update_pod(running.metadata.key, running)
    return cache


def member(pod: Pod, attempts: int = 0, timestamp: float = 0.0) -> Member:
    return Member(pod, shape_of(pod), attempts, timestamp)


def entity(group: PodGroup | None, pods: Iterable[Pod], others: Iterable[Pod] = ()) -> Entity:
    """The entity that the queue would pass to the cycle."""
    members = tuple(member(one) for one in pods)
    ref = group_ref(group) if group else pod_ref(members[0].pod.metadata.key)
    return Entity(ref, group, members, tuple(others))


def tree(group: CompositePodGroup, *parts: Entity) -> Entity:
    """A CompositePodGroup with its child groups."""
    members = tuple(one for part in parts for one in part.members)
    others = tuple(one for part in parts for one in part.other_members)
    return Entity(group_ref(group), group, members, others, children=parts)


def alone(pod: Pod) -> Entity:
    return entity(None, [pod])
