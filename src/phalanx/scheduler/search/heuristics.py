"""Board: a puzzle being played. Who may go where as it stands; pieces are put and taken back.

The same answers as the filters give in a `Trial`, for kinds instead of pods, and reversible. What
depends on the other members is kept by one rule each; a kind that no rule concerns is asked nothing
but whether there is room.

Orders: in which to try members of different kinds, when the usual order led nowhere.

Whom others must be near comes before them; of the rest the scarcest first, by one measure or
another. A few orders, always the same ones. Places nothing.

Repair: placing on a board with second thoughts. Who does not fit may move somebody who does.

Packs tightly, and where a piece has no place takes one other piece away that then goes elsewhere.
A bounded number of moves is tried, always in the same order. May miss a way; never invents one.

Sequence: pieces in an order in which each may be put when its turn comes.

Nearness and evenness are judged as pods come, so that where everybody ends up is not enough: who
must be near others comes after them, and no domain gets ahead of the others on the way. Looks for
an order with backtracking, up to a number of steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.search.placement_problem import (
    AffinityRule,
    ConflictRule,
    NodeDomains,
    PlacementProblem,
    SpreadRule,
)


class KindAssignment(NamedTuple):
    """One of a kind on a node, both by their numbers in the puzzle."""

    kind: int
    node: int


class PartialPlacement:
    """What has been placed so far, and what that leaves open."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.free: IntArray = problem.free.copy()
        self.assignments: list[KindAssignment] = []
        kinds = len(problem.kinds)
        self._constraints: list[_ConstraintState] = [
            *(_ConflictState(row, kinds) for row in problem.conflicts),
            *(_AffinityState(row, kinds) for row in problem.affinities),
            *(_SpreadState(row) for row in problem.spreads),
        ]
        self._constraints_on = [
            [rule for rule in self._constraints if k in rule.constrained_kinds]
            for k in range(kinds)
        ]
        self._constraints_counting = [
            [rule for rule in self._constraints if k in rule.counted_kinds] for k in range(kinds)
        ]

    def feasible_nodes(self, kind: int) -> BoolArray:
        """The nodes where one more of a kind may go."""
        puzzle = self.problem
        mask: BoolArray = puzzle.allowed[kind] & (self.free >= puzzle.requests[kind]).all(axis=1)
        for rule in self._constraints_on[kind]:
            mask &= rule.feasible_nodes(kind)
        return mask

    def allows(self, assignment: KindAssignment) -> bool:
        """Whether a piece may be put."""
        return bool(self.feasible_nodes(assignment.kind)[assignment.node])

    def assign(self, assignment: KindAssignment) -> None:
        """Place one more; where it may be is not asked."""
        self.assignments.append(assignment)
        self.free[assignment.node] -= self.problem.requests[assignment.kind]
        for rule in self._constraints_counting[assignment.kind]:
            rule.adjust(assignment, +1)

    def unassign(self, assignment: KindAssignment) -> None:
        """Take one back: of equal pieces the last."""
        pieces = self.assignments
        del pieces[len(pieces) - 1 - pieces[::-1].index(assignment)]
        self.free[assignment.node] += self.problem.requests[assignment.kind]
        for rule in self._constraints_counting[assignment.kind]:
            rule.adjust(assignment, -1)

    def domain_load(self, assignment: KindAssignment) -> int:
        """How many there are already where it would count; whoever is lowest had better go first.

        Of pieces that nobody is counted with it is zero.
        """
        return max(
            (rule.domain_load(assignment) for rule in self._constraints_counting[assignment.kind]),
            default=0,
        )


class _ConstraintState(ABC):
    """Something about members among each other."""

    #: The kinds that it may keep from nodes, and those whose placing changes what it says.
    constrained_kinds: frozenset[int]
    counted_kinds: frozenset[int]

    @abstractmethod
    def feasible_nodes(self, kind: int) -> BoolArray:
        """The nodes where it allows one more of a kind."""

    @abstractmethod
    def adjust(self, assignment: KindAssignment, change: int) -> None:
        """A piece came or went."""

    def domain_load(self, assignment: KindAssignment) -> int:
        """How many are counted where a piece would be."""
        return 0


class _DomainCounts:
    """How many of each kind are in each domain; the last place, of nodes without one, stays 0."""

    def __init__(self, layer: NodeDomains, kinds: int) -> None:
        self.domain_ids = layer.ids
        self.counts: IntArray = np.zeros((kinds, layer.size + 1), np.int64)

    def add(self, assignment: KindAssignment, change: int) -> None:
        domain = self.domain_ids[assignment.node]
        if domain >= 0:
            self.counts[assignment.kind, domain] += change


class _ConflictState(_ConstraintState):
    """Rivals keep out of each other's domains."""

    def __init__(self, rule: ConflictRule, kinds: int) -> None:
        self._counts = _DomainCounts(rule.domains, kinds)
        rivals: list[list[int]] = [[] for _ in range(kinds)]
        for one, other in rule.pairs:
            rivals[one].append(other)
            if one != other:
                rivals[other].append(one)
        self._conflicting_kinds = [np.array(found, np.int64) for found in rivals]
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
    """Somebody of the crowd is near, or nobody is anywhere and one is the first."""

    def __init__(self, rule: AffinityRule, kinds: int) -> None:
        self._rule, self._matching_kinds = rule, np.array(rule.matching_kinds, np.int64)
        self._term_counts = [_DomainCounts(reach.domains, kinds) for reach in rule.terms]
        self.constrained_kinds, self.counted_kinds = (
            frozenset(rule.kinds),
            frozenset(rule.matching_kinds),
        )

    def feasible_nodes(self, kind: int) -> BoolArray:
        found = [heads.counts[self._matching_kinds].sum(axis=0) for heads in self._term_counts]
        reaches = self._rule.terms
        first = self._rule.may_be_first and not any(counts.any() for counts in found)
        mask = np.ones(len(reaches[0].domains.ids), bool)
        for reach, counts in zip(reaches, found, strict=True):
            ids = reach.domains.ids
            mask &= reach.domains.labelled if first else (counts + reach.assigned_counts)[ids] > 0
        return mask

    def adjust(self, assignment: KindAssignment, change: int) -> None:
        for heads in self._term_counts:
            heads.add(assignment, change)


class _SpreadState(_ConstraintState):
    """No domain gets too far ahead of the emptiest."""

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


#: The kinds of a puzzle, each as often as it has members.
MemberOrder = tuple[int, ...]


def candidate_orders(problem: PlacementProblem) -> Iterator[MemberOrder]:
    """Different orders of all members, by their kinds; the most promising first."""
    seen: dict[MemberOrder, None] = {}
    for measure in _SORT_KEYS:
        scarcity = measure(problem)
        kinds = _affinity_targets_first(
            problem, sorted(range(len(problem.kinds)), key=scarcity.__getitem__)
        )
        for arranged in (_kind_after_kind(problem, kinds), _round_robin(problem, kinds)):
            if arranged not in seen:
                seen[arranged] = None
                yield arranged


def _fewest_nodes_key(problem: PlacementProblem) -> list[tuple[float, ...]]:
    """Fewest nodes first, then the largest."""
    board, shares = PartialPlacement(problem), _dominant_shares(problem)
    places = [
        int(np.count_nonzero(board.feasible_nodes(kind))) for kind in range(len(problem.kinds))
    ]
    return [(float(place), -share) for place, share in zip(places, shares, strict=True)]


def _size_key(problem: PlacementProblem) -> list[tuple[float, ...]]:
    """The largest first."""
    return [(-share,) for share in _dominant_shares(problem)]


def _constraint_count_key(problem: PlacementProblem) -> list[tuple[float, ...]]:
    """Those who mind most first, then the largest."""
    minds = [0] * len(problem.kinds)
    pairs = [pair for row in problem.conflicts for pair in row.pairs]
    for kind in (*problem.order_dependent_kinds, *(kind for pair in pairs for kind in pair)):
        minds[kind] += 1
    shares = _dominant_shares(problem)
    return [(-float(mind), -share) for mind, share in zip(minds, shares, strict=True)]


_SORT_KEYS: tuple[Callable[[PlacementProblem], list[tuple[float, ...]]], ...] = (
    _fewest_nodes_key,
    _size_key,
    _constraint_count_key,
)


def _dominant_shares(problem: PlacementProblem) -> list[float]:
    """What share of all that is free each kind takes of its scarcest resource."""
    if not problem.requests.size:
        return [0.0] * len(problem.kinds)
    shares: list[float] = (
        (problem.requests / np.maximum(problem.free.sum(axis=0), 1)).max(axis=1).tolist()
    )
    return shares


def _affinity_targets_first(problem: PlacementProblem, kinds: list[int]) -> list[int]:
    """The same, but whoever must be near others after those; where all need each other as given."""
    needs: dict[int, set[int]] = {kind: set() for kind in kinds}
    for row in problem.affinities:
        for kind in row.kinds:
            needs[kind] |= set(row.matching_kinds) - set(row.kinds)
    arranged: list[int] = []
    left = list(kinds)
    while left:
        ready = (kind for kind in left if not needs[kind] & set(left) - {kind})
        chosen = next(ready, left[0])
        left.remove(chosen)
        arranged.append(chosen)
    return arranged


def _kind_after_kind(problem: PlacementProblem, kinds: list[int]) -> MemberOrder:
    counts = problem.counts
    return tuple(kind for kind in kinds for _ in range(counts[kind]))


def _round_robin(problem: PlacementProblem, kinds: list[int]) -> MemberOrder:
    """One of each, again and again: for those that are to be near each other, or even."""
    counts = problem.counts
    return tuple(kind for turn in range(max(counts)) for kind in kinds if turn < counts[kind])


#: How many moves are tried for one order.
MAX_MOVES = 256
#: How many members are tried between two yields.
MEMBERS_PER_STEP = 64


def place_with_moves(
    problem: PlacementProblem, order: MemberOrder
) -> Generator[int, None, list[KindAssignment]]:
    """As many members as can be placed this way, tried in this order."""
    board, moves = PartialPlacement(problem), _MoveBudget(MAX_MOVES)
    spare = len(order) - problem.needed
    for number, kind in enumerate(order, 1):
        if number % MEMBERS_PER_STEP == 0:
            yield number
        node = _tightest_node(board, kind)
        if node is not None:
            board.assign(KindAssignment(kind, node))
        elif not moves.place_by_moving(board, kind):
            spare -= 1
            if spare < 0:
                break
    return board.assignments


class _MoveBudget:
    """Moves, as long as there are any left to try."""

    def __init__(self, budget: int) -> None:
        self._moves_left = budget

    def place_by_moving(self, placement: PartialPlacement, kind: int) -> bool:
        """Place one of a kind by moving another piece; nothing has changed if that fails."""
        for piece in dict.fromkeys(reversed(placement.assignments)):
            if piece.kind == kind:
                continue
            if not self._moves_left:
                return False
            self._moves_left -= 1
            placement.unassign(piece)
            for node in np.flatnonzero(placement.feasible_nodes(kind)).tolist():
                placement.assign(KindAssignment(kind, node))
                elsewhere = _tightest_node(placement, piece.kind)
                if elsewhere is not None:
                    placement.assign(KindAssignment(piece.kind, elsewhere))
                    return True
                placement.unassign(KindAssignment(kind, node))
            placement.assign(piece)
        return False


def _tightest_node(placement: PartialPlacement, kind: int) -> int | None:
    """The open node with least left, each resource measured by what all nodes have of it."""
    mask = placement.feasible_nodes(kind)
    if not mask.any():
        return None
    whole = np.maximum(placement.problem.free.sum(axis=0), 1)
    left = (placement.free / whole).sum(axis=1)
    return int(np.where(mask, left, np.inf).argmin())


class SequenceFailure(Enum):
    """Why there is no sequence: there cannot be one, or none was found in time."""

    IMPOSSIBLE = "there is none"
    LIMIT_REACHED = "none was found"


def find_sequence(
    problem: PlacementProblem, max_counts: Mapping[KindAssignment, int], needed: int, limit: int
) -> list[KindAssignment] | SequenceFailure:
    """So many of these pieces, each at most so often, one after the other.

    Every set of pieces is visited once, in whatever order it came about; `limit` is how many.
    """
    board, seen, counts = PartialPlacement(problem), set[tuple[int, ...]](), problem.counts
    numbers = {piece: number for number, piece in enumerate(max_counts)}
    placed = [0] * len(numbers)
    turns = [_next_assignments(board, max_counts, counts)]
    while len(board.assignments) < needed:
        if not turns[-1]:
            turns.pop()
            if not turns:
                return SequenceFailure.IMPOSSIBLE
            last = board.assignments[-1]
            board.unassign(last)
            placed[numbers[last]] -= 1
            continue
        piece = turns[-1].pop()
        number = numbers[piece]
        placed[number] += 1
        if tuple(placed) in seen:
            placed[number] -= 1
            continue
        if len(seen) >= limit:
            return SequenceFailure.LIMIT_REACHED
        seen.add(tuple(placed))
        board.assign(piece)
        turns.append(_next_assignments(board, max_counts, counts))
    return board.assignments


def _next_assignments(
    placement: PartialPlacement, max_counts: Mapping[KindAssignment, int], counts: list[int]
) -> list[KindAssignment]:
    """The pieces that may be put now, the most promising last."""
    placed, kinds = (
        Counter(placement.assignments),
        Counter(piece.kind for piece in placement.assignments),
    )
    masks = {
        kind: placement.feasible_nodes(kind)
        for kind, count in enumerate(counts)
        if kinds[kind] < count
    }
    free = [
        piece
        for piece, count in max_counts.items()
        if placed[piece] < count and piece.kind in masks and masks[piece.kind][piece.node]
    ]
    picky = frozenset(placement.problem.order_dependent_kinds)
    return sorted(
        free, key=lambda p: (placement.domain_load(p), p.kind not in picky, p), reverse=True
    )
