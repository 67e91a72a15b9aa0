"""Trial: placing pods on paper. What it places is seen by its own next steps and by nobody else.

The nodes it touches are copied into spots; snapshot and views are only read. A shape that neither
minds other pods nor is minded by them has a cursor that merges two sorted sequences: the view's
order, from which touched nodes are skipped, and a heap of the touched ones with their new keys.

    order [k4, k0, k7], nothing touched      best is 4
    node 4 filled a little, its key is K4    heap [K4], order from k0: best is min(K4, k0)

Any other shape has a `Field`, which looks at all nodes for every pod.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from phalanx.scheduler.among import Among
from phalanx.scheduler.company import ALONE, Company, Standing
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.field import Field
from phalanx.scheduler.filters import refusal
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.scene import Scene
from phalanx.scheduler.shape import Ask, Shape
from phalanx.scheduler.snapshot import CPU, MEMORY, BoolArray, IntArray, Ports, Snapshot, Spot
from phalanx.scheduler.view import INDEX, NOWHERE, View, view_of


class Trial:
    """A scratch overlay on a snapshot, for these members, on all nodes or on some."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        members: Iterable[Member],
        nodes: IntArray | None = None,
    ) -> None:
        self.snapshot, self._policy, self._nodes = snapshot, policy, nodes
        self._within = None if nodes is None else _mask(nodes, len(snapshot))
        self._spots: dict[int, Spot] = {}
        #: The touched nodes in order; each seeker repeats what it has not seen of it.
        self._touched: list[int] = []
        self._seekers: dict[tuple[Shape, Standing], _Seeker] = {}
        company = Company(snapshot, members, policy.defaults.spreads)
        #: None where no member minds another pod or is minded by one.
        self._company = company or None

    def place(self, member: Member) -> int | Refusal:
        """Put a pod on its best node, or say why there is none."""
        standing = self._standing(member)
        seeker = self._seeker(member.shape, standing)
        if seeker.refusal and not seeker.is_stale(len(self._touched)):
            return seeker.refusal
        i = seeker.best(self._touched, self._spots)
        if i == NOWHERE:
            seeker.refusal = self._refusal(seeker)
            return seeker.refusal
        self._load(i, seeker.view.ask)
        if self._company is not None:
            self._company.settle(standing, i)
        return i

    def refused(self, member: Member) -> Refusal | None:
        """The refusal that an equal pod has already met here, if any."""
        seeker = self._seekers.get((member.shape, self._standing(member)))
        return seeker.refusal if seeker else None

    def _standing(self, member: Member) -> Standing:
        return ALONE if self._company is None else self._company.standing(member)

    def _seeker(self, shape: Shape, standing: Standing) -> _Seeker:
        seeker = self._seekers.get((shape, standing))
        if seeker is None:
            seeker = self._seekers[shape, standing] = self._new_seeker(shape, standing)
        return seeker

    def _new_seeker(self, shape: Shape, standing: Standing) -> _Seeker:
        view = view_of(self.snapshot, self._policy, shape)
        scene = Scene(
            self.snapshot, shape, self.snapshot.used, self.snapshot.ports,
            self._among(shape, standing), self._within,
        )  # fmt: skip
        comparisons = tuple(row for row in self._policy.comparisons if row.concerns(scene))
        if scene.among is None and not comparisons:
            return _Cursor(view, scene, self._order(view))
        return _Surveyor(view, scene, Field(view, scene, comparisons))

    def is_plain(self, member: Member) -> bool:
        """Whether where a pod goes depends on nothing but the load of nodes."""
        return isinstance(self._seeker(member.shape, self._standing(member)), _Cursor)

    def _order(self, view: View) -> list[int]:
        if self._nodes is None:
            return view.order
        keys = view.keys
        return sorted(keys[i] for i in self._nodes.tolist() if keys[i] != NOWHERE)

    def _among(self, shape: Shape, standing: Standing) -> Among | None:
        company = self._company
        if company is None or not (standing.peers or company.is_minded(standing)):
            return None
        policy = self._policy
        return Among(
            self.snapshot, company, standing, shape.wishes,
            explicit=bool(shape.peers.spreads) or policy.defaults.strict,
            near_weight=policy.near_weight, heeds_likes=policy.heeds_likes,
        )  # fmt: skip

    def _load(self, i: int, ask: Ask) -> None:
        spot = self._spots.get(i)
        if spot is None:
            spot = self._spots[i] = self.snapshot.spot(i)
        used, scored = spot.used, spot.scored
        for column, amount in ask.amounts:
            used[column] += amount
        scored[CPU] += ask.scored_cpu
        scored[MEMORY] += ask.scored_memory
        if ask.ports:
            spot.ports += ask.ports
        self._touched.append(i)

    def _refusal(self, seeker: _Seeker) -> Refusal:
        if not self._touched and seeker.scene.among is None and self._within is None:
            return seeker.view.refusal()
        scene = Scene(
            self.snapshot, seeker.scene.shape, self._used(), self._ports(), seeker.scene.among,
            self._within,
        )  # fmt: skip
        return refusal(self._policy.filters, scene)

    def _used(self) -> IntArray:
        used = self.snapshot.used.copy()
        for i, spot in self._spots.items():
            used[i] = spot.used
        return used

    def _ports(self) -> dict[int, Ports]:
        taken = {i: spot.ports for i, spot in self._spots.items() if spot.ports}
        return self.snapshot.ports | taken


class _Seeker(ABC):
    """One way to find the best node for a shape as the trial stands, or NOWHERE."""

    __slots__ = ("_seen", "refusal", "scene", "view")

    def __init__(self, view: View, scene: Scene) -> None:
        self.view, self.scene = view, scene
        self.refusal: Refusal | None = None
        self._seen = 0

    @abstractmethod
    def is_stale(self, touched: int) -> bool:
        """Whether what was refused may be possible now."""

    @abstractmethod
    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The index of the best node."""

    def _news(self, touched: list[int]) -> Iterable[int]:
        news = dict.fromkeys(touched[self._seen :])
        self._seen = len(touched)
        return news


class _Surveyor(_Seeker):
    """Looks at all nodes for every pod."""

    __slots__ = ("_field",)

    def __init__(self, view: View, scene: Scene, field: Field) -> None:
        super().__init__(view, scene)
        self._field = field

    def is_stale(self, touched: int) -> bool:
        """Another pod may be just whom it must be near, or even out the spread."""
        return touched > self._seen

    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The index of the best node among all."""
        self._field.catch_up(self._news(touched), spots)
        return self._field.best()


class _Cursor(_Seeker):
    """Where one shape stands in its view's order, and the new keys of touched nodes."""

    __slots__ = ("_front", "_heap", "_keys", "_order")

    def __init__(self, view: View, scene: Scene, order: list[int]) -> None:
        super().__init__(view, scene)
        self._order = order
        self._front = 0
        self._heap: list[int] = []
        self._keys: dict[int, int] = {}

    def is_stale(self, touched: int) -> bool:
        """Load only grows during a trial: what was refused once is refused for good."""
        return False

    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The first of the order, or a touched node that is better still."""
        if self._seen < len(touched):
            self._catch_up(self._news(touched), spots)
        heap, keys = self._heap, self._keys
        while heap and heap[0] != keys[heap[0] & INDEX]:
            heappop(heap)
        order, front, end = self._order, self._front, len(self._order)
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


def _mask(nodes: IntArray, size: int) -> BoolArray:
    mask = np.zeros(size, bool)
    mask[nodes] = True
    return mask
