"""NodeClass: the resources and host ports of one node as plain integers, for the inner loop.

Nodes with equal allocatable amounts and equal load share one NodeClass, as pods with equal requests
share one PodShape: what a filter or score computes for a class holds for all of its nodes.
`NodeTable` is the same information about many nodes as arrays.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.pod_shape import HostPorts, RequestVector

_LIMIT = 65_536
#: The largest amount in a row. Manually bound pods may request more in sum than an array
#: can hold.
_MAX_AMOUNT = 1 << 61


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
            if len(self._known) >= _LIMIT:
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
    def allocatable(self) -> NDArray[np.int64]:
        """The allocatable amounts, a column per resource."""
        ...

    @property
    def requested(self) -> NDArray[np.int64]:
        """The requested amounts, a column per resource."""
        ...

    @property
    def nonzero_requested(self) -> NDArray[np.int64]:
        """The CPU and memory that scores count as requested."""
        ...
