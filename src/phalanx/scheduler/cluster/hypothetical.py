"""Hypothetical snapshots: the cluster without some pods, or with some more, within one cycle.

Preemption asks what would fit without the victims. Nominated pods count on their nodes before they
are bound. The groups of a tree see what their siblings have just been assigned. All three are forks
of a snapshot with other loads. The origin of a fork stays unchanged, and nothing here decides.

Nominated pods use resources, but affinity and spread must hold without them too: the pod index of
the fork counts them, and its `without_nominated` does not.

    with_changes(snapshot, removed=[victim])                    as if the victim had terminated
    with_changes(snapshot, added=nominated, nominated=True)     as if nominated pods were bound
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from operator import attrgetter

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.pod_index import (
    AssignedPod,
    PodIndex,
    PodSelection,
    existing_pod_terms,
)
from phalanx.scheduler.cluster.pod_shape import HostPorts, PodShape
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, IntArray, Snapshot

_NODE, _SHAPE = attrgetter("node"), attrgetter("shape")
#: Up to this many pods are applied one by one, which is faster.
BULK_THRESHOLD = 16


def with_changes(
    snapshot: Snapshot,
    removed: Sequence[AssignedPod] = (),
    added: Sequence[AssignedPod] = (),
    *,
    nominated: bool = False,
) -> Snapshot:
    """Return the snapshot without the removed pods and with the added pods.

    Pods on nodes that are not in the snapshot are ignored. `nominated`: the added pods are only
    nominated, not bound.
    """
    if not removed and not added:
        return snapshot
    forked = snapshot.fork()
    for pods, sign in ((removed, -1), (added, +1)):
        _apply_pods(forked, pods, sign)
    forked.pod_index = HypotheticalPodIndex(
        snapshot.pod_index, snapshot.index, removed=removed, added=added, nominated=nominated
    )
    return forked


def _apply_pods(snapshot: Snapshot, pods: Sequence[AssignedPod], sign: int) -> None:
    if len(pods) > BULK_THRESHOLD:
        _apply_pods_in_bulk(snapshot, pods, sign)
    else:
        for pod in pods:
            if (i := snapshot.index.get(pod.node)) is not None:
                _apply_pod(snapshot, i, pod.shape, sign=sign)


def _apply_pod(snapshot: Snapshot, i: int, shape: PodShape, *, sign: int) -> None:
    request, requested = shape.request_vector(snapshot.columns), snapshot.requested
    nonzero_requested = snapshot.nonzero_requested
    if shape.ports:
        _apply_ports(snapshot, i, shape.ports, sign=sign)
    for column, amount in request.amounts:
        requested[i, column] += sign * amount
    nonzero_requested[i, CPU] += sign * request.nonzero_cpu
    nonzero_requested[i, MEMORY] += sign * request.nonzero_memory


def _apply_pods_in_bulk(snapshot: Snapshot, pods: Sequence[AssignedPod], sign: int) -> None:
    index, size = snapshot.index, len(pods)
    # By identity: equal pods mostly share one shape object, and hashing shapes takes longer.
    shapes: dict[int, PodShape] = {id(shape): shape for shape in map(_SHAPE, pods)}
    shape_ids = np.fromiter(map(id, map(_SHAPE, pods)), np.int64, size)
    nodes = np.fromiter(map(index.get, map(_NODE, pods), repeat(-1)), np.int64, size)
    for shape_id, shape in shapes.items():
        found = nodes[(shape_ids == shape_id) & (nodes >= 0)]
        request = shape.request_vector(snapshot.columns)
        counts = np.bincount(found, minlength=len(snapshot))
        for i in found.tolist() if shape.ports else ():
            _apply_ports(snapshot, i, shape.ports, sign=sign)
        for column, amount in request.amounts:
            snapshot.requested[:, column] += sign * amount * counts
        for column, amount in ((CPU, request.nonzero_cpu), (MEMORY, request.nonzero_memory)):
            snapshot.nonzero_requested[:, column] += sign * amount * counts


def _apply_ports(snapshot: Snapshot, i: int, ports: HostPorts, *, sign: int) -> None:
    used = list(snapshot.used_ports.get(i, ()))
    for port in ports:
        if sign > 0:
            used.append(port)
        elif port in used:
            used.remove(port)
    snapshot.update_ports(i, tuple(used))


class HypotheticalPodIndex(PodIndex):
    """A read-only pod index without some pods of its base and with others added."""

    def __init__(
        self,
        base: PodIndex,
        index: Mapping[str, int],
        *,
        removed: Sequence[AssignedPod],
        added: Sequence[AssignedPod],
        nominated: bool = False,
    ) -> None:
        super().__init__()
        self._base, self._index, self._nominated = base, index, nominated
        self.namespaces, self.services = base.namespaces, base.services
        self._removed, self._added = removed, added
        self.existing_terms = {term: dict(nodes) for term, nodes in base.existing_terms.items()}
        for pods, change in ((removed if base.existing_terms else (), -1), (added, +1)):
            for pod in pods:
                if pod.peer_constraints:
                    for term in existing_pod_terms(pod.peer_constraints):
                        self._add_existing_term(term, pod.node, change)

    @cached_property
    def without_nominated(self) -> PodIndex:
        """The index without nominated pods; itself if it has none."""
        base = self._base.without_nominated
        if base is self._base and not self._nominated:
            return self
        removed = [pod for pod in self._removed if base.node_of(pod.key)]
        added = () if self._nominated else self._added
        if not removed and not added:
            return base
        return HypotheticalPodIndex(base, self._index, removed=removed, added=added)

    @cached_property
    def _added_by_key(self) -> dict[Key, AssignedPod]:
        return {pod.key: pod for pod in self._added}

    @cached_property
    def _removed_keys(self) -> set[Key]:
        return {pod.key for pod in self._removed}

    def assigned_pods(self) -> Iterable[AssignedPod]:
        """Return all pods on nodes, the added ones last."""
        kept = (pod for pod in self._base.assigned_pods() if pod.key not in self._removed_keys)
        return (*kept, *self._added_by_key.values())

    def node_of(self, key: Key) -> str:
        """Return the node of a pod; "" for none."""
        if key in self._added_by_key:
            return self._added_by_key[key].node
        return "" if key in self._removed_keys else self._base.node_of(key)

    def count_per_node(self, selection: PodSelection) -> IntArray:
        """Count the pods of a selection on each node."""
        counts = self._pod_counts.get(selection)
        if counts is None:
            counts = self._pod_counts[selection] = self._base.count_per_node(selection).copy()
            for pods, change in ((self._removed, -1), (self._added, +1)):
                for pod in pods:
                    if pod.node in self._index and selection.contains(pod, self.namespaces):
                        counts[self._index[pod.node]] += change
        return counts
