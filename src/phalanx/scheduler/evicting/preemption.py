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

from phalanx.scheduler.branches import Branch, whole
from phalanx.scheduler.cluster.variation import varied
from phalanx.scheduler.decision import Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.evicting.clearing import cleared
from phalanx.scheduler.evicting.sparing import needed, stand
from phalanx.scheduler.evicting.units import Bill, Cost, Unit, allowances, units
from phalanx.scheduler.placing.attempt import Attempt, Ground, Seat, bindings
from phalanx.scheduler.placing.headroom import Freed, Headroom, summed
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.placing.topology import placements
from phalanx.scheduler.rescue.search import Steps

#: Of so few units all sets are gone through, and how many sets at most.
FEW, MOST_SETS = 12, 600
#: Of so few victims of the best plan each is tried to be spared by moving somebody.
MOST_SPARED = 12

NOT_ALLOWED = "not eligible due to preemptionPolicy=Never."
UNDER_WAY = "waiting for pods that are leaving"
NO_HELP = "not helpful for scheduling"


class Plan(NamedTuple):
    """Who goes, and where everybody sits then."""

    cost: Cost
    units: tuple[Unit, ...]
    result: Attempt | Branch

    @property
    def seats(self) -> Sequence[Seat]:
        """Who sits where."""
        return self.result.seats


def preempt(
    entity: Entity, ground: Ground, waiting: Waiting
) -> Steps[Placed | Waiting | Preempting]:
    """What to do about a refusal: evict somebody, wait for those who are leaving, or just wait.

    Who looks for room that others leave may find some that is there: then it is placed.
    """
    snapshot = ground.snapshot
    if not ground.policy.allows_preemption(entity.group is not None):
        return waiting
    if not entity.preempts:
        return replace(waiting, preemption=NOT_ALLOWED)
    leaving = [pod for pod in snapshot.census.residents() if pod.leaving]
    # Many plans are tried, so none of them gets a long search.
    free = but(ground, snapshot=varied(snapshot, minus=leaving), is_thorough=False)
    if leaving:
        result = yield from _fitting(entity, free)
        if result is not None:
            return _held(entity, free, waiting, result)
    candidates = units(snapshot, entity.priority)
    if not candidates:
        return waiting
    plan = yield from _Hunt(entity, free, candidates).best()
    if plan is None:
        return replace(waiting, preemption=NO_HELP)
    if not plan.units and not leaving:
        return plan.result.placed()
    victims = tuple(victim for unit in plan.units for victim in unit.victims)
    text = f"found a placement for {entity.sort}, preempting {len(victims)} victims"
    promised = bindings(plan.seats, snapshot.names)
    if not victims:
        return replace(waiting, preemption=UNDER_WAY, promised=promised)
    held, cost = replace(waiting, preemption=text, promised=promised), plan.cost
    return Preempting(held, victims, cost.trees + cost.groups, cost.violations)


def _fitting(entity: Entity, ground: Ground) -> Steps[Attempt | Branch | None]:
    """The whole entity, placed, if it can be; mostly arithmetic tells that it cannot."""
    if not Headroom(entity, ground.snapshot, ground.policy).suffices():
        return None
    return _enough((yield from whole(entity, ground)))


def _enough(result: Attempt | Branch | Objection) -> Attempt | Branch | None:
    return None if isinstance(result, Objection) or not result.is_enough else result


def _held(entity: Entity, free: Ground, waiting: Waiting, result: Attempt | Branch) -> Waiting:
    """Nobody else is evicted; who was promised a node keeps it, or gets another for it."""
    snapshot, held = free.snapshot, replace(waiting, preemption=UNDER_WAY)
    claims = {key: claim.node for key, claim in snapshot.claims.items()}
    if not any(member.pod.metadata.key in claims for member in entity.members):
        return held
    kept = [
        Seat(member, snapshot.index[node])
        for member in (seat.member for seat in result.seats)
        if (node := claims.get(member.pod.metadata.key)) in snapshot.index
    ]
    may_stay = len(kept) == len(result.seats) and _may_sit(entity, free, kept)
    return replace(held, promised=bindings(kept if may_stay else result.seats, snapshot.names))


def _may_sit(entity: Entity, free: Ground, seats: Sequence[Seat]) -> bool:
    """Whether members may be there, and every group that must be in one place is."""
    nodes = {seat.member.pod.metadata.key: seat.node for seat in seats}
    for one in entity.groups:
        keys = [member.pod.metadata.key for member in one.members]
        if not _share_a_place(one, free, {nodes[key] for key in keys if key in nodes}):
            return False
    return stand(free, (), seats)


def _share_a_place(one: Entity, free: Ground, nodes: Set[int]) -> bool:
    found = placements(one, free.snapshot)
    if found is None or not nodes:
        return True
    places = () if isinstance(found, Objection) else found
    return any(nodes <= set(place.nodes.tolist()) for place in places)


class _Hunt:
    """The search for the cheapest plan. The ground is free of those who are leaving anyway."""

    def __init__(self, entity: Entity, ground: Ground, candidates: Sequence[Unit]) -> None:
        self._entity, self._ground = entity, ground
        self._bill = Bill(allowances(ground.snapshot.budgets.values()))
        self._units = self._bill.in_order(candidates)
        #: How many members find a node if everybody goes: no plan seats fewer.
        self._target = 1

    def best(self) -> Plans:
        """The cheapest plan that was found; None if it does not help that all go."""
        result = yield from _fitting(self._entity, self._without(self._units))
        if result is None:
            return None
        self._target = len(result.seats)
        pool = yield from self._pool()
        plan = yield from self._plan(pool)
        few = self._units if len(self._units) <= FEW else pool
        if len(few) <= FEW:
            plan = _cheaper(plan, (yield from self._cheapest_set(few)))
        else:
            for chosen in cleared(self._entity, self._ground, pool, self._target):
                plan = _cheaper(plan, (yield from self._plan(chosen)))
        return (yield from self._relieved(plan)) if plan else None

    def _without(self, gone: Sequence[Unit]) -> Ground:
        """The ground as if these were gone."""
        pods = [pod for unit in gone for pod in unit.pods]
        return but(self._ground, snapshot=varied(self._ground.snapshot, minus=pods))

    def _result(self, gone: Sequence[Unit]) -> Steps[Attempt | Branch | None]:
        """As many members as can be, placed as if these were gone; None for fewer."""
        result = _enough((yield from whole(self._entity, self._without(gone))))
        return result if result and len(result.seats) >= self._target else None

    def _plan(self, gone: Sequence[Unit]) -> Plans:
        """The plan that comes of letting no others go than these."""
        result = yield from self._result(gone)
        if result is None:
            return None
        chosen = tuple(needed(self._ground, gone, result.seats))
        return Plan(self._bill.cost(chosen), chosen, result)

    def _pool(self) -> Steps[list[Unit]]:
        """Those who may go, but for the priorities, and the budgets, that can be left in peace."""
        ends = self._bill.ends(self._units)
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2
            if (yield from self._result(self._units[: ends[middle]])) is not None:
                high = middle
            else:
                low = middle + 1
        return self._units[: ends[high]]

    def _cheapest_set(self, pool: Sequence[Unit]) -> Plans:
        """The first set that makes room, of all sets in the order of what they cost.

        A set never costs less than a part of it, so that each is made from one that was tried.
        """
        sets: list[tuple[Cost, tuple[int, ...]]] = [
            (self._bill.cost([unit]), (number,)) for number, unit in enumerate(pool)
        ]
        heapify(sets)
        ground, least = self._ground, self._target
        headroom = Headroom(self._entity, ground.snapshot, ground.policy)
        for _ in range(MOST_SETS):
            if not sets:
                break
            _, numbers = heappop(sets)
            chosen = [pool[number] for number in numbers]
            if headroom.suffices(least) or headroom.suffices_without(self._freed(chosen), least):
                plan = yield from self._plan(chosen)
                if plan is not None:
                    return plan
            for number in range(numbers[-1] + 1, len(pool)):
                larger = (*numbers, number)
                heappush(sets, (self._bill.cost(pool[n] for n in larger), larger))
        return None

    def _freed(self, gone: Iterable[Unit]) -> Freed:
        """What units leave behind."""
        index = self._ground.snapshot.index
        pods = (pod for unit in gone for pod in unit.pods)
        return summed((index[pod.node], pod.shape) for pod in pods if pod.node in index)

    def _relieved(self, plan: Plan) -> Steps[Plan]:
        """The plan without those who can be spared if somebody sits elsewhere."""
        for unit in reversed(plan.units) if len(plan.units) <= MOST_SPARED else ():
            others = [one for one in plan.units if one is not unit]
            better = (yield from self._plan(others)) if unit in plan.units and others else None
            if better is not None and better.cost < plan.cost:
                plan = better
        return plan


def _cheaper(one: Plan | None, other: Plan | None) -> Plan | None:
    return min((p for p in (one, other) if p), key=lambda plan: plan.cost, default=None)


Plans = Steps[Plan | None]
