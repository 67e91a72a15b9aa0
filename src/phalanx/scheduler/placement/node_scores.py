"""Ranking: the keys of a view in order, sorted only as far as somebody has looked.

A cycle needs the best few nodes of thousands. `best` holds all keys up to a bound, sorted; when a
trial comes to its end, `extend` moves the bound. A node whose key changes moves inside `best`, into
it or out of it; the others are not even looked at.

    keys [7, 3, 9, 1, 5]     best [1, 3], bound 3      two were enough so far
    node 3: 1 -> 8           best [3]                  it is beyond the bound now
    extended                 best [3, 5, 7], bound 7

View: how the nodes of a snapshot look to one shape. Kept across cycles and patched.

Every node has a key: its score and index in one integer, so that the smallest key is the best node
and of equal nodes the one with the lower name. The `ranking` has those of the nodes that take the
pod in order. A cycle reads them through a `Trial` and changes nothing.

    score 175 on node 4     key = 4 - (175 << 32)
    ranking [k4, k0, k7]    node 4 is best, then 0, then 7; the others refuse

What a node is worth depends on its spot, and many nodes share one: it is asked once per spot.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from phalanx.scheduler.cluster.node_class import NodeClass, NodeTable
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.plugins.filters import FilterDependency, build_refusal, rejected_nodes
from phalanx.scheduler.plugins.plugin_context import PluginContext, initial_context
from phalanx.scheduler.plugins.scores import NormalizedScorePlugin
from phalanx.scheduler.policy import SchedulerPolicy

#: From here on keys are those of nodes that refuse, behind all others; and what a refusal adds to a
#: key, so much that nothing it is worth brings it back.
NO_NODE, REJECTED_KEY = 1 << 60, 1 << 61

#: How many keys are sorted at first; each time as many again as there are.
_STRIDE = 256


class SortedKeys:
    """The nodes that take a pod, the best first."""

    __slots__ = ("_bound", "_key_buffer", "best", "keys")

    def __init__(self, keys: IntArray) -> None:
        """Of one key per node."""
        self.keys = keys
        #: The same, which is faster one by one.
        self._key_buffer = keys.data
        self.best: list[int] = []
        self._bound = -NO_NODE

    def sort_more(self) -> bool:
        """Sort some more; False if there are none."""
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
        """The keys from one place in the order to another, as far as there are any."""
        while len(self.best) < end and self.sort_more():
            pass
        return self.best[begin:end]

    def update(self, changes: Iterable[tuple[int, int]]) -> None:
        """Nodes have other keys from now on."""
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
#: From this share of changed nodes on it is cheaper to start anew.
_PATCH_SHARE = 16


class NodeClassMemo(dict[NodeClass, _V]):
    """What has been found out about spots; all of it is forgotten when it gets too much."""

    __slots__ = ("_compute",)

    def __init__(self, find: Callable[[NodeClass], _V]) -> None:
        super().__init__()
        self._compute = find

    def __missing__(self, node_class: NodeClass) -> _V:
        if len(self) >= _NODE_CLASSES_LIMIT:
            self.clear()
        found = self[node_class] = self._compute(node_class)
        return found


class NodeScores:
    """Mask, scores and order of one shape on one snapshot."""

    __slots__ = (
        "_base_keys",
        "_bulk_scorers",
        "_class_keys",
        "_load_filters",
        "_node_scorers",
        "_position",
        "_refusal",
        "_static_scores",
        "after_placement",
        "allowed_nodes",
        "epoch",
        "normalized_scores",
        "policy",
        "request",
        "shape",
        "snapshot",
        "sorted_keys",
    )  # fmt: skip

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        shape: PodShape,
        base: NodeScores | None = None,
    ) -> None:
        """`kin` is the view of a cluster of the same nodes with other loads, if there is one."""
        self.snapshot, self.policy, self.shape = snapshot, policy, shape
        self._refusal: Refusal | None = None
        self.epoch, self._position = snapshot.epoch, len(snapshot.changed_rows)
        scene = initial_context(snapshot, shape)
        if base is None:
            self._evaluate_nodes(scene)
        else:
            self._inherit_from(base)
        self.sorted_keys = self._rank_nodes(scene)

    def _evaluate_nodes(self, context: PluginContext) -> None:
        """Find out all that does not depend on how nodes are loaded."""
        snapshot, policy, shape = self.snapshot, self.policy, self.shape
        self.request = shape.request_vector(snapshot.columns)
        loaded = [row for row in policy.filters if row.applies_to(shape)]
        self._load_filters = tuple(row.admits_node_class for row in loaded if row.admits_node_class)
        opinions = [(s.weight, s.build_scorer(shape, snapshot.columns)) for s in policy.scores]
        self._node_scorers = tuple((weight, opinion.score_node) for weight, opinion in opinions)
        self._bulk_scorers = tuple((weight, opinion.score_nodes) for weight, opinion in opinions)
        #: What spots are worth, as the part of a key that does not depend on the node.
        self._class_keys = NodeClassMemo(self._compute_class_key)
        #: What becomes of spots when a pod of this shape is put there, and how their keys grow.
        self.after_placement = NodeClassMemo(self._compute_after_placement)
        self.normalized_scores = applicable_normalized_scores(policy, context)
        self.allowed_nodes = np.ones(len(snapshot), bool)
        for row in policy.filters:
            if row.depends_on is FilterDependency.NODES:
                self.allowed_nodes &= ~rejected_nodes(row, context)
        self._static_scores = self._sum_static_scores()
        #: What the key of a node is but for its load, as plain integers, which are read faster.
        self._base_keys = np.where(
            self.allowed_nodes, self._build_keys(self._static_scores), REJECTED_KEY
        ).data

    def _inherit_from(self, base: NodeScores) -> None:
        """Take over the same."""
        self.request, self._load_filters = base.request, base._load_filters
        self._node_scorers, self._bulk_scorers = base._node_scorers, base._bulk_scorers
        self._class_keys, self.after_placement = base._class_keys, base.after_placement
        self.normalized_scores, self._static_scores = base.normalized_scores, base._static_scores
        self.allowed_nodes, self._base_keys = base.allowed_nodes, base._base_keys

    @property
    def keys(self) -> IntArray:
        """The key of every node."""
        return self.sorted_keys.keys

    def key_of(self, i: int, node_class: NodeClass) -> int:
        """The key of a node that is such a spot."""
        return self._class_keys[node_class] + self._base_keys[i]

    def update(self) -> None:
        """Repeat the rows whose load changed since the last look."""
        snapshot, ranking = self.snapshot, self.sorted_keys
        changed = snapshot.changed_rows[self._position :]
        if not changed:
            return
        self._position, self._refusal = len(snapshot.changed_rows), None
        if len(changed) * _PATCH_SHARE > len(snapshot):
            self.sorted_keys = self._rank_nodes(initial_context(snapshot, self.shape))
            return
        by_row, worths, bases = snapshot.node_classes, self._class_keys, self._base_keys
        ranking.update([(i, worths[by_row[i]] + bases[i]) for i in changed])

    def refusal(self) -> Refusal:
        """Why no node takes a pod of this shape, as the snapshot stands and others left out."""
        if self._refusal is None:
            self._refusal = build_refusal(
                self.policy.filters, initial_context(self.snapshot, self.shape)
            )
        return self._refusal

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """What many nodes are worth by their load."""
        total = np.zeros(len(rows.allocatable), np.int64)
        for weight, everywhere in self._bulk_scorers:
            total += weight * everywhere(rows)
        return total

    def _compute_class_key(self, node_class: NodeClass) -> int:
        for admits in self._load_filters:
            if not admits(self.request, node_class):
                return REJECTED_KEY
        score = 0
        for weight, here in self._node_scorers:
            score += weight * here(node_class)
        return -score << SCORE_SHIFT

    def _compute_after_placement(self, node_class: NodeClass) -> tuple[NodeClass, int]:
        after = self.snapshot.node_class_pool.after_adding(node_class, self.request)
        return after, self._class_keys[after] - self._class_keys[node_class]

    def _sum_static_scores(self) -> IntArray | None:
        """What nodes are worth whatever is on them."""
        merits = [
            (row.weight, row.score_nodes(self.snapshot, self.shape))
            for row in self.policy.static_scores
        ]
        found = [weight * merit for weight, merit in merits if merit is not None]
        return np.sum(found, axis=0) if found else None

    def _rank_nodes(self, context: PluginContext) -> SortedKeys:
        """Ask what depends on load of all nodes, and rank those that pass."""
        snapshot = self.snapshot
        passing = self.allowed_nodes.copy()
        for row in self.policy.filters:
            if row.depends_on is FilterDependency.LOAD:
                passing &= ~rejected_nodes(row, context)
        scores = self.score_nodes(snapshot)
        if self._static_scores is not None:
            scores += self._static_scores
        return SortedKeys(np.where(passing, self._build_keys(scores), REJECTED_KEY))

    def _build_keys(self, scores: IntArray | None) -> IntArray:
        numbers = np.arange(len(self.snapshot))
        return numbers if scores is None else numbers - (scores << SCORE_SHIFT)


def applicable_normalized_scores(
    policy: SchedulerPolicy, context: PluginContext
) -> tuple[NormalizedScorePlugin, ...]:
    """The comparisons that matter to a shape."""
    return tuple(row for row in policy.normalized_scores if row.applies_to(context))


def node_scores_of(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> NodeScores:
    """The view of a shape, brought up to date; the least recently used one makes way for a new."""
    views, key = snapshot.node_scores, (policy, shape)
    view = views.pop(key, None)
    if view is None or view.epoch != snapshot.epoch:
        view = NodeScores(snapshot, policy, shape, _find_base(snapshot, policy, shape))
    else:
        view.update()
    views[key] = view
    if len(views) > _NODE_SCORES_LIMIT:
        del views[next(iter(views))]
    return view


def _find_base(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> NodeScores | None:
    """The view of a cluster from which this one was made by changing loads alone."""
    origin = snapshot.origin
    while origin is not None:
        view = origin.node_scores.get((policy, shape))
        if view is not None and view.epoch == snapshot.epoch:
            return view
        origin = origin.origin
    return None
