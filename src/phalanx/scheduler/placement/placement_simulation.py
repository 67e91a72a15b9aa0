"""PlacementSimulation: assigns pods to their best nodes, one after the other, in memory.

What a simulation assigns is seen by its own next steps only; snapshot and scores are only read. The
nodes that it touches get another NodeClass in its `SimulatedLoad`. Members that are alike share one
`NodeRanking`, of which there are two kinds:

`HeapRanking` serves pods whose best node depends on load only. It is a heap of keys into which the
next sorted keys are loaded when one of them may be the best. An assigned pod changes the key of its
node:

    sorted keys [k4, k0, k7], heap [k4, k0]          the best node is 4
    a pod is assigned to 4, whose key becomes K4     heap [k0, K4]: the best node is 0
    a pod is assigned to 0 likewise                  heap [K0, K4]: k7 may be better and is loaded

`ScanRanking` serves all other pods: those with affinity, spread or scores normalized over all
nodes. It filters and scores all nodes anew for every pod (`NodeScan`). Where both apply, both give
the same answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from heapq import heappop, heappush, heapreplace
from itertools import groupby
from operator import attrgetter

import numpy as np
from msgspec import Struct

from phalanx.scheduler.cluster.node_class import NodeClass
from phalanx.scheduler.cluster.pod_shape import HostPorts, PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, mask_of
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placement.node_scores import (
    INDEX_MASK,
    NO_NODE,
    SCORE_SHIFT,
    NodeScores,
    SortedKeys,
    applicable_normalized_scores,
    node_scores_of,
)
from phalanx.scheduler.plugins.peer_counts import PeerCounts, PeerProfile
from phalanx.scheduler.plugins.plugin import FilterDependency, NormalizedScore
from phalanx.scheduler.plugins.plugin_context import PluginContext, PodAffinityState
from phalanx.scheduler.plugins.refusal import build_refusal, run_filter
from phalanx.scheduler.policy import SchedulerPolicy


class NodeScan:
    """The best node for a pod whose filters or scores depend on other pods or on all nodes."""

    __slots__ = (
        "_context",
        "_feasible_nodes",
        "_filters",
        "_load_scores",
        "_node_scores",
        "_normalized_scores",
    )

    def __init__(
        self,
        node_scores: NodeScores,
        context: PluginContext,
        normalized_scores: tuple[tuple[int, NormalizedScore], ...],
    ) -> None:
        self._node_scores, self._context = node_scores, context
        self._normalized_scores = normalized_scores
        has_peers = context.affinity_state is not None
        filters = node_scores.policy.filters.values() if has_peers else ()
        self._filters = tuple(one for one in filters if one.depends_on is FilterDependency.PEERS)
        keys = node_scores.keys
        self._feasible_nodes: BoolArray = context.candidates & (keys < NO_NODE)
        self._load_scores: IntArray = (np.arange(len(keys)) - keys) >> SCORE_SHIFT

    def update(self, nodes: Iterable[int], node_classes: dict[int, NodeClass]) -> None:
        """Recompute nodes whose load has changed in the simulation."""
        for i in nodes:
            key = self._node_scores.key_of(i, node_classes[i])
            self._feasible_nodes[i], self._load_scores[i] = key < NO_NODE, (i - key) >> SCORE_SHIFT

    def best_node(self) -> int:
        """Return the index of the best node; NO_NODE if there is none."""
        feasible = self._feasible_nodes.copy()
        for filter_ in self._filters:
            for _, rejected in filter_.reject(self._context):
                feasible &= ~rejected
        if not feasible.any():
            return NO_NODE
        scores = self._load_scores
        for weight, score in self._normalized_scores:
            scores = scores + weight * score.score_nodes(self._context, feasible)
        return int(np.where(feasible, scores, -1).argmax())


#: Builds the refusal of a pod when it is needed: building it takes long.
LazyRefusal = Callable[[], Refusal]
#: Called with the node of each assigned pod; None if no constraint counts pods.
AssignCallback = Callable[[int], None] | None


def known_refusal(refusal: Refusal) -> LazyRefusal:
    """Wrap a refusal that is built already."""
    return lambda: refusal


class SimulatedLoad(Struct):
    """What a simulation has assigned on top of a snapshot."""

    snapshot: Snapshot
    node_classes: dict[int, NodeClass] = {}
    #: The nodes of assigned pods in order; each ranking catches up with those of the others.
    touched_nodes: list[int] = []

    def add_pod(self, i: int, node_scores: NodeScores) -> None:
        """Assign one more pod of a shape to a node."""
        classes = self.node_classes
        before = classes.get(i) or self.snapshot.node_classes[i]
        classes[i], _ = node_scores.after_placement[before]
        self.touched_nodes.append(i)


class NodeRanking(ABC):
    """Finds the best nodes for equal pods in the current state of a simulation."""

    __slots__ = (
        "_on_assign",
        "_seen",
        "_simulated_load",
        "affinity_state",
        "lazy_refusal",
        "node_scores",
    )

    def __init__(
        self,
        node_scores: NodeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        affinity_state: PodAffinityState | None,
    ) -> None:
        self.node_scores, self.affinity_state = node_scores, affinity_state
        self._simulated_load, self._on_assign = simulated_load, on_assign
        #: Why there was no node at the last call, if there was none.
        self.lazy_refusal: LazyRefusal | None = None
        #: How many of the touched nodes this ranking has taken into account.
        self._seen = 0

    @property
    @abstractmethod
    def is_stale(self) -> bool:
        """Whether a pod that was refused may fit now."""

    @abstractmethod
    def assign_best(self, count: int) -> list[int]:
        """Assign up to `count` pods, one by one, each to its best node; return the nodes."""

    def assign_to(self, i: int) -> None:
        """Assign one more pod to a given node."""
        self._simulated_load.add_pod(i, self.node_scores)
        if self._on_assign is not None:
            self._on_assign(i)


class ScanRanking(NodeRanking):
    """A ranking that filters and scores all nodes for every pod."""

    __slots__ = ("_scan",)

    def __init__(
        self,
        node_scores: NodeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        affinity_state: PodAffinityState | None,
        scan: NodeScan,
    ) -> None:
        super().__init__(node_scores, simulated_load, on_assign, affinity_state=affinity_state)
        self._scan = scan

    @property
    def is_stale(self) -> bool:
        """Another pod may satisfy an affinity or a spread constraint."""
        return len(self._simulated_load.touched_nodes) > self._seen

    def assign_best(self, count: int) -> list[int]:
        """Assign pods, searching the best node anew for each."""
        nodes: list[int] = []
        while len(nodes) < count and (i := self._best_node()) != NO_NODE:
            self.assign_to(i)
            nodes.append(i)
        return nodes

    def _best_node(self) -> int:
        touched = self._simulated_load.touched_nodes
        self._scan.update(touched[self._seen :], self._simulated_load.node_classes)
        self._seen = len(touched)
        return self._scan.best_node()


class HeapRanking(NodeRanking):
    """A ranking that keeps the keys of the best nodes in a heap."""

    __slots__ = ("_bound", "_heap", "_keys", "_position", "_sorted_keys")

    def __init__(
        self,
        node_scores: NodeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        sorted_keys: SortedKeys,
    ) -> None:
        super().__init__(node_scores, simulated_load, on_assign, affinity_state=None)
        #: The position of the next sorted key to load, and the last key that was loaded.
        self._sorted_keys, self._position, self._bound = sorted_keys, 0, -NO_NODE
        self._heap: list[int] = [NO_NODE]
        #: The keys of nodes that other rankings touched; the heap may hold older keys of them.
        self._keys: dict[int, int] = {}

    @property
    def is_stale(self) -> bool:
        """Load only grows during a simulation: what was refused once stays refused."""
        return False

    def assign_best(self, count: int) -> list[int]:
        """Assign each pod to the node of the first key, and replace that key."""
        load, heap, keys = self._simulated_load, self._heap, self._keys
        classes, by_row, touched = (
            load.node_classes,
            load.snapshot.node_classes,
            load.touched_nodes,
        )
        after = self.node_scores.after_placement
        if self._seen < len(touched):
            self._catch_up()
        nodes: list[int] = []
        while len(nodes) < count:
            while heap[0] > self._bound:
                self._load_more_keys(count - len(nodes))
            key = heap[0]
            if key >= NO_NODE:
                break
            i = key & INDEX_MASK
            if keys and keys.get(i, key) != key:
                heappop(heap)
                continue
            nodes.append(i)
            classes[i], growth = after[classes.get(i) or by_row[i]]
            heapreplace(heap, key + growth)
            if keys and i in keys:
                keys[i] = key + growth
        touched += nodes
        self._seen = len(touched)
        if self._on_assign is not None:
            for i in nodes:
                self._on_assign(i)
        return nodes

    def _load_more_keys(self, count: int) -> None:
        """Load the next sorted keys into the heap, except those of touched nodes.

        The nodes that other rankings touched are mostly the next ones here too, so it loads more
        keys than that.
        """
        begin, heap, keys = self._position, self._heap, self._keys
        more = self._sorted_keys.keys_between(
            begin, max(begin, len(self._simulated_load.touched_nodes)) + count
        )
        untouched = [key for key in more if key & INDEX_MASK not in keys] if keys else more
        if len(heap) == 1:
            # A sorted list is a heap.
            heap[:0] = untouched
        else:
            for key in untouched:
                heappush(heap, key)
        self._position += len(more)
        self._bound = more[-1] if more else NO_NODE

    def _catch_up(self) -> None:
        """Take the nodes into account that other rankings have touched."""
        touched, classes = self._simulated_load.touched_nodes, self._simulated_load.node_classes
        keys, heap, key_of = self._keys, self._heap, self.node_scores.key_of
        for i in touched[self._seen :]:
            keys[i] = key = key_of(i, classes[i])
            heappush(heap, key)
        self._seen = len(touched)


_HAS_PEER_CONSTRAINTS = attrgetter("shape.has_peer_constraints")


class PlacementSimulation:
    """Assigns members to nodes of a snapshot: to all nodes, or only to some."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        members: Collection[Member],
        nodes: IntArray | None = None,
    ) -> None:
        self.snapshot, self._policy, self._nodes = snapshot, policy, nodes
        self._simulated_load = SimulatedLoad(snapshot)
        self._rankings: dict[PodShape | tuple[PodShape, PeerProfile], NodeRanking] = {}
        #: None if no constraint relates a member to another pod.
        self._peer_counts = _build_peer_counts(snapshot, policy, members)

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
        nodes = ranking.assign_best(len(members))
        if len(nodes) < len(members):
            ranking.lazy_refusal = self._build_lazy_refusal(ranking)
        return nodes

    def place_on(self, member: Member, i: int) -> bool:
        """Assign a pod to a given node, if all filters allow it; return whether they do."""
        ranking, classes = self._ranking_for(member), self._simulated_load.node_classes
        context = self._plugin_context(
            member.shape,
            ranking.affinity_state,
            requested=self._requested(classes),
            ports=self._used_ports(classes),
        )
        if not context.candidates[i] or any(
            run_filter(filter_, context)[i] for filter_ in self._policy.filters.values()
        ):
            return False
        ranking.assign_to(i)
        return True

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
        return not self._policy.has_unmodelled_filters and isinstance(
            self._ranking_for(member), HeapRanking
        )

    def _equivalence_key(self, member: Member) -> PodShape | tuple[PodShape, PeerProfile]:
        """Return what interchangeable members have in common."""
        peers = self._peer_counts
        return member.shape if peers is None else (member.shape, peers.profile_of(member))

    def _ranking_for(self, member: Member) -> NodeRanking:
        key = member.shape if self._peer_counts is None else self._equivalence_key(member)
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rankings[key] = self._build_ranking(member)
        return ranking

    def _build_ranking(self, member: Member) -> NodeRanking:
        peers, load, nodes = self._peer_counts, self._simulated_load, self._nodes
        scores = node_scores_of(self.snapshot, self._policy, member.shape)
        on_assign = None if peers is None else partial(peers.add_pod, peers.profile_of(member))
        state = None if peers is None else self._build_affinity_state(peers, member)
        if state is None and not scores.normalized_scores:
            keys = scores.sorted_keys if nodes is None else SortedKeys(scores.keys[nodes])
            return HeapRanking(scores, load, on_assign, sorted_keys=keys)
        context = self._plugin_context(
            member.shape,
            state,
            requested=self.snapshot.requested,
            ports=self.snapshot.used_ports,
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

    def _build_lazy_refusal(self, ranking: NodeRanking) -> LazyRefusal:
        if ranking.affinity_state is not None:
            # Built now, since later pods change the counts that it depends on.
            return known_refusal(self._build_refusal(ranking, self._simulated_load.node_classes))
        return cache(partial(self._build_refusal, ranking, dict(self._simulated_load.node_classes)))

    def _build_refusal(self, ranking: NodeRanking, classes: Mapping[int, NodeClass]) -> Refusal:
        if not classes and ranking.affinity_state is None and self._nodes is None:
            return ranking.node_scores.refusal()
        context = self._plugin_context(
            ranking.node_scores.shape,
            ranking.affinity_state,
            requested=self._requested(classes),
            ports=self._used_ports(classes),
        )
        return build_refusal(self._policy.filters, context)

    def _plugin_context(
        self,
        shape: PodShape,
        affinity_state: PodAffinityState | None,
        *,
        requested: IntArray,
        ports: Mapping[int, HostPorts],
    ) -> PluginContext:
        within = None if self._nodes is None else mask_of(self._nodes, len(self.snapshot))
        return PluginContext(
            self.snapshot,
            shape,
            requested,
            used_ports=ports,
            affinity_state=affinity_state,
            candidate_mask=within,
        )

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
