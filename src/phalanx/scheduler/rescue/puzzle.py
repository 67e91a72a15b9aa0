"""Puzzle: where the members of one group could go, as plain numbers. Made when greedy has failed.

Members that no filter can tell apart are one kind; only nodes that some kind may use are left, and
all that filters say is turned into arrays: what is free, who may be where as the cluster stands,
and what depends on where the other members are. `board.py` plays it, `program.py` writes it down
for a solver. Scores have no say here.

    kinds   [3 x cpu 2, 1 x cpu 4 near the others]
    free    [[4], [5]]                  per node
    allowed [[T, T], [F, T]]            per kind and node
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.peers import Peers
from phalanx.scheduler.cluster.selection import Selection
from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.entity import Member
from phalanx.scheduler.judging.among import Among
from phalanx.scheduler.judging.company import Company, Standing
from phalanx.scheduler.judging.evenness import Evenness
from phalanx.scheduler.judging.filters import Depends, refused
from phalanx.scheduler.judging.scene import opening
from phalanx.scheduler.placing.attempt import Ground

_FIT, _PORTS, _SPREAD, _AFFINITY = (
    "NodeResourcesFit", "NodePorts", "PodTopologySpread", "InterPodAffinity",
)  # fmt: skip
_MODELLED = (_FIT, _PORTS, _SPREAD, _AFFINITY)


class Kind(NamedTuple):
    """Members that can stand in for one another."""

    members: tuple[Member, ...]
    standing: Standing

    @property
    def shape(self) -> Shape:
        """The shape of one of them: preferences apart, that of all."""
        return self.members[0].shape

    @property
    def peers(self) -> Peers:
        """What they ask of others."""
        return self.standing.peers


class Layer(NamedTuple):
    """The domains of a key: the number of the one that each node of the puzzle is in, or -1."""

    ids: IntArray
    size: int

    @property
    def labelled(self) -> BoolArray:
        """The nodes that are in one."""
        return self.ids >= 0


class Apart(NamedTuple):
    """Pairs of kinds (of a kind with itself, too) that may not share a domain."""

    layer: Layer
    pairs: tuple[tuple[int, int], ...]


class Reach(NamedTuple):
    """A key by which to be near, and how many of the crowd are in each domain from the start."""

    layer: Layer
    residents: IntArray
    total: int


class Near(NamedTuple):
    """Kinds that must share a domain, of every key, with somebody of a crowd."""

    kinds: tuple[int, ...]
    reaches: tuple[Reach, ...]
    #: The kinds that are in the crowd.
    crowd: tuple[int, ...]
    #: Whether these kinds are, so that the first of all needs nobody.
    itself: bool

    @property
    def may_be_first(self) -> bool:
        """Whether one of them may be where nobody of the crowd is yet."""
        return self.itself and not any(reach.total for reach in self.reaches)


class Even(NamedTuple):
    """Kinds that may only go where the crowd does not get too uneven over the domains of a key."""

    kinds: tuple[int, ...]
    layer: Layer
    #: How many of the crowd are in each domain from the start, and which domains are compared.
    residents: IntArray
    present: IntArray
    #: The nodes whose pods count.
    counted: BoolArray
    crowd: tuple[int, ...]
    itself: bool
    max_skew: int
    #: Whether there are so many domains that the emptiest counts; else zero is compared with.
    enough: bool


@dataclass(frozen=True, eq=False, slots=True)
class Puzzle:
    """So many of these kinds on these nodes (by their numbers in the snapshot)."""

    kinds: tuple[Kind, ...]
    needed: int
    nodes: IntArray
    #: Kinds by resources, and nodes by resources.
    asks: IntArray
    free: IntArray
    #: Kinds by nodes.
    allowed: BoolArray
    apart: tuple[Apart, ...] = ()
    near: tuple[Near, ...] = ()
    even: tuple[Even, ...] = ()

    @property
    def counts(self) -> list[int]:
        """How many there are of each kind."""
        return [len(kind.members) for kind in self.kinds]

    @property
    def is_ordered(self) -> bool:
        """Whether it matters who is placed first."""
        return bool(self.near or self.even)

    @property
    def picky(self) -> list[int]:
        """The kinds that ask something of the order, once for everything that they ask."""
        near = [kind for row in self.near for kind in row.kinds]
        return near + [kind for row in self.even for kind in row.kinds]

    @property
    def is_simple(self) -> bool:
        """Whether placing one after the other finds a way if there is one."""
        return len(self.kinds) == 1 and not (self.is_ordered or self.apart)


def pose(ground: Ground, members: Sequence[Member], needed: int) -> Puzzle | str:
    """The puzzle of placing so many of some members, or why there is none, in words."""
    for row in ground.policy.filters:
        if row.depends is not Depends.NODES and row.name not in _MODELLED:
            return f"an exact search cannot heed filter {row.name}"
    return _Maker(ground, members).puzzle(needed)


class _Maker:
    """Gathers what the filters of a policy say about members."""

    def __init__(self, ground: Ground, members: Sequence[Member]) -> None:
        self._snapshot, self._policy, self._within = ground.snapshot, ground.policy, ground.nodes
        snapshot, policy = ground.snapshot, ground.policy
        self._asked = {row.name for row in policy.filters}
        self._company = Company(snapshot, members, policy.defaults.spreads)
        self._kinds = tuple(self._gathered(members))
        self._among = [self._surroundings(kind) for kind in self._kinds]
        self._nodes: IntArray = np.array([], np.int64)

    def puzzle(self, needed: int) -> Puzzle:
        inside = np.ones(len(self._snapshot), bool)
        if self._within is not None:
            inside[:] = False
            inside[self._within] = True
        allowed = np.array([self._allowed(k) & inside for k in range(len(self._kinds))])
        self._nodes = np.flatnonzero(allowed.any(axis=0))
        asks, free = self._amounts()
        return Puzzle(
            self._kinds, needed, self._nodes, asks, free, allowed[:, self._nodes],
            apart=tuple(self._apart()), near=tuple(self._near()), even=tuple(self._even()),
        )  # fmt: skip

    def _gathered(self, members: Sequence[Member]) -> Iterator[Kind]:
        found: dict[tuple[object, ...], list[Member]] = {}
        for member in members:
            shape, standing = member.shape, self._company.standing(member)
            peers = standing.peers
            hard = tuple(spread for spread in peers.spreads if spread.is_hard)
            wishes = shape.wishes._replace(preferred=(), images=())
            key = (
                shape.requests, shape.ports, wishes, standing.bits, peers.near, peers.apart, hard
            )  # fmt: skip
            found.setdefault(key, []).append(member)
        for alike in found.values():
            yield Kind(tuple(alike), self._company.standing(alike[0]))

    def _surroundings(self, kind: Kind) -> Among | None:
        if not self._company:
            return None
        return Among(
            self._snapshot, self._company, kind.standing, kind.shape.wishes,
            explicit=False, near_weight=0, heeds_likes=False,
        )  # fmt: skip

    def _allowed(self, number: int) -> BoolArray:
        """Where one of a kind could be if none of the others were placed, near whom apart."""
        kind, among, snapshot = self._kinds[number], self._among[number], self._snapshot
        scene, mask = opening(snapshot, kind.shape), np.ones(len(snapshot), bool)
        for row in self._policy.filters:
            if row.depends is not Depends.PEERS:
                mask &= ~refused(row, scene)
        if among is None:
            return mask
        if _AFFINITY in self._asked:
            for _, heads in (*among.apart, *among.shunned):
                mask &= heads.here() == 0
            for heads in among.near[0] if among.near else ():
                mask &= heads.domains.labelled
        if _SPREAD in self._asked:
            for one in among.even:
                mask &= one.headcount.domains.labelled
        return mask

    def _amounts(self) -> tuple[IntArray, IntArray]:
        """What is asked and what is free of every resource that may run out."""
        snapshot = self._snapshot
        asks = np.zeros((len(self._kinds), len(snapshot.columns)), np.int64)
        for number, kind in enumerate(self._kinds):
            for column, amount in kind.shape.ask(snapshot.columns).amounts:
                asks[number, column] = amount
        counts = np.array([len(kind.members) for kind in self._kinds])
        free = snapshot.room[self._nodes] - snapshot.used[self._nodes]
        free = np.clip(free, 0, counts @ asks)
        scarce = (free < counts @ asks).any(axis=0)
        if _FIT not in self._asked:
            scarce[:] = False
        return asks[:, scarce], free[:, scarce]

    def _layer(self, key: str) -> Layer:
        domains = self._snapshot.domains(key)
        return Layer(domains.ids[self._nodes], domains.size)

    def _apart(self) -> Iterator[Apart]:
        if _PORTS in self._asked and (clashing := tuple(self._clashing())):
            yield Apart(Layer(np.arange(len(self._nodes)), len(self._nodes)), clashing)
        pairs: dict[str, dict[tuple[int, int], None]] = {}
        for one, kind in enumerate(self._kinds if _AFFINITY in self._asked else ()):
            for term in kind.peers.apart:
                for other in self._crowd([term.selection]):
                    pairs.setdefault(term.key, {})[min(one, other), max(one, other)] = None
        for key, found in pairs.items():
            yield Apart(self._layer(key), tuple(sorted(found)))

    def _clashing(self) -> Iterator[tuple[int, int]]:
        for one, kind in enumerate(self._kinds):
            for other, rival in enumerate(self._kinds[one:], one):
                if any(p.clashes(q) for p in kind.shape.ports for q in rival.shape.ports):
                    yield one, other

    def _crowd(self, selections: Sequence[Selection]) -> tuple[int, ...]:
        holds = self._company.holds
        return tuple(n for n, kind in enumerate(self._kinds) if holds(kind.standing, selections))

    def _near(self) -> Iterator[Near]:
        found: dict[tuple[object, ...], list[int]] = {}
        for number, (kind, among) in enumerate(zip(self._kinds, self._among, strict=True)):
            if among is not None and among.near and _AFFINITY in self._asked:
                found.setdefault((kind.peers.near, among.near_itself), []).append(number)
        for alike in found.values():
            terms, among = self._kinds[alike[0]].peers.near, self._among[alike[0]]
            assert among is not None
            crowd = self._crowd([term.selection for term in terms])
            counted = {tuple(heads.counts.tobytes() for heads in near): near for near in among.near}
            for near in counted.values():
                reaches = [
                    Reach(self._layer(term.key), heads.counts, heads.total)
                    for term, heads in zip(terms, near, strict=True)
                ]
                yield Near(tuple(alike), tuple(reaches), crowd, among.near_itself)

    def _even(self) -> Iterator[Even]:
        found: dict[tuple[object, ...], tuple[Evenness, dict[int, None]]] = {}
        for number, among in enumerate(self._among):
            for one in among.even if among is not None and _SPREAD in self._asked else ():
                heads = one.headcount
                counts, counted = heads.counts.tobytes(), heads.counted.tobytes()
                alike = found.setdefault((one.spread, one.itself, counts, counted), (one, {}))
                alike[1][number] = None
        for one, kinds in found.values():
            spread, heads = one.spread, one.headcount
            yield Even(
                tuple(kinds), self._layer(spread.key), heads.counts, heads.present,
                heads.counted[self._nodes], self._crowd([spread.selection]), one.itself,
                spread.max_skew, 0 < len(heads.present) >= spread.min_domains,
            )  # fmt: skip
