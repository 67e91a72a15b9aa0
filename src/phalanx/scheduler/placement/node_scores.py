"""NodeScores: which nodes of a snapshot take a pod of one shape, the best first.

Kept with the snapshot across cycles (`NODE_SCORES`) and patched when loads change. A cycle reads
them through a `PlacementSimulation` and changes nothing.

Every node has a key: score and index in one integer, so that the smallest key is the best node, and
of equal nodes the one with the lower name. `SortedKeys` sorts the keys of the nodes that take the
pod, but only as far as they are read: a cycle needs the best few nodes of thousands.

    score 175 on node 4      key = 4 - (175 << 32)

    keys [7, 3, 9, 1, 5]     best [1, 3], bound 3        two keys were enough so far
    node 3: key 1 -> 8       best [3]                    the key is beyond the bound now
    sort_more                best [3, 5, 7], bound 7

The score of a node depends on its NodeClass, which many nodes share, so it is computed once per
class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from phalanx.scheduler.cluster.node_index import PreviousRows
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import (
    IntArray,
    NodeClass,
    NodeTable,
    Snapshot,
    SnapshotCache,
)
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.plugins.filtering import build_refusal, run_filter, run_static_filter
from phalanx.scheduler.plugins.load_scoring import MANY_NODES, ONE_NODE, columns_of, no_score
from phalanx.scheduler.plugins.plugin import (
    FilterDependency,
    LoadScore,
    NormalizedScore,
    StaticScore,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext, initial_context
from phalanx.scheduler.policy import SchedulerPolicy

#: Keys from NO_NODE on are those of rejected nodes, behind all others. REJECTED_KEY is what a
#: rejection adds to a key: no score outweighs it.
NO_NODE, REJECTED_KEY = 1 << 60, 3 << 60

#: How many keys are sorted at first; each further time the number doubles.
_STRIDE = 256


class SortedKeys:
    """The keys of the nodes that take a pod, sorted as far as they were read."""

    __slots__ = ("_bound", "_key_buffer", "best", "keys")

    def __init__(self, keys: IntArray) -> None:
        self.keys = keys
        #: The same memory; single elements are read and written faster.
        self._key_buffer = keys.data
        self.best: list[int] = []
        self._bound = -NO_NODE

    def sort_more(self) -> bool:
        """Sort some more keys; return whether there were any."""
        keys = self.keys
        beyond = keys[(keys > self._bound) & (keys < NO_NODE)]
        size = max(_STRIDE, len(self.best))
        if len(beyond) > size:
            beyond = np.partition(beyond, size)[:size]
        beyond.sort()
        more: list[int] = beyond.tolist()
        if more:
            self._bound = more[-1]
            self.best += more
        return bool(more)

    def keys_between(self, begin: int, end: int) -> list[int]:
        """Return the sorted keys from one position to another, fewer if there are fewer."""
        while len(self.best) < end and self.sort_more():
            pass
        return self.best[begin:end]

    def update(self, changes: Iterable[tuple[int, int]]) -> None:
        """Change the keys of nodes, given as pairs of index and key."""
        keys, best, bound = self._key_buffer, self.best, self._bound
        for i, key in changes:
            old = keys[i]
            if old == key:
                continue
            keys[i] = key
            if old <= bound:
                del best[bisect_left(best, old)]
            if key <= bound:
                insort(best, key)


#: The low bits of a key are the node's index.
SCORE_SHIFT = 32
INDEX_MASK = (1 << SCORE_SHIFT) - 1

_V = TypeVar("_V")

_NODE_SCORES_LIMIT = 64
_NODE_CLASSES_LIMIT = 16_384
#: If more than one in so many nodes changed, recomputing all is cheaper than patching.
_PATCH_SHARE = 16


class NodeClassMemo(dict[NodeClass, _V]):
    """A memo of a function of node classes; cleared when it is full."""

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[NodeClass], _V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, node_class: NodeClass) -> _V:
        if len(self) >= _NODE_CLASSES_LIMIT:
            self.clear()
        found = self[node_class] = self._compute(node_class)
        return found


class ShapeScores(ABC):
    """What filters and scores say about the node classes of one snapshot, for one shape."""

    __slots__ = (
        "_class_keys",
        "_load_filters",
        "_load_scorers",
        "_refusal",
        "after_placement",
        "policy",
        "request",
        "shape",
        "snapshot",
    )

    def __init__(self, snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> None:
        self.snapshot, self.policy, self.shape = snapshot, policy, shape
        self._refusal: Refusal | None = None

    def _build_scorers(self) -> None:
        """Select the filters and scores that depend on the load of a node."""
        snapshot, policy, shape = self.snapshot, self.policy, self.shape
        self.request = shape.request_vector(snapshot.columns)
        self._load_filters = tuple(
            filter_.admits_node_class
            for filter_ in policy.filters.values()
            if filter_.admits_node_class and filter_.applies_to(shape)
        )
        self._load_scorers = tuple(
            (weight, scorer)
            for weight, score in policy.scores_of(LoadScore, shape)
            if (scorer := score.build_scorer(shape, snapshot.columns)) is not no_score
        )
        #: The score of each node class, as the part of a key that does not depend on the node.
        self._class_keys = NodeClassMemo(self._compute_class_key)
        #: The class that a node class becomes when a pod of this shape is placed, and how much the
        #: key grows.
        self.after_placement = NodeClassMemo(self._compute_after_placement)

    @abstractmethod
    def key_of(self, i: int, node_class: NodeClass) -> int:
        """Compute the key of a node of some class."""

    def refusal(self) -> Refusal:
        """Say why no node takes a pod of this shape, leaving other pods' constraints out."""
        if self._refusal is None:
            self._refusal = build_refusal(
                self.policy.filters, initial_context(self.snapshot, self.shape)
            )
        return self._refusal

    def _compute_class_key(self, node_class: NodeClass) -> int:
        for admits in self._load_filters:
            if not admits(self.request, node_class):
                return REJECTED_KEY
        total: int = 0
        for weight, score in self._load_scorers:
            total += weight * score(node_class, ONE_NODE)
        return -total << SCORE_SHIFT

    def _compute_after_placement(self, node_class: NodeClass) -> tuple[NodeClass, int]:
        after = self.snapshot.node_class_pool.after_adding(node_class, self.request)
        return after, self._class_keys[after] - self._class_keys[node_class]


class PinnedNodeScores(ShapeScores):
    """The scores of a shape that one node alone may take, as pods of a DaemonSet have.

    Asks the filters about that node only, so that a decision takes as long with one node as with
    thousands. Not cached: every such pod has a shape of its own.
    """

    __slots__ = ("_base_key", "_row", "sorted_keys")

    def __init__(
        self, snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape, *, row: int
    ) -> None:
        super().__init__(snapshot, policy, shape)
        self._build_scorers()
        context = initial_context(snapshot.select_node(row), shape)
        masks = (run_static_filter(one, context) for one in policy.filters.values())
        is_rejected = any(mask is not None and bool(mask[0]) for mask in masks)
        self._row, self._base_key = row, REJECTED_KEY if is_rejected else row
        key = self.key_of(row, snapshot.node_class(row))
        self.sorted_keys = SortedKeys(np.array([key]))

    def key_of(self, i: int, node_class: NodeClass) -> int:
        """Compute the key of a node of some class."""
        return self._class_keys[node_class] + (self._base_key if i == self._row else REJECTED_KEY)


class NodeScores(ShapeScores):
    """Mask, scores and order of the nodes of one snapshot for one shape and policy."""

    __slots__ = (
        "_base_keys",
        "_position",
        "_static_scores",
        "allowed_nodes",
        "epoch",
        "normalized_scores",
        "sorted_keys",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        shape: PodShape,
        *,
        base: NodeScores | None = None,
    ) -> None:
        """`base` has the scores of the same nodes with other loads, if there are any."""
        super().__init__(snapshot, policy, shape)
        self.epoch, self._position = snapshot.epoch, len(snapshot.changed_rows)
        context = initial_context(snapshot, shape)
        if base is None:
            self._build_scorers()
            self._filter_and_score(context)
        else:
            self._inherit_from(base)
        self.sorted_keys = self._rank_nodes(context)

    def _filter_and_score(self, context: PluginContext) -> None:
        """Run the filters and scores that do not depend on the load of nodes."""
        policy = self.policy
        self.normalized_scores = applicable_normalized_scores(policy, context)
        self.allowed_nodes = np.ones(len(self.snapshot), bool)
        for filter_ in policy.filters.values():
            if (rejected := run_static_filter(filter_, context)) is not None:
                self.allowed_nodes &= ~rejected
        self._static_scores = self._sum_static_scores()
        #: The part of each key that does not depend on load, as plain integers: faster to read.
        self._base_keys = np.where(
            self.allowed_nodes, self._build_keys(self._static_scores), REJECTED_KEY
        ).data

    def _inherit_from(self, base: NodeScores) -> None:
        self.request, self._load_filters = base.request, base._load_filters
        self._load_scorers = base._load_scorers
        self._class_keys, self.after_placement = base._class_keys, base.after_placement
        self.normalized_scores, self._static_scores = base.normalized_scores, base._static_scores
        self.allowed_nodes, self._base_keys = base.allowed_nodes, base._base_keys

    @property
    def keys(self) -> IntArray:
        """The key of every node."""
        return self.sorted_keys.keys

    def key_of(self, i: int, node_class: NodeClass) -> int:
        """Compute the key of a node of some class."""
        return self._class_keys[node_class] + self._base_keys[i]

    def update(self) -> None:
        """Recompute the keys of the nodes whose load changed since the last update."""
        snapshot = self.snapshot
        changed = snapshot.changed_rows[self._position :]
        if not changed:
            return
        self._position, self._refusal = len(snapshot.changed_rows), None
        if len(changed) * _PATCH_SHARE > len(snapshot):
            self.sorted_keys = self._rank_nodes(initial_context(snapshot, self.shape))
            return
        by_row, class_keys, base_keys = snapshot.node_classes, self._class_keys, self._base_keys
        self.sorted_keys.update([(i, class_keys[by_row[i]] + base_keys[i]) for i in changed])

    def move_to(self, snapshot: Snapshot, rows: IntArray, new_rows: Iterable[int]) -> None:
        """Follow a snapshot to the one in which few nodes were added or removed.

        What depends on nodes alone is computed anew, which is fast. The load of the nodes that stay
        is known from their keys.
        """
        self.update()
        keys, base_keys = self.keys[rows], np.asarray(self._base_keys)[rows]
        self.snapshot, self._refusal = snapshot, None
        self.epoch, self._position = snapshot.epoch, 0
        self._filter_and_score(initial_context(snapshot, self.shape))
        moved = np.where(
            keys < NO_NODE, keys - base_keys + np.asarray(self._base_keys), REJECTED_KEY
        )
        for i in new_rows:
            moved[i] = self.key_of(i, snapshot.node_class(i))
        self.sorted_keys = SortedKeys(moved)
        self.update()

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """Score many nodes by their load."""
        total = np.zeros(len(rows.allocatable), np.int64)
        columns = columns_of(rows)
        for weight, score in self._load_scorers:
            total += weight * score(columns, MANY_NODES)
        return total

    def _sum_static_scores(self) -> IntArray | None:
        found = [
            weight * scores
            for weight, score in self.policy.scores_of(StaticScore, self.shape)
            if (scores := score.score_nodes(self.snapshot, self.shape)) is not None
        ]
        return np.sum(found, axis=0) if found else None

    def _rank_nodes(self, context: PluginContext) -> SortedKeys:
        """Filter and score all nodes by their load."""
        snapshot = self.snapshot
        passing = self.allowed_nodes.copy()
        for filter_ in self.policy.filters.values():
            if filter_.depends_on is FilterDependency.LOAD:
                passing &= ~run_filter(filter_, context)
        scores = self.score_nodes(snapshot)
        if self._static_scores is not None:
            scores += self._static_scores
        return SortedKeys(np.where(passing, self._build_keys(scores), REJECTED_KEY))

    def _build_keys(self, scores: IntArray | None) -> IntArray:
        indexes = np.arange(len(self.snapshot))
        return indexes if scores is None else indexes - (scores << SCORE_SHIFT)


#: The scores of each snapshot, the least recently used first.
NODE_SCORES: SnapshotCache[dict[tuple[SchedulerPolicy, PodShape], NodeScores]] = SnapshotCache(dict)


def applicable_normalized_scores(
    policy: SchedulerPolicy, context: PluginContext
) -> tuple[tuple[int, NormalizedScore], ...]:
    """Return the normalized scores that apply to a pod, with their weights."""
    return tuple(
        (weight, score)
        for weight, score in policy.scores_of(NormalizedScore, context.shape)
        if score.applies_to(context)
    )


def node_scores_of(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> NodeScores:
    """Return the up-to-date scores of a shape; the least recently used ones are dropped."""
    cached, key = NODE_SCORES.of(snapshot), (policy, shape)
    scores = cached.pop(key, None)
    if scores is None and snapshot.previous is not None and snapshot.origin is None:
        scores = _move_from_previous(snapshot.previous, snapshot, key)
    if scores is None or scores.epoch != snapshot.epoch:
        base = _find_base(snapshot, policy, shape) if snapshot.origin is not None else None
        scores = NodeScores(snapshot, policy, shape, base=base)
    else:
        scores.update()
    cached[key] = scores
    if len(cached) > _NODE_SCORES_LIMIT:
        del cached[next(iter(cached))]
    return scores


def _move_from_previous(
    previous: PreviousRows, snapshot: Snapshot, key: tuple[SchedulerPolicy, PodShape]
) -> NodeScores | None:
    """Take over the scores of the snapshot before nodes were added or removed, if it has them."""
    scores = NODE_SCORES.of(previous.snapshot).pop(key, None)
    if scores is None or scores.epoch != previous.snapshot.epoch:
        return None
    scores.move_to(snapshot, previous.rows, previous.new_rows)
    return scores


def _find_base(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> NodeScores | None:
    """Find the scores of a snapshot that this one was forked from, directly or not."""
    origin = snapshot.origin
    while origin is not None:
        scores = NODE_SCORES.of(origin).get((policy, shape))
        if scores is not None and scores.epoch == snapshot.epoch:
            return scores
        origin = origin.origin
    return None
