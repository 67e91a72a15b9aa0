"""The scheduling cycle: start reading here.

`decide` takes an entity from the queue, a snapshot from the cache and a policy, and returns a
Decision: all members that the entity needs have a node, or none gets one. The snapshot stays
unchanged. The caller in `controllers/scheduling/` assumes and binds what is Placed and evicts the
victims of Preempting.

    validate_entity ─▶ place_entity (greedy, then search) ─▶ Placed
        Impossible                                       └─▶ preempt ─▶ Preempting, Waiting

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

from dataclasses import replace

from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.entity import Entity, EntityRejection, reject_entity, validate_entity
from phalanx.scheduler.group_tree_placement import place_entity
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.placement.topology_domains import seconds_until_relaxed
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.preemption.evaluator import preempt
from phalanx.scheduler.search.solver import (
    SolverAnswer,
    SolverFunction,
    SolverRequest,
    Steps,
    no_solver,
)


def decide(
    entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy, solver: SolverFunction = no_solver
) -> Decision:
    """Decide about an entity: place all members that it needs, or none."""
    cycle = run_cycle(entity, snapshot, policy)
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


def run_cycle(entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> Steps[Decision]:
    """Decide in steps: yields now and then, so that the caller can do other work in between.

    A yielded SolverRequest must be answered by sending a SolverAnswer. The snapshot must not change
    between two steps, so the caller must not request another one from the cache.
    """
    if impossible := validate_entity(entity):
        return impossible
    if snapshot.nominations:
        snapshot = _with_nominated_pods(entity, snapshot)
    context = PlacementContext(snapshot, policy)
    result = yield from place_entity(entity, context)
    if isinstance(result, EntityRejection):
        return reject_entity(entity, result)
    if result.is_feasible:
        return result.build_placed()
    waiting = replace(result.build_waiting(), relaxation_delay=seconds_until_relaxed(entity))
    return (yield from preempt(entity, context, waiting))


def _with_nominated_pods(entity: Entity, snapshot: Snapshot) -> Snapshot:
    """Add the nominated pods of the same or a higher priority, except the entity's own."""
    own_pods = {member.pod.metadata.key for member in entity.members}
    nominated = [
        nomination
        for key, nomination in snapshot.nominations.items()
        if nomination.priority >= entity.priority and key not in own_pods
    ]
    return with_changes(snapshot, added=nominated, nominated=True)
