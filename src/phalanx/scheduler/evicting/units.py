"""Units: what can be evicted as one, and what that costs. Read from a snapshot; decides nothing.

A pod goes alone, or with its whole group, or with a whole tree of groups: the highest ancestor of
disruption mode `all` goes as one. What counts is the priority of the root, not the pod's own.

A set of victims is the better of two by the first of these in which they differ: fewer pods beyond
a disruption budget, a lower highest priority, fewer trees, fewer groups, fewer pods, later starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from phalanx.api.budget import Budget
from phalanx.api.labelselectors import requirements
from phalanx.api.meta import Key
from phalanx.api.selectors import Requirement
from phalanx.scheduler.cluster.census import Resident
from phalanx.scheduler.cluster.forest import Forest, Group, Name, name_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Victim

#: Later than any start: of pods that do not run yet.
_NOT_YET = "~"


class Rank(IntEnum):
    """How much is lost with a unit besides pods."""

    POD = 0
    GROUP = 1
    TREE = 2


class Unit:
    """Pods of which all go or none. Never changed; the equal of a unit is only itself."""

    __slots__ = ("first", "pods", "priority", "rank", "size", "started", "whole")

    def __init__(
        self, pods: tuple[Resident, ...], priority: int, rank: Rank, whole: Name | None = None
    ) -> None:
        """Of pods in order; `whole` is the group that goes as a whole, if one does."""
        self.pods, self.priority, self.rank, self.whole = pods, priority, rank, whole
        #: The first of them by name, and how many they are.
        self.first, self.size = pods[0].key, len(pods)
        #: When the one that has run longest started.
        self.started = min([pod.started or _NOT_YET for pod in pods])

    @property
    def victims(self) -> Iterator[Victim]:
        """Its pods as victims."""
        group, is_composite = (
            (self.whole.key, self.whole.is_composite) if self.whole else (None, False)
        )
        for pod in self.pods:
            yield Victim(pod.key, pod.uid, pod.node, group, is_composite)


class Allowance(NamedTuple):
    """A disruption budget: how many of the pods that it selects may go."""

    namespace: str
    needs: tuple[Requirement, ...]
    allowed: int
    #: Pods whose going is accounted for already.
    spent: frozenset[str]

    def covers(self, pod: Resident) -> bool:
        """Whether a pod counts against it."""
        if pod.namespace != self.namespace or pod.key.name in self.spent:
            return False
        return all(need.matches(pod.labels) for need in self.needs)


def allowances(budgets: Iterable[Budget]) -> list[Allowance]:
    """Budgets as they count here; one that selects nothing in particular counts nobody."""
    return [
        Allowance(
            budget.metadata.namespace, requirements(budget.spec.selector),
            budget.status.disruptions_allowed, frozenset(budget.status.disrupted_pods),
        )
        for budget in budgets
        if budget.spec.selector
    ]  # fmt: skip


class Cost(NamedTuple):
    """What a set of victims costs; the least is the best."""

    violations: int
    priority: int
    trees: int
    groups: int
    pods: int
    #: The start of the one that has run longest, the later the better.
    since: Descending


class Descending(str):
    """A text that is the less the greater it is."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

    def __gt__(self, other: str) -> bool:
        return str.__lt__(self, other)


class Bill:
    """Adds up what victims cost."""

    def __init__(self, budgets: Sequence[Allowance]) -> None:
        self._budgets = budgets
        self._covers: dict[Key, tuple[int, ...]] = {}

    def cost(self, units: Iterable[Unit]) -> Cost:
        """What it costs to evict all of these."""
        chosen = list(units)
        ranks = [unit.rank for unit in chosen]
        return Cost(
            self.violations(chosen),
            max((unit.priority for unit in chosen), default=_LEAST),
            ranks.count(Rank.TREE),
            ranks.count(Rank.GROUP),
            sum(len(unit.pods) for unit in chosen),
            Descending(min((unit.started for unit in chosen), default=_NOT_YET)),
        )

    def violations(self, units: Iterable[Unit]) -> int:
        """How many pods go beyond what budgets allow."""
        if not self._budgets:
            return 0
        spent = [0] * len(self._budgets)
        for unit in units:
            for pod in unit.pods:
                for number in self._covered(pod):
                    spent[number] += 1
        return sum(max(n - b.allowed, 0) for n, b in zip(spent, self._budgets, strict=True))

    def in_order(self, units: Iterable[Unit]) -> list[Unit]:
        """Units, the one that is lost most lightly first; those beyond a budget come last."""
        ordered = lightest_first(units)
        if not self._budgets:
            return ordered
        within: list[Unit] = []
        beyond: list[Unit] = []
        spent = [0] * len(self._budgets)
        for unit in ordered:
            numbers = [number for pod in unit.pods for number in self._covered(pod)]
            fits = all(spent[n] + numbers.count(n) <= self._budgets[n].allowed for n in numbers)
            (within if fits else beyond).append(unit)
            for number in numbers if fits else ():
                spent[number] += 1
        return within + beyond

    def ends(self, ordered: Sequence[Unit]) -> list[int]:
        """Where in such an order a priority ends, or what is within budgets."""
        changes = [
            n for n in range(1, len(ordered)) if ordered[n].priority != ordered[n - 1].priority
        ]
        return [*changes, len(ordered)]

    def _covered(self, pod: Resident) -> tuple[int, ...]:
        found = self._covers.get(pod.key)
        if found is None:
            found = tuple(n for n, budget in enumerate(self._budgets) if budget.covers(pod))
            self._covers[pod.key] = found
        return found


#: By what units are put in order, the least important first, and whether the greater comes first.
#: One key after the other: there are many units, and most of them agree in most of these.
_LIGHTNESS = (
    (attrgetter("first.name"), True),
    (attrgetter("first.namespace"), True),
    (attrgetter("started"), True),
    (attrgetter("size"), False),
    (attrgetter("rank"), False),
    (attrgetter("priority"), False),
)

#: Lower than any priority.
_LEAST = -(2**31) - 1


def lightest_first(units: Iterable[Unit]) -> list[Unit]:
    """Units in the order of how lightly each is lost by itself."""
    ordered = list(units)
    for key, is_descending in _LIGHTNESS:
        ordered.sort(key=key, reverse=is_descending)
    return ordered


def units(snapshot: Snapshot, below: int) -> list[Unit]:
    """What may be evicted for somebody of a priority: all that is staying and less important."""
    ties = _Ties(snapshot.forest)
    together: dict[Name, list[Resident]] = {}
    found: list[Unit] = []
    for pod in snapshot.census.bare.residents():
        if pod.leaving:
            continue
        tie = ties.of(pod) if pod.group else None
        if tie is None:
            if pod.priority < below:
                found.append(Unit((pod,), pod.priority, Rank.POD))
        elif tie.priority < below:
            if tie.whole is None:
                found.append(Unit((pod,), tie.priority, Rank.GROUP))
            else:
                together.setdefault(tie.whole, []).append(pod)
    for whole, pods in together.items():
        rank = Rank.TREE if whole.is_composite else Rank.GROUP
        found.append(Unit(tuple(sorted(pods)), ties.priorities[whole], rank, whole))
    return found


class _Tie(NamedTuple):
    """What a pod of a group shares with others."""

    priority: int
    whole: Name | None


class _Ties:
    """What the pods of each group share, looked up once per group."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._ties: dict[Key, _Tie | None] = {}
        self.priorities: dict[Name, int] = {}

    def of(self, pod: Resident) -> _Tie | None:
        """What a pod shares; nothing if its group is not there."""
        assert pod.group is not None
        if pod.group not in self._ties:
            self._ties[pod.group] = self._find(pod.group)
        return self._ties[pod.group]

    def _find(self, key: Key) -> _Tie | None:
        line = self._forest.line(Name(False, key))
        if not line:
            return None
        whole = next((name_of(group) for group in reversed(line) if _goes_whole(group)), None)
        priority = line[-1].spec.priority
        if whole is not None:
            self.priorities[whole] = priority
        return _Tie(priority, whole)


def _goes_whole(group: Group) -> bool:
    mode = group.spec.disruption_mode
    return mode is not None and mode.all is not None
