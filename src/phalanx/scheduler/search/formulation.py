"""Translates a placement problem into an integer program, and its values back into assignments.

A column counts the members of one kind in one slot. A slot is a node, or several nodes with the
same free resources, allowed kinds and domains. Equal nodes share a slot if each of them holds one
member, or members of one kind only: then the total count describes them completely. Otherwise every
node is a slot, and of equal nodes only as many are used as there are members.

An integer program does not know the order in which members are placed, but affinity and spread
depend on it. So there are two readings:

    relaxed   what every order must satisfy: without a solution, no placement exists
    strict    what holds whichever member is placed last: a solution nearly always has a valid order
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import IntArray
from phalanx.scheduler.search.heuristics import KindAssignment
from phalanx.scheduler.search.placement_problem import (
    AffinityRule,
    ConflictRule,
    GroupRequirement,
    NodeDomains,
    PlacementProblem,
    SpreadRule,
)
from phalanx.scheduler.search.solver import IntegerProgram, IntegerProgramBuilder

#: The domain id of a node that is alone in its domain.
_OWN_DOMAIN = -2


@dataclass(frozen=True, eq=False, slots=True)
class NodeSlot:
    """Nodes that are counted together, and how many members of each kind they hold in total."""

    nodes: tuple[int, ...]
    limits: tuple[tuple[int, int], ...]
    #: How many members each node holds if there are several nodes; 0 if rows limit it.
    per_node: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether it stands for several nodes."""
        return self.per_node > 0

    @property
    def size(self) -> int:
        """How many members a shared slot holds."""
        return self.per_node * len(self.nodes)

    def next_node(self, taken: dict[NodeSlot, int]) -> int:
        """The node of the next member in this slot; `taken` counts earlier members per slot."""
        number = taken[self] = taken.get(self, -1) + 1
        return self.nodes[number // max(self.per_node, 1) % len(self.nodes)]


def build_slots(problem: PlacementProblem) -> list[NodeSlot]:
    """Divide the nodes of a problem into slots."""
    slots = _SlotBuilder(problem)
    return [slot for alike in _equal_nodes(problem) for slot in slots.divide(alike)]


def least_columns(problem: PlacementProblem) -> int:
    """A lower bound of how many columns a program has; faster than to build its slots."""
    allowed = problem.allowed.sum(axis=0)
    return int(sum(allowed[alike[0]] for alike in _equal_nodes(problem)))


def _equal_nodes(problem: PlacementProblem) -> list[list[int]]:
    """Group the nodes that no constraint distinguishes."""
    found: dict[tuple[object, ...], list[int]] = {}
    for node, features in enumerate(zip(*_node_features(problem), strict=True)):
        found.setdefault(features, []).append(node)
    return list(found.values())


def _node_features(problem: PlacementProblem) -> Iterator[list[object]]:
    """Yield, feature by feature, the values that distinguish nodes."""
    yield [row.tobytes() for row in problem.free]
    yield [row.tobytes() for row in np.packbits(problem.allowed.T, axis=1)]
    terms = [term for rule in problem.affinities for term in rule.terms]
    constrained = [conflict.domains for conflict in problem.conflicts]
    constrained += [term.domains for term in terms]
    constrained += [spread.domains for spread in problem.spreads]
    for domains in constrained:
        yield list(_domain_ids(domains).tolist())
    for term in terms:
        yield list((term.assigned_counts[term.domains.ids] > 0).tolist())
    levels = [level.ids for group in problem.requirement.groups for level in group.levels]
    for ids in {ids.tobytes(): ids for ids in levels}.values():
        yield list(ids.tolist())
    for spread in problem.spreads:
        yield list(spread.counted_nodes.tolist())
        yield list(spread.assigned_counts[spread.domains.ids].tolist())


def _domain_ids(domains: NodeDomains) -> IntArray:
    """The domain of each node; _OWN_DOMAIN if the node is alone in it."""
    sizes = np.bincount(domains.ids[domains.labelled], minlength=domains.size + 1)
    return np.where(domains.labelled & (sizes[domains.ids] == 1), _OWN_DOMAIN, domains.ids)


class _SlotBuilder:
    """Divides equal nodes into slots. Kinds with equal features are looked at once."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem

    def divide(self, equal_nodes: list[int]) -> Iterator[NodeSlot]:
        problem, node = self._problem, equal_nodes[0]
        most = self._max_per_kind(node)
        alike: dict[tuple[object, ...], list[int]] = {}
        for kind in most:
            alike.setdefault(problem.kinds[kind].features, []).append(kind)
        distinct = list(alike.values())
        if (per_node := self._max_per_node(node, most, distinct)) and len(equal_nodes) > 1:
            limits = [(k, min(m * len(equal_nodes), problem.counts[k])) for k, m in most.items()]
            yield NodeSlot(tuple(equal_nodes), tuple(limits), per_node)
            return
        needed = sum(problem.counts)
        if _holds_all_members(problem, node, list(most), distinct=[kinds[0] for kinds in distinct]):
            needed = 1
        for equal_node in equal_nodes[:needed]:
            yield NodeSlot((equal_node,), tuple(most.items()))

    def _max_per_kind(self, node: int) -> dict[int, int]:
        """How many members of each kind one node holds if it holds no other kind."""
        problem = self._problem
        most: dict[int, int] = {}
        known: dict[tuple[object, ...], int] = {}
        for kind in np.flatnonzero(problem.allowed[:, node]).tolist():
            features, count = problem.kinds[kind].features, problem.counts[kind]
            if features not in known:
                requests = problem.requests[kind]
                capacity = problem.free[node][requests > 0] // requests[requests > 0]
                is_alone = _are_in_conflict(problem, kind, kind, node=node)
                unlimited = 1 if is_alone else sum(problem.counts)
                known[features] = min(unlimited, int(capacity.min(initial=unlimited)))
            if max_count := min(count, known[features]):
                most[kind] = max_count
        return most

    def _max_per_node(
        self, node: int, max_per_kind: dict[int, int], distinct: list[list[int]]
    ) -> int:
        """How many members a node holds if only one, or one kind, fits; otherwise 0."""
        problem = self._problem
        if any(_needs_own_slot(problem, kinds[0], node) for kinds in distinct):
            return 0
        if len(max_per_kind) == 1:
            return next(iter(max_per_kind.values()))
        together = (
            _can_share_node(problem, kinds[0], (kinds[1:] or kinds)[0], node=node)
            if others is kinds
            else _can_share_node(problem, kinds[0], others[0], node=node)
            for number, kinds in enumerate(distinct)
            for others in distinct[number:]
        )
        return 0 if any(together) else 1


def _needs_own_slot(problem: PlacementProblem, kind: int, node: int) -> bool:
    """Whether a constraint of the kind depends on a domain that only this node is in."""
    affinities = [
        (row.kinds + row.matching_kinds, term.domains)
        for row in problem.affinities
        for term in row.terms
    ]
    spreads = [(row.kinds + row.matching_kinds, row.domains) for row in problem.spreads]
    for kinds, domains in affinities + spreads:
        domain = domains.ids[node]
        if kind in kinds and domain >= 0 and np.count_nonzero(domains.ids == domain) == 1:
            return True
    return False


def _can_share_node(problem: PlacementProblem, kind: int, other_kind: int, *, node: int) -> bool:
    if kind == other_kind and problem.counts[kind] == 1:
        return False
    fits = (problem.requests[kind] + problem.requests[other_kind] <= problem.free[node]).all()
    return bool(fits) and not _are_in_conflict(problem, kind, other_kind, node=node)


def _are_in_conflict(problem: PlacementProblem, kind: int, other_kind: int, *, node: int) -> bool:
    """Whether two kinds may not share a node."""
    return any(
        row.domains.ids[node] >= 0 and (kind, other_kind) in row.pairs for row in problem.conflicts
    )


def _holds_all_members(
    problem: PlacementProblem, node: int, kinds: list[int], *, distinct: list[int]
) -> bool:
    """Whether one node holds every member that may use such nodes."""
    if any(_needs_own_slot(problem, kind, node) for kind in distinct):
        return False
    has_conflicts = any(
        _are_in_conflict(problem, a, b, node=node) for a in distinct for b in distinct
    )
    counts = np.array(problem.counts)
    wanted = counts[kinds] @ problem.requests[kinds]
    return not has_conflicts and bool((wanted <= problem.free[node]).all())


#: Amounts are rounded to units so that none exceeds this; rounding never excludes a placement.
_MAX_UNITS = 1 << 20


class Formulation(NamedTuple):
    """A program, and the kind and slot that each of its first columns counts."""

    program: IntegerProgram
    columns: tuple[tuple[int, NodeSlot], ...]

    def assignments(self, values: Sequence[int]) -> Iterator[KindAssignment]:
        """Translate values of the program into assignments."""
        taken: dict[NodeSlot, int] = {}
        for (kind, slot), count in zip(self.columns, values, strict=False):
            for _ in range(count):
                yield KindAssignment(kind, slot.next_node(taken))


def formulate_program(problem: PlacementProblem, *, strict: bool = False) -> Formulation:
    """Build the relaxed or the strict program of a problem."""
    steps = formulate_in_steps(problem, strict=strict)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            formulation: Formulation = end.value
            return formulation


def formulate_in_steps(
    problem: PlacementProblem, *, strict: bool
) -> Generator[int, None, Formulation]:
    """Build the same program and yield after some columns and rows."""
    return _FormulationBuilder(problem, strict=strict).build()


class _FormulationBuilder:
    def __init__(self, problem: PlacementProblem, *, strict: bool) -> None:
        self._problem, self._strict, self._program = problem, strict, IntegerProgramBuilder()
        self._slots = build_slots(problem)
        self._columns: dict[tuple[int, NodeSlot], int] = {}
        for slot in self._slots:
            for kind, limit in slot.limits:
                self._columns[kind, slot] = self._program.add_column(limit)
        self._columns_by_kind: list[list[int]] = [[] for _ in problem.kinds]
        for (kind, _), column in self._columns.items():
            self._columns_by_kind[kind].append(column)

    def build(self) -> Generator[int, None, Formulation]:
        yield from self._add_member_counts()
        self._add_resource_limits()
        yield len(self._columns)
        for conflict in self._problem.conflicts:
            self._add_conflicts(conflict)
        firsts = [(affinity, self._add_affinity(affinity)) for affinity in self._problem.affinities]
        self._allow_single_first(firsts)
        for spread in self._problem.spreads:
            self._add_spread(spread)
        return Formulation(self._program.build(), tuple(self._columns))

    def _add_member_counts(self) -> Iterator[int]:
        problem, all_columns = self._problem, dict.fromkeys(self._columns.values(), 1)
        for kind, count in enumerate(problem.counts):
            self._program.add_at_most(dict.fromkeys(self._columns_by_kind[kind], 1), count)
        self._program.add_at_least(all_columns, problem.needed)
        if not problem.requirement.is_flat:
            yield from self._add_group(problem.requirement, None)

    def _add_group(self, group: GroupRequirement, is_placed: int | None) -> Iterator[int]:
        """Require that a group has all it needs if `is_placed` is 1, and no member if it is 0.

        None: the group must be placed.
        """
        program, children = self._program, group.children
        own = {column: 1 for kind in group.kinds for column in self._columns_by_kind[kind]}
        members = sum(self._problem.counts[kind] for kind in group.kinds)
        if group.needed:
            if is_placed is None:
                program.add_at_least(own, group.needed)
            else:
                program.add_at_least(own | {is_placed: -group.needed}, 0)
        if is_placed is not None:
            program.add_at_most(own | {is_placed: -members}, 0)
        if group.levels:
            self._add_topology(group)
        yield len(own)
        needs_all = group.children_needed == sum(child.copies for child in children)
        placed: dict[int, int] = {}
        for child in children:
            column = is_placed
            if not needs_all:
                column = program.add_column(child.copies)
                placed[column] = 1
                if is_placed is not None:
                    program.add_at_most({column: 1, is_placed: -child.copies}, 0)
            if child.copies == 1:
                yield from self._add_group(child, column)
            else:
                factor = child.copies if needs_all else 1
                self._add_copies(child, {} if column is None else {column: factor})
                yield child.copies
        if not needs_all and is_placed is None:
            program.add_at_least(placed, group.children_needed)
        elif is_placed is not None and not needs_all:
            program.add_at_least(placed | {is_placed: -group.children_needed}, 0)

    def _add_copies(self, group: GroupRequirement, placed: Mapping[int, int]) -> None:
        """Require that so many copies of a group are placed, each in one domain.

        `placed` are columns whose weighted sum is the number of copies; empty: all copies.
        """
        program, problem = self._program, self._problem
        domains: Mapping[int, Sequence[NodeSlot]] = {0: self._slots}
        if group.levels:
            domains = self._slots_by_domain(group.levels[0])
        numbers: list[int] = []
        for inside in domains.values():
            by_kind = [(kind, self._columns_of([kind], inside)) for kind in group.kinds]
            sizes = {kind: problem.counts[kind] // group.copies for kind in group.kinds}
            most = min(
                sum(program.limits[column] for column in columns) // sizes[kind]
                for kind, columns in by_kind
            )
            number = program.add_column(min(most, group.copies))
            numbers.append(number)
            for kind, columns in by_kind:
                members = dict.fromkeys(columns, 1)
                program.add_at_most(members | {number: -sizes[kind]}, 0)
                program.add_at_least(members | {number: -sizes[kind]}, 0)
        total = dict.fromkeys(numbers, 1)
        if placed:
            program.add_at_least(total | {column: -n for column, n in placed.items()}, 0)
            program.add_at_most(total | {column: -n for column, n in placed.items()}, 0)
        else:
            program.add_at_least(total, group.copies)

    def _add_topology(self, group: GroupRequirement) -> None:
        """Require that one domain of some level contains all members of a group."""
        program, kinds = self._program, group.all_kinds
        members = sum(self._problem.counts[kind] for kind in kinds)
        found = defaultdict[tuple[int, ...], list[NodeSlot]](list)
        for slot in self._slots:
            found[tuple(int(level.ids[slot.nodes[0]]) for level in group.levels)].append(slot)
        choices: dict[tuple[int, int], int] = {}
        for domains, inside in found.items():
            columns = self._columns_of(kinds, inside)
            if columns:
                for choice in enumerate(domains):
                    if choice[1] >= 0 and choice not in choices:
                        choices[choice] = program.add_column(1)
                limit = min(members, sum(program.limits[column] for column in columns))
                chosen = [choices[one] for one in enumerate(domains) if one in choices]
                program.add_at_most(dict.fromkeys(columns, 1) | dict.fromkeys(chosen, -limit), 0)
        program.add_at_most(dict.fromkeys(choices.values(), 1), 1)

    def _add_resource_limits(self) -> None:
        requests, free = _scale_to_units(self._problem)
        for slot in self._slots:
            slot_columns = {kind: self._columns[kind, slot] for kind, _ in slot.limits}
            if slot.is_shared:
                self._program.add_at_most(dict.fromkeys(slot_columns.values(), 1), slot.size)
            else:
                for resource, high in enumerate(free[slot.nodes[0]]):
                    terms = {
                        slot_columns[k]: requests[k][resource]
                        for k in slot_columns
                        if requests[k][resource]
                    }
                    self._program.add_at_most(terms, high)
        for total in self._problem.totals:
            taken = {
                column: int(total.requests[kind])
                for (kind, _), column in self._columns.items()
                if total.requests[kind]
            }
            self._program.add_at_most(taken, max(total.amount, 0))

    def _slots_by_domain(self, domains: NodeDomains) -> dict[int, list[NodeSlot]]:
        found = defaultdict[int, list[NodeSlot]](list)
        for slot in self._slots:
            domain = int(domains.ids[slot.nodes[0]])
            # A shared slot over several domains holds one member per node: no conflict is possible.
            if slot.is_shared and len(set(domains.ids[list(slot.nodes)].tolist())) > 1:
                continue
            if domain >= 0:
                found[domain].append(slot)
        return found

    def _columns_of(self, kinds: Sequence[int], inside: Sequence[NodeSlot]) -> list[int]:
        keys = ((kind, slot) for kind in kinds for slot in inside)
        return [self._columns[key] for key in keys if key in self._columns]

    def _add_conflicts(self, rule: ConflictRule) -> None:
        alone = {one for one, other in rule.pairs if one == other}
        for inside in self._slots_by_domain(rule.domains).values():
            for clique in _cliques(rule.pairs, alone):
                self._program.add_at_most(dict.fromkeys(self._columns_of(clique, inside), 1), 1)
            presence: dict[int, dict[int, int]] = {}
            for pair in rule.pairs:
                if not alone.issuperset(pair):
                    both = [
                        self._presence_columns(kind, inside, alone=alone, presence=presence)
                        for kind in pair
                    ]
                    if all(both):
                        self._program.add_at_most(both[0] | both[1], 1)

    def _presence_columns(
        self,
        kind: int,
        inside: Sequence[NodeSlot],
        alone: set[int],
        *,
        presence: dict[int, dict[int, int]],
    ) -> dict[int, int]:
        """Columns whose sum is at least 1 if a member of the kind is in one of the slots."""
        if kind not in presence:
            columns = self._columns_of([kind], inside)
            is_one = len(columns) == 1 and self._program.limits[columns[0]] == 1
            if kind in alone or is_one:
                presence[kind] = dict.fromkeys(columns, 1)
            else:
                presence[kind] = self._indicator_column(columns)
        return presence[kind]

    def _indicator_column(self, columns: Sequence[int]) -> dict[int, int]:
        """A column that must be 1 if any of the given columns is not zero."""
        if not columns:
            return {}
        indicator = {self._program.add_column(1): 1}
        self._program.add_only_if(columns, indicator)
        return indicator

    def _add_affinity(self, rule: AffinityRule) -> dict[int, int]:
        """Require a matching pod in the domain of each member, except for the first member.

        Returns the columns that say in which slot the first member is.
        """
        firsts: dict[NodeSlot, int] = {}
        for slot in self._slots if rule.may_be_first else ():
            if slot_columns := self._columns_of(rule.kinds, [slot]):
                firsts[slot] = first = self._program.add_column(1)
                self._program.add_at_most({first: 1} | dict.fromkeys(slot_columns, -1), 0)
        self._program.add_at_most(dict.fromkeys(firsts.values(), 1), 1)
        others = [kind for kind in rule.matching_kinds if kind not in rule.kinds]
        for term in rule.terms:
            for domain, inside in self._slots_by_domain(term.domains).items():
                if not term.assigned_counts[domain]:
                    support = dict.fromkeys(self._columns_of(others, inside), 1)
                    support |= {firsts[slot]: 1 for slot in inside if slot in firsts}
                    self._program.add_only_if(self._columns_of(rule.kinds, inside), support)
        return dict.fromkeys(firsts.values(), 1)

    def _allow_single_first(self, firsts: Sequence[tuple[AffinityRule, dict[int, int]]]) -> None:
        """Of kinds that match each other's terms, only one can have the first member."""
        for number, (rule, columns) in enumerate(firsts):
            for other_rule, other_columns in firsts[:number]:
                mutual = {*rule.kinds} <= {*other_rule.matching_kinds} and {*other_rule.kinds} <= {
                    *rule.matching_kinds
                }
                if (
                    mutual
                    and self._always_matches(rule, other_rule)
                    and self._always_matches(other_rule, rule)
                ):
                    self._program.add_at_most(columns | other_columns, 1)

    def _always_matches(self, rule: AffinityRule, other_rule: AffinityRule) -> bool:
        """Whether members of the first rule match the terms of the other on every node."""
        allowed = self._problem.allowed[list(rule.kinds)].any(axis=0)
        counted = np.any([term.domains.labelled for term in other_rule.terms], axis=0)
        return bool(counted[allowed].all())

    def _add_spread(self, rule: SpreadRule) -> None:
        """Limit the skew of every domain that has a member of the kinds."""
        program, domains = self._program, self._slots_by_domain(rule.domains)
        counted = {
            d: [s for s in found if rule.counted_nodes[s.nodes[0]]] for d, found in domains.items()
        }
        minimum = self._min_domain_column(rule, counted)
        counted_kinds = (
            rule.matching_kinds if self._strict else rule.kinds if rule.matches_itself else ()
        )
        for domain, found in domains.items():
            if columns := self._columns_of(rule.kinds, found):
                assigned = int(rule.assigned_counts[domain])
                slack = max(assigned + sum(self._problem.counts) - rule.max_skew, 0)
                terms = dict.fromkeys(self._columns_of(counted_kinds, counted[domain]), 1) | {
                    minimum: -1
                }
                terms |= dict.fromkeys(self._indicator_column(columns), slack)
                program.add_at_most(terms, rule.max_skew - assigned + slack)

    def _min_domain_column(
        self, rule: SpreadRule, counted: Mapping[int, Sequence[NodeSlot]]
    ) -> int:
        """A column for the smallest number of matching pods in any domain."""
        variable: list[tuple[int, list[int]]] = []
        lowest = (
            int(rule.assigned_counts.max(initial=0)) + sum(self._problem.counts)
            if rule.has_min_domains
            else 0
        )
        for domain in rule.eligible_domains.tolist() if rule.has_min_domains else ():
            assigned = int(rule.assigned_counts[domain])
            if columns := self._columns_of(rule.matching_kinds, counted.get(domain, ())):
                variable.append((assigned, columns))
            else:
                lowest = min(lowest, assigned)
        minimum = self._program.add_column(lowest)
        for assigned, columns in variable:
            self._program.add_at_most({minimum: 1} | dict.fromkeys(columns, -1), assigned)
        return minimum


def _scale_to_units(problem: PlacementProblem) -> tuple[list[list[int]], list[list[int]]]:
    """Requests and free amounts in whole units: exact, or rounded if the numbers are too large."""
    requests, free = problem.requests, problem.free
    if not requests.size or not free.size:
        return requests.tolist(), free.tolist()
    units = np.maximum(np.gcd.reduce(requests, axis=0), 1)
    units = np.maximum(units, -(-free.max(axis=0) // _MAX_UNITS))
    return (requests // units).tolist(), (free // units).tolist()


def _cliques(pairs: Sequence[tuple[int, int]], alone: set[int]) -> Iterator[list[int]]:
    """Sets of kinds of which a domain holds at most one member; they cover every pair."""
    conflicting = set(pairs)
    covered: set[tuple[int, int]] = set()
    for kind_a, kind_b in pairs:
        if (kind_a, kind_b) in covered or not alone.issuperset((kind_a, kind_b)):
            continue
        clique = [kind_a] if kind_a == kind_b else [kind_a, kind_b]
        for kind in sorted(alone - {kind_a, kind_b}):
            if all((min(kind, k), max(kind, k)) in conflicting for k in clique):
                clique.append(kind)
        covered |= {(min(a, b), max(a, b)) for a in clique for b in clique}
        yield clique
