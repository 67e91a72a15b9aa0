"""Decisions that take more than placing: whom to evict, and trees of groups within places.

The pure core alone, on a cluster that is full, or divided into zones and racks; making it does not
count. Whole evictions, from the first pod created to the last one bound, are races (`races.py`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.decisions import set_apart
from benchmarks.result import Result
from benchmarks.setting import Setting
from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Requirements,
    SchedulingGroup,
)
from phalanx.api.meta import Key, Meta
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
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Placed, Preempting
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT

ROOM: dict[str, str | int | float] = {"cpu": "4", "memory": "32Gi", "pods": "110"}
REPEATS, ZONES, RACKS = 5, 5, 50
IMPORTANT = 1000


def section(setting: Setting) -> Iterator[Result]:
    """Evictions and trees, in processor time."""
    nodes = 500 if setting.is_quick else 5_000
    full, empty = _full(nodes), _cluster(nodes)
    evict = _median(lambda: _decided(full, _gang("high", 100, IMPORTANT), Preempting))
    yield Result(f"evict for 1 x 100, {nodes:,} nodes, {4 * nodes:,} pods", evict, "ms", 250)
    place = _median(lambda: _decided(empty, _tree(), Placed))
    yield Result(f"decide a tree of 8 x 64 in racks of a zone, {nodes:,} nodes", place, "ms")


def _median(run: Callable[[], float]) -> float:
    with set_apart():
        return statistics.median(run() for _ in range(REPEATS)) * 1000


def _decided(cache: Cache, entity: Entity, expected: type[Decision]) -> float:
    snapshot = cache.snapshot()
    begin = time.process_time()
    decision = decide(entity, snapshot, DEFAULT)
    seconds = time.process_time() - begin
    assert isinstance(decision, expected), decision
    return seconds


def _cluster(nodes: int) -> Cache:
    cache = Cache()
    for number in range(nodes):
        rack = number % RACKS
        labels = {"rack": f"rack-{rack}", "zone": f"zone-{rack % ZONES}"}
        meta = Meta(name=f"node-{number:06}", labels=labels)
        cache.node(meta.name, Node(meta, status=NodeStatus(allocatable=ROOM)))
    return cache


def _full(nodes: int) -> Cache:
    """Four pods of three low priorities on each node, which take all of it."""
    cache = _cluster(nodes)
    for number in range(4 * nodes):
        pod = _pod(f"low-{number}", "", 1 + number % 3, on=f"node-{number % nodes:06}")
        cache.pod(pod.metadata.key, pod)
    return cache


def _gang(name: str, size: int, priority: int = 0, *, parent: str = "", key: str = "") -> Entity:
    policy = SchedulingPolicy(gang=GangPolicy(size))
    spec = PodGroupSpec(
        scheduling_policy=policy, priority=priority, parent_composite_pod_group_name=parent,
        scheduling_constraints=_within(key),
    )  # fmt: skip
    pods = [_pod(f"{name}-{number}", name, priority) for number in range(size)]
    members = tuple(Member(pod, shape_of(pod)) for pod in pods)
    return Entity(Key("default", name), PodGroup(_meta(name), spec), members)


def _tree() -> Entity:
    """Eight gangs, each in a rack, all of them in one zone."""
    parts = tuple(_gang(f"part-{n}", 64, parent="tree", key="rack") for n in range(8))
    spec = CompositePodGroupSpec(
        scheduling_policy=CompositePolicy(gang=CompositeGangPolicy(8)),
        scheduling_constraints=_within("zone"),
    )
    members = tuple(member for part in parts for member in part.members)
    root = CompositePodGroup(_meta("tree"), spec)
    return Entity(Key("default", "tree"), root, members, parts=parts)


def _within(key: str) -> SchedulingConstraints | None:
    return SchedulingConstraints((TopologyConstraint(key),)) if key else None


def _meta(name: str) -> Meta:
    return Meta(name=name, namespace="default", uid=name)


def _pod(name: str, group: str, priority: int, on: str = "") -> Pod:
    needs = Requirements(requests={"cpu": "1", "memory": "100Mi"})
    spec = PodSpec(
        node_name=on, priority=priority,
        containers=(Container(name="main", image="pause", resources=needs),),
        scheduling_group=SchedulingGroup(pod_group_name=group) if group else None,
    )  # fmt: skip
    return Pod(_meta(name), spec, PodStatus(phase="Running" if on else "Pending"))
