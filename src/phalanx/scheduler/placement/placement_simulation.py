"""Field: all nodes as one shape sees them, for pods whose place depends on other nodes or pods.

The slower sibling of the cursor in `seeker.py`: it starts from the same view, repeats the rows that
the trial has touched, and asks what depends on others anew for every pod, over arrays. Both give
the same answer where both apply.

Seeker: one way to find the best node for the pods of one shape, as a trial stands.

A shape that neither minds other pods nor is minded by them has a cursor: a heap of keys, with the
next of the view's ranking in it when one of them may be the best. A pod that is put on a node gives
the node another key.

    ranking [k4, k0, k7], heap [k4, k0]      best is 4
    node 4 filled a little, its key is K4    heap [k0, K4]: best is 0
    node 0 likewise                          heap [K0, K4]: k7 may be better, it is looked at now

Any other shape has a surveyor, who looks at all nodes for every pod, on a `Field`.

Trial: placing pods on paper. What it places is seen by its own next steps and by nobody else.

The nodes it touches become other spots here; snapshot and views are only read. Members that are
alike are placed as a class, each class by a `Seeker`.
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
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, HostPorts, IntArray, Snapshot, mask_of
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
from phalanx.scheduler.plugins.filters import FilterDependency, build_refusal, rejected_nodes
from phalanx.scheduler.plugins.peer_counts import PeerCounts, PeerProfile
from phalanx.scheduler.plugins.plugin_context import PluginContext, PodAffinityState
from phalanx.scheduler.plugins.scores import NormalizedScorePlugin
from phalanx.scheduler.policy import SchedulerPolicy


class NodeScan:
    """Where one shape would go, among others."""

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
        comparisons: tuple[NormalizedScorePlugin, ...],
    ) -> None:
        self._node_scores, self._context, self._normalized_scores = (
            node_scores,
            context,
            comparisons,
        )
        among = context.affinity_state is not None
        rows = node_scores.policy.filters if among else ()
        self._filters = tuple(row for row in rows if row.depends_on is FilterDependency.PEERS)
        keys = node_scores.keys
        self._feasible_nodes: BoolArray = context.candidates & (keys < NO_NODE)
        self._load_scores: IntArray = (np.arange(len(keys)) - keys) >> SCORE_SHIFT

    def update(self, nodes: Iterable[int], spots: dict[int, NodeClass]) -> None:
        """Repeat nodes whose load has changed in the trial."""
        for i in nodes:
            key = self._node_scores.key_of(i, spots[i])
            self._feasible_nodes[i], self._load_scores[i] = key < NO_NODE, (i - key) >> SCORE_SHIFT

    def best_node(self) -> int:
        """The index of the best node, or NOWHERE."""
        passed = self._feasible_nodes.copy()
        for row in self._filters:
            for _, refused in row.reject(self._context):
                passed &= ~refused
        if not passed.any():
            return NO_NODE
        return int(np.where(passed, self._total_scores(passed), -1).argmax())

    def _total_scores(self, passed: BoolArray) -> IntArray:
        scores = self._load_scores
        for row in self._normalized_scores:
            scores = scores + row.weight * row.score_nodes(self._context, passed)
        return scores


#: Why a pod has no node, for whoever asks.
LazyRefusal = Callable[[], Refusal]
#: Whom to tell of a pod that has been put somewhere; None where nobody minds.
AssignCallback = Callable[[int], None] | None


def known_refusal(refusal: Refusal) -> LazyRefusal:
    """An excuse that is at hand."""
    return lambda: refusal


class SimulatedLoad(Struct):
    """What a trial has put on top of a snapshot."""

    snapshot: Snapshot
    node_classes: dict[int, NodeClass] = {}
    #: The touched nodes in order; each seeker repeats what it has not seen of it.
    touched_nodes: list[int] = []

    def add_pod(self, i: int, node_scores: NodeScores) -> None:
        """One more pod of a shape is on a node."""
        spots = self.node_classes
        spots[i], _ = node_scores.after_placement[spots.get(i) or self.snapshot.node_classes[i]]
        self.touched_nodes.append(i)


class NodeRanking(ABC):
    """One way to find the best nodes for a shape as the trial stands."""

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
        #: Why there was no node the last time, if there was none.
        self.lazy_refusal: LazyRefusal | None = None
        #: How many of the touched nodes were taken into account.
        self._seen = 0

    @property
    @abstractmethod
    def is_stale(self) -> bool:
        """Whether what was refused may be possible now."""

    @abstractmethod
    def assign_best(self, count: int) -> list[int]:
        """Put so many pods on the best nodes, one after the other, or as many as find one."""

    def assign_to(self, i: int) -> None:
        """One more pod of the shape is on a node."""
        self._simulated_load.add_pod(i, self.node_scores)
        if self._on_assign is not None:
            self._on_assign(i)


class ScanRanking(NodeRanking):
    """Looks at all nodes for every pod."""

    __slots__ = ("_scan",)

    def __init__(
        self,
        node_scores: NodeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        affinity_state: PodAffinityState | None,
        scan: NodeScan,
    ) -> None:
        super().__init__(node_scores, simulated_load, on_assign, affinity_state)
        self._scan = scan

    @property
    def is_stale(self) -> bool:
        """Another pod may be just whom it must be near, or even out the spread."""
        return len(self._simulated_load.touched_nodes) > self._seen

    def assign_best(self, count: int) -> list[int]:
        """Ask for the best node anew for every pod."""
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
    """The keys of the best nodes for one shape, as far as the ranking was looked at."""

    __slots__ = ("_bound", "_heap", "_keys", "_position", "_sorted_keys")

    def __init__(
        self,
        node_scores: NodeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        ranking: SortedKeys,
    ) -> None:
        super().__init__(node_scores, simulated_load, on_assign, None)
        #: Where the ranking goes on, and the last key that was taken from it.
        self._sorted_keys, self._position, self._bound = ranking, 0, -NO_NODE
        self._heap: list[int] = [NO_NODE]
        #: The keys that nodes have since others touched them; in the heap there may be older ones.
        self._keys: dict[int, int] = {}

    @property
    def is_stale(self) -> bool:
        """Load only grows during a trial: what was refused once is refused for good."""
        return False

    def assign_best(self, count: int) -> list[int]:
        """Take the first key of the heap, and give its node another, for every pod."""
        overlay, heap, keys, after = (
            self._simulated_load,
            self._heap,
            self._keys,
            self.node_scores.after_placement,
        )
        spots, by_row, touched = (
            overlay.node_classes,
            overlay.snapshot.node_classes,
            overlay.touched_nodes,
        )
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
            spots[i], growth = after[spots.get(i) or by_row[i]]
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
        """Have the next keys of the ranking in the heap, but none of a touched node.

        The nodes that others touched are mostly the next ones here too: it looks beyond them.
        """
        begin, heap, keys = self._position, self._heap, self._keys
        more = self._sorted_keys.keys_between(
            begin, max(begin, len(self._simulated_load.touched_nodes)) + count
        )
        untouched = [key for key in more if key & INDEX_MASK not in keys] if keys else more
        if len(heap) == 1:
            # What is in order is a heap.
            heap[:0] = untouched
        else:
            for key in untouched:
                heappush(heap, key)
        self._position += len(more)
        self._bound = more[-1] if more else NO_NODE

    def _catch_up(self) -> None:
        """Look at what others have put somewhere."""
        touched, spots = self._simulated_load.touched_nodes, self._simulated_load.node_classes
        keys, heap, key_of = self._keys, self._heap, self.node_scores.key_of
        for i in touched[self._seen :]:
            keys[i] = key = key_of(i, spots[i])
            heappush(heap, key)
        self._seen = len(touched)


_HAS_PEER_CONSTRAINTS = attrgetter("shape.has_peer_constraints")


class PlacementSimulation:
    """A scratch overlay on a snapshot, for these members, on all nodes or on some."""

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
        #: None where no member minds another pod or is minded by one.
        self._peer_counts = _build_peer_counts(snapshot, policy, members)

    @property
    def has_peer_constraints(self) -> bool:
        """Whether it matters where other pods are."""
        return self._peer_counts is not None

    def group_alike(self, members: Sequence[Member]) -> list[Sequence[Member]]:
        """Members in their order, those together that follow each other and are alike here."""
        shapes = [member.shape for member in members] if self._peer_counts is None else []
        if shapes and shapes.count(shapes[0]) == len(shapes):
            return [members]
        return [list(run) for _, run in groupby(members, self._equivalence_key)]

    def place(self, member: Member) -> int | Refusal:
        """Put a pod on its best node, or say why there is none."""
        for i in self.place_alike([member]):
            return i
        refusal = self.refusal_of(member)
        assert refusal is not None
        return refusal

    def place_alike(self, members: Sequence[Member]) -> list[int]:
        """Put pods that are alike on their best nodes, one after the other.

        If there are fewer nodes than pods, `refused` says why the others have none.
        """
        seeker = self._ranking_for(members[0])
        if seeker.lazy_refusal and not seeker.is_stale:
            return []
        nodes = seeker.assign_best(len(members))
        if len(nodes) < len(members):
            seeker.lazy_refusal = self._build_lazy_refusal(seeker)
        return nodes

    def place_on(self, member: Member, i: int) -> bool:
        """Put a pod on this very node, if all filters allow that."""
        seeker = self._ranking_for(member)
        spots = self._simulated_load.node_classes
        scene = self._plugin_context(
            member.shape, seeker.affinity_state, self._requested(spots), self._used_ports(spots)
        )
        if not scene.candidates[i] or any(
            rejected_nodes(row, scene)[i] for row in self._policy.filters
        ):
            return False
        seeker.assign_to(i)
        return True

    def refusal_of(self, member: Member) -> Refusal | None:
        """The refusal that an equal pod has already met here, if any."""
        excuse = self.lazy_refusal_of(member)
        return excuse() if excuse else None

    def lazy_refusal_of(self, member: Member) -> LazyRefusal | None:
        """The same for those who may never want to know it: finding the words takes a while."""
        seeker = self._rankings.get(self._equivalence_key(member))
        return seeker.lazy_refusal if seeker else None

    def depends_on_load_only(self, member: Member) -> bool:
        """Whether where a pod goes depends on nothing but the load of nodes."""
        return isinstance(self._ranking_for(member), HeapRanking)

    def _equivalence_key(self, member: Member) -> PodShape | tuple[PodShape, PeerProfile]:
        """What members have in common that are interchangeable here."""
        company = self._peer_counts
        return member.shape if company is None else (member.shape, company.profile_of(member))

    def _ranking_for(self, member: Member) -> NodeRanking:
        sort = member.shape if self._peer_counts is None else self._equivalence_key(member)
        seeker = self._rankings.get(sort)
        if seeker is None:
            seeker = self._rankings[sort] = self._build_ranking(member)
        return seeker

    def _build_ranking(self, member: Member) -> NodeRanking:
        company, overlay, nodes = self._peer_counts, self._simulated_load, self._nodes
        view = node_scores_of(self.snapshot, self._policy, member.shape)
        settle = None if company is None else partial(company.add_pod, company.profile_of(member))
        among = None if company is None else self._build_affinity_state(company, member)
        if among is None and not view.normalized_scores:
            ranking = (
                view.sorted_keys if nodes is None else SortedKeys(view.sorted_keys.keys[nodes])
            )
            return HeapRanking(view, overlay, settle, ranking)
        scene = self._plugin_context(
            member.shape, among, self.snapshot.requested, self.snapshot.used_ports
        )
        field = NodeScan(view, scene, applicable_normalized_scores(self._policy, scene))
        return ScanRanking(view, overlay, settle, among, field)

    def _build_affinity_state(
        self, peer_counts: PeerCounts, member: Member
    ) -> PodAffinityState | None:
        policy, shape, standing = self._policy, member.shape, peer_counts.profile_of(member)
        if not (standing.peer_constraints or peer_counts.has_existing_terms(standing)):
            return None
        return PodAffinityState(
            self.snapshot,
            peer_counts,
            standing,
            shape.node_constraints,
            explicit=bool(shape.peer_constraints.spreads) or policy.spread_defaults.strict,
            hard_pod_affinity_weight=policy.hard_pod_affinity_weight,
            honors_existing_preferences=policy.honors_existing_preferences,
        )

    def _build_lazy_refusal(self, ranking: NodeRanking) -> LazyRefusal:
        if ranking.affinity_state is not None:
            # Where others are will have changed when it is asked for.
            return known_refusal(self._build_refusal(ranking, self._simulated_load.node_classes))
        return cache(partial(self._build_refusal, ranking, dict(self._simulated_load.node_classes)))

    def _build_refusal(self, ranking: NodeRanking, spots: Mapping[int, NodeClass]) -> Refusal:
        if not spots and ranking.affinity_state is None and self._nodes is None:
            return ranking.node_scores.refusal()
        shape, used, ports = (
            ranking.node_scores.shape,
            self._requested(spots),
            self._used_ports(spots),
        )
        return build_refusal(
            self._policy.filters, self._plugin_context(shape, ranking.affinity_state, used, ports)
        )

    def _plugin_context(
        self,
        shape: PodShape,
        affinity_state: PodAffinityState | None,
        used: IntArray,
        ports: Mapping[int, HostPorts],
    ) -> PluginContext:
        within = None if self._nodes is None else mask_of(self._nodes, len(self.snapshot))
        return PluginContext(self.snapshot, shape, used, ports, affinity_state, within)

    def _requested(self, spots: Mapping[int, NodeClass]) -> IntArray:
        used = self.snapshot.requested.copy()
        for i, spot in spots.items():
            used[i] = spot.requested
        return used

    def _used_ports(self, spots: Mapping[int, NodeClass]) -> dict[int, HostPorts]:
        taken = {i: spot.used_ports for i, spot in spots.items() if spot.used_ports}
        return self.snapshot.used_ports | taken


def _build_peer_counts(
    snapshot: Snapshot, policy: SchedulerPolicy, members: Collection[Member]
) -> PeerCounts | None:
    """The others, if there are any that matter; asked of every trial, and mostly there are none."""
    census, spreads = snapshot.pod_index, policy.spread_defaults.spreads
    if (
        census.existing_terms
        or (census.services and spreads)
        or any(map(_HAS_PEER_CONSTRAINTS, members))
    ):
        return PeerCounts(snapshot, members, spreads) or None
    return None
