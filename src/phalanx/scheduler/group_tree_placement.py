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

from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import Placement
from phalanx.scheduler.decision import (
    PEER_EVENTS,
    UNDECIDED,
    UNSCHEDULABLE,
    ClusterEvent,
    GroupOutcome,
    Placed,
    UnplacedPod,
    Waiting,
)
from phalanx.scheduler.entity import Entity, EntityRejection, Member
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    place_in_best_domain,
    place_members,
    placement_choice,
    to_assigned_pods,
)
from phalanx.scheduler.placement.topology_domains import (
    PlacementCandidate,
    choose_best_candidate,
    find_placements,
    topology_levels,
)
from phalanx.scheduler.search.placement_search import complete_attempt
from phalanx.scheduler.search.solver import Steps


class GroupTreePlacement:
    """The running account of placing a group of groups."""

    def __init__(self, entity: Entity, placement: Placement | None = None) -> None:
        self.entity, self.placement = entity, placement
        self.children: list[GroupPlacement | GroupTreePlacement] = []
        self.placement_count: int | None = None
        #: In how many of them it was tried, and how many held enough.
        self.tried_count = self.feasible_count = 0

    @property
    def scheduled(self) -> int:
        """How many groups below have what they need."""
        return sum(part.meets_quorum for part in self.children)

    @property
    def remaining(self) -> int:
        """How many were not tried."""
        return len(self.entity.children) - len(self.children)

    @property
    def meets_quorum(self) -> bool:
        """Whether enough groups below have what they need."""
        return self.scheduled >= self.entity.quorum

    @property
    def is_feasible(self) -> bool:
        """Whether that is so, and this adds to it."""
        return self.meets_quorum and bool(self.assignments)

    @property
    def is_complete(self) -> bool:
        """Whether all groups below have all their members."""
        return not self.remaining and all(part.is_complete for part in self.children)

    @property
    def cannot_meet_quorum(self) -> bool:
        """Whether too few groups are left to try."""
        return self.scheduled + self.remaining < self.entity.quorum

    @property
    def placed_groups(self) -> Iterator[GroupPlacement]:
        """The groups of pods that are to be placed as things stand."""
        for part in self.children:
            if part.meets_quorum:
                yield from part.placed_groups if isinstance(part, GroupTreePlacement) else (part,)

    @property
    def assignments(self) -> list[Assignment]:
        """Who found which node."""
        return [seat for leaf in self.placed_groups for seat in leaf.assignments]

    @property
    def candidate(self) -> PlacementCandidate:
        """What the placement of this branch holds."""
        assert self.placement is not None
        members = sum(leaf.scheduled for leaf in self.placed_groups)
        return PlacementCandidate(
            self.placement, members, [seat.member.shape for seat in self.assignments]
        )

    def build_placed(self) -> Placed:
        """What was found, as a decision."""
        leaves = list(self.placed_groups)
        bindings = tuple(binding for leaf in leaves for binding in leaf.bindings)
        leftovers = tuple(one for leaf in leaves for one in leaf.unplaced_pods)
        parts = tuple(self._group_outcomes(None))
        choice = placement_choice(self.placement_count, self.tried_count, self.feasible_count)
        return Placed(self.entity.group_key, bindings, leftovers, parts, choice)

    def build_waiting(self) -> Waiting:
        """Why it is not enough, as a decision."""
        own = self._build_own_waiting()
        return replace(own, parts=tuple(self._group_outcomes(own)))

    def _build_own_waiting(self) -> Waiting:
        told = [part.build_waiting() for part in self.children]
        untried = self.entity.children[len(self.children) :]
        pods = [one for waiting in told for one in waiting.pods]
        pods += [_untried_pod(member) for part in untried for member in part.members]
        wakes_on = {ClusterEvent.MEMBER_CHANGED, ClusterEvent.GROUP_CHANGED}
        wakes_on.update(*(waiting.wakes_on for waiting in told))
        if self.placement_count not in (None, 1):
            # What is said here is of one placement; another one may be what is mended, or come.
            wakes_on |= PEER_EVENTS
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
            placements=self.placement_count,
            undecided=undecided,
            tried=self.tried_count,
        )

    def _group_outcomes(self, above: Waiting | None) -> Iterator[GroupOutcome]:
        """What is to be said of this group and of each below; what is above may fail them all."""
        own = above if self.meets_quorum else self._build_own_waiting()
        yield GroupOutcome(self.entity.key, True, own)
        tried_ones = {part.entity.key: part for part in self.children}
        for entity in self.entity.children:
            part = tried_ones.get(entity.key)
            if isinstance(part, GroupTreePlacement):
                yield from part._group_outcomes(own)
            elif part is not None:
                yield GroupOutcome(
                    entity.key, False, own if part.meets_quorum else part.build_waiting()
                )
            else:
                yield from (GroupOutcome(one.key, one.is_composite, own) for one in entity.groups)


PlacementResult = GroupPlacement | GroupTreePlacement | EntityRejection


def place_required(entity: Entity, context: PlacementContext) -> Steps[PlacementResult]:
    """A group with all that it needs in its best place, or as near to that as it comes.

    The tightest place that holds all of it wins, or else the tightest that holds enough.
    """
    wanted = topology_levels(entity)
    if isinstance(wanted, EntityRejection):
        return wanted
    if len(wanted) == 1:
        return (yield from _place_at_level(entity, context, wanted[0].key))
    results: list[PlacementResult] = []
    for level in wanted:
        result = yield from _place_at_level(entity, context, level.key)
        if not isinstance(result, EntityRejection) and result.is_complete:
            return result
        results.append(result)
    enough = (r for r in results if not isinstance(r, EntityRejection) and r.meets_quorum)
    return next(enough, results[-1])


def _place_at_level(entity: Entity, context: PlacementContext, key: str) -> Steps[PlacementResult]:
    """The same in places of one sort."""
    found = find_placements(entity, context.snapshot, context.nodes, key) if key else None
    if isinstance(found, EntityRejection):
        return found
    if entity.is_composite:
        return (yield from _place_in_best_domain(entity, context, found))
    if not entity.members:
        return GroupPlacement(entity, context)
    if found is None:
        attempt = yield from place_members(GroupPlacement(entity, context))
    else:
        attempt = yield from place_in_best_domain(entity, context, found, key)
        attempt.placement_count = len(found)
    return (
        attempt if attempt.is_feasible else (yield from complete_attempt(attempt, context, found))
    )


def place_entity(entity: Entity, context: PlacementContext) -> Steps[PlacementResult]:
    """A group with all members that it can have, beyond those that it needs."""
    result = yield from place_required(entity, context)
    if isinstance(result, GroupTreePlacement) and result.meets_quorum:
        yield from _place_surplus(result, context)
    return result


def _place_in_best_domain(
    entity: Entity, context: PlacementContext, found: Sequence[Placement] | None
) -> Steps[PlacementResult]:
    """All groups below in the best placement for the whole."""
    if found is None:
        return (yield from _place_children(entity, context, None))
    branches = []
    for placement in found:
        inside = but(context, nodes=placement.nodes)
        branch = yield from _place_children(entity, inside, placement)
        if isinstance(branch, EntityRejection):
            return branch
        branches.append(branch)
    enough = [branch for branch in branches if branch.is_feasible]
    chosen = max(branches, key=lambda branch: branch.scheduled, default=GroupTreePlacement(entity))
    if enough:
        offer = choose_best_candidate(
            [branch.candidate for branch in enough], context.snapshot, context.policy
        )
        chosen = next(one for one in enough if one.placement is offer.placement)
    chosen.placement_count, chosen.tried_count, chosen.feasible_count = (
        len(found),
        len(branches),
        len(enough),
    )
    return chosen


def _place_children(
    entity: Entity, context: PlacementContext, placement: Placement | None
) -> Steps[GroupTreePlacement | EntityRejection]:
    """What the groups below need, in one place. If one order of them fails, another may not."""
    first: GroupTreePlacement | None = None
    for order in _child_orders(entity.children):
        branch = yield from _place_minimums(entity, order, context, placement)
        if isinstance(branch, EntityRejection) or branch.meets_quorum:
            return branch
        first = first or branch
    return first or GroupTreePlacement(entity, placement)


def _place_minimums(
    entity: Entity, order: Sequence[Entity], context: PlacementContext, placement: Placement | None
) -> Steps[GroupTreePlacement | EntityRejection]:
    branch = GroupTreePlacement(replace(entity, children=tuple(order)), placement)
    taken: list[AssignedPod] = []
    for part in order:
        if branch.cannot_meet_quorum:
            break
        result = yield from place_required(part, _with_assigned(taken, context))
        if isinstance(result, EntityRejection):
            return result
        if isinstance(result, GroupPlacement):
            result.trim_to_quorum()
        branch.children.append(result)
        if result.meets_quorum:
            taken += to_assigned_pods(result.assignments, context.snapshot.names)
    return branch


def _with_assigned(taken: Iterable[AssignedPod], context: PlacementContext) -> PlacementContext:
    """What is left to those who come after."""
    return but(context, snapshot=with_changes(context.snapshot, added=tuple(taken)))


def _place_surplus(branch: GroupTreePlacement, context: PlacementContext) -> Steps[None]:
    """The members beyond what is needed, each where its group is."""
    for number, leaf in enumerate(branch.placed_groups, 1):
        if leaf.has_deferred:
            taken = to_assigned_pods(branch.assignments, context.snapshot.names)
            leaf.place_deferred(_with_assigned(taken, context))
        yield number


def _child_orders(parts: Sequence[Entity]) -> Iterator[list[Entity]]:
    """The constrained before the free; the oldest first, then the largest first."""
    yield sorted(parts, key=_is_unconstrained)
    yield sorted(parts, key=lambda part: (_is_unconstrained(part), *_negated_size(part)))


def _is_unconstrained(entity: Entity) -> bool:
    return not any(one.topology_key for one in entity.groups)


def _negated_size(entity: Entity) -> tuple[int, ...]:
    loads = [member.shape.nonzero_requests for member in entity.members]
    return -sum(cpu for cpu, _ in loads), -sum(memory for _, memory in loads)


def _untried_pod(member: Member) -> UnplacedPod:
    meta = member.pod.metadata
    return UnplacedPod(meta.key, meta.uid, None)
