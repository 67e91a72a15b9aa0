"""Spot: one node as plain integers, what it has and what is on it. A value, for the inner loop.

Nodes that are equal and equally full share one spot, as pods that ask for the same share one shape:
what has been found out about a spot is true of all of them. Rows are many nodes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.shape import Ask
    from phalanx.scheduler.cluster.snapshot import Ports

_LIMIT = 65_536
#: No row counts more than this of anything, whoever was put on a node by hand: arrays hold it.
_TOO_MUCH = 1 << 61


class Spot:
    """Room and load in the columns of a snapshot, and taken ports. Never changed.

    There is one for each value, so it is compared and hashed by identity.
    """

    __slots__ = ("ports", "room", "scored", "used")

    def __init__(
        self, room: tuple[int, ...], used: tuple[int, ...], scored: tuple[int, ...], ports: Ports
    ) -> None:
        self.room, self.used, self.scored, self.ports = room, used, scored, ports


class Spots:
    """The spots of one snapshot, each made once; or again, after too many were made."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Spot] = {}

    def of(self, cells: tuple[int, ...], width: int, ports: Ports) -> Spot:
        """The spot of a row: the room, what is used of it, and what scores count as used."""
        key = cells + ports
        spot = self._known.get(key)
        if spot is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            row = bounded(cells)
            spot = Spot(row[:width], row[width:-2], row[-2:], ports)
            self._known[key] = spot
        return spot

    def after(self, spot: Spot, ask: Ask) -> Spot:
        """What becomes of a spot when a pod is put there."""
        room, used, (cpu, memory) = spot.room, list(spot.used), spot.scored
        for column, amount in ask.amounts:
            used[column] += amount
        cells = (*room, *used, cpu + ask.scored_cpu, memory + ask.scored_memory)
        return self.of(cells, len(room), spot.ports + ask.ports)


def bounded(cells: tuple[int, ...]) -> tuple[int, ...]:
    """A row as an array can hold it."""
    return cells if max(cells) <= _TOO_MUCH else tuple([min(n, _TOO_MUCH) for n in cells])


class Rows(Protocol):
    """Many nodes as arrays, a row each."""

    @property
    def room(self) -> NDArray[np.int64]:
        """What they have, a column per resource."""
        ...

    @property
    def used(self) -> NDArray[np.int64]:
        """What is used of it."""
        ...

    @property
    def scored(self) -> NDArray[np.int64]:
        """What scores count as used of CPU and memory."""
        ...
