"""How well does a pod of this shape sit on this node? One row per opinion, 0 to 100, weighted.

A score reads one node only, so it is computed for all nodes at once when a view is built and for
a single node when its load moves; both forms give the same integers. Nothing here forbids a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.shape import Ask, Shape
from phalanx.scheduler.snapshot import CPU, MEMORY, IntArray, Snapshot, Spot

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """One opinion and its weight."""

    name: str
    weight: int
    everywhere: Callable[[Snapshot, Ask], IntArray]
    here: Callable[[Ask, Spot], int]


@dataclass(frozen=True, slots=True)
class Merit:
    """One opinion about what nodes are, whatever is on them; None where it has none."""

    name: str
    weight: int
    of: Callable[[Snapshot, Shape], IntArray | None]


def least_allocated(ask: Ask, spot: Spot) -> int:
    """The mean of the free shares of CPU and memory, in per cent: emptier is better."""
    room, scored = spot.room, spot.scored
    total = count = 0
    if capacity := room[CPU]:
        count = 1
        if (free := capacity - scored[CPU] - ask.scored_cpu) > 0:
            total = free * 100 // capacity
    if capacity := room[MEMORY]:
        count += 1
        if (free := capacity - scored[MEMORY] - ask.scored_memory) > 0:
            total += free * 100 // capacity
    return total // count if count else 0


def least_allocated_everywhere(snapshot: Snapshot, ask: Ask) -> IntArray:
    """The same for all nodes."""
    capacity = snapshot.room[:, : MEMORY + 1]
    free = capacity - snapshot.scored - (ask.scored_cpu, ask.scored_memory)
    shares = np.maximum(free, 0) * 100 // np.maximum(capacity, 1)
    counts = np.count_nonzero(capacity, axis=1)
    return np.asarray(shares.sum(axis=1) // np.maximum(counts, 1), np.int64)


def balanced_allocation(ask: Ask, spot: Spot) -> int:
    """Whether the pod evens out the used shares of CPU and memory; 75 where it changes nothing.

    A pod that asks for neither has no opinion.
    """
    if not (ask.cpu or ask.memory):
        return 0
    cpu_room, memory_room = spot.room[CPU], spot.room[MEMORY]
    if not (cpu_room and memory_room):
        return 75
    cpu, memory = spot.used[CPU], spot.used[MEMORY]
    before = _deviation(cpu / cpu_room, memory / memory_room)
    after = _deviation((cpu + ask.cpu) / cpu_room, (memory + ask.memory) / memory_room)
    return 50 + (50 + int((1 - after) * 100) - int((1 - before) * 100)) // 2


def _deviation(cpu: float, memory: float) -> float:
    """The standard deviation of two used shares, neither counted above the whole."""
    if cpu > 1.0:
        cpu = 1.0
    if memory > 1.0:
        memory = 1.0
    return abs(cpu - memory) / 2


def balanced_allocation_everywhere(snapshot: Snapshot, ask: Ask) -> IntArray:
    """The same for all nodes."""
    if not (ask.cpu or ask.memory):
        return np.zeros(len(snapshot), np.int64)
    room, used = snapshot.room[:, : MEMORY + 1], snapshot.used[:, : MEMORY + 1]
    gain = _balance(room, np.add(used, (ask.cpu, ask.memory))) - _balance(room, used)
    return np.where(room.all(axis=1), 50 + (50 + gain) // 2, 75)


def _balance(room: IntArray, used: IntArray) -> IntArray:
    """In per cent: 100 when CPU and memory are used in equal shares."""
    shares: FloatArray = np.minimum(used / np.maximum(room, 1), 1.0)
    deviation = np.abs(shares[:, CPU] - shares[:, MEMORY]) / 2
    return np.asarray((1 - deviation) * 100, np.int64)


SCORES = (
    Score("LeastAllocated", 1, least_allocated_everywhere, least_allocated),
    Score("BalancedAllocation", 1, balanced_allocation_everywhere, balanced_allocation),
)

_MEBIBYTE = 1024 * 1024
#: Less of an image than this, and more than that per container, make no difference.
_LEAST_IMAGE, _MOST_IMAGE = 23 * _MEBIBYTE, 1000 * _MEBIBYTE


def image_locality(snapshot: Snapshot, shape: Shape) -> IntArray | None:
    """How much of a pod's images a node has, those that few nodes have counting less."""
    images = shape.wishes.images
    found = [sizes for sizes in map(snapshot.sizes, images) if sizes.any()]
    if not found:
        return None
    total = np.zeros(len(snapshot), np.int64)
    for sizes in found:
        share = np.count_nonzero(sizes) / len(snapshot)
        total += np.asarray(sizes * share, np.int64)
    most = _MOST_IMAGE * len(images)
    clamped = np.clip(total, _LEAST_IMAGE, most)
    return np.asarray(100 * (clamped - _LEAST_IMAGE) // (most - _LEAST_IMAGE), np.int64)


MERITS = (Merit("ImageLocality", 1, image_locality),)
