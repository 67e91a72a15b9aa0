"""The scheduling cycle: start reading here.

`decide` takes an entity from the queue, a snapshot from the cache and a policy, and returns a
Decision: everything that the entity needs has a node, or nothing gets one. All of it happens on
paper, and the snapshot stays as it was; the shell assumes and binds what is Placed, and evicts for
what is Preempting.

    objections ─▶ attempt, or branches of them ─▶ rescue ─▶ Placed
    Impossible                                          └─▶ preemption ─▶ Preempting, Waiting

What it promises about a group: members are tried one after the other, best node first; as soon as
the quorum is out of reach it gives up, and where members differ or mind each other tries harder, up
to an exact search: then there is a placement, there is none, or it says that it does not know;
members beyond the quorum are tried too, and those without a
node are left over; members that already have a node count; where a topology is asked for all of
them are in one placement. A pod alone is a group of one; a tree of groups is one entity.

Who is no less important and was promised a node while others leave it takes up room there. Whom he
keeps away stays away, but who must be near somebody, or evenly spread, must be so without him too.
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
    """Place every pod that the entity needs, or none."""
    cycle = run_cycle(entity, snapshot, policy)
    state = resume_cycle(cycle)
    while isinstance(state, SolverRequest):
        state = resume_cycle(cycle, solver(state.program))
    return state


def resume_cycle(
    cycle: Steps[Decision], answer: SolverAnswer | None = None
) -> SolverRequest | Decision:
    """What a cycle comes to next: a question, or its decision. Takes the answer to its last one."""
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
    """The same in steps: yields every so often, so that whoever drives it can do something else.

    What it yields may be a question to an exact solver, whose answer it must be sent.
    The snapshot must not change between two steps: whoever drives this asks the cache for no other.
    """
    if objection := validate_entity(entity):
        return objection
    ground = PlacementContext(
        _with_nominated_pods(entity, snapshot) if snapshot.nominations else snapshot, policy
    )
    result = yield from place_entity(entity, ground)
    if isinstance(result, EntityRejection):
        return reject_entity(entity, result)
    if result.is_feasible:
        return result.build_placed()
    waiting = replace(result.build_waiting(), relaxes=seconds_until_relaxed(entity))
    return (yield from preempt(entity, ground, waiting))


def _with_nominated_pods(entity: Entity, snapshot: Snapshot) -> Snapshot:
    """The cluster as it is when all have come to whom no less important a place was promised."""
    own = {member.pod.metadata.key for member in entity.members}
    others = [
        claim
        for key, claim in snapshot.nominations.items()
        if claim.priority >= entity.priority and key not in own
    ]
    return with_changes(snapshot, added=others, nominated=True)
