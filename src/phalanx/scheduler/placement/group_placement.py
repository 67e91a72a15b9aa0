"""GroupPlacement: one attempt to place the members of one group, greedily.

Members are tried in order, each on its best node. As soon as the quorum is out of reach the rest is
not tried. `group_tree_placement.py` places a CompositePodGroup, with one attempt for each PodGroup
below it.
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
#: A placement without nodes, for groups that have no placement to choose.
EMPTY_PLACEMENT = Placement("", np.array([], np.int64))


class PlacementContext(Struct, frozen=True):
    """The snapshot, the policy and the node indexes (None: all) to place members with."""

    snapshot: Snapshot
    policy: SchedulerPolicy
    nodes: IntArray | None = None
    #: Whether to run the search where the greedy attempt fails.
    allows_search: bool = True


class Assignment(Struct, frozen=True):
    """A member and the index of its node."""

    member: Member
    node: int


class GroupPlacement:
    """An attempt to place one group, or a pod without a group, in one placement."""

    #: How many placements the group could choose from; None without topology constraint.
    placement_count: int | None = None
    #: How many of them were tried, and how many were feasible.
    tried_count = feasible_count = 0
    #: Why it is undecided whether a placement exists; "" if there is none.
    undecided = ""
    #: Whether a search that is still running will decide it.
    awaits_search = False

    def __init__(
        self, entity: Entity, context: PlacementContext, placement: Placement | None = None
    ) -> None:
        self.entity, self.placement = entity, placement
        self._names = context.snapshot.names
        self._nodes = placement.nodes if placement else context.nodes
        self._simulation = PlacementSimulation(
            context.snapshot, context.policy, entity.members, nodes=self._nodes
        )
        self.assignments: list[Assignment] = []
        #: The members without a node, and why.
        self._refused: list[tuple[Member, LazyRefusal]] = []
        self.members = sort_members(entity.members)
        self._quorum, self._remaining = entity.quorum, len(self.members)
        self._already_scheduled = self.scheduled = count_scheduled(entity, context.snapshot)
        #: The members beyond the quorum that wait until siblings have their minimum.
        self._deferred: list[Member] = []
        self._is_full = False

    @property
    def meets_quorum(self) -> bool:
        """Whether enough members have a node."""
        return self.scheduled >= self._quorum

    @property
    def is_feasible(self) -> bool:
        """Whether the quorum is met and the attempt assigns at least one member."""
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
            self.placement, self.scheduled, [one.member.shape for one in self.assignments]
        )

    @property
    def choice(self) -> PlacementChoice | None:
        """What the placement of this attempt was chosen from; None without topology constraint."""
        return placement_choice(self.placement_count, self.tried_count, self.feasible_count)

    @property
    def cannot_meet_quorum(self) -> bool:
        """Whether the quorum is out of reach even if all members that remain fit."""
        return self.scheduled + self._remaining < self._quorum

    def place(self, members: Sequence[Member]) -> None:
        """Assign members to nodes, as long as the quorum is in reach."""
        simulation = self._simulation
        for run in simulation.group_alike(members):
            if self.cannot_meet_quorum:
                return
            nodes = simulation.place_alike(run)
            self.assignments += map(Assignment, run, nodes)
            self.scheduled += len(nodes)
            self._remaining -= len(nodes)
            for member in run[len(nodes) :]:
                if self.cannot_meet_quorum:
                    return
                refusal = simulation.lazy_refusal_of(member)
                assert refusal is not None
                self._remaining -= 1
                self._refused.append((member, refusal))

    @property
    def unplaced_pods(self) -> list[UnplacedPod]:
        """The members without a node, and why."""
        return [_unplaced_pod(member, build_refusal()) for member, build_refusal in self._refused]

    def trim_to_quorum(self) -> None:
        """Keep only the members that are needed; `place_deferred` places the others later."""
        if not self.meets_quorum:
            return
        self._is_full = self.is_complete
        needed = max(self._quorum - self._already_scheduled, 0)
        surplus = [assignment.member for assignment in self.assignments[needed:]]
        refused_uids = {member.pod.metadata.uid for member, _ in self._refused}
        refused = [m for m in self.members if m.pod.metadata.uid in refused_uids]
        self.assignments, self._deferred = self.assignments[:needed], surplus + refused
        self.scheduled, self._refused = self._already_scheduled + needed, []

    @property
    def is_order_independent(self) -> bool:
        """Whether no other order of members could place more of them.

        That is so if all members are equal, or if there are fewer than the quorum needs.
        """
        first, shape = self.members[0], self.members[0].shape
        if len(self.members) == 1 or self._already_scheduled + len(self.members) < self._quorum:
            return True
        are_equal = all(member.shape == shape for member in self.members)
        return are_equal and self._simulation.depends_on_load_only(first)

    @property
    def needed(self) -> int:
        """How many more members must be placed for any to be."""
        return max(self._quorum - self._already_scheduled, 1)

    def adopt_solution(
        self,
        assignments: Iterable[Assignment],
        refused: Iterable[tuple[Member, Refusal]],
        placement: Placement | None,
    ) -> None:
        """Take over the assignments that the search found in a placement."""
        self.placement, self.assignments, self._remaining = placement, list(assignments), 0
        self._nodes = placement.nodes if placement else self._nodes
        self._refused = [(member, known_refusal(refusal)) for member, refusal in refused]
        self.scheduled = self._already_scheduled + len(self.assignments)

    @property
    def has_deferred(self) -> bool:
        """Whether members wait for `place_deferred`."""
        return bool(self._deferred)

    def place_deferred(self, context: PlacementContext) -> None:
        """Place the deferred members, on the nodes of the same placement."""
        members, self._deferred = sort_members(self._deferred), []
        self._simulation = PlacementSimulation(
            context.snapshot, context.policy, members, nodes=self._nodes
        )
        self._remaining = len(members)
        self.place(members)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The assignments as bindings."""
        return to_bindings(self.assignments, self._names)

    def build_placed(self) -> Placed:
        """Build the decision of a feasible attempt."""
        leftovers = tuple(self.unplaced_pods) if self._refused else ()
        return Placed(self.entity.group_key, self.bindings, leftovers, choice=self.choice)

    def build_waiting(self) -> Waiting:
        """Build the decision of a failed attempt."""
        untried = self.members[len(self.members) - self._remaining :]
        refused = [
            *self.unplaced_pods,
            *(_unplaced_pod(m, self._simulation.refusal_of(m)) for m in untried),
        ]
        fitted = [UnplacedPod(pod, uid, None) for pod, uid, _ in self.bindings]
        return Waiting(
            self.entity.group_key,
            pods=(*fitted, *refused),
            quorum=self._quorum,
            scheduled=self.scheduled,
            remaining=self._remaining,
            unknown=sum(unplaced.refusal is None for unplaced in refused),
            wakes_on=frozenset(self._wake_events(refused)),
            reason=UNDECIDED if self.undecided else UNSCHEDULABLE,
            placements=self.placement_count,
            undecided=self.undecided,
            tried=self.tried_count,
        )

    def _wake_events(self, refused: Iterable[UnplacedPod]) -> Iterator[ClusterEvent]:
        """Yield the events that may give the members a node."""
        yield from (ClusterEvent.MEMBER_CHANGED, ClusterEvent.GROUP_CHANGED)
        for unplaced in refused:
            yield from unplaced.refusal.wakes_on if unplaced.refusal else ()
        if self._may_fit_differently:
            yield from PEER_EVENTS if self._simulation.has_peer_constraints else CAPACITY_EVENTS
        if self.entity.other_members:
            # Members with a node restrict the placements of the others.
            yield ClusterEvent.MEMBER_GONE
        if self.awaits_search:
            yield ClusterEvent.SEARCH_ENDED

    @property
    def _may_fit_differently(self) -> bool:
        """Whether events beyond those of the refusals may help.

        Another placement may become feasible. Or members that fitted may get other nodes and leave
        theirs to members of another shape.
        """
        if self.placement_count not in (None, 1) or self.is_feasible:
            return True
        return bool(self.assignments) and len(self._simulation.group_alike(self.members)) > 1


def place_members(attempt: GroupPlacement) -> Generator[int, None, GroupPlacement]:
    """Place all members, as long as the quorum is in reach; yields every YIELD_INTERVAL pods."""
    members = attempt.members
    attempt.place(members[:YIELD_INTERVAL])
    for begin in range(YIELD_INTERVAL, len(members) + 1, YIELD_INTERVAL):
        yield begin
        if attempt.cannot_meet_quorum:
            break
        attempt.place(members[begin : begin + YIELD_INTERVAL])
    return attempt


def place_in_best_domain(
    entity: Entity, context: PlacementContext, placements: Sequence[Placement], key: str
) -> Generator[int, None, GroupPlacement]:
    """Place all members in the best feasible placement, or else where most of them fit."""
    attempts = []
    for placement in _candidate_placements(entity, context, placements, key=key):
        attempt = yield from place_members(GroupPlacement(entity, context, placement))
        attempts.append(attempt)
    feasible = [attempt for attempt in attempts if attempt.is_feasible]
    if not attempts:
        return GroupPlacement(entity, context, EMPTY_PLACEMENT)
    chosen = max(feasible or attempts, key=lambda attempt: attempt.scheduled)
    if len(feasible) > 1:
        best = choose_best_candidate(
            [attempt.candidate for attempt in feasible], context.snapshot, context.policy
        )
        chosen = next(one for one in feasible if one.placement is best.placement)
    chosen.tried_count, chosen.feasible_count = len(attempts), len(feasible)
    return chosen


def _candidate_placements(
    entity: Entity, context: PlacementContext, placements: Sequence[Placement], *, key: str
) -> Sequence[Placement]:
    """Return the placements to try: for equal members only the one that will be chosen."""
    shape, snapshot, policy = entity.members[0].shape, context.snapshot, context.policy
    simulation = PlacementSimulation(snapshot, policy, entity.members)
    is_predictable = simulation.depends_on_load_only(entity.members[0])
    if not is_predictable or len(placements) < 2 or any(m.shape != shape for m in entity.members):
        return placements
    capacities = domain_capacities_of(snapshot, policy, shape, placements=placements, key=key)
    return [predict_best_placement(entity, capacities, count_scheduled(entity, snapshot))]


def placement_choice(placements: int | None, tried: int, feasible: int) -> PlacementChoice | None:
    """Describe what a placement was chosen from; the search may find one after all were tried."""
    return None if placements is None else PlacementChoice(placements, tried, max(feasible, 1))


def sort_members(members: Iterable[Member]) -> list[Member]:
    """Sort the members of one group in the order in which they are tried.

    The highest priority first, then the most attempts, then the longest wait.
    """
    return sorted(members, key=_sort_key)


def _sort_key(member: Member) -> tuple[int, int, float, str]:
    pod = member.pod
    return -pod.spec.priority, -member.attempts, member.timestamp, pod.metadata.name


def to_bindings(assignments: Iterable[Assignment], names: Sequence[str]) -> tuple[Binding, ...]:
    """Convert assignments to bindings."""
    return tuple(
        [
            new_binding(Binding, (meta.key, meta.uid, names[assignment.node]))
            for assignment in assignments
            for meta in (assignment.member.pod.metadata,)
        ]
    )


def to_assigned_pods(assignments: Iterable[Assignment], names: Sequence[str]) -> list[AssignedPod]:
    """Describe assigned members as pods that run on their nodes."""
    return [
        AssignedPod(
            meta.key,
            meta.uid,
            names[assignment.node],
            labels=meta.labels,
            shape=assignment.member.shape,
            group=pod.group,
            priority=pod.spec.priority,
        )
        for assignment in assignments
        for pod in (assignment.member.pod,)
        for meta in (pod.metadata,)
    ]


def count_scheduled(entity: Entity, snapshot: Snapshot) -> int:
    """Count the members of a group that have a node already."""
    return snapshot.member_counts.get(entity.key, 0) if entity.group else 0


def _unplaced_pod(member: Member, refusal: Refusal | None) -> UnplacedPod:
    meta = member.pod.metadata
    return UnplacedPod(meta.key, meta.uid, refusal)
