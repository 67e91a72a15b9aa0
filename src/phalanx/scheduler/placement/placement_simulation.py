"""PlacementSimulation: assigns pods to their best nodes, one after the other, in memory.

What a simulation assigns is seen by its own next steps only; snapshot and scores are only read. The
nodes that it touches get another NodeClass in its `SimulatedLoad`. Members that are alike share one
ranking of the nodes (`node_ranking.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import groupby
from operator import attrgetter

import numpy as np

from phalanx.scheduler.cluster.pod_shape import HostPorts, PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, NodeClass, Snapshot, mask_of
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placement.claim_ranking import ClaimRanking, try_assign
from phalanx.scheduler.placement.node_ranking import (
    HeapRanking,
    LazyRefusal,
    NodeRanking,
    NodeScan,
    ScanRanking,
    SimulatedLoad,
    known_refusal,
)
from phalanx.scheduler.placement.node_scores import (
    NO_NODE,
    PinnedNodeScores,
    SortedKeys,
    applicable_normalized_scores,
    node_scores_of,
)
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.plugins.claim_assignments import (
    AssignedClaims,
    ClaimAssignments,
    is_demand_countable,
)
from phalanx.scheduler.plugins.filtering import build_refusal, run_filter, run_static_filter
from phalanx.scheduler.plugins.inter_pod_affinity import INTER_POD_AFFINITY
from phalanx.scheduler.plugins.node_affinity import NODE_AFFINITY
from phalanx.scheduler.plugins.peer_counts import PeerCounts, PeerProfile
from phalanx.scheduler.plugins.plugin import FilterDependency
from phalanx.scheduler.plugins.plugin_context import (
    PluginContext,
    PodAffinityState,
    initial_context,
)
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.volumes.demand import AssignedVolume

_HAS_PEER_CONSTRAINTS = attrgetter("shape.has_peer_constraints")
_HAS_CLAIMS = attrgetter("shape.has_claims")
_HAS_VOLUMES = attrgetter("shape.has_volumes")


def has_shared_claims(shape: PodShape) -> bool:
    """Whether other members use some unallocated or unbound claim of a pod too."""
    return shape.claims.has_shared or shape.volumes.has_shared


class PlacementSimulation:
    """Assigns members to nodes of a snapshot: to all nodes, or only to some."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        members: Collection[Member],
        *,
        nodes: IntArray | None = None,
        prefers_reach: bool = False,
    ) -> None:
        """`prefers_reach`: see ClaimAssignments."""
        self.snapshot, self._policy, self._nodes = snapshot, policy, nodes
        self._simulated_load = SimulatedLoad(snapshot)
        self._rankings: dict[object, NodeRanking | ClaimRanking] = {}
        #: None if no member has claims; and what each member got.
        self._claims = (
            ClaimAssignments(snapshot, prefers_reach=prefers_reach)
            if any(map(_HAS_CLAIMS, members))
            else None
        )
        self._assigned_claims: dict[str, AssignedClaims] = {}
        # Members without volumes, the usual case, are passed over without a call.
        with_volumes = filter(_HAS_VOLUMES, members)
        has_dynamic_volumes = any(one.shape.volumes.is_dynamic for one in with_volumes)
        #: None if no member has claims whose volumes depend on other pods.
        self._volumes = VolumeAssignments(snapshot) if has_dynamic_volumes else None
        #: None if no constraint relates a member to another pod.
        self._peer_counts = _build_peer_counts(snapshot, policy, members)
        self._members = members
        #: Members that require each other and that `place_on` has assigned, with their nodes.
        self._mutual_pods: list[tuple[PodAffinityState, int]] = []

    @property
    def has_peer_constraints(self) -> bool:
        """Whether some constraint relates a member to another pod."""
        return self._peer_counts is not None

    def group_alike(self, members: Sequence[Member]) -> list[Sequence[Member]]:
        """Split members into runs of consecutive members that are interchangeable."""
        shapes = [member.shape for member in members] if self._peer_counts is None else []
        if shapes and shapes.count(shapes[0]) == len(shapes):
            return [members]
        return [list(run) for _, run in groupby(members, self._equivalence_key)]

    def place(self, member: Member) -> int | Refusal:
        """Assign a pod to its best node; return the node, or why there is none."""
        for i in self.place_alike([member]):
            return i
        refusal = self.refusal_of(member)
        assert refusal is not None
        return refusal

    def place_alike(self, members: Sequence[Member]) -> list[int]:
        """Assign interchangeable pods to their best nodes, one after the other.

        If fewer nodes than pods are returned, `refusal_of` says why the others have none.
        """
        ranking = self._ranking_for(members[0])
        if ranking.lazy_refusal and not ranking.is_stale:
            return []
        if has_shared_claims(members[0].shape):
            nodes = self._place_one_by_one(members)
        else:
            nodes = ranking.assign_best(len(members))
        if self._claims is not None:
            self._assigned_claims |= {
                member.pod.metadata.uid: claims for member, claims in self._claims.collect(members)
            }
        if self._volumes is not None:
            self._volumes.collect(members)
        if len(nodes) < len(members):
            ranking = self._ranking_for(members[0])
            ranking.lazy_refusal = self._build_lazy_refusal(ranking)
        return nodes

    def _place_one_by_one(self, members: Sequence[Member]) -> list[int]:
        """Place pods that share claims: once these are allocated, another ranking is used."""
        nodes: list[int] = []
        ranking = self._ranking_for(members[0])
        if isinstance(ranking, ClaimRanking) and len(members) > 1:
            capacities = node_capacities(self.snapshot, self._policy, members[0].shape)
            if self._node_mask is not None:
                capacities = np.where(self._node_mask, capacities, 0)
            ranking.prefer_sufficient(len(members), capacities)
        for member in members:
            found = self._ranking_for(member).assign_best(1)
            if not found:
                break
            nodes += found
        return nodes

    @property
    def has_claims(self) -> bool:
        """Whether some member has claims, for devices or for volumes that others may take."""
        return self._claims is not None or self._volumes is not None

    def volumes_of(self, member: Member) -> tuple[AssignedVolume, ...]:
        """Return the volumes that a member has got; members that are placed later may change it."""
        return self._volumes.volumes_of(member) if self._volumes is not None else ()

    @property
    def is_undecided(self) -> bool:
        """Whether the search for devices of some node ended at its limit."""
        return self._claims is not None and self._claims.is_undecided

    def claims_of(self, member: Member) -> AssignedClaims:
        """Return the devices that a member has got."""
        return self._assigned_claims.get(member.pod.metadata.uid, ())

    def place_on(self, member: Member, i: int) -> bool:
        """Assign a pod to a given node, if all filters allow it; return whether they do.

        The affinity of members that require each other is checked by `meets_mutual_affinity`, after
        all of them are assigned.
        """
        ranking, classes = self._ranking_for(member), self._simulated_load.node_classes
        has_claims = bool(member.shape.claims) or member.shape.volumes.is_dynamic
        if not has_claims and self.depends_on_load_only(member):
            node_class = classes.get(i) or self.snapshot.node_classes[i]
            is_inside = self._node_mask is None or self._node_mask[i]
            if not is_inside or ranking.node_scores.key_of(i, node_class) >= NO_NODE:
                return False
            ranking.assign_to(i)
            return True
        state = ranking.affinity_state
        if state is not None:
            assert self._peer_counts is not None
            if self._peer_counts.profile_of(member) in self._mutual_profiles:
                state.defers_affinity = True
                self._mutual_pods.append((state, i))
        context = self._plugin_context(
            member.shape,
            state,
            requested=self._requested(classes),
            ports=self._used_ports(classes),
        )
        filters = self._policy.filters.values()
        is_rejected = not context.candidates[i] or any(
            run_filter(filter_, context)[i]
            for filter_ in filters
            if filter_.depends_on is not FilterDependency.CLAIMS
        )
        static_parts = (run_static_filter(one, context) for one in filters if one.static_part)
        is_rejected |= any(mask is not None and mask[i] for mask in static_parts)
        if state is not None:
            state.defers_affinity = False
        if is_rejected:
            return False
        if has_claims:
            if not try_assign(member.shape, i, self._claims, volumes=self._volumes):
                return False
            for _, claims in self._claims.collect([member]) if self._claims is not None else ():
                self._assigned_claims[member.pod.metadata.uid] = claims
            if self._volumes is not None:
                self._volumes.collect([member])
        ranking.assign_to(i)
        return True

    def meets_mutual_affinity(self) -> bool:
        """Whether the members that require each other have been assigned together."""
        return INTER_POD_AFFINITY.name not in self._policy.filters or not any(
            unmet[i] for state, i in self._mutual_pods for unmet in state.unmet_affinity()
        )

    @cached_property
    def _mutual_profiles(self) -> frozenset[PeerProfile]:
        assert self._peer_counts is not None
        return self._peer_counts.find_mutual_profiles(self._members)

    def refusal_of(self, member: Member) -> Refusal | None:
        """Return the refusal of an interchangeable pod in this simulation, if there was one."""
        build = self.lazy_refusal_of(member)
        return build() if build else None

    def lazy_refusal_of(self, member: Member) -> LazyRefusal | None:
        """Return that refusal unbuilt, since building it takes long."""
        ranking = self._rankings.get(self._equivalence_key(member))
        return ranking.lazy_refusal if ranking else None

    def depends_on_load_only(self, member: Member) -> bool:
        """Whether the node of a pod depends on nothing but the resources and ports of nodes.

        Then placing equal pods one after the other places as many as possible. A filter that the
        exact search does not model may admit a node only after another pod was placed there.
        """
        if self._policy.has_unmodelled_filters:
            return False
        ranking = self._ranking_for(member)
        if isinstance(ranking, ClaimRanking):
            if member.shape.volumes.is_dynamic:
                return False
            return ranking.is_packed and is_demand_countable(self.snapshot, ranking.demand)
        return isinstance(ranking, HeapRanking)

    def _equivalence_key(self, member: Member) -> object:
        """Return what interchangeable members have in common."""
        peers, claims, volumes = self._peer_counts, self._claims, self._volumes
        key: object = member.shape if peers is None else (member.shape, peers.profile_of(member))
        if has_shared_claims(member.shape):
            devices = claims.shared_count if claims is not None else 0
            return key, devices, volumes.shared_count if volumes is not None else 0
        return key

    def _ranking_for(self, member: Member) -> NodeRanking | ClaimRanking:
        is_plain = self._peer_counts is None and not self.has_claims
        key = member.shape if is_plain else self._equivalence_key(member)
        ranking = self._rankings.get(key)
        if ranking is None:
            plain = ranking = self._build_ranking(member)
            if member.shape.claims or member.shape.volumes.is_dynamic:
                is_packed = isinstance(plain, HeapRanking)
                ranking = ClaimRanking(
                    plain,
                    self._claims,
                    is_packed=is_packed,
                    nodes=self._nodes,
                    volumes=self._volumes,
                )
            self._rankings[key] = ranking
        return ranking

    def _build_ranking(self, member: Member) -> NodeRanking:
        peers, load, nodes = self._peer_counts, self._simulated_load, self._nodes
        if peers is None and nodes is None and NODE_AFFINITY.name in self._policy.filters:
            row = member.shape.node_constraints.only_node(self.snapshot)
            if row is not None:
                pinned = PinnedNodeScores(self.snapshot, self._policy, member.shape, row=row)
                return HeapRanking(pinned, load, None, sorted_keys=pinned.sorted_keys)
        scores = node_scores_of(self.snapshot, self._policy, member.shape)
        on_assign = None if peers is None else partial(peers.add_pod, peers.profile_of(member))
        state = None if peers is None else self._build_affinity_state(peers, member)
        normalized = scores.normalized_scores
        if member.shape.volumes.unbound:
            # Whether nodes differ in their volumes may change while the scores are kept.
            normalized = applicable_normalized_scores(
                self._policy, initial_context(self.snapshot, member.shape)
            )
        if state is None and not normalized:
            keys = scores.sorted_keys if nodes is None else SortedKeys(scores.keys[nodes])
            return HeapRanking(scores, load, on_assign, sorted_keys=keys)
        context = self._plugin_context(
            member.shape,
            state,
            requested=self.snapshot.requested,
            ports=self.snapshot.used_ports,
            claims=self._claims,
            volumes=self._volumes,
        )
        scan = NodeScan(scores, context, applicable_normalized_scores(self._policy, context))
        return ScanRanking(scores, load, on_assign, affinity_state=state, scan=scan)

    def _build_affinity_state(
        self, peer_counts: PeerCounts, member: Member
    ) -> PodAffinityState | None:
        policy, shape, profile = self._policy, member.shape, peer_counts.profile_of(member)
        if not (profile.peer_constraints or peer_counts.has_existing_terms(profile)):
            return None
        return PodAffinityState(
            self.snapshot,
            peer_counts,
            profile,
            constraints=shape.node_constraints,
            explicit=bool(shape.peer_constraints.spreads) or policy.spread_defaults.strict,
            hard_pod_affinity_weight=policy.hard_pod_affinity_weight,
            honors_existing_preferences=policy.honors_existing_preferences,
        )

    def _build_lazy_refusal(self, ranking: NodeRanking | ClaimRanking) -> LazyRefusal:
        if ranking.affinity_state is not None:
            # Built now, since later pods change the counts that it depends on.
            return known_refusal(self._build_refusal(ranking, self._simulated_load.node_classes))
        classes, claims = dict(self._simulated_load.node_classes), self._claims
        volumes = self._volumes.fork() if self._volumes is not None else None
        held = claims.fork() if claims is not None else None
        return cache(partial(self._build_refusal, ranking, classes, held, volumes=volumes))

    def _build_refusal(
        self,
        ranking: NodeRanking | ClaimRanking,
        classes: Mapping[int, NodeClass],
        claims: ClaimAssignments | None = None,
        *,
        volumes: VolumeAssignments | None = None,
    ) -> Refusal:
        if not classes and ranking.affinity_state is None and self._nodes is None:
            return ranking.node_scores.refusal()
        context = self._plugin_context(
            ranking.node_scores.shape,
            ranking.affinity_state,
            requested=self._requested(classes),
            ports=self._used_ports(classes),
            claims=claims or self._claims,
            volumes=volumes or self._volumes,
        )
        return build_refusal(self._policy.filters, context)

    def _plugin_context(
        self,
        shape: PodShape,
        affinity_state: PodAffinityState | None,
        *,
        requested: IntArray,
        ports: Mapping[int, HostPorts],
        claims: ClaimAssignments | None = None,
        volumes: VolumeAssignments | None = None,
    ) -> PluginContext:
        return PluginContext(
            self.snapshot,
            shape,
            requested,
            used_ports=ports,
            affinity_state=affinity_state,
            candidate_mask=self._node_mask,
            claims=claims,
            volumes=volumes,
        )

    @cached_property
    def _node_mask(self) -> BoolArray | None:
        return None if self._nodes is None else mask_of(self._nodes, len(self.snapshot))

    def _requested(self, classes: Mapping[int, NodeClass]) -> IntArray:
        requested = self.snapshot.requested.copy()
        for i, node_class in classes.items():
            requested[i] = node_class.requested
        return requested

    def _used_ports(self, classes: Mapping[int, NodeClass]) -> dict[int, HostPorts]:
        touched = {i: one.used_ports for i, one in classes.items() if one.used_ports}
        return self.snapshot.used_ports | touched


def _build_peer_counts(
    snapshot: Snapshot, policy: SchedulerPolicy, members: Collection[Member]
) -> PeerCounts | None:
    """Count peers if any constraint needs it; None in most simulations."""
    pod_index, spreads = snapshot.pod_index, policy.spread_defaults.spreads
    if (
        pod_index.existing_terms
        or (pod_index.services and spreads)
        or any(map(_HAS_PEER_CONSTRAINTS, members))
    ):
        return PeerCounts(snapshot, members, spreads) or None
    return None
