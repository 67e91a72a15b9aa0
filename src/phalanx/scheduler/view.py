"""View: how the nodes of a snapshot look to one shape. Kept across cycles and patched.

Every node has a key: its score and index in one integer, so that the smallest key is the best node
and of equal nodes the one with the lower name; `order` holds the keys of the nodes that take the
pod, sorted. A cycle reads them through a `Trial` and changes nothing.

    score 175 on node 4     key = 4 - (175 << 32)
    order [k4, k0, k7]      node 4 is best, then 0, then 7; the others refuse
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.filters import Depends, refusal, refused
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.scene import Scene, opening
from phalanx.scheduler.shape import Shape
from phalanx.scheduler.snapshot import Snapshot, Spot

#: The low bits of a key are the node's index.
SHIFT = 32
INDEX = (1 << SHIFT) - 1
#: The key of a node that refuses: behind all others.
NOWHERE = 1 << 62

_VIEWS_LIMIT = 64
#: From this share of changed nodes on it is cheaper to start anew.
_PATCH_SHARE = 16


class View:
    """Mask, scores and order of one shape on one snapshot."""

    __slots__ = (
        "_admits", "_everywhere", "_here", "_merits", "_position", "_refusal", "allowed", "ask",
        "epoch", "keys", "order", "policy", "shape", "snapshot",
    )  # fmt: skip

    def __init__(self, snapshot: Snapshot, policy: Policy, shape: Shape) -> None:
        self.snapshot, self.policy, self.shape = snapshot, policy, shape
        self.ask = shape.ask(snapshot.columns)
        loaded = [row for row in policy.filters if row.concerns(shape)]
        self._admits = tuple(row.admits for row in loaded if row.admits)
        opinions = [(s.weight, s.opinion(shape, snapshot.columns)) for s in policy.scores]
        self._here = tuple((weight, opinion.here) for weight, opinion in opinions)
        self._everywhere = tuple((weight, opinion.everywhere) for weight, opinion in opinions)
        self.keys: list[int] = []
        self.order: list[int] = []
        self._position = self.epoch = 0
        self._refusal: Refusal | None = None
        self.allowed = np.ones(len(snapshot), bool)
        self._merits: list[int] | None = None
        self._build()

    def key(self, i: int, spot: Spot) -> int:
        """The key of a node that this shape may use, loaded like that."""
        ask = self.ask
        for admits in self._admits:
            if not admits(ask, spot):
                return NOWHERE
        score = self._merits[i] if self._merits else 0
        for weight, here in self._here:
            score += weight * here(spot)
        return i - (score << SHIFT)

    def catch_up(self) -> None:
        """Repeat the rows whose load changed since the last look."""
        changed = sorted(set(self.snapshot.journal[self._position :]))
        self._position = len(self.snapshot.journal)
        if not changed:
            return
        if len(changed) * _PATCH_SHARE > len(self.snapshot):
            self._rank()
        else:
            self._patch(changed)
        self._refusal = None

    def refusal(self) -> Refusal:
        """Why no node takes a pod of this shape, as the snapshot stands and others left out."""
        if self._refusal is None:
            self._refusal = refusal(self.policy.filters, self._scene())
        return self._refusal

    def _scene(self) -> Scene:
        return opening(self.snapshot, self.shape)

    def _build(self) -> None:
        snapshot, scene = self.snapshot, self._scene()
        for row in self.policy.filters:
            if row.depends is Depends.NODES:
                self.allowed &= ~refused(row, scene)
        merits = [(row.weight, row.of(snapshot, self.shape)) for row in self.policy.merits]
        if any(found is not None for _, found in merits):
            total = sum(weight * found for weight, found in merits if found is not None)
            self._merits = np.asarray(total, np.int64).tolist()
        self._rank()
        self.epoch, self._position = snapshot.epoch, len(snapshot.journal)

    def _rank(self) -> None:
        """Ask what depends on load of all nodes, and rank those that pass."""
        snapshot, scene = self.snapshot, self._scene()
        passing = self.allowed.copy()
        for row in self.policy.filters:
            if row.depends is Depends.LOAD:
                passing &= ~refused(row, scene)
        scores = np.array(self._merits or np.zeros(len(snapshot)), np.int64)
        for weight, everywhere in self._everywhere:
            scores += weight * everywhere(snapshot)
        keys = np.arange(len(snapshot)) - (scores << SHIFT)
        self.order = np.sort(keys[passing]).tolist()
        self.keys = np.where(passing, keys, NOWHERE).tolist()

    def _patch(self, changed: list[int]) -> None:
        snapshot, keys, order, allowed = self.snapshot, self.keys, self.order, self.allowed
        for i in changed:
            old = keys[i]
            new = self.key(i, snapshot.spot(i)) if allowed[i] else NOWHERE
            if new == old:
                continue
            keys[i] = new
            if old != NOWHERE:
                del order[bisect_left(order, old)]
            if new != NOWHERE:
                insort(order, new)


def view_of(snapshot: Snapshot, policy: Policy, shape: Shape) -> View:
    """The view of a shape, brought up to date; the least recently used one makes way for a new."""
    views, key = snapshot.views, (policy, shape)
    view = views.pop(key, None)
    if view is None or view.epoch != snapshot.epoch:
        view = View(snapshot, policy, shape)
    else:
        view.catch_up()
    views[key] = view
    if len(views) > _VIEWS_LIMIT:
        del views[next(iter(views))]
    return view
