"""Nodes, pods, groups and clusters in one line each; a test states only what matters to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from phalanx.api.core import (
    Affinity,
    Container,
    ContainerPort,
    Gate,
    Node,
    NodeImage,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Requirements,
    SchedulingGroup,
    SpreadConstraint,
    Taint,
    Toleration,
)
from phalanx.api.meta import Key, Meta
from phalanx.api.scheduling import GangPolicy, PodGroup, PodGroupSpec, SchedulingPolicy
from phalanx.scheduler.cache import Cache
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.shape import shape_of

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
    room: Amounts | None = None,
    images: dict[str, int] | None = None,
    **amounts: str,
) -> Node:
    """A node of 4 CPU, 8Gi and 110 pods unless said otherwise."""
    allocatable: dict[str, str | int | float] = {"cpu": "4", "memory": "8Gi", "pods": 110}
    return Node(
        Meta(name=name, labels=labels or {}),
        NodeSpec(unschedulable=cordoned, taints=taints),
        NodeStatus(
            allocatable={**allocatable, **amounts, **(room or {})},
            images=tuple(NodeImage((name,), size) for name, size in (images or {}).items()),
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
    spreads: tuple[SpreadConstraint, ...] = (),
    ports: tuple[ContainerPort, ...] = (),
    image: str = "",
    asks: Amounts | None = None,
    **amounts: str,
) -> Pod:
    """A pod of one container that asks for these amounts, or for nothing."""
    requests = {**amounts, **(asks or {})}
    return Pod(
        Meta(
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
            scheduling_gates=tuple(Gate(gate) for gate in gates),
            containers=(
                Container(
                    image=image, resources=Requirements(requests=dict(requests)), ports=ports
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
    """The same pod under another name, or bound."""
    meta = replace(original.metadata, name=name, uid=uid or original.metadata.uid)
    return replace(original, metadata=meta, spec=replace(original.spec, node_name=on))


def gang(name: str, quorum: int, *, priority: int = 0) -> PodGroup:
    policy = SchedulingPolicy(gang=GangPolicy(quorum))
    spec = PodGroupSpec(scheduling_policy=policy, priority=priority)
    return PodGroup(Meta(name=name, namespace=NAMESPACE), spec)


def basic(name: str, *, priority: int = 0) -> PodGroup:
    spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(basic={}), priority=priority)
    return PodGroup(Meta(name=name, namespace=NAMESPACE), spec)


def cluster(nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> Cache:
    cache = Cache()
    for one in nodes:
        cache.node(one.metadata.name, one)
    for running in pods:
        cache.pod(running.metadata.key, running)
    return cache


def member(pod: Pod, attempts: int = 0, timestamp: float = 0.0) -> Member:
    return Member(pod, shape_of(pod), attempts, timestamp)


def entity(group: PodGroup | None, pods: Iterable[Pod], others: Iterable[Pod] = ()) -> Entity:
    """What the queue would hand to the cycle."""
    members = tuple(member(one) for one in pods)
    name = group.metadata.key if group else members[0].pod.metadata.key
    return Entity(name, group, members, tuple(others))


def alone(pod: Pod) -> Entity:
    return entity(None, [pod])
