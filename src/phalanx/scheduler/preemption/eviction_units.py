"""Eviction units: the pods that are evicted together, and the cost of evicting them.

A pod is evicted alone, with its group, or with a whole tree of groups: the highest ancestor with
disruption mode `all` is evicted as one unit. The priority of the root counts, not that of the pod.

    PodGroup a (mode single)  pods a-0, a-1  ─▶ two units of scope GROUP, one pod each
    PodGroup b (mode all)     pods b-0, b-1  ─▶ one unit of scope GROUP, two pods

Of two sets of victims the better one has, in this order: fewer pods beyond disruption budgets, a
lower highest priority, fewer trees, fewer groups, fewer pods, a later start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, Ref, pod_group_ref
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.selectors import LabelRequirement, selector_requirements
from phalanx.scheduler.cluster.group_tree import GroupTrees, group_ref
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Victim

#: The start time of pods that have not started: sorts after every timestamp.
_NOT_STARTED = "~"


class EvictionScope(IntEnum):
    """What an eviction disrupts: a pod without a group, a group or a tree of groups."""

    POD = 0
    GROUP = 1
    TREE = 2


class EvictionUnit:
    """Pods that are evicted together. Immutable; compared by identity."""

    __slots__ = ("first", "group", "pods", "priority", "scope", "size", "start_time")

    def __init__(
        self,
        pods: tuple[AssignedPod, ...],
        priority: int,
        scope: EvictionScope,
        group: Ref | None = None,
    ) -> None:
        """`pods` are sorted; `group` is the group that is evicted as a whole, if any."""
        self.pods, self.priority, self.scope, self.group = pods, priority, scope, group
        #: The key of the first pod, and the number of pods.
        self.first, self.size = pods[0].key, len(pods)
        #: The start time of the oldest pod.
        self.start_time = min([pod.start_time or _NOT_STARTED for pod in pods])

    @property
    def victims(self) -> Iterator[Victim]:
        """Its pods as victims of a decision."""
        for pod in self.pods:
            yield Victim(pod.key, pod.uid, pod.node, self.group)


class DisruptionAllowance(NamedTuple):
    """A PodDisruptionBudget: how many of the pods that it selects may be evicted."""

    namespace: str
    requirements: tuple[LabelRequirement, ...]
    allowed: int
    #: The names of pods whose eviction is counted already.
    disrupted: frozenset[str]

    def covers(self, pod: AssignedPod) -> bool:
        """Whether the eviction of a pod counts against the budget."""
        if pod.namespace != self.namespace or pod.key.name in self.disrupted:
            return False
        return all(need.matches(pod.labels) for need in self.requirements)


def disruption_allowances(budgets: Iterable[PodDisruptionBudget]) -> list[DisruptionAllowance]:
    """Read budgets; one without a selector covers no pod."""
    return [
        DisruptionAllowance(
            namespace=budget.metadata.namespace,
            requirements=selector_requirements(budget.spec.selector),
            allowed=budget.status.disruptions_allowed,
            disrupted=frozenset(budget.status.disrupted_pods),
        )
        for budget in budgets
        if budget.spec.selector
    ]


class EvictionCost(NamedTuple):
    """The cost of a set of victims; lower is better."""

    violations: int
    priority: int
    trees: int
    groups: int
    pods: int
    #: The start time of the oldest pod; later is better.
    earliest_start: ReversedOrderStr


class ReversedOrderStr(str):
    """A string with the reversed order."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

    def __gt__(self, other: str) -> bool:
        return str.__lt__(self, other)


class EvictionCostModel:
    """Computes the cost of victims under the disruption budgets."""

    def __init__(self, budgets: Sequence[DisruptionAllowance]) -> None:
        self._budgets = budgets
        self._covering_by_pod: dict[Key, tuple[int, ...]] = {}

    def cost(self, units: Iterable[EvictionUnit]) -> EvictionCost:
        """Return the cost of evicting all of these units."""
        chosen = list(units)
        scopes = [unit.scope for unit in chosen]
        earliest = min((unit.start_time for unit in chosen), default=_NOT_STARTED)
        return EvictionCost(
            violations=self.violations(chosen),
            priority=max((unit.priority for unit in chosen), default=_BELOW_ALL_PRIORITIES),
            trees=scopes.count(EvictionScope.TREE),
            groups=scopes.count(EvictionScope.GROUP),
            pods=sum(len(unit.pods) for unit in chosen),
            earliest_start=ReversedOrderStr(earliest),
        )

    def violations(self, units: Iterable[EvictionUnit]) -> int:
        """Count the evictions that exceed disruption budgets."""
        if not self._budgets:
            return 0
        spent = [0] * len(self._budgets)
        for unit in units:
            for pod in unit.pods:
                for number in self._covering_budgets(pod):
                    spent[number] += 1
        return sum(max(n - b.allowed, 0) for n, b in zip(spent, self._budgets, strict=True))

    def order_units(self, units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
        """Sort units, the least important first; those that exceed a budget come last."""
        ordered = least_important_first(units)
        if not self._budgets:
            return ordered
        allowed: list[EvictionUnit] = []
        violating: list[EvictionUnit] = []
        spent = [0] * len(self._budgets)
        for unit in ordered:
            numbers = [number for pod in unit.pods for number in self._covering_budgets(pod)]
            fits = all(spent[n] + numbers.count(n) <= self._budgets[n].allowed for n in numbers)
            (allowed if fits else violating).append(unit)
            for number in numbers if fits else ():
                spent[number] += 1
        return allowed + violating

    def priority_boundaries(self, ordered: Sequence[EvictionUnit]) -> list[int]:
        """The positions in such an order after which the priority changes."""
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


#: Sort keys for the least important unit first, the last key most significant, each with the flag
#: for a descending order. One stable sort per key is faster than building a tuple for every unit.
_EVICTION_ORDER = (
    (attrgetter("first.name"), True),
    (attrgetter("first.namespace"), True),
    (attrgetter("start_time"), True),
    (attrgetter("size"), False),
    (attrgetter("scope"), False),
    (attrgetter("priority"), False),
)

#: Lower than any priority.
_BELOW_ALL_PRIORITIES = -(2**31) - 1


def least_important_first(units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
    """Sort units, the least important first, without disruption budgets."""
    ordered = list(units)
    for key, is_descending in _EVICTION_ORDER:
        ordered.sort(key=key, reverse=is_descending)
    return ordered


def find_eviction_units(snapshot: Snapshot, below_priority: int) -> list[EvictionUnit]:
    """Return the units of lower priority that are not terminating."""
    evictions = _GroupEvictions(snapshot.group_trees)
    pods_by_group: dict[Ref, list[AssignedPod]] = {}
    units: list[EvictionUnit] = []
    for pod in snapshot.pod_index.without_nominated.assigned_pods():
        if pod.terminating:
            continue
        eviction = evictions.lookup(pod) if pod.group else None
        if eviction is None:
            if pod.priority < below_priority:
                units.append(EvictionUnit((pod,), pod.priority, EvictionScope.POD))
        elif eviction.priority < below_priority:
            if eviction.unit_group is None:
                units.append(EvictionUnit((pod,), eviction.priority, EvictionScope.GROUP))
            else:
                pods_by_group.setdefault(eviction.unit_group, []).append(pod)
    for group, pods in pods_by_group.items():
        is_tree = group.kind == COMPOSITE_POD_GROUP_KIND
        scope = EvictionScope.TREE if is_tree else EvictionScope.GROUP
        units.append(
            EvictionUnit(tuple(sorted(pods)), evictions.priorities[group], scope, group=group)
        )
    return units


class _GroupEviction(NamedTuple):
    """How the pods of one group are evicted."""

    priority: int
    unit_group: Ref | None


class _GroupEvictions:
    """How the pods of each group are evicted, computed once per group."""

    def __init__(self, group_tree: GroupTrees) -> None:
        self._group_tree = group_tree
        self._by_group: dict[Key, _GroupEviction | None] = {}
        self.priorities: dict[Ref, int] = {}

    def lookup(self, pod: AssignedPod) -> _GroupEviction | None:
        """How a pod is evicted; None if its group does not exist."""
        assert pod.group is not None
        if pod.group not in self._by_group:
            self._by_group[pod.group] = self._compute(pod.group)
        return self._by_group[pod.group]

    def _compute(self, key: Key) -> _GroupEviction | None:
        ancestry = self._group_tree.ancestry(pod_group_ref(key))
        if not ancestry:
            return None
        modes = ((group, group.spec.disruption_mode) for group in reversed(ancestry))
        unit_group = next(
            (group_ref(group) for group, mode in modes if mode and mode.all is not None), None
        )
        priority = ancestry[-1].spec.priority
        if unit_group is not None:
            self.priorities[unit_group] = priority
        return _GroupEviction(priority, unit_group)
