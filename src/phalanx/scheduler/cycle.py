"""The scheduling cycle: start reading here.

`decide` takes an entity from the queue, a snapshot from the cache and a policy, and returns a
Decision: every pod that the group needs has a node, or none gets one. It places on a `Trial`, so
that the snapshot stays as it was; the shell assumes and binds what is Placed.

What it promises about a group: members are tried one after the other, best node first; as soon as
the quorum is out of reach it gives up; members beyond the quorum are tried too, and those without a
node are left over; members that already have a node count; where a topology is asked for all of
them are in one placement. A pod alone is a group of one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from phalanx.scheduler.decision import Binding, Decision, Placed, Refusal, Refused, Waiting
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.events import Event
from phalanx.scheduler.objections import Objection, impossible, refused_outright
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.snapshot import Snapshot
from phalanx.scheduler.topology import Offer, Placement, best, placements, promising
from phalanx.scheduler.trial import Trial

#: How many pods are tried between two yields.
PACE = 256


def decide(entity: Entity, snapshot: Snapshot, policy: Policy) -> Decision:
    """Place every pod that the entity needs, or none."""
    cycle = steps(entity, snapshot, policy)
    while True:
        try:
            next(cycle)
        except StopIteration as end:
            decision: Decision = end.value
            return decision


def steps(entity: Entity, snapshot: Snapshot, policy: Policy) -> Generator[int, None, Decision]:
    """The same in steps: yields the number of pods tried so far, every so often.

    The snapshot must not change between two steps: whoever drives this asks the cache for no other.
    """
    if objection := impossible(entity):
        return objection
    found = placements(entity, snapshot)
    if isinstance(found, Objection):
        return refused_outright(entity, found)
    if found is None:
        attempt = yield from _tried(_Attempt(entity, snapshot, policy))
        return attempt.decision()
    return (yield from _in_one_place(entity, snapshot, policy, found))


def _tried(attempt: _Attempt) -> Generator[int, None, _Attempt]:
    """Try all members, as long as there is hope."""
    for number, member in enumerate(attempt.members, 1):
        if attempt.hopeless:
            break
        attempt.place(member)
        if number % PACE == 0:
            yield number
    return attempt


def _in_one_place(
    entity: Entity, snapshot: Snapshot, policy: Policy, found: Sequence[Placement]
) -> Generator[int, None, Decision]:
    """All members in the best placement that holds enough of them."""
    attempts = []
    for placement in _candidates(entity, snapshot, policy, found):
        attempt = yield from _tried(_Attempt(entity, snapshot, policy, placement))
        attempts.append(attempt)
    enough = [attempt for attempt in attempts if attempt.is_enough]
    if enough:
        chosen = best([attempt.offer for attempt in enough], snapshot)
        return next(one for one in enough if one.placement is chosen.placement).decision()
    if not attempts:
        attempts = [_Attempt(entity, snapshot, policy, Placement("", -1, np.array([], np.int64)))]
    nearest = max(attempts, key=lambda attempt: attempt.scheduled)
    waiting = nearest.decision()
    assert isinstance(waiting, Waiting)
    return replace(waiting, placements=len(found))


def _candidates(
    entity: Entity, snapshot: Snapshot, policy: Policy, found: Sequence[Placement]
) -> Sequence[Placement]:
    """The placements to try: of equal members only the one that will win, or comes nearest."""
    shape = entity.members[0].shape
    plain = Trial(snapshot, policy, entity.members).is_plain(entity.members[0])
    if not plain or len(found) < 2 or any(m.shape != shape for m in entity.members):
        return found
    return [promising(entity, snapshot, policy, found, _scheduled(entity, snapshot))]


def in_order(members: tuple[Member, ...]) -> list[Member]:
    """The members of one group in the order in which they are tried."""
    return sorted(members, key=_rank)


def _rank(member: Member) -> tuple[int, int, float, str]:
    pod = member.pod
    return -pod.spec.priority, -member.attempts, member.timestamp, pod.metadata.name


class _Attempt:
    """The running account of one cycle."""

    def __init__(
        self, entity: Entity, snapshot: Snapshot, policy: Policy,
        placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self._entity, self._names, self.placement = entity, snapshot.names, placement
        nodes = placement.nodes if placement else None
        self._trial = Trial(snapshot, policy, entity.members, nodes)
        self._loads = [0, 0]
        self._bindings: list[Binding] = []
        self._refused: list[Refused] = []
        self.members = in_order(entity.members)
        self._quorum, self._remaining = entity.quorum, len(self.members)
        self.scheduled = _scheduled(entity, snapshot)

    @property
    def is_enough(self) -> bool:
        """Whether the quorum is met and this cycle adds to it."""
        return bool(self._bindings) and self.scheduled >= self._quorum

    @property
    def offer(self) -> Offer:
        """What the placement of this attempt holds."""
        assert self.placement is not None
        return Offer(self.placement, self.scheduled, *self._loads)

    @property
    def hopeless(self) -> bool:
        """Whether the quorum is out of reach even if all that remain find a node."""
        return self.scheduled + self._remaining < self._quorum

    def place(self, member: Member) -> None:
        """Try one member and note what came of it."""
        self._remaining -= 1
        answer = self._trial.place(member)
        if isinstance(answer, Refusal):
            self._refused.append(_refused(member, answer))
        else:
            meta = member.pod.metadata
            self._bindings.append(Binding(meta.key, meta.uid, self._names[answer]))
            self.scheduled += 1
            if self.placement is not None:
                self._count(member)

    def _count(self, member: Member) -> None:
        for at, amount in enumerate(member.shape.scored):
            self._loads[at] += amount

    def decision(self) -> Placed | Waiting:
        """Placed if the quorum is met and this cycle adds to it, else Waiting."""
        group = self._entity.group_key
        if self.is_enough:
            return Placed(group, tuple(self._bindings), tuple(self._refused))
        untried = self.members[len(self.members) - self._remaining :]
        refused = [*self._refused, *(_refused(m, self._trial.refused(m)) for m in untried)]
        fitted = [Refused(pod, uid, None) for pod, uid, _ in self._bindings]
        wakes_on = {Event.MEMBER_CHANGED, Event.GROUP_CHANGED}
        wakes_on.update(*(one.refusal.wakes_on for one in refused if one.refusal))
        return Waiting(
            group,
            pods=(*fitted, *refused),
            quorum=self._quorum,
            scheduled=self.scheduled,
            remaining=self._remaining,
            unknown=sum(one.refusal is None for one in refused),
            wakes_on=frozenset(wakes_on),
        )


def _scheduled(entity: Entity, snapshot: Snapshot) -> int:
    """How many members have a node already."""
    return snapshot.members.get(entity.key, 0) if entity.group else 0


def _refused(member: Member, refusal: Refusal | None) -> Refused:
    meta = member.pod.metadata
    return Refused(meta.key, meta.uid, refusal)
