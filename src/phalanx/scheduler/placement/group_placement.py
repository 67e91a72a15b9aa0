"""GroupPlacement: one attempt to place the members of one group, greedily.

Members are tried in order, each on its best node. As soon as the quorum is out of reach the rest is
not tried. `group_tree_placement.py` places a CompositePodGroup, with one attempt for each PodGroup
below it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as but

from phalanx.api.scheduling import PodGroup
from phalanx.api.storage import volume_keys_of
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import IntArray, Placement, Snapshot
from phalanx.scheduler.decision import (
    CAPACITY_EVENTS,
    PEER_EVENTS,
    UNDECIDED,
    UNSCHEDULABLE,
    Binding,
    ClaimReservation,
    ClusterEvent,
    Placed,
    PlacementChoice,
    Refusal,
    UnplacedPod,
    VolumeAssignment,
    Waiting,
    new_binding,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.placement.claim_placement import assign_volumes, reserve_claims
from phalanx.scheduler.placement.node_ranking import LazyRefusal, known_refusal
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import PlacementCandidate
from phalanx.scheduler.plugins.claim_assignments import AssignedClaims
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.volumes.demand import AssignedVolume

#: How many pods are tried between two yields: all nodes are compared for each pod with peers.
YIELD_INTERVAL, YIELD_INTERVAL_WITH_PEERS = 256, 16
#: A placement without nodes, for groups that have no placement to choose.
EMPTY_PLACEMENT = Placement("", np.array([], np.int64))


DEVICE_LIMIT = "the search for devices of a node ended at its limit"


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
    #: The devices of its claims.
    claims: AssignedClaims = ()
    #: The volumes of its claims that are bound with it.
    volumes: tuple[AssignedVolume, ...] = ()


class GroupPlacement:
    """An attempt to place one group, or a pod without a group, in one placement."""

    #: How many placements the group could choose from; None without topology constraint.
    placement_count: int | None = None
    #: How many of them were tried, and how many were feasible.
    tried_count = feasible_count = 0
    #: Those in which the quorum may fit; the search need not look at the others.
    possible_placements: Sequence[Placement] = ()
    #: Why it is undecided whether a placement exists; "" if there is none.
    undecided = ""
    #: Whether a search that is still running will decide it.
    awaits_search = False

    def __init__(
        self, entity: Entity, context: PlacementContext, placement: Placement | None = None
    ) -> None:
        self.entity, self.placement = entity, placement
        self._names, self._devices = context.snapshot.names, context.snapshot.devices
        self._volumes = context.snapshot.volumes
        self._nodes = placement.nodes if placement else context.nodes
        self._simulation = PlacementSimulation(
            context.snapshot, context.policy, entity.members, nodes=self._nodes
        )
        self._has_claims = self._simulation.has_claims
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
    def yield_interval(self) -> int:
        """How many pods are tried between two yields."""
        has_peers = self._simulation.has_peer_constraints
        return YIELD_INTERVAL_WITH_PEERS if has_peers else YIELD_INTERVAL

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
            self.placement,
            self.scheduled,
            [one.member.shape for one in self.assignments],
            nodes=[one.node for one in self.assignments],
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
        self._place(members)
        if self._has_claims:
            # Later members may have changed the volumes of earlier ones.
            self.assignments = with_volumes(self._simulation, self.assignments)

    def _place(self, members: Sequence[Member]) -> None:
        simulation = self._simulation
        for run in simulation.group_alike(members):
            if self.cannot_meet_quorum:
                return
            nodes = simulation.place_alike(run)
            if simulation.has_claims:
                claims = map(simulation.claims_of, run)
                self.assignments += map(Assignment, run, nodes, claims)
            else:
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

    def adopt_minimum(self, assignments: Iterable[Assignment], placement: Placement | None) -> None:
        """Take over what the search of a tree found; `place_deferred` places the others later."""
        self.adopt_solution(assignments, (), placement)
        placed = {assignment.member.pod.metadata.uid for assignment in self.assignments}
        self._deferred = [m for m in self.members if m.pod.metadata.uid not in placed]
        self._is_full = not self._deferred

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
        return Placed(
            self.entity.group_key,
            self.bindings,
            leftovers,
            choice=self.choice,
            claims=self.claim_reservations,
            volumes=self.volume_assignments,
        )

    @property
    def claim_reservations(self) -> tuple[ClaimReservation, ...]:
        """The allocations and reservations of the members' claims."""
        if not self._has_claims:
            return ()
        group = self.entity.group if isinstance(self.entity.group, PodGroup) else None
        with_claims = [one for one in self.assignments if one.member.shape.has_claims]
        return reserve_claims(
            [(one.member, one.claims) for one in with_claims], group, self._devices
        )

    @property
    def volume_assignments(self) -> tuple[VolumeAssignment, ...]:
        """The volumes of the members' claims that are bound with them."""
        if not self._has_claims:
            return ()
        return assign_volumes(
            [(one.member, one.volumes) for one in self.assignments], self._volumes
        )

    def build_waiting(self) -> Waiting:
        """Build the decision of a failed attempt."""
        untried = self.members[len(self.members) - self._remaining :]
        refused = [
            *self.unplaced_pods,
            *(_unplaced_pod(m, self._simulation.refusal_of(m)) for m in untried),
        ]
        fitted = [
            *(UnplacedPod(pod, uid, None) for pod, uid, _ in self.bindings),
            *(_unplaced_pod(member, None) for member in self._deferred),
        ]
        undecided = self.undecided or (DEVICE_LIMIT if self._simulation.is_undecided else "")
        return Waiting(
            self.entity.group_key,
            pods=(*fitted, *refused),
            quorum=self._quorum,
            scheduled=self.scheduled,
            remaining=self._remaining,
            unknown=sum(unplaced.refusal is None for unplaced in refused),
            wakes_on=frozenset(self._wake_events(refused)),
            reason=UNDECIDED if undecided else UNSCHEDULABLE,
            placements=self.placement_count,
            undecided=undecided,
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
    """Place all members, as long as the quorum is in reach; yields after some pods."""
    members, interval = attempt.members, attempt.yield_interval
    attempt.place(members[:interval])
    for begin in range(interval, len(members) + 1, interval):
        yield begin
        if attempt.cannot_meet_quorum:
            break
        attempt.place(members[begin : begin + interval])
    return attempt


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
            claims=assignment.claims,
            volume_keys=volume_keys_of(pod) if assignment.member.shape.has_volumes else (),
            volumes=assignment.volumes,
        )
        for assignment in assignments
        for pod in (assignment.member.pod,)
        for meta in (pod.metadata,)
    ]


def with_volumes(
    simulation: PlacementSimulation, assignments: Iterable[Assignment]
) -> list[Assignment]:
    """Return the assignments of a simulation with the volumes that their members have now."""
    return [
        but(one, volumes=volumes) if (volumes := simulation.volumes_of(one.member)) else one
        for one in assignments
    ]


def count_scheduled(entity: Entity, snapshot: Snapshot) -> int:
    """Count the members of a group that have a node already."""
    return snapshot.member_counts.get(entity.key, 0) if entity.group else 0


def _unplaced_pod(member: Member, refusal: Refusal | None) -> UnplacedPod:
    meta = member.pod.metadata
    return UnplacedPod(meta.key, meta.uid, refusal)
