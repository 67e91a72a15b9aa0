"""Trial: placing pods on paper. What it places is seen by its own next steps and by nobody else.

The nodes it touches are copied into spots; snapshot and views are only read. Each shape has a
cursor that merges two sorted sequences: the view's order, from which touched nodes are skipped, and
a heap of the touched ones with their new keys.

    order [k4, k0, k7], nothing touched      best is 4
    node 4 filled a little, its key is K4    heap [K4], order from k0: best is min(K4, k0)
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.filters import refusal
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.shape import Ask, Shape
from phalanx.scheduler.snapshot import CPU, MEMORY, IntArray, Snapshot, Spot
from phalanx.scheduler.view import INDEX, NOWHERE, View, view_of


class Trial:
    """A scratch overlay on a snapshot."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.snapshot, self._policy = snapshot, policy
        self._spots: dict[int, Spot] = {}
        #: The touched nodes in order; each cursor repeats what it has not seen of it.
        self._touched: list[int] = []
        self._cursors: dict[Shape, _Cursor] = {}

    def place(self, shape: Shape) -> int | Refusal:
        """Put one pod of a shape on its best node, or say why there is none.

        Load only grows during a trial, so a shape that was refused once is refused for good.
        """
        cursor = self._cursors.get(shape)
        if cursor is None:
            cursor = self._cursors[shape] = _Cursor(view_of(self.snapshot, self._policy, shape))
        if cursor.refusal:
            return cursor.refusal
        i = cursor.best(self._touched, self._spots)
        if i == NOWHERE:
            cursor.refusal = self._refusal(cursor.view)
            return cursor.refusal
        self._load(i, cursor.view.ask)
        return i

    def refused(self, shape: Shape) -> Refusal | None:
        """The refusal that a shape has already met here, if any."""
        cursor = self._cursors.get(shape)
        return cursor.refusal if cursor else None

    def _load(self, i: int, ask: Ask) -> None:
        spot = self._spots.get(i)
        if spot is None:
            spot = self._spots[i] = self.snapshot.spot(i)
        used, scored = spot.used, spot.scored
        for column, amount in ask.amounts:
            used[column] += amount
        scored[CPU] += ask.scored_cpu
        scored[MEMORY] += ask.scored_memory
        self._touched.append(i)

    def _refusal(self, view: View) -> Refusal:
        if not self._touched:
            return view.refusal()
        return refusal(self._policy.filters, self.snapshot, view.shape, self._used())

    def _used(self) -> IntArray:
        used = self.snapshot.used.copy()
        for i, spot in self._spots.items():
            used[i] = spot.used
        return used


class _Cursor:
    """Where one shape stands in its view's order, and the new keys of touched nodes."""

    __slots__ = ("_front", "_heap", "_keys", "_seen", "refusal", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.refusal: Refusal | None = None
        self._front = self._seen = 0
        self._heap: list[int] = []
        self._keys: dict[int, int] = {}

    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The index of the best node as the trial stands, or NOWHERE."""
        if self._seen < len(touched):
            self._catch_up(dict.fromkeys(touched[self._seen :]), spots)
            self._seen = len(touched)
        heap, keys = self._heap, self._keys
        while heap and heap[0] != keys[heap[0] & INDEX]:
            heappop(heap)
        order, front, end = self.view.order, self._front, len(self.view.order)
        while front < end and order[front] & INDEX in spots:
            front += 1
        self._front = front
        key = order[front] if front < end else NOWHERE
        if heap and heap[0] < key:
            key = heap[0]
        return key & INDEX if key != NOWHERE else NOWHERE

    def _catch_up(self, nodes: Iterable[int], spots: dict[int, Spot]) -> None:
        view, keys = self.view, self._keys
        for i in nodes:
            if view.keys[i] != NOWHERE:
                keys[i] = key = view.key(i, spots[i])
                if key != NOWHERE:
                    heappush(self._heap, key)
