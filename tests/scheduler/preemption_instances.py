"""Small clusters in which somebody must make way, and the best choice of victims by trying all.

The truth here is made from plain numbers, by nothing that the scheduler is made of: who may go,
what a set of victims costs, and whether the members fit once they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import ObjectMeta
from phalanx.api.policy import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.entity import Entity
from tests.scheduler.builders import composite, entity, gang, node, pod

#: What can be mixed into a hunt.
FAMILIES = ("plain", "sizes", "budgets", "groups", "trees", "everything")
#: What a set of victims costs: the order in which two sets are compared.
Cost = tuple[int, int, int, int, int, tuple[int, ...]]
PRIORITY = 100


@dataclass(frozen=True)
class RunningPod:
    """A running pod in numbers."""

    name: str
    node: int
    cpu: int
    priority: int
    start: int
    #: What goes with it: the name of a group or tree of mode all.
    whole: str = ""
    #: 0 alone, 1 in a group, 2 in a tree that goes as one.
    rank: int = 0
    guarded: bool = False


@dataclass
class PreemptionInstance:
    """Nodes, those who run there, and a gang that wants in."""

    nodes: list[int]
    residents: list[RunningPod]
    wanted: list[int]
    allowed: int | None = None
    groups: list[Group] = field(default_factory=list)
    group_of: dict[str, str] = field(default_factory=dict)

    def cache(self) -> SchedulerCache:
        """The same as a scheduler sees it."""
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
        """The nodes as objects."""
        return [node(f"n{i}", cpu=str(cpu)) for i, cpu in enumerate(self.nodes)]

    def api_pods(self) -> list[Pod]:
        """Those who run, as objects."""
        return [_pod(one, self.group_of) for one in self.residents]

    def api_groups(self) -> list[Group]:
        """All groups, the gang included."""
        mine = self.entity().group
        assert mine is not None
        return [*self.groups, mine]

    def entity(self) -> Entity:
        """The gang."""
        pods = [
            pod(f"high-{i}", "high", cpu=str(cpu), priority=PRIORITY)
            for i, cpu in enumerate(self.wanted)
        ]
        return entity(gang("high", len(self.wanted), priority=PRIORITY), pods)

    def units(self) -> list[tuple[RunningPod, ...]]:
        """Who goes together."""
        found: dict[str, list[RunningPod]] = {}
        for one in self.residents:
            if one.priority < PRIORITY:
                found.setdefault(one.whole or one.name, []).append(one)
        return [tuple(unit) for unit in found.values()]

    def cost(self, gone: Iterable[tuple[RunningPod, ...]]) -> Cost:
        """What a set of units costs."""
        units = list(gone)
        pods = [one for unit in units for one in unit]
        guarded = sum(one.guarded for one in pods)
        beyond = 0 if self.allowed is None else max(guarded - self.allowed, 0)
        ranks = [max(one.rank for one in unit) for unit in units]
        highest = max((one.priority for one in pods), default=-1)
        first = min((one.start for one in pods), default=0)
        return beyond, highest, ranks.count(2), ranks.count(1), len(pods), (-first,)

    def fits(self, gone: Iterable[tuple[RunningPod, ...]]) -> bool:
        """Whether the gang has room once these are gone, wherever its members go."""
        names = {one.name for unit in gone for one in unit}
        free = list(self.nodes)
        for one in self.residents:
            if one.name not in names:
                free[one.node] -= one.cpu
        return _fits(free, sorted(self.wanted, reverse=True))

    def lowest_cost(self) -> Cost | None:
        """The least that it costs; None if it does not help that all go."""
        found = [self.cost(s) for s in _subsets(self.units()) if self.fits(s)]
        return min(found, default=None)


def _fits(free: Sequence[int], wanted: Sequence[int]) -> bool:
    if not wanted:
        return True
    tried = set()
    for i, room in enumerate(free):
        if room >= wanted[0] and room not in tried:
            tried.add(room)
            if _fits([*free[:i], room - wanted[0], *free[i + 1 :]], wanted[1:]):
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
        priority=one.priority, phase="Running", labels={"app": "db"} if one.guarded else {},
    )  # fmt: skip
    return replace(
        made, status=replace(made.status, start_time=f"2026-01-{one.start:02}T00:00:00Z")
    )


def build_instance(seed: int, family: str) -> PreemptionInstance:
    """A hunt of a family."""
    chance = Random(f"{family} {seed}")
    everything = family == "everything"
    nodes = [chance.randint(2, 4) for _ in range(chance.randint(2, 4))]
    priorities = [1, 1, 5, 10, 10, 200]
    found = PreemptionInstance(nodes, [], [])
    number = 0
    for i, cpu in enumerate(nodes):
        while cpu > 0 and number < 8 and chance.random() < 0.85:
            size = min(cpu, chance.choice([1, 1, 2]))
            found.residents.append(
                RunningPod(f"r{number}", i, size, chance.choice(priorities), chance.randint(1, 28))
            )
            cpu -= size
            number += 1
    sizes = [1, 2, 3] if family == "sizes" or everything else [chance.choice([1, 2])]
    found.wanted = [chance.choice(sizes) for _ in range(chance.randint(1, 4))]
    if family == "budgets" or everything:
        found.allowed = chance.randint(0, 1)
        found.residents = [
            _with_fields(one, guarded=chance.random() < 0.5) for one in found.residents
        ]
    if family in ("groups", "trees") or everything:
        _group_pods(found, chance, trees=family == "trees" or everything)
    return found


def _with_fields(one: RunningPod, **changes: object) -> RunningPod:
    return RunningPod(**{**one.__dict__, **changes})


def _group_pods(found: PreemptionInstance, random: Random, *, trees: bool) -> None:
    """Put some of those who run into groups, and some groups into a tree."""
    priority, modes = random.choice([1, 5, 10]), [random.random() < 0.5 for _ in range(3)]
    is_tree = trees and random.random() < 0.7
    if is_tree:
        found.groups.append(composite("t", 1, priority=priority, goes_whole=modes[2]))
    for name, whole in zip("gh", modes, strict=False):
        parent = "t" if is_tree else ""
        found.groups.append(
            gang(name, 1, priority=priority, goes_whole=whole and not is_tree, parent=parent)
        )
    for at, one in enumerate(found.residents):
        name = random.choice(["", "g", "h"])
        if not name:
            continue
        found.group_of[one.name] = name
        together = (
            "t" if is_tree and modes[2] else name if modes["gh".index(name)] and not is_tree else ""
        )
        rank = 2 if together == "t" else 1
        found.residents[at] = _with_fields(one, priority=priority, rank=rank, whole=together)
