"""Decides whether evictions let a refused entity fit, and which evictions cost least.

`preempt` runs after the cycle of an entity has failed, for the entity as a whole:

    evict every candidate ─▶ fits? ─▶ narrow the priorities ─▶ plans ─▶ the cheapest plan
                             no: evict none

No pod is evicted unless everything that the entity needs then has a node. While terminating pods
will free enough resources, no other pod is evicted.

A plan is a set of eviction units (`eviction_units.py`) and the assignments that are possible
without them; units that need not go are reprieved (`victim_search.py`). Plans come from the greedy
cycle, from the nodes that are cheapest to clear and, if there are few candidates, from all subsets
in the order of their cost. Each plan costs one cycle, so their number is limited.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
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

#: With at most so many units all subsets are searched, up to so many subsets.
MAX_EXHAUSTIVE_UNITS, MAX_SUBSETS = 12, 600
#: With at most so many victims a plan is searched for victims that another placement spares.
MAX_REPRIEVES = 12

NOT_ALLOWED = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "waiting for pods that are leaving"
NOT_HELPFUL = "not helpful for scheduling"


class PreemptionPlan(NamedTuple):
    """The units to evict, and the placement that is possible without them."""

    cost: EvictionCost
    units: tuple[EvictionUnit, ...]
    result: GroupPlacement | GroupTreePlacement

    @property
    def assignments(self) -> Sequence[Assignment]:
        """The node of each member."""
        return self.result.assignments


def preempt(
    entity: Entity, context: PlacementContext, waiting: Waiting
) -> Steps[Placed | Waiting | Preempting]:
    """Decide about a refused entity: evict pods, wait for terminating pods, or wait.

    Returns Placed if the search finds a placement that needs no eviction.
    """
    snapshot = context.snapshot
    if not context.policy.allows_preemption(is_group=entity.group is not None):
        return waiting
    if not entity.may_preempt:
        return replace(waiting, preemption=NOT_ALLOWED)
    terminating = [pod for pod in snapshot.pod_index.assigned_pods() if pod.terminating]
    # Many plans are evaluated, so none of them gets an exact search.
    free = but(context, snapshot=with_changes(snapshot, removed=terminating), allows_search=False)
    if terminating:
        result = yield from _place_if_fits(entity, free)
        if result is not None:
            return _wait_for_victims(entity, free, waiting, result=result)
    candidates = find_eviction_units(snapshot, entity.priority)
    if not candidates:
        return waiting
    plan = yield from _Evaluator(entity, free, candidates).find_plan()
    if plan is None:
        return replace(waiting, preemption=NOT_HELPFUL)
    if not plan.units and not terminating:
        return plan.result.build_placed()
    victims = tuple(victim for unit in plan.units for victim in unit.victims)
    text = f"found a placement for {entity.kind}, preempting {len(victims)} victims"
    nominated = to_bindings(plan.assignments, snapshot.names)
    if not victims:
        return replace(waiting, preemption=VICTIMS_TERMINATING, nominated=nominated)
    new_waiting, cost = replace(waiting, preemption=text, nominated=nominated), plan.cost
    return Preempting(
        new_waiting, victims, disruptions=cost.trees + cost.groups, violations=cost.violations
    )


def _place_if_fits(
    entity: Entity, context: PlacementContext
) -> Steps[GroupPlacement | GroupTreePlacement | None]:
    """Place the whole entity if possible; a capacity estimate excludes most cases first."""
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
    """Evict no further pod; nominated members keep their node or get another one."""
    snapshot, new_waiting = context.snapshot, replace(waiting, preemption=VICTIMS_TERMINATING)
    nominations = {key: pod.node for key, pod in snapshot.nominations.items()}
    if not any(member.pod.metadata.key in nominations for member in entity.members):
        return new_waiting
    kept = [
        Assignment(member, snapshot.index[node])
        for member in (assignment.member for assignment in result.assignments)
        if (node := nominations.get(member.pod.metadata.key)) in snapshot.index
    ]
    keeps_nominations = len(kept) == len(result.assignments) and _assignments_allowed(
        entity, context, kept
    )
    return replace(
        new_waiting,
        nominated=to_bindings(kept if keeps_nominations else result.assignments, snapshot.names),
    )


def _assignments_allowed(
    entity: Entity, context: PlacementContext, assignments: Sequence[Assignment]
) -> bool:
    """Whether the filters accept the assignments and every group keeps its topology."""
    nodes = {assignment.member.pod.metadata.key: assignment.node for assignment in assignments}
    for group in entity.groups:
        keys = [member.pod.metadata.key for member in group.members]
        if not _share_a_domain(group, context, {nodes[key] for key in keys if key in nodes}):
            return False
    return assignments_hold(context, (), assignments)


def _share_a_domain(group: Entity, context: PlacementContext, nodes: Set[int]) -> bool:
    placements = find_placements(group, context.snapshot)
    if placements is None or not nodes:
        return True
    if isinstance(placements, EntityRejection):
        return False
    return any(nodes <= set(placement.nodes.tolist()) for placement in placements)


class _Evaluator:
    """Searches the cheapest plan. In its context terminating pods are already gone."""

    def __init__(
        self, entity: Entity, context: PlacementContext, candidates: Sequence[EvictionUnit]
    ) -> None:
        self._entity, self._context = entity, context
        self._costs = EvictionCostModel(disruption_allowances(context.snapshot.budgets.values()))
        self._units = self._costs.order_units(candidates)
        #: How many members get a node if every candidate goes; no plan places fewer.
        self._required_members = 1

    def find_plan(self) -> PlanSteps:
        """Return the cheapest plan; None if evicting every candidate is not sufficient."""
        result = yield from _place_if_fits(self._entity, self._context_without(self._units))
        if result is None:
            return None
        self._required_members = len(result.assignments)
        pool = yield from self._narrow_candidates()
        plan = yield from self._evaluate(pool)
        searchable = self._units if len(self._units) <= MAX_EXHAUSTIVE_UNITS else pool
        if len(searchable) <= MAX_EXHAUSTIVE_UNITS:
            plan = _cheaper_plan(plan, (yield from self._search_subsets(searchable)))
        else:
            for chosen in propose_victims(
                self._entity, self._context, pool, members=self._required_members
            ):
                plan = _cheaper_plan(plan, (yield from self._evaluate(chosen)))
        return (yield from self._reprieve_units(plan)) if plan else None

    def _context_without(self, evicted: Sequence[EvictionUnit]) -> PlacementContext:
        pods = [pod for unit in evicted for pod in unit.pods]
        return but(self._context, snapshot=with_changes(self._context.snapshot, removed=pods))

    def _place_without(
        self, evicted: Sequence[EvictionUnit]
    ) -> Steps[GroupPlacement | GroupTreePlacement | None]:
        """Place the entity without these units; None if too few members get a node."""
        result = _sufficient_or_none(
            (yield from place_entity(self._entity, self._context_without(evicted)))
        )
        return result if result and len(result.assignments) >= self._required_members else None

    def _evaluate(self, evicted: Sequence[EvictionUnit]) -> PlanSteps:
        """The plan that evicts at most these units."""
        result = yield from self._place_without(evicted)
        if result is None:
            return None
        chosen = tuple(necessary_units(self._context, evicted, result.assignments))
        return PreemptionPlan(self._costs.cost(chosen), chosen, result)

    def _narrow_candidates(self) -> Steps[list[EvictionUnit]]:
        """The candidates without the highest priorities, as far as the entity still fits."""
        boundaries = self._costs.priority_boundaries(self._units)
        low, high = 0, len(boundaries) - 1
        while low < high:
            middle = (low + high) // 2
            if (yield from self._place_without(self._units[: boundaries[middle]])) is not None:
                high = middle
            else:
                low = middle + 1
        return self._units[: boundaries[high]]

    def _search_subsets(self, candidates: Sequence[EvictionUnit]) -> PlanSteps:
        """The first subset that is sufficient, in the order of cost.

        A set never costs less than its subsets, so each set is derived from one visited before.
        """
        sets: list[tuple[EvictionCost, tuple[int, ...]]] = [
            (self._costs.cost([unit]), (number,)) for number, unit in enumerate(candidates)
        ]
        heapify(sets)
        context, needed = self._context, self._required_members
        index = context.snapshot.index
        estimate = CapacityEstimate(self._entity, context.snapshot, context.policy)
        for _ in range(MAX_SUBSETS):
            if not sets:
                break
            _, numbers = heappop(sets)
            chosen = [candidates[number] for number in numbers]
            is_promising = estimate.is_sufficient(needed)
            if not is_promising:
                pods = (pod for unit in chosen for pod in unit.pods if pod.node in index)
                freed = sum_requests((index[pod.node], pod.shape) for pod in pods)
                is_promising = estimate.is_sufficient_after_freeing(freed, needed)
            if is_promising:
                plan = yield from self._evaluate(chosen)
                if plan is not None:
                    return plan
            for number in range(numbers[-1] + 1, len(candidates)):
                larger = (*numbers, number)
                heappush(sets, (self._costs.cost(candidates[n] for n in larger), larger))
        return None

    def _reprieve_units(self, plan: PreemptionPlan) -> Steps[PreemptionPlan]:
        """Leave out victims that are not necessary if members are placed differently."""
        for unit in reversed(plan.units) if len(plan.units) <= MAX_REPRIEVES else ():
            others = [other for other in plan.units if other is not unit]
            better = (yield from self._evaluate(others)) if unit in plan.units and others else None
            if better is not None and better.cost < plan.cost:
                plan = better
        return plan


def _cheaper_plan(
    first: PreemptionPlan | None, second: PreemptionPlan | None
) -> PreemptionPlan | None:
    return min((one for one in (first, second) if one), key=lambda plan: plan.cost, default=None)


PlanSteps = Steps[PreemptionPlan | None]
