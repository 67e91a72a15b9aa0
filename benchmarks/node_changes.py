"""Nodes that come and go, and pods that only one node takes: decisions in large clusters.

After a node is added or removed, the snapshot and the scores of known shapes are updated, not
computed anew. A pod that is pinned to a node, as every pod of a DaemonSet is, is decided by a look
at that node, however many others there are. Measured is CPU time: a change of one node with the
next decision about a gang of 8 that was decided before, and the decision about one pinned pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from benchmarks.decisions import PlacementCase, create_cluster, create_node, frozen_gc
from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import (
    Affinity,
    Container,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeTerm,
    Pod,
    PodSpec,
    ResourceRequirements,
)
from phalanx.api.meta import ObjectMeta, pod_ref
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.peer_constraints import HOSTNAME
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT_POLICY

SIZES = (5_000, 50_000)
#: Changes of nodes, and pinned pods; the median counts.
TIMES = 20
TARGET_MS = 5.0


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure at two sizes; the target is for the larger one."""
    for full in SIZES:
        nodes = setting.size(full)
        target = setting.target(TARGET_MS if full == SIZES[-1] else None)
        cache, (gang,) = create_cluster(PlacementCase(nodes, 1, 8, None))
        _decide(cache, gang)
        with frozen_gc():
            for what, change in (("added", _add_node), ("removed", _remove_node)):
                spent = [_measure(cache, gang, partial(change, cache, n)) for n in range(TIMES)]
                yield Result(f"node {what}, {nodes:,} nodes", median(spent), "ms", target)
            for how, pin in (("name", _pin_by_name), ("hostname label", _pin_by_label)):
                pods = [pin(number, nodes) for number in range(TIMES)]
                spent = [_measure(cache, one) for one in pods]
                name = f"pod pinned by {how}, {nodes:,} nodes"
                yield Result(name, median(spent), "ms", target)


def _measure(
    cache: SchedulerCache, entity: Entity, change: Callable[[], object] = lambda: None
) -> float:
    """Return the milliseconds of a change and the decision after it."""
    begin = time.process_time()
    change()
    _decide(cache, entity)
    return (time.process_time() - begin) * 1000


def _decide(cache: SchedulerCache, entity: Entity) -> None:
    decision = decide(entity, cache.snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Placed), decision


def _add_node(cache: SchedulerCache, number: int) -> None:
    node = create_node(number, "later")
    cache.update_node(node.metadata.name, node)


def _remove_node(cache: SchedulerCache, number: int) -> None:
    cache.update_node(create_node(number * 7).metadata.name, None)


def _pin_by_name(number: int, nodes: int) -> Entity:
    name = create_node(nodes - 1 - number).metadata.name
    field = NodeRequirement("metadata.name", "In", (name,))
    required = NodeSelector((NodeTerm(match_fields=(field,)),))
    return _entity(PodSpec(affinity=Affinity(NodeAffinity(required))), f"by-name-{number}")


def _pin_by_label(number: int, nodes: int) -> Entity:
    name = create_node(nodes - 1 - number).metadata.name
    return _entity(PodSpec(node_selector={HOSTNAME: name}), f"by-label-{number}")


def _entity(spec: PodSpec, name: str) -> Entity:
    needs = ResourceRequirements(requests={"cpu": "100m", "memory": "100Mi"})
    container = Container(name="main", image="agent", resources=needs)
    pod = Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name),
        spec=PodSpec(
            containers=(container,), node_selector=spec.node_selector, affinity=spec.affinity
        ),
    )
    return Entity(pod_ref(pod.metadata.key), None, (Member(pod, shape_of(pod)),))
