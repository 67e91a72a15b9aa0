"""Heuristics on a placement problem: partial placements, member orders, moves and valid sequences.

    PartialPlacement   assigns and unassigns members; knows which nodes remain feasible
    candidate_orders   a few orders in which to try members of different kinds
    place_with_moves   greedy packing that may move one placed member to make space for another
    find_sequence      an order in which every assignment is allowed when its turn comes

A PartialPlacement gives the same answers as the filters of the policy, for kinds of members instead
of pods, and every assignment can be undone. Affinity and spread depend on the members that are
placed earlier, so a valid set of assignments may have no valid order; `find_sequence` searches one
with backtracking. All functions are deterministic and bounded by counts. They may miss a placement
but never return an invalid one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.search.placement_problem import (
    AffinityRule,
    ConflictRule,
    GroupRequirement,
    NodeDomains,
    PlacementProblem,
    SpreadRule,
)


class KindAssignment(NamedTuple):
    """One member of a kind on a node, both by their index in the problem."""

    kind: int
    node: int


class PartialPlacement:
    """The assignments made so far, and the nodes that remain feasible for each kind."""

    def __init__(self, problem: PlacementProblem, *, defers_mutual: bool = False) -> None:
        """`defers_mutual`: kinds that require each other may be assigned to any domain."""
        self.problem = problem
        self.free: IntArray = problem.free.copy()
        self.assignments: list[KindAssignment] = []
        kinds = len(problem.kinds)
        self._constraints: list[_ConstraintState] = [
            *(_ConflictState(row, kinds) for row in problem.conflicts),
            *(_AffinityState(row, kinds, defers_mutual) for row in problem.affinities),
            *(_SpreadState(row) for row in problem.spreads),
            *(_TopologyState(one) for one in problem.requirement.groups if one.levels),
        ]
        self._constraints_on = [
            [rule for rule in self._constraints if k in rule.constrained_kinds]
            for k in range(kinds)
        ]
        self._constraints_counting = [
            [rule for rule in self._constraints if k in rule.counted_kinds] for k in range(kinds)
        ]

    def feasible_nodes(self, kind: int) -> BoolArray:
        """The nodes that accept one more member of a kind."""
        problem = self.problem
        mask: BoolArray = problem.allowed[kind] & (self.free >= problem.requests[kind]).all(axis=1)
        for rule in self._constraints_on[kind]:
            mask &= rule.feasible_nodes(kind)
        return mask

    def allows(self, assignment: KindAssignment) -> bool:
        """Whether an assignment is feasible now."""
        return bool(self.feasible_nodes(assignment.kind)[assignment.node])

    def assign(self, assignment: KindAssignment) -> None:
        """Add an assignment without checking that it is feasible."""
        self.assignments.append(assignment)
        self.free[assignment.node] -= self.problem.requests[assignment.kind]
        for rule in self._constraints_counting[assignment.kind]:
            rule.adjust(assignment, +1)

    def unassign(self, assignment: KindAssignment) -> None:
        """Remove an assignment; of equal ones the last."""
        placed = self.assignments
        del placed[len(placed) - 1 - placed[::-1].index(assignment)]
        self.free[assignment.node] += self.problem.requests[assignment.kind]
        for rule in self._constraints_counting[assignment.kind]:
            rule.adjust(assignment, -1)

    def meets_mutual_affinity(self) -> bool:
        """Whether members of kinds that require each other share their domains."""
        return all(
            rule.is_met_by(self.assignments)
            for rule in self._constraints
            if isinstance(rule, _AffinityState)
        )

    def domain_load(self, assignment: KindAssignment) -> int:
        """The largest pod count of the domains in which the assignment would count; 0 for none.

        Assignments to domains with a low count should come first.
        """
        return max(
            (rule.domain_load(assignment) for rule in self._constraints_counting[assignment.kind]),
            default=0,
        )


class _ConstraintState(ABC):
    """A constraint between members, kept up to date as members are assigned and unassigned."""

    #: The kinds that it constrains, and the kinds whose assignments change its answer.
    constrained_kinds: frozenset[int]
    counted_kinds: frozenset[int]

    @abstractmethod
    def feasible_nodes(self, kind: int) -> BoolArray:
        """The nodes on which the constraint allows one more member of a kind."""

    @abstractmethod
    def adjust(self, assignment: KindAssignment, change: int) -> None:
        """Count an assignment that was added (+1) or removed (-1)."""

    def domain_load(self, assignment: KindAssignment) -> int:
        """The count of the domain that an assignment belongs to."""
        return 0


class _DomainCounts:
    """Counts per kind and domain. The last column, for nodes without a domain, stays 0."""

    def __init__(self, layer: NodeDomains, kinds: int) -> None:
        self.domain_ids = layer.ids
        self.counts: IntArray = np.zeros((kinds, layer.size + 1), np.int64)

    def add(self, assignment: KindAssignment, change: int) -> None:
        domain = self.domain_ids[assignment.node]
        if domain >= 0:
            self.counts[assignment.kind, domain] += change


class _ConflictState(_ConstraintState):
    def __init__(self, rule: ConflictRule, kinds: int) -> None:
        self._counts = _DomainCounts(rule.domains, kinds)
        conflicting: list[list[int]] = [[] for _ in range(kinds)]
        for one, other_kind in rule.pairs:
            conflicting[one].append(other_kind)
            if one != other_kind:
                conflicting[other_kind].append(one)
        self._conflicting_kinds = [np.array(found, np.int64) for found in conflicting]
        self.constrained_kinds = self.counted_kinds = frozenset(
            kind for pair in rule.pairs for kind in pair
        )

    def feasible_nodes(self, kind: int) -> BoolArray:
        here: IntArray = self._counts.counts[self._conflicting_kinds[kind]].sum(axis=0)
        mask: BoolArray = here[self._counts.domain_ids] == 0
        return mask

    def adjust(self, assignment: KindAssignment, change: int) -> None:
        self._counts.add(assignment, change)


class _AffinityState(_ConstraintState):
    """A matching pod is in the domain, or no matching pod exists and the first is placed.

    Of kinds that require each other, the first may be placed too; the others must follow it.
    """

    def __init__(self, rule: AffinityRule, kinds: int, defers_mutual: bool) -> None:
        self._is_deferred = rule.is_mutual and defers_mutual
        self._may_be_first = rule.may_be_first or (
            rule.is_mutual and not any(term.total for term in rule.terms)
        )
        self._rule, self._matching_kinds = rule, np.array(rule.matching_kinds, np.int64)
        self._term_counts = [_DomainCounts(term.domains, kinds) for term in rule.terms]
        self.constrained_kinds, self.counted_kinds = (
            frozenset(rule.kinds),
            frozenset(rule.matching_kinds),
        )

    def feasible_nodes(self, kind: int) -> BoolArray:
        found = [
            term_counts.counts[self._matching_kinds].sum(axis=0)
            for term_counts in self._term_counts
        ]
        terms = self._rule.terms
        is_first = self._may_be_first and not any(counts.any() for counts in found)
        first = is_first or self._is_deferred
        mask = np.ones(len(terms[0].domains.ids), bool)
        for term, counts in zip(terms, found, strict=True):
            ids = term.domains.ids
            mask &= term.domains.labelled if first else (counts + term.assigned_counts)[ids] > 0
        return mask

    def adjust(self, assignment: KindAssignment, change: int) -> None:
        for term_counts in self._term_counts:
            term_counts.add(assignment, change)

    def is_met_by(self, assignments: Iterable[KindAssignment]) -> bool:
        """Whether all members of these kinds have the pods that they require, if it is deferred."""
        if not self._is_deferred:
            return True
        own = [one.node for one in assignments if one.kind in self._rule.kinds]
        return all(
            (term_counts.counts[self._matching_kinds].sum(axis=0) + term.assigned_counts)[
                term.domains.ids[own]
            ].all()
            for term, term_counts in zip(self._rule.terms, self._term_counts, strict=True)
        )


class _SpreadState(_ConstraintState):
    """No domain exceeds the domain with the fewest matching pods by more than maxSkew."""

    def __init__(self, rule: SpreadRule) -> None:
        self._rule, self._domain_ids = rule, rule.domains.ids
        self._counts: IntArray = rule.assigned_counts.copy()
        self.constrained_kinds, self.counted_kinds = (
            frozenset(rule.kinds),
            frozenset((*rule.matching_kinds, *rule.kinds)),
        )

    def feasible_nodes(self, kind: int) -> BoolArray:
        row, counts = self._rule, self._counts
        least = counts[row.eligible_domains].min() if row.has_min_domains else 0
        mask: BoolArray = counts[self._domain_ids] + row.matches_itself - least <= row.max_skew
        return mask & row.domains.labelled

    def adjust(self, assignment: KindAssignment, change: int) -> None:
        row = self._rule
        if (
            assignment.kind in row.matching_kinds
            and row.counted_nodes[assignment.node]
            and self._domain_ids[assignment.node] >= 0
        ):
            self._counts[self._domain_ids[assignment.node]] += change

    def domain_load(self, assignment: KindAssignment) -> int:
        return int(self._counts[self._domain_ids[assignment.node]])


class _TopologyState(_ConstraintState):
    """All members of a group are in one domain of some level."""

    def __init__(self, group: GroupRequirement) -> None:
        self._levels = group.levels
        self._counts: list[IntArray] = [
            np.zeros(level.size + 1, np.int64) for level in group.levels
        ]
        self._total = 0
        self.constrained_kinds = self.counted_kinds = frozenset(group.all_kinds)

    def feasible_nodes(self, kind: int) -> BoolArray:
        """The nodes of the domains, one per level, that contain all members so far."""
        masks = [
            (counts[:-1] == self._total)[level.ids] & level.labelled
            for level, counts in zip(self._levels, self._counts, strict=True)
        ]
        found: BoolArray = np.any(masks, axis=0)
        return found

    def adjust(self, assignment: KindAssignment, change: int) -> None:
        self._total += change
        for level, counts in zip(self._levels, self._counts, strict=True):
            counts[level.ids[assignment.node]] += change


#: The kinds of a problem, each repeated once per member.
MemberOrder = tuple[int, ...]


def candidate_orders(problem: PlacementProblem) -> Iterator[MemberOrder]:
    """Yield distinct orders of all members, by kind; the most promising first."""
    seen, counts = dict[MemberOrder, None](), problem.counts
    for measure in _SORT_KEYS:
        scarcity = measure(problem)
        kinds = _affinity_targets_first(
            problem, sorted(range(len(problem.kinds)), key=scarcity.__getitem__)
        )
        kind_after_kind = tuple(kind for kind in kinds for _ in range(counts[kind]))
        # One member of each kind in turn: this suits kinds with affinity or spread constraints.
        round_robin = tuple(
            kind for turn in range(max(counts)) for kind in kinds if turn < counts[kind]
        )
        for order in (kind_after_kind, round_robin):
            if order not in seen:
                seen[order] = None
                yield order


def _fewest_nodes_key(problem: PlacementProblem) -> list[tuple[float, ...]]:
    """The kind with the fewest feasible nodes first, then the largest."""
    placement, shares = PartialPlacement(problem), _dominant_shares(problem)
    node_counts = [
        int(np.count_nonzero(placement.feasible_nodes(kind))) for kind in range(len(problem.kinds))
    ]
    return [
        (float(node_count), -share) for node_count, share in zip(node_counts, shares, strict=True)
    ]


def _size_key(problem: PlacementProblem) -> list[tuple[float, ...]]:
    """The largest kind first."""
    return [(-share,) for share in _dominant_shares(problem)]


def _constraint_count_key(problem: PlacementProblem) -> list[tuple[float, ...]]:
    """The kind with the most constraints first, then the largest."""
    counts = [0] * len(problem.kinds)
    pairs = [pair for row in problem.conflicts for pair in row.pairs]
    for kind in (*problem.order_dependent_kinds, *(kind for pair in pairs for kind in pair)):
        counts[kind] += 1
    shares = _dominant_shares(problem)
    return [(-float(count), -share) for count, share in zip(counts, shares, strict=True)]


_SORT_KEYS: tuple[Callable[[PlacementProblem], list[tuple[float, ...]]], ...] = (
    _fewest_nodes_key,
    _size_key,
    _constraint_count_key,
)


def _dominant_shares(problem: PlacementProblem) -> list[float]:
    """The largest share of the free amount of any resource that a member of each kind requests."""
    if not problem.requests.size:
        return [0.0] * len(problem.kinds)
    shares: list[float] = (
        (problem.requests / np.maximum(problem.free.sum(axis=0), 1)).max(axis=1).tolist()
    )
    return shares


def _affinity_targets_first(problem: PlacementProblem, kinds: list[int]) -> list[int]:
    """Move each kind behind the kinds that its affinity targets; cycles keep the given order."""
    needs: dict[int, set[int]] = {kind: set() for kind in kinds}
    for row in problem.affinities:
        for kind in row.kinds:
            needs[kind] |= set(row.matching_kinds) - set(row.kinds)
    ordered: list[int] = []
    remaining = list(kinds)
    while remaining:
        ready = (kind for kind in remaining if not needs[kind] & set(remaining) - {kind})
        chosen = next(ready, remaining[0])
        remaining.remove(chosen)
        ordered.append(chosen)
    return ordered


#: How many moves are tried for one order of members.
MAX_MOVES = 256
#: How many members are placed between two yields.
MEMBERS_PER_STEP = 64


def place_with_moves(
    problem: PlacementProblem, order: MemberOrder
) -> Generator[int, None, list[KindAssignment]]:
    """Place members in this order on the fullest feasible node, moving others if necessary."""
    placement, mover = PartialPlacement(problem), _MemberMover(MAX_MOVES)
    spare = len(order) - problem.needed
    for number, kind in enumerate(order, 1):
        if number % MEMBERS_PER_STEP == 0:
            yield number
        node = _tightest_node(placement, kind)
        if node is not None:
            placement.assign(KindAssignment(kind, node))
        elif not mover.place_by_moving(placement, kind):
            spare -= 1
            if spare < 0:
                break
    return placement.assignments


class _MemberMover:
    """Makes space by moving placed members, up to a number of moves."""

    def __init__(self, most_moves: int) -> None:
        self._moves_left = most_moves

    def place_by_moving(self, placement: PartialPlacement, kind: int) -> bool:
        """Place one member of a kind by moving one other member; change nothing on failure."""
        for other in dict.fromkeys(reversed(placement.assignments)):
            if other.kind == kind:
                continue
            if not self._moves_left:
                return False
            self._moves_left -= 1
            placement.unassign(other)
            for node in np.flatnonzero(placement.feasible_nodes(kind)).tolist():
                placement.assign(KindAssignment(kind, node))
                elsewhere = _tightest_node(placement, other.kind)
                if elsewhere is not None:
                    placement.assign(KindAssignment(other.kind, elsewhere))
                    return True
                placement.unassign(KindAssignment(kind, node))
            placement.assign(other)
        return False


def _tightest_node(placement: PartialPlacement, kind: int) -> int | None:
    """The feasible node with the least free resources, relative to the free total of all nodes."""
    mask = placement.feasible_nodes(kind)
    if not mask.any():
        return None
    whole = np.maximum(placement.problem.free.sum(axis=0), 1)
    left = (placement.free / whole).sum(axis=1)
    return int(np.where(mask, left, np.inf).argmin())


class SequenceFailure(Enum):
    """Why no sequence was returned."""

    IMPOSSIBLE = "no valid sequence exists"
    LIMIT_REACHED = "the step limit was reached"


def find_sequence(
    problem: PlacementProblem, max_counts: Mapping[KindAssignment, int], needed: int, *, limit: int
) -> list[KindAssignment] | SequenceFailure:
    """Find assignments that meet the requirement, each feasible after those before it.

    At least `needed` are found, by backtracking. Each assignment is used at most as often as
    `max_counts` says. Every multiset of assignments is visited once; `limit` bounds how many are
    visited.
    """
    placement, seen = PartialPlacement(problem, defers_mutual=True), set[tuple[int, ...]]()
    counts = problem.counts
    numbers = {assignment: number for number, assignment in enumerate(max_counts)}
    placed = [0] * len(numbers)
    alternatives = [_next_assignments(placement, max_counts, counts)]
    while len(placement.assignments) < needed or not _meets_requirement(placement):
        if not alternatives[-1]:
            alternatives.pop()
            if not alternatives:
                return SequenceFailure.IMPOSSIBLE
            last = placement.assignments[-1]
            placement.unassign(last)
            placed[numbers[last]] -= 1
            continue
        assignment = alternatives[-1].pop()
        number = numbers[assignment]
        placed[number] += 1
        if tuple(placed) in seen:
            placed[number] -= 1
            continue
        if len(seen) >= limit:
            return SequenceFailure.LIMIT_REACHED
        seen.add(tuple(placed))
        placement.assign(assignment)
        alternatives.append(_next_assignments(placement, max_counts, counts))
    return placement.assignments


def _meets_requirement(placement: PartialPlacement) -> bool:
    if not placement.meets_mutual_affinity():
        return False
    counts = Counter(assignment.kind for assignment in placement.assignments)
    return placement.problem.requirement.is_met(
        [counts[k] for k in range(len(placement.problem.kinds))]
    )


def _next_assignments(
    placement: PartialPlacement, max_counts: Mapping[KindAssignment, int], counts: list[int]
) -> list[KindAssignment]:
    """The assignments that are feasible now, the most promising last."""
    placed = Counter(placement.assignments)
    kinds = Counter(assignment.kind for assignment in placement.assignments)
    masks = {
        kind: placement.feasible_nodes(kind)
        for kind, count in enumerate(counts)
        if kinds[kind] < count
    }
    free = [
        one
        for one, count in max_counts.items()
        if placed[one] < count and one.kind in masks and masks[one.kind][one.node]
    ]
    order_dependent = frozenset(placement.problem.order_dependent_kinds)
    return sorted(
        free,
        key=lambda p: (placement.domain_load(p), p.kind not in order_dependent, p),
        reverse=True,
    )
