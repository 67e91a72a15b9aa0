"""Searches the cheapest plan: the units to evict, and the nodes of the members without them.

    prices of nodes ─▶ greedy plans ─▶ exact solver ─▶ all subsets of few units
    (a lower bound)    (verified)      (the order of the cost, part by part)

A plan counts only if the filters accept its assignments once its units are gone. The search ends
with the first step that proves that no plan costs less:

- `node_relaxation.py`: the prices of nodes are a lower bound, and a plan that costs as much is the
  cheapest. This decides nearly all preemptions of equal members, in clusters of any size.
- `victim_program.py`: an exact solver minimizes the parts of the cost one after the other.
- With few units all subsets are tried in the order of their cost.

Every step is bounded by counts. At a limit the best plan so far is taken, and it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as but

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_index import PodSelection
from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.group_tree_placement import GroupTreePlacement, place_entity
from phalanx.scheduler.placement.capacity_estimate import (
    CapacityEstimate,
    count_needed,
    sum_requests,
)
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
)
from phalanx.scheduler.preemption.eviction_units import (
    UNITS_PER_STEP,
    EvictionCost,
    EvictionCostModel,
    EvictionUnit,
    disruption_allowances,
    spare_members,
)
from phalanx.scheduler.preemption.node_relaxation import NodeRelaxation
from phalanx.scheduler.preemption.victim_program import VictimProgram
from phalanx.scheduler.preemption.victim_search import (
    assignments_hold,
    necessary_units,
    propose_victims,
)
from phalanx.scheduler.search.placement_search import MAX_COLUMNS
from phalanx.scheduler.search.solver import (
    IntegerProgram,
    Solved,
    SolverPending,
    SolverRequest,
    Steps,
    Unsolvable,
)

#: With at most so many units all subsets are searched, up to so many subsets.
MAX_EXHAUSTIVE_UNITS, MAX_SUBSETS = 12, 600
#: With more units no greedy plan is searched if the prices of nodes give the cheapest one.
MAX_GREEDY_UNITS = 1_000
#: With at most so many victims a plan is searched for victims that another placement spares.
MAX_REPRIEVES = 12
#: An entity that has waited for so many seconds does not wait for an exact solver any more.
MAX_SOLVER_WAIT = 10.0


class PreemptionPlan(NamedTuple):
    """The units to evict, and the assignments that are possible without them."""

    cost: EvictionCost
    units: tuple[EvictionUnit, ...]
    assignments: Sequence[Assignment]
    #: The placement that it comes from; None if it does not come from a cycle.
    result: GroupPlacement | GroupTreePlacement | None = None
    #: The gangs that fall below their quorum.
    broken_groups: tuple[Key, ...] = ()
    #: Whether it is proven that no plan costs less.
    is_optimal: bool = False


PlanSteps = Steps[PreemptionPlan | None]


class PlanSearch:
    """The search of one preemption. In its context terminating pods are already gone."""

    def __init__(
        self, entity: Entity, context: PlacementContext, candidates: Sequence[EvictionUnit]
    ) -> None:
        self._entity, self._context = entity, context
        snapshot = context.snapshot
        self._costs = EvictionCostModel(
            disruption_allowances(snapshot.budgets.values()), spare_members(snapshot)
        )
        self._candidates = candidates
        #: How many members get a node if every candidate goes; no plan places fewer.
        self._required_members = 1
        #: Whether no plan is returned because an exact solver is still working.
        self.awaits_solver = False

    def find_plan(self) -> PlanSteps:
        """Return the cheapest plan; None if evicting every candidate is not sufficient."""
        plan: PreemptionPlan | None = None
        if NodeRelaxation.is_applicable(self._entity, self._context):
            relaxation = NodeRelaxation(self._entity, self._context, self._candidates)
            yield from relaxation.read_pods()
            everything = np.ones(len(self._candidates), bool)
            self._required_members = relaxation.count_placeable(everything)
            if self._required_members < count_needed(self._entity, self._context.snapshot):
                return None
            plan = yield from self._relax(relaxation)
        else:
            context = self._context_without(self._candidates)
            yield len(self._candidates)
            estimate = CapacityEstimate(self._entity, context.snapshot, context.policy)
            result = None
            if estimate.is_sufficient():
                yield len(self._candidates)
                result = yield from self._place(context)
                if result is None and self._has_affinity:
                    self._candidates = self._without_affinity_targets(self._candidates)
                    result = yield from self._place_without(self._candidates)
            if result is None:
                return (yield from self._search_packing()) if estimate.is_sufficient() else None
            self._required_members = len(result.assignments)
        is_proven = plan is not None and plan.is_optimal
        if is_proven and len(self._candidates) > MAX_GREEDY_UNITS:
            return plan
        units = self._costs.order_units(self._candidates)
        greedy = yield from self._search_greedily(units)
        if plan is not None and is_proven:
            # Of two plans of the same cost, the greedy one has the members on their best nodes.
            is_equal = greedy is not None and greedy.cost == plan.cost
            return greedy._replace(is_optimal=True) if greedy and is_equal else plan
        plan = _cheaper_plan(greedy, plan)
        if VictimProgram.is_applicable(self._entity, self._context):
            plan = yield from self._search_exactly(units, plan)
        if len(units) <= MAX_EXHAUSTIVE_UNITS and not (plan and plan.is_optimal):
            plan = _cheaper_plan((yield from self._search_subsets(units)), plan)
        return plan

    # ---- prices of nodes -------------------------------------------------------------------------

    def _relax(self, relaxation: NodeRelaxation) -> PlanSteps:
        """Return the cheapest plan as if nodes were independent; optimal if it is so in fact."""
        units, members = self._candidates, self._required_members
        within_budgets = breaks_no_gang = np.ones(len(units), bool)
        if self._costs.budgets:
            within_budgets = yield from self._mask_units(self._costs.violations)
        if self._costs.spare_members:
            breaks_no_gang = yield from self._mask_units(self._costs.broken_groups)
        priority = relaxation.lowest_priority(within_budgets, members)
        if priority is None:
            return None
        # The best plan violates no budget, has no higher priority and, if possible, breaks no gang.
        for usable in (within_budgets & breaks_no_gang, within_budgets):
            yield members
            allowed = usable & relaxation.up_to_priority(priority)
            found = None
            if relaxation.count_placeable(allowed) >= members:
                found = yield from relaxation.find_plan(allowed, members)
            plan = None
            if found is not None:
                plan = yield from self._verify(found.units, found.assignments)
            if plan is not None:
                # Then the cost is the price, which is a lower bound.
                is_optimal = (
                    plan.cost.violations == 0
                    and plan.cost.priority == priority
                    and plan.cost.broken == 0
                    and all(unit.size == 1 for unit in plan.units)
                )
                return plan._replace(is_optimal=is_optimal)
        return None

    def _mask_units(self, count: Callable[[Sequence[EvictionUnit]], object]) -> Steps[BoolArray]:
        """Return which candidates cost nothing of one kind if they are evicted alone."""
        found: list[bool] = []
        for number, unit in enumerate(self._candidates):
            if number % UNITS_PER_STEP == 0:
                yield number
            found.append(not count([unit]))
        return np.array(found)

    def _verify(
        self, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
    ) -> PlanSteps:
        """Return a plan if the filters accept its assignments without its units."""
        if not units or not (yield from assignments_hold(self._context, units, assignments)):
            return None
        return self._build_plan(units, assignments)

    def _build_plan(
        self,
        units: Sequence[EvictionUnit],
        assignments: Sequence[Assignment],
        result: GroupPlacement | GroupTreePlacement | None = None,
    ) -> PreemptionPlan:
        return PreemptionPlan(
            self._costs.cost(units),
            tuple(units),
            assignments,
            result=result,
            broken_groups=tuple(self._costs.broken_groups(units)),
        )

    # ---- greedy plans ----------------------------------------------------------------------------

    def _search_greedily(self, units: Sequence[EvictionUnit]) -> PlanSteps:
        """Return the best of a few plans; None if none is sufficient."""
        pool = yield from self._narrow_candidates(units)
        plan: PreemptionPlan | None = None
        if self._has_affinity:
            plan = yield from self._evaluate(self._without_affinity_targets(pool))
        proposals = yield from propose_victims(
            self._entity, self._context, pool, costs=self._costs, members=self._required_members
        )
        for chosen in proposals:
            plan = _cheaper_plan(plan, (yield from self._evaluate(chosen)))
        if plan is None or len(pool) <= MAX_GREEDY_UNITS:
            plan = _cheaper_plan((yield from self._evaluate(pool)), plan)
        return (yield from self._reprieve_units(plan)) if plan else None

    @property
    def _has_affinity(self) -> bool:
        return any(member.shape.peer_constraints.affinity for member in self._entity.members)

    def _without_affinity_targets(self, units: Sequence[EvictionUnit]) -> list[EvictionUnit]:
        """The units without those that members must be near to: these should stay."""
        constraints = dict.fromkeys(m.shape.peer_constraints for m in self._entity.members)
        targets = [
            PodSelection(tuple(term.selector for term in peers.affinity))
            for peers in constraints
            if peers.affinity
        ]
        namespaces = self._context.snapshot.pod_index.namespaces
        return [
            unit
            for unit in units
            if not any(one.contains(pod, namespaces) for one in targets for pod in unit.pods)
        ]

    def _context_without(self, evicted: Sequence[EvictionUnit]) -> PlacementContext:
        pods = [pod for unit in evicted for pod in unit.pods]
        return but(self._context, snapshot=with_changes(self._context.snapshot, removed=pods))

    def _place_without(
        self, evicted: Sequence[EvictionUnit]
    ) -> Steps[GroupPlacement | GroupTreePlacement | None]:
        """Place the entity without these units; None if too few members get a node."""
        context = self._context_without(evicted)
        yield len(evicted)
        return (yield from self._place(context))

    def _place(
        self, context: PlacementContext
    ) -> Steps[GroupPlacement | GroupTreePlacement | None]:
        result = yield from place_entity(self._entity, context)
        if isinstance(result, EntityRejection) or not result.is_feasible:
            return None
        return result if len(result.assignments) >= self._required_members else None

    def _evaluate(self, evicted: Sequence[EvictionUnit]) -> PlanSteps:
        """The plan that evicts at most these units."""
        result = yield from self._place_without(evicted)
        if result is None:
            return None
        chosen = yield from necessary_units(self._context, evicted, result.assignments)
        return self._build_plan(chosen, result.assignments, result)

    def _narrow_candidates(self, units: Sequence[EvictionUnit]) -> Steps[Sequence[EvictionUnit]]:
        """The candidates without the highest priorities, as far as the entity still fits.

        Those that exceed a budget are at the end of the order and are left out first.
        """
        boundaries = self._costs.priority_boundaries(units)
        low, high = 0, len(boundaries) - 1
        while low < high:
            middle = (low + high) // 2
            if (yield from self._place_without(units[: boundaries[middle]])) is not None:
                high = middle
            else:
                low = middle + 1
        return units[: boundaries[high]]

    def _reprieve_units(self, plan: PreemptionPlan) -> Steps[PreemptionPlan]:
        """Leave out victims that are not necessary if members are placed differently."""
        for unit in reversed(plan.units) if len(plan.units) <= MAX_REPRIEVES else ():
            others = [other for other in plan.units if other is not unit]
            better = (yield from self._evaluate(others)) if unit in plan.units and others else None
            if better is not None and better.cost < plan.cost:
                plan = better
        return plan

    def _search_subsets(self, candidates: Sequence[EvictionUnit]) -> PlanSteps:
        """The first subset that is sufficient, in the order of cost; None at the limit.

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
                    return plan._replace(is_optimal=True)
            for number in range(numbers[-1] + 1, len(candidates)):
                larger = (*numbers, number)
                heappush(sets, (self._costs.cost(candidates[n] for n in larger), larger))
        return None

    # ---- exact solver ----------------------------------------------------------------------------

    def _search_exactly(
        self, units: Sequence[EvictionUnit], plan: PreemptionPlan | None
    ) -> PlanSteps:
        """Improve a plan with an exact solver until no plan costs less, or until it gives up."""
        program = VictimProgram(
            self._entity, self._context, units, costs=self._costs, members=self._required_members
        )
        if not (yield from program.assemble(MAX_COLUMNS)):
            return plan
        search = _ExactSearch(self, program, units, plan=plan)
        yield from search.run()
        if search.is_pending and self._entity.waited_seconds <= MAX_SOLVER_WAIT:
            self.awaits_solver = True
        return search.plan

    def _search_packing(self) -> PlanSteps:
        """Members of different sizes may fit although they do not fit one after the other."""
        if not VictimProgram.is_applicable(self._entity, self._context):
            return None
        units = self._costs.order_units(self._candidates)
        needed = count_needed(self._entity, self._context.snapshot)
        for members in dict.fromkeys((len(self._entity.members), needed)):
            self._required_members = members
            plan = yield from self._search_exactly(units, None)
            if plan is not None or self.awaits_solver:
                return plan
        return None

    def verify_solution(self, program: VictimProgram, values: Sequence[int]) -> PlanSteps:
        """Return the plan of a solution; None if the filters do not accept it."""
        units, assignments = program.read_units(values), program.read_assignments(values)
        return (yield from self._verify(units, assignments))


class _ExactSearch:
    """Minimizes the parts of the cost in their order, each with the parts before it bounded."""

    def __init__(
        self,
        search: PlanSearch,
        program: VictimProgram,
        units: Sequence[EvictionUnit],
        *,
        plan: PreemptionPlan | None,
    ) -> None:
        self._search, self._program, self._units = search, program, units
        self.plan, self.is_pending, self._has_failed = plan, False, False
        self._bounds: dict[str, int] = {}
        self._priority = max(unit.priority for unit in units)

    def run(self) -> Steps[None]:
        """Solve part by part; the plan is optimal if no question stayed open."""
        if self.plan is None:
            yield from self._ask(self._program.build({}, priority=self._priority))
        yield from self._minimize("violations")
        yield from self._minimize_priority()
        for name in ("broken", "trees", "groups", "pods"):
            yield from self._minimize(name)
        yield from self._maximize_start_time()
        if self.plan is not None and not self._has_failed:
            self.plan = self.plan._replace(is_optimal=True)

    def _ask(self, program: IntegerProgram) -> Steps[bool]:
        """Whether the program has a solution; takes over its plan if that costs less."""
        answer = yield SolverRequest(program)
        if isinstance(answer, Unsolvable):
            return False
        if isinstance(answer, Solved):
            found = yield from self._search.verify_solution(self._program, answer.values)
            if found is not None:
                self.plan = _cheaper_plan(self.plan, found)
                return True
        self.is_pending |= isinstance(answer, SolverPending)
        self._has_failed = True
        return False

    def _minimize(self, name: str) -> Steps[None]:
        """Minimize one sum; nothing is lower than 0."""
        if self.plan is None or self._has_failed:
            return
        if getattr(self.plan.cost, name) > 0:
            bounds = {**self._bounds, name: getattr(self.plan.cost, name)}
            yield from self._ask(
                self._program.build(bounds, priority=self._priority, minimize=name)
            )
        self._bounds[name] = getattr(self.plan.cost, name)

    def _minimize_priority(self) -> Steps[None]:
        """Search the lowest priority of which units must go, by bisection."""
        if self.plan is None or self._has_failed:
            return
        highest = self.plan.cost.priority
        levels = sorted({unit.priority for unit in self._units if unit.priority < highest})
        while levels and not self._has_failed:
            middle = len(levels) // 2
            fits = yield from self._ask(self._program.build(self._bounds, priority=levels[middle]))
            levels = levels[:middle] if fits else levels[middle + 1 :]
        self._priority = self.plan.cost.priority

    def _maximize_start_time(self) -> Steps[None]:
        """Search the latest start time of the oldest victim, by bisection."""
        if self.plan is None or self._has_failed:
            return
        oldest = str(self.plan.cost.earliest_start)
        starts = sorted({unit.start_time for unit in self._units if unit.start_time > oldest})
        while starts and not self._has_failed:
            middle = len(starts) // 2
            program = self._program.build(
                self._bounds, priority=self._priority, start_time=starts[middle]
            )
            fits = yield from self._ask(program)
            starts = starts[middle + 1 :] if fits else starts[:middle]


def _cheaper_plan(
    first: PreemptionPlan | None, second: PreemptionPlan | None
) -> PreemptionPlan | None:
    return min((one for one in (first, second) if one), key=lambda plan: plan.cost, default=None)
