"""Headcount: how many of some pods there are in each domain, kept up as a trial places more.

key rack, ids [0, 0, 1, -1]      nodes 0 and 1 share a rack, node 3 has none
counts [3, 1, 0]                 three pods in rack 0; the last place stands for "no rack"
here() [3, 3, 1, 0]              the same seen from each node

Company: the other pods, as far as the members of one trial mind them or are minded by them.

Made once per trial from the census and the members' own wishes; `settle` tells it of every
placement, so that the next member sees it. A trial whose members concern nobody and whom nobody
concerns has no company, and takes the fast path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.peer_constraints import (
    PeerConstraints,
    PodSelector,
    TopologySpread,
    default_spreads,
)
from phalanx.scheduler.cluster.pod_index import ExistingPodTerm, PodSelection, existing_pod_terms
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, TopologyDomains
from phalanx.scheduler.entity import Member


class DomainCounts:
    """Pods per domain, counted on all nodes or on eligible ones."""

    __slots__ = ("_counted", "_present_domains", "added_domains", "counts", "domains", "total")

    def __init__(
        self, domains: TopologyDomains, per_node: IntArray, eligible: BoolArray | None = None
    ) -> None:
        self.domains = domains
        self._counted = domains.ids if eligible is None else np.where(eligible, domains.ids, -1)
        inside = self._counted >= 0
        weights = per_node[inside]
        # One more than there are domains: the index -1 of nodes without one leads to a zero.
        counts = np.bincount(self._counted[inside], weights, domains.size + 1)
        self.counts: IntArray = counts.astype(np.int64)
        self.total = int(weights.sum())
        #: The domains to which pods were added, in order.
        self.added_domains: list[int] = []
        self._present_domains: IntArray | None = None

    @property
    def present_domains(self) -> IntArray:
        """The domains that have a counted node; only spreading asks for them."""
        if self._present_domains is None:
            self._present_domains = np.unique(self._counted[self._counted >= 0])
        return self._present_domains

    @property
    def counted_nodes(self) -> BoolArray:
        """The nodes whose pods count."""
        return self._counted >= 0

    def add(self, node: int) -> None:
        """One more on a node."""
        domain = self._counted.item(node)
        if domain >= 0:
            self.counts[domain] += 1
            self.total += 1
            self.added_domains.append(domain)

    def counts_per_node(self) -> IntArray:
        """How many there are in the domain of each node."""
        return self.counts[self.domains.ids]


class PeerProfile(NamedTuple):
    """How a member stands to others: what it asks of them, and which crowds it is in, as bits."""

    selector_bits: int
    peer_constraints: PeerConstraints


class _TrackedCounts(NamedTuple):
    """A headcount and whom it counts: pods in all crowds of these bits, or carriers of a term."""

    domain_counts: DomainCounts
    selector_bits: int
    existing_term: ExistingPodTerm | None


class PeerCounts:
    """The crowds and terms in play, and what the trial has placed so far."""

    def __init__(
        self, snapshot: Snapshot, members: Iterable[Member], defaults: tuple[TopologySpread, ...]
    ) -> None:
        self._snapshot, self._pod_index = snapshot, snapshot.pod_index
        self._defaults = defaults if self._pod_index.services else ()
        self._assigned: list[tuple[PeerProfile, int]] = []
        self._tracked: list[_TrackedCounts] = []
        self._selector_bits: dict[PodSelector, int] = {}
        self._existing_terms: dict[ExistingPodTerm, None] = dict.fromkeys(
            self._pod_index.existing_terms
        )
        self._profiles: dict[tuple[object, ...], PeerProfile] = {}
        self._collect_selectors(members)
        keys = {key for selection in self._selector_bits for key in selection.label_keys}
        self._label_keys = sorted(keys | self._service_label_keys())

    def __bool__(self) -> bool:
        return bool(self._selector_bits)

    @property
    def assigned_count(self) -> int:
        """How many have been placed; what was found out before may be wrong after another."""
        return len(self._assigned)

    def profile_of(self, member: Member) -> PeerProfile:
        """How a member stands to others; the members of a gang mostly stand alike."""
        meta, labels = member.pod.metadata, member.pod.metadata.labels
        memo = (member.shape.peer_constraints, meta.namespace, *map(labels.get, self._label_keys))
        found = self._profiles.get(memo)
        if found is None:
            bits = 0
            for selection, bit in self._selector_bits.items():
                if selection.matches(meta.namespace, labels, self._pod_index.namespaces):
                    bits |= bit
            found = self._profiles[memo] = PeerProfile(bits, self._constraints_of(member))
        return found

    def add_pod(self, profile: PeerProfile, node: int) -> None:
        """A member is on a node from now on."""
        self._assigned.append((profile, node))
        for watched in self._tracked:
            if _is_counted(watched, profile):
                watched.domain_counts.add(node)

    def count_pods(
        self, selection: PodSelection, domains: TopologyDomains, eligible: BoolArray | None = None
    ) -> DomainCounts:
        """How many of a crowd there are per domain, from now on to the end of the trial."""
        return self._track(
            domains,
            self._pod_index.count_per_node(selection),
            self._bits_of(selection),
            None,
            eligible,
        )

    def count_pods_with_and_without_nominated(
        self, selection: PodSelection, domains: TopologyDomains, eligible: BoolArray | None = None
    ) -> list[DomainCounts]:
        """The same, and also without those who were only promised a place, if some of them were."""
        found, census = [self.count_pods(selection, domains, eligible)], self._pod_index
        if (bare := census.without_nominated) is not census:
            counts = bare.count_per_node(selection)
            if not np.array_equal(counts, census.count_per_node(selection)):
                found.append(self._track(domains, counts, self._bits_of(selection), None, eligible))
        return found

    def existing_terms_towards(
        self, profile: PeerProfile, kind: str
    ) -> Iterator[tuple[ExistingPodTerm, DomainCounts]]:
        """The terms that others hold towards a pod of that standing, with where they are."""
        for carried in self._existing_terms:
            if (
                carried.kind == kind
                and profile.selector_bits & self._selector_bits[carried.term.selector]
            ):
                domains = self._snapshot.domains(carried.term.topology_key)
                counts = self._pod_index.count_term_holders(carried)
                yield carried, self._track(domains, counts, 0, carried, None)

    def matches_selectors(self, profile: PeerProfile, selections: Iterable[PodSelector]) -> bool:
        """Whether a pod of that standing is in all of these."""
        return all(
            profile.selector_bits & self._selector_bits[selection] for selection in selections
        )

    def has_existing_terms(self, profile: PeerProfile) -> bool:
        """Whether somebody holds a term towards a pod of that standing."""
        return any(
            profile.selector_bits & self._selector_bits[one.term.selector]
            for one in self._existing_terms
        )

    def _collect_selectors(self, members: Iterable[Member]) -> None:
        """Number every crowd that somebody mentions."""
        seen: dict[PeerConstraints, None] = {}
        for member in members:
            if member.shape.peer_constraints or self._defaults:
                seen[self._constraints_of(member)] = None
        for peers in seen:
            self._existing_terms.update(dict.fromkeys(existing_pod_terms(peers)))
        mentioned = [selection for peers in seen for selection in peers.selectors]
        mentioned += [carried.term.selector for carried in self._existing_terms]
        for selection in mentioned:
            self._selector_bits.setdefault(selection, 1 << len(self._selector_bits))

    def _constraints_of(self, member: Member) -> PeerConstraints:
        peers = member.shape.peer_constraints
        if peers.spreads or not self._defaults:
            return peers
        meta = member.pod.metadata
        services = self._pod_index.services.get(meta.namespace, ())
        spreads = default_spreads(self._defaults, meta.namespace, meta.labels, services)
        return peers._replace(spreads=spreads) if spreads else peers

    def _service_label_keys(self) -> set[str]:
        if not self._defaults:
            return set()
        every = self._pod_index.services.values()
        return {key for services in every for wanted in services for key in wanted}

    def _bits_of(self, crowd: PodSelection) -> int:
        bits = 0
        for selection in crowd.selectors:
            bits |= self._selector_bits[selection]
        return bits

    def _track(
        self,
        domains: TopologyDomains,
        per_node: IntArray,
        bits: int,
        term: ExistingPodTerm | None,
        eligible: BoolArray | None,
    ) -> DomainCounts:
        watched = _TrackedCounts(DomainCounts(domains, per_node, eligible), bits, term)
        for standing, node in self._assigned:
            if _is_counted(watched, standing):
                watched.domain_counts.add(node)
        self._tracked.append(watched)
        return watched.domain_counts


def _is_counted(watched: _TrackedCounts, profile: PeerProfile) -> bool:
    if watched.existing_term is not None:
        return watched.existing_term in existing_pod_terms(profile.peer_constraints)
    return profile.selector_bits & watched.selector_bits == watched.selector_bits


def domain_per_node(snapshot: Snapshot) -> TopologyDomains:
    """Each node a domain of its own, whatever its labels."""
    return TopologyDomains(np.arange(len(snapshot)), tuple(snapshot.names))
