"""The choice of victims as an integer program, for the exact solver.

    columns   x  how many units of a class go       y  how many members of a kind a node takes
              v  evictions beyond a budget          b  whether a gang falls below its quorum
              c  whether a group is placed          z  whether a group is in a topology domain
    rows      node:    requests of y - amounts freed by x <= free amounts
              budget:  x - v <= allowed             gang:  x - (members) * b <= spare members
              group:   y >= lacking members * c     tree:  c of the children >= quorum * c

Units that free the same amounts of the same node and cost the same are one class, of which the
latest started go first. `plan_search.py` minimizes the parts of the cost one after the other, each
with the parts before it bounded. Members are modelled if their nodes depend on resources only.
Every solution is verified by the filters before it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot, mask_of
from phalanx.scheduler.entity import Entity, EntityRejection, Member
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    PlacementContext,
    count_scheduled,
    sort_members,
)
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import find_placements, topology_levels
from phalanx.scheduler.preemption.eviction_units import (
    UNITS_PER_STEP,
    EvictionCostModel,
    EvictionScope,
    EvictionUnit,
)
from phalanx.scheduler.search.solver import (
    IntegerProgram,
    IntegerProgramBuilder,
    LinearConstraint,
    Steps,
)

#: The parts of the cost that are sums, in their order.
SUMS = ("violations", "broken", "trees", "groups", "pods")
#: Factors above this lose precision in a solver.
_MAX_FACTOR = 10**7


class _MemberKind(NamedTuple):
    """Members of one PodGroup that have the same shape."""

    members: list[Member]
    shape: PodShape


class _UnitClass(NamedTuple):
    """Interchangeable units, the latest started first, and the column of how many go."""

    units: list[EvictionUnit]
    column: int


class VictimProgram:
    """The program of one preemption. `members` is how many members must get a node.

    `assemble` comes first: it adds the columns and rows.
    """

    def __init__(
        self,
        entity: Entity,
        context: PlacementContext,
        units: Sequence[EvictionUnit],
        *,
        costs: EvictionCostModel,
        members: int,
    ) -> None:
        self._entity, self._context, self._units = entity, context, units
        self._costs, self._members, self._builder = costs, members, IntegerProgramBuilder()
        self._kinds: list[_MemberKind] = []
        #: The columns y by kind and node, and the other columns of the nodes.
        self._placed: dict[tuple[int, int], int] = {}
        self._classes: list[_UnitClass] = []
        self._sums: dict[str, dict[int, int]] = {name: {} for name in SUMS}

    def assemble(self, max_columns: int) -> Steps[bool]:
        """Add all columns and rows; False if they are too many or too large for a solver."""
        freed = _FreedAmounts(self._context.snapshot)
        yield from freed.add_units(self._units)
        root = self._add_group(self._entity, freed)
        self._builder.add_at_least({root: 1}, 1)
        self._builder.add_at_least(dict.fromkeys(self._placed.values(), 1), self._members)
        if self.size > max_columns:
            return False
        yield from self._add_units(freed)
        if self.size > max_columns:
            return False
        yield from self._add_capacities(freed)
        return self.size <= max_columns and not self.has_large_factors

    @staticmethod
    def is_applicable(entity: Entity, context: PlacementContext) -> bool:
        """Whether the node of every member depends on resources only."""
        if not context.policy.checks_capacity or any(
            member.shape.ports or member.shape.claims or member.shape.volumes.is_dynamic
            for member in entity.members
        ):
            return False
        simulation = PlacementSimulation(context.snapshot, context.policy, entity.members)
        return all(simulation.depends_on_load_only(member) for member in entity.members)

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self._builder.limits)

    @property
    def has_large_factors(self) -> bool:
        """Whether the factors are too large for a solver to be exact."""
        return any(abs(n) > _MAX_FACTOR for row in self._builder.rows for _, n in row.terms)

    def build(
        self,
        bounds: Mapping[str, int],
        *,
        priority: int,
        start_time: str = "",
        minimize: str = "",
    ) -> IntegerProgram:
        """Return the program with at most these sums and only units within the two limits.

        `priority` is the highest and `start_time` the earliest of units that may go.
        """
        limits = list(self._builder.limits)
        for units, column in self._classes:
            usable = [
                unit
                for unit in units
                if unit.priority <= priority and unit.start_time >= start_time
            ]
            limits[column] = len(usable)
        rows = [
            LinearConstraint(tuple(self._sums[name].items()), high=bound)
            for name, bound in bounds.items()
            if self._sums[name]
        ]
        objective = tuple(self._sums[minimize].items()) if minimize else ()
        return IntegerProgram(tuple(limits), (*self._builder.rows, *rows), objective)

    def read_units(self, values: Sequence[int]) -> list[EvictionUnit]:
        """Return the units that a solution evicts."""
        return [unit for units, column in self._classes for unit in units[: values[column]]]

    def read_assignments(self, values: Sequence[int]) -> list[Assignment]:
        """Return the nodes that a solution assigns."""
        members = [iter(kind.members) for kind in self._kinds]
        return [
            Assignment(next(members[kind]), node)
            for (kind, node), column in self._placed.items()
            for _ in range(values[column])
        ]

    def _add_group(self, entity: Entity, freed: _FreedAmounts) -> int:
        """Add a group and those below it; return the column that says whether it is placed."""
        placed, first = self._builder.add_column(1), len(self._kinds)
        if entity.is_composite:
            children = [self._add_group(child, freed) for child in entity.children]
            self._builder.add_at_least(dict.fromkeys(children, 1) | {placed: -entity.quorum}, 0)
            for child in children:
                self._builder.add_at_most({child: 1, placed: -1}, 0)
        else:
            columns: list[int] = []
            by_shape: dict[PodShape, list[Member]] = {}
            for member in sort_members(entity.members):
                by_shape.setdefault(member.shape, []).append(member)
            for shape, members in by_shape.items():
                columns += self._add_kind(_MemberKind(members, shape), placed, freed)
            lacking = max(entity.quorum - count_scheduled(entity, self._context.snapshot), 0)
            self._builder.add_at_least(dict.fromkeys(columns, 1) | {placed: -lacking}, 0)
        self._add_topology(entity, range(first, len(self._kinds)), placed)
        return placed

    def _add_kind(self, kind: _MemberKind, placed: int, freed: _FreedAmounts) -> list[int]:
        """Add the members of a kind, on the nodes that could take one without any unit."""
        context, number, count = self._context, len(self._kinds), len(kind.members)
        self._kinds.append(kind)
        scores = node_scores_of(context.snapshot, context.policy, kind.shape)
        allowed = scores.allowed_nodes
        if context.nodes is not None:
            allowed = allowed & mask_of(context.nodes, len(context.snapshot))
        capacity: IntArray = np.where(allowed, count, 0)
        if scores.request.has_unknown_resource:
            capacity[:] = 0
        free = freed.free_without_units
        for column, amount in scores.request.amounts:
            capacity = np.minimum(capacity, np.maximum(free[:, column], 0) // max(amount, 1))
        columns = []
        for node in np.flatnonzero(capacity).tolist():
            column = self._builder.add_column(int(capacity[node]))
            self._placed[number, node] = column
            columns.append(column)
        self._builder.add_at_most(dict.fromkeys(columns, 1) | {placed: -count}, 0)
        return columns

    def _add_topology(self, entity: Entity, kinds: Iterable[int], placed: int) -> None:
        """Require that all members below a group are in one domain of its topology key."""
        levels = topology_levels(entity) if entity.group else ()
        key = "" if isinstance(levels, EntityRejection) or not levels else levels[-1].key
        placements = find_placements(entity, self._context.snapshot, self._context.nodes, key=key)
        if placements is None:
            return
        inside = dict.fromkeys(kinds)
        own = {key: column for key, column in self._placed.items() if key[0] in inside}
        domains: dict[int, int] = {}
        for placement in () if isinstance(placements, EntityRejection) else placements:
            chosen = self._builder.add_column(1)
            domains |= dict.fromkeys(placement.nodes.tolist(), chosen)
        chosen_columns = dict.fromkeys(domains.values(), 1)
        self._builder.add_at_most(chosen_columns | {placed: -1}, 0)
        for (_, node), column in own.items():
            limit = self._builder.limits[column]
            row = {column: 1, domains[node]: -limit} if node in domains else {column: 1}
            self._builder.add_at_most(row, 0)

    def _add_units(self, freed: _FreedAmounts) -> Steps[None]:
        """Add the units that free a node which a member may use, with their costs."""
        nodes = {node for _, node in self._placed}
        classes: dict[object, list[EvictionUnit]] = {}
        for number, unit in enumerate(self._units):
            if number % UNITS_PER_STEP == 0:
                yield number
            if any(node in nodes for node in freed.by_unit[number]):
                classes.setdefault(self._class_key(number, unit, freed), []).append(unit)
        budgets: dict[int, dict[int, int]] = {}
        gangs: dict[Key, dict[int, int]] = {}
        spare = self._costs.spare_members
        for number, alike in enumerate(classes.values()):
            if number % UNITS_PER_STEP == 0:
                yield number
            alike.sort(key=lambda unit: unit.start_time, reverse=True)
            unit, column = alike[0], self._builder.add_column(len(alike))
            self._classes.append(_UnitClass(alike, column))
            self._sums["pods"][column] = unit.size
            if unit.scope is not EvictionScope.POD:
                name = "trees" if unit.scope is EvictionScope.TREE else "groups"
                self._sums[name][column] = 1
            for pod in unit.pods:
                for budget in self._costs.covering_budgets(pod):
                    terms = budgets.setdefault(budget, {})
                    terms[column] = terms.get(column, 0) + 1
                if pod.group and pod.group in spare and unit.scope is not EvictionScope.POD:
                    terms = gangs.setdefault(pod.group, {})
                    terms[column] = terms.get(column, 0) + 1
        self._add_budgets(budgets)
        self._add_gangs(gangs)

    def _class_key(self, number: int, unit: EvictionUnit, freed: _FreedAmounts) -> object:
        if unit.size > 1:
            return number
        (pod,) = unit.pods
        group = pod.group if pod.group in self._costs.spare_members else None
        return (
            pod.node,
            tuple(freed.by_unit[number].values()),
            unit.priority,
            unit.scope,
            self._costs.covering_budgets(pod),
            group,
        )

    def _add_budgets(self, budgets: Mapping[int, dict[int, int]]) -> None:
        for number, terms in budgets.items():
            allowed = max(self._costs.budgets[number].allowed, 0)
            most = sum(self._builder.limits[column] * n for column, n in terms.items())
            if most > allowed:
                beyond = self._builder.add_column(most - allowed)
                self._sums["violations"][beyond] = 1
                self._builder.add_at_most(terms | {beyond: -1}, allowed)

    def _add_gangs(self, gangs: Mapping[Key, dict[int, int]]) -> None:
        for key, terms in gangs.items():
            spare = self._costs.spare_members[key]
            most = sum(self._builder.limits[column] * n for column, n in terms.items())
            if most > spare:
                broken = self._builder.add_column(1)
                self._sums["broken"][broken] = 1
                self._builder.add_at_most(terms | {broken: spare - most}, spare)

    def _add_capacities(self, freed: _FreedAmounts) -> Steps[None]:
        """Limit the members of each node by the amounts that are free or freed."""
        snapshot = self._context.snapshot
        requests = [
            dict(kind.shape.request_vector(snapshot.columns).amounts) for kind in self._kinds
        ]
        columns = {column for amounts in requests for column in amounts}
        numbers = {id(unit): n for n, unit in enumerate(self._units)}
        terms: dict[tuple[int, int], dict[int, int]] = {}
        for units, class_column in self._classes:
            for node, amounts in freed.by_unit[numbers[id(units[0])]].items():
                for column, amount in amounts:
                    terms.setdefault((node, column), {})[class_column] = -amount
        nodes = dict.fromkeys(node for _, node in self._placed)
        for number, node in enumerate(nodes):
            if number % UNITS_PER_STEP == 0:
                yield number
            kinds = [k for k in range(len(self._kinds)) if (k, node) in self._placed]
            placed = {kind: self._placed[kind, node] for kind in kinds}
            for column in sorted(columns):
                row = {placed[k]: requests[k][column] for k in placed if column in requests[k]}
                if row:
                    row |= terms.get((node, column), {})
                    self._add_capacity(row, placed, int(freed.free[node, column]))

    def _add_capacity(self, row: dict[int, int], placed: Mapping[int, int], free: int) -> None:
        unit = gcd(*row.values())
        scaled = {column: factor // unit for column, factor in row.items()}
        if free >= 0:
            self._builder.add_at_most(scaled, free // unit)
            return
        # More is requested than the node has: that matters only if the node takes a member.
        used = self._builder.add_column(1)
        self._builder.add_only_if(placed.values(), {used: 1})
        self._builder.add_at_most(scaled | {used: -(free // unit)}, 0)


class _FreedAmounts:
    """What each unit frees, by node and column, and the free amounts of the nodes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.free: IntArray = snapshot.allocatable - snapshot.requested
        self.free_without_units = self.free.copy()
        self.by_unit: list[dict[int, tuple[tuple[int, int], ...]]] = []

    def add_units(self, units: Sequence[EvictionUnit]) -> Steps[None]:
        """Add what the units free, in their order."""
        for number, unit in enumerate(units):
            if number % UNITS_PER_STEP == 0:
                yield number
            amounts: dict[int, dict[int, int]] = {}
            for node, column, amount in _pod_amounts(self._snapshot, unit):
                here = amounts.setdefault(node, {})
                here[column] = here.get(column, 0) + amount
                self.free_without_units[node, column] += amount
            self.by_unit.append({node: tuple(here.items()) for node, here in amounts.items()})


def _pod_amounts(snapshot: Snapshot, unit: EvictionUnit) -> Iterator[tuple[int, int, int]]:
    for pod in unit.pods:
        node = snapshot.index.get(pod.node)
        if node is not None:
            for column, amount in pod.shape.request_vector(snapshot.columns).amounts:
                yield node, column, amount
