"""Decisions alone: what the pure core needs to place gangs, with no server around it.

Times `decide` and bringing the snapshot up to date, on a cluster that is seen for the first time;
making pods and nodes does not count.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks.result import Result
from benchmarks.setting import Setting
from phalanx.api.core import (
    Affinity,
    Container,
    Node,
    NodeStatus,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Requirements,
    SchedulingGroup,
    SpreadConstraint,
    WeightedPodAffinityTerm,
)
from phalanx.api.meta import Condition, Meta
from phalanx.api.scheduling import GangPolicy, PodGroup, PodGroupSpec, SchedulingPolicy
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.forest import name_of
from phalanx.scheduler.cluster.peers import HOSTNAME, ZONE
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT

ROOM: dict[str, str | int | float] = {"cpu": "4", "memory": "32Gi", "pods": "110"}
ZONES = 50
CROWD = {"app": "crowd"}
ALL_OF_THEM = {"matchLabels": CROWD}
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Wish:
    """What the pods of a gang ask of one another."""

    name: str
    spreads: tuple[SpreadConstraint, ...] = ()
    affinity: Affinity | None = None


def _spread(key: str, how: str) -> SpreadConstraint:
    return SpreadConstraint(key, how, label_selector=ALL_OF_THEM)


_NOT_HERE = PodAffinityTerm(HOSTNAME, ALL_OF_THEM)
_SAME_ZONE = WeightedPodAffinityTerm(10, PodAffinityTerm(ZONE, ALL_OF_THEM))

NOTHING = Wish("")
EVEN = Wish(", even over zones", (_spread(ZONE, "DoNotSchedule"),))
RATHER_EVEN = Wish(
    ", rather even", (_spread(ZONE, "ScheduleAnyway"), _spread(HOSTNAME, "ScheduleAnyway"))
)
APART = Wish(", one per node", affinity=Affinity(None, None, PodAffinity((_NOT_HERE,))))
TOGETHER = Wish(", rather near", affinity=Affinity(None, PodAffinity((), (_SAME_ZONE,))))


@dataclass(frozen=True, slots=True)
class Puzzle:
    """So many gangs on so many nodes; `shapes` is in how many ways the pods of a gang differ."""

    nodes: int
    gangs: int
    size: int
    target_ms: float | None
    shapes: int = 1
    wish: Wish = NOTHING

    @property
    def name(self) -> str:
        """What is decided."""
        shapes = f" of {self.shapes} shapes" if self.shapes > 1 else ""
        sort = f"{shapes}{self.wish.name}"
        return f"decide {self.gangs:,} x {self.size:,}{sort}, {self.nodes:,} nodes"

    def quick(self) -> Puzzle:
        """A tenth of the nodes, no target."""
        return replace(self, nodes=self.nodes // 10, target_ms=None)


PUZZLES = (
    Puzzle(5_000, 1, 1_000, 8),
    Puzzle(50_000, 1, 1_000, 30),
    Puzzle(5_000, 1, 1_000, 60, shapes=20),
    Puzzle(5_000, 1_000, 3, 50),
    *(Puzzle(5_000, 1, 1_000, 200, wish=wish) for wish in (EVEN, RATHER_EVEN, APART, TOGETHER)),
)


def section(setting: Setting) -> Iterator[Result]:
    """The pure core alone."""
    for puzzle in PUZZLES:
        chosen = puzzle.quick() if setting.is_quick else puzzle
        runs = sorted(_run(chosen) * 1000 for _ in range(REPEATS))
        beside = {"runs": REPEATS, "slowest ms": runs[-1]}
        yield Result(chosen.name, runs[0], "ms", chosen.target_ms, beside=beside)


def milliseconds(puzzle: Puzzle) -> float:
    """The least of several runs: what else a machine does only ever makes it slower."""
    return min(_run(puzzle) for _ in range(REPEATS)) * 1000


def posed(puzzle: Puzzle) -> tuple[Cache, list[Entity]]:
    """An empty cluster and the gangs that are to be placed on it."""
    cache = Cache()
    for number in range(puzzle.nodes):
        node = _node(number)
        cache.node(node.metadata.name, node)
    gangs = [_gang(cache, number, puzzle) for number in range(puzzle.gangs)]
    cache.snapshot()
    return cache, gangs


def _run(puzzle: Puzzle) -> float:
    """On a cluster of its own, by the wall's clock: that of the process is too slow for gangs of 3.

    It costs a call of the system, which would be a tenth of what is measured.
    """
    cache, gangs = posed(puzzle)
    seconds = 0.0
    with set_apart():
        for gang in gangs:
            begin = time.perf_counter()
            decision = decide(gang, cache.snapshot(), DEFAULT)
            seconds += time.perf_counter() - begin
            assert isinstance(decision, Placed), decision
            cache.assume(decision.bindings)
    return seconds


@contextmanager
def set_apart() -> Iterator[None]:
    """What is there already is no concern of the garbage collector, as in a control plane."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _node(number: int) -> Node:
    ready = Condition(type="Ready", status="True")
    status = NodeStatus(allocatable=ROOM, conditions=(ready,))
    name = f"node-{number:06}"
    labels = {HOSTNAME: name, ZONE: f"zone-{number % ZONES}"}
    return Node(metadata=Meta(name=name, labels=labels), status=status)


def _gang(cache: Cache, number: int, puzzle: Puzzle) -> Entity:
    name = f"gang-{number}"
    policy = SchedulingPolicy(gang=GangPolicy(min_count=puzzle.size))
    group = PodGroup(
        metadata=Meta(name=name, namespace="default"), spec=PodGroupSpec(scheduling_policy=policy)
    )
    pods = [_pod(name, n, puzzle) for n in range(puzzle.size)]
    cache.group(name_of(group), group)
    for pod in pods:
        cache.pod(pod.metadata.key, pod)
    members = tuple(Member(pod, shape_of(pod)) for pod in pods)
    return Entity(group.metadata.key, group, members)


def _pod(gang: str, number: int, puzzle: Puzzle) -> Pod:
    name, wish = f"{gang}-{number}", puzzle.wish
    needs = Requirements(requests={"cpu": f"{100 + number % puzzle.shapes}m", "memory": "100Mi"})
    spec = PodSpec(
        containers=(Container(name="main", image="pause", resources=needs),),
        scheduling_group=SchedulingGroup(pod_group_name=gang),
        topology_spread_constraints=wish.spreads,
        affinity=wish.affinity,
    )
    return Pod(metadata=Meta(name=name, namespace="default", uid=name, labels=CROWD), spec=spec)
