"""Preemption: whom to evict so that a refused entity fits after all, if that helps at all.

One step for the whole entity, after its cycle has failed. Nobody is evicted unless everything that
it needs then has a node. While others leave who make room enough, nobody else has to.

    all who may go, gone ─▶ fits? ─▶ as few priorities as will do ─▶ plans ─▶ the cheapest
                            no: nobody goes

A plan is a set of units (`units.py`) and the seats that are found without them, less those who may
stay where the seats are (`sparing.py`). Plans come from the greedy cycle itself, from the nodes
that are cheapest to clear (`clearing.py`) and, where few may go, from all sets in the order of
their cost. Each costs a cycle, so there is a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.decision import Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.group_tree_placement import GroupTreePlacement, place_entity
from phalanx.scheduler.placement.capacity_estimate import (
    CapacityEstimate,
    FreedRequests,
    sum_requests,
)
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    to_bindings,
)
from phalanx.scheduler.placement.topology_domains import find_placements
from phalanx.scheduler.preemption.eviction_units import (
    EvictionCost,
    EvictionCostModel,
    EvictionUnit,
    disruption_allowances,
    find_eviction_units,
)
from phalanx.scheduler.preemption.victim_search import (
    assignments_hold,
    necessary_units,
    propose_victims,
)
from phalanx.scheduler.search.solver import Steps

#: Of so few units all sets are gone through, and how many sets at most.
MAX_EXHAUSTIVE_UNITS, MAX_SUBSETS = 12, 600
#: Of so few victims of the best plan each is tried to be spared by moving somebody.
MAX_REPRIEVES = 12

NOT_ALLOWED = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "waiting for pods that are leaving"
NOT_HELPFUL = "not helpful for scheduling"


class PreemptionPlan(NamedTuple):
    """Who goes, and where everybody sits then."""

    cost: EvictionCost
    units: tuple[EvictionUnit, ...]
    result: GroupPlacement | GroupTreePlacement

    @property
    def assignments(self) -> Sequence[Assignment]:
        """Who sits where."""
        return self.result.assignments


def preempt(
    entity: Entity, context: PlacementContext, waiting: Waiting
) -> Steps[Placed | Waiting | Preempting]:
    """What to do about a refusal: evict somebody, wait for those who are leaving, or just wait.

    Who looks for room that others leave may find some that is there: then it is placed.
    """
    snapshot = context.snapshot
    if not context.policy.allows_preemption(entity.group is not None):
        return waiting
    if not entity.may_preempt:
        return replace(waiting, preemption=NOT_ALLOWED)
    leaving = [pod for pod in snapshot.pod_index.assigned_pods() if pod.terminating]
    # Many plans are tried, so none of them gets a long search.
    free = but(context, snapshot=with_changes(snapshot, removed=leaving), allows_search=False)
    if leaving:
        result = yield from _place_if_fits(entity, free)
        if result is not None:
            return _wait_for_victims(entity, free, waiting, result)
    candidates = find_eviction_units(snapshot, entity.priority)
    if not candidates:
        return waiting
    plan = yield from _Evaluator(entity, free, candidates).find_plan()
    if plan is None:
        return replace(waiting, preemption=NOT_HELPFUL)
    if not plan.units and not leaving:
        return plan.result.build_placed()
    victims = tuple(victim for unit in plan.units for victim in unit.victims)
    text = f"found a placement for {entity.kind}, preempting {len(victims)} victims"
    promised = to_bindings(plan.assignments, snapshot.names)
    if not victims:
        return replace(waiting, preemption=VICTIMS_TERMINATING, promised=promised)
    held, cost = replace(waiting, preemption=text, promised=promised), plan.cost
    return Preempting(held, victims, cost.trees + cost.groups, cost.violations)


def _place_if_fits(
    entity: Entity, context: PlacementContext
) -> Steps[GroupPlacement | GroupTreePlacement | None]:
    """The whole entity, placed, if it can be; mostly arithmetic tells that it cannot."""
    if not CapacityEstimate(entity, context.snapshot, context.policy).is_sufficient():
        return None
    return _sufficient_or_none((yield from place_entity(entity, context)))


def _sufficient_or_none(
    result: GroupPlacement | GroupTreePlacement | EntityRejection,
) -> GroupPlacement | GroupTreePlacement | None:
    return None if isinstance(result, EntityRejection) or not result.is_feasible else result


def _wait_for_victims(
    entity: Entity,
    context: PlacementContext,
    waiting: Waiting,
    result: GroupPlacement | GroupTreePlacement,
) -> Waiting:
    """Nobody else is evicted; who was promised a node keeps it, or gets another for it."""
    snapshot, held = context.snapshot, replace(waiting, preemption=VICTIMS_TERMINATING)
    claims = {key: claim.node for key, claim in snapshot.nominations.items()}
    if not any(member.pod.metadata.key in claims for member in entity.members):
        return held
    kept = [
        Assignment(member, snapshot.index[node])
        for member in (seat.member for seat in result.assignments)
        if (node := claims.get(member.pod.metadata.key)) in snapshot.index
    ]
    may_stay = len(kept) == len(result.assignments) and _assignments_allowed(entity, context, kept)
    return replace(
        held, promised=to_bindings(kept if may_stay else result.assignments, snapshot.names)
    )


def _assignments_allowed(
    entity: Entity, context: PlacementContext, assignments: Sequence[Assignment]
) -> bool:
    """Whether members may be there, and every group that must be in one place is."""
    nodes = {seat.member.pod.metadata.key: seat.node for seat in assignments}
    for one in entity.groups:
        keys = [member.pod.metadata.key for member in one.members]
        if not _share_a_domain(one, context, {nodes[key] for key in keys if key in nodes}):
            return False
    return assignments_hold(context, (), assignments)


def _share_a_domain(one: Entity, context: PlacementContext, nodes: Set[int]) -> bool:
    found = find_placements(one, context.snapshot)
    if found is None or not nodes:
        return True
    places = () if isinstance(found, EntityRejection) else found
    return any(nodes <= set(place.nodes.tolist()) for place in places)


class _Evaluator:
    """The search for the cheapest plan. The ground is free of those who are leaving anyway."""

    def __init__(
        self, entity: Entity, context: PlacementContext, candidates: Sequence[EvictionUnit]
    ) -> None:
        self._entity, self._context = entity, context
        self._costs = EvictionCostModel(disruption_allowances(context.snapshot.budgets.values()))
        self._units = self._costs.order_units(candidates)
        #: How many members find a node if everybody goes: no plan seats fewer.
        self._required_members = 1

    def find_plan(self) -> PlanSteps:
        """The cheapest plan that was found; None if it does not help that all go."""
        result = yield from _place_if_fits(self._entity, self._context_without(self._units))
        if result is None:
            return None
        self._required_members = len(result.assignments)
        pool = yield from self._narrow_candidates()
        plan = yield from self._evaluate(pool)
        few = self._units if len(self._units) <= MAX_EXHAUSTIVE_UNITS else pool
        if len(few) <= MAX_EXHAUSTIVE_UNITS:
            plan = _cheaper_plan(plan, (yield from self._search_subsets(few)))
        else:
            for chosen in propose_victims(
                self._entity, self._context, pool, self._required_members
            ):
                plan = _cheaper_plan(plan, (yield from self._evaluate(chosen)))
        return (yield from self._reprieve_units(plan)) if plan else None

    def _context_without(self, evicted: Sequence[EvictionUnit]) -> PlacementContext:
        """The ground as if these were gone."""
        pods = [pod for unit in evicted for pod in unit.pods]
        return but(self._context, snapshot=with_changes(self._context.snapshot, removed=pods))

    def _place_without(
        self, evicted: Sequence[EvictionUnit]
    ) -> Steps[GroupPlacement | GroupTreePlacement | None]:
        """As many members as can be, placed as if these were gone; None for fewer."""
        result = _sufficient_or_none(
            (yield from place_entity(self._entity, self._context_without(evicted)))
        )
        return result if result and len(result.assignments) >= self._required_members else None

    def _evaluate(self, evicted: Sequence[EvictionUnit]) -> PlanSteps:
        """The plan that comes of letting no others go than these."""
        result = yield from self._place_without(evicted)
        if result is None:
            return None
        chosen = tuple(necessary_units(self._context, evicted, result.assignments))
        return PreemptionPlan(self._costs.cost(chosen), chosen, result)

    def _narrow_candidates(self) -> Steps[list[EvictionUnit]]:
        """Those who may go, but for the priorities, and the budgets, that can be left in peace."""
        ends = self._costs.priority_boundaries(self._units)
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2
            if (yield from self._place_without(self._units[: ends[middle]])) is not None:
                high = middle
            else:
                low = middle + 1
        return self._units[: ends[high]]

    def _search_subsets(self, candidates: Sequence[EvictionUnit]) -> PlanSteps:
        """The first set that makes room, of all sets in the order of what they cost.

        A set never costs less than a part of it, so that each is made from one that was tried.
        """
        sets: list[tuple[EvictionCost, tuple[int, ...]]] = [
            (self._costs.cost([unit]), (number,)) for number, unit in enumerate(candidates)
        ]
        heapify(sets)
        ground, least = self._context, self._required_members
        headroom = CapacityEstimate(self._entity, ground.snapshot, ground.policy)
        for _ in range(MAX_SUBSETS):
            if not sets:
                break
            _, numbers = heappop(sets)
            chosen = [candidates[number] for number in numbers]
            if headroom.is_sufficient(least) or headroom.is_sufficient_after_freeing(
                self._freed_resources(chosen), least
            ):
                plan = yield from self._evaluate(chosen)
                if plan is not None:
                    return plan
            for number in range(numbers[-1] + 1, len(candidates)):
                larger = (*numbers, number)
                heappush(sets, (self._costs.cost(candidates[n] for n in larger), larger))
        return None

    def _freed_resources(self, evicted: Iterable[EvictionUnit]) -> FreedRequests:
        """What units leave behind."""
        index = self._context.snapshot.index
        pods = (pod for unit in evicted for pod in unit.pods)
        return sum_requests((index[pod.node], pod.shape) for pod in pods if pod.node in index)

    def _reprieve_units(self, plan: PreemptionPlan) -> Steps[PreemptionPlan]:
        """The plan without those who can be spared if somebody sits elsewhere."""
        for unit in reversed(plan.units) if len(plan.units) <= MAX_REPRIEVES else ():
            others = [one for one in plan.units if one is not unit]
            better = (yield from self._evaluate(others)) if unit in plan.units and others else None
            if better is not None and better.cost < plan.cost:
                plan = better
        return plan


def _cheaper_plan(
    one: PreemptionPlan | None, other: PreemptionPlan | None
) -> PreemptionPlan | None:
    return min((p for p in (one, other) if p), key=lambda plan: plan.cost, default=None)


PlanSteps = Steps[PreemptionPlan | None]
