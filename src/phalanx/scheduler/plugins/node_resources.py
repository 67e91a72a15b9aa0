"""Stake: one resource as a score counts it: its column, what the pod adds to it, its weight.

What is stated to fit and what is counted to score differ for CPU and memory alone: `counted` takes
silent containers for small ones, `real` takes what is asked for. `allocation.py` and `balance.py`
make opinions of stakes.

How full should a node be? The strategies of NodeResourcesFit, over any resources.

    LeastAllocated              emptier is better: load is spread
    MostAllocated               fuller is better: nodes are packed
    RequestedToCapacityRatio    a broken line from how full a node is to what that is worth

An opinion is about one shape; it speaks of one node and of all, and says the same integers. What
nearly everybody uses, the emptiness of CPU and memory, has a form of its own for the inner loop.

Would a pod even out what is used of a node? NodeResourcesBalancedAllocation, over any resources.

The more equal the used shares of the resources, the better; what counts is how much better the pod
makes it: 75 where it changes nothing, up to 100 where it evens out, down to 50 where it unsettles.
A pod that asks for none of the resources has no opinion. As in `allocation.py` there is one form
for any resources and a faster one for CPU and memory, and both speak of one node and of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.node_class import NodeClass, NodeTable
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import CPU, FIRST_COLUMNS, MEMORY, BoolArray, IntArray

#: Resources that count even for pods that do not ask for them.
_ALWAYS_SCORED = ("cpu", "memory", "ephemeral-storage")
#: Other resources that count, beside those with a slash in their name.
_SCALAR_PREFIXES = ("hugepages-", "attachable-volumes-")


class ResourceWeight(NamedTuple):
    """A resource and how much it matters."""

    name: str
    weight: int = 1


CPU_AND_MEMORY = (ResourceWeight("cpu"), ResourceWeight("memory"))


class ScoredResource(NamedTuple):
    """A resource in the columns of one snapshot."""

    weight: int
    column: int
    requested: int
    #: Whether silent pods count as small ones.
    uses_nonzero: bool

    def current(self, node_class: NodeClass) -> int:
        """How much is taken of it on a node."""
        return (node_class.nonzero_requested if self.uses_nonzero else node_class.requested)[
            self.column
        ]

    def current_all(self, rows: NodeTable) -> IntArray:
        """The same for many nodes."""
        return (rows.nonzero_requested if self.uses_nonzero else rows.requested)[:, self.column]

    def with_pod(self, node_class: NodeClass) -> int:
        """How much would be taken of it on a node, with the pod."""
        return self.current(node_class) + self.requested

    def with_pod_all(self, rows: NodeTable) -> IntArray:
        """The same for many nodes."""
        return self.current_all(rows) + self.requested


def nonzero_scored_resources(
    shape: PodShape, columns: Mapping[str, int], resources: Iterable[ResourceWeight]
) -> list[ScoredResource]:
    """The stakes of a shape, silent pods counted as small ones."""
    silent = dict(zip(FIRST_COLUMNS, shape.nonzero_requests, strict=False))
    return [
        stake._replace(requested=silent[name], uses_nonzero=True) if name in silent else stake
        for name, stake in _scored_resources(shape, columns, resources)
    ]


def exact_scored_resources(
    shape: PodShape, columns: Mapping[str, int], resources: Iterable[ResourceWeight]
) -> list[ScoredResource]:
    """The stakes of a shape by what is asked for."""
    return [stake for _, stake in _scored_resources(shape, columns, resources)]


def _scored_resources(
    shape: PodShape, columns: Mapping[str, int], resources: Iterable[ResourceWeight]
) -> Iterator[tuple[str, ScoredResource]]:
    asked = dict(shape.requests)
    for name, weight in resources:
        column, amount = columns.get(name), asked.get(name, 0)
        if column is not None and (name in _ALWAYS_SCORED or (amount and _is_scalar(name))):
            yield name, ScoredResource(weight, column, amount, False)


def _is_scalar(name: str) -> bool:
    return "/" in name or name.startswith(_SCALAR_PREFIXES)


#: A point of a broken line: how full, in per cent, and what that is worth.
UtilizationPoint = tuple[int, int]


class AllocationStrategy(NamedTuple):
    """What a resource is worth, 0 to 100, by how much is taken of how much room (never zero)."""

    score: Callable[[int, int], int]
    score_all: Callable[[IntArray, IntArray], IntArray]
    #: Whether what is worth nothing is left out of the mean, which is rounded then.
    skips_zero_scores: bool = False


def _least_allocated(taken: int, room: int) -> int:
    return (room - taken) * 100 // room if taken < room else 0


def _least_allocated_all(taken: IntArray, room: IntArray) -> IntArray:
    return np.asarray(np.maximum(room - taken, 0) * 100 // room, np.int64)


def _most_allocated(taken: int, room: int) -> int:
    return min(taken, room) * 100 // room


def _most_allocated_all(taken: IntArray, room: IntArray) -> IntArray:
    return np.minimum(taken, room) * 100 // room


LEAST_ALLOCATED = AllocationStrategy(_least_allocated, _least_allocated_all)
MOST_ALLOCATED = AllocationStrategy(_most_allocated, _most_allocated_all)


def requested_to_capacity_ratio(points: Sequence[UtilizationPoint]) -> AllocationStrategy:
    """What a broken line says, whose points are in order."""
    worth = [_interpolate(points, full) for full in range(101)]
    table: IntArray = np.array(worth, np.int64)
    return AllocationStrategy(
        lambda taken, room: worth[_most_allocated(taken, room)],
        lambda taken, room: table[_most_allocated_all(taken, room)],
        skips_zero_scores=True,
    )


def _interpolate(points: Sequence[UtilizationPoint], at: int) -> int:
    """Where a broken line is; level outside its points, cut towards where a piece begins."""
    for (left, begin), (right, end) in pairwise(points):
        if left <= at <= right:
            climb = abs(end - begin) * (at - left) // (right - left)
            return begin + climb if end > begin else begin - climb
    return points[0][1] if at < points[0][0] else points[-1][1]


class AllocationScorer:
    """The weighted mean over any resources, those left out that a node does not have."""

    __slots__ = ("_resources", "_strategy")

    def __init__(self, strategy: AllocationStrategy, resources: Iterable[ScoredResource]) -> None:
        self._strategy, self._resources = strategy, tuple(resources)

    def score_node(self, node_class: NodeClass) -> int:
        """What one node is worth."""
        worth_of, _, leaves_out_zeros = self._strategy
        total = weights = 0
        for stake in self._resources:
            if room := node_class.allocatable[stake.column]:
                worth = worth_of(stake.with_pod(node_class), room)
                if worth or not leaves_out_zeros:
                    total += worth * stake.weight
                    weights += stake.weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if leaves_out_zeros else total // weights

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """What many nodes are worth."""
        _, worth_of, leaves_out_zeros = self._strategy
        total = np.zeros(len(rows.allocatable), np.int64)
        weights = np.zeros(len(rows.allocatable), np.int64)
        for stake in self._resources:
            room = rows.allocatable[:, stake.column]
            worth = worth_of(stake.with_pod_all(rows), np.maximum(room, 1))
            counts = (room > 0) & (worth > 0) if leaves_out_zeros else room > 0
            total += np.where(counts, worth * stake.weight, 0)
            weights += np.where(counts, stake.weight, 0)
        some = np.maximum(weights, 1)
        return (2 * total + weights) // (2 * some) if leaves_out_zeros else total // some


class CpuMemoryLeastAllocatedScorer:
    """LeastAllocated over CPU and memory alike: the same as Allocation says, said faster."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self, shape: PodShape) -> None:
        self._cpu, self._memory = shape.nonzero_requests

    def score_node(self, node_class: NodeClass) -> int:
        """What one node is worth."""
        room, scored = node_class.allocatable, node_class.nonzero_requested
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

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """What many nodes are worth."""
        cpu, memory = rows.allocatable[:, CPU], rows.allocatable[:, MEMORY]
        total = _free_percent(cpu, rows.nonzero_requested[:, CPU] + self._cpu)
        total += _free_percent(memory, rows.nonzero_requested[:, MEMORY] + self._memory)
        return np.where((cpu > 0) & (memory > 0), total >> 1, total)


def _free_percent(room: IntArray, taken: IntArray) -> IntArray:
    """In per cent; nothing where there is no room at all."""
    return np.asarray(np.maximum(room - taken, 0) * 100 // np.maximum(room, 1), np.int64)


def allocation_scorer_factory(
    strategy: AllocationStrategy = LEAST_ALLOCATED,
    resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY,
) -> Callable[[PodShape, Mapping[str, int]], AllocationScorer | CpuMemoryLeastAllocatedScorer]:
    """What shapes make of how full nodes are."""
    usual = strategy is LEAST_ALLOCATED and _is_cpu_and_memory_equally(resources)

    def opinion(
        shape: PodShape, columns: Mapping[str, int]
    ) -> AllocationScorer | CpuMemoryLeastAllocatedScorer:
        if usual:
            return CpuMemoryLeastAllocatedScorer(shape)
        return AllocationScorer(strategy, nonzero_scored_resources(shape, columns, resources))

    return opinion


def _is_cpu_and_memory_equally(resources: tuple[ResourceWeight, ...]) -> bool:
    weights = {resource.weight for resource in resources}
    return sorted(one.name for one in resources) == ["cpu", "memory"] and len(weights) == 1


FloatArray = NDArray[np.float64]


class ZeroScorer:
    """No opinion."""

    __slots__ = ()

    def score_node(self, node_class: NodeClass) -> int:
        """Nothing."""
        return 0

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """Nothing, of many nodes."""
        return np.zeros(len(rows.allocatable), np.int64)


class BalanceScorer:
    """The gain in balance over any resources, those left out that a node does not have."""

    __slots__ = ("_resources",)

    def __init__(self, resources: Iterable[ScoredResource]) -> None:
        self._resources = tuple(resources)

    def score_node(self, node_class: NodeClass) -> int:
        """What one node is worth."""
        stakes = [
            (one, room) for one in self._resources if (room := node_class.allocatable[one.column])
        ]
        after = [min(one.with_pod(node_class) / room, 1.0) for one, room in stakes]
        before = [
            min((one.with_pod(node_class) - one.requested) / room, 1.0) for one, room in stakes
        ]
        gain = int((1 - _deviation(after)) * 100) - int((1 - _deviation(before)) * 100)
        return 50 + (50 + gain) // 2

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """What many nodes are worth."""
        rooms = [rows.allocatable[:, one.column] for one in self._resources]
        after = [one.with_pod_all(rows) for one in self._resources]
        before = [taken - one.requested for taken, one in zip(after, self._resources, strict=True)]
        gain = _balance_all(rooms, after) - _balance_all(rooms, before)
        return np.broadcast_to(50 + (50 + gain) // 2, len(rows.allocatable))


def _deviation(shares: list[float]) -> float:
    """The standard deviation of used shares."""
    count = len(shares)
    if count < 2:
        return 0.0
    if count == 2:
        return abs(shares[0] - shares[1]) / 2
    mean = sum(shares) / count
    return sqrt(sum((share - mean) * (share - mean) for share in shares) / count)


def _balance_all(rooms: list[IntArray], taken: list[IntArray]) -> IntArray:
    """In per cent: 100 when all resources are used in equal shares.

    Adds up in the order of the resources, as for one node: sums of floats depend on it.
    """
    there = [room > 0 for room in rooms]
    shares = [np.minimum(t / np.maximum(r, 1), 1.0) for r, t in zip(rooms, taken, strict=True)]
    count = sum(there)
    some = np.maximum(count, 1)
    mean = sum(_fill_missing(there, shares, 0.0)) / some
    squares = [(share - mean) * (share - mean) for share in shares]
    spread = np.sqrt(sum(_fill_missing(there, squares, 0.0)) / some)
    most = np.max(_fill_missing(there, shares, 0.0), axis=0, initial=0.0)
    least = np.min(_fill_missing(there, shares, 1.0), axis=0, initial=1.0)
    pair = np.where(count == 2, (most - least) / 2, 0.0)
    deviation = np.where(np.greater(count, 2), spread, pair)
    return np.asarray((1 - deviation) * 100, np.int64)


def _fill_missing(
    there: list[BoolArray], parts: list[FloatArray], otherwise: float
) -> list[FloatArray]:
    """Something else where a node does not have a resource."""
    return [np.where(has, part, otherwise) for has, part in zip(there, parts, strict=True)]


class CpuMemoryBalanceScorer:
    """CPU and memory alone: the same as Balance says, said faster."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self, cpu: int, memory: int) -> None:
        self._cpu, self._memory = cpu, memory

    def score_node(self, node_class: NodeClass) -> int:
        """What one node is worth."""
        cpu_room, memory_room = node_class.allocatable[CPU], node_class.allocatable[MEMORY]
        if not (cpu_room and memory_room):
            return 75
        cpu, memory = node_class.requested[CPU], node_class.requested[MEMORY]
        before = _cpu_memory_deviation(cpu / cpu_room, memory / memory_room)
        after = _cpu_memory_deviation(
            (cpu + self._cpu) / cpu_room, (memory + self._memory) / memory_room
        )
        return 50 + (50 + int((1 - after) * 100) - int((1 - before) * 100)) // 2

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """What many nodes are worth."""
        cpu_room, memory_room = rows.allocatable[:, CPU], rows.allocatable[:, MEMORY]
        cpu, memory = rows.requested[:, CPU], rows.requested[:, MEMORY]
        some_cpu, some_memory = np.maximum(cpu_room, 1), np.maximum(memory_room, 1)
        before = _cpu_memory_balance(cpu / some_cpu, memory / some_memory)
        after = _cpu_memory_balance(
            (cpu + self._cpu) / some_cpu, (memory + self._memory) / some_memory
        )
        has_both = (cpu_room > 0) & (memory_room > 0)
        return np.where(has_both, 50 + ((50 + after - before) >> 1), 75)


def _cpu_memory_deviation(cpu: float, memory: float) -> float:
    """The standard deviation of two used shares, neither counted above the whole."""
    if cpu > 1.0:
        cpu = 1.0
    if memory > 1.0:
        memory = 1.0
    return abs(cpu - memory) / 2


def _cpu_memory_balance(cpu: FloatArray, memory: FloatArray) -> IntArray:
    """In per cent, of two used shares, neither counted above the whole."""
    deviation = np.abs(np.minimum(cpu, 1.0) - np.minimum(memory, 1.0)) / 2
    return np.asarray((1 - deviation) * 100, np.int64)


def balance_scorer_factory(
    resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY,
) -> Callable[[PodShape, Mapping[str, int]], BalanceScorer | CpuMemoryBalanceScorer | ZeroScorer]:
    """What shapes make of the balance of nodes."""
    usual = sorted(resource.name for resource in resources) == ["cpu", "memory"]

    def opinion(
        shape: PodShape, columns: Mapping[str, int]
    ) -> BalanceScorer | CpuMemoryBalanceScorer | ZeroScorer:
        asked = {name: amount for name, amount in shape.requests if name != "pods"}
        if not any(resource.name in asked for resource in resources):
            return ZeroScorer()
        if usual:
            return CpuMemoryBalanceScorer(asked.get("cpu", 0), asked.get("memory", 0))
        return BalanceScorer(exact_scored_resources(shape, columns, resources))

    return opinion
