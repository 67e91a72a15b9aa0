"""PodIndex: which pods run on which nodes, counted as other pods' constraints need it.

Part of the snapshot, kept across cycles and updated with every pod that is added, changed or
removed. A count per node stays up to date once a cycle has asked for it. The affinity terms that
running pods hold against (or in favour of) incoming pods are indexed from the start. Only the cache
writes here.

    count_per_node(app=web)                          [0, 2, 1, 0]    pods that match, per node
    existing_terms[anti-affinity towards app=web]    {n1: 2}         pods that reject app=web
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

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
    ServiceSelectors,
)
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.devices.state import AssignedClaim
from phalanx.scheduler.volumes.demand import AssignedVolume
from phalanx.scheduler.volumes.state import VolumeUser

IntArray = NDArray[np.int64]

_COUNTS_LIMIT = 256
#: Label keys by whose values pods are indexed.
_INDEXED_KEYS_LIMIT = 8
_COMPARISONS_PER_STEP = 20_000
#: So many seconds after its grace period a pod is gone, unless it hangs.
TERMINATION_SECONDS = 2.0
#: A pod that still exists so many seconds after its deletionTimestamp, which includes its grace
#: period, hangs: it does not count as leaving any more.
MAX_OVERDUE_SECONDS = 30.0


class AssignedPod(Struct, frozen=True, order=True, gc=False):
    """A pod on a node, with what affinity, spread and preemption read of it."""

    key: Key
    uid: str
    node: str
    labels: Labels
    shape: PodShape
    terminating: bool = False
    #: The PodGroup of the pod, also while the pod terminates.
    group: Key | None = None
    priority: int = 0
    #: `status.startTime`; "" if the pod has not started.
    start_time: str = ""
    #: Until when a terminating pod counts as leaving: a pod that hangs frees nothing.
    leaves_by: float = 0.0
    #: Whether the pod terminates because a scheduler preempted it.
    preempted: bool = False
    #: The allocations that the placement gives its claims, if the API does not show them.
    claims: tuple[AssignedClaim, ...] = ()
    #: The claims that it names.
    claim_keys: tuple[Key, ...] = ()
    #: The PersistentVolumeClaims that it uses, and what the placement gives them.
    volume_keys: tuple[Key, ...] = ()
    volumes: tuple[AssignedVolume, ...] = ()
    #: How long it may terminate once it is deleted.
    grace_seconds: int = 0

    def gone_at(self, now: float) -> float:
        """Return when it is gone if it is evicted now, or was before, by its grace period."""
        if self.terminating and self.leaves_by != inf:
            return max(self.leaves_by - MAX_OVERDUE_SECONDS, now)
        return now + self.grace_seconds

    def is_overdue(self, now: float) -> bool:
        """Whether a terminating pod should be gone by now."""
        return self.leaves_by - MAX_OVERDUE_SECONDS + TERMINATION_SECONDS < now

    @property
    def volume_user(self) -> VolumeUser:
        """The pod as a user of its PersistentVolumeClaims."""
        return VolumeUser(self.key, self.node, self.volume_keys, self.volumes)

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        return self.key.namespace

    @property
    def peer_constraints(self) -> PeerConstraints:
        """The constraints of the pod on other pods."""
        return self.shape.peer_constraints


class PodSelection(NamedTuple):
    """The pods that match all of some selectors, with or without terminating pods."""

    selectors: tuple[PodSelector, ...]
    excludes_terminating: bool = False

    def contains(self, pod: AssignedPod, namespaces: Mapping[str, Labels]) -> bool:
        """Whether a pod is in the selection."""
        if self.excludes_terminating and pod.terminating:
            return False
        return all(s.matches(pod.namespace, pod.labels, namespaces) for s in self.selectors)

    @property
    def required_label(self) -> tuple[str, str] | None:
        """A label that all its pods have; None if no single label is required."""
        for selector in self.selectors:
            for one in selector.requirements:
                if one.operator == "in" and len(one.values) == 1:
                    return one.key, next(iter(one.values))
        return None


class SelectionCounts:
    """Counts per node of selections, found by the labels of a pod that may be in them.

    Most selections require a label, as those of the Services of many JobSets do: a pod is compared
    with the selections that require one of its labels, and with those that require none.
    """

    def __init__(self) -> None:
        self._counts: dict[PodSelection, IntArray] = {}
        #: Selections by key and value of the label that they require; "" for none. Empty if no
        #: counts are kept.
        self.by_label: dict[str, dict[str, dict[PodSelection, None]]] = {}

    def __contains__(self, selection: PodSelection) -> bool:
        return selection in self._counts

    def get(self, selection: PodSelection) -> IntArray | None:
        """Return the counts of a selection, if they are kept."""
        return self._counts.get(selection)

    def keep(self, selection: PodSelection, counts: IntArray) -> None:
        """Keep counts as the most recently used ones; discard the least recently used."""
        if self._counts.pop(selection, None) is None:
            key, value = selection.required_label or ("", "")
            self.by_label.setdefault(key, {}).setdefault(value, {})[selection] = None
        self._counts[selection] = counts
        if len(self._counts) > _COUNTS_LIMIT:
            self._discard(next(iter(self._counts)))

    def _discard(self, selection: PodSelection) -> None:
        del self._counts[selection]
        key, value = selection.required_label or ("", "")
        values = self.by_label[key]
        del values[value][selection]
        if not values[value]:
            del values[value]
        if not values:
            del self.by_label[key]

    def clear(self) -> None:
        """Discard all counts."""
        self._counts.clear()
        self.by_label.clear()

    def items(self) -> list[tuple[PodSelection, IntArray]]:
        """Return all selections with their counts."""
        return list(self._counts.items())

    def candidates(self, labels: Labels) -> Iterator[tuple[PodSelection, IntArray]]:
        """Iterate over the selections that a pod with these labels may be in."""
        for key, values in self.by_label.items():
            value = labels.get(key) if key else ""
            for selection in values.get(value, ()) if value is not None else ():
                yield selection, self._counts[selection]


class PodsByLabel:
    """Pods by the values of the labels that selections require.

    A new selection then costs as many comparisons as there are pods with its label: each of a
    thousand JobSets has a Service, which selects its own pods only. A key is indexed when a
    selection first requires it.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, dict[str, dict[Key, AssignedPod]]] = {}

    def add(self, pod: AssignedPod) -> None:
        """Add a pod to the indexes of its labels."""
        for key, values in self._by_key.items():
            if (value := pod.labels.get(key)) is not None:
                values.setdefault(value, {})[pod.key] = pod

    def remove(self, pod: AssignedPod) -> None:
        """Remove a pod from the indexes of its labels."""
        for key, values in self._by_key.items():
            value = pod.labels.get(key)
            if value is not None and (pods := values.get(value)):
                pods.pop(pod.key, None)
                if not pods:
                    del values[value]

    def find(
        self, label: tuple[str, str], pods: Mapping[Key, AssignedPod]
    ) -> Mapping[Key, AssignedPod]:
        """Return those of all `pods` that have a label."""
        key, value = label
        values = self._by_key.pop(key, None)
        if values is None:
            values = {}
            for pod in pods.values():
                if (held := pod.labels.get(key)) is not None:
                    values.setdefault(held, {})[pod.key] = pod
        self._by_key[key] = values
        if len(self._by_key) > _INDEXED_KEYS_LIMIT:
            del self._by_key[next(iter(self._by_key))]
        return values.get(value, {})


def selections_of(constraints: PeerConstraints) -> Iterator[PodSelection]:
    """Iterate over the selections that the filters and scores of a pod count."""
    if constraints.affinity:
        yield PodSelection(tuple(term.selector for term in constraints.affinity))
    terms = (*constraints.anti_affinity, *(term for _, term in constraints.preferred))
    yield from (PodSelection((term.selector,)) for term in terms)
    yield from (
        PodSelection((spread.selector,), excludes_terminating=True)
        for spread in constraints.spreads
    )


class ExistingPodTerm(NamedTuple):
    """A term that running pods hold towards incoming pods.

    `kind` is `anti_affinity` or `affinity` (required), or `preferred` (with a weight).
    """

    kind: str
    weight: int
    term: AffinityTerm


def existing_pod_terms(constraints: PeerConstraints) -> Iterator[ExistingPodTerm]:
    """Iterate over the terms that a pod with these constraints holds towards incoming pods."""
    yield from (ExistingPodTerm("anti_affinity", 0, term) for term in constraints.anti_affinity)
    yield from (ExistingPodTerm("affinity", 0, term) for term in constraints.affinity)
    yield from (
        ExistingPodTerm("preferred", weight, term) for weight, term in constraints.preferred
    )


class PodIndex:
    """All pods on nodes, and counts of them per node."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Labels] = {}
        #: The selectors of the Services of each namespace.
        self.services: dict[str, ServiceSelectors] = {}
        self.existing_terms: dict[ExistingPodTerm, dict[str, int]] = {}
        self._assigned_pods: dict[Key, AssignedPod] = {}
        #: The terminating pods, and the number of other pods by priority and PodGroup.
        self._terminating_pods: dict[Key, AssignedPod] = {}
        self._evictable_pods: dict[int, dict[Key | None, int]] = {}
        self._pod_counts, self._pods_by_label = SelectionCounts(), PodsByLabel()
        self._index: Mapping[str, int] = {}

    def set_node_index(self, index: Mapping[str, int]) -> None:
        """Set the row of each node, after nodes were added or removed."""
        self._index = index
        self._pod_counts.clear()

    def move_nodes(self, index: Mapping[str, int], rows: IntArray, pods: Iterable[Key]) -> None:
        """Set the row of each node, and move the counts, after few nodes were added or removed.

        `rows` holds the former row of each node, -1 for a new one; `pods` are those that may be on
        a new node.
        """
        self._index, is_new = index, rows < 0
        assigned = filter(None, map(self._assigned_pods.get, dict.fromkeys(pods)))
        on_new_nodes = [pod for pod in assigned if pod.node in index and is_new[index[pod.node]]]
        for selection, counts in self._pod_counts.items():
            moved = np.where(is_new, 0, counts[rows])
            self._pod_counts.keep(selection, moved)
            for pod in on_new_nodes:
                moved[index[pod.node]] += selection.contains(pod, self.namespaces)

    def update_namespace(self, name: str, labels: Labels | None) -> None:
        """Set or (None) remove the labels of a namespace, which namespace selectors read."""
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        self._pod_counts.clear()

    def update(self, key: Key, new: AssignedPod | None) -> None:
        """Set where a pod is: on a node, or (None) on no node any more."""
        old = self._assigned_pods.pop(key, None)
        if new is not None:
            self._assigned_pods[key] = new
        if old == new:
            return
        if old is not None:
            self._pods_by_label.remove(old)
            self._add_to_counts(old, -1)
            self._count_evictable(old, -1)
        if new is not None:
            self._pods_by_label.add(new)
            self._add_to_counts(new, +1)
            self._count_evictable(new, +1)

    def _count_evictable(self, pod: AssignedPod, change: int) -> None:
        """Index a pod for preemption, so that a refused entity scans no pods."""
        if pod.terminating:
            if change > 0:
                self._terminating_pods[pod.key] = pod
            else:
                self._terminating_pods.pop(pod.key, None)
            return
        groups = self._evictable_pods.setdefault(pod.priority, {})
        count = groups[pod.group] = groups.get(pod.group, 0) + change
        if not count:
            del groups[pod.group]
            if not groups:
                del self._evictable_pods[pod.priority]

    @property
    def without_nominated(self) -> PodIndex:
        """The index without nominated pods; itself if it has none."""
        return self

    def assigned_pods(self) -> Iterable[AssignedPod]:
        """Return all pods on nodes."""
        return self._assigned_pods.values()

    def terminating_pods(self) -> Iterable[AssignedPod]:
        """Return the pods on nodes that terminate."""
        return self._terminating_pods.values()

    def lowest_priority(self) -> int | None:
        """Return the lowest priority of the pods on nodes that do not terminate."""
        return min(self._evictable_pods, default=None)

    def groups_with_pods(self) -> Iterable[Key]:
        """Return the PodGroups that have pods on nodes which do not terminate."""
        return dict.fromkeys(g for groups in self._evictable_pods.values() for g in groups if g)

    def assigned_pod(self, key: Key) -> AssignedPod | None:
        """Return a pod on a node, bound or assumed; None if it has none."""
        return self._assigned_pods.get(key)

    def node_of(self, key: Key) -> str:
        """Return the node of a pod, bound or assumed; "" for none."""
        pod = self._assigned_pods.get(key)
        return pod.node if pod else ""

    def count_per_node(self, selection: PodSelection) -> IntArray:
        """Count the pods of a selection on each node. The caller must not change the array."""
        counts = self._pod_counts.get(selection)
        if counts is None:
            counts = self._count_pods(selection, self._candidates(selection))
        self._pod_counts.keep(selection, counts)
        return counts

    def count_in_steps(self, selection: PodSelection) -> Iterator[int]:
        """Count a selection for `count_per_node`; yields after some comparisons, and at the end."""
        if selection in self._pod_counts:
            return
        pods_per_step = max(_COMPARISONS_PER_STEP // max(len(selection.selectors), 1), 1)
        contains, nodes = self._matcher(selection), list[str]()
        candidates = self._candidates(selection)
        for number, pod in enumerate(candidates, 1):
            if contains(pod):
                nodes.append(pod.node)
            if number % pods_per_step == 0:
                yield number
        self._pod_counts.keep(selection, self._count_nodes(nodes))
        yield len(candidates)

    def count_term_holders(self, terms: Iterable[ExistingPodTerm]) -> IntArray:
        """Count the pods on each node that hold some terms, once for each of the terms."""
        counts = np.zeros(len(self._index), np.int64)
        for term in terms:
            for node, count in self.existing_terms.get(term, {}).items():
                if node in self._index:
                    counts[self._index[node]] += count
        return counts

    def _add_to_counts(self, pod: AssignedPod, change: int) -> None:
        if pod.shape.peer_constraints is not NO_PEER_CONSTRAINTS:
            for term in existing_pod_terms(pod.peer_constraints):
                self._add_existing_term(term, pod.node, change)
        if self._pod_counts.by_label and (i := self._index.get(pod.node)) is not None:
            for selection, counts in self._pod_counts.candidates(pod.labels):
                if selection.contains(pod, self.namespaces):
                    counts[i] += change

    def _add_existing_term(self, term: ExistingPodTerm, node: str, change: int) -> None:
        nodes = self.existing_terms.setdefault(term, {})
        nodes[node] = nodes.get(node, 0) + change
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del self.existing_terms[term]

    def _candidates(self, selection: PodSelection) -> Collection[AssignedPod]:
        """The pods that may be in a selection: those with the label that it requires."""
        label = selection.required_label
        if label is None:
            return self._assigned_pods.values()
        return self._pods_by_label.find(label, self._assigned_pods).values()

    def _count_pods(self, selection: PodSelection, pods: Iterable[AssignedPod]) -> IntArray:
        contains = self._matcher(selection)
        return self._count_nodes(pod.node for pod in pods if contains(pod))

    def _count_nodes(self, names: Iterable[str]) -> IntArray:
        rows = [self._index[name] for name in names if name in self._index]
        return np.bincount(np.array(rows, np.intp), minlength=len(self._index)).astype(np.int64)

    def _matcher(self, selection: PodSelection) -> Callable[[AssignedPod], bool]:
        """Return `selection.contains` for many pods: those with equal labels are compared once."""
        selectors, namespaces = selection.selectors, self.namespaces
        keys = tuple(dict.fromkeys(key for one in selectors for key in one.label_keys))
        known: dict[tuple[str | None, ...], bool] = {}

        def contains(pod: AssignedPod) -> bool:
            if selection.excludes_terminating and pod.terminating:
                return False
            values = (pod.key.namespace, *map(pod.labels.get, keys))
            found = known.get(values)
            if found is None:
                found = known[values] = selection.contains(pod, namespaces)
            return found

        return contains

    def check(self) -> Iterator[str]:
        """Iterate over messages about counts that are wrong; none in a consistent index."""
        for selection, counts in self._pod_counts.items():
            if (self._count_pods(selection, self._assigned_pods.values()) != counts).any():
                yield f"the counts of {selection} differ from its pods"
        terms: dict[ExistingPodTerm, dict[str, int]] = {}
        for pod in self._assigned_pods.values():
            for one in existing_pod_terms(pod.peer_constraints):
                nodes = terms.setdefault(one, {})
                nodes[pod.node] = nodes.get(pod.node, 0) + 1
        if terms != self.existing_terms:
            yield "the terms that pods hold differ from the indexed terms"
        fresh = PodIndex()
        for pod in self._assigned_pods.values():
            fresh._count_evictable(pod, +1)
        if (fresh._evictable_pods, fresh._terminating_pods) != (
            self._evictable_pods,
            self._terminating_pods,
        ):
            yield "the terminating pods, priorities or groups differ from the pods"
