"""Placement of a tree of groups as one entity, in two passes:

    minimums   each child group in its best placement, with only the members that it needs; groups
               with a topology constraint first, the oldest first. A group that does not fit is
               skipped, until too few groups are left.
    surplus    then the other members of each group that has its minimum, where the group is

So no group takes resources for surplus members that a sibling needs for its minimum. Of several
placements of the whole tree, the one that holds most members wins. `placement/group_placement.py`
places the PodGroups. `place_entity` is the entry point, also for a PodGroup or a single pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

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
from phalanx.scheduler.entity import Entity, EntityRejection
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
    """An attempt to place a CompositePodGroup."""

    def __init__(self, entity: Entity, placement: Placement | None = None) -> None:
        self.entity, self.placement = entity, placement
        self.children: list[GroupPlacement | GroupTreePlacement] = []
        self.placement_count: int | None = None
        #: How many placements were tried, and how many were feasible.
        self.tried_count = self.feasible_count = 0

    @property
    def scheduled(self) -> int:
        """How many child groups have the members that they need."""
        return sum(part.meets_quorum for part in self.children)

    @property
    def remaining(self) -> int:
        """How many child groups were not tried."""
        return len(self.entity.children) - len(self.children)

    @property
    def meets_quorum(self) -> bool:
        """Whether enough child groups have the members that they need."""
        return self.scheduled >= self.entity.quorum

    @property
    def is_feasible(self) -> bool:
        """Whether the quorum is met and the attempt assigns at least one member."""
        return self.meets_quorum and bool(self.assignments)

    @property
    def is_complete(self) -> bool:
        """Whether all child groups have all their members."""
        return not self.remaining and all(part.is_complete for part in self.children)

    @property
    def cannot_meet_quorum(self) -> bool:
        """Whether the quorum is out of reach even if all child groups that remain succeed."""
        return self.scheduled + self.remaining < self.entity.quorum

    @property
    def placed_groups(self) -> Iterator[GroupPlacement]:
        """The PodGroups that this attempt would place."""
        for part in self.children:
            if part.meets_quorum:
                yield from part.placed_groups if isinstance(part, GroupTreePlacement) else (part,)

    @property
    def assignments(self) -> list[Assignment]:
        """The nodes of the members that this attempt would place."""
        return [assignment for leaf in self.placed_groups for assignment in leaf.assignments]

    @property
    def candidate(self) -> PlacementCandidate:
        """What the placement of this attempt holds."""
        assert self.placement is not None
        members = sum(leaf.scheduled for leaf in self.placed_groups)
        return PlacementCandidate(
            self.placement, members, [one.member.shape for one in self.assignments]
        )

    def build_placed(self) -> Placed:
        """Build the decision of a feasible attempt."""
        leaves = list(self.placed_groups)
        bindings = tuple(binding for leaf in leaves for binding in leaf.bindings)
        leftovers = tuple(one for leaf in leaves for one in leaf.unplaced_pods)
        parts = tuple(self._group_outcomes(None))
        choice = placement_choice(self.placement_count, self.tried_count, self.feasible_count)
        return Placed(self.entity.group_key, bindings, leftovers, parts=parts, choice=choice)

    def build_waiting(self) -> Waiting:
        """Build the decision of a failed attempt."""
        waiting = self._build_own_waiting()
        return replace(waiting, parts=tuple(self._group_outcomes(waiting)))

    def _build_own_waiting(self) -> Waiting:
        below = [part.build_waiting() for part in self.children]
        untried = self.entity.children[len(self.children) :]
        pods = [one for waiting in below for one in waiting.pods]
        metas = [member.pod.metadata for part in untried for member in part.members]
        pods += [UnplacedPod(meta.key, meta.uid, None) for meta in metas]
        wakes_on = {ClusterEvent.MEMBER_CHANGED, ClusterEvent.GROUP_CHANGED}
        wakes_on.update(*(waiting.wakes_on for waiting in below))
        if self.placement_count not in (None, 1):
            # The wake events are those of one placement, but another one may become feasible.
            wakes_on |= PEER_EVENTS
        undecided = next((waiting.undecided for waiting in below if waiting.undecided), "")
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

    def _group_outcomes(self, parent: Waiting | None) -> Iterator[GroupOutcome]:
        """Build the outcome of this group and of each below; a waiting parent fails them all."""
        own = parent if self.meets_quorum else self._build_own_waiting()
        yield GroupOutcome(self.entity.ref, own)
        tried = {part.entity.ref: part for part in self.children}
        for entity in self.entity.children:
            part = tried.get(entity.ref)
            if isinstance(part, GroupTreePlacement):
                yield from part._group_outcomes(own)
            elif part is not None:
                yield GroupOutcome(entity.ref, own if part.meets_quorum else part.build_waiting())
            else:
                yield from (GroupOutcome(group.ref, own) for group in entity.groups)


PlacementResult = GroupPlacement | GroupTreePlacement | EntityRejection


def place_required(entity: Entity, context: PlacementContext) -> Steps[PlacementResult]:
    """Place the members that an entity needs, at its best topology level.

    The tightest level that holds all members wins, or else the tightest that holds enough.
    """
    levels = topology_levels(entity)
    if isinstance(levels, EntityRejection):
        return levels
    if len(levels) == 1:
        return (yield from _place_at_level(entity, context, levels[0].key))
    results: list[PlacementResult] = []
    for level in levels:
        result = yield from _place_at_level(entity, context, level.key)
        if not isinstance(result, EntityRejection) and result.is_complete:
            return result
        results.append(result)
    enough = (r for r in results if not isinstance(r, EntityRejection) and r.meets_quorum)
    return next(enough, results[-1])


def _place_at_level(entity: Entity, context: PlacementContext, key: str) -> Steps[PlacementResult]:
    placements = find_placements(entity, context.snapshot, context.nodes, key=key) if key else None
    if isinstance(placements, EntityRejection):
        return placements
    if entity.is_composite:
        return (yield from _place_in_best_domain(entity, context, placements))
    if not entity.members:
        return GroupPlacement(entity, context)
    if placements is None:
        attempt = yield from place_members(GroupPlacement(entity, context))
    else:
        attempt = yield from place_in_best_domain(entity, context, placements, key=key)
        attempt.placement_count = len(placements)
    if attempt.is_feasible:
        return attempt
    return (yield from complete_attempt(attempt, context, placements))


def place_entity(entity: Entity, context: PlacementContext) -> Steps[PlacementResult]:
    """Place an entity: the members that it needs, and as many others as fit."""
    result = yield from place_required(entity, context)
    if isinstance(result, GroupTreePlacement) and result.meets_quorum:
        yield from _place_surplus(result, context)
    return result


def _place_in_best_domain(
    entity: Entity, context: PlacementContext, placements: Sequence[Placement] | None
) -> Steps[PlacementResult]:
    """Place all child groups in the best placement for the whole tree."""
    if placements is None:
        return (yield from _place_children(entity, context, None))
    attempts = []
    for placement in placements:
        inside = structs.replace(context, nodes=placement.nodes)
        attempt = yield from _place_children(entity, inside, placement)
        if isinstance(attempt, EntityRejection):
            return attempt
        attempts.append(attempt)
    feasible = [attempt for attempt in attempts if attempt.is_feasible]
    chosen = max(attempts, key=lambda one: one.scheduled, default=GroupTreePlacement(entity))
    if feasible:
        best = choose_best_candidate(
            [attempt.candidate for attempt in feasible], context.snapshot, context.policy
        )
        chosen = next(one for one in feasible if one.placement is best.placement)
    chosen.placement_count = len(placements)
    chosen.tried_count, chosen.feasible_count = len(attempts), len(feasible)
    return chosen


def _place_children(
    entity: Entity, context: PlacementContext, placement: Placement | None
) -> Steps[GroupTreePlacement | EntityRejection]:
    """Place the minimums of all child groups; if one order of them fails, try another."""
    first: GroupTreePlacement | None = None
    for order in _child_orders(entity.children):
        attempt = yield from _place_minimums(entity, order, context, placement=placement)
        if isinstance(attempt, EntityRejection) or attempt.meets_quorum:
            return attempt
        first = first or attempt
    return first or GroupTreePlacement(entity, placement)


def _place_minimums(
    entity: Entity,
    order: Sequence[Entity],
    context: PlacementContext,
    *,
    placement: Placement | None,
) -> Steps[GroupTreePlacement | EntityRejection]:
    attempt = GroupTreePlacement(replace(entity, children=tuple(order)), placement)
    assigned: list[AssignedPod] = []
    for child in order:
        if attempt.cannot_meet_quorum:
            break
        result = yield from place_required(child, _with_assigned(assigned, context))
        if isinstance(result, EntityRejection):
            return result
        if isinstance(result, GroupPlacement):
            result.trim_to_quorum()
        attempt.children.append(result)
        if result.meets_quorum:
            assigned += to_assigned_pods(result.assignments, context.snapshot.names)
    return attempt


def _with_assigned(pods: Iterable[AssignedPod], context: PlacementContext) -> PlacementContext:
    return structs.replace(context, snapshot=with_changes(context.snapshot, added=tuple(pods)))


def _place_surplus(attempt: GroupTreePlacement, context: PlacementContext) -> Steps[None]:
    """Place the members beyond the minimums, each where its group is."""
    for number, leaf in enumerate(attempt.placed_groups, 1):
        if leaf.has_deferred:
            assigned = to_assigned_pods(attempt.assignments, context.snapshot.names)
            leaf.place_deferred(_with_assigned(assigned, context))
        yield number


def _child_orders(children: Sequence[Entity]) -> Iterator[list[Entity]]:
    """Yield the orders to try: the oldest first, then the largest first.

    In both, groups with a topology constraint come first.
    """

    def is_unconstrained(child: Entity) -> bool:
        return not any(group.topology_key for group in child.groups)

    def size(child: Entity) -> tuple[int, int]:
        requests = [member.shape.nonzero_requests for member in child.members]
        return sum(cpu for cpu, _ in requests), sum(memory for _, memory in requests)

    yield sorted(children, key=is_unconstrained)
    by_size = sorted(children, key=size, reverse=True)
    yield sorted(by_size, key=is_unconstrained)
