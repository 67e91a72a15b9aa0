"""Exact placement: a gang of different members on nearly full nodes, solved or refuted.

Greedy placement fails for such a gang. The whole decision is measured: greedy placement, other
orders, moves, and the exact solver. The free resources of the nodes equal the requests of the gang
in one distribution or, to be refuted, lack a little of one resource.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import (
    Affinity,
    Container,
    Node,
    NodeStatus,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import ObjectMeta, pod_group_ref
from phalanx.api.scheduling import GangPolicy, PodGroup, PodGroupSpec, SchedulingPolicy
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import UNDECIDED, Decision, Placed, Waiting
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT_POLICY

PODS, NODES, SHAPES, SEEDS = 64, 200, 8, range(8)
#: Target in milliseconds for one decision.
TARGET = 500.0
HOST = "kubernetes.io/hostname"
RESOURCES = (("cpu", "00m"), ("memory", "00Mi"), ("example.com/gpu", ""), ("example.com/nic", ""))
#: The number of pod shapes with anti-affinity to each other.
ANTI_AFFINITY = 2

Amounts = list[int]


class TightPlacement(NamedTuple):
    """Requests per shape, the shape of each member, and free resources per node."""

    shapes: list[Amounts]
    chosen: list[int]
    free: list[Amounts]


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure a gang that just fits, and one that just does not."""
    for name, missing in (("solved", 0), ("refuted", 4)):
        decided = [_decide(create_tight_placement(seed, missing)) for seed in SEEDS]
        undecided = sum(not _is_known(decision) for decision, _ in decided)
        times = [seconds * 1000 for _, seconds in decided]
        title = f"{PODS} mixed pods on {NODES} nearly full nodes, {name}"
        beside = {"worst ms": max(times), "undecided": float(undecided)}
        yield Result(title, statistics.median(times), "ms", setting.target(TARGET), beside=beside)


def create_tight_placement(seed: int, missing: int) -> TightPlacement:
    """Return free resources that fit a random distribution of a gang exactly, minus a little."""
    draw = Random(seed)
    sorts = [
        [
            draw.choice(sizes)
            for sizes in ((1, 2, 3, 5, 7), (1, 2, 4, 6, 9), (0, 0, 1, 2), (0, 1, 3))
        ]
        for _ in range(SHAPES)
    ]
    chosen = [number % SHAPES for number in range(PODS)]
    free = [[0, 0, 0, 0] for _ in range(NODES)]
    shy: set[int] = set()
    for sort in chosen:
        home = draw.choice([n for n in range(NODES // 3) if sort >= ANTI_AFFINITY or n not in shy])
        shy |= {home} if sort < ANTI_AFFINITY else set()
        free[home] = [have + more for have, more in zip(free[home], sorts[sort], strict=True)]
    for number, amounts in enumerate(free):
        if not any(amounts):
            free[number] = [max(amount - 1, 0) for amount in draw.choice(sorts)]
    for amounts in sorted(free, key=lambda amounts: amounts[0], reverse=True)[:missing]:
        amounts[0] -= 1
    return TightPlacement(sorts, chosen, free)


def _decide(one: TightPlacement) -> tuple[Decision, float]:
    cache, members = SchedulerCache(), []
    for number, amounts in enumerate(one.free):
        name = f"node-{number:03}"
        status = NodeStatus(allocatable={**_amounts(amounts), "pods": 110})
        cache.update_node(name, Node(ObjectMeta(name=name, labels={HOST: name}), status=status))
    for number, sort in enumerate(one.chosen):
        pod = _pod(number, one.shapes[sort], is_shy=sort < ANTI_AFFINITY)
        members.append(Member(pod, shape_of(pod)))
    spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(PODS)))
    group = PodGroup(ObjectMeta(name="gang", namespace="default"), spec)
    entity, snapshot, solver = (
        Entity(pod_group_ref(group.metadata.key), group, tuple(members)),
        cache.snapshot(),
        HighsSolver(),
    )
    begin = time.process_time()
    decision = decide(entity, snapshot, DEFAULT_POLICY, solver=solver)
    return decision, time.process_time() - begin


def _pod(number: int, amounts: Amounts, *, is_shy: bool) -> Pod:
    term = PodAffinityTerm(HOST, {"matchLabels": {"shy": "yes"}})
    requests = ResourceRequirements(requests=_amounts(amounts))
    spec = PodSpec(
        containers=(Container(name="main", image="pause", resources=requests),),
        scheduling_group=SchedulingGroup("gang"),
        affinity=Affinity(pod_anti_affinity=PodAffinity((term,))) if is_shy else None,
    )
    labels = {"shy": "yes"} if is_shy else {}
    return Pod(
        ObjectMeta(name=f"p{number}", namespace="default", uid=f"{number}", labels=labels), spec
    )


def _amounts(amounts: Amounts) -> dict[str, str | int | float]:
    return {
        name: f"{amount}{unit}"
        for amount, (name, unit) in zip(amounts, RESOURCES, strict=True)
        if amount
    }


def _is_known(decision: Decision) -> bool:
    return isinstance(decision, Placed) or (
        isinstance(decision, Waiting) and decision.reason != UNDECIDED
    )
