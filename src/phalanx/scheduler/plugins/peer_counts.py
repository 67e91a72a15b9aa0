"""Counts of pods per topology domain, kept up to date while a simulation places more pods.

`DomainCounts` is one count. `PeerCounts` holds all counts of one simulation: the selectors that the
members' constraints mention, the terms of running pods that may select a member (those of one
weight and topology key as one count), and the pods placed so far. `add_pod` updates every count
that the placed pod changes. A simulation whose members have no such constraints and match none has
no PeerCounts and takes the fast path.

    key rack, ids [0, 0, 1, -1]      nodes 0 and 1 share a rack, node 3 has none
    counts [3, 1, 0]                 three pods in rack 0; the last entry stands for "no rack"
    counts_per_node() [3, 3, 1, 0]   the same as seen from each node
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.peer_constraints import (
    NO_SERVICES,
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
            nodes = np.bincount(self._counted[self._counted >= 0], minlength=self.domains.size)
            self._present_domains = np.flatnonzero(nodes)
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
    """A member's constraints on other pods, and the selectors that it matches."""

    matched_selectors: frozenset[PodSelector]
    peer_constraints: PeerConstraints
    #: The terms that the member holds towards incoming pods once it is placed.
    held_terms: frozenset[ExistingPodTerm]


class _TrackedCounts(NamedTuple):
    """A count and what it counts: pods that match all these selectors, or holders of terms."""

    domain_counts: DomainCounts
    selectors: frozenset[PodSelector]
    existing_terms: frozenset[ExistingPodTerm]

    def count_times(self, profile: PeerProfile) -> int:
        """How often a pod of this profile is counted: once per term that it holds."""
        if self.existing_terms:
            return len(self.existing_terms & profile.held_terms)
        return self.selectors <= profile.matched_selectors


class PeerCounts:
    """The selectors and terms that matter to some members, and the pods placed so far."""

    def __init__(
        self, snapshot: Snapshot, members: Iterable[Member], defaults: tuple[TopologySpread, ...]
    ) -> None:
        self._snapshot, self._pod_index = snapshot, snapshot.pod_index
        self._defaults = defaults if self._pod_index.services else ()
        self._assigned: list[tuple[PeerProfile, int]] = []
        self._tracked: list[_TrackedCounts] = []
        self._selectors: dict[PodSelector, None] = {}
        self._existing_terms: dict[ExistingPodTerm, None] = dict.fromkeys(
            self._pod_index.existing_terms
        )
        self._profiles: dict[tuple[object, ...], PeerProfile] = {}
        services = self._pod_index.services.values() if self._defaults else ()
        service_keys = {key for one in services for key in one.label_keys}
        self._collect_selectors(members, service_keys)
        keys = {key for selector in self._selectors for key in selector.label_keys}
        self._label_keys = sorted(keys | service_keys)

    def __bool__(self) -> bool:
        return bool(self._selectors)

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
            namespaces = self._pod_index.namespaces
            matched = frozenset(
                selector
                for selector in self._selectors
                if selector.matches(meta.namespace, labels, namespaces)
            )
            peers = self._constraints_of(member)
            held_terms = frozenset(existing_pod_terms(peers))
            found = self._profiles[key] = PeerProfile(matched, peers, held_terms)
        return found

    def add_pod(self, profile: PeerProfile, node: int) -> None:
        """Count a member on the node that it was placed on."""
        self._assigned.append((profile, node))
        for tracked in self._tracked:
            for _ in range(tracked.count_times(profile)):
                tracked.domain_counts.add(node)

    def count_pods(
        self, selection: PodSelection, domains: TopologyDomains, eligible: BoolArray | None = None
    ) -> DomainCounts:
        """Count the pods of a selection per domain, from now on to the end of the simulation."""
        per_node = self._pod_index.count_per_node(selection)
        return self._track(domains, per_node, selection.selectors, eligible=eligible)

    def count_pods_with_and_without_nominated(
        self, selection: PodSelection, domains: TopologyDomains, eligible: BoolArray | None = None
    ) -> list[DomainCounts]:
        """The same counts, and counts without nominated pods where these differ."""
        found, index = [self.count_pods(selection, domains, eligible)], self._pod_index
        if (without := index.without_nominated) is not index:
            counts = without.count_per_node(selection)
            if not np.array_equal(counts, index.count_per_node(selection)):
                found.append(self._track(domains, counts, selection.selectors, eligible=eligible))
        return found

    def existing_terms_towards(
        self, profile: PeerProfile, kind: str
    ) -> Iterator[tuple[ExistingPodTerm, DomainCounts]]:
        """The terms of this kind by which other pods select a pod of this profile, with counts.

        Terms of the same weight and topology key are counted together, as the first of them: a few
        pods may hold thousands of terms.
        """
        alike: dict[tuple[int, str], list[ExistingPodTerm]] = {}
        for existing in self._existing_terms:
            if existing.kind == kind and existing.term.selector in profile.matched_selectors:
                key = (existing.weight, existing.term.topology_key)
                alike.setdefault(key, []).append(existing)
        for terms in alike.values():
            domains = self._snapshot.domains(terms[0].term.topology_key)
            counts = self._pod_index.count_term_holders(terms)
            yield terms[0], self._track(domains, counts, terms=terms)

    def matches_selectors(self, profile: PeerProfile, selectors: Iterable[PodSelector]) -> bool:
        """Whether a pod of this profile matches all of these selectors."""
        return all(selector in profile.matched_selectors for selector in selectors)

    def find_mutual_profiles(self, members: Iterable[Member]) -> frozenset[PeerProfile]:
        """Find the profiles whose required affinity leads back to themselves through others.

        One pod requires another, which requires the first, directly or through further pods: no
        order of placing them satisfies every pod, but all together they may. A pod that matches
        its own terms is not among them, since it may be placed first.
        """
        profiles = dict.fromkeys(map(self.profile_of, members))
        targets = {
            one: [other for other in profiles if self.matches_selectors(other, selectors)]
            for one in profiles
            if (selectors := [term.selector for term in one.peer_constraints.affinity])
            and not self.matches_selectors(one, selectors)
        }
        return frozenset(one for one in targets if _leads_back(one, targets))

    def has_existing_terms(self, profile: PeerProfile) -> bool:
        """Whether a term of another pod selects a pod of this profile."""
        return any(one.term.selector in profile.matched_selectors for one in self._existing_terms)

    def _collect_selectors(self, members: Iterable[Member], service_keys: set[str]) -> None:
        # Members of one shape whose labels Services see as equal have the same constraints.
        alike: dict[tuple[object, ...], Member] = {}
        keys = sorted(service_keys)
        for member in members:
            if member.shape.peer_constraints or self._defaults:
                meta = member.pod.metadata
                alike[member.shape, meta.namespace, *map(meta.labels.get, keys)] = member
        seen = dict.fromkeys(map(self._constraints_of, alike.values()))
        for peers in seen:
            self._existing_terms.update(dict.fromkeys(existing_pod_terms(peers)))
        selectors = [selector for peers in seen for selector in peers.selectors]
        selectors += [existing.term.selector for existing in self._existing_terms]
        self._selectors.update(dict.fromkeys(selectors))

    def _constraints_of(self, member: Member) -> PeerConstraints:
        peers = member.shape.peer_constraints
        if peers.spreads or not self._defaults:
            return peers
        meta = member.pod.metadata
        services = self._pod_index.services.get(meta.namespace, NO_SERVICES)
        spreads = default_spreads(self._defaults, meta.namespace, meta.labels, services=services)
        return peers._replace(spreads=spreads) if spreads else peers

    def _track(
        self,
        domains: TopologyDomains,
        per_node: IntArray,
        selectors: Iterable[PodSelector] = (),
        *,
        terms: Iterable[ExistingPodTerm] = (),
        eligible: BoolArray | None = None,
    ) -> DomainCounts:
        counts = DomainCounts(domains, per_node, eligible)
        tracked = _TrackedCounts(counts, frozenset(selectors), frozenset(terms))
        for profile, node in self._assigned:
            for _ in range(tracked.count_times(profile)):
                counts.add(node)
        self._tracked.append(tracked)
        return tracked.domain_counts


def _leads_back(start: PeerProfile, targets: Mapping[PeerProfile, list[PeerProfile]]) -> bool:
    seen: set[PeerProfile] = set()
    pending = list(targets[start])
    while pending:
        one = pending.pop()
        if one == start:
            return True
        if one not in seen:
            seen.add(one)
            pending += targets.get(one, ())
    return False


def domain_per_node(snapshot: Snapshot) -> TopologyDomains:
    """Domains of one node each, whatever the labels of the nodes."""
    return TopologyDomains(np.arange(len(snapshot)), tuple(snapshot.names))
