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

from phalanx.api.meta import Key
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.selectors import LabelRequirement, selector_requirements
from phalanx.scheduler.cluster.group_tree import Group, GroupRef, GroupTrees, group_ref
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Victim

#: Later than any start: of pods that do not run yet.
_NOT_STARTED = "~"


class EvictionScope(IntEnum):
    """How much is lost with a unit besides pods."""

    POD = 0
    GROUP = 1
    TREE = 2


class EvictionUnit:
    """Pods of which all go or none. Never changed; the equal of a unit is only itself."""

    __slots__ = ("first", "pods", "priority", "rank", "size", "started", "whole")

    def __init__(
        self,
        pods: tuple[AssignedPod, ...],
        priority: int,
        rank: EvictionScope,
        whole: GroupRef | None = None,
    ) -> None:
        """Of pods in order; `whole` is the group that goes as a whole, if one does."""
        self.pods, self.priority, self.rank, self.whole = pods, priority, rank, whole
        #: The first of them by name, and how many they are.
        self.first, self.size = pods[0].key, len(pods)
        #: When the one that has run longest started.
        self.started = min([pod.start_time or _NOT_STARTED for pod in pods])

    @property
    def victims(self) -> Iterator[Victim]:
        """Its pods as victims."""
        group, is_composite = (
            (self.whole.key, self.whole.is_composite) if self.whole else (None, False)
        )
        for pod in self.pods:
            yield Victim(pod.key, pod.uid, pod.node, group, is_composite)


class DisruptionAllowance(NamedTuple):
    """A disruption budget: how many of the pods that it selects may go."""

    namespace: str
    requirements: tuple[LabelRequirement, ...]
    allowed: int
    #: Pods whose going is accounted for already.
    disrupted: frozenset[str]

    def covers(self, pod: AssignedPod) -> bool:
        """Whether a pod counts against it."""
        if pod.namespace != self.namespace or pod.key.name in self.disrupted:
            return False
        return all(need.matches(pod.labels) for need in self.requirements)


def disruption_allowances(budgets: Iterable[PodDisruptionBudget]) -> list[DisruptionAllowance]:
    """Budgets as they count here; one that selects nothing in particular counts nobody."""
    return [
        DisruptionAllowance(
            budget.metadata.namespace, selector_requirements(budget.spec.selector),
            budget.status.disruptions_allowed, frozenset(budget.status.disrupted_pods),
        )
        for budget in budgets
        if budget.spec.selector
    ]  # fmt: skip


class EvictionCost(NamedTuple):
    """What a set of victims costs; the least is the best."""

    violations: int
    priority: int
    trees: int
    groups: int
    pods: int
    #: The start of the one that has run longest, the later the better.
    earliest_start: ReversedOrderStr


class ReversedOrderStr(str):
    """A text that is the less the greater it is."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

    def __gt__(self, other: str) -> bool:
        return str.__lt__(self, other)


class EvictionCostModel:
    """Adds up what victims cost."""

    def __init__(self, budgets: Sequence[DisruptionAllowance]) -> None:
        self._budgets = budgets
        self._covering_by_pod: dict[Key, tuple[int, ...]] = {}

    def cost(self, units: Iterable[EvictionUnit]) -> EvictionCost:
        """What it costs to evict all of these."""
        chosen = list(units)
        ranks = [unit.rank for unit in chosen]
        return EvictionCost(
            self.violations(chosen),
            max((unit.priority for unit in chosen), default=_BELOW_ALL_PRIORITIES),
            ranks.count(EvictionScope.TREE),
            ranks.count(EvictionScope.GROUP),
            sum(len(unit.pods) for unit in chosen),
            ReversedOrderStr(min((unit.started for unit in chosen), default=_NOT_STARTED)),
        )

    def violations(self, units: Iterable[EvictionUnit]) -> int:
        """How many pods go beyond what budgets allow."""
        if not self._budgets:
            return 0
        spent = [0] * len(self._budgets)
        for unit in units:
            for pod in unit.pods:
                for number in self._covering_budgets(pod):
                    spent[number] += 1
        return sum(max(n - b.allowed, 0) for n, b in zip(spent, self._budgets, strict=True))

    def order_units(self, units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
        """Units, the one that is lost most lightly first; those beyond a budget come last."""
        ordered = least_important_first(units)
        if not self._budgets:
            return ordered
        within: list[EvictionUnit] = []
        beyond: list[EvictionUnit] = []
        spent = [0] * len(self._budgets)
        for unit in ordered:
            numbers = [number for pod in unit.pods for number in self._covering_budgets(pod)]
            fits = all(spent[n] + numbers.count(n) <= self._budgets[n].allowed for n in numbers)
            (within if fits else beyond).append(unit)
            for number in numbers if fits else ():
                spent[number] += 1
        return within + beyond

    def priority_boundaries(self, ordered: Sequence[EvictionUnit]) -> list[int]:
        """Where in such an order a priority ends, or what is within budgets."""
        changes = [
            n for n in range(1, len(ordered)) if ordered[n].priority != ordered[n - 1].priority
        ]
        return [*changes, len(ordered)]

    def _covering_budgets(self, pod: AssignedPod) -> tuple[int, ...]:
        found = self._covering_by_pod.get(pod.key)
        if found is None:
            found = tuple(n for n, budget in enumerate(self._budgets) if budget.covers(pod))
            self._covering_by_pod[pod.key] = found
        return found


#: By what units are put in order, the least important first, and whether the greater comes first.
#: One key after the other: there are many units, and most of them agree in most of these.
_EVICTION_ORDER = (
    (attrgetter("first.name"), True),
    (attrgetter("first.namespace"), True),
    (attrgetter("started"), True),
    (attrgetter("size"), False),
    (attrgetter("rank"), False),
    (attrgetter("priority"), False),
)

#: Lower than any priority.
_BELOW_ALL_PRIORITIES = -(2**31) - 1


def least_important_first(units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
    """Units in the order of how lightly each is lost by itself."""
    ordered = list(units)
    for key, is_descending in _EVICTION_ORDER:
        ordered.sort(key=key, reverse=is_descending)
    return ordered


def find_eviction_units(snapshot: Snapshot, below_priority: int) -> list[EvictionUnit]:
    """What may be evicted for somebody of a priority: all that is staying and less important."""
    ties = _GroupEvictions(snapshot.group_trees)
    together: dict[GroupRef, list[AssignedPod]] = {}
    found: list[EvictionUnit] = []
    for pod in snapshot.pod_index.without_nominated.assigned_pods():
        if pod.terminating:
            continue
        tie = ties.lookup(pod) if pod.group else None
        if tie is None:
            if pod.priority < below_priority:
                found.append(EvictionUnit((pod,), pod.priority, EvictionScope.POD))
        elif tie.priority < below_priority:
            if tie.unit_group is None:
                found.append(EvictionUnit((pod,), tie.priority, EvictionScope.GROUP))
            else:
                together.setdefault(tie.unit_group, []).append(pod)
    for whole, pods in together.items():
        rank = EvictionScope.TREE if whole.is_composite else EvictionScope.GROUP
        found.append(EvictionUnit(tuple(sorted(pods)), ties.priorities[whole], rank, whole))
    return found


class _GroupEviction(NamedTuple):
    """What a pod of a group shares with others."""

    priority: int
    unit_group: GroupRef | None


class _GroupEvictions:
    """What the pods of each group share, looked up once per group."""

    def __init__(self, group_tree: GroupTrees) -> None:
        self._group_tree = group_tree
        self._by_group: dict[Key, _GroupEviction | None] = {}
        self.priorities: dict[GroupRef, int] = {}

    def lookup(self, pod: AssignedPod) -> _GroupEviction | None:
        """What a pod shares; nothing if its group is not there."""
        assert pod.group is not None
        if pod.group not in self._by_group:
            self._by_group[pod.group] = self._compute(pod.group)
        return self._by_group[pod.group]

    def _compute(self, key: Key) -> _GroupEviction | None:
        line = self._group_tree.ancestry(GroupRef(False, key))
        if not line:
            return None
        whole = next(
            (group_ref(group) for group in reversed(line) if _is_evicted_as_unit(group)), None
        )
        priority = line[-1].spec.priority
        if whole is not None:
            self.priorities[whole] = priority
        return _GroupEviction(priority, whole)


def _is_evicted_as_unit(group: Group) -> bool:
    mode = group.spec.disruption_mode
    return mode is not None and mode.all is not None
