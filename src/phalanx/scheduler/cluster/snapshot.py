"""Snapshot: the cluster at one moment as a struct of arrays.

Row i of every array is the node `names[i]`; names are sorted, so that of two equal nodes the lower
index is the lower name. Columns are resources: cpu, memory and pods first, then whatever nodes and
pods name. The cache alone writes here, between cycles; a cycle reads, and places on a `Trial`.

What a node *is* (room, labels, taints, cordon) changes seldom and starts a new `epoch`. What is
*on* it changes all the time and is noted in `journal`, from which views are patched:

    epoch 3, journal []        a view is built                      seen 0
    a gang lands on 7 and 9    journal [7, 9]                       the view repeats rows 7 and 9
    node 9 is cordoned         epoch 4, journal []                  the view is built anew
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.api.core import Node, Taint
from phalanx.api.meta import Key
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.group_tree import GroupTrees
from phalanx.scheduler.cluster.node_class import NodeClass, NodeClassPool, clamp_row
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodIndex

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.pod_shape import PodShape
    from phalanx.scheduler.placement.node_scores import NodeScores
    from phalanx.scheduler.placement.topology_domains import DomainCapacities
    from phalanx.scheduler.policy import SchedulerPolicy

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: The columns that every snapshot begins with.
CPU, MEMORY, PODS = 0, 1, 2
FIRST_COLUMNS = ("cpu", "memory", "pods")

#: So much of anything no node counts as having: 64Pi of memory. A hundred times as much is still a
#: number of the tables, as scores need it.
UNSATISFIABLE_AMOUNT = 1 << 56

_JOURNAL_LIMIT = 4096
_MASKS_LIMIT = 1024


class HostPort(NamedTuple):
    """A port of the node itself that a pod takes."""

    address: str
    protocol: str
    number: int

    def conflicts_with(self, other: HostPort) -> bool:
        """Whether two pods cannot have both on one node."""
        if (self.protocol, self.number) != (other.protocol, other.number):
            return False
        return self.address == other.address or ANY_ADDRESS in (self.address, other.address)


#: The address that stands for all others.
ANY_ADDRESS = "0.0.0.0"
HostPorts = tuple[HostPort, ...]


class Placement(NamedTuple):
    """Nodes that share a label, by index, lowest first."""

    value: str
    nodes: IntArray


class TopologyDomains(NamedTuple):
    """The domains of a key: the number of the one that each node is in, -1 for none."""

    ids: IntArray
    #: What the label says in each of them.
    values: tuple[str, ...]
    #: The nodes in each of them; None where each node is one.
    members: tuple[IntArray, ...] | None = None
    #: The same as placements, by value.
    placements: tuple[Placement, ...] = ()

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.values)

    def nodes(self, number: int) -> IntArray:
        """The nodes in one of them."""
        return np.array([number]) if self.members is None else self.members[number]

    @property
    def labelled(self) -> BoolArray:
        """The nodes that are in one."""
        return self.ids >= 0


class NodeClassByRow(dict[int, NodeClass]):
    """The rows of a snapshot as they are now; what is missing is read when it is asked for."""

    __slots__ = ("_snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    def __missing__(self, i: int) -> NodeClass:
        spot = self[i] = self._snapshot.read_row(i)
        return spot


class Snapshot:
    """The cluster at one moment. `used` is exact; `scored` counts silent pods as small ones."""

    def __init__(
        self,
        nodes: Sequence[Node],
        columns: Mapping[str, int],
        loads: Sequence[tuple[list[int], list[int], list[int], HostPorts]] = (),
    ) -> None:
        """Of nodes sorted by name, and of each its room, what is used, what scores count, ports."""
        self.names = [node.metadata.name for node in nodes]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.columns = dict(columns)
        width = self._width = len(columns)
        rows = [clamp_row((*room, *used, *scored)) for room, used, scored, _ in loads]
        self._set_cells(np.array(rows, np.int64).reshape(len(nodes), 2 * width + 2))
        #: The node ports that are taken, of the nodes where any is.
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
        #: The different sets of taints, numbered; nodes have few different ones.
        self.taints: dict[tuple[Taint, ...], int] = {}
        self.taint_class: IntArray = np.array(
            [self._taint_class_of(n.spec.taints) for n in nodes], np.int64
        )
        #: Live members with a node (bound or assumed) per PodGroup.
        self.member_counts: dict[Key, int] = {}
        self.group_trees = GroupTrees()
        self.budgets: dict[Key, PodDisruptionBudget] = {}
        self.pod_index = PodIndex()
        #: Pods without a node, as if they were where they are promised to be once others have left.
        self.nominations: dict[Key, AssignedPod] = {}
        #: The images that are on any node: of each on which, and how many bytes of it.
        self._images: dict[str, dict[int, int]] = {}
        for i, node in enumerate(nodes):
            self._record_images(i, node)
        #: The cluster whose twin this is, if it is one: their nodes are the same.
        self.origin: Snapshot | None = None
        self.epoch = 0
        self.changed_rows: list[int] = []
        #: What `view.py` derived from this snapshot, the least recently used first.
        self.node_scores: dict[tuple[SchedulerPolicy, PodShape], NodeScores] = {}
        #: What `sites.py` derived from it, likewise.
        self.domain_capacities: dict[tuple[SchedulerPolicy, PodShape, str], DomainCapacities] = {}
        self._masks: dict[LabelRequirement, BoolArray] = {}
        self._domains: dict[str, TopologyDomains] = {}
        self._image_sizes: dict[str, IntArray] = {}

    def __len__(self) -> int:
        return len(self.names)

    def nodes_matching(self, requirement: LabelRequirement) -> BoolArray:
        """Which nodes' labels meet a requirement; remembered until a node changes."""
        mask = self._masks.get(requirement)
        if mask is None:
            if len(self._masks) >= _MASKS_LIMIT:
                self._masks.clear()
            mask = np.array([requirement.matches(labels) for labels in self.labels], bool)
            self._masks[requirement] = mask
        return mask

    def domains(self, key: str) -> TopologyDomains:
        """The domains that a label, or several joined by `+`, divides the nodes into; remembered
        until a node changes.
        """
        found = self._domains.get(key)
        if found is None:
            numbers: dict[str, int] = {}
            values = (label_value(labels, key) for labels in self.labels)
            ids = [-1 if v is None else numbers.setdefault(v, len(numbers)) for v in values]
            found = self._domains[key] = _build_domains(np.array(ids, np.int64), tuple(numbers))
        return found

    def image_sizes(self, image: str) -> IntArray:
        """How many bytes of an image each node has; remembered until a node changes."""
        found = self._image_sizes.get(image)
        if found is None:
            if len(self._image_sizes) >= _MASKS_LIMIT:
                self._image_sizes.clear()
            found = self._image_sizes[image] = np.zeros(len(self), np.int64)
            for i, size in self._images.get(image, {}).items():
                found[i] = size
        return found

    def fork(self) -> Snapshot:
        """The same cluster, to be changed by whoever asks, within one cycle."""
        self._flush_rows()
        twin = copy(self)
        twin.origin = self
        twin._set_cells(self._cells.copy("F"))
        twin.used_ports, twin.changed_rows, twin.node_scores, twin.domain_capacities = (
            dict(self.used_ports),
            [],
            {},
            {},
        )
        return twin

    @property
    def allocatable(self) -> IntArray:
        """What nodes have."""
        return self._cells[:, : self._width]

    @property
    def requested(self) -> IntArray:
        """What is used of it."""
        self._flush_rows()
        return self._cells[:, self._width : 2 * self._width]

    @property
    def nonzero_requested(self) -> IntArray:
        """What scores count as used of CPU and memory."""
        self._flush_rows()
        return self._cells[:, 2 * self._width :]

    def node_class(self, i: int) -> NodeClass:
        """One row as it is now."""
        return self.node_classes[i]

    def read_row(self, i: int) -> NodeClass:
        """One row as the tables show it."""
        cells, ports = tuple(self._cells[i].tolist()), self.used_ports.get(i, ())
        return self.node_class_pool.intern(cells, self._width, ports)

    def update_load(self, i: int, used: list[int], scored: list[int], ports: HostPorts) -> None:
        """Rewrite what is on a node. Only the cache calls this."""
        by_row, journal = self.node_classes, self.changed_rows
        before = by_row[i]
        cells = (*before.allocatable, *used, *scored)
        by_row[i] = self._unflushed_rows[i] = self.node_class_pool.intern(cells, self._width, ports)
        if ports or before.used_ports:
            self.update_ports(i, ports)
        journal.append(i)
        if len(journal) > _JOURNAL_LIMIT and len(journal) > 2 * len(self.names):
            self._new_epoch()

    def update_ports(self, i: int, ports: HostPorts) -> None:
        """Rewrite which ports of a node are taken. Only the cache calls this."""
        if ports:
            self.used_ports[i] = ports
        else:
            self.used_ports.pop(i, None)

    def update_node(self, i: int, node: Node, room: list[int]) -> None:
        """Rewrite what a node is. Only the cache calls this."""
        self._flush_rows()
        self.allocatable[i] = room
        self.node_classes.pop(i, None)
        self.labels[i] = node.metadata.labels
        self.cordoned[i] = node.spec.unschedulable
        self.taint_class[i] = self._taint_class_of(node.spec.taints)
        for nodes in self._images.values():
            nodes.pop(i, None)
        self._record_images(i, node)
        for remembered in (self._masks, self._domains, self._image_sizes):
            remembered.clear()
        self._new_epoch()

    def _set_cells(self, cells: IntArray) -> None:
        """One block, so that a row is copied out at once; the three tables are windows on it.

        Columns lie in one piece: whatever looks at all nodes goes through them one by one.
        """
        self._cells = np.asfortranarray(cells)
        self.node_classes = NodeClassByRow(self)
        #: Those of them whose load is not in the tables yet: mostly nobody looks before the next.
        self._unflushed_rows: dict[int, NodeClass] = {}

    def _flush_rows(self) -> None:
        if self._unflushed_rows:
            loads = [
                spot.requested + spot.nonzero_requested for spot in self._unflushed_rows.values()
            ]
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
    """Some nodes, given by index, as a mask over all."""
    mask = np.zeros(size, bool)
    mask[nodes] = True
    return mask


def label_value(labels: Mapping[str, str], key: str) -> str | None:
    """What labels say to a key, or to several joined by `+`; None if one of them is not there."""
    if "+" not in key:
        return labels.get(key)
    values = [labels.get(one) for one in key.split("+")]
    return None if None in values else "+".join(value for value in values if value is not None)


def _build_domains(ids: IntArray, values: tuple[str, ...]) -> TopologyDomains:
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], np.arange(len(values) + 1))
    ends = starts[1:]
    members = [order[start:end] for start, end in zip(starts[:-1], ends, strict=True)]
    places = sorted(map(Placement, values, members), key=lambda place: place.value)
    return TopologyDomains(ids, values, tuple(members), tuple(places))
