"""Decisions about trees of groups: the time of a cycle, and its longest stretch without a yield.

A cycle shares its event loop with heartbeats and binding, so it yields after some work. The time of
the solver is not part of a stretch: it runs in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.decisions import frozen_gc
from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import ObjectMeta
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
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import run_cycle
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.solver import NO_SOLVER_ANSWER, SolverAnswer, SolverRequest

NAMESPACE, RACK, REPEATS = "default", "rack", 5
#: Targets in milliseconds: a decision, and a stretch without a yield.
TARGET, STRETCH_TARGET = 150.0, 20.0


class TreeCase(NamedTuple):
    """A tree of equal groups on equal nodes in racks."""

    name: str
    groups: int
    size: int
    #: The topology keys of the root and of its groups.
    root_key: str = ""
    group_key: str = ""
    #: The CPU requests of the members of a group, in turn.
    cpus: tuple[int, ...] = (2,)
    #: The CPU in use on every node, of 8.
    used: int = 0


TREE_CASES = (
    TreeCase("tree of 16 x 2 with a rack key", 16, 2, root_key=RACK),
    TreeCase("tree of 16 x 2, each with a rack key", 16, 2, group_key=RACK),
    TreeCase("tree of 16 x 2 with a rack key, all full", 16, 2, root_key=RACK, used=7),
    TreeCase("tree of 100 x 8 mixed", 100, 8, cpus=(1, 2, 3, 4)),
)
NODES, RACKS = 5_000, 500


class Measurement(NamedTuple):
    """A decision, its milliseconds, and those of its longest stretch without a yield."""

    decision: Decision
    total: float
    longest: float


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure trees on 5,000 nodes in 500 racks."""
    nodes, racks = setting.size(NODES), setting.size(RACKS)
    for case in TREE_CASES:
        cache, entity = create_tree(case, nodes, racks)
        with frozen_gc():
            runs = [measure_cycle(cache, entity) for _ in range(REPEATS)]
        assert all(isinstance(run.decision, Placed) is not bool(case.used) for run in runs)
        title = f"{case.name}, {racks} racks, {nodes:,} nodes"
        total, longest = min(run.total for run in runs), min(run.longest for run in runs)
        yield Result(title, total, "ms", setting.target(TARGET))
        yield Result("  longest stretch without a yield", longest, "ms", STRETCH_TARGET)


def measure_cycle(
    cache: SchedulerCache,
    entity: Entity,
    solver: Callable[[SolverRequest], SolverAnswer] = lambda _: NO_SOLVER_ANSWER,
) -> Measurement:
    """Run one cycle and measure it by process time."""
    cycle = run_cycle(entity, cache.snapshot(), DEFAULT_POLICY)
    total = longest = 0.0
    answer: SolverAnswer | None = None
    while True:
        begin = time.process_time()
        try:
            step = cycle.send(answer)
        except StopIteration as end:
            spent = (time.process_time() - begin) * 1000
            return Measurement(end.value, total + spent, max(longest, spent))
        spent = (time.process_time() - begin) * 1000
        total, longest = total + spent, max(longest, spent)
        answer = solver(step) if isinstance(step, SolverRequest) else None


def create_tree(case: TreeCase, nodes: int, racks: int) -> tuple[SchedulerCache, Entity]:
    """Return a cluster and the tree to place on it."""
    cache = SchedulerCache()
    for number in range(nodes):
        name = f"node-{number:06}"
        labels = {RACK: f"rack-{number % racks:04}"}
        status = NodeStatus(allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"})
        cache.update_node(name, Node(ObjectMeta(name=name, labels=labels), status=status))
        if case.used:
            running = _pod(f"running-{number}", "", case.used, node=name)
            cache.update_pod(running.metadata.key, running)
    children = tuple(_group(case, number) for number in range(case.groups))
    spec = CompositePodGroupSpec(
        scheduling_policy=CompositePolicy(gang=CompositeGangPolicy(case.groups)),
        scheduling_constraints=_constraints(case.root_key),
    )
    root = CompositePodGroup(ObjectMeta(name="tree", namespace=NAMESPACE), spec)
    members = tuple(member for child in children for member in child.members)
    cache.snapshot()
    return cache, Entity(group_ref(root), root, members, children=children)


def _group(case: TreeCase, number: int) -> Entity:
    name = f"group-{number:03}"
    spec = PodGroupSpec(
        scheduling_policy=SchedulingPolicy(gang=GangPolicy(case.size)),
        scheduling_constraints=_constraints(case.group_key),
        parent_composite_pod_group_name="tree",
    )
    group = PodGroup(ObjectMeta(name=name, namespace=NAMESPACE), spec)
    pods = [
        _pod(f"{name}-{i}", name, case.cpus[(number + i) % len(case.cpus)])
        for i in range(case.size)
    ]
    return Entity(group_ref(group), group, tuple(Member(pod, shape_of(pod)) for pod in pods))


def _pod(name: str, group: str, cpu: int, *, node: str = "") -> Pod:
    needs = ResourceRequirements(requests={"cpu": str(cpu)})
    spec = PodSpec(
        containers=(Container(name="main", image="pause", resources=needs),),
        scheduling_group=SchedulingGroup(pod_group_name=group) if group else None,
        node_name=node,
    )
    return Pod(metadata=ObjectMeta(name=name, namespace=NAMESPACE, uid=name), spec=spec)


def _constraints(key: str) -> SchedulingConstraints | None:
    return SchedulingConstraints((TopologyConstraint(key),)) if key else None
