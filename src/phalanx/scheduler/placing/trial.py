"""Trial: placing pods on paper. What it places is seen by its own next steps and by nobody else.

The nodes it touches become other spots here; snapshot and views are only read. Members that are
alike are placed as a class, each class by a `Seeker`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray, Ports, Snapshot, mask_of
from phalanx.scheduler.cluster.spot import Spot
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.judging.among import Among
from phalanx.scheduler.judging.company import Company, Standing
from phalanx.scheduler.judging.filters import refusal, refused
from phalanx.scheduler.judging.scene import Scene
from phalanx.scheduler.placing.field import Field
from phalanx.scheduler.placing.ranking import Ranking
from phalanx.scheduler.placing.seeker import Cursor, Excuse, Overlay, Seeker, Surveyor, known
from phalanx.scheduler.placing.view import concerning, view_of
from phalanx.scheduler.policy import Policy

_MINDS_OTHERS = attrgetter("shape.minds_others")


class Trial:
    """A scratch overlay on a snapshot, for these members, on all nodes or on some."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        members: Collection[Member],
        nodes: IntArray | None = None,
    ) -> None:
        self.snapshot, self._policy, self._nodes = snapshot, policy, nodes
        self._overlay = Overlay(snapshot)
        self._seekers: dict[Shape | tuple[Shape, Standing], Seeker] = {}
        #: None where no member minds another pod or is minded by one.
        self._company = _company(snapshot, policy, members)

    @property
    def minds_others(self) -> bool:
        """Whether it matters where other pods are."""
        return self._company is not None

    def runs(self, members: Sequence[Member]) -> list[Sequence[Member]]:
        """Members in their order, those together that follow each other and are alike here."""
        shapes = [member.shape for member in members] if self._company is None else []
        if shapes and shapes.count(shapes[0]) == len(shapes):
            return [members]
        return [list(run) for _, run in groupby(members, self._sort)]

    def place(self, member: Member) -> int | Refusal:
        """Put a pod on its best node, or say why there is none."""
        for i in self.place_alike([member]):
            return i
        refusal = self.refused(member)
        assert refusal is not None
        return refusal

    def place_alike(self, members: Sequence[Member]) -> list[int]:
        """Put pods that are alike on their best nodes, one after the other.

        If there are fewer nodes than pods, `refused` says why the others have none.
        """
        seeker = self._seeker(members[0])
        if seeker.excuse and not seeker.is_stale:
            return []
        nodes = seeker.fill(len(members))
        if len(nodes) < len(members):
            seeker.excuse = self._excuse(seeker)
        return nodes

    def put(self, member: Member, i: int) -> bool:
        """Put a pod on this very node, if all filters allow that."""
        seeker = self._seeker(member)
        spots = self._overlay.spots
        scene = self._scene(member.shape, seeker.among, self._used(spots), self._ports(spots))
        if not scene.inside[i] or any(refused(row, scene)[i] for row in self._policy.filters):
            return False
        seeker.put(i)
        return True

    def refused(self, member: Member) -> Refusal | None:
        """The refusal that an equal pod has already met here, if any."""
        excuse = self.excuse(member)
        return excuse() if excuse else None

    def excuse(self, member: Member) -> Excuse | None:
        """The same for those who may never want to know it: finding the words takes a while."""
        seeker = self._seekers.get(self._sort(member))
        return seeker.excuse if seeker else None

    def is_plain(self, member: Member) -> bool:
        """Whether where a pod goes depends on nothing but the load of nodes."""
        return isinstance(self._seeker(member), Cursor)

    def _sort(self, member: Member) -> Shape | tuple[Shape, Standing]:
        """What members have in common that are interchangeable here."""
        company = self._company
        return member.shape if company is None else (member.shape, company.standing(member))

    def _seeker(self, member: Member) -> Seeker:
        sort = member.shape if self._company is None else self._sort(member)
        seeker = self._seekers.get(sort)
        if seeker is None:
            seeker = self._seekers[sort] = self._new_seeker(member)
        return seeker

    def _new_seeker(self, member: Member) -> Seeker:
        company, overlay, nodes = self._company, self._overlay, self._nodes
        view = view_of(self.snapshot, self._policy, member.shape)
        settle = None if company is None else partial(company.settle, company.standing(member))
        among = None if company is None else self._among(company, member)
        if among is None and not view.comparisons:
            ranking = view.ranking if nodes is None else Ranking(view.ranking.keys[nodes])
            return Cursor(view, overlay, settle, ranking)
        scene = self._scene(member.shape, among, self.snapshot.used, self.snapshot.ports)
        field = Field(view, scene, concerning(self._policy, scene))
        return Surveyor(view, overlay, settle, among, field)

    def _among(self, company: Company, member: Member) -> Among | None:
        policy, shape, standing = self._policy, member.shape, company.standing(member)
        if not (standing.peers or company.is_minded(standing)):
            return None
        return Among(
            self.snapshot, company, standing, shape.wishes,
            explicit=bool(shape.peers.spreads) or policy.defaults.strict,
            near_weight=policy.near_weight, heeds_likes=policy.heeds_likes,
        )  # fmt: skip

    def _excuse(self, seeker: Seeker) -> Excuse:
        if seeker.among is not None:
            # Where others are will have changed when it is asked for.
            return known(self._refusal(seeker, self._overlay.spots))
        return cache(partial(self._refusal, seeker, dict(self._overlay.spots)))

    def _refusal(self, seeker: Seeker, spots: Mapping[int, Spot]) -> Refusal:
        if not spots and seeker.among is None and self._nodes is None:
            return seeker.view.refusal()
        shape, used, ports = seeker.view.shape, self._used(spots), self._ports(spots)
        return refusal(self._policy.filters, self._scene(shape, seeker.among, used, ports))

    def _scene(
        self, shape: Shape, among: Among | None, used: IntArray, ports: Mapping[int, Ports]
    ) -> Scene:
        within = None if self._nodes is None else mask_of(self._nodes, len(self.snapshot))
        return Scene(self.snapshot, shape, used, ports, among, within)

    def _used(self, spots: Mapping[int, Spot]) -> IntArray:
        used = self.snapshot.used.copy()
        for i, spot in spots.items():
            used[i] = spot.used
        return used

    def _ports(self, spots: Mapping[int, Spot]) -> dict[int, Ports]:
        taken = {i: spot.ports for i, spot in spots.items() if spot.ports}
        return self.snapshot.ports | taken


def _company(snapshot: Snapshot, policy: Policy, members: Collection[Member]) -> Company | None:
    """The others, if there are any that matter; asked of every trial, and mostly there are none."""
    census, spreads = snapshot.census, policy.defaults.spreads
    if census.carried or (census.services and spreads) or any(map(_MINDS_OTHERS, members)):
        return Company(snapshot, members, spreads) or None
    return None
