"""How full should a node be? The strategies of NodeResourcesFit, over any resources.

    LeastAllocated              emptier is better: load is spread
    MostAllocated               fuller is better: nodes are packed
    RequestedToCapacityRatio    a broken line from how full a node is to what that is worth

An opinion is about one shape; it speaks of one node and of all, and says the same integers. What
nearly everybody uses, the emptiness of CPU and memory, has a form of its own for the inner loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, IntArray
from phalanx.scheduler.cluster.spot import Rows, Spot
from phalanx.scheduler.judging.stake import CPU_AND_MEMORY, Resource, Stake, counted

#: A point of a broken line: how full, in per cent, and what that is worth.
Point = tuple[int, int]


class Strategy(NamedTuple):
    """What a resource is worth, 0 to 100, by how much is taken of how much room (never zero)."""

    here: Callable[[int, int], int]
    everywhere: Callable[[IntArray, IntArray], IntArray]
    #: Whether what is worth nothing is left out of the mean, which is rounded then.
    leaves_out_zeros: bool = False


def _free(taken: int, room: int) -> int:
    return (room - taken) * 100 // room if taken < room else 0


def _free_everywhere(taken: IntArray, room: IntArray) -> IntArray:
    return np.asarray(np.maximum(room - taken, 0) * 100 // room, np.int64)


def _used(taken: int, room: int) -> int:
    return min(taken, room) * 100 // room


def _used_everywhere(taken: IntArray, room: IntArray) -> IntArray:
    return np.minimum(taken, room) * 100 // room


LEAST_ALLOCATED = Strategy(_free, _free_everywhere)
MOST_ALLOCATED = Strategy(_used, _used_everywhere)


def requested_to_capacity_ratio(line: Sequence[Point]) -> Strategy:
    """What a broken line says, whose points are in order."""
    worth = [_height(line, full) for full in range(101)]
    table: IntArray = np.array(worth, np.int64)
    return Strategy(
        lambda taken, room: worth[_used(taken, room)],
        lambda taken, room: table[_used_everywhere(taken, room)],
        leaves_out_zeros=True,
    )


def _height(line: Sequence[Point], at: int) -> int:
    """Where a broken line is; level outside its points, cut towards where a piece begins."""
    for (left, begin), (right, end) in pairwise(line):
        if left <= at <= right:
            climb = abs(end - begin) * (at - left) // (right - left)
            return begin + climb if end > begin else begin - climb
    return line[0][1] if at < line[0][0] else line[-1][1]


class Allocation:
    """The weighted mean over any resources, those left out that a node does not have."""

    __slots__ = ("_stakes", "_strategy")

    def __init__(self, strategy: Strategy, stakes: Iterable[Stake]) -> None:
        self._strategy, self._stakes = strategy, tuple(stakes)

    def here(self, spot: Spot) -> int:
        """What one node is worth."""
        worth_of, _, leaves_out_zeros = self._strategy
        total = weights = 0
        for stake in self._stakes:
            if room := spot.room[stake.column]:
                worth = worth_of(stake.taken(spot), room)
                if worth or not leaves_out_zeros:
                    total += worth * stake.weight
                    weights += stake.weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if leaves_out_zeros else total // weights

    def everywhere(self, rows: Rows) -> IntArray:
        """What many nodes are worth."""
        _, worth_of, leaves_out_zeros = self._strategy
        total = np.zeros(len(rows.room), np.int64)
        weights = np.zeros(len(rows.room), np.int64)
        for stake in self._stakes:
            room = rows.room[:, stake.column]
            worth = worth_of(stake.taken_everywhere(rows), np.maximum(room, 1))
            counts = (room > 0) & (worth > 0) if leaves_out_zeros else room > 0
            total += np.where(counts, worth * stake.weight, 0)
            weights += np.where(counts, stake.weight, 0)
        some = np.maximum(weights, 1)
        return (2 * total + weights) // (2 * some) if leaves_out_zeros else total // some


class Emptiness:
    """LeastAllocated over CPU and memory alike: the same as Allocation says, said faster."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self, shape: Shape) -> None:
        self._cpu, self._memory = shape.scored

    def here(self, spot: Spot) -> int:
        """What one node is worth."""
        room, scored = spot.room, spot.scored
        total = count = 0
        if capacity := room[CPU]:
            count = 1
            if (free := capacity - scored[CPU] - self._cpu) > 0:
                total = free * 100 // capacity
        if capacity := room[MEMORY]:
            count += 1
            if (free := capacity - scored[MEMORY] - self._memory) > 0:
                total += free * 100 // capacity
        return total // count if count else 0

    def everywhere(self, rows: Rows) -> IntArray:
        """What many nodes are worth."""
        cpu, memory = rows.room[:, CPU], rows.room[:, MEMORY]
        total = _share_left(cpu, rows.scored[:, CPU] + self._cpu)
        total += _share_left(memory, rows.scored[:, MEMORY] + self._memory)
        return np.where((cpu > 0) & (memory > 0), total >> 1, total)


def _share_left(room: IntArray, taken: IntArray) -> IntArray:
    """In per cent; nothing where there is no room at all."""
    return np.asarray(np.maximum(room - taken, 0) * 100 // np.maximum(room, 1), np.int64)


def allocation(
    strategy: Strategy = LEAST_ALLOCATED, resources: tuple[Resource, ...] = CPU_AND_MEMORY
) -> Callable[[Shape, Mapping[str, int]], Allocation | Emptiness]:
    """What shapes make of how full nodes are."""
    usual = strategy is LEAST_ALLOCATED and _are_cpu_and_memory_alike(resources)

    def opinion(shape: Shape, columns: Mapping[str, int]) -> Allocation | Emptiness:
        if usual:
            return Emptiness(shape)
        return Allocation(strategy, counted(shape, columns, resources))

    return opinion


def _are_cpu_and_memory_alike(resources: tuple[Resource, ...]) -> bool:
    weights = {resource.weight for resource in resources}
    return sorted(one.name for one in resources) == ["cpu", "memory"] and len(weights) == 1
