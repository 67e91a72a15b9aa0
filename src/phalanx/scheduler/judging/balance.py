"""Would a pod even out what is used of a node? NodeResourcesBalancedAllocation, over any resources.

The more equal the used shares of the resources, the better; what counts is how much better the pod
makes it: 75 where it changes nothing, up to 100 where it evens out, down to 50 where it unsettles.
A pod that asks for none of the resources has no opinion. As in `allocation.py` there is one form
for any resources and a faster one for CPU and memory, and both speak of one node and of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, BoolArray, IntArray
from phalanx.scheduler.cluster.spot import Rows, Spot
from phalanx.scheduler.judging.stake import CPU_AND_MEMORY, Resource, Stake, real

FloatArray = NDArray[np.float64]


class Indifference:
    """No opinion."""

    __slots__ = ()

    def here(self, spot: Spot) -> int:
        """Nothing."""
        return 0

    def everywhere(self, rows: Rows) -> IntArray:
        """Nothing, of many nodes."""
        return np.zeros(len(rows.room), np.int64)


class Balance:
    """The gain in balance over any resources, those left out that a node does not have."""

    __slots__ = ("_stakes",)

    def __init__(self, stakes: Iterable[Stake]) -> None:
        self._stakes = tuple(stakes)

    def here(self, spot: Spot) -> int:
        """What one node is worth."""
        stakes = [(one, room) for one in self._stakes if (room := spot.room[one.column])]
        after = [min(one.taken(spot) / room, 1.0) for one, room in stakes]
        before = [min((one.taken(spot) - one.asked) / room, 1.0) for one, room in stakes]
        gain = int((1 - _deviation(after)) * 100) - int((1 - _deviation(before)) * 100)
        return 50 + (50 + gain) // 2

    def everywhere(self, rows: Rows) -> IntArray:
        """What many nodes are worth."""
        rooms = [rows.room[:, one.column] for one in self._stakes]
        after = [one.taken_everywhere(rows) for one in self._stakes]
        before = [taken - one.asked for taken, one in zip(after, self._stakes, strict=True)]
        gain = _balance_everywhere(rooms, after) - _balance_everywhere(rooms, before)
        return np.broadcast_to(50 + (50 + gain) // 2, len(rows.room))


def _deviation(shares: list[float]) -> float:
    """The standard deviation of used shares."""
    count = len(shares)
    if count < 2:
        return 0.0
    if count == 2:
        return abs(shares[0] - shares[1]) / 2
    mean = sum(shares) / count
    return sqrt(sum((share - mean) * (share - mean) for share in shares) / count)


def _balance_everywhere(rooms: list[IntArray], taken: list[IntArray]) -> IntArray:
    """In per cent: 100 when all resources are used in equal shares.

    Adds up in the order of the resources, as for one node: sums of floats depend on it.
    """
    there = [room > 0 for room in rooms]
    shares = [np.minimum(t / np.maximum(r, 1), 1.0) for r, t in zip(rooms, taken, strict=True)]
    count = sum(there)
    some = np.maximum(count, 1)
    mean = sum(_filled(there, shares, 0.0)) / some
    squares = [(share - mean) * (share - mean) for share in shares]
    spread = np.sqrt(sum(_filled(there, squares, 0.0)) / some)
    most = np.max(_filled(there, shares, 0.0), axis=0, initial=0.0)
    least = np.min(_filled(there, shares, 1.0), axis=0, initial=1.0)
    pair = np.where(count == 2, (most - least) / 2, 0.0)
    deviation = np.where(np.greater(count, 2), spread, pair)
    return np.asarray((1 - deviation) * 100, np.int64)


def _filled(there: list[BoolArray], parts: list[FloatArray], otherwise: float) -> list[FloatArray]:
    """Something else where a node does not have a resource."""
    return [np.where(has, part, otherwise) for has, part in zip(there, parts, strict=True)]


class Symmetry:
    """CPU and memory alone: the same as Balance says, said faster."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self, cpu: int, memory: int) -> None:
        self._cpu, self._memory = cpu, memory

    def here(self, spot: Spot) -> int:
        """What one node is worth."""
        cpu_room, memory_room = spot.room[CPU], spot.room[MEMORY]
        if not (cpu_room and memory_room):
            return 75
        cpu, memory = spot.used[CPU], spot.used[MEMORY]
        before = _difference(cpu / cpu_room, memory / memory_room)
        after = _difference((cpu + self._cpu) / cpu_room, (memory + self._memory) / memory_room)
        return 50 + (50 + int((1 - after) * 100) - int((1 - before) * 100)) // 2

    def everywhere(self, rows: Rows) -> IntArray:
        """What many nodes are worth."""
        cpu_room, memory_room = rows.room[:, CPU], rows.room[:, MEMORY]
        cpu, memory = rows.used[:, CPU], rows.used[:, MEMORY]
        some_cpu, some_memory = np.maximum(cpu_room, 1), np.maximum(memory_room, 1)
        before = _symmetry(cpu / some_cpu, memory / some_memory)
        after = _symmetry((cpu + self._cpu) / some_cpu, (memory + self._memory) / some_memory)
        has_both = (cpu_room > 0) & (memory_room > 0)
        return np.where(has_both, 50 + ((50 + after - before) >> 1), 75)


def _difference(cpu: float, memory: float) -> float:
    """The standard deviation of two used shares, neither counted above the whole."""
    if cpu > 1.0:
        cpu = 1.0
    if memory > 1.0:
        memory = 1.0
    return abs(cpu - memory) / 2


def _symmetry(cpu: FloatArray, memory: FloatArray) -> IntArray:
    """In per cent, of two used shares, neither counted above the whole."""
    deviation = np.abs(np.minimum(cpu, 1.0) - np.minimum(memory, 1.0)) / 2
    return np.asarray((1 - deviation) * 100, np.int64)


def balance(
    resources: tuple[Resource, ...] = CPU_AND_MEMORY,
) -> Callable[[Shape, Mapping[str, int]], Balance | Symmetry | Indifference]:
    """What shapes make of the balance of nodes."""
    usual = sorted(resource.name for resource in resources) == ["cpu", "memory"]

    def opinion(shape: Shape, columns: Mapping[str, int]) -> Balance | Symmetry | Indifference:
        asked = {name: amount for name, amount in shape.requests if name != "pods"}
        if not any(resource.name in asked for resource in resources):
            return Indifference()
        if usual:
            return Symmetry(asked.get("cpu", 0), asked.get("memory", 0))
        return Balance(real(shape, columns, resources))

    return opinion
