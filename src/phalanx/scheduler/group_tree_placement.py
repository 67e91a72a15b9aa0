"""Placement of a tree of groups as one entity, in these passes:

    minimums   each child group in its best placement, with only the members that it needs; groups
               with a topology constraint first, the oldest first. A group that does not fit is
               skipped, until too few groups are left (`GreedyTreePlacer`).
    search     if too few groups have their minimum: for the tree as a whole
               (`search/tree_search.py`), which finds nodes for all minimums or proves that there
               are none; otherwise for each group that was skipped, beside the others
    surplus    then the other members of each group that has its minimum, where the group is

So no group takes resources for surplus members that a sibling needs for its minimum. A tree with a
topology constraint is placed in the fullest domain that holds all its groups; domains are tried in
the order of `placement/domain_bounds.py`. `placement/group_placement.py` places the PodGroups.
`place_entity` is the entry point, also for a PodGroup or a single pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from phalanx.api.meta import Key, Ref
from phalanx.scheduler.cluster.hypothetical import WorkingSnapshot
from phalanx.scheduler.cluster.snapshot import IntArray, Placement
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
from phalanx.scheduler.placement.domain_bounds import count_evaluated, rank_for_tree
from phalanx.scheduler.placement.domain_placement import place_in_best_domain
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    count_scheduled,
    place_members,
    placement_choice,
    sort_members,
    to_assigned_pods,
)
from phalanx.scheduler.placement.topology_domains import (
    PlacementCandidate,
    choose_best_candidate,
    find_placement_of,
    find_placements,
    topology_levels,
)
from phalanx.scheduler.search.placement_search import complete_attempt
from phalanx.scheduler.search.solver import PlacementFound, SearchUndecided, Steps
from phalanx.scheduler.search.tree_search import search_tree


class GroupTreePlacement:
    """An attempt to place a CompositePodGroup."""

    def __init__(self, entity: Entity, placement: Placement | None = None) -> None:
        self.entity, self.placement = entity, placement
        self.children: list[GroupPlacement | GroupTreePlacement] = []
        self.placement_count: int | None = None
        #: How many placements were tried, and how many were feasible.
        self.tried_count = self.feasible_count = 0
        #: Those in which the quorum may fit; the search need not look at the others.
        self.possible_placements: Sequence[Placement] = ()

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
    def has_child_minimums(self) -> bool:
        """Whether all child groups have the members that they need."""
        return self.scheduled == len(self.entity.children)

    @property
    def has_all_minimums(self) -> bool:
        """Whether all groups below, at any depth, have the members that they need."""
        return self.has_child_minimums and all(
            part.has_all_minimums for part in self.children if isinstance(part, GroupTreePlacement)
        )

    def mark_undecided(self, reason: str, *, awaits_search: bool) -> None:
        """Note for all groups below why it is undecided whether a placement exists."""
        for part in self.children:
            if isinstance(part, GroupTreePlacement):
                part.mark_undecided(reason, awaits_search=awaits_search)
            else:
                part.undecided, part.awaits_search = reason, awaits_search

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
            self.placement,
            members,
            [one.member.shape for one in self.assignments],
            nodes=[one.node for one in self.assignments],
        )

    def build_placed(self) -> Placed:
        """Build the decision of a feasible attempt."""
        leaves = list(self.placed_groups)
        bindings = tuple(binding for leaf in leaves for binding in leaf.bindings)
        leftovers = tuple(one for leaf in leaves for one in leaf.unplaced_pods)
        parts = tuple(self._group_outcomes(None))
        choice = placement_choice(self.placement_count, self.tried_count, self.feasible_count)
        claims = tuple(claim for leaf in leaves for claim in leaf.claim_reservations)
        return Placed(
            self.entity.group_key,
            bindings,
            leftovers,
            parts=parts,
            choice=choice,
            claims=claims,
            volumes=tuple(one for leaf in leaves for one in leaf.volume_assignments),
        )

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


def place_entity(entity: Entity, context: PlacementContext) -> Steps[PlacementResult]:
    """Place an entity: the members that it needs, and as many others as fit."""
    result = yield from place_required(entity, context)
    if isinstance(result, GroupTreePlacement) and result.meets_quorum:
        yield from _place_surplus(result, context)
        if not result.is_feasible:
            result = yield from _search_tree(result, context)
    return result


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
    return _first_sufficient(results)


def _first_sufficient(results: Sequence[PlacementResult]) -> PlacementResult:
    enough = (r for r in results if not isinstance(r, EntityRejection) and r.meets_quorum)
    return next(enough, results[-1])


def _place_at_level(entity: Entity, context: PlacementContext, key: str) -> Steps[PlacementResult]:
    """Place an entity at one topology level: greedily, then by a search."""
    if entity.is_composite:
        return (yield from _place_tree_at_level(entity, context, key))
    attempt = yield from _place_group(entity, context, key)
    if isinstance(attempt, EntityRejection) or attempt.is_feasible or not entity.members:
        return attempt
    inside = None if attempt.placement_count is None else attempt.possible_placements
    return (yield from complete_attempt(attempt, context, inside))


def _place_group(
    entity: Entity, context: PlacementContext, key: str, *, failed: set[str] | None = None
) -> Steps[GroupPlacement | EntityRejection]:
    """Place a PodGroup greedily; `failed` are domains in which it does not fit."""
    snapshot, nodes = context.snapshot, context.nodes
    placements = find_placements(entity, snapshot, nodes, key=key) if key else None
    if isinstance(placements, EntityRejection):
        return placements
    if not entity.members:
        return GroupPlacement(entity, context)
    if placements is None:
        return (yield from place_members(GroupPlacement(entity, context)))
    attempt = yield from place_in_best_domain(entity, context, placements, key=key, failed=failed)
    attempt.placement_count = len(placements)
    return attempt


def _place_tree_at_level(
    entity: Entity, context: PlacementContext, key: str
) -> Steps[PlacementResult]:
    result = yield from GreedyTreePlacer(context).place_tree(entity, context.nodes, key)
    if isinstance(result, EntityRejection):
        return result
    if not result.meets_quorum:
        result = yield from _search_tree(result, context)
    if result.meets_quorum:
        yield from _retry_skipped(result, context)
    return result


class GreedyTreePlacer:
    """Places the minimums of a tree without a search, group after group.

    Siblings are placed on one working snapshot: it holds the pods of all groups that have their
    minimum so far, and those of a group are removed again when the group or its parent fails.
    """

    def __init__(self, context: PlacementContext) -> None:
        self._context, self._working = context, WorkingSnapshot(context.snapshot)
        #: The domains in which members did not fit, by topology key, nodes, quorum and shapes; and
        #: after how many pods. Equal members do not fit there after more pods either.
        self._failed: dict[tuple[object, ...], dict[str, int]] = {}

    def place_tree(
        self, entity: Entity, nodes: IntArray | None, key: str
    ) -> Steps[GroupTreePlacement | EntityRejection]:
        """Place the minimums of a tree among these nodes, in one domain of a topology key."""
        placements = find_placements(entity, self._working.snapshot, nodes, key=key)
        if isinstance(placements, EntityRejection):
            return placements
        if placements is None:
            return (yield from self._place_children(entity, nodes, None))
        return (yield from self._place_in_domain(entity, placements))

    def _place_group(
        self, entity: Entity, nodes: IntArray | None, key: str
    ) -> Steps[GroupPlacement | EntityRejection]:
        context = structs.replace(self._context, snapshot=self._working.snapshot, nodes=nodes)
        known = self._failed_domains(entity, nodes, key) if key else None
        failed = set(known or ())
        attempt = yield from _place_group(entity, context, key, failed=failed)
        if known is not None:
            known |= dict.fromkeys(failed - known.keys(), len(self._working))
        return attempt

    def _failed_domains(
        self, entity: Entity, nodes: IntArray | None, key: str
    ) -> dict[str, int] | None:
        """The domains that refused an equal group; None if more pods may let the group fit."""
        shapes = [member.shape for member in sort_members(entity.members)]
        existing_terms = self._working.snapshot.pod_index.existing_terms
        if existing_terms or any(shape.has_peer_constraints for shape in shapes):
            return None
        needed = entity.quorum - count_scheduled(entity, self._context.snapshot)
        inside = b"" if nodes is None else nodes.tobytes()
        return self._failed.setdefault((key, inside, needed, *shapes), {})

    def _truncate(self, count: int) -> None:
        """Keep only the first pods of the working snapshot, and forget what failed after them."""
        if count < len(self._working):
            self._working.truncate(count)
            for known in self._failed.values():
                for value in [value for value, after in known.items() if after > count]:
                    del known[value]

    def _place_child(self, entity: Entity, nodes: IntArray | None) -> Steps[PlacementResult]:
        """Place the minimum of a child group at its best level and keep its pods."""
        levels, before = topology_levels(entity), len(self._working)
        if isinstance(levels, EntityRejection):
            return levels
        results: list[PlacementResult] = []
        for level in levels:
            self._truncate(before)
            place = self.place_tree if entity.is_composite else self._place_group
            result: PlacementResult = yield from place(entity, nodes, level.key)
            results.append(result)
            if isinstance(result, EntityRejection):
                continue
            if result.is_complete:
                break
        else:
            self._truncate(before)
            result = _first_sufficient(results)
        if isinstance(result, GroupPlacement):
            result.trim_to_quorum()
        if not isinstance(result, EntityRejection) and result.meets_quorum:
            self._keep(result, before)
        return result

    def _keep(self, result: GroupPlacement | GroupTreePlacement, before: int) -> None:
        """Let the working snapshot hold the pods of a group and those before it."""
        self._truncate(before)
        self._working.add(to_assigned_pods(result.assignments, self._context.snapshot.names))

    def _place_in_domain(
        self, entity: Entity, placements: Sequence[Placement]
    ) -> Steps[GroupTreePlacement | EntityRejection]:
        """Place all child groups in the first placement that holds them, or else in the best."""
        before, snapshot, policy = len(self._working), self._working.snapshot, self._context.policy
        ranked = rank_for_tree(entity, placements, snapshot, policy=policy) if placements else []
        attempts: list[tuple[int, GroupTreePlacement]] = []
        for one in ranked:
            if attempts and not one.is_possible:
                break
            self._truncate(before)
            attempt = yield from self._place_children(entity, one.placement.nodes, one.placement)
            if isinstance(attempt, EntityRejection):
                return attempt
            attempts.append((one.position, attempt))
            if attempt.has_child_minimums:
                break
        in_order = [attempt for _, attempt in sorted(attempts, key=lambda pair: pair[0])]
        enough = [attempt for attempt in in_order if attempt.meets_quorum]
        chosen = max(in_order, key=lambda one: one.scheduled, default=GroupTreePlacement(entity))
        if attempts and attempts[-1][1].has_child_minimums:
            chosen = attempts[-1][1]
        elif enough:
            self._truncate(before)
            best = choose_best_candidate([one.candidate for one in enough], snapshot, policy)
            chosen = next(one for one in enough if one.placement is best.placement)
        chosen.placement_count = len(placements)
        chosen.tried_count = count_evaluated(ranked, [position for position, _ in attempts])
        chosen.feasible_count = sum(attempt.is_feasible for attempt in in_order)
        chosen.possible_placements = [one.placement for one in ranked if one.is_possible]
        return chosen

    def _place_children(
        self, entity: Entity, nodes: IntArray | None, placement: Placement | None
    ) -> Steps[GroupTreePlacement | EntityRejection]:
        """Place the minimums of all child groups; if one order of them fails, try another."""
        first: GroupTreePlacement | None = None
        before = len(self._working)
        for order in _child_orders(entity.children):
            self._truncate(before)
            attempt = GroupTreePlacement(replace(entity, children=tuple(order)), placement)
            spare = len(order) - entity.quorum
            for number, child in enumerate(order, 1):
                if spare < 0:
                    break
                result = yield from self._place_child(child, nodes)
                if isinstance(result, EntityRejection):
                    return result
                attempt.children.append(result)
                spare -= not result.meets_quorum
                yield number
            if attempt.meets_quorum:
                return attempt
            first = first or attempt
        return first or GroupTreePlacement(entity, placement)


def _child_orders(children: Sequence[Entity]) -> Iterator[list[Entity]]:
    """Yield the orders to try: the oldest first, the largest first, the largest members first.

    In all, groups with a topology constraint come first.
    """

    def is_unconstrained(child: Entity) -> bool:
        return not any(group.topology_key for group in child.groups)

    def group_size(child: Entity) -> tuple[int, int]:
        requests = [member.shape.nonzero_requests for member in child.members]
        return sum(cpu for cpu, _ in requests), sum(memory for _, memory in requests)

    def member_size(child: Entity) -> tuple[int, int]:
        return max((member.shape.nonzero_requests for member in child.members), default=(0, 0))

    by_group_size = sorted(children, key=group_size, reverse=True)
    by_member_size = sorted(children, key=member_size, reverse=True)
    seen: set[tuple[Ref, ...]] = set()
    for order in (children, by_group_size, by_member_size):
        constrained_first = sorted(order, key=is_unconstrained)
        refs = tuple(child.ref for child in constrained_first)
        if refs not in seen:
            seen.add(refs)
            yield constrained_first


def _search_tree(
    attempt: GroupTreePlacement, context: PlacementContext
) -> Steps[GroupTreePlacement]:
    """Search a placement for a failed attempt, or note why it is undecided whether one exists."""
    count = attempt.placement_count
    inside = None if count is None else attempt.possible_placements
    outcome = yield from search_tree(attempt.entity, context, inside)
    match outcome:
        case PlacementFound(assignments):
            found = _adopt_tree(attempt.entity, context, assignments)
            found.placement_count, found.tried_count = count, attempt.tried_count
            return found
        case SearchUndecided(reason, is_pending):
            attempt.mark_undecided(reason, awaits_search=is_pending)
    return attempt


def _adopt_tree(
    entity: Entity, context: PlacementContext, assignments: Iterable[Assignment]
) -> GroupTreePlacement:
    """Build the attempt of a tree from the assignments that the search found."""
    by_group: dict[Key | None, list[Assignment]] = {}
    for assignment in assignments:
        by_group.setdefault(assignment.member.pod.group, []).append(assignment)

    def adopt(one: Entity, nodes: IntArray | None) -> GroupPlacement | GroupTreePlacement:
        used = [a.node for leaf in one.leaves for a in by_group.get(leaf.key, ())]
        placement = find_placement_of(one, context.snapshot, nodes, used=used)
        nodes = placement.nodes if placement else nodes
        if one.is_composite:
            tree = GroupTreePlacement(one, placement)
            tree.children = [adopt(child, nodes) for child in one.children]
            return tree
        leaf = GroupPlacement(one, structs.replace(context, nodes=nodes))
        leaf.adopt_minimum(by_group.get(one.key, ()), placement)
        return leaf

    found = adopt(entity, context.nodes)
    assert isinstance(found, GroupTreePlacement)
    return found


def _retry_skipped(attempt: GroupTreePlacement, context: PlacementContext) -> Steps[None]:
    """Search a placement for each group beyond the quorum that has none, beside the others."""
    if attempt.has_all_minimums:
        return
    working = yield from _with_placed_groups(attempt, context)

    def retry(parent: GroupTreePlacement, nodes: IntArray | None) -> Steps[None]:
        inside = parent.placement.nodes if parent.placement else nodes
        for number, part in enumerate(parent.children):
            if part.meets_quorum:
                if isinstance(part, GroupTreePlacement):
                    yield from retry(part, inside)
                continue
            beside = structs.replace(context, snapshot=working.snapshot, nodes=inside)
            result = yield from place_required(part.entity, beside)
            if isinstance(result, EntityRejection):
                continue
            if isinstance(result, GroupPlacement):
                result.trim_to_quorum()
            if result.meets_quorum:
                working.add(to_assigned_pods(result.assignments, context.snapshot.names))
            parent.children[number] = result

    yield from retry(attempt, context.nodes)


def _with_placed_groups(
    attempt: GroupTreePlacement, context: PlacementContext
) -> Steps[WorkingSnapshot]:
    """Build the snapshot with the members that an attempt would place."""
    working = WorkingSnapshot(context.snapshot)
    for number, leaf in enumerate(attempt.placed_groups, 1):
        working.add(to_assigned_pods(leaf.assignments, context.snapshot.names))
        yield number
    return working


def _place_surplus(attempt: GroupTreePlacement, context: PlacementContext) -> Steps[None]:
    """Place the members beyond the minimums, each where its group is."""
    if not any(leaf.has_deferred for leaf in attempt.placed_groups):
        return
    working = yield from _with_placed_groups(attempt, context)
    for number, leaf in enumerate(attempt.placed_groups, 1):
        if leaf.has_deferred:
            before = len(leaf.assignments)
            leaf.place_deferred(structs.replace(context, snapshot=working.snapshot))
            working.add(to_assigned_pods(leaf.assignments[before:], context.snapshot.names))
        yield number
