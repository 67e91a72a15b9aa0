"""Field: all nodes as one shape sees them, for pods whose place depends on other nodes or pods.

The slower sibling of the cursor in `seeker.py`: it starts from the same view, repeats the rows that
the trial has touched, and asks what depends on others anew for every pod, over arrays. Both give
the same answer where both apply.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.cluster.spot import Spot
from phalanx.scheduler.judging.comparisons import Comparison
from phalanx.scheduler.judging.filters import Depends
from phalanx.scheduler.judging.scene import Scene
from phalanx.scheduler.placing.ranking import NOWHERE
from phalanx.scheduler.placing.view import SHIFT, View


class Field:
    """Where one shape would go, among others."""

    __slots__ = ("_comparisons", "_filters", "_scene", "_takes", "_view", "_worths")

    def __init__(self, view: View, scene: Scene, comparisons: tuple[Comparison, ...]) -> None:
        self._view, self._scene, self._comparisons = view, scene, comparisons
        among = scene.among is not None
        rows = view.policy.filters if among else ()
        self._filters = tuple(row for row in rows if row.depends is Depends.PEERS)
        keys = view.keys
        self._takes: BoolArray = scene.inside & (keys < NOWHERE)
        self._worths: IntArray = (np.arange(len(keys)) - keys) >> SHIFT

    def catch_up(self, nodes: Iterable[int], spots: dict[int, Spot]) -> None:
        """Repeat nodes whose load has changed in the trial."""
        for i in nodes:
            key = self._view.key(i, spots[i])
            self._takes[i], self._worths[i] = key < NOWHERE, (i - key) >> SHIFT

    def best(self) -> int:
        """The index of the best node, or NOWHERE."""
        passed = self._takes.copy()
        for row in self._filters:
            for _, refused in row.refuses(self._scene):
                passed &= ~refused
        if not passed.any():
            return NOWHERE
        return int(np.where(passed, self._scores(passed), -1).argmax())

    def _scores(self, passed: BoolArray) -> IntArray:
        scores = self._worths
        for row in self._comparisons:
            scores = scores + row.weight * row.ranks(self._scene, passed)
        return scores
