"""Seeker: one way to find the best node for the pods of one shape, as a trial stands.

A shape that neither minds other pods nor is minded by them has a cursor that merges two sorted
sequences: the view's ranking, from which touched nodes are skipped, and a heap of the touched ones
with their new keys.

    ranking [k4, k0, k7], nothing touched    best is 4
    node 4 filled a little, its key is K4    heap [K4], ranking from k0: best is min(K4, k0)

Any other shape has a surveyor, who looks at all nodes for every pod, on a `Field`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import repeat

from phalanx.scheduler.among import Among
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.field import Field
from phalanx.scheduler.ranking import NOWHERE, Ranking
from phalanx.scheduler.snapshot import Snapshot
from phalanx.scheduler.spot import Spot
from phalanx.scheduler.view import INDEX, View

#: Why a pod has no node, for whoever asks.
Excuse = Callable[[], Refusal]
#: Whom to tell of a pod that has been put somewhere; None where nobody minds.
Settle = Callable[[int], None] | None


def known(refusal: Refusal) -> Excuse:
    """An excuse that is at hand."""
    return lambda: refusal


class Overlay:
    """What a trial has put on top of a snapshot."""

    __slots__ = ("snapshot", "spots", "touched")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.spots: dict[int, Spot] = {}
        #: The touched nodes in order; each seeker repeats what it has not seen of it.
        self.touched: list[int] = []

    def put(self, i: int, view: View) -> None:
        """One more pod of a shape is on a node."""
        spots = self.spots
        spots[i] = view.after(spots.get(i) or self.snapshot.spot(i))
        self.touched.append(i)


class Seeker(ABC):
    """One way to find the best node for a shape as the trial stands, or NOWHERE."""

    __slots__ = ("_overlay", "_seen", "_settle", "among", "excuse", "view")

    def __init__(self, view: View, overlay: Overlay, settle: Settle, among: Among | None) -> None:
        self.view, self.among = view, among
        self._overlay, self._settle = overlay, settle
        #: Why there was no node the last time, if there was none.
        self.excuse: Excuse | None = None
        #: How many of the touched nodes were taken into account.
        self._seen = 0

    @property
    @abstractmethod
    def is_stale(self) -> bool:
        """Whether what was refused may be possible now."""

    @abstractmethod
    def best(self) -> int:
        """The index of the best node."""

    def put(self, i: int) -> None:
        """One more pod of the shape is on a node."""
        self._overlay.put(i, self.view)
        if self._settle is not None:
            self._settle(i)

    def fill(self, count: int) -> list[int]:
        """Put so many pods on the best nodes, one after the other, or as many as find one."""
        nodes: list[int] = []
        while len(nodes) < count and (i := self.best()) != NOWHERE:
            self.put(i)
            nodes.append(i)
        return nodes


class Surveyor(Seeker):
    """Looks at all nodes for every pod."""

    __slots__ = ("_field",)

    def __init__(
        self, view: View, overlay: Overlay, settle: Settle, among: Among | None, field: Field
    ) -> None:
        super().__init__(view, overlay, settle, among)
        self._field = field

    @property
    def is_stale(self) -> bool:
        """Another pod may be just whom it must be near, or even out the spread."""
        return len(self._overlay.touched) > self._seen

    def best(self) -> int:
        """The index of the best node among all."""
        touched = self._overlay.touched
        self._field.catch_up(touched[self._seen :], self._overlay.spots)
        self._seen = len(touched)
        return self._field.best()


class Cursor(Seeker):
    """Where one shape stands in a ranking, and the new keys of touched nodes."""

    __slots__ = ("_fresh", "_front", "_heap", "_keys")

    def __init__(self, view: View, overlay: Overlay, settle: Settle, ranking: Ranking) -> None:
        super().__init__(view, overlay, settle, None)
        #: The keys of nodes that nothing was put on, in order, and the first of them.
        self._fresh = _untouched(ranking, overlay.spots)
        self._front = next(self._fresh)
        #: Those of touched nodes as they are now; in the heap there may be older ones below.
        self._keys: dict[int, int] = {}
        self._heap: list[int] = []

    @property
    def is_stale(self) -> bool:
        """Load only grows during a trial: what was refused once is refused for good."""
        return False

    def best(self) -> int:
        """The first of the ranking, or a touched node that is better still."""
        self._catch_up()
        key = min(self._front, *self._heap[:1])
        return key & INDEX if key != NOWHERE else NOWHERE

    def fill(self, count: int) -> list[int]:
        """The same as for any seeker, without looking twice at what it has put there itself."""
        self._catch_up()
        overlay, heap, keys = self._overlay, self._heap, self._keys
        spots, by_row = overlay.spots, overlay.snapshot.by_row
        after, key_of = self.view.after, self.view.key
        nodes: list[int] = []
        while len(nodes) < count:
            is_touched = bool(heap) and heap[0] < self._front
            if is_touched:
                i = heappop(heap) & INDEX
                spot = after(spots[i])
            elif self._front != NOWHERE:
                i = self._front & INDEX
                self._front = next(self._fresh)
                spot = after(by_row[i])
            else:
                break
            nodes.append(i)
            spots[i] = spot
            keys[i] = key = key_of(i, spot)
            if key != NOWHERE:
                heappush(heap, key)
            if is_touched:
                self._drop_older()
        self._note(nodes)
        return nodes

    def _note(self, nodes: list[int]) -> None:
        """Tell the others what was put where."""
        self._overlay.touched += nodes
        self._seen += len(nodes)
        if self._settle is not None:
            for i in nodes:
                self._settle(i)

    def _catch_up(self) -> None:
        """Look at what others have put somewhere."""
        touched, spots = self._overlay.touched, self._overlay.spots
        keys, heap, key_of = self._keys, self._heap, self.view.key
        if self._seen == len(touched):
            return
        for i in touched[self._seen :]:
            keys[i] = key = key_of(i, spots[i])
            if key != NOWHERE:
                heappush(heap, key)
        self._seen = len(touched)
        self._drop_older()
        if self._front & INDEX in spots:
            self._front = next(self._fresh)

    def _drop_older(self) -> None:
        """The first of the heap is to be a key of now."""
        heap, keys = self._heap, self._keys
        while heap and heap[0] != keys[heap[0] & INDEX]:
            heappop(heap)


def _untouched(ranking: Ranking, spots: Mapping[int, Spot]) -> Iterator[int]:
    """The keys of a ranking whose nodes nothing was put on yet; NOWHERE at the end, for good."""
    best, number = ranking.best, 0
    while number < len(best) or ranking.extend():
        if (key := best[number]) & INDEX not in spots:
            yield key
        number += 1
    yield from repeat(NOWHERE)
