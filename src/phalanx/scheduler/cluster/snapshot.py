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

When nodes are added or removed, `with_nodes` moves the rows. Masks, domains and scores of the nodes
that stay are carried over from the `previous` snapshot when they are asked for.

A snapshot does not know what is derived from it: the module that derives values keeps them in a
`SnapshotCache` of its own.

A `NodeClass` is one row as plain integers, for the inner loop. Nodes with equal allocatable amounts
and equal load share one NodeClass, as pods with equal requests share one PodShape: what a filter or
score computes for a class holds for all of its nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import chain, pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.api.core import Node, Taint
from phalanx.api.meta import Key
from phalanx.api.other_kinds import PodDisruptionBudget
from phalanx.api.selectors import LabelRequirement, label_number
from phalanx.scheduler.cluster.group_tree import GroupTrees
from phalanx.scheduler.cluster.node_index import (
    ImageIndex,
    LabelIndex,
    PreviousRows,
    index_rows,
    move_domain_ids,
    move_values,
)
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodIndex
from phalanx.scheduler.cluster.pod_shape import HostPorts, RequestVector
from phalanx.scheduler.devices.state import DeviceState
from phalanx.scheduler.volumes.state import VolumeState

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: The columns that every snapshot begins with.
CPU, MEMORY, PODS = 0, 1, 2
FIRST_COLUMNS = ("cpu", "memory", "pods")

_CHANGED_ROWS_LIMIT = 4096
_MASKS_LIMIT = 1024
_DOMAINS_LIMIT = 256
#: The number of classes in a pool.
_POOL_LIMIT = 65_536
#: The largest amount in a row. Manually bound pods may request more in sum than an array can
#: hold.
_MAX_AMOUNT = 1 << 61

#: The amounts of a node: allocatable, requested, nonzero requested; and the host ports in use.
NodeLoads = tuple[list[int], list[int], list[int], HostPorts]

_T = TypeVar("_T")


class NodeClass:
    """Allocatable and requested amounts in the columns of a snapshot, and host ports in use.

    Immutable. There is one object for each value, so it is compared and hashed by identity.
    """

    __slots__ = ("allocatable", "nonzero_requested", "requested", "used_ports")

    def __init__(
        self,
        allocatable: tuple[int, ...],
        requested: tuple[int, ...],
        nonzero_requested: tuple[int, ...],
        *,
        used_ports: HostPorts,
    ) -> None:
        self.allocatable, self.requested = allocatable, requested
        self.nonzero_requested, self.used_ports = nonzero_requested, used_ports


class NodeClassPool:
    """The node classes of one snapshot, one object for each value.

    When the pool is full it is cleared, and later classes are new objects.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], NodeClass] = {}

    def intern(self, cells: tuple[int, ...], width: int, ports: HostPorts) -> NodeClass:
        """Return the class of a row.

        `cells` holds `width` allocatable amounts, `width` requested amounts, then the nonzero
        requested CPU and memory.
        """
        key = cells + ports
        node_class = self._known.get(key)
        if node_class is None:
            if len(self._known) >= _POOL_LIMIT:
                self._known.clear()
            row = clamp_row(cells)
            node_class = NodeClass(row[:width], row[width:-2], row[-2:], used_ports=ports)
            self._known[key] = node_class
        return node_class

    def after_adding(self, node_class: NodeClass, request: RequestVector) -> NodeClass:
        """Return the class of a node of this class after one more pod is placed on it."""
        allocatable, requested = node_class.allocatable, list(node_class.requested)
        cpu, memory = node_class.nonzero_requested
        for column, amount in request.amounts:
            requested[column] += amount
        cpu, memory = cpu + request.nonzero_cpu, memory + request.nonzero_memory
        cells = (*allocatable, *requested, cpu, memory)
        return self.intern(cells, len(allocatable), node_class.used_ports + request.ports)


def clamp_row(cells: tuple[int, ...]) -> tuple[int, ...]:
    """Cap the amounts of a row so that an array can hold them."""
    return cells if max(cells) <= _MAX_AMOUNT else tuple([min(n, _MAX_AMOUNT) for n in cells])


class NodeTable(Protocol):
    """Many nodes as arrays, a row each."""

    @property
    def allocatable(self) -> IntArray:
        """The allocatable amounts, a column per resource."""
        ...

    @property
    def requested(self) -> IntArray:
        """The requested amounts, a column per resource."""
        ...

    @property
    def nonzero_requested(self) -> IntArray:
        """The CPU and memory that scores count as requested."""
        ...


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
    """A value that one module keeps with every snapshot, for as long as the snapshot exists.

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
        loads: Sequence[NodeLoads] = (),
    ) -> None:
        """Build rows from nodes sorted by name."""
        self.names = [node.metadata.name for node in nodes]
        #: The row of each node.
        self.index: Mapping[str, int] = {name: i for i, name in enumerate(self.names)}
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
        self.devices = DeviceState()
        self.volumes = VolumeState()
        #: Pending pods as if they ran on their nominated nodes.
        self.nominations: dict[Key, AssignedPod] = {}
        #: The snapshot that this one is a fork of; both have the same nodes.
        self.origin: Snapshot | None = None
        self.epoch = 0
        self._label_index, self._image_index = LabelIndex(), ImageIndex(nodes)
        self._start_caches()

    def _start_caches(self) -> None:
        """Forget everything that was computed from nodes."""
        self.changed_rows: list[int] = []
        #: The values of each `SnapshotCache`.
        self.derived: dict[SnapshotCache[Any], Any] = {}
        #: The snapshot with other nodes that this one follows, if no node changed since.
        self.previous: PreviousRows | None = None
        #: The rows of the nodes whose label is a number, and the numbers, by key.
        self._label_numbers: dict[str, tuple[IntArray, IntArray]] = {}
        self._masks: dict[LabelRequirement, BoolArray] = {}
        self._domains: dict[str, TopologyDomains] = {}
        self._image_sizes: dict[str, IntArray] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def nodes_matching(self, requirement: LabelRequirement) -> BoolArray:
        """Return which nodes' labels meet a requirement; cached until a node changes."""
        mask = self._masks.get(requirement)
        if mask is None:
            if len(self._masks) >= _MASKS_LIMIT:
                self._masks.clear()
            mask = self._carry_mask(requirement)
            if mask is None:
                mask = self._match_labels(requirement)
            self._masks[requirement] = mask
        return mask

    def _carry_mask(self, requirement: LabelRequirement) -> BoolArray | None:
        """Return the mask of the previous snapshot in the present rows, if it has one."""
        previous = self.previous
        found = previous.snapshot._masks.get(requirement) if previous else None
        if previous is None or found is None:
            return None
        mask = found[previous.rows]
        for i in previous.new_rows:
            mask[i] = requirement.matches(self.labels[i])
        return mask

    def _match_labels(self, requirement: LabelRequirement) -> BoolArray:
        """Find the nodes that differ from a node without the label; the others do not matter."""
        if len(self) == 1:
            return np.array([requirement.matches(self.labels[0])])
        key, operator, index = requirement.key, requirement.operator, self.index
        names = self._names_by_value(key)
        is_match = operator not in ("notin", "absent")
        mask = np.full(len(self), not is_match)
        if operator in ("in", "notin", "exists", "absent"):
            values = requirement.values if operator in ("in", "notin") else names
            found = [names[value] for value in values if value in names]
            mask[[index[name] for name in chain.from_iterable(found)]] = is_match
        else:
            numbered, numbers = self._numbers(key)
            mask[numbered] = numbers > requirement.bound
            if operator == "lt":
                mask[numbered] = numbers < requirement.bound
        return mask

    def _numbers(self, key: str) -> tuple[IntArray, IntArray]:
        """Return the rows of the nodes whose label is a number, and the numbers."""
        found = self._label_numbers.get(key)
        if found is None:
            pairs = [
                (self.index[name], number)
                for value, names in self._names_by_value(key).items()
                if (number := label_number(value)) is not None
                for name in names
            ]
            table = np.array(pairs, np.int64).reshape(-1, 2)
            found = self._label_numbers[key] = (table[:, 0], table[:, 1])
        return found

    def _names_by_value(self, key: str) -> Mapping[str, Mapping[str, None]]:
        """Return the names of the nodes with a label by its value."""
        self._label_index.build(zip(self.names, self.labels, strict=True))
        return self._label_index.names_by_value(key)

    def node_with_label(self, key: str, value: str) -> int | None:
        """Return the row of the only node with a label; None if no node or several have it."""
        names = self._names_by_value(key).get(value, {})
        return self.index[next(iter(names))] if len(names) == 1 else None

    def domains(self, key: str) -> TopologyDomains:
        """Return the domains of a topology key; cached until a node changes.

        Several label keys joined by `+` make one key: nodes of a domain share all of the labels.
        """
        found = self._domains.get(key)
        if found is None:
            if len(self._domains) >= _DOMAINS_LIMIT:
                self._domains.clear()
            ids, values = self._carry_domain_ids(key) or self._find_domain_ids(key)
            found = self._domains[key] = _build_domains(ids, values)
        return found

    def _find_domain_ids(self, key: str) -> tuple[IntArray, tuple[str, ...]]:
        """Number the values of a topology key; return the number of each node, and the values."""
        numbers: dict[str, int] = {}
        values = [label_value(labels, key) for labels in self.labels]
        ids = [-1 if one is None else numbers.setdefault(one, len(numbers)) for one in values]
        return np.array(ids, np.int64), tuple(numbers)

    def _carry_domain_ids(self, key: str) -> tuple[IntArray, tuple[str, ...]] | None:
        """Return the same from the domains of the previous snapshot, if it has them."""
        previous = self.previous
        found = previous.snapshot._domains.get(key) if previous else None
        if previous is None or found is None:
            return None
        new_values = [label_value(self.labels[i], key) for i in previous.new_rows]
        return move_domain_ids(found.ids, found.values, previous, new_values=new_values)

    def image_sizes(self, image: str) -> IntArray:
        """Return how many bytes of an image each node has; cached until a node changes."""
        found = self._image_sizes.get(image)
        if found is None:
            if len(self._image_sizes) >= _MASKS_LIMIT:
                self._image_sizes.clear()
            found = self._image_sizes[image] = self._find_image_sizes(image)
        return found

    def _find_image_sizes(self, image: str) -> IntArray:
        previous, sizes = self.previous, self._image_index.sizes(image)
        carried = previous.snapshot._image_sizes.get(image) if previous else None
        if previous is not None and carried is not None:
            found = carried[previous.rows]
            found[previous.new_rows] = [sizes.get(self.names[i], 0) for i in previous.new_rows]
            return found
        found = np.zeros(len(self), np.int64)
        if sizes:
            found[[self.index[name] for name in sizes]] = list(sizes.values())
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
        self, i: int, requested: list[int], nonzero_requested: list[int], *, ports: HostPorts
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
        if self.labels[i] != node.metadata.labels:
            self._label_index.remove(self.names[i], self.labels[i])
            self._label_index.add(self.names[i], node.metadata.labels)
            self.labels[i] = node.metadata.labels
            self._label_numbers.clear()
        self.cordoned[i] = node.spec.unschedulable
        self.taint_class[i] = self._taint_class_of(node.spec.taints)
        self._image_index.remove(node.metadata.name)
        self._image_index.add(node)
        for cached in (self._masks, self._domains, self._image_sizes):
            cached.clear()
        self._new_epoch()

    def with_nodes(self, changes: Mapping[str, tuple[Node, NodeLoads] | None]) -> Snapshot:
        """Return the snapshot with some nodes added, replaced or (None) removed.

        What was computed for the nodes that stay is carried over when it is asked for, see
        `PreviousRows`. The lists of this snapshot become those of the new one: copying them would
        take longer than all the rest. Only the cache calls this, and uses this snapshot no more.
        """
        self._flush_rows()
        names, labels = self.names, self.labels
        removed = sorted(self.index[name] for name in changes if name in self.index)
        for i in reversed(removed):
            self._label_index.remove(names[i], labels[i])
            self._image_index.remove(names[i])
            del names[i], labels[i]
        added = sorted((name, *change) for name, change in changes.items() if change)
        positions = [bisect_left(names, name) for name, _, _ in added]
        rows = np.insert(np.delete(np.arange(len(self)), removed), positions, -1)
        new_rows = [position + number for number, position in enumerate(positions)]
        new = copy(self)
        cells = np.delete(self._cells.T, removed, axis=1) if removed else self._cells.T
        new._set_cells((np.insert(cells, positions, 0, axis=1) if added else cells).T)
        new.cordoned, new.taint_class = self.cordoned[rows], self.taint_class[rows]
        new.used_ports = move_values(self.used_ports, rows)
        for i, (name, node, (allocatable, requested, nonzero, ports)) in zip(
            new_rows, added, strict=True
        ):
            names.insert(i, name)
            labels.insert(i, node.metadata.labels)
            self._label_index.add(name, node.metadata.labels)
            self._image_index.add(node)
            new._cells[i] = clamp_row((*allocatable, *requested, *nonzero))
            new.cordoned[i] = node.spec.unschedulable
            new.taint_class[i] = self._taint_class_of(node.spec.taints)
            new.update_ports(i, ports)
        new.index = index_rows(names)
        new._start_caches()
        new.previous = PreviousRows(self, rows, new_rows)
        if self.previous is not None:
            self.previous.snapshot._release()
            self.previous = None
        return new

    def _release(self) -> None:
        """Break reference cycles, so that the arrays are freed without a garbage collection."""
        self.derived.clear()
        del self.node_classes

    def select_node(self, i: int) -> Snapshot:
        """Return a snapshot of one node, for questions that do not depend on others."""
        self._flush_rows()
        one = copy(self)
        one.names, one.labels, one.index = [self.names[i]], [self.labels[i]], {self.names[i]: 0}
        one._set_cells(self._cells[i : i + 1])
        one.cordoned, one.taint_class = self.cordoned[i : i + 1], self.taint_class[i : i + 1]
        one.used_ports = {0: self.used_ports[i]} if i in self.used_ports else {}
        one._start_caches()
        return one

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

    def _new_epoch(self) -> None:
        self.epoch += 1
        self.changed_rows.clear()
        self.previous = None

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
