"""Searches a placement for members that the greedy attempt could not place.

    lacks_capacity ─▶ other orders ─▶ moves of placed members ─▶ exact solver
    NoPlacement       PlacementFound  PlacementFound             PlacementFound, NoPlacement

For trees whose groups cannot be merged, packing (`packing.py`) replaces orders and moves.

The steps go from cheap to exhaustive. Each may find a placement; only the capacity check and the
exact solver can prove that there is none. A candidate counts only after `CandidateVerifier` has
placed every member under the filters of the policy, in order.

The exact solver first gets a relaxed program: if that has no solution, no placement exists. If its
solution has no valid order, a strict program is solved, and small problems are enumerated.

The search is deterministic, uses no randomness and is bounded by counts, never by time.
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
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    with_volumes,
)
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.search.equal_groups import MergedProblem
from phalanx.scheduler.search.formulation import build_slots, formulate_in_steps, least_columns
from phalanx.scheduler.search.heuristics import (
    KindAssignment,
    MemberOrder,
    SequenceFailure,
    candidate_orders,
    find_sequence,
    place_with_moves,
)
from phalanx.scheduler.search.packing import GROUP_ORDERS, pack_groups
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

#: The number of backtracking steps to find a valid order, in addition to one per assignment.
MAX_SEQUENCE_STEPS = 2_000
#: How many members are verified between two yields.
MEMBERS_PER_STEP = 32


class CandidateVerifier:
    """Verifies candidate placements of one problem by placing every member under the filters."""

    def __init__(self, problem: PlacementProblem, context: PlacementContext) -> None:
        self.problem, self._context = problem, context
        self._members = [member for kind in problem.kinds for member in kind.members]

    def try_greedy(self, order: MemberOrder) -> Steps[PlacementFound | None]:
        """Place members one after the other in the given order, each on its best node."""
        kinds = [iter(kind.members) for kind in self.problem.kinds]
        members = (next(kinds[kind]) for kind in order)
        return (yield from self._place_remaining(self._new_trial(), [], members))

    def try_assignment(self, assignments: Sequence[KindAssignment]) -> Steps[PlacementFound | None]:
        """Verify an assignment in the first valid order that is found, then place the rest."""
        if not self._meets_requirement(assignments):
            return None
        if self.problem.is_order_dependent:
            found = find_sequence(
                self.problem,
                Counter(assignments),
                len(assignments),
                limit=len(assignments) + MAX_SEQUENCE_STEPS,
            )
            if isinstance(found, SequenceFailure):
                return None
            assignments = found
        return (yield from self.verify_in_order(assignments))

    def _meets_requirement(self, assignments: Sequence[KindAssignment]) -> bool:
        """Whether all groups have what they need, and each is in one topology domain."""
        problem, counts = self.problem, Counter(one.kind for one in assignments)
        return problem.requirement.is_met([counts[k] for k in range(len(problem.kinds))]) and all(
            group.shares_domain([one.node for one in assignments if one.kind in group.all_kinds])
            for group in problem.requirement.groups
            if group.levels
        )

    def verify_in_order(
        self, assignments: Iterable[KindAssignment]
    ) -> Steps[PlacementFound | None]:
        """Verify an assignment in the given order, then place the rest on their best nodes.

        The rest of a tree is placed later, each member where its group is.
        """
        simulation, assigned = self._new_trial(), list[Assignment]()
        kinds = [iter(kind.members) for kind in self.problem.kinds]
        for number, (kind, node) in enumerate(assignments, 1):
            member, place = next(kinds[kind], None), int(self.problem.nodes[node])
            if member is None or not simulation.place_on(member, place):
                return None
            assigned.append(Assignment(member, place, simulation.claims_of(member)))
            if number % MEMBERS_PER_STEP == 0:
                yield number
        if not simulation.meets_mutual_affinity():
            return None
        if not self.problem.requirement.is_flat:
            return PlacementFound(tuple(with_volumes(simulation, assigned)))
        members = (member for left in kinds for member in left)
        return (yield from self._place_remaining(simulation, assigned, members))

    def _new_trial(self) -> PlacementSimulation:
        # Greedy placement has tried the devices in their own order.
        context = self._context
        return PlacementSimulation(
            context.snapshot,
            context.policy,
            self._members,
            nodes=context.nodes,
            prefers_reach=True,
        )

    def _place_remaining(
        self,
        simulation: PlacementSimulation,
        assignments: list[Assignment],
        others: Iterator[Member],
    ) -> Steps[PlacementFound | None]:
        left, spare = [], len(self._members) - self.problem.needed
        for number, member in enumerate(others, 1):
            answer = simulation.place(member)
            if isinstance(answer, Refusal):
                left.append((member, answer))
                if len(left) > spare:
                    return None
            else:
                assignments.append(Assignment(member, answer, simulation.claims_of(member)))
            if number % MEMBERS_PER_STEP == 0:
                yield number
        return PlacementFound(tuple(with_volumes(simulation, assignments)), tuple(left))


#: The largest number of columns that an exact program may have.
MAX_COLUMNS = 5_000
#: Problems with at most so many (kind, node) pairs are enumerated, in so many steps.
MAX_EXHAUSTIVE_ASSIGNMENTS, MAX_EXHAUSTIVE_STEPS = 80, 6_000

TOO_LARGE = "the problem is too large for an exact search"
SEARCH_RUNNING = "an exact search is running"
NO_VALID_ORDER = "nodes for all members were found, but no order in which they can be placed"


def search_exactly(verifier: CandidateVerifier) -> Steps[SearchOutcome]:
    """Find a placement or prove that none exists, with the exact solver."""
    merged = MergedProblem(verifier.problem)
    problem = merged.problem
    yield len(problem.nodes)
    if least_columns(problem) > MAX_COLUMNS:
        return SearchUndecided(TOO_LARGE)
    yield len(problem.nodes)
    if sum(len(slot.limits) for slot in build_slots(problem)) > MAX_COLUMNS:
        return SearchUndecided(TOO_LARGE)
    outcome = yield from _ask_solver(verifier, merged, strict=False)
    if outcome is None and problem.is_order_dependent:
        strict = yield from _ask_solver(verifier, merged, strict=True)
        is_found = isinstance(strict, PlacementFound)
        outcome = strict if is_found else (yield from _try_everything(verifier))
    return outcome or SearchUndecided(NO_VALID_ORDER)


def _ask_solver(
    verifier: CandidateVerifier, merged: MergedProblem, *, strict: bool
) -> Steps[SearchOutcome | None]:
    formulation = yield from formulate_in_steps(merged.problem, strict=strict)
    answer = yield SolverRequest(formulation.program)
    match answer:
        case Solved(values):
            assignments = list(merged.divide(formulation.assignments(values)))
            return (yield from verifier.try_assignment(assignments))
        case Unsolvable():
            return NoPlacement()
        case SolverGaveUp(why):
            return SearchUndecided(why)
        case SolverPending():
            return SearchUndecided(SEARCH_RUNNING, is_pending=True)
        case None:
            raise AssertionError("a search was not answered")


def _try_everything(verifier: CandidateVerifier) -> Steps[SearchOutcome | None]:
    """Enumerate the placements of a small problem; None if it is too large."""
    problem, counts = verifier.problem, verifier.problem.counts
    kinds, nodes = np.nonzero(problem.allowed)
    if len(kinds) > MAX_EXHAUSTIVE_ASSIGNMENTS:
        return None
    most = {
        KindAssignment(k, n): counts[k] for k, n in zip(kinds.tolist(), nodes.tolist(), strict=True)
    }
    found = find_sequence(problem, most, problem.needed, limit=MAX_EXHAUSTIVE_STEPS)
    if isinstance(found, SequenceFailure):
        return NoPlacement() if found is SequenceFailure.IMPOSSIBLE else None
    return (yield from verifier.verify_in_order(found))


#: How many orders are tried, and in how many topology placements an exact search may run.
MAX_ORDERS, MAX_THOROUGH_PLACEMENTS = 6, 64

NOT_THOROUGH = "no exact search was made"


def complete_attempt(
    attempt: GroupPlacement, context: PlacementContext, placements: Sequence[Placement] | None
) -> Steps[GroupPlacement]:
    """Search a placement for a failed attempt, in each topology placement that it may use.

    Completes the attempt if a placement is found; otherwise notes why it is undecided.
    """
    if attempt.is_order_independent:
        return attempt
    for number, placement in enumerate([None] if placements is None else placements):
        inside = but(
            context,
            nodes=placement.nodes if placement else context.nodes,
            allows_search=context.allows_search and number < MAX_THOROUGH_PLACEMENTS,
        )
        outcome = yield from search_placement(attempt.members, inside, attempt.needed)
        match outcome:
            case PlacementFound(assignments, unplaced):
                attempt.adopt_solution(assignments, unplaced, placement)
                return attempt
            case SearchUndecided(reason, is_pending):
                attempt.undecided = attempt.undecided or reason
                attempt.awaits_search |= is_pending
    return attempt


def search_placement(
    members: Sequence[Member], context: PlacementContext, needed: int
) -> Steps[SearchOutcome]:
    """Place `needed` of the members, and as many of the others as possible."""
    if lacks_capacity(members, context, needed):
        return NoPlacement()
    problem = build_problem(context, members, needed)
    if isinstance(problem, str):
        return SearchUndecided(problem)
    return (yield from search_problem(problem, context))


def search_problem(problem: PlacementProblem, context: PlacementContext) -> Steps[SearchOutcome]:
    """Find a placement for a group or a tree, or prove that there is none."""
    if lacks_resources(problem):
        return NoPlacement()
    verifier = CandidateVerifier(problem, context)
    candidates = _place_in_orders if problem.requirement.is_flat else _pack_in_orders
    found = yield from candidates(verifier, MAX_ORDERS if context.allows_search else 1)
    if found is not None:
        return found
    if problem.is_simple:
        return NoPlacement()
    if not context.allows_search:
        return SearchUndecided(NOT_THOROUGH)
    return (yield from search_exactly(verifier))


def _place_in_orders(verifier: CandidateVerifier, limit: int) -> Steps[PlacementFound | None]:
    """Place members in several orders: each on its best node, then with moves."""
    problem = verifier.problem
    orders = list(islice(candidate_orders(problem), limit))
    for number, order in enumerate(orders, 1):
        if found := (yield from verifier.try_greedy(order)):
            return found
        yield number
    for order in () if problem.is_simple else orders:
        assignments = yield from place_with_moves(problem, order)
        if found := (yield from verifier.try_assignment(assignments)):
            return found
    return None


def _pack_in_orders(verifier: CandidateVerifier, limit: int) -> Steps[PlacementFound | None]:
    """Pack the groups of a tree in several orders."""
    for order in GROUP_ORDERS[:limit]:
        assignments = yield from pack_groups(verifier.problem, order)
        if found := (yield from verifier.try_assignment(assignments)):
            return found
    return None


def lacks_capacity(members: Sequence[Member], context: PlacementContext, needed: int) -> bool:
    """Whether too few members fit even if each shape had the free resources for itself.

    `lacks_resources` finds this too; here it is found before the problem is built.
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
    """Whether too few members fit even if each kind had the free resources for itself."""
    asks, counts = problem.requests, problem.counts
    reachable = 0
    for kind, count in enumerate(counts):
        needs = asks[kind] > 0
        capacities = problem.free[problem.allowed[kind]][:, needs] // asks[kind][needs]
        places = capacities.min(axis=1, initial=count)
        reachable += min(count, int(places.sum()), *_conflict_limits(problem, kind, places))
    if reachable < problem.needed:
        return True
    every = np.repeat(asks, counts, axis=0)
    least = np.cumsum(np.sort(every, axis=0), axis=0)
    if bool((least[problem.needed - 1] > problem.free.sum(axis=0)).any()):
        return True
    return any(
        np.sort(np.repeat(one.requests, counts))[: problem.needed].sum() > one.amount
        for one in problem.totals
    )


def _conflict_limits(problem: PlacementProblem, kind: int, places: IntArray) -> Iterator[int]:
    """Upper limits for a kind with anti-affinity to itself, one per topology key."""
    for row in problem.conflicts:
        if (kind, kind) in row.pairs:
            ids = row.domains.ids[problem.allowed[kind]]
            domains = np.bincount(ids[(ids >= 0) & (places > 0)])
            yield int(np.count_nonzero(domains)) + int(places[ids < 0].sum())
