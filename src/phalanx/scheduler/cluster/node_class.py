"""Spot: one node as plain integers, what it has and what is on it. A value, for the inner loop.

Nodes that are equal and equally full share one spot, as pods that ask for the same share one shape:
what has been found out about a spot is true of all of them. Rows are many nodes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.pod_shape import RequestVector
    from phalanx.scheduler.cluster.snapshot import HostPorts

_LIMIT = 65_536
#: No row counts more than this of anything, whoever was put on a node by hand: arrays hold it.
_MAX_AMOUNT = 1 << 61


class NodeClass:
    """Room and load in the columns of a snapshot, and taken ports. Never changed.

    There is one for each value, so it is compared and hashed by identity.
    """

    __slots__ = ("allocatable", "nonzero_requested", "requested", "used_ports")

    def __init__(
        self,
        room: tuple[int, ...],
        used: tuple[int, ...],
        scored: tuple[int, ...],
        ports: HostPorts,
    ) -> None:
        self.allocatable, self.requested, self.nonzero_requested, self.used_ports = (
            room,
            used,
            scored,
            ports,
        )


class NodeClassPool:
    """The spots of one snapshot, each made once; or again, after too many were made."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], NodeClass] = {}

    def intern(self, cells: tuple[int, ...], width: int, ports: HostPorts) -> NodeClass:
        """The spot of a row: the room, what is used of it, and what scores count as used."""
        key = cells + ports
        spot = self._known.get(key)
        if spot is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            row = clamp_row(cells)
            spot = NodeClass(row[:width], row[width:-2], row[-2:], ports)
            self._known[key] = spot
        return spot

    def after_adding(self, node_class: NodeClass, request: RequestVector) -> NodeClass:
        """What becomes of a spot when a pod is put there."""
        room, used, (cpu, memory) = (
            node_class.allocatable,
            list(node_class.requested),
            node_class.nonzero_requested,
        )
        for column, amount in request.amounts:
            used[column] += amount
        cells = (*room, *used, cpu + request.nonzero_cpu, memory + request.nonzero_memory)
        return self.intern(cells, len(room), node_class.used_ports + request.ports)


def clamp_row(cells: tuple[int, ...]) -> tuple[int, ...]:
    """A row as an array can hold it."""
    return cells if max(cells) <= _MAX_AMOUNT else tuple([min(n, _MAX_AMOUNT) for n in cells])


class NodeTable(Protocol):
    """Many nodes as arrays, a row each."""

    @property
    def allocatable(self) -> NDArray[np.int64]:
        """What they have, a column per resource."""
        ...

    @property
    def requested(self) -> NDArray[np.int64]:
        """What is used of it."""
        ...

    @property
    def nonzero_requested(self) -> NDArray[np.int64]:
        """What scores count as used of CPU and memory."""
        ...
