"""Ranking: the keys of a view in order, sorted only as far as somebody has looked.

A cycle needs the best few nodes of thousands. `best` holds all keys up to a bound, sorted; when a
trial comes to its end, `extend` moves the bound. A node whose key changes moves inside `best`, into
it or out of it; the others are not even looked at.

    keys [7, 3, 9, 1, 5]     best [1, 3], bound 3      two were enough so far
    node 3: 1 -> 8           best [3]                  it is beyond the bound now
    extended                 best [3, 5, 7], bound 7
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import numpy as np

from phalanx.scheduler.cluster.snapshot import IntArray

#: From here on keys are those of nodes that refuse, behind all others; and what a refusal adds to a
#: key, so much that nothing it is worth brings it back.
NOWHERE, REFUSED = 1 << 60, 1 << 61

#: How many keys are sorted at first; each time as many again as there are.
_STRIDE = 256


class Ranking:
    """The nodes that take a pod, the best first."""

    __slots__ = ("_bound", "_each", "best", "keys")

    def __init__(self, keys: IntArray) -> None:
        """Of one key per node."""
        self.keys = keys
        #: The same, which is faster one by one.
        self._each = keys.data
        self.best: list[int] = []
        self._bound = -NOWHERE

    def extend(self) -> bool:
        """Sort some more; False if there are none."""
        keys = self.keys
        beyond = keys[(keys > self._bound) & (keys < NOWHERE)]
        size = max(_STRIDE, len(self.best))
        if len(beyond) > size:
            beyond = np.partition(beyond, size)[:size]
        beyond.sort()
        more: list[int] = beyond.tolist()
        if more:
            self._bound = more[-1]
            self.best += more
        return bool(more)

    def part(self, begin: int, end: int) -> list[int]:
        """The keys from one place in the order to another, as far as there are any."""
        while len(self.best) < end and self.extend():
            pass
        return self.best[begin:end]

    def put(self, changes: Iterable[tuple[int, int]]) -> None:
        """Nodes have other keys from now on."""
        keys, best, bound = self._each, self.best, self._bound
        for i, key in changes:
            old = keys[i]
            if old == key:
                continue
            keys[i] = key
            if old <= bound:
                del best[bisect_left(best, old)]
            if key <= bound:
                insort(best, key)
