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

from phalanx.scheduler.branches import whole
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cluster.variation import varied
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.evicting.preemption import preempt
from phalanx.scheduler.placing.attempt import Ground
from phalanx.scheduler.placing.levels import relaxes
from phalanx.scheduler.placing.objections import Objection, impossible, refused_outright
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.rescue.program import Answer
from phalanx.scheduler.rescue.search import Search, Solver, Steps, nobody


def decide(entity: Entity, snapshot: Snapshot, policy: Policy, solver: Solver = nobody) -> Decision:
    """Place every pod that the entity needs, or none."""
    cycle = steps(entity, snapshot, policy)
    state = advanced(cycle)
    while isinstance(state, Search):
        state = advanced(cycle, solver(state.program))
    return state


def advanced(cycle: Steps[Decision], answer: Answer | None = None) -> Search | Decision:
    """What a cycle comes to next: a question, or its decision. Takes the answer to its last one."""
    while True:
        try:
            step = cycle.send(answer)
        except StopIteration as end:
            decision: Decision = end.value
            return decision
        if isinstance(step, Search):
            return step
        answer = None


def steps(entity: Entity, snapshot: Snapshot, policy: Policy) -> Steps[Decision]:
    """The same in steps: yields every so often, so that whoever drives it can do something else.

    What it yields may be a question to an exact solver, whose answer it must be sent.
    The snapshot must not change between two steps: whoever drives this asks the cache for no other.
    """
    if objection := impossible(entity):
        return objection
    ground = Ground(_with_claims(entity, snapshot) if snapshot.claims else snapshot, policy)
    result = yield from whole(entity, ground)
    if isinstance(result, Objection):
        return refused_outright(entity, result)
    if result.is_enough:
        return result.placed()
    waiting = replace(result.waiting(), relaxes=relaxes(entity))
    return (yield from preempt(entity, ground, waiting))


def _with_claims(entity: Entity, snapshot: Snapshot) -> Snapshot:
    """The cluster as it is when all have come to whom no less important a place was promised."""
    own = {member.pod.metadata.key for member in entity.members}
    others = [
        claim
        for key, claim in snapshot.claims.items()
        if claim.priority >= entity.priority and key not in own
    ]
    return varied(snapshot, plus=others, promised=True)
