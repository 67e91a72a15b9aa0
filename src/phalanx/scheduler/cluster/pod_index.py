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
from phalanx.scheduler.cluster.peer_constraints import (
    NO_PEER_CONSTRAINTS,
    AffinityTerm,
    Labels,
    PeerConstraints,
    PodSelector,
)

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.pod_shape import PodShape

IntArray = NDArray[np.int64]

_COUNTS_LIMIT = 256


class AssignedPod(Struct, frozen=True, order=True):
    """A pod on a node, as those see it who would be near it or want its room."""

    key: Key
    uid: str
    node: str
    labels: Labels
    shape: PodShape
    terminating: bool = False
    #: The group that it belongs to, also while it is leaving.
    group: Key | None = None
    priority: int = 0
    #: Since when it runs, as the API says it; "" if it does not yet.
    start_time: str = ""

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self.key.namespace

    @property
    def peer_constraints(self) -> PeerConstraints:
        """What it holds towards other pods."""
        return self.shape.peer_constraints


class PodSelection(NamedTuple):
    """Pods that are in all of some selections, those that are leaving included or not."""

    selectors: tuple[PodSelector, ...]
    excludes_terminating: bool = False

    def contains(self, pod: AssignedPod, namespaces: Mapping[str, Labels]) -> bool:
        """Whether a pod is one of them."""
        if self.excludes_terminating and pod.terminating:
            return False
        return all(s.matches(pod.namespace, pod.labels, namespaces) for s in self.selectors)


class ExistingPodTerm(NamedTuple):
    """A term that residents hold towards newcomers: `apart`, `near`, or a weight to score with."""

    kind: str
    weight: int
    term: AffinityTerm


def existing_pod_terms(constraints: PeerConstraints) -> Iterator[ExistingPodTerm]:
    """What a pod with such wishes holds towards those who come after it."""
    yield from (ExistingPodTerm("apart", 0, term) for term in constraints.anti_affinity)
    yield from (ExistingPodTerm("near", 0, term) for term in constraints.affinity)
    yield from (ExistingPodTerm("like", weight, term) for weight, term in constraints.preferred)


class PodIndex:
    """All residents, and who counts as what where."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Labels] = {}
        #: The selectors of the services of each namespace.
        self.services: dict[str, tuple[Labels, ...]] = {}
        self.existing_terms: dict[ExistingPodTerm, dict[str, int]] = {}
        self._assigned_pods: dict[Key, AssignedPod] = {}
        self._pod_counts: dict[PodSelection, IntArray] = {}
        self._index: Mapping[str, int] = {}

    def set_node_index(self, index: Mapping[str, int]) -> None:
        """Nodes came or went: rows have other numbers."""
        self._index = index
        self._pod_counts.clear()

    def update_namespace(self, name: str, labels: Labels | None) -> None:
        """A namespace came, changed or went: selections by namespace may mean others now."""
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        self._pod_counts.clear()

    def update(self, key: Key, new: AssignedPod | None) -> None:
        """A pod is on a node now, or on none any more."""
        old = self._assigned_pods.pop(key, None)
        if new is not None:
            self._assigned_pods[key] = new
        if old == new:
            return
        if old is not None:
            self._add_to_counts(old, -1)
        if new is not None:
            self._add_to_counts(new, +1)

    @property
    def without_nominated(self) -> PodIndex:
        """The same without those who were only promised a place."""
        return self

    def assigned_pods(self) -> Iterable[AssignedPod]:
        """All pods on nodes."""
        return self._assigned_pods.values()

    def node_of(self, key: Key) -> str:
        """The node that a pod is on, bound or assumed; "" for none."""
        resident = self._assigned_pods.get(key)
        return resident.node if resident else ""

    def count_per_node(self, selection: PodSelection) -> IntArray:
        """How many of a crowd there are on each node. Not to be changed."""
        counts = self._pod_counts.pop(selection, None)
        if counts is None:
            counts = self._count_from_scratch(selection)
        self._pod_counts[selection] = counts
        if len(self._pod_counts) > _COUNTS_LIMIT:
            del self._pod_counts[next(iter(self._pod_counts))]
        return counts

    def count_term_holders(self, term: ExistingPodTerm) -> IntArray:
        """How many residents of each node carry a term."""
        counts = np.zeros(len(self._index), np.int64)
        for node, count in self.existing_terms.get(term, {}).items():
            if node in self._index:
                counts[self._index[node]] = count
        return counts

    def _add_to_counts(self, pod: AssignedPod, change: int) -> None:
        if pod.shape.peer_constraints is not NO_PEER_CONSTRAINTS:
            for carried in existing_pod_terms(pod.peer_constraints):
                self._add_existing_term(carried, pod.node, change)
        if self._pod_counts and pod.node in self._index:
            i = self._index[pod.node]
            for crowd, counts in self._pod_counts.items():
                if crowd.contains(pod, self.namespaces):
                    counts[i] += change

    def _add_existing_term(self, term: ExistingPodTerm, node: str, change: int) -> None:
        nodes = self.existing_terms.setdefault(term, {})
        nodes[node] = nodes.get(node, 0) + change
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del self.existing_terms[term]

    def _count_from_scratch(self, selection: PodSelection) -> IntArray:
        counts = np.zeros(len(self._index), np.int64)
        for pod in self._assigned_pods.values():
            if pod.node in self._index and selection.contains(pod, self.namespaces):
                counts[self._index[pod.node]] += 1
        return counts

    def check(self) -> Iterator[str]:
        """Sentences about counts that do not add up; none in a healthy census."""
        for crowd, counts in self._pod_counts.items():
            if (self._count_from_scratch(crowd) != counts).any():
                yield f"the counts of {crowd} differ from its pods"
        carried: dict[ExistingPodTerm, dict[str, int]] = {}
        for pod in self._assigned_pods.values():
            for one in existing_pod_terms(pod.peer_constraints):
                nodes = carried.setdefault(one, {})
                nodes[pod.node] = nodes.get(pod.node, 0) + 1
        if carried != self.existing_terms:
            yield "the terms that residents carry differ from what is counted"
