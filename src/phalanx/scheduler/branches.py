"""Branches: a group of groups, placed as one. What each group below needs first, the rest after.

    minima     constrained groups before free ones, the oldest first, each in its own best place;
               what does not fit is taken back alone, until too few groups are left
    top-up     then the other members of every group that has what it needs, where that group is

So no group takes what a sibling needs only to have more than it needs itself. Of several placements
of the whole, the one that holds most wins. Leaves are `attempt.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec.structs import replace as but

from phalanx.scheduler.cluster.census import Resident
from phalanx.scheduler.cluster.snapshot import Placement
from phalanx.scheduler.cluster.variation import varied
from phalanx.scheduler.decision import (
    UNDECIDED,
    UNSCHEDULABLE,
    Part,
    Placed,
    Refused,
    Waiting,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.events import PEERS, Event
from phalanx.scheduler.placing.attempt import (
    Attempt,
    Ground,
    Seat,
    choice_of,
    in_one_place,
    residents,
    tried,
)
from phalanx.scheduler.placing.levels import levels
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.placing.topology import Offer, best, placements
from phalanx.scheduler.rescue.rescue import rescued
from phalanx.scheduler.rescue.search import Steps


class Branch:
    """The running account of placing a group of groups."""

    def __init__(self, entity: Entity, placement: Placement | None = None) -> None:
        self.entity, self.placement = entity, placement
        self.parts: list[Attempt | Branch] = []
        self.placements: int | None = None
        #: In how many of them it was tried, and how many held enough.
        self.tried = self.feasible = 0

    @property
    def scheduled(self) -> int:
        """How many groups below have what they need."""
        return sum(part.suffices for part in self.parts)

    @property
    def remaining(self) -> int:
        """How many were not tried."""
        return len(self.entity.parts) - len(self.parts)

    @property
    def suffices(self) -> bool:
        """Whether enough groups below have what they need."""
        return self.scheduled >= self.entity.quorum

    @property
    def is_enough(self) -> bool:
        """Whether that is so, and this adds to it."""
        return self.suffices and bool(self.seats)

    @property
    def is_complete(self) -> bool:
        """Whether all groups below have all their members."""
        return not self.remaining and all(part.is_complete for part in self.parts)

    @property
    def hopeless(self) -> bool:
        """Whether too few groups are left to try."""
        return self.scheduled + self.remaining < self.entity.quorum

    @property
    def leaves(self) -> Iterator[Attempt]:
        """The groups of pods that are to be placed as things stand."""
        for part in self.parts:
            if part.suffices:
                yield from part.leaves if isinstance(part, Branch) else (part,)

    @property
    def seats(self) -> list[Seat]:
        """Who found which node."""
        return [seat for leaf in self.leaves for seat in leaf.seats]

    @property
    def offer(self) -> Offer:
        """What the placement of this branch holds."""
        assert self.placement is not None
        members = sum(leaf.scheduled for leaf in self.leaves)
        return Offer(self.placement, members, [seat.member.shape for seat in self.seats])

    def placed(self) -> Placed:
        """What was found, as a decision."""
        leaves = list(self.leaves)
        bindings = tuple(binding for leaf in leaves for binding in leaf.bindings)
        leftovers = tuple(one for leaf in leaves for one in leaf.refused)
        parts = tuple(self._verdicts(None))
        choice = choice_of(self.placements, self.tried, self.feasible)
        return Placed(self.entity.group_key, bindings, leftovers, parts, choice)

    def waiting(self) -> Waiting:
        """Why it is not enough, as a decision."""
        own = self._own()
        return replace(own, parts=tuple(self._verdicts(own)))

    def _own(self) -> Waiting:
        told = [part.waiting() for part in self.parts]
        untried = self.entity.parts[len(self.parts) :]
        pods = [one for waiting in told for one in waiting.pods]
        pods += [_untried(member) for part in untried for member in part.members]
        wakes_on = {Event.MEMBER_CHANGED, Event.GROUP_CHANGED}
        wakes_on.update(*(waiting.wakes_on for waiting in told))
        if self.placements not in (None, 1):
            # What is said here is of one placement; another one may be what is mended, or come.
            wakes_on |= PEERS
        undecided = next((waiting.undecided for waiting in told if waiting.undecided), "")
        return Waiting(
            self.entity.group_key,
            pods=tuple(pods),
            quorum=self.entity.quorum,
            scheduled=self.scheduled,
            remaining=self.remaining,
            unknown=sum(one.refusal is None for one in pods),
            wakes_on=frozenset(wakes_on),
            reason=UNDECIDED if undecided else UNSCHEDULABLE,
            placements=self.placements,
            undecided=undecided,
            tried=self.tried,
        )

    def _verdicts(self, above: Waiting | None) -> Iterator[Part]:
        """What is to be said of this group and of each below; what is above may fail them all."""
        own = above if self.suffices else self._own()
        yield Part(self.entity.key, True, own)
        tried_ones = {part.entity.key: part for part in self.parts}
        for entity in self.entity.parts:
            part = tried_ones.get(entity.key)
            if isinstance(part, Branch):
                yield from part._verdicts(own)
            elif part is not None:
                yield Part(entity.key, False, own if part.suffices else part.waiting())
            else:
                yield from (Part(one.key, one.is_composite, own) for one in entity.groups)


Grown = Attempt | Branch | Objection


def grown(entity: Entity, ground: Ground) -> Steps[Grown]:
    """A group with all that it needs in its best place, or as near to that as it comes.

    The tightest place that holds all of it wins, or else the tightest that holds enough.
    """
    wanted = levels(entity)
    if isinstance(wanted, Objection):
        return wanted
    if len(wanted) == 1:
        return (yield from _at(entity, ground, wanted[0].key))
    results: list[Grown] = []
    for level in wanted:
        result = yield from _at(entity, ground, level.key)
        if not isinstance(result, Objection) and result.is_complete:
            return result
        results.append(result)
    enough = (r for r in results if not isinstance(r, Objection) and r.suffices)
    return next(enough, results[-1])


def _at(entity: Entity, ground: Ground, key: str) -> Steps[Grown]:
    """The same in places of one sort."""
    found = placements(entity, ground.snapshot, ground.nodes, key) if key else None
    if isinstance(found, Objection):
        return found
    if entity.is_composite:
        return (yield from _in_places(entity, ground, found))
    if not entity.members:
        return Attempt(entity, ground)
    if found is None:
        attempt = yield from tried(Attempt(entity, ground))
    else:
        attempt = yield from in_one_place(entity, ground, found, key)
        attempt.placements = len(found)
    return attempt if attempt.is_enough else (yield from rescued(attempt, ground, found))


def whole(entity: Entity, ground: Ground) -> Steps[Grown]:
    """A group with all members that it can have, beyond those that it needs."""
    result = yield from grown(entity, ground)
    if isinstance(result, Branch) and result.suffices:
        yield from _top_up(result, ground)
    return result


def _in_places(entity: Entity, ground: Ground, found: Sequence[Placement] | None) -> Steps[Grown]:
    """All groups below in the best placement for the whole."""
    if found is None:
        return (yield from _branch(entity, ground, None))
    branches = []
    for placement in found:
        inside = but(ground, nodes=placement.nodes)
        branch = yield from _branch(entity, inside, placement)
        if isinstance(branch, Objection):
            return branch
        branches.append(branch)
    enough = [branch for branch in branches if branch.is_enough]
    chosen = max(branches, key=lambda branch: branch.scheduled, default=Branch(entity))
    if enough:
        offer = best([branch.offer for branch in enough], ground.snapshot, ground.policy)
        chosen = next(one for one in enough if one.placement is offer.placement)
    chosen.placements, chosen.tried, chosen.feasible = len(found), len(branches), len(enough)
    return chosen


def _branch(
    entity: Entity, ground: Ground, placement: Placement | None
) -> Steps[Branch | Objection]:
    """What the groups below need, in one place. If one order of them fails, another may not."""
    first: Branch | None = None
    for order in _orders(entity.parts):
        branch = yield from _minima(entity, order, ground, placement)
        if isinstance(branch, Objection) or branch.suffices:
            return branch
        first = first or branch
    return first or Branch(entity, placement)


def _minima(
    entity: Entity, order: Sequence[Entity], ground: Ground, placement: Placement | None
) -> Steps[Branch | Objection]:
    branch = Branch(replace(entity, parts=tuple(order)), placement)
    taken: list[Resident] = []
    for part in order:
        if branch.hopeless:
            break
        result = yield from grown(part, _beside(taken, ground))
        if isinstance(result, Objection):
            return result
        if isinstance(result, Attempt):
            result.trim()
        branch.parts.append(result)
        if result.suffices:
            taken += residents(result.seats, ground.snapshot.names)
    return branch


def _beside(taken: Iterable[Resident], ground: Ground) -> Ground:
    """What is left to those who come after."""
    return but(ground, snapshot=varied(ground.snapshot, plus=tuple(taken)))


def _top_up(branch: Branch, ground: Ground) -> Steps[None]:
    """The members beyond what is needed, each where its group is."""
    for number, leaf in enumerate(branch.leaves, 1):
        if leaf.has_more:
            taken = residents(branch.seats, ground.snapshot.names)
            leaf.extend(_beside(taken, ground))
        yield number


def _orders(parts: Sequence[Entity]) -> Iterator[list[Entity]]:
    """The constrained before the free; the oldest first, then the largest first."""
    yield sorted(parts, key=_is_free)
    yield sorted(parts, key=lambda part: (_is_free(part), *_minus_size(part)))


def _is_free(entity: Entity) -> bool:
    return not any(one.topology for one in entity.groups)


def _minus_size(entity: Entity) -> tuple[int, ...]:
    loads = [member.shape.scored for member in entity.members]
    return -sum(cpu for cpu, _ in loads), -sum(memory for _, memory in loads)


def _untried(member: Member) -> Refused:
    meta = member.pod.metadata
    return Refused(meta.key, meta.uid, None)
