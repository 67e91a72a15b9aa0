"""Stage: where a placement on paper is performed before the filters, each on a trial of its own.

What was thought out on a board or by a solver counts only once it has been shown here: every member
is put on its node while the filters watch, those before it being there. Members to spare then go
where they are best, or nowhere.

Inquiry: what a solver is asked about a puzzle, and what its answers are worth.

A generous program first: if it has no solution there is no placement. What is found is performed on
the stage. If it cannot be put in order a strict program is asked for another, and where there is
little to try everything is tried.

Rescue: a placement for members of which placing one after the other did not place enough.

From the cheap to the thorough: is there room at all; other orders; moving who is in the way; and
the questions to an exact solver. Each step may find a placement; only the first and the last can
show that there is none. Nothing here depends on time or chance, and all of it is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from msgspec.structs import replace as but

from phalanx.scheduler.cluster.snapshot import IntArray, Placement
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placement.group_placement import Assignment, GroupPlacement, PlacementContext
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.search.formulation import Formulation, build_slots, formulate_program
from phalanx.scheduler.search.heuristics import (
    KindAssignment,
    MemberOrder,
    SequenceFailure,
    candidate_orders,
    find_sequence,
    place_with_moves,
)
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from phalanx.scheduler.search.solver import (
    NoPlacement,
    PlacementFound,
    SearchOutcome,
    SearchUndecided,
    Solved,
    SolverGaveUp,
    SolverPending,
    SolverRequest,
    Steps,
    Unsolvable,
)

#: How many steps are taken to find an order for what is placed, beyond one for each.
MAX_SEQUENCE_STEPS = 2_000


class CandidateVerifier:
    """One puzzle, with the cluster that it is about."""

    def __init__(self, problem: PlacementProblem, context: PlacementContext) -> None:
        self.problem, self._context = problem, context
        self._members = [member for kind in problem.kinds for member in kind.members]

    def try_greedy(self, order: MemberOrder) -> PlacementFound | None:
        """Members one after the other, each where it is best."""
        kinds = [iter(kind.members) for kind in self.problem.kinds]
        return self._place_remaining(self._new_trial(), [], (next(kinds[kind]) for kind in order))

    def try_assignment(self, assignments: Sequence[KindAssignment]) -> PlacementFound | None:
        """Members on given nodes, in some order that there is; then the others."""
        if len(assignments) < self.problem.needed:
            return None
        if not self.problem.is_order_dependent:
            return self.verify_in_order(assignments)
        found = find_sequence(
            self.problem,
            Counter(assignments),
            len(assignments),
            len(assignments) + MAX_SEQUENCE_STEPS,
        )
        return None if isinstance(found, SequenceFailure) else self.verify_in_order(found)

    def verify_in_order(self, assignments: Iterable[KindAssignment]) -> PlacementFound | None:
        """Members on given nodes in this order; then the others where they are best."""
        trial, seats = self._new_trial(), []
        kinds = [iter(kind.members) for kind in self.problem.kinds]
        for kind, node in assignments:
            member, place = next(kinds[kind], None), int(self.problem.nodes[node])
            if member is None or not trial.place_on(member, place):
                return None
            seats.append(Assignment(member, place))
        return self._place_remaining(trial, seats, (member for left in kinds for member in left))

    def _new_trial(self) -> PlacementSimulation:
        ground = self._context
        return PlacementSimulation(ground.snapshot, ground.policy, self._members, ground.nodes)

    def _place_remaining(
        self, trial: PlacementSimulation, assignments: list[Assignment], others: Iterator[Member]
    ) -> PlacementFound | None:
        left, spare = [], len(self._members) - self.problem.needed
        for member in others:
            answer = trial.place(member)
            if isinstance(answer, Refusal):
                left.append((member, answer))
                if len(left) > spare:
                    return None
            else:
                assignments.append(Assignment(member, answer))
        return PlacementFound(tuple(assignments), tuple(left))


#: In how many ways members of each kind and slots may be combined.
MAX_COLUMNS = 5_000
#: Up to how many different pieces all that can be placed is tried out, and in how many steps.
MAX_EXHAUSTIVE_ASSIGNMENTS, MAX_EXHAUSTIVE_STEPS = 80, 6_000

TOO_LARGE = "it is too large for an exact search"
SEARCH_RUNNING = "an exact search is under way"
NO_VALID_ORDER = "a node for every member was found, but no order in which they may get there"


def search_exactly(verifier: CandidateVerifier) -> Steps[SearchOutcome]:
    """A placement, proof that there is none, or neither."""
    if sum(len(slot.limits) for slot in build_slots(verifier.problem)) > MAX_COLUMNS:
        return SearchUndecided(TOO_LARGE)
    outcome = yield from _ask_solver(verifier, formulate_program(verifier.problem))
    if outcome is None and verifier.problem.is_order_dependent:
        strict = yield from _ask_solver(verifier, formulate_program(verifier.problem, strict=True))
        outcome = strict if isinstance(strict, PlacementFound) else _try_everything(verifier)
    return outcome or SearchUndecided(NO_VALID_ORDER)


def _ask_solver(
    verifier: CandidateVerifier, formulation: Formulation
) -> Steps[SearchOutcome | None]:
    """What the solver says; None if what it found cannot be put in order."""
    answer = yield SolverRequest(formulation.program)
    match answer:
        case Solved(values):
            return verifier.try_assignment(list(formulation.assignments(values)))
        case Unsolvable():
            return NoPlacement()
        case SolverGaveUp(why):
            return SearchUndecided(why)
        case SolverPending():
            return SearchUndecided(SEARCH_RUNNING, is_pending=True)
        case None:
            raise AssertionError("a search was not answered")


def _try_everything(verifier: CandidateVerifier) -> SearchOutcome | None:
    """Try everything there is, where that is not much."""
    puzzle, counts = verifier.problem, verifier.problem.counts
    kinds, nodes = np.nonzero(puzzle.allowed)
    if len(kinds) > MAX_EXHAUSTIVE_ASSIGNMENTS:
        return None
    most = {
        KindAssignment(k, n): counts[k] for k, n in zip(kinds.tolist(), nodes.tolist(), strict=True)
    }
    pieces = find_sequence(puzzle, most, puzzle.needed, MAX_EXHAUSTIVE_STEPS)
    if isinstance(pieces, SequenceFailure):
        return NoPlacement() if pieces is SequenceFailure.IMPOSSIBLE else None
    return verifier.verify_in_order(pieces)


#: How many orders are tried, and in how many placements there may be a long search.
MAX_ORDERS, MAX_THOROUGH_PLACEMENTS = 6, 64

NOT_THOROUGH = "there was no time for a long search"


def complete_attempt(
    attempt: GroupPlacement, context: PlacementContext, placements: Sequence[Placement] | None
) -> Steps[GroupPlacement]:
    """An attempt that failed, with what it needs after all, or with why that is not known."""
    if attempt.is_order_independent:
        return attempt
    for number, placement in enumerate([None] if placements is None else placements):
        inside = but(
            context,
            nodes=placement.nodes if placement else context.nodes,
            allows_search=context.allows_search and number < MAX_THOROUGH_PLACEMENTS,
        )  # fmt: skip
        outcome = yield from search_placement(attempt.members, inside, attempt.needed)
        match outcome:
            case PlacementFound(seats, left):
                attempt.adopt_solution(seats, left, placement)
                return attempt
            case SearchUndecided(why, is_passing):
                attempt.undecided = attempt.undecided or why
                attempt.awaits_search |= is_passing
    return attempt


def search_placement(
    members: Sequence[Member], context: PlacementContext, needed: int
) -> Steps[SearchOutcome]:
    """Place so many of some members. Those to spare may be left over."""
    if lacks_capacity(members, context, needed):
        return NoPlacement()
    puzzle = build_problem(context, members, needed)
    if isinstance(puzzle, str):
        return SearchUndecided(puzzle)
    if lacks_resources(puzzle):
        return NoPlacement()
    stage = CandidateVerifier(puzzle, context)
    some = list(islice(candidate_orders(puzzle), MAX_ORDERS if context.allows_search else 1))
    for number, order in enumerate(some, 1):
        if found := stage.try_greedy(order):
            return found
        yield number
    if puzzle.is_simple:
        return NoPlacement()
    for order in some:
        pieces = yield from place_with_moves(puzzle, order)
        if found := stage.try_assignment(pieces):
            return found
    return (
        (yield from search_exactly(stage))
        if context.allows_search
        else SearchUndecided(NOT_THOROUGH)
    )


def lacks_capacity(members: Sequence[Member], context: PlacementContext, needed: int) -> bool:
    """Whether there are too few places even if no shape were in the way of another.

    What `lacks_room` would find too, but mostly found before there is a puzzle.
    """
    if not context.policy.checks_capacity:
        return False
    reachable = 0
    for shape, count in Counter(member.shape for member in members).items():
        each = node_capacities(context.snapshot, context.policy, shape)
        inside = each if context.nodes is None else each[context.nodes]
        reachable += min(count, int(inside.sum()))
    return reachable < needed


def lacks_resources(problem: PlacementProblem) -> bool:
    """Whether there are too few places even if no member were in the way of another kind."""
    asks, counts = problem.requests, problem.counts
    reachable = 0
    for kind, count in enumerate(counts):
        needs = asks[kind] > 0
        room = problem.free[problem.allowed[kind]][:, needs] // asks[kind][needs]
        places = room.min(axis=1, initial=count)
        reachable += min(count, int(places.sum()), *_conflict_limits(problem, kind, places))
    if reachable < problem.needed:
        return True
    every = np.repeat(asks, counts, axis=0)
    least = np.cumsum(np.sort(every, axis=0), axis=0)
    return bool((least[problem.needed - 1] > problem.free.sum(axis=0)).any())


def _conflict_limits(problem: PlacementProblem, kind: int, places: IntArray) -> Iterator[int]:
    """How many of a kind that keeps apart from itself there can be, by every key that it does."""
    for row in problem.conflicts:
        if (kind, kind) in row.pairs:
            ids = row.domains.ids[problem.allowed[kind]]
            domains = np.unique(ids[(ids >= 0) & (places > 0)])
            yield len(domains) + int(places[ids < 0].sum())
