"""Counts of pods per topology domain, kept up to date while a simulation places more pods.

`DomainCounts` is one count. `PeerCounts` holds all counts of one simulation: the selectors that the
members' constraints mention, numbered as bits, the terms of running pods that may select a member,
and the pods placed so far. `add_pod` updates every count that the placed pod changes. A simulation
whose members have no such constraints and match none has no PeerCounts and takes the fast path.

    key rack, ids [0, 0, 1, -1]      nodes 0 and 1 share a rack, node 3 has none
    counts [3, 1, 0]                 three pods in rack 0; the last entry stands for "no rack"
    counts_per_node() [3, 3, 1, 0]   the same as seen from each node
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
    """The number of pods per domain, on all nodes or on eligible ones."""

    __slots__ = ("_counted", "_present_domains", "added_domains", "counts", "domains", "total")

    def __init__(
        self, domains: TopologyDomains, per_node: IntArray, eligible: BoolArray | None = None
    ) -> None:
        self.domains = domains
        self._counted = domains.ids if eligible is None else np.where(eligible, domains.ids, -1)
        inside = self._counted >= 0
        weights = per_node[inside]
        # One more entry than there are domains: nodes without a domain read it at index -1.
        counts = np.bincount(self._counted[inside], weights, domains.size + 1)
        self.counts: IntArray = counts.astype(np.int64)
        self.total = int(weights.sum())
        #: The domains to which pods were added, in order.
        self.added_domains: list[int] = []
        self._present_domains: IntArray | None = None

    @property
    def present_domains(self) -> IntArray:
        """The domains that have a counted node."""
        if self._present_domains is None:
            self._present_domains = np.unique(self._counted[self._counted >= 0])
        return self._present_domains

    @property
    def counted_nodes(self) -> BoolArray:
        """The nodes whose pods count."""
        return self._counted >= 0

    def add(self, node: int) -> None:
        """Count one more pod on a node."""
        domain = self._counted.item(node)
        if domain >= 0:
            self.counts[domain] += 1
            self.total += 1
            self.added_domains.append(domain)

    def counts_per_node(self) -> IntArray:
        """The number of pods in the domain of each node."""
        return self.counts[self.domains.ids]


class PeerProfile(NamedTuple):
    """A member's constraints on other pods, and the selectors that it matches, as bits."""

    selector_bits: int
    peer_constraints: PeerConstraints


class _TrackedCounts(NamedTuple):
    """A count and what it counts: pods that match all these selectors, or holders of a term."""

    domain_counts: DomainCounts
    selector_bits: int
    existing_term: ExistingPodTerm | None


class PeerCounts:
    """The selectors and terms that matter to some members, and the pods placed so far."""

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
        keys = {key for selector in self._selector_bits for key in selector.label_keys}
        self._label_keys = sorted(keys | self._service_label_keys())

    def __bool__(self) -> bool:
        return bool(self._selector_bits)

    @property
    def assigned_count(self) -> int:
        """The number of pods placed so far."""
        return len(self._assigned)

    def profile_of(self, member: Member) -> PeerProfile:
        """The profile of a member; most members of a gang share one."""
        meta, labels = member.pod.metadata, member.pod.metadata.labels
        key = (member.shape.peer_constraints, meta.namespace, *map(labels.get, self._label_keys))
        found = self._profiles.get(key)
        if found is None:
            bits = 0
            for selector, bit in self._selector_bits.items():
                if selector.matches(meta.namespace, labels, self._pod_index.namespaces):
                    bits |= bit
            found = self._profiles[key] = PeerProfile(bits, self._constraints_of(member))
        return found

    def add_pod(self, profile: PeerProfile, node: int) -> None:
        """Count a member on the node that it was placed on."""
        self._assigned.append((profile, node))
        for tracked in self._tracked:
            if _is_counted(tracked, profile):
                tracked.domain_counts.add(node)

    def count_pods(
        self, selection: PodSelection, domains: TopologyDomains, eligible: BoolArray | None = None
    ) -> DomainCounts:
        """Count the pods of a selection per domain, from now on to the end of the simulation."""
        per_node = self._pod_index.count_per_node(selection)
        return self._track(domains, per_node, bits=self._bits_of(selection), eligible=eligible)

    def count_pods_with_and_without_nominated(
        self, selection: PodSelection, domains: TopologyDomains, eligible: BoolArray | None = None
    ) -> list[DomainCounts]:
        """The same counts, and counts without nominated pods where these differ."""
        found, index = [self.count_pods(selection, domains, eligible)], self._pod_index
        if (without := index.without_nominated) is not index:
            counts = without.count_per_node(selection)
            if not np.array_equal(counts, index.count_per_node(selection)):
                bits = self._bits_of(selection)
                found.append(self._track(domains, counts, bits=bits, eligible=eligible))
        return found

    def existing_terms_towards(
        self, profile: PeerProfile, kind: str
    ) -> Iterator[tuple[ExistingPodTerm, DomainCounts]]:
        """The terms of this kind by which other pods select a pod of this profile, with counts."""
        for existing in self._existing_terms:
            if (
                existing.kind == kind
                and profile.selector_bits & self._selector_bits[existing.term.selector]
            ):
                domains = self._snapshot.domains(existing.term.topology_key)
                counts = self._pod_index.count_term_holders(existing)
                yield existing, self._track(domains, counts, bits=0, term=existing)

    def matches_selectors(self, profile: PeerProfile, selectors: Iterable[PodSelector]) -> bool:
        """Whether a pod of this profile matches all of these selectors."""
        return all(profile.selector_bits & self._selector_bits[selector] for selector in selectors)

    def has_existing_terms(self, profile: PeerProfile) -> bool:
        """Whether a term of another pod selects a pod of this profile."""
        return any(
            profile.selector_bits & self._selector_bits[one.term.selector]
            for one in self._existing_terms
        )

    def _collect_selectors(self, members: Iterable[Member]) -> None:
        seen: dict[PeerConstraints, None] = {}
        for member in members:
            if member.shape.peer_constraints or self._defaults:
                seen[self._constraints_of(member)] = None
        for peers in seen:
            self._existing_terms.update(dict.fromkeys(existing_pod_terms(peers)))
        selectors = [selector for peers in seen for selector in peers.selectors]
        selectors += [existing.term.selector for existing in self._existing_terms]
        for selector in selectors:
            self._selector_bits.setdefault(selector, 1 << len(self._selector_bits))

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
        return {
            key
            for services in self._pod_index.services.values()
            for selector in services
            for key in selector
        }

    def _bits_of(self, selection: PodSelection) -> int:
        bits = 0
        for selector in selection.selectors:
            bits |= self._selector_bits[selector]
        return bits

    def _track(
        self,
        domains: TopologyDomains,
        per_node: IntArray,
        *,
        bits: int,
        term: ExistingPodTerm | None = None,
        eligible: BoolArray | None = None,
    ) -> DomainCounts:
        tracked = _TrackedCounts(DomainCounts(domains, per_node, eligible), bits, term)
        for profile, node in self._assigned:
            if _is_counted(tracked, profile):
                tracked.domain_counts.add(node)
        self._tracked.append(tracked)
        return tracked.domain_counts


def _is_counted(tracked: _TrackedCounts, profile: PeerProfile) -> bool:
    if tracked.existing_term is not None:
        return tracked.existing_term in existing_pod_terms(profile.peer_constraints)
    return profile.selector_bits & tracked.selector_bits == tracked.selector_bits


def domain_per_node(snapshot: Snapshot) -> TopologyDomains:
    """Domains of one node each, whatever the labels of the nodes."""
    return TopologyDomains(np.arange(len(snapshot)), tuple(snapshot.names))
