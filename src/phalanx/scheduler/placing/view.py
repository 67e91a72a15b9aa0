"""View: how the nodes of a snapshot look to one shape. Kept across cycles and patched.

Every node has a key: its score and index in one integer, so that the smallest key is the best node
and of equal nodes the one with the lower name. The `ranking` has those of the nodes that take the
pod in order. A cycle reads them through a `Trial` and changes nothing.

    score 175 on node 4     key = 4 - (175 << 32)
    ranking [k4, k0, k7]    node 4 is best, then 0, then 7; the others refuse

What a node is worth depends on its spot, and many nodes share one: it is asked once per spot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.cluster.spot import Rows, Spot
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.judging.comparisons import Comparison
from phalanx.scheduler.judging.filters import Depends, refusal, refused
from phalanx.scheduler.judging.scene import Scene, opening
from phalanx.scheduler.placing.ranking import REFUSED, Ranking
from phalanx.scheduler.policy import Policy

#: The low bits of a key are the node's index.
SHIFT = 32
INDEX = (1 << SHIFT) - 1

_V = TypeVar("_V")

_VIEWS_LIMIT = 64
_SPOTS_LIMIT = 16_384
#: From this share of changed nodes on it is cheaper to start anew.
_PATCH_SHARE = 16


class Remembered(dict[Spot, _V]):
    """What has been found out about spots; all of it is forgotten when it gets too much."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[Spot], _V]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, spot: Spot) -> _V:
        if len(self) >= _SPOTS_LIMIT:
            self.clear()
        found = self[spot] = self._find(spot)
        return found


class View:
    """Mask, scores and order of one shape on one snapshot."""

    __slots__ = (
        "_admits", "_bases", "_everywhere", "_here", "_merits", "_position", "_refusal", "_worths",
        "after", "allowed", "ask", "comparisons", "epoch", "policy", "ranking", "shape", "snapshot",
    )  # fmt: skip

    def __init__(
        self, snapshot: Snapshot, policy: Policy, shape: Shape, kin: View | None = None
    ) -> None:
        """`kin` is the view of a cluster of the same nodes with other loads, if there is one."""
        self.snapshot, self.policy, self.shape = snapshot, policy, shape
        self._refusal: Refusal | None = None
        self.epoch, self._position = snapshot.epoch, len(snapshot.journal)
        scene = opening(snapshot, shape)
        if kin is None:
            self._look_at_nodes(scene)
        else:
            self._inherit(kin)
        self.ranking = self._ranked(scene)

    def _look_at_nodes(self, scene: Scene) -> None:
        """Find out all that does not depend on how nodes are loaded."""
        snapshot, policy, shape = self.snapshot, self.policy, self.shape
        self.ask = shape.ask(snapshot.columns)
        loaded = [row for row in policy.filters if row.concerns(shape)]
        self._admits = tuple(row.admits for row in loaded if row.admits)
        opinions = [(s.weight, s.opinion(shape, snapshot.columns)) for s in policy.scores]
        self._here = tuple((weight, opinion.here) for weight, opinion in opinions)
        self._everywhere = tuple((weight, opinion.everywhere) for weight, opinion in opinions)
        #: What spots are worth, as the part of a key that does not depend on the node.
        self._worths = Remembered(self._worth)
        #: What becomes of spots when a pod of this shape is put there, and how their keys grow.
        self.after = Remembered(self._after)
        self.comparisons = concerning(policy, scene)
        self.allowed = np.ones(len(snapshot), bool)
        for row in policy.filters:
            if row.depends is Depends.NODES:
                self.allowed &= ~refused(row, scene)
        self._merits = self._merited()
        #: What the key of a node is but for its load, as plain integers, which are read faster.
        self._bases = np.where(self.allowed, self._keys(self._merits), REFUSED).data

    def _inherit(self, kin: View) -> None:
        """Take over the same."""
        self.ask, self._admits = kin.ask, kin._admits
        self._here, self._everywhere = kin._here, kin._everywhere
        self._worths, self.after = kin._worths, kin.after
        self.comparisons, self._merits = kin.comparisons, kin._merits
        self.allowed, self._bases = kin.allowed, kin._bases

    @property
    def keys(self) -> IntArray:
        """The key of every node."""
        return self.ranking.keys

    def key(self, i: int, spot: Spot) -> int:
        """The key of a node that is such a spot."""
        return self._worths[spot] + self._bases[i]

    def catch_up(self) -> None:
        """Repeat the rows whose load changed since the last look."""
        snapshot, ranking = self.snapshot, self.ranking
        changed = snapshot.journal[self._position :]
        if not changed:
            return
        self._position, self._refusal = len(snapshot.journal), None
        if len(changed) * _PATCH_SHARE > len(snapshot):
            self.ranking = self._ranked(opening(snapshot, self.shape))
            return
        by_row, worths, bases = snapshot.by_row, self._worths, self._bases
        ranking.put([(i, worths[by_row[i]] + bases[i]) for i in changed])

    def refusal(self) -> Refusal:
        """Why no node takes a pod of this shape, as the snapshot stands and others left out."""
        if self._refusal is None:
            self._refusal = refusal(self.policy.filters, opening(self.snapshot, self.shape))
        return self._refusal

    def scores(self, rows: Rows) -> IntArray:
        """What many nodes are worth by their load."""
        total = np.zeros(len(rows.room), np.int64)
        for weight, everywhere in self._everywhere:
            total += weight * everywhere(rows)
        return total

    def _worth(self, spot: Spot) -> int:
        for admits in self._admits:
            if not admits(self.ask, spot):
                return REFUSED
        score = 0
        for weight, here in self._here:
            score += weight * here(spot)
        return -score << SHIFT

    def _after(self, spot: Spot) -> tuple[Spot, int]:
        after = self.snapshot.spots.after(spot, self.ask)
        return after, self._worths[after] - self._worths[spot]

    def _merited(self) -> IntArray | None:
        """What nodes are worth whatever is on them."""
        merits = [(row.weight, row.of(self.snapshot, self.shape)) for row in self.policy.merits]
        found = [weight * merit for weight, merit in merits if merit is not None]
        return np.sum(found, axis=0) if found else None

    def _ranked(self, scene: Scene) -> Ranking:
        """Ask what depends on load of all nodes, and rank those that pass."""
        snapshot = self.snapshot
        passing = self.allowed.copy()
        for row in self.policy.filters:
            if row.depends is Depends.LOAD:
                passing &= ~refused(row, scene)
        scores = self.scores(snapshot)
        if self._merits is not None:
            scores += self._merits
        return Ranking(np.where(passing, self._keys(scores), REFUSED))

    def _keys(self, scores: IntArray | None) -> IntArray:
        numbers = np.arange(len(self.snapshot))
        return numbers if scores is None else numbers - (scores << SHIFT)


def concerning(policy: Policy, scene: Scene) -> tuple[Comparison, ...]:
    """The comparisons that matter to a shape."""
    return tuple(row for row in policy.comparisons if row.concerns(scene))


def view_of(snapshot: Snapshot, policy: Policy, shape: Shape) -> View:
    """The view of a shape, brought up to date; the least recently used one makes way for a new."""
    views, key = snapshot.views, (policy, shape)
    view = views.pop(key, None)
    if view is None or view.epoch != snapshot.epoch:
        view = View(snapshot, policy, shape, _kin(snapshot, policy, shape))
    else:
        view.catch_up()
    views[key] = view
    if len(views) > _VIEWS_LIMIT:
        del views[next(iter(views))]
    return view


def _kin(snapshot: Snapshot, policy: Policy, shape: Shape) -> View | None:
    """The view of a cluster from which this one was made by changing loads alone."""
    origin = snapshot.origin
    while origin is not None:
        view = origin.views.get((policy, shape))
        if view is not None and view.epoch == snapshot.epoch:
            return view
        origin = origin.origin
    return None
