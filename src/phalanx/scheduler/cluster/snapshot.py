"""Snapshot: the cluster at one moment as arrays, one row per node.

Row i of every array is the node `names[i]`. Names are sorted, so of two equal nodes the lower index
is the lower name. Columns are resources: cpu, memory and pods first, then every other resource that
a node or a pod names. The cache alone writes to its snapshot, between cycles. A cycle reads it, and
places pods on a fork (`hypothetical.py`) or in a simulation (`placement/`).

What a node *is* (allocatable, labels, taints, cordon) changes rarely and starts a new `epoch`. What
runs *on* it changes all the time and is appended to `changed_rows`, from which values derived from
the snapshot are patched instead of rebuilt:

    epoch 3, changed_rows []        scores are computed                 position 0
    a gang lands on rows 7 and 9    changed_rows [7, 9]                 rows 7 and 9 are recomputed
    node 9 is cordoned              epoch 4, changed_rows []            scores are computed anew

A snapshot does not know what is derived from it: the module that derives values keeps them in a
`SnapshotCache` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.api.core import Node, Taint
from phalanx.api.meta import Key
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.group_tree import GroupTrees
from phalanx.scheduler.cluster.node_class import NodeClass, NodeClassPool, clamp_row
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodIndex
from phalanx.scheduler.cluster.pod_shape import HostPorts

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: The columns that every snapshot begins with.
CPU, MEMORY, PODS = 0, 1, 2
FIRST_COLUMNS = ("cpu", "memory", "pods")

_CHANGED_ROWS_LIMIT = 4096
_MASKS_LIMIT = 1024

_T = TypeVar("_T")


class Placement(NamedTuple):
    """A topology domain: the nodes, by index in ascending order, that share a label value."""

    value: str
    nodes: IntArray


class TopologyDomains(NamedTuple):
    """All domains of a topology key: `ids` holds the domain number of each node, -1 for none."""

    ids: IntArray
    #: The label value of each domain.
    values: tuple[str, ...]
    #: The nodes of each domain; None where each node is a domain of its own.
    members: tuple[IntArray, ...] | None = None
    #: The domains as placements, sorted by value.
    placements: tuple[Placement, ...] = ()

    @property
    def size(self) -> int:
        """The number of domains."""
        return len(self.values)

    def nodes(self, number: int) -> IntArray:
        """Return the nodes of one domain."""
        return np.array([number]) if self.members is None else self.members[number]

    @property
    def labelled(self) -> BoolArray:
        """The nodes that are in some domain."""
        return self.ids >= 0


class SnapshotCache(Generic[_T]):
    """A value that one module keeps with every snapshot, for as long as the snapshot lives.

    The module that derives the value owns the cache, as a constant; the snapshot only carries it.
    A fork starts without the values of its origin.

        NODE_SCORES: SnapshotCache[dict[PodShape, NodeScores]] = SnapshotCache(dict)
        NODE_SCORES.of(snapshot)[shape] = scores
    """

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[], _T]) -> None:
        self._create = create

    def of(self, snapshot: Snapshot) -> _T:
        """Return the value that is kept with a snapshot; create it on the first call."""
        found: _T | None = snapshot.derived.get(self)
        if found is None:
            found = snapshot.derived[self] = self._create()
        return found


class NodeClassByRow(dict[int, NodeClass]):
    """The node class of every row, read from the arrays on first use."""

    __slots__ = ("_snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    def __missing__(self, i: int) -> NodeClass:
        node_class = self[i] = self._snapshot.read_row(i)
        return node_class


class Snapshot:
    """The cluster at one moment.

    `requested` is exact. `nonzero_requested`, which scores read, counts a small default amount for
    pods that request no CPU or memory.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        columns: Mapping[str, int],
        loads: Sequence[tuple[list[int], list[int], list[int], HostPorts]] = (),
    ) -> None:
        """Build rows from nodes sorted by name.

        `loads` has for each node: allocatable, requested, nonzero requested, host ports in use.
        """
        self.names = [node.metadata.name for node in nodes]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.columns = dict(columns)
        width = self._width = len(columns)
        rows = [
            clamp_row((*allocatable, *requested, *nonzero))
            for allocatable, requested, nonzero, _ in loads
        ]
        self._set_cells(np.array(rows, np.int64).reshape(len(nodes), 2 * width + 2))
        #: The host ports in use, of the nodes that have any.
        self.used_ports: dict[int, HostPorts] = {
            i: load[3] for i, load in enumerate(loads) if load[3]
        }
        self.node_class_pool = NodeClassPool()
        for i, row in enumerate(rows):
            self.node_classes[i] = self.node_class_pool.intern(
                row, width, self.used_ports.get(i, ())
            )
        self.labels: list[Mapping[str, str]] = [node.metadata.labels for node in nodes]
        self.cordoned: BoolArray = np.array([node.spec.unschedulable for node in nodes], bool)
        #: The distinct sets of taints, numbered: a cluster has few of them.
        self.taints: dict[tuple[Taint, ...], int] = {}
        self.taint_class: IntArray = np.array(
            [self._taint_class_of(n.spec.taints) for n in nodes], np.int64
        )
        #: Live members with a node (bound or assumed) per PodGroup.
        self.member_counts: dict[Key, int] = {}
        self.group_trees = GroupTrees()
        self.budgets: dict[Key, PodDisruptionBudget] = {}
        self.pod_index = PodIndex()
        #: Pending pods as if they ran on their nominated nodes.
        self.nominations: dict[Key, AssignedPod] = {}
        #: Image name -> node index -> bytes of the image on that node.
        self._images: dict[str, dict[int, int]] = {}
        for i, node in enumerate(nodes):
            self._record_images(i, node)
        #: The snapshot that this one is a fork of; both have the same nodes.
        self.origin: Snapshot | None = None
        self.epoch = 0
        self.changed_rows: list[int] = []
        #: The values of each `SnapshotCache`.
        self.derived: dict[SnapshotCache[Any], Any] = {}
        self._masks: dict[LabelRequirement, BoolArray] = {}
        self._domains: dict[str, TopologyDomains] = {}
        self._image_sizes: dict[str, IntArray] = {}

    def __len__(self) -> int:
        return len(self.names)

    def nodes_matching(self, requirement: LabelRequirement) -> BoolArray:
        """Return which nodes' labels meet a requirement; cached until a node changes."""
        mask = self._masks.get(requirement)
        if mask is None:
            if len(self._masks) >= _MASKS_LIMIT:
                self._masks.clear()
            mask = np.array([requirement.matches(labels) for labels in self.labels], bool)
            self._masks[requirement] = mask
        return mask

    def domains(self, key: str) -> TopologyDomains:
        """Return the domains of a topology key; cached until a node changes.

        Several label keys joined by `+` make one key: nodes of a domain share all of the labels.
        """
        found = self._domains.get(key)
        if found is None:
            numbers: dict[str, int] = {}
            values = (label_value(labels, key) for labels in self.labels)
            ids = [-1 if v is None else numbers.setdefault(v, len(numbers)) for v in values]
            found = self._domains[key] = _build_domains(np.array(ids, np.int64), tuple(numbers))
        return found

    def image_sizes(self, image: str) -> IntArray:
        """Return how many bytes of an image each node has; cached until a node changes."""
        found = self._image_sizes.get(image)
        if found is None:
            if len(self._image_sizes) >= _MASKS_LIMIT:
                self._image_sizes.clear()
            found = self._image_sizes[image] = np.zeros(len(self), np.int64)
            for i, size in self._images.get(image, {}).items():
                found[i] = size
        return found

    def fork(self) -> Snapshot:
        """Copy the snapshot, so that the caller can change loads within one cycle."""
        self._flush_rows()
        forked = copy(self)
        forked.origin = self
        forked._set_cells(self._cells.copy("F"))
        forked.used_ports, forked.changed_rows, forked.derived = dict(self.used_ports), [], {}
        return forked

    @property
    def allocatable(self) -> IntArray:
        """The allocatable amounts, a column per resource."""
        return self._cells[:, : self._width]

    @property
    def requested(self) -> IntArray:
        """The requested amounts, a column per resource."""
        self._flush_rows()
        return self._cells[:, self._width : 2 * self._width]

    @property
    def nonzero_requested(self) -> IntArray:
        """The CPU and memory that scores count as requested."""
        self._flush_rows()
        return self._cells[:, 2 * self._width :]

    def node_class(self, i: int) -> NodeClass:
        """Return the class of one node as it is now."""
        return self.node_classes[i]

    def read_row(self, i: int) -> NodeClass:
        """Build the class of one node from the arrays."""
        cells, ports = tuple(self._cells[i].tolist()), self.used_ports.get(i, ())
        return self.node_class_pool.intern(cells, self._width, ports)

    def update_load(
        self, i: int, requested: list[int], nonzero_requested: list[int], ports: HostPorts
    ) -> None:
        """Rewrite what runs on a node. Only the cache calls this."""
        by_row, changed = self.node_classes, self.changed_rows
        before = by_row[i]
        cells = (*before.allocatable, *requested, *nonzero_requested)
        by_row[i] = self._unflushed_rows[i] = self.node_class_pool.intern(cells, self._width, ports)
        if ports or before.used_ports:
            self.update_ports(i, ports)
        changed.append(i)
        if len(changed) > _CHANGED_ROWS_LIMIT and len(changed) > 2 * len(self.names):
            self._new_epoch()

    def update_ports(self, i: int, ports: HostPorts) -> None:
        """Rewrite which host ports of a node are in use. Only the cache and forks call this."""
        if ports:
            self.used_ports[i] = ports
        else:
            self.used_ports.pop(i, None)

    def update_node(self, i: int, node: Node, allocatable: list[int]) -> None:
        """Rewrite what a node is. Only the cache calls this."""
        self._flush_rows()
        self.allocatable[i] = allocatable
        self.node_classes.pop(i, None)
        self.labels[i] = node.metadata.labels
        self.cordoned[i] = node.spec.unschedulable
        self.taint_class[i] = self._taint_class_of(node.spec.taints)
        for nodes in self._images.values():
            nodes.pop(i, None)
        self._record_images(i, node)
        for cached in (self._masks, self._domains, self._image_sizes):
            cached.clear()
        self._new_epoch()

    def _set_cells(self, cells: IntArray) -> None:
        """Set the one array that `allocatable`, `requested` and `nonzero_requested` are views of.

        One array, so that a row is copied out at once. In column order, since filters and scores
        read whole columns.
        """
        self._cells = np.asfortranarray(cells)
        self.node_classes = NodeClassByRow(self)
        #: Rows whose load is not in the array yet: most rows change again before they are read.
        self._unflushed_rows: dict[int, NodeClass] = {}

    def _flush_rows(self) -> None:
        if self._unflushed_rows:
            loads = [row.requested + row.nonzero_requested for row in self._unflushed_rows.values()]
            self._cells[list(self._unflushed_rows), self._width :] = loads
            self._unflushed_rows.clear()

    def _record_images(self, i: int, node: Node) -> None:
        for image in node.status.images:
            for name in image.names:
                self._images.setdefault(name, {})[i] = image.size_bytes

    def _new_epoch(self) -> None:
        self.epoch += 1
        self.changed_rows.clear()

    def _taint_class_of(self, taints: tuple[Taint, ...]) -> int:
        return self.taints.setdefault(taints, len(self.taints))


def mask_of(nodes: IntArray, size: int) -> BoolArray:
    """Convert node indexes to a mask over all nodes."""
    mask = np.zeros(size, bool)
    mask[nodes] = True
    return mask


def label_value(labels: Mapping[str, str], key: str) -> str | None:
    """Return the value of a topology key, or of several joined by `+`; None if one is missing."""
    if "+" not in key:
        return labels.get(key)
    values = [labels.get(one) for one in key.split("+")]
    return None if None in values else "+".join(value for value in values if value is not None)


def _build_domains(ids: IntArray, values: tuple[str, ...]) -> TopologyDomains:
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], np.arange(len(values) + 1))
    members = [order[start:end] for start, end in pairwise(starts)]
    placements = sorted(map(Placement, values, members), key=lambda placement: placement.value)
    return TopologyDomains(ids, values, tuple(members), placements=tuple(placements))
