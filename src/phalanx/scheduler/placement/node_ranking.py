"""Rankings: the best nodes for equal pods, in the current state of a simulation.

Members that are alike share one `NodeRanking`, of which there are two kinds:

`HeapRanking` serves pods whose best node depends on load only. It is a heap of keys into which the
next sorted keys are loaded when one of them may be the best. An assigned pod changes the key of its
node:

    sorted keys [k4, k0, k7], heap [k4, k0]          the best node is 4
    a pod is assigned to 4, whose key becomes K4     heap [k0, K4]: the best node is 0
    a pod is assigned to 0 likewise                  heap [K0, K4]: k7 may be better and is loaded

`ScanRanking` serves all other pods: those with affinity, spread or scores normalized over all
nodes. It filters and scores all nodes anew for every pod (`NodeScan`). Where both apply, both give
the same answer. `claim_ranking.py` adds devices to both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace

import numpy as np
from msgspec import Struct

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, NodeClass, Snapshot
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.placement.node_scores import (
    INDEX_MASK,
    NO_NODE,
    SCORE_SHIFT,
    NodeScores,
    ShapeScores,
    SortedKeys,
)
from phalanx.scheduler.plugins.plugin import FilterDependency, NormalizedScore
from phalanx.scheduler.plugins.plugin_context import PluginContext, PodAffinityState


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

    def reject(self, i: int) -> None:
        """Leave out a node until its load changes."""
        self._feasible_nodes[i] = False

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

    def add_pod(self, i: int, node_scores: ShapeScores) -> None:
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
        node_scores: ShapeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        *,
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

    @abstractmethod
    def best_node(self) -> int:
        """Return the node that `assign_best` assigns next; NO_NODE if there is none."""

    @abstractmethod
    def drop_best(self, i: int) -> None:
        """Leave out the best node, which has no devices for the pod."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that pods are assigned on."""
        return self._simulated_load.snapshot

    def admits(self, i: int) -> bool:
        """Whether a node takes one more pod by its load."""
        load = self._simulated_load
        node_class = load.node_classes.get(i) or load.snapshot.node_classes[i]
        return self.node_scores.key_of(i, node_class) < NO_NODE


class ScanRanking(NodeRanking):
    """A ranking that filters and scores all nodes for every pod."""

    __slots__ = ("_scan",)

    def __init__(
        self,
        node_scores: NodeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        *,
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
        while len(nodes) < count and (i := self.best_node()) != NO_NODE:
            self.assign_to(i)
            nodes.append(i)
        return nodes

    def drop_best(self, i: int) -> None:
        """Leave out the best node."""
        self._scan.reject(i)

    def best_node(self) -> int:
        """Search the best node."""
        touched = self._simulated_load.touched_nodes
        self._scan.update(touched[self._seen :], self._simulated_load.node_classes)
        self._seen = len(touched)
        return self._scan.best_node()


class HeapRanking(NodeRanking):
    """A ranking that keeps the keys of the best nodes in a heap."""

    __slots__ = ("_bound", "_heap", "_keys", "_position", "_sorted_keys")

    def __init__(
        self,
        node_scores: ShapeScores,
        simulated_load: SimulatedLoad,
        on_assign: AssignCallback,
        *,
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

    def best_node(self) -> int:
        """Return the node of the first key."""
        if self._seen < len(self._simulated_load.touched_nodes):
            self._catch_up()
        while True:
            while self._heap[0] > self._bound:
                self._load_more_keys(1)
            key = self._heap[0]
            if key >= NO_NODE:
                return NO_NODE
            i = key & INDEX_MASK
            if self._keys.get(i, key) == key:
                return i
            heappop(self._heap)

    def drop_best(self, i: int) -> None:
        """Leave out the node of the first key."""
        heappop(self._heap)

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
