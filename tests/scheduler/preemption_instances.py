"""Small clusters where preemption is needed, and the best victims by trying all sets.

The expected result is computed from plain numbers, without any code of the scheduler: which pods
may be evicted, what a set of victims costs, and whether the members fit once they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import ObjectMeta
from phalanx.api.other_kinds import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.entity import Entity
from tests.scheduler.builders import composite, entity, gang, node, pod

#: The kinds of instances.
FAMILIES = ("plain", "sizes", "budgets", "groups", "trees", "everything")
#: The cost of a set of victims: two sets are compared in this order.
Cost = tuple[int, int, int, int, int, int, tuple[int, ...]]
PRIORITY = 100


@dataclass(frozen=True)
class RunningPod:
    """A running pod in numbers."""

    name: str
    node: int
    cpu: int
    priority: int
    start: int
    #: The name of the group or tree that is evicted as a unit with it.
    unit: str = ""
    #: 0 without group, 1 in a group, 2 in a tree that is evicted as a unit.
    rank: int = 0
    has_budget: bool = False
    #: The PodGroup of the pod.
    group: str = ""


@dataclass
class PreemptionInstance:
    """Nodes, running pods, and a gang that preempts."""

    nodes: list[int]
    running_pods: list[RunningPod]
    wanted: list[int]
    allowed: int | None = None
    groups: list[Group] = field(default_factory=list)
    group_of: dict[str, str] = field(default_factory=dict)
    #: The quorum of each gang.
    quorums: dict[str, int] = field(default_factory=dict)

    def cache(self) -> SchedulerCache:
        """Build the cache of a scheduler."""
        cache = SchedulerCache()
        for one in self.api_nodes():
            cache.update_node(one.metadata.name, one)
        for group in self.groups:
            cache.update_group(group_ref(group), group)
        for running in self.api_pods():
            cache.update_pod(running.metadata.key, running)
        if self.allowed is not None:
            budget = PodDisruptionBudget(
                ObjectMeta(name="b", namespace="default"),
                PodDisruptionBudgetSpec({"matchLabels": {"app": "db"}}),
                PodDisruptionBudgetStatus(disruptions_allowed=self.allowed),
            )
            cache.update_budget(budget.metadata.key, budget)
        return cache

    def api_nodes(self) -> list[Node]:
        """Return the nodes as objects."""
        return [node(f"n{i}", cpu=str(cpu)) for i, cpu in enumerate(self.nodes)]

    def api_pods(self) -> list[Pod]:
        """Return the running pods as objects."""
        return [_pod(one, self.group_of) for one in self.running_pods]

    def api_groups(self) -> list[Group]:
        """Return all groups, the gang included."""
        own = self.entity().group
        assert own is not None
        return [*self.groups, own]

    def entity(self) -> Entity:
        """Return the gang."""
        pods = [
            pod(f"high-{i}", "high", cpu=str(cpu), priority=PRIORITY)
            for i, cpu in enumerate(self.wanted)
        ]
        return entity(gang("high", len(self.wanted), priority=PRIORITY), pods)

    def units(self) -> list[tuple[RunningPod, ...]]:
        """Return the pods that are evicted together."""
        found: dict[str, list[RunningPod]] = {}
        for one in self.running_pods:
            if one.priority < PRIORITY:
                found.setdefault(one.unit or one.name, []).append(one)
        return [tuple(unit) for unit in found.values()]

    def cost(self, gone: Iterable[tuple[RunningPod, ...]]) -> Cost:
        """Return the cost of a set of units."""
        units = list(gone)
        pods = [one for unit in units for one in unit]
        guarded = sum(one.has_budget for one in pods)
        beyond = 0 if self.allowed is None else max(guarded - self.allowed, 0)
        ranks = [max(one.rank for one in unit) for unit in units]
        highest = max((one.priority for one in pods), default=-1)
        first = min((one.start for one in pods), default=0)
        broken = sum(self.breaks(name, pods) for name in self.quorums)
        return beyond, highest, broken, ranks.count(2), ranks.count(1), len(pods), (-first,)

    def spare(self, name: str) -> int:
        """Return how many members a gang can lose; negative if it lacks some already."""
        return sum(one.group == name for one in self.running_pods) - self.quorums[name]

    def breaks(self, name: str, gone: Iterable[RunningPod]) -> bool:
        """Whether a gang has its quorum, and loses it with these pods."""
        return 0 <= self.spare(name) < sum(one.group == name for one in gone)

    def fits(self, gone: Iterable[tuple[RunningPod, ...]]) -> bool:
        """Whether the gang fits once these units are gone."""
        names = {one.name for unit in gone for one in unit}
        free = list(self.nodes)
        for one in self.running_pods:
            if one.name not in names:
                free[one.node] -= one.cpu
        return _fits(free, sorted(self.wanted, reverse=True))

    def lowest_cost(self) -> Cost | None:
        """Return the lowest cost; None if the gang does not fit even if all are evicted."""
        found = [self.cost(s) for s in _subsets(self.units()) if self.fits(s)]
        return min(found, default=None)


def _fits(free: Sequence[int], wanted: Sequence[int]) -> bool:
    if not wanted:
        return True
    tried = set()
    for i, amount in enumerate(free):
        if amount >= wanted[0] and amount not in tried:
            tried.add(amount)
            if _fits([*free[:i], amount - wanted[0], *free[i + 1 :]], wanted[1:]):
                return True
    return False


def _subsets(
    units: Sequence[tuple[RunningPod, ...]],
) -> Iterator[tuple[tuple[RunningPod, ...], ...]]:
    for size in range(len(units) + 1):
        yield from combinations(units, size)


def _pod(one: RunningPod, group_of: dict[str, str]) -> Pod:
    made = pod(
        one.name, group_of.get(one.name, ""), on=f"n{one.node}", cpu=str(one.cpu),
        priority=one.priority, phase="Running", labels={"app": "db"} if one.has_budget else {},
    )  # fmt: skip
    return replace(
        made, status=replace(made.status, start_time=f"2026-01-{one.start:02}T00:00:00Z")
    )


def build_instance(seed: int, family: str) -> PreemptionInstance:
    """Build the instance of a family and seed."""
    random = Random(f"{family} {seed}")
    everything = family == "everything"
    nodes = [random.randint(2, 4) for _ in range(random.randint(2, 4))]
    priorities = [1, 1, 5, 10, 10, 200]
    found = PreemptionInstance(nodes, [], [])
    number = 0
    for i, cpu in enumerate(nodes):
        while cpu > 0 and number < 8 and random.random() < 0.85:
            size = min(cpu, random.choice([1, 1, 2]))
            found.running_pods.append(
                RunningPod(f"r{number}", i, size, random.choice(priorities), random.randint(1, 28))
            )
            cpu -= size
            number += 1
    sizes = [1, 2, 3] if family == "sizes" or everything else [random.choice([1, 2])]
    found.wanted = [random.choice(sizes) for _ in range(random.randint(1, 4))]
    if family == "budgets" or everything:
        found.allowed = random.randint(0, 1)
        found.running_pods = [
            _with_fields(one, has_budget=random.random() < 0.5) for one in found.running_pods
        ]
    if family in ("groups", "trees") or everything:
        _group_pods(found, random, trees=family == "trees" or everything)
    return found


def _with_fields(one: RunningPod, **changes: object) -> RunningPod:
    return RunningPod(**{**one.__dict__, **changes})


def _group_pods(found: PreemptionInstance, random: Random, *, trees: bool) -> None:
    """Put some running pods into groups, and some groups into a tree."""
    priority, modes = random.choice([1, 5, 10]), [random.random() < 0.5 for _ in range(3)]
    is_tree = trees and random.random() < 0.7
    if is_tree:
        found.groups.append(composite("t", 1, priority=priority, disrupted_as_unit=modes[2]))
    for name, whole in zip("gh", modes, strict=False):
        parent = "t" if is_tree else ""
        quorum = found.quorums[name] = random.randint(1, 3)
        found.groups.append(
            gang(
                name,
                quorum,
                priority=priority,
                disrupted_as_unit=whole and not is_tree,
                parent=parent,
            )
        )
    for at, one in enumerate(found.running_pods):
        name = random.choice(["", "g", "h"])
        if not name:
            continue
        found.group_of[one.name] = name
        together = (
            "t" if is_tree and modes[2] else name if modes["gh".index(name)] and not is_tree else ""
        )
        rank = 2 if together == "t" else 1
        found.running_pods[at] = _with_fields(
            one, priority=priority, rank=rank, unit=together, group=name
        )
