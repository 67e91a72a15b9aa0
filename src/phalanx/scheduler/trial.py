"""Trial: placing pods on paper. What it places is seen by its own next steps and by nobody else.

The nodes it touches become other spots here; snapshot and views are only read. A shape that neither
minds other pods nor is minded by them has a cursor that merges two sorted sequences: the view's
ranking, from which touched nodes are skipped, and a heap of the touched ones with their new keys.

    ranking [k4, k0, k7], nothing touched    best is 4
    node 4 filled a little, its key is K4    heap [K4], ranking from k0: best is min(K4, k0)

Any other shape has a `Field`, which looks at all nodes for every pod.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

import numpy as np

from phalanx.scheduler.among import Among
from phalanx.scheduler.company import Company, Standing
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.field import Field
from phalanx.scheduler.filters import refusal, refused
from phalanx.scheduler.peers import NOBODY
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.ranking import NOWHERE, Ranking
from phalanx.scheduler.scene import Scene
from phalanx.scheduler.shape import Shape
from phalanx.scheduler.snapshot import BoolArray, IntArray, Ports, Snapshot
from phalanx.scheduler.spot import Spot
from phalanx.scheduler.view import INDEX, View, concerning, view_of


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
        self._spots: dict[int, Spot] = {}
        #: The touched nodes in order; each seeker repeats what it has not seen of it.
        self._touched: list[int] = []
        self._seekers: dict[Shape | tuple[Shape, Standing], _Seeker] = {}
        #: None where no member minds another pod or is minded by one.
        self._company = _company(snapshot, policy, members)

    def place(self, member: Member) -> int | Refusal:
        """Put a pod on its best node, or say why there is none."""
        seeker = self._seeker(member)
        if seeker.refusal and not seeker.is_stale(len(self._touched)):
            return seeker.refusal
        i = seeker.best(self._touched, self._spots)
        if i == NOWHERE:
            seeker.refusal = self._refusal(seeker)
            return seeker.refusal
        self._load(member, seeker.view, i)
        return i

    def put(self, member: Member, i: int) -> bool:
        """Put a pod on this very node, if all filters allow that."""
        seeker = self._seeker(member)
        scene = self._scene(member.shape, seeker.among, self._used(), self._ports())
        if not scene.inside[i] or any(refused(row, scene)[i] for row in self._policy.filters):
            return False
        self._load(member, seeker.view, i)
        return True

    def _load(self, member: Member, view: View, i: int) -> None:
        spots = self._spots
        spots[i] = view.after(spots.get(i) or self.snapshot.spot(i))
        self._touched.append(i)
        if self._company is not None:
            self._company.settle(self._company.standing(member), i)

    def refused(self, member: Member) -> Refusal | None:
        """The refusal that an equal pod has already met here, if any."""
        seeker = self._seekers.get(self._sort(member))
        return seeker.refusal if seeker else None

    def is_plain(self, member: Member) -> bool:
        """Whether where a pod goes depends on nothing but the load of nodes."""
        return isinstance(self._seeker(member), _Cursor)

    def _sort(self, member: Member) -> Shape | tuple[Shape, Standing]:
        """What members have in common that are interchangeable here."""
        company = self._company
        return member.shape if company is None else (member.shape, company.standing(member))

    def _seeker(self, member: Member) -> _Seeker:
        sort = member.shape if self._company is None else self._sort(member)
        seeker = self._seekers.get(sort)
        if seeker is None:
            seeker = self._seekers[sort] = self._new_seeker(member)
        return seeker

    def _new_seeker(self, member: Member) -> _Seeker:
        view = view_of(self.snapshot, self._policy, member.shape)
        among = None if self._company is None else self._among(self._company, member)
        if among is None and not view.comparisons:
            nodes, ranking = self._nodes, view.ranking
            return _Cursor(view, ranking if nodes is None else Ranking(ranking.keys[nodes]))
        scene = self._scene(member.shape, among, self.snapshot.used, self.snapshot.ports)
        return _Surveyor(view, among, Field(view, scene, concerning(self._policy, scene)))

    def _among(self, company: Company, member: Member) -> Among | None:
        policy, shape, standing = self._policy, member.shape, company.standing(member)
        if not (standing.peers or company.is_minded(standing)):
            return None
        return Among(
            self.snapshot, company, standing, shape.wishes,
            explicit=bool(shape.peers.spreads) or policy.defaults.strict,
            near_weight=policy.near_weight, heeds_likes=policy.heeds_likes,
        )  # fmt: skip

    def _refusal(self, seeker: _Seeker) -> Refusal:
        if not self._touched and seeker.among is None and self._nodes is None:
            return seeker.view.refusal()
        scene = self._scene(seeker.view.shape, seeker.among, self._used(), self._ports())
        return refusal(self._policy.filters, scene)

    def _scene(
        self, shape: Shape, among: Among | None, used: IntArray, ports: Mapping[int, Ports]
    ) -> Scene:
        within = None if self._nodes is None else _mask(self._nodes, len(self.snapshot))
        return Scene(self.snapshot, shape, used, ports, among, within)

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

    __slots__ = ("_seen", "among", "refusal", "view")

    def __init__(self, view: View, among: Among | None) -> None:
        self.view, self.among = view, among
        self.refusal: Refusal | None = None
        self._seen = 0

    @abstractmethod
    def is_stale(self, touched: int) -> bool:
        """Whether what was refused may be possible now."""

    @abstractmethod
    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The index of the best node."""


class _Surveyor(_Seeker):
    """Looks at all nodes for every pod."""

    __slots__ = ("_field",)

    def __init__(self, view: View, among: Among | None, field: Field) -> None:
        super().__init__(view, among)
        self._field = field

    def is_stale(self, touched: int) -> bool:
        """Another pod may be just whom it must be near, or even out the spread."""
        return touched > self._seen

    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The index of the best node among all."""
        self._field.catch_up(touched[self._seen :], spots)
        self._seen = len(touched)
        return self._field.best()


class _Cursor(_Seeker):
    """Where one shape stands in a ranking, and the new keys of touched nodes."""

    __slots__ = ("_front", "_heap", "_keys", "_ranking")

    def __init__(self, view: View, ranking: Ranking) -> None:
        super().__init__(view, None)
        self._ranking, self._front = ranking, 0
        self._heap: list[int] = []
        self._keys: dict[int, int] = {}

    def is_stale(self, touched: int) -> bool:
        """Load only grows during a trial: what was refused once is refused for good."""
        return False

    def best(self, touched: list[int], spots: dict[int, Spot]) -> int:
        """The first of the ranking, or a touched node that is better still."""
        if self._seen < len(touched):
            self._catch_up(touched, spots)
        heap, key = self._heap, self._untouched(spots)
        if heap and heap[0] < key:
            return heap[0] & INDEX
        return key & INDEX if key != NOWHERE else NOWHERE

    def _catch_up(self, touched: list[int], spots: dict[int, Spot]) -> None:
        view, keys, heap = self.view, self._keys, self._heap
        for i in touched[self._seen :]:
            keys[i] = key = view.key(i, spots[i])
            if key != NOWHERE:
                heappush(heap, key)
        self._seen = len(touched)
        while heap and heap[0] != keys[heap[0] & INDEX]:
            heappop(heap)

    def _untouched(self, spots: dict[int, Spot]) -> int:
        """The best key of the nodes that nothing was put on; all before it were touched."""
        best = self._ranking.best
        while self._front < len(best) or self._ranking.extend():
            key = best[self._front]
            if key & INDEX not in spots:
                return key
            self._front += 1
        return NOWHERE


def _company(snapshot: Snapshot, policy: Policy, members: Iterable[Member]) -> Company | None:
    """The others, if there are any that matter; asked of every trial, and mostly there are none."""
    census, spreads = snapshot.census, policy.defaults.spreads
    if not census.carried and not (census.services and spreads):
        members = [one for one in members if one.shape.peers is not NOBODY]
        if not members:
            return None
    return Company(snapshot, members, spreads) or None


def _mask(nodes: IntArray, size: int) -> BoolArray:
    mask = np.zeros(size, bool)
    mask[nodes] = True
    return mask
