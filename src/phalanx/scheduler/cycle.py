"""The scheduling cycle: start reading here.

`decide` takes an entity from the queue, a snapshot from the cache and a policy, and returns a
Decision: all members that the entity needs have a node, or none gets one. The snapshot stays
unchanged. The caller in `controllers/scheduling/` assumes and binds what is Placed and evicts the
victims of Preempting.

    validate_entity ─▶ place_entity (greedy, then search) ─▶ Placed
        Impossible                                       └─▶ preempt ─▶ Preempting, Waiting

Room that reservations keep from the entity (`reservation/`) is not used: an entity that would fit
only there is placed elsewhere, preempts, or waits.

How a group is placed:
- Members are tried one after the other, each on its best node. Members that have a node count.
- When the quorum is out of reach the greedy attempt ends. Where members differ or constrain each
  other, a search follows, up to an exact one: it finds a placement, proves that there is none, or
  reports that the question is undecided.
- Members beyond the quorum are tried too; those without a node are leftovers.
- With a topology constraint all members are in one placement.
- A pod without a group is a group of one. A tree of groups is one entity.

Nominated pods of the same or a higher priority count on their nominated nodes for resources and
anti-affinity. Affinity and spread must hold with and without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec.structs import replace as but

from phalanx.scheduler.cluster.peer_constraints import HOSTNAME
from phalanx.scheduler.cluster.pod_index import selections_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import (
    CAPACITY_EVENTS,
    ClusterEvent,
    Decision,
    Placed,
    Preempting,
    Waiting,
    nominations_of,
)
from phalanx.scheduler.entity import Entity, EntityRejection, reject_entity, validate_entity
from phalanx.scheduler.group_tree_placement import GroupTreePlacement, place_entity
from phalanx.scheduler.placement.claim_placement import (
    resolve_claims,
    resolve_volumes,
    with_device_nodes,
    with_nominated_pods,
)
from phalanx.scheduler.placement.group_placement import GroupPlacement, PlacementContext
from phalanx.scheduler.placement.topology_domains import seconds_until_relaxed
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.preemption.evaluator import AWAITS_VICTIMS, NOT_ALLOWED, preempt
from phalanx.scheduler.reservation.reservation import ReservationHolds, starts_after_victims
from phalanx.scheduler.search.solver import (
    SolverAnswer,
    SolverFunction,
    SolverRequest,
    Steps,
    no_solver,
)


def decide(
    entity: Entity,
    snapshot: Snapshot,
    policy: SchedulerPolicy,
    *,
    solver: SolverFunction = no_solver,
    holds: ReservationHolds | None = None,
) -> Decision:
    """Decide about an entity: place all members that it needs, or none."""
    return run_steps(run_cycle(entity, snapshot, policy, holds=holds), solver)


def run_steps(cycle: Steps[Decision], solver: SolverFunction = no_solver) -> Decision:
    """Run a cycle to its decision."""
    state = resume_cycle(cycle)
    while isinstance(state, SolverRequest):
        state = resume_cycle(cycle, solver(state.program))
    return state


def resume_cycle(
    cycle: Steps[Decision], answer: SolverAnswer | None = None
) -> SolverRequest | Decision:
    """Run a cycle to its next solver request or to its decision.

    `answer` is the answer to the solver request that the cycle returned last.
    """
    while True:
        try:
            step = cycle.send(answer)
        except StopIteration as end:
            decision: Decision = end.value
            return decision
        if isinstance(step, SolverRequest):
            return step
        answer = None


def run_cycle(
    entity: Entity,
    snapshot: Snapshot,
    policy: SchedulerPolicy,
    *,
    holds: ReservationHolds | None = None,
) -> Steps[Decision]:
    """Decide in steps: yields now and then, so that the caller can do other work in between.

    A yielded SolverRequest must be answered by sending a SolverAnswer. The snapshot must not change
    between two steps, so the caller must not request another one from the cache.
    """
    if impossible := validate_entity(entity):
        return impossible
    snapshot = with_device_nodes(entity, snapshot)
    entity = resolve_volumes(resolve_claims(entity, snapshot), snapshot, policy)
    yield from _count_peers(entity, snapshot)
    if snapshot.nominations:
        ignored = holds.ignored if holds is not None else frozenset()
        own = ignored.union(entity.pod_keys) if ignored else entity.pod_keys
        snapshot = with_nominated_pods(snapshot, entity.priority, own)
    context = PlacementContext(snapshot, policy)
    result = yield from place_entity(entity, context)
    if isinstance(result, EntityRejection):
        return reject_entity(entity, result)
    if holds is not None:
        return (yield from _decide_beside_reservations(entity, context, result, holds=holds))
    if result.is_feasible:
        return result.build_placed()
    waiting = replace(result.build_waiting(), relaxation_delay=seconds_until_relaxed(entity))
    return (yield from preempt(entity, context, waiting))


def _decide_beside_reservations(
    entity: Entity,
    context: PlacementContext,
    result: GroupPlacement | GroupTreePlacement,
    *,
    holds: ReservationHolds,
) -> Steps[Decision]:
    """Decide as without reservations, but use no room that they keep from the entity.

    `result` is the placement without reservations. A refused entity whose own reservation is about
    to become free is nominated for its nodes.
    """
    snapshot, held_by = context.snapshot, ""
    if result.is_feasible:
        result = yield from _avoid_reservations(entity, context, result, holds=holds)
        placed = result.build_placed()
        if not holds.conflicts(entity, placed.bindings, snapshot, claims=placed.claims):
            return placed
    if holds:
        context = but(context, snapshot=holds.apply(snapshot))
    if result.is_feasible:
        held = yield from place_entity(entity, context)
        if isinstance(held, EntityRejection):
            return reject_entity(entity, held)
        if held.is_feasible:
            return held.build_placed()
        result, held_by = held, holds.describe()
    waiting = replace(
        result.build_waiting(), relaxation_delay=seconds_until_relaxed(entity), held_by=held_by
    )
    if held_by:
        waiting = _wake_by_reservations(waiting, holds)
    decision = yield from preempt(entity, context, waiting)
    later = _holds_after_evictions(entity, snapshot, decision, holds=holds)
    if isinstance(decision, Waiting):
        # The room of leaving pods and of victims may be kept too.
        leaves_room = any(True for _ in snapshot.pod_index.terminating_pods())
        if later and (leaves_room or decision.preemption not in ("", NOT_ALLOWED)):
            decision = _wake_by_reservations(decision, later)
        if decision.preemption in AWAITS_VICTIMS and decision.nominated:
            leaving = [pod.key for pod in snapshot.pod_index.terminating_pods()]
            if later.conflicts(entity, decision.nominated, snapshot, victims=leaving):
                decision = replace(decision, nominated=())
        if decision.nominated or not holds.nominated:
            return decision
        return replace(decision, nominated=holds.nominated, starts_soon=True)
    waiting = _wake_by_reservations(waiting, later)
    if not _takes_kept_room(entity, snapshot, decision, holds=later):
        return decision
    # The cheapest victims run on reserved nodes, and their room is kept. Others may do.
    rows = later.unreserved_rows(snapshot)
    if len(rows):
        decision = yield from preempt(entity, but(context, nodes=rows), waiting)
        if isinstance(decision, Preempting):
            return decision
    return waiting


def _holds_after_evictions(
    entity: Entity,
    snapshot: Snapshot,
    decision: Placed | Waiting | Preempting,
    *,
    holds: ReservationHolds,
) -> ReservationHolds:
    """Return what is kept from an entity that starts when its victims have terminated."""
    pods = snapshot.pod_index
    evicted = decision.victims if isinstance(decision, Preempting) else ()
    victims = [pod for one in evicted if (pod := pods.assigned_pod(one.pod)) is not None]
    nodes = {one.node for one in nominations_of(decision)}
    leaving = [pod for pod in pods.terminating_pods() if pod.node in nodes] if nodes else []
    return holds.starting_at(starts_after_victims(leaving, entity.attempted_at, victims))


def _takes_kept_room(
    entity: Entity, snapshot: Snapshot, decision: Placed | Preempting, *, holds: ReservationHolds
) -> bool:
    """Whether the next attempt, after the evictions, would be refused for a reservation."""
    if isinstance(decision, Placed):
        return holds.conflicts(entity, decision.bindings, snapshot, claims=decision.claims)
    victims = [victim.pod for victim in decision.victims]
    return holds.conflicts(entity, decision.waiting.nominated, snapshot, victims=victims)


def _wake_by_reservations(waiting: Waiting, holds: ReservationHolds) -> Waiting:
    """Let changes of reservations wake an entity that fits, or could preempt, without them.

    An entity that does not fit without them either waits for room alone.
    """
    wakes_on = waiting.wakes_on | CAPACITY_EVENTS | {ClusterEvent.RESERVATION_CHANGED}
    return replace(waiting, wakes_on=wakes_on, holders=holds.holders)


def _avoid_reservations(
    entity: Entity,
    context: PlacementContext,
    result: GroupPlacement | GroupTreePlacement,
    *,
    holds: ReservationHolds,
) -> Steps[GroupPlacement | GroupTreePlacement]:
    """Return a placement of as many members that leaves the room of reservations behind them.

    First on the nodes of the entity's own reservation, then anywhere else; or else `result`.
    """
    snapshot, avoided = context.snapshot, holds.with_avoided
    if avoided is None:
        return result
    placed = result.build_placed()
    if not avoided.conflicts(entity, placed.bindings, snapshot, claims=placed.claims):
        return result
    context = but(context, allows_search=False)
    others = [but(context, snapshot=avoided.apply(snapshot))]
    if (rows := holds.own_rows(snapshot)) is not None:
        others.insert(0, but(context, nodes=rows))
    for other in others:
        beside = yield from place_entity(entity, other)
        if isinstance(beside, EntityRejection) or not beside.is_feasible:
            continue
        if len(beside.assignments) >= len(result.assignments):
            return beside
    return result


def _count_peers(entity: Entity, snapshot: Snapshot) -> Iterator[int]:
    """Count the pods that the members' constraints select, in steps: the filters need them all.

    The domains of their topology keys are built in steps too. Each hostname is a domain that
    preferences do not need: those are built when a filter asks for them.
    """
    shapes = {member.shape for member in entity.members if member.shape.has_peer_constraints}
    for peers in dict.fromkeys(shape.peer_constraints for shape in shapes):
        for selection in selections_of(peers):
            yield from snapshot.pod_index.count_in_steps(selection)
        for key in dict.fromkeys(peers.topology_keys):
            if key != HOSTNAME:
                snapshot.domains(key)
                yield 1
