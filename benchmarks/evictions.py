"""Preemption and trees of groups in topology domains, decided by the pure core alone.

The cluster is full, or divided into zones and racks; creating it is not measured. Whole
preemptions, from the first created pod to the last binding, are in `gang_binding.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.decisions import frozen_gc
from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, POD_GROUP_KIND, ObjectMeta, Ref
from phalanx.api.scheduling import (
    CompositeGangPolicy,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositePolicy,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    SchedulingConstraints,
    SchedulingPolicy,
    TopologyConstraint,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT_POLICY

NODE_CAPACITY: dict[str, str | int | float] = {"cpu": "4", "memory": "32Gi", "pods": "110"}
REPEATS, ZONES, RACKS = 5, 5, 50
HIGH_PRIORITY = 1000


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure preemption and trees in CPU time."""
    nodes = 500 if setting.is_quick else 5_000
    full, empty = _full_cluster(nodes), _empty_cluster(nodes)
    evict = _measure_median(lambda: _decide(full, _gang("high", 100, HIGH_PRIORITY), Preempting))
    yield Result(f"evict for 1 x 100, {nodes:,} nodes, {4 * nodes:,} pods", evict, "ms", 250)
    crowded = _crowded_cluster(nodes)
    refused = _measure_median(lambda: _decide(crowded, _gang("low", 8, cpu="4"), Waiting))
    size = f"{nodes:,} nodes, {10 * nodes:,} pods"
    yield Result(f"refuse 1 x 8 without lower priorities, {size}", refused, "ms")
    evict = _measure_median(
        lambda: _decide(crowded, _gang("high", 8, HIGH_PRIORITY, cpu="4"), Preempting)
    )
    yield Result(f"evict for 1 x 8, {size}", evict, "ms", 150)
    place = _measure_median(lambda: _decide(empty, _tree(), Placed))
    yield Result(f"decide a tree of 8 x 64 in racks of a zone, {nodes:,} nodes", place, "ms")


def _measure_median(run: Callable[[], float]) -> float:
    with frozen_gc():
        return statistics.median(run() for _ in range(REPEATS)) * 1000


def _decide(cache: SchedulerCache, entity: Entity, expected: type[Decision]) -> float:
    snapshot = cache.snapshot()
    begin = time.process_time()
    decision = decide(entity, snapshot, DEFAULT_POLICY)
    seconds = time.process_time() - begin
    assert isinstance(decision, expected), decision
    return seconds


def _empty_cluster(nodes: int) -> SchedulerCache:
    cache = SchedulerCache()
    for number in range(nodes):
        rack = number % RACKS
        labels = {"rack": f"rack-{rack}", "zone": f"zone-{rack % ZONES}"}
        meta = ObjectMeta(name=f"node-{number:06}", labels=labels)
        cache.update_node(meta.name, Node(meta, status=NodeStatus(allocatable=NODE_CAPACITY)))
    return cache


def _full_cluster(nodes: int) -> SchedulerCache:
    """Return a full cluster: four pods of three low priorities per node."""
    cache = _empty_cluster(nodes)
    for number in range(4 * nodes):
        pod = _pod(f"low-{number}", "", 1 + number % 3, on=f"node-{number % nodes:06}")
        cache.update_pod(pod.metadata.key, pod)
    return cache


def _crowded_cluster(nodes: int) -> SchedulerCache:
    """Return a full cluster: ten pods of one low priority per node."""
    cache = _empty_cluster(nodes)
    for number in range(10 * nodes):
        on = f"node-{number % nodes:06}"
        pod = _pod(f"small-{number}", "", 0, on=on, cpu="400m")
        cache.update_pod(pod.metadata.key, pod)
    return cache


def _gang(
    name: str, size: int, priority: int = 0, *, parent: str = "", key: str = "", cpu: str = "1"
) -> Entity:
    policy = SchedulingPolicy(gang=GangPolicy(size))
    spec = PodGroupSpec(
        scheduling_policy=policy, priority=priority, parent_composite_pod_group_name=parent,
        scheduling_constraints=_topology_constraints(key),
    )  # fmt: skip
    pods = [_pod(f"{name}-{number}", name, priority, cpu=cpu) for number in range(size)]
    members = tuple(Member(pod, shape_of(pod)) for pod in pods)
    return Entity(Ref(POD_GROUP_KIND, "default", name), PodGroup(_meta(name), spec), members)


def _tree() -> Entity:
    """Return a tree of eight gangs, each in one rack, all in one zone."""
    parts = tuple(_gang(f"part-{n}", 64, parent="tree", key="rack") for n in range(8))
    spec = CompositePodGroupSpec(
        scheduling_policy=CompositePolicy(gang=CompositeGangPolicy(8)),
        scheduling_constraints=_topology_constraints("zone"),
    )
    members = tuple(member for part in parts for member in part.members)
    root = CompositePodGroup(_meta("tree"), spec)
    return Entity(Ref(COMPOSITE_POD_GROUP_KIND, "default", "tree"), root, members, children=parts)


def _topology_constraints(key: str) -> SchedulingConstraints | None:
    return SchedulingConstraints((TopologyConstraint(key),)) if key else None


def _meta(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="default", uid=name)


def _pod(name: str, group: str, priority: int, *, on: str = "", cpu: str = "1") -> Pod:
    needs = ResourceRequirements(requests={"cpu": cpu, "memory": "100Mi"})
    spec = PodSpec(
        node_name=on, priority=priority,
        containers=(Container(name="main", image="pause", resources=needs),),
        scheduling_group=SchedulingGroup(pod_group_name=group) if group else None,
    )  # fmt: skip
    return Pod(_meta(name), spec, PodStatus(phase="Running" if on else "Pending"))
