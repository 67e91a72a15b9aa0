"""Company: the other pods, as far as the members of one trial mind them or are minded by them.

Made once per trial from the census and the members' own wishes; `settle` tells it of every
placement, so that the next member sees it. A trial whose members concern nobody and whom nobody
concerns has no company, and takes the fast path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.census import Carried, Crowd, carried_by
from phalanx.scheduler.cluster.peers import Peers, Spread, default_spreads
from phalanx.scheduler.cluster.selection import Selection
from phalanx.scheduler.cluster.snapshot import BoolArray, Domains, IntArray, Snapshot
from phalanx.scheduler.entity import Member
from phalanx.scheduler.judging.headcount import Headcount


class Standing(NamedTuple):
    """How a member stands to others: what it asks of them, and which crowds it is in, as bits."""

    bits: int
    peers: Peers


class _Watched(NamedTuple):
    """A headcount and whom it counts: pods in all crowds of these bits, or carriers of a term."""

    headcount: Headcount
    bits: int
    carried: Carried | None


class Company:
    """The crowds and terms in play, and what the trial has placed so far."""

    def __init__(
        self, snapshot: Snapshot, members: Iterable[Member], defaults: tuple[Spread, ...]
    ) -> None:
        self._snapshot, self._census = snapshot, snapshot.census
        self._defaults = defaults if self._census.services else ()
        self._settled: list[tuple[Standing, int]] = []
        self._watched: list[_Watched] = []
        self._selections: dict[Selection, int] = {}
        self._terms: dict[Carried, None] = dict.fromkeys(self._census.carried)
        self._standings: dict[tuple[object, ...], Standing] = {}
        self._gather(members)
        keys = {key for selection in self._selections for key in selection.keys}
        self._keys = sorted(keys | self._service_keys())

    def __bool__(self) -> bool:
        return bool(self._selections)

    @property
    def size(self) -> int:
        """How many have been placed; what was found out before may be wrong after another."""
        return len(self._settled)

    def standing(self, member: Member) -> Standing:
        """How a member stands to others; the members of a gang mostly stand alike."""
        meta, labels = member.pod.metadata, member.pod.metadata.labels
        memo = (member.shape.peers, meta.namespace, *map(labels.get, self._keys))
        found = self._standings.get(memo)
        if found is None:
            bits = 0
            for selection, bit in self._selections.items():
                if selection.selects(meta.namespace, labels, self._census.namespaces):
                    bits |= bit
            found = self._standings[memo] = Standing(bits, self._peers(member))
        return found

    def settle(self, standing: Standing, node: int) -> None:
        """A member is on a node from now on."""
        self._settled.append((standing, node))
        for watched in self._watched:
            if _counts(watched, standing):
                watched.headcount.add(node)

    def crowd(self, crowd: Crowd, domains: Domains, eligible: BoolArray | None = None) -> Headcount:
        """How many of a crowd there are per domain, from now on to the end of the trial."""
        return self._watch(domains, self._census.crowd(crowd), self._bits(crowd), None, eligible)

    def crowds(
        self, crowd: Crowd, domains: Domains, eligible: BoolArray | None = None
    ) -> list[Headcount]:
        """The same, and also without those who were only promised a place, if some of them were."""
        found, census = [self.crowd(crowd, domains, eligible)], self._census
        if (bare := census.bare) is not census:
            counts = bare.crowd(crowd)
            if not np.array_equal(counts, census.crowd(crowd)):
                found.append(self._watch(domains, counts, self._bits(crowd), None, eligible))
        return found

    def holding(self, standing: Standing, kind: str) -> Iterator[tuple[Carried, Headcount]]:
        """The terms that others hold towards a pod of that standing, with where they are."""
        for carried in self._terms:
            if carried.kind == kind and standing.bits & self._selections[carried.term.selection]:
                domains = self._snapshot.domains(carried.term.key)
                counts = self._census.carriers(carried)
                yield carried, self._watch(domains, counts, 0, carried, None)

    def holds(self, standing: Standing, selections: Iterable[Selection]) -> bool:
        """Whether a pod of that standing is in all of these."""
        return all(standing.bits & self._selections[selection] for selection in selections)

    def is_minded(self, standing: Standing) -> bool:
        """Whether somebody holds a term towards a pod of that standing."""
        return any(standing.bits & self._selections[one.term.selection] for one in self._terms)

    def _gather(self, members: Iterable[Member]) -> None:
        """Number every crowd that somebody mentions."""
        seen: dict[Peers, None] = {}
        for member in members:
            if member.shape.peers or self._defaults:
                seen[self._peers(member)] = None
        for peers in seen:
            self._terms.update(dict.fromkeys(carried_by(peers)))
        mentioned = [selection for peers in seen for selection in peers.selections]
        mentioned += [carried.term.selection for carried in self._terms]
        for selection in mentioned:
            self._selections.setdefault(selection, 1 << len(self._selections))

    def _peers(self, member: Member) -> Peers:
        peers = member.shape.peers
        if peers.spreads or not self._defaults:
            return peers
        meta = member.pod.metadata
        services = self._census.services.get(meta.namespace, ())
        spreads = default_spreads(self._defaults, meta.namespace, meta.labels, services)
        return peers._replace(spreads=spreads) if spreads else peers

    def _service_keys(self) -> set[str]:
        if not self._defaults:
            return set()
        every = self._census.services.values()
        return {key for services in every for wanted in services for key in wanted}

    def _bits(self, crowd: Crowd) -> int:
        bits = 0
        for selection in crowd.selections:
            bits |= self._selections[selection]
        return bits

    def _watch(
        self,
        domains: Domains,
        per_node: IntArray,
        bits: int,
        carried: Carried | None,
        eligible: BoolArray | None,
    ) -> Headcount:
        watched = _Watched(Headcount(domains, per_node, eligible), bits, carried)
        for standing, node in self._settled:
            if _counts(watched, standing):
                watched.headcount.add(node)
        self._watched.append(watched)
        return watched.headcount


def _counts(watched: _Watched, standing: Standing) -> bool:
    if watched.carried is not None:
        return watched.carried in carried_by(standing.peers)
    return standing.bits & watched.bits == watched.bits


def every_node(snapshot: Snapshot) -> Domains:
    """Each node a domain of its own, whatever its labels."""
    return Domains(np.arange(len(snapshot)), tuple(snapshot.names))
