"""Seeker: one way to find the best node for the pods of one shape, as a trial stands.

A shape that neither minds other pods nor is minded by them has a cursor: a heap of keys, with the
next of the view's ranking in it when one of them may be the best. A pod that is put on a node gives
the node another key.

    ranking [k4, k0, k7], heap [k4, k0]      best is 4
    node 4 filled a little, its key is K4    heap [k0, K4]: best is 0
    node 0 likewise                          heap [K0, K4]: k7 may be better, it is looked at now

Any other shape has a surveyor, who looks at all nodes for every pod, on a `Field`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace

from msgspec import Struct

from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cluster.spot import Spot
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.judging.among import Among
from phalanx.scheduler.placing.field import Field
from phalanx.scheduler.placing.ranking import NOWHERE, Ranking
from phalanx.scheduler.placing.view import INDEX, View

#: Why a pod has no node, for whoever asks.
Excuse = Callable[[], Refusal]
#: Whom to tell of a pod that has been put somewhere; None where nobody minds.
Settle = Callable[[int], None] | None


def known(refusal: Refusal) -> Excuse:
    """An excuse that is at hand."""
    return lambda: refusal


class Overlay(Struct):
    """What a trial has put on top of a snapshot."""

    snapshot: Snapshot
    spots: dict[int, Spot] = {}
    #: The touched nodes in order; each seeker repeats what it has not seen of it.
    touched: list[int] = []

    def put(self, i: int, view: View) -> None:
        """One more pod of a shape is on a node."""
        spots = self.spots
        spots[i], _ = view.after[spots.get(i) or self.snapshot.by_row[i]]
        self.touched.append(i)


class Seeker(ABC):
    """One way to find the best nodes for a shape as the trial stands."""

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
    def fill(self, count: int) -> list[int]:
        """Put so many pods on the best nodes, one after the other, or as many as find one."""

    def put(self, i: int) -> None:
        """One more pod of the shape is on a node."""
        self._overlay.put(i, self.view)
        if self._settle is not None:
            self._settle(i)


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

    def fill(self, count: int) -> list[int]:
        """Ask for the best node anew for every pod."""
        nodes: list[int] = []
        while len(nodes) < count and (i := self._best()) != NOWHERE:
            self.put(i)
            nodes.append(i)
        return nodes

    def _best(self) -> int:
        touched = self._overlay.touched
        self._field.catch_up(touched[self._seen :], self._overlay.spots)
        self._seen = len(touched)
        return self._field.best()


class Cursor(Seeker):
    """The keys of the best nodes for one shape, as far as the ranking was looked at."""

    __slots__ = ("_bound", "_heap", "_keys", "_position", "_ranking")

    def __init__(self, view: View, overlay: Overlay, settle: Settle, ranking: Ranking) -> None:
        super().__init__(view, overlay, settle, None)
        #: Where the ranking goes on, and the last key that was taken from it.
        self._ranking, self._position, self._bound = ranking, 0, -NOWHERE
        self._heap: list[int] = [NOWHERE]
        #: The keys that nodes have since others touched them; in the heap there may be older ones.
        self._keys: dict[int, int] = {}

    @property
    def is_stale(self) -> bool:
        """Load only grows during a trial: what was refused once is refused for good."""
        return False

    def fill(self, count: int) -> list[int]:
        """Take the first key of the heap, and give its node another, for every pod."""
        overlay, heap, keys, after = self._overlay, self._heap, self._keys, self.view.after
        spots, by_row, touched = overlay.spots, overlay.snapshot.by_row, overlay.touched
        if self._seen < len(touched):
            self._catch_up()
        nodes: list[int] = []
        while len(nodes) < count:
            while heap[0] > self._bound:
                self._look_on(count - len(nodes))
            key = heap[0]
            if key >= NOWHERE:
                break
            i = key & INDEX
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
        if self._settle is not None:
            for i in nodes:
                self._settle(i)
        return nodes

    def _look_on(self, count: int) -> None:
        """Have the next keys of the ranking in the heap, but none of a touched node.

        The nodes that others touched are mostly the next ones here too: it looks beyond them.
        """
        begin, heap, keys = self._position, self._heap, self._keys
        more = self._ranking.part(begin, max(begin, len(self._overlay.touched)) + count)
        untouched = [key for key in more if key & INDEX not in keys] if keys else more
        if len(heap) == 1:
            # What is in order is a heap.
            heap[:0] = untouched
        else:
            for key in untouched:
                heappush(heap, key)
        self._position += len(more)
        self._bound = more[-1] if more else NOWHERE

    def _catch_up(self) -> None:
        """Look at what others have put somewhere."""
        touched, spots = self._overlay.touched, self._overlay.spots
        keys, heap, key_of = self._keys, self._heap, self.view.key
        for i in touched[self._seen :]:
            keys[i] = key = key_of(i, spots[i])
            heappush(heap, key)
        self._seen = len(touched)
