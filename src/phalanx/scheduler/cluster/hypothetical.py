"""Variation: the cluster as it would be without some pods, or with some more. For one cycle only.

What preemption asks ("and if these were gone?"), what is promised to others, and what a sibling in
a tree of groups has just taken are one thing: a snapshot with other loads. Nothing here decides;
the snapshot that it is made from stays as it was.

Those who were only promised a place take up room, but nobody can rely on their company yet: the
census says who is there with them, and `bare` who is there without.
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
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, HostPorts, IntArray, Snapshot

_NODE, _SHAPE = attrgetter("node"), attrgetter("shape")
#: So few pods are put somewhere faster one by one.
BULK_THRESHOLD = 16


def with_changes(
    snapshot: Snapshot, removed: Sequence[AssignedPod] = (), added: Sequence[AssignedPod] = (),
    *, nominated: bool = False,
) -> Snapshot:  # fmt: skip
    """The snapshot without some pods and with others; pods on nodes that are not there are not.

    `promised`: who comes was promised a place and is not there yet.
    """
    if not removed and not added:
        return snapshot
    twin = snapshot.fork()
    for pods, sign in ((removed, -1), (added, +1)):
        _apply_pods(twin, pods, sign)
    twin.pod_index = HypotheticalPodIndex(
        snapshot.pod_index, snapshot.index, removed, added, nominated=nominated
    )
    return twin


def _apply_pods(snapshot: Snapshot, pods: Sequence[AssignedPod], sign: int) -> None:
    """Put pods on their nodes, or take them off."""
    if len(pods) > BULK_THRESHOLD:
        _apply_pods_in_bulk(snapshot, pods, sign)
    else:
        for pod in pods:
            if (i := snapshot.index.get(pod.node)) is not None:
                _apply_pod(snapshot, i, pod.shape, sign)


def _apply_pod(snapshot: Snapshot, i: int, shape: PodShape, sign: int) -> None:
    ask, used, scored = (
        shape.request_vector(snapshot.columns),
        snapshot.requested,
        snapshot.nonzero_requested,
    )
    if shape.ports:
        _apply_ports(snapshot, i, shape.ports, sign)
    for column, amount in ask.amounts:
        used[i, column] += sign * amount
    scored[i, CPU] += sign * ask.nonzero_cpu
    scored[i, MEMORY] += sign * ask.nonzero_memory


def _apply_pods_in_bulk(snapshot: Snapshot, pods: Sequence[AssignedPod], sign: int) -> None:
    """The same shape by shape."""
    index, size = snapshot.index, len(pods)
    # By identity: pods of one sort mostly share their shape, and hashing it takes longer.
    shapes = {id(shape): shape for shape in map(_SHAPE, pods)}
    sorts = np.fromiter(map(id, map(_SHAPE, pods)), np.int64, size)
    nodes = np.fromiter(map(index.get, map(_NODE, pods), repeat(-1)), np.int64, size)
    for sort, shape in shapes.items():
        found = nodes[(sorts == sort) & (nodes >= 0)]
        ask, times = shape.request_vector(snapshot.columns), np.bincount(found, minlength=len(snapshot))
        for i in found.tolist() if shape.ports else ():
            _apply_ports(snapshot, i, shape.ports, sign)
        for column, amount in ask.amounts:
            snapshot.requested[:, column] += sign * amount * times
        for column, amount in ((CPU, ask.nonzero_cpu), (MEMORY, ask.nonzero_memory)):
            snapshot.nonzero_requested[:, column] += sign * amount * times


def _apply_ports(snapshot: Snapshot, i: int, ports: HostPorts, sign: int) -> None:
    taken = list(snapshot.used_ports.get(i, ()))
    for port in ports:
        if sign > 0:
            taken.append(port)
        elif port in taken:
            taken.remove(port)
    snapshot.update_ports(i, tuple(taken))


class HypotheticalPodIndex(PodIndex):
    """A census of which some pods are gone, and to which others have come. Only to be read."""

    def __init__(
        self, base: PodIndex, index: Mapping[str, int], removed: Sequence[AssignedPod],
        added: Sequence[AssignedPod], *, nominated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._base, self._index, self._nominated = base, index, nominated
        self.namespaces, self.services = base.namespaces, base.services
        self._removed, self._added = removed, added
        self.existing_terms = {one: dict(nodes) for one, nodes in base.existing_terms.items()}
        for pods, change in ((removed if base.existing_terms else (), -1), (added, +1)):
            for pod in pods:
                for carried in (
                    existing_pod_terms(pod.peer_constraints) if pod.peer_constraints else ()
                ):
                    self._add_existing_term(carried, pod.node, change)

    @cached_property
    def without_nominated(self) -> PodIndex:
        """The same without those who were only promised a place."""
        base = self._base.without_nominated
        if base is self._base and not self._nominated:
            return self
        gone = [pod for pod in self._removed if base.node_of(pod.key)]
        come = () if self._nominated else self._added
        return HypotheticalPodIndex(base, self._index, gone, come) if gone or come else base

    @cached_property
    def _added_by_key(self) -> dict[Key, AssignedPod]:
        return {pod.key: pod for pod in self._added}

    @cached_property
    def _removed_keys(self) -> set[Key]:
        return {pod.key for pod in self._removed}

    def assigned_pods(self) -> Iterable[AssignedPod]:
        """All pods on nodes, those who have come last."""
        stayed = (pod for pod in self._base.assigned_pods() if pod.key not in self._removed_keys)
        return (*stayed, *self._added_by_key.values())

    def node_of(self, key: Key) -> str:
        """The node that a pod is on; "" for none."""
        if key in self._added_by_key:
            return self._added_by_key[key].node
        return "" if key in self._removed_keys else self._base.node_of(key)

    def count_per_node(self, selection: PodSelection) -> IntArray:
        """How many of a crowd there are on each node."""
        counts = self._pod_counts.get(selection)
        if counts is None:
            counts = self._pod_counts[selection] = self._base.count_per_node(selection).copy()
            for pods, change in ((self._removed, -1), (self._added, +1)):
                for pod in pods:
                    if pod.node in self._index and selection.contains(pod, self.namespaces):
                        counts[self._index[pod.node]] += change
        return counts
