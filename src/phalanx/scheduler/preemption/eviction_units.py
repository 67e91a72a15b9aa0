"""Eviction units: the pods that are evicted together, and the cost of evicting them.

A pod is evicted alone, with its group, or with a whole tree of groups: the highest ancestor with
disruption mode `all` is evicted as one unit. The priority of the root counts, not that of the pod.

    PodGroup a (mode single)  pods a-0, a-1  ─▶ two units of scope GROUP, one pod each
    PodGroup b (mode all)     pods b-0, b-1  ─▶ one unit of scope GROUP, two pods

Of two sets of victims the better one has, in this order: fewer pods beyond disruption budgets, a
lower highest priority, fewer gangs that fall below their quorum, fewer trees, fewer groups, fewer
pods, a later start of its oldest pod. A set never costs less than one of its subsets.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, Ref, pod_group_ref
from phalanx.api.other_kinds import PodDisruptionBudget
from phalanx.api.selectors import LabelRequirement, selector_requirements
from phalanx.scheduler.cluster.group_tree import GroupTrees, group_ref
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import Snapshot, SnapshotCache
from phalanx.scheduler.decision import Victim

#: The start time of pods that have not started: sorts after every timestamp.
_NOT_STARTED = "~"
#: How many units a loop over all of them handles between two yields.
UNITS_PER_STEP = 500
#: After how many pods the search for units yields.
PODS_PER_STEP = 2_000
#: The number of units of one pod that are kept.
_MAX_SINGLE_UNITS = 200_000


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
        *,
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
    #: How many gangs fall below their quorum.
    broken: int
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


def spare_members(snapshot: Snapshot) -> dict[Key, int]:
    """Return how many members each gang can lose before it has fewer than its quorum.

    A gang that has fewer already is left out: an eviction cannot break it.
    """
    found: dict[Key, int] = {}
    for key, placed in snapshot.member_counts.items():
        group = snapshot.group_trees.pod_group(key)
        if group is not None and group.spec.scheduling_policy.gang and placed >= group.quorum:
            found[key] = placed - group.quorum
    return found


class EvictionCostModel:
    """Computes the cost of victims under the disruption budgets and the quorums of gangs."""

    def __init__(
        self, budgets: Sequence[DisruptionAllowance], spare: Mapping[Key, int] | None = None
    ) -> None:
        self.budgets, self.spare_members = budgets, spare or {}
        self._covering_by_pod: dict[Key, tuple[int, ...]] = {}

    def cost(self, units: Iterable[EvictionUnit]) -> EvictionCost:
        """Return the cost of evicting all of these units."""
        chosen = list(units)
        scopes = [unit.scope for unit in chosen]
        earliest = min((unit.start_time for unit in chosen), default=_NOT_STARTED)
        return EvictionCost(
            violations=self.violations(chosen),
            priority=max((unit.priority for unit in chosen), default=_BELOW_ALL_PRIORITIES),
            broken=len(self.broken_groups(chosen)),
            trees=scopes.count(EvictionScope.TREE),
            groups=scopes.count(EvictionScope.GROUP),
            pods=sum(len(unit.pods) for unit in chosen),
            earliest_start=ReversedOrderStr(earliest),
        )

    def violations(self, units: Iterable[EvictionUnit]) -> int:
        """Count the evictions that exceed disruption budgets."""
        if not self.budgets:
            return 0
        spent = [0] * len(self.budgets)
        for unit in units:
            for pod in unit.pods:
                for number in self.covering_budgets(pod):
                    spent[number] += 1
        return sum(max(n - b.allowed, 0) for n, b in zip(spent, self.budgets, strict=True))

    def broken_groups(self, units: Iterable[EvictionUnit]) -> list[Key]:
        """Return the gangs that fall below their quorum without these units, sorted."""
        if not self.spare_members:
            return []
        lost: dict[Key, int] = {}
        for unit in units:
            for pod in unit.pods if unit.scope is not EvictionScope.POD else ():
                if pod.group and pod.group in self.spare_members:
                    lost[pod.group] = lost.get(pod.group, 0) + 1
        return sorted(key for key, count in lost.items() if count > self.spare_members[key])

    def order_units(self, units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
        """Sort units, the least important first; those that exceed a budget come last."""
        ordered = least_important_first(units)
        if not self.budgets:
            return ordered
        allowed: list[EvictionUnit] = []
        violating: list[EvictionUnit] = []
        spent = [0] * len(self.budgets)
        for unit in ordered:
            numbers = [number for pod in unit.pods for number in self.covering_budgets(pod)]
            fits = all(spent[n] + numbers.count(n) <= self.budgets[n].allowed for n in numbers)
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

    def covering_budgets(self, pod: AssignedPod) -> tuple[int, ...]:
        """Return the numbers of the budgets that the eviction of a pod counts against."""
        found = self._covering_by_pod.get(pod.key)
        if found is None:
            found = tuple(n for n, budget in enumerate(self.budgets) if budget.covers(pod))
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


def has_eviction_units(snapshot: Snapshot, below_priority: int) -> bool:
    """Whether a unit may have a lower priority: reads the indexes of the snapshot, not all pods."""
    index, trees = snapshot.pod_index.without_nominated, snapshot.group_trees
    lowest = index.lowest_priority()
    if lowest is not None and lowest < below_priority:
        return True
    # The priority of the root counts, which may be lower than that of the pods.
    lowest = trees.lowest_priority()
    if lowest is None or lowest >= below_priority:
        return False
    evictions = _GroupEvictions(trees)
    found = (evictions.lookup(key) for key in index.groups_with_pods())
    return any(eviction.priority < below_priority for eviction in found if eviction)


def find_eviction_units(
    snapshot: Snapshot, below_priority: int
) -> Generator[int, None, list[EvictionUnit]]:
    """Return the units of lower priority that are not terminating; yields after many pods."""
    if not has_eviction_units(snapshot, below_priority):
        return []
    evictions, single_units = _GroupEvictions(snapshot.group_trees), _SingleUnits(snapshot)
    pods_by_group: dict[Ref, list[AssignedPod]] = {}
    units: list[EvictionUnit] = []
    for number, pod in enumerate(snapshot.pod_index.without_nominated.assigned_pods(), 1):
        if number % PODS_PER_STEP == 0:
            yield number
        if pod.terminating:
            continue
        eviction = evictions.lookup(pod.group) if pod.group else None
        if eviction is None:
            if pod.priority < below_priority:
                units.append(single_units.get(pod, pod.priority, EvictionScope.POD))
        elif eviction.priority < below_priority:
            if eviction.unit_group is None:
                units.append(single_units.get(pod, eviction.priority, EvictionScope.GROUP))
            else:
                pods_by_group.setdefault(eviction.unit_group, []).append(pod)
    for group, pods in pods_by_group.items():
        is_tree = group.kind == COMPOSITE_POD_GROUP_KIND
        scope = EvictionScope.TREE if is_tree else EvictionScope.GROUP
        units.append(
            EvictionUnit(tuple(sorted(pods)), evictions.priorities[group], scope, group=group)
        )
    return units


#: The units of one pod that were built for a snapshot: most pods stay from one decision to another.
SINGLE_UNITS: SnapshotCache[dict[Key, EvictionUnit]] = SnapshotCache(dict)


class _SingleUnits:
    """Units of one pod, kept with the snapshot of the cache."""

    def __init__(self, snapshot: Snapshot) -> None:
        while snapshot.origin is not None:
            snapshot = snapshot.origin
        self._known = SINGLE_UNITS.of(snapshot)
        if len(self._known) > _MAX_SINGLE_UNITS:
            self._known.clear()

    def get(self, pod: AssignedPod, priority: int, scope: EvictionScope) -> EvictionUnit:
        """Return the unit of a pod."""
        unit = self._known.get(pod.key)
        if (
            unit is None
            or unit.pods[0] is not pod
            or (unit.priority, unit.scope)
            != (
                priority,
                scope,
            )
        ):
            unit = self._known[pod.key] = EvictionUnit((pod,), priority, scope)
        return unit


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

    def lookup(self, group: Key) -> _GroupEviction | None:
        """How a pod of a group is evicted; None if the group does not exist."""
        if group not in self._by_group:
            self._by_group[group] = self._compute(group)
        return self._by_group[group]

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
