"""Census: which pods are on which nodes, as far as other pods ask about them.

Part of the snapshot, kept across cycles and moved along with every pod that comes, changes or goes.
Counts per node of a crowd that somebody once asked for stay up to date; terms that residents carry
against (or in favour of) newcomers are known from the start. The cache alone writes here.

    crowd(app=web)          [0, 2, 1, 0]       pods that match, per node
    carried[apart app=web]  {n1: 2}            pods that refuse to share a domain with app=web
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.peers import NOBODY, Peers, Term
from phalanx.scheduler.cluster.selection import Labels, Selection

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.shape import Shape

IntArray = NDArray[np.int64]

_CROWDS_LIMIT = 256


class Resident(Struct, frozen=True, order=True):
    """A pod on a node, as those see it who would be near it or want its room."""

    key: Key
    uid: str
    node: str
    labels: Labels
    shape: Shape
    leaving: bool = False
    #: The group that it belongs to, also while it is leaving.
    group: Key | None = None
    priority: int = 0
    #: Since when it runs, as the API says it; "" if it does not yet.
    started: str = ""

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self.key.namespace

    @property
    def peers(self) -> Peers:
        """What it holds towards other pods."""
        return self.shape.peers


class Crowd(NamedTuple):
    """Pods that are in all of some selections, those that are leaving included or not."""

    selections: tuple[Selection, ...]
    staying: bool = False

    def holds(self, pod: Resident, spaces: Mapping[str, Labels]) -> bool:
        """Whether a pod is one of them."""
        if self.staying and pod.leaving:
            return False
        return all(s.selects(pod.namespace, pod.labels, spaces) for s in self.selections)


class Carried(NamedTuple):
    """A term that residents hold towards newcomers: `apart`, `near`, or a weight to score with."""

    kind: str
    weight: int
    term: Term


def carried_by(peers: Peers) -> Iterator[Carried]:
    """What a pod with such wishes holds towards those who come after it."""
    yield from (Carried("apart", 0, term) for term in peers.apart)
    yield from (Carried("near", 0, term) for term in peers.near)
    yield from (Carried("like", weight, term) for weight, term in peers.likes)


class Census:
    """All residents, and who counts as what where."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Labels] = {}
        #: The selectors of the services of each namespace.
        self.services: dict[str, tuple[Labels, ...]] = {}
        self.carried: dict[Carried, dict[str, int]] = {}
        self._residents: dict[Key, Resident] = {}
        self._crowds: dict[Crowd, IntArray] = {}
        self._index: Mapping[str, int] = {}

    def renumber(self, index: Mapping[str, int]) -> None:
        """Nodes came or went: rows have other numbers."""
        self._index = index
        self._crowds.clear()

    def put_namespace(self, name: str, labels: Labels | None) -> None:
        """A namespace came, changed or went: selections by namespace may mean others now."""
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        self._crowds.clear()

    def put(self, key: Key, new: Resident | None) -> None:
        """A pod is on a node now, or on none any more."""
        old = self._residents.pop(key, None)
        if new is not None:
            self._residents[key] = new
        if old == new:
            return
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, +1)

    @property
    def bare(self) -> Census:
        """The same without those who were only promised a place."""
        return self

    def residents(self) -> Iterable[Resident]:
        """All pods on nodes."""
        return self._residents.values()

    def node_of(self, key: Key) -> str:
        """The node that a pod is on, bound or assumed; "" for none."""
        resident = self._residents.get(key)
        return resident.node if resident else ""

    def crowd(self, crowd: Crowd) -> IntArray:
        """How many of a crowd there are on each node. Not to be changed."""
        counts = self._crowds.pop(crowd, None)
        if counts is None:
            counts = self._taken(crowd)
        self._crowds[crowd] = counts
        if len(self._crowds) > _CROWDS_LIMIT:
            del self._crowds[next(iter(self._crowds))]
        return counts

    def carriers(self, carried: Carried) -> IntArray:
        """How many residents of each node carry a term."""
        counts = np.zeros(len(self._index), np.int64)
        for node, count in self.carried.get(carried, {}).items():
            if node in self._index:
                counts[self._index[node]] = count
        return counts

    def _count(self, pod: Resident, change: int) -> None:
        if pod.shape.peers is not NOBODY:
            for carried in carried_by(pod.peers):
                self._carry(carried, pod.node, change)
        if self._crowds and pod.node in self._index:
            i = self._index[pod.node]
            for crowd, counts in self._crowds.items():
                if crowd.holds(pod, self.namespaces):
                    counts[i] += change

    def _carry(self, carried: Carried, node: str, change: int) -> None:
        nodes = self.carried.setdefault(carried, {})
        nodes[node] = nodes.get(node, 0) + change
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del self.carried[carried]

    def _taken(self, crowd: Crowd) -> IntArray:
        counts = np.zeros(len(self._index), np.int64)
        for pod in self._residents.values():
            if pod.node in self._index and crowd.holds(pod, self.namespaces):
                counts[self._index[pod.node]] += 1
        return counts

    def check(self) -> Iterator[str]:
        """Sentences about counts that do not add up; none in a healthy census."""
        for crowd, counts in self._crowds.items():
            if (self._taken(crowd) != counts).any():
                yield f"the counts of {crowd} differ from its pods"
        carried: dict[Carried, dict[str, int]] = {}
        for pod in self._residents.values():
            for one in carried_by(pod.peers):
                nodes = carried.setdefault(one, {})
                nodes[pod.node] = nodes.get(pod.node, 0) + 1
        if carried != self.carried:
            yield "the terms that residents carry differ from what is counted"
