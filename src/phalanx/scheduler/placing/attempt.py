"""Attempt: the members of one group, placed one after the other on a `Trial`. Greedy and cheap.

Members are tried in order, each on its best node; as soon as the quorum is out of reach the rest is
not tried. `branches.py` does the same for a group of groups, with one attempt for each below it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from phalanx.scheduler.cluster.census import Resident
from phalanx.scheduler.cluster.snapshot import IntArray, Placement, Snapshot
from phalanx.scheduler.decision import (
    UNDECIDED,
    UNSCHEDULABLE,
    Binding,
    Choice,
    Placed,
    Refusal,
    Refused,
    Waiting,
    new_binding,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.events import PEERS, ROOM, Event
from phalanx.scheduler.placing.seeker import Excuse, known
from phalanx.scheduler.placing.sites import sites_of
from phalanx.scheduler.placing.topology import Offer, best, promising
from phalanx.scheduler.placing.trial import Trial
from phalanx.scheduler.policy import Policy

#: How many pods are tried between two yields.
PACE = 256
#: Nowhere at all: where those are tried who have no placement to choose.
NO_NODES = Placement("", np.array([], np.int64))


class Ground(Struct, frozen=True):
    """Where members may be put, and by what rules. `nodes` are indexes; None means all."""

    snapshot: Snapshot
    policy: Policy
    nodes: IntArray | None = None
    #: Whether a placement is worth a long search.
    is_thorough: bool = True


class Seat(Struct, frozen=True):
    """A member and the node that it found."""

    member: Member
    node: int


class Attempt:
    """The running account of placing one group, or a pod alone."""

    #: Among how many placements it could choose; None where it may be anywhere.
    placements: int | None = None
    #: In how many of them it was tried, and how many held enough.
    tried = feasible = 0
    #: Why it is not known whether there is a way; "" if there is none.
    undecided = ""
    #: Whether it will be known when a search has come to its end.
    awaits_search = False

    def __init__(self, entity: Entity, ground: Ground, placement: Placement | None = None) -> None:
        self.entity, self.placement = entity, placement
        self._names = ground.snapshot.names
        self._nodes = placement.nodes if placement else ground.nodes
        self._trial = Trial(ground.snapshot, ground.policy, entity.members, self._nodes)
        self.seats: list[Seat] = []
        #: The members that found no node, and why.
        self._refused: list[tuple[Member, Excuse]] = []
        self.members = in_order(entity.members)
        self._quorum, self._remaining = entity.quorum, len(self.members)
        self._before = self.scheduled = scheduled(entity, ground.snapshot)
        #: The members that were left out for the sake of siblings.
        self._more: list[Member] = []
        self._is_full = False

    @property
    def suffices(self) -> bool:
        """Whether the quorum is met."""
        return self.scheduled >= self._quorum

    @property
    def is_enough(self) -> bool:
        """Whether the quorum is met and this adds to it."""
        return bool(self.seats) and self.scheduled >= self._quorum

    @property
    def is_complete(self) -> bool:
        """Whether all members have a node."""
        return self._is_full or (self.suffices and len(self.seats) == len(self.members))

    @property
    def offer(self) -> Offer:
        """What the placement of this attempt holds."""
        assert self.placement is not None
        return Offer(self.placement, self.scheduled, [seat.member.shape for seat in self.seats])

    @property
    def choice(self) -> Choice | None:
        """What the placement of this attempt was chosen from, if from any."""
        return choice_of(self.placements, self.tried, self.feasible)

    @property
    def hopeless(self) -> bool:
        """Whether the quorum is out of reach even if all that remain find a node."""
        return self.scheduled + self._remaining < self._quorum

    def place(self, members: Sequence[Member]) -> None:
        """Try members, as long as there is hope, and note what came of each."""
        trial = self._trial
        for run in trial.runs(members):
            if self.hopeless:
                return
            nodes = trial.place_alike(run)
            self.seats += map(Seat, run, nodes)
            self.scheduled += len(nodes)
            self._remaining -= len(nodes)
            if len(nodes) < len(run):
                self._refuse(run[len(nodes) :])

    def _refuse(self, members: Iterable[Member]) -> None:
        for member in members:
            if self.hopeless:
                return
            excuse = self._trial.excuse(member)
            assert excuse is not None
            self._remaining -= 1
            self._refused.append((member, excuse))

    @property
    def refused(self) -> list[Refused]:
        """The members that found no node."""
        return [_refused(member, excuse()) for member, excuse in self._refused]

    def trim(self) -> None:
        """Keep no more members than are needed: the others come after what siblings need."""
        if not self.suffices:
            return
        self._is_full = self.is_complete
        needed = max(self._quorum - self._before, 0)
        kept, given_back = self.seats[:needed], self.seats[needed:]
        tried_in_vain = {member.pod.metadata.uid for member, _ in self._refused}
        refused = [m for m in self.members if m.pod.metadata.uid in tried_in_vain]
        self.seats, self._more = kept, [seat.member for seat in given_back] + refused
        self.scheduled, self._refused = self._before + needed, []

    @property
    def is_certain(self) -> bool:
        """Whether no other order could place more: all members are alike, or too few anyway."""
        first, shape = self.members[0], self.members[0].shape
        if len(self.members) == 1 or self._before + len(self.members) < self._quorum:
            return True
        return all(m.shape == shape for m in self.members) and self._trial.is_plain(first)

    @property
    def needed(self) -> int:
        """How many members must find a node for any to get one."""
        return max(self._quorum - self._before, 1)

    def adopt(
        self, seats: Iterable[Seat], left: Iterable[tuple[Member, Refusal]],
        placement: Placement | None,
    ) -> None:  # fmt: skip
        """Take over what was found in another way, in this placement."""
        self.placement, self.seats, self._remaining = placement, list(seats), 0
        self._nodes = placement.nodes if placement else self._nodes
        self._refused = [(member, known(refusal)) for member, refusal in left]
        self.scheduled = self._before + len(self.seats)

    @property
    def has_more(self) -> bool:
        """Whether members were left out."""
        return bool(self._more)

    def extend(self, ground: Ground) -> None:
        """Try those members that were left out, where the others are."""
        more, self._more = in_order(self._more), []
        self._trial = Trial(ground.snapshot, ground.policy, more, self._nodes)
        self._remaining = len(more)
        self.place(more)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Who would be bound where."""
        return bindings(self.seats, self._names)

    def placed(self) -> Placed:
        """What was found, as a decision."""
        leftovers = tuple(self.refused) if self._refused else ()
        return Placed(self.entity.group_key, self.bindings, leftovers, choice=self.choice)

    def waiting(self) -> Waiting:
        """Why it is not enough, as a decision."""
        untried = self.members[len(self.members) - self._remaining :]
        refused = [*self.refused, *(_refused(m, self._trial.refused(m)) for m in untried)]
        fitted = [Refused(pod, uid, None) for pod, uid, _ in self.bindings]
        return Waiting(
            self.entity.group_key,
            pods=(*fitted, *refused),
            quorum=self._quorum,
            scheduled=self.scheduled,
            remaining=self._remaining,
            unknown=sum(one.refusal is None for one in refused),
            wakes_on=frozenset(self._cured_by(refused)),
            reason=UNDECIDED if self.undecided else UNSCHEDULABLE,
            placements=self.placements,
            undecided=self.undecided,
            tried=self.tried,
        )

    def _cured_by(self, refused: Iterable[Refused]) -> Iterator[Event]:
        """What may change that these have no node."""
        yield from (Event.MEMBER_CHANGED, Event.GROUP_CHANGED)
        for one in refused:
            yield from one.refusal.wakes_on if one.refusal else ()
        if self._could_differ:
            yield from PEERS if self._trial.minds_others else ROOM
        if self.entity.others:
            # Who has a node may be why the others must be near to it.
            yield Event.MEMBER_GONE
        if self.awaits_search:
            yield Event.SEARCH_ENDED

    @property
    def _could_differ(self) -> bool:
        """Whether more may help than what mends a refusal: that another placement is mended, or
        comes; or that who has a node finds another, and leaves this one to somebody unlike him.
        """
        if self.placements not in (None, 1) or self.is_enough:
            return True
        return bool(self.seats) and len(self._trial.runs(self.members)) > 1


def tried(attempt: Attempt) -> Generator[int, None, Attempt]:
    """Try all members, as long as there is hope."""
    members = attempt.members
    attempt.place(members[:PACE])
    for begin in range(PACE, len(members) + 1, PACE):
        yield begin
        if attempt.hopeless:
            break
        attempt.place(members[begin : begin + PACE])
    return attempt


def in_one_place(
    entity: Entity, ground: Ground, found: Sequence[Placement], key: str
) -> Generator[int, None, Attempt]:
    """All members in the best placement that holds enough of them, or in the nearest to it."""
    attempts = []
    for placement in _candidates(entity, ground, found, key):
        attempt = yield from tried(Attempt(entity, ground, placement))
        attempts.append(attempt)
    enough = [attempt for attempt in attempts if attempt.is_enough]
    if not attempts:
        return Attempt(entity, ground, NO_NODES)
    chosen = max(enough or attempts, key=lambda attempt: attempt.scheduled)
    if len(enough) > 1:
        offer = best([attempt.offer for attempt in enough], ground.snapshot, ground.policy)
        chosen = next(one for one in enough if one.placement is offer.placement)
    chosen.tried, chosen.feasible = len(attempts), len(enough)
    return chosen


def _candidates(
    entity: Entity, ground: Ground, found: Sequence[Placement], key: str
) -> Sequence[Placement]:
    """The placements to try: of equal members only the one that will win, or comes nearest."""
    shape, snapshot, policy = entity.members[0].shape, ground.snapshot, ground.policy
    plain = Trial(snapshot, policy, entity.members).is_plain(entity.members[0])
    if not plain or len(found) < 2 or any(m.shape != shape for m in entity.members):
        return found
    sites = sites_of(snapshot, policy, shape, found, key)
    return [promising(entity, sites, scheduled(entity, snapshot))]


def choice_of(placements: int | None, tried: int, feasible: int) -> Choice | None:
    """What a placement that holds enough was chosen from; it may be found after all were tried."""
    return None if placements is None else Choice(placements, tried, max(feasible, 1))


def in_order(members: Iterable[Member]) -> list[Member]:
    """The members of one group in the order in which they are tried."""
    return sorted(members, key=_precedence)


def _precedence(member: Member) -> tuple[int, int, float, str]:
    """The most urgent come first, of equals the one that came first."""
    pod = member.pod
    return -pod.spec.priority, -member.attempts, member.timestamp, pod.metadata.name


def bindings(seats: Iterable[Seat], names: Sequence[str]) -> tuple[Binding, ...]:
    """Seats by name."""
    return tuple(
        [
            new_binding(Binding, (meta.key, meta.uid, names[seat.node]))
            for seat in seats
            for meta in (seat.member.pod.metadata,)
        ]
    )


def residents(seats: Iterable[Seat], names: Sequence[str]) -> list[Resident]:
    """Members as if they were on the nodes that they found."""
    return [
        Resident(
            meta.key, meta.uid, names[seat.node], meta.labels, seat.member.shape, group=pod.group,
            priority=pod.spec.priority,
        )
        for seat in seats
        for pod in (seat.member.pod,)
        for meta in (pod.metadata,)
    ]  # fmt: skip


def scheduled(entity: Entity, snapshot: Snapshot) -> int:
    """How many members have a node already."""
    return snapshot.members.get(entity.key, 0) if entity.group else 0


def _refused(member: Member, refusal: Refusal | None) -> Refused:
    meta = member.pod.metadata
    return Refused(meta.key, meta.uid, refusal)
