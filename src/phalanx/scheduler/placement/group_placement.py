"""Attempt: the members of one group, placed one after the other on a `Trial`. Greedy and cheap.

Members are tried in order, each on its best node; as soon as the quorum is out of reach the rest is
not tried. `branches.py` does the same for a group of groups, with one attempt for each below it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import IntArray, Placement, Snapshot
from phalanx.scheduler.decision import (
    CAPACITY_EVENTS,
    PEER_EVENTS,
    UNDECIDED,
    UNSCHEDULABLE,
    Binding,
    ClusterEvent,
    Placed,
    PlacementChoice,
    Refusal,
    UnplacedPod,
    Waiting,
    new_binding,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.placement.placement_simulation import (
    LazyRefusal,
    PlacementSimulation,
    known_refusal,
)
from phalanx.scheduler.placement.topology_domains import (
    PlacementCandidate,
    choose_best_candidate,
    domain_capacities_of,
    predict_best_placement,
)
from phalanx.scheduler.policy import SchedulerPolicy

#: How many pods are tried between two yields.
YIELD_INTERVAL = 256
#: Nowhere at all: where those are tried who have no placement to choose.
EMPTY_PLACEMENT = Placement("", np.array([], np.int64))


class PlacementContext(Struct, frozen=True):
    """Where members may be put, and by what rules. `nodes` are indexes; None means all."""

    snapshot: Snapshot
    policy: SchedulerPolicy
    nodes: IntArray | None = None
    #: Whether a placement is worth a long search.
    allows_search: bool = True


class Assignment(Struct, frozen=True):
    """A member and the node that it found."""

    member: Member
    node: int


class GroupPlacement:
    """The running account of placing one group, or a pod alone."""

    #: Among how many placements it could choose; None where it may be anywhere.
    placement_count: int | None = None
    #: In how many of them it was tried, and how many held enough.
    tried_count = feasible_count = 0
    #: Why it is not known whether there is a way; "" if there is none.
    undecided = ""
    #: Whether it will be known when a search has come to its end.
    awaits_search = False

    def __init__(
        self, entity: Entity, context: PlacementContext, placement: Placement | None = None
    ) -> None:
        self.entity, self.placement = entity, placement
        self._names = context.snapshot.names
        self._nodes = placement.nodes if placement else context.nodes
        self._simulation = PlacementSimulation(
            context.snapshot, context.policy, entity.members, self._nodes
        )
        self.assignments: list[Assignment] = []
        #: The members that found no node, and why.
        self._refused: list[tuple[Member, LazyRefusal]] = []
        self.members = sort_members(entity.members)
        self._quorum, self._remaining = entity.quorum, len(self.members)
        self._already_scheduled = self.scheduled = count_scheduled(entity, context.snapshot)
        #: The members that were left out for the sake of siblings.
        self._deferred: list[Member] = []
        self._is_full = False

    @property
    def meets_quorum(self) -> bool:
        """Whether the quorum is met."""
        return self.scheduled >= self._quorum

    @property
    def is_feasible(self) -> bool:
        """Whether the quorum is met and this adds to it."""
        return bool(self.assignments) and self.scheduled >= self._quorum

    @property
    def is_complete(self) -> bool:
        """Whether all members have a node."""
        return self._is_full or (self.meets_quorum and len(self.assignments) == len(self.members))

    @property
    def candidate(self) -> PlacementCandidate:
        """What the placement of this attempt holds."""
        assert self.placement is not None
        return PlacementCandidate(
            self.placement, self.scheduled, [seat.member.shape for seat in self.assignments]
        )

    @property
    def choice(self) -> PlacementChoice | None:
        """What the placement of this attempt was chosen from, if from any."""
        return placement_choice(self.placement_count, self.tried_count, self.feasible_count)

    @property
    def cannot_meet_quorum(self) -> bool:
        """Whether the quorum is out of reach even if all that remain find a node."""
        return self.scheduled + self._remaining < self._quorum

    def place(self, members: Sequence[Member]) -> None:
        """Try members, as long as there is hope, and note what came of each."""
        trial = self._simulation
        for run in trial.group_alike(members):
            if self.cannot_meet_quorum:
                return
            nodes = trial.place_alike(run)
            self.assignments += map(Assignment, run, nodes)
            self.scheduled += len(nodes)
            self._remaining -= len(nodes)
            if len(nodes) < len(run):
                self._record_refusals(run[len(nodes) :])

    def _record_refusals(self, members: Iterable[Member]) -> None:
        for member in members:
            if self.cannot_meet_quorum:
                return
            excuse = self._simulation.lazy_refusal_of(member)
            assert excuse is not None
            self._remaining -= 1
            self._refused.append((member, excuse))

    @property
    def unplaced_pods(self) -> list[UnplacedPod]:
        """The members that found no node."""
        return [_unplaced(member, excuse()) for member, excuse in self._refused]

    def trim_to_quorum(self) -> None:
        """Keep no more members than are needed: the others come after what siblings need."""
        if not self.meets_quorum:
            return
        self._is_full = self.is_complete
        needed = max(self._quorum - self._already_scheduled, 0)
        kept, given_back = self.assignments[:needed], self.assignments[needed:]
        tried_in_vain = {member.pod.metadata.uid for member, _ in self._refused}
        refused = [m for m in self.members if m.pod.metadata.uid in tried_in_vain]
        self.assignments, self._deferred = kept, [seat.member for seat in given_back] + refused
        self.scheduled, self._refused = self._already_scheduled + needed, []

    @property
    def is_order_independent(self) -> bool:
        """Whether no other order could place more: all members are alike, or too few anyway."""
        first, shape = self.members[0], self.members[0].shape
        if len(self.members) == 1 or self._already_scheduled + len(self.members) < self._quorum:
            return True
        return all(
            m.shape == shape for m in self.members
        ) and self._simulation.depends_on_load_only(first)

    @property
    def needed(self) -> int:
        """How many members must find a node for any to get one."""
        return max(self._quorum - self._already_scheduled, 1)

    def adopt_solution(
        self, assignments: Iterable[Assignment], left: Iterable[tuple[Member, Refusal]],
        placement: Placement | None,
    ) -> None:  # fmt: skip
        """Take over what was found in another way, in this placement."""
        self.placement, self.assignments, self._remaining = placement, list(assignments), 0
        self._nodes = placement.nodes if placement else self._nodes
        self._refused = [(member, known_refusal(refusal)) for member, refusal in left]
        self.scheduled = self._already_scheduled + len(self.assignments)

    @property
    def has_deferred(self) -> bool:
        """Whether members were left out."""
        return bool(self._deferred)

    def place_deferred(self, context: PlacementContext) -> None:
        """Try those members that were left out, where the others are."""
        more, self._deferred = sort_members(self._deferred), []
        self._simulation = PlacementSimulation(context.snapshot, context.policy, more, self._nodes)
        self._remaining = len(more)
        self.place(more)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Who would be bound where."""
        return to_bindings(self.assignments, self._names)

    def build_placed(self) -> Placed:
        """What was found, as a decision."""
        leftovers = tuple(self.unplaced_pods) if self._refused else ()
        return Placed(self.entity.group_key, self.bindings, leftovers, choice=self.choice)

    def build_waiting(self) -> Waiting:
        """Why it is not enough, as a decision."""
        untried = self.members[len(self.members) - self._remaining :]
        refused = [
            *self.unplaced_pods,
            *(_unplaced(m, self._simulation.refusal_of(m)) for m in untried),
        ]
        fitted = [UnplacedPod(pod, uid, None) for pod, uid, _ in self.bindings]
        return Waiting(
            self.entity.group_key,
            pods=(*fitted, *refused),
            quorum=self._quorum,
            scheduled=self.scheduled,
            remaining=self._remaining,
            unknown=sum(one.refusal is None for one in refused),
            wakes_on=frozenset(self._wake_events(refused)),
            reason=UNDECIDED if self.undecided else UNSCHEDULABLE,
            placements=self.placement_count,
            undecided=self.undecided,
            tried=self.tried_count,
        )

    def _wake_events(self, refused: Iterable[UnplacedPod]) -> Iterator[ClusterEvent]:
        """What may change that these have no node."""
        yield from (ClusterEvent.MEMBER_CHANGED, ClusterEvent.GROUP_CHANGED)
        for one in refused:
            yield from one.refusal.wakes_on if one.refusal else ()
        if self._may_fit_differently:
            yield from PEER_EVENTS if self._simulation.has_peer_constraints else CAPACITY_EVENTS
        if self.entity.other_members:
            # Who has a node may be why the others must be near to it.
            yield ClusterEvent.MEMBER_GONE
        if self.awaits_search:
            yield ClusterEvent.SEARCH_ENDED

    @property
    def _may_fit_differently(self) -> bool:
        """Whether more may help than what mends a refusal: that another placement is mended, or
        comes; or that who has a node finds another, and leaves this one to somebody unlike him.
        """
        if self.placement_count not in (None, 1) or self.is_feasible:
            return True
        return bool(self.assignments) and len(self._simulation.group_alike(self.members)) > 1


def place_members(attempt: GroupPlacement) -> Generator[int, None, GroupPlacement]:
    """Try all members, as long as there is hope."""
    members = attempt.members
    attempt.place(members[:YIELD_INTERVAL])
    for begin in range(YIELD_INTERVAL, len(members) + 1, YIELD_INTERVAL):
        yield begin
        if attempt.cannot_meet_quorum:
            break
        attempt.place(members[begin : begin + YIELD_INTERVAL])
    return attempt


def place_in_best_domain(
    entity: Entity, context: PlacementContext, found: Sequence[Placement], key: str
) -> Generator[int, None, GroupPlacement]:
    """All members in the best placement that holds enough of them, or in the nearest to it."""
    attempts = []
    for placement in _candidate_placements(entity, context, found, key):
        attempt = yield from place_members(GroupPlacement(entity, context, placement))
        attempts.append(attempt)
    enough = [attempt for attempt in attempts if attempt.is_feasible]
    if not attempts:
        return GroupPlacement(entity, context, EMPTY_PLACEMENT)
    chosen = max(enough or attempts, key=lambda attempt: attempt.scheduled)
    if len(enough) > 1:
        offer = choose_best_candidate(
            [attempt.candidate for attempt in enough], context.snapshot, context.policy
        )
        chosen = next(one for one in enough if one.placement is offer.placement)
    chosen.tried_count, chosen.feasible_count = len(attempts), len(enough)
    return chosen


def _candidate_placements(
    entity: Entity, context: PlacementContext, found: Sequence[Placement], key: str
) -> Sequence[Placement]:
    """The placements to try: of equal members only the one that will win, or comes nearest."""
    shape, snapshot, policy = entity.members[0].shape, context.snapshot, context.policy
    plain = PlacementSimulation(snapshot, policy, entity.members).depends_on_load_only(
        entity.members[0]
    )
    if not plain or len(found) < 2 or any(m.shape != shape for m in entity.members):
        return found
    sites = domain_capacities_of(snapshot, policy, shape, found, key)
    return [predict_best_placement(entity, sites, count_scheduled(entity, snapshot))]


def placement_choice(placements: int | None, tried: int, feasible: int) -> PlacementChoice | None:
    """What a placement that holds enough was chosen from; it may be found after all were tried."""
    return None if placements is None else PlacementChoice(placements, tried, max(feasible, 1))


def sort_members(members: Iterable[Member]) -> list[Member]:
    """The members of one group in the order in which they are tried."""
    return sorted(members, key=_sort_key)


def _sort_key(member: Member) -> tuple[int, int, float, str]:
    """The most urgent come first, of equals the one that came first."""
    pod = member.pod
    return -pod.spec.priority, -member.attempts, member.timestamp, pod.metadata.name


def to_bindings(assignments: Iterable[Assignment], names: Sequence[str]) -> tuple[Binding, ...]:
    """Seats by name."""
    return tuple(
        [
            new_binding(Binding, (meta.key, meta.uid, names[seat.node]))
            for seat in assignments
            for meta in (seat.member.pod.metadata,)
        ]
    )


def to_assigned_pods(assignments: Iterable[Assignment], names: Sequence[str]) -> list[AssignedPod]:
    """Members as if they were on the nodes that they found."""
    return [
        AssignedPod(
            meta.key, meta.uid, names[seat.node], meta.labels, seat.member.shape, group=pod.group,
            priority=pod.spec.priority,
        )
        for seat in assignments
        for pod in (seat.member.pod,)
        for meta in (pod.metadata,)
    ]  # fmt: skip


def count_scheduled(entity: Entity, snapshot: Snapshot) -> int:
    """How many members have a node already."""
    return snapshot.member_counts.get(entity.key, 0) if entity.group else 0


def _unplaced(member: Member, refusal: Refusal | None) -> UnplacedPod:
    meta = member.pod.metadata
    return UnplacedPod(meta.key, meta.uid, refusal)
