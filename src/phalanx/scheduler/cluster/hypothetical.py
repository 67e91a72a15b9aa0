"""Hypothetical snapshots: the cluster without some pods, or with some more, within one cycle.

Preemption asks what would fit without the victims. Nominated pods count on their nodes before they
are bound. The groups of a tree see what their siblings have just been assigned. All three are forks
of a snapshot with other loads. The origin of a fork stays unchanged, and nothing here decides.

Nominated pods use resources, but affinity and spread must hold without them too: the pod index of
the fork counts them, and its `without_nominated` does not.

    with_changes(snapshot, removed=[victim])                    as if the victim had terminated
    with_changes(snapshot, added=nominated, nominated=True)     as if nominated pods were bound
    WorkingSnapshot(snapshot).add(assigned)                     as if siblings were bound, in steps
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
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
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, IntArray, NodeClass, Snapshot

_NODE, _SHAPE = attrgetter("node"), attrgetter("shape")
#: Up to this many pods are applied one by one, which is faster.
BULK_THRESHOLD = 16


def with_changes(
    snapshot: Snapshot,
    removed: Sequence[AssignedPod] = (),
    added: Sequence[AssignedPod] = (),
    *,
    nominated: bool = False,
    gone_consumers: Collection[str] = (),
) -> Snapshot:
    """Return the snapshot without the removed pods and with the added pods.

    Pods on nodes that are not in the snapshot are ignored. `nominated`: the added pods are only
    nominated, not bound. `gone_consumers`: uids of pods that are gone and whose claims are not
    released yet.
    """
    if not removed and not added and not gone_consumers:
        return snapshot
    forked = snapshot.fork()
    for pods, sign in ((removed, -1), (added, +1)):
        _apply_pods(forked, pods, sign)
    forked.pod_index = HypotheticalPodIndex(
        snapshot.pod_index, snapshot.index, removed=removed, added=added, nominated=nominated
    )
    _apply_claims(forked, removed, added, gone_consumers=gone_consumers)
    _apply_volumes(forked, removed, added)
    return forked


def nominated_pods(snapshot: Snapshot, priority: int, own: Container[Key]) -> list[AssignedPod]:
    """Return the nominated pods of this or a higher priority, except `own`."""
    return [
        nomination
        for key, nomination in snapshot.nominations.items()
        if nomination.priority >= priority and key not in own
    ]


def _apply_claims(
    snapshot: Snapshot,
    removed: Sequence[AssignedPod],
    added: Sequence[AssignedPod],
    *,
    gone_consumers: Collection[str],
) -> None:
    """Free the devices of removed pods, and take those that added pods were given."""
    devices = snapshot.devices
    freed = {pod.uid for pod in removed if devices.is_consumer(pod.uid)}.union(gone_consumers)
    claims = [claim for pod in added for claim in pod.claims]
    returned = [claim for pod in removed for claim in pod.claims]
    if freed or claims or returned:
        snapshot.devices = devices.fork(freed, claims, returned)


def _apply_volumes(
    snapshot: Snapshot, removed: Sequence[AssignedPod], added: Sequence[AssignedPod]
) -> None:
    """Free the claims and attach slots of removed pods, and take those of added pods."""
    freed = [pod.volume_user for pod in removed if pod.volume_keys]
    taken = [pod.volume_user for pod in added if pod.volume_keys]
    if freed or taken:
        snapshot.volumes = snapshot.volumes.fork(freed, taken)


def release_claims(snapshot: Snapshot, removed: Sequence[AssignedPod]) -> None:
    """Free the devices, volumes and attach slots of pods in a fork."""
    _apply_claims(snapshot, removed, (), gone_consumers=())
    _apply_volumes(snapshot, removed, ())


class WorkingSnapshot:
    """A snapshot to which pods are added step by step, and removed again in reverse order.

    The first pods fork it. After that only the rows of their nodes change, so that scores and
    domain capacities of the fork are patched instead of computed anew for every step.

        working.add(first)         working.add(second)         working.truncate(len(first))
    """

    def __init__(self, origin: Snapshot) -> None:
        self.snapshot = self._origin = origin
        self._added: list[AssignedPod] = []
        #: The row of each added pod, and its class before.
        self._rows: list[tuple[int, NodeClass]] = []

    def __len__(self) -> int:
        return len(self._added)

    def add(self, pods: Sequence[AssignedPod]) -> None:
        """Add pods on nodes of the snapshot."""
        if not pods:
            return
        if self.snapshot is self._origin:
            self.snapshot = self._origin.fork()
        snapshot, pool = self.snapshot, self.snapshot.node_class_pool
        for pod in pods:
            i = snapshot.index[pod.node]
            before = snapshot.node_class(i)
            self._rows.append((i, before))
            request = pod.shape.request_vector(snapshot.columns)
            self._set_row(i, pool.after_adding(before, request))
        self._added += pods
        self._update_devices(pods)
        index = snapshot.pod_index
        if isinstance(index, HypotheticalPodIndex) and index is not self._origin.pod_index:
            index.add(pods)
        else:
            self._update_pod_index()

    def truncate(self, count: int) -> None:
        """Remove all pods but the first `count`."""
        if count == len(self._added):
            return
        for i, before in reversed(self._rows[count:]):
            self._set_row(i, before)
        removed = self._added[count:]
        del self._rows[count:], self._added[count:]
        self._update_devices(removed)
        self._update_pod_index()

    def _update_devices(self, changed: Sequence[AssignedPod]) -> None:
        """Take the devices and volumes that the added pods were given."""
        if any(pod.claims for pod in changed):
            claims = [claim for pod in self._added for claim in pod.claims]
            self.snapshot.devices = self._origin.devices.fork(added=claims)
        if any(pod.volume_keys for pod in changed):
            users = [pod.volume_user for pod in self._added if pod.volume_keys]
            self.snapshot.volumes = self._origin.volumes.fork(added=users)

    def _set_row(self, i: int, row: NodeClass) -> None:
        self.snapshot.update_load(
            i, list(row.requested), list(row.nonzero_requested), ports=row.used_ports
        )

    def _update_pod_index(self) -> None:
        origin = self._origin
        self.snapshot.pod_index = HypotheticalPodIndex(
            origin.pod_index, origin.index, removed=(), added=list(self._added)
        )


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


def release_ports(snapshot: Snapshot, pods: Iterable[AssignedPod]) -> None:
    """Free the host ports of pods in a fork."""
    for pod in pods:
        if pod.shape.ports and (i := snapshot.index.get(pod.node)) is not None:
            _apply_ports(snapshot, i, pod.shape.ports, sign=-1)


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
        self._add_terms_of(removed if base.existing_terms else (), -1)
        self._add_terms_of(added, +1)

    def add(self, pods: Sequence[AssignedPod]) -> None:
        """Add more pods to those that the index was made with."""
        self._added = [*self._added, *pods]
        self._pod_counts.clear()
        for cached in ("without_nominated", "_added_by_key"):
            self.__dict__.pop(cached, None)
        self._add_terms_of(pods, +1)

    def _add_terms_of(self, pods: Sequence[AssignedPod], change: int) -> None:
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

    def terminating_pods(self) -> Iterable[AssignedPod]:
        """Return the pods on nodes that terminate; an added pod does not."""
        return [p for p in self._base.terminating_pods() if p.key not in self._removed_keys]

    def lowest_priority(self) -> int | None:
        """Return the lowest priority of the base: a lower bound of that of the pods here."""
        return self._base.lowest_priority()

    def groups_with_pods(self) -> Iterable[Key]:
        """Return the PodGroups of the base: the pods here may have fewer."""
        return self._base.groups_with_pods()

    def assigned_pod(self, key: Key) -> AssignedPod | None:
        """Return a pod on a node; None if it has none."""
        if key in self._added_by_key:
            return self._added_by_key[key]
        return None if key in self._removed_keys else self._base.assigned_pod(key)

    def node_of(self, key: Key) -> str:
        """Return the node of a pod; "" for none."""
        if key in self._added_by_key:
            return self._added_by_key[key].node
        return "" if key in self._removed_keys else self._base.node_of(key)

    def count_in_steps(self, selection: PodSelection) -> Iterator[int]:
        """Count a selection in the base; `count_per_node` then adds the changes."""
        return self._base.count_in_steps(selection)

    def count_per_node(self, selection: PodSelection) -> IntArray:
        """Count the pods of a selection on each node."""
        counts = self._pod_counts.get(selection)
        if counts is None:
            counts = self._base.count_per_node(selection).copy()
            contains = self._matcher(selection)
            counts -= self._count_nodes(pod.node for pod in self._removed if contains(pod))
            counts += self._count_nodes(pod.node for pod in self._added if contains(pod))
            self._pod_counts.keep(selection, counts)
        return counts
