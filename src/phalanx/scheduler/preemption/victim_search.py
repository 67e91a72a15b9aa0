"""Proposes victims, and reprieves victims that need not be evicted.

`propose_victims` clears nodes in the order of price: for a member of some shape, the price of a
node is that of the least important units that must leave it. The cheapest node is cleared and the
member placed, then the next member; a unit that is evicted once costs nothing more. There is one
proposal for the whole cluster, or one per topology domain that all members must share. Proposals
only add up resources; `plan_search.py` verifies each with a cycle.

`necessary_units` takes a placement as given and returns the units that must go for it, trying to
keep the most important unit first. The result cannot be reduced without moving a member.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_shape import HostPort, PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.group_placement import Assignment, PlacementContext, sort_members
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import find_placements
from phalanx.scheduler.preemption.eviction_units import (
    UNITS_PER_STEP,
    EvictionCostModel,
    EvictionScope,
    EvictionUnit,
)

#: How many proposals are made at most.
MAX_PLACEMENTS = 3

#: How often the filters are asked which units of a plan can stay.
MAX_FILTER_QUESTIONS = 64
#: How many members are verified between two yields.
MEMBERS_PER_STEP = 64

#: The budgets exceeded, the gangs broken, and the number of trees, groups and pods evicted.
VictimPrice = tuple[int, int, int, int, int]


def propose_victims(
    entity: Entity,
    context: PlacementContext,
    units: Sequence[EvictionUnit],
    *,
    costs: EvictionCostModel,
    members: int,
) -> Generator[int, None, list[list[EvictionUnit]]]:
    """Return sets of units whose eviction may be sufficient, the cheapest first."""
    found = find_placements(entity, context.snapshot, context.nodes)
    if isinstance(found, EntityRejection):
        return []
    places = [context.nodes] if found is None else [placement.nodes for placement in found]
    capacity = _EvictableCapacity(context, units)
    yield from capacity.add_pods(costs)
    shapes = [member.shape for member in sort_members(entity.members)[:members]]
    shapes.sort(key=lambda shape: shape.nonzero_requests, reverse=True)
    proposals: list[tuple[VictimPrice, int, set[int]]] = []
    for number, nodes in enumerate(places):
        search = _VictimSearch(capacity, nodes)
        if (yield from search.place_members(shapes)):
            proposals.append((search.price, number, search.evicted))
    return [
        [unit for number, unit in enumerate(units) if number in evicted]
        for _, _, evicted in sorted(proposals)[:MAX_PLACEMENTS]
    ]


#: Amounts of resources, by column of the snapshot.
ResourceAmounts = tuple[tuple[int, int], ...]


class _EvictablePod(NamedTuple):
    """A pod that may be evicted, the index of its unit, and the resources that it frees."""

    unit_index: int
    amounts: ResourceAmounts
    #: Equal for pods that free the same resources at the same price.
    equivalence: int


class _EvictableCapacity:
    """The free resources of all nodes, and the pods on them that may be evicted."""

    def __init__(self, context: PlacementContext, units: Sequence[EvictionUnit]) -> None:
        self.context, self.units = context, units
        snapshot = context.snapshot
        self.free = (snapshot.allocatable - snapshot.requested).tolist()
        #: Of each unit, as if it was evicted alone.
        self.prices: list[VictimPrice] = []
        #: Keyed by identity, which is faster than hashing; the units keep the shapes alive.
        self._amounts_by_shape: dict[int, ResourceAmounts] = {}
        #: The evictable pods of each node, the least important unit first.
        self.pods_by_node: dict[int, list[_EvictablePod]] = {}

    def add_pods(self, costs: EvictionCostModel) -> Generator[int, None, None]:
        """Add the pods of all units, with the price of each unit."""
        index, equivalences = self.context.snapshot.index, dict[tuple[int, VictimPrice], int]()
        for number, unit in enumerate(self.units):
            if number % UNITS_PER_STEP == 0:
                yield number
            price = (
                costs.violations([unit]),
                len(costs.broken_groups([unit])),
                int(unit.scope is EvictionScope.TREE),
                int(unit.scope is EvictionScope.GROUP),
                unit.size,
            )
            self.prices.append(price)
            for pod in unit.pods:
                amounts, i = self.request_amounts(pod.shape), index.get(pod.node, -1)
                equivalence = equivalences.setdefault((id(amounts), price), len(equivalences))
                self.pods_by_node.setdefault(i, []).append(
                    _EvictablePod(number, amounts, equivalence)
                )

    def request_amounts(self, shape: PodShape) -> ResourceAmounts:
        """The resources that a shape requests."""
        found = self._amounts_by_shape.get(id(shape))
        if found is None:
            found = self._amounts_by_shape[id(shape)] = shape.request_vector(
                self.context.snapshot.columns
            ).amounts
        return found


class _VictimSearch:
    """Clears nodes for one member after the other."""

    def __init__(self, capacity: _EvictableCapacity, nodes: IntArray | None) -> None:
        self._capacity = capacity
        self._nodes = range(len(capacity.free)) if nodes is None else nodes.tolist()
        #: The free resources of nodes that have changed.
        self._free: dict[int, list[int]] = {}
        self.evicted: set[int] = set()
        self.price: VictimPrice = (0, 0, 0, 0, 0)

    def place_members(self, shapes: Iterable[PodShape]) -> Generator[int, None, bool]:
        """Place one member of each shape on the cheapest node; whether all were placed."""
        heap: list[tuple[VictimPrice, int]] = []
        last: PodShape | None = None
        for number, shape in enumerate(shapes):
            if number % UNITS_PER_STEP == 0:
                yield number
            if shape is not last:
                heap, last = self._node_prices(shape), shape
            if not self._place_one(shape, heap):
                return False
        return True

    def _node_prices(self, shape: PodShape) -> list[tuple[VictimPrice, int]]:
        context = self._capacity.context
        allowed = node_scores_of(context.snapshot, context.policy, shape).allowed_nodes.tolist()
        known: dict[object, VictimPrice | None] = {}
        heap = []
        for i in self._nodes:
            if allowed[i]:
                # Nodes with equal free resources and equal pods have the same price.
                pods = self._remaining_pods(i)
                key = tuple(self._free_on(i)), tuple([pod.equivalence for pod in pods])
                if key not in known:
                    victims = self._victims_on_node(shape, i)
                    known[key] = None if victims is None else self._total_price(victims)
                if (price := known[key]) is not None:
                    heap.append((price, i))
        heapify(heap)
        return heap

    def _free_on(self, i: int) -> list[int]:
        return self._free.get(i) or self._capacity.free[i]

    def _remaining_pods(self, i: int) -> list[_EvictablePod]:
        evicted, pods = self.evicted, self._capacity.pods_by_node.get(i, [])
        return [pod for pod in pods if pod.unit_index not in evicted] if evicted else pods

    def _place_one(self, shape: PodShape, heap: list[tuple[VictimPrice, int]]) -> bool:
        while heap:
            price, i = heappop(heap)
            victims = self._victims_on_node(shape, i)
            if victims is None:
                continue
            now = self._total_price(victims)
            if now > price:
                heappush(heap, (now, i))
                continue
            self._evict(victims, now)
            self._adjust_free(i, self._capacity.request_amounts(shape), sign=-1)
            if (more := self._victims_on_node(shape, i)) is not None:
                heappush(heap, (self._total_price(more), i))
            return True
        return False

    def _victims_on_node(self, shape: PodShape, i: int) -> list[int] | None:
        """The least important units that must leave a node for a member; None if none suffice."""
        free = self._free_on(i)
        lacking = [
            (c, amount - free[c])
            for c, amount in self._capacity.request_amounts(shape)
            if amount > free[c]
        ]
        if not lacking:
            return []
        pods = self._remaining_pods(i)
        for count in range(1, len(pods) + 1):
            if _frees_enough(pods[:count], lacking):
                return self._minimal_victims(pods, count, lacking)
        return None

    def _minimal_victims(
        self, pods: Sequence[_EvictablePod], count: int, lacking: Sequence[tuple[int, int]]
    ) -> list[int]:
        """The cheaper of a minimal subset of the first pods and a single sufficient pod."""
        chosen = list(pods[:count])
        for pod in reversed(chosen[:-1]):
            fewer = [other_pod for other_pod in chosen if other_pod is not pod]
            if _frees_enough(fewer, lacking):
                chosen = fewer
        alternatives = [[pod.unit_index for pod in chosen]]
        alternatives += [[pod.unit_index] for pod in pods if _frees_enough([pod], lacking)][:1]
        return min(alternatives, key=self._total_price)

    def _total_price(self, numbers: Iterable[int]) -> VictimPrice:
        violations = broken = trees = groups = pods = 0
        for number in numbers:
            beyond, gangs, tree, group, size = self._capacity.prices[number]
            violations, broken = violations + beyond, broken + gangs
            trees, groups, pods = trees + tree, groups + group, pods + size
        return violations, broken, trees, groups, pods

    def _evict(self, numbers: Iterable[int], price: VictimPrice) -> None:
        capacity, index = self._capacity, self._capacity.context.snapshot.index
        violations, broken, trees, groups, pods = (
            a + b for a, b in zip(self.price, price, strict=True)
        )
        self.price = violations, broken, trees, groups, pods
        for number in numbers:
            self.evicted.add(number)
            for pod in capacity.units[number].pods:
                amounts = capacity.request_amounts(pod.shape)
                self._adjust_free(index.get(pod.node, -1), amounts, sign=+1)

    def _adjust_free(self, i: int, amounts: ResourceAmounts, *, sign: int) -> None:
        free = self._free.get(i)
        if free is None:
            free = self._free[i] = list(self._capacity.free[i])
        for column, amount in amounts:
            free[column] += sign * amount


def _frees_enough(pods: Iterable[_EvictablePod], lacking: Sequence[tuple[int, int]]) -> bool:
    for column, amount in lacking:
        freed = sum(n for pod in pods for c, n in pod.amounts if c == column)
        if freed < amount:
            return False
    return True


def necessary_units(
    context: PlacementContext, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> Generator[int, None, list[EvictionUnit]]:
    """Return the units that must be evicted for these assignments, the least important first.

    In `context` all of the units are still present.
    """
    members = [assignment.member for assignment in assignments]
    simulation = PlacementSimulation(context.snapshot, context.policy, members)
    if not simulation.has_claims and all(
        simulation.depends_on_load_only(member) for member in members
    ):
        return (yield from _necessary_by_resources(context.snapshot, units, assignments))
    return (yield from _necessary_by_filters(context, units, assignments))


def _necessary_by_resources(
    snapshot: Snapshot, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> Generator[int, None, list[EvictionUnit]]:
    """Add up resources: sufficient if the filters of all members depend on the load only."""
    nodes = yield from _nodes_with_members(snapshot, units, assignments)
    necessary: list[EvictionUnit] = []
    for step, unit in enumerate(reversed(units)):
        if step % UNITS_PER_STEP == 0:
            yield step
        pods = [(nodes[pod.node], pod.shape) for pod in unit.pods if pod.node in nodes]
        for number, (node, shape) in enumerate(pods):
            if not node.try_keep_pod(shape):
                necessary.append(unit)
                for kept_on, kept_shape in pods[:number]:
                    kept_on.release_pod(kept_shape)
                break
    return necessary[::-1]


class _NodeReprieve:
    """A node with its new members, and the free resources for pods that may stay."""

    def __init__(self, snapshot: Snapshot, i: int) -> None:
        self._columns = snapshot.columns
        self._free = (snapshot.allocatable[i] - snapshot.requested[i]).tolist()
        self._requested_columns: dict[int, None] = {}
        self._ports: list[HostPort] = []

    def add_member(self, shape: PodShape) -> None:
        """Count a member of the entity on this node."""
        request = shape.request_vector(self._columns)
        for column, amount in request.amounts:
            self._free[column] -= amount
            self._requested_columns[column] = None
        self._ports += request.ports

    def release_pod(self, shape: PodShape) -> None:
        """Free the resources of a pod."""
        for column, amount in shape.request_vector(self._columns).amounts:
            self._free[column] += amount

    def try_keep_pod(self, shape: PodShape) -> bool:
        """Keep a pod if the members still fit; whether it stays."""
        request = shape.request_vector(self._columns)
        if any(port.conflicts_with(used) for port in request.ports for used in self._ports):
            return False
        for column, amount in request.amounts:
            self._free[column] -= amount
        if all(self._free[column] >= 0 for column in self._requested_columns):
            return True
        self.release_pod(shape)
        return False


def _nodes_with_members(
    snapshot: Snapshot, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> Generator[int, None, dict[str, _NodeReprieve]]:
    """The nodes of the assignments with their members, after the eviction of all units."""
    nodes: dict[str, _NodeReprieve] = {}
    for assignment in assignments:
        name = snapshot.names[assignment.node]
        if name not in nodes:
            nodes[name] = _NodeReprieve(snapshot, assignment.node)
        nodes[name].add_member(assignment.member.shape)
    for number, unit in enumerate(units):
        if number % UNITS_PER_STEP == 0:
            yield number
        for pod in unit.pods:
            if pod.node in nodes:
                nodes[pod.node].release_pod(pod.shape)
    return nodes


def _necessary_by_filters(
    context: PlacementContext, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> Generator[int, None, list[EvictionUnit]]:
    """Ask the filters of every member, bisecting the units so that many are spared at once.

    Mostly all units of other nodes are spared at once. At the limit of questions the units that
    are still in doubt go.
    """
    names = {context.snapshot.names[assignment.node] for assignment in assignments}
    near = {id(unit) for unit in units if any(pod.node in names for pod in unit.pods)}
    batches = [
        [unit for unit in reversed(units) if id(unit) in near],
        [unit for unit in reversed(units) if id(unit) not in near],
    ]
    necessary = list(units)
    for _ in range(MAX_FILTER_QUESTIONS):
        if not batches:
            break
        if not (batch := batches.pop()):
            continue
        reprieved = {id(unit) for unit in batch}
        remaining = [unit for unit in necessary if id(unit) not in reprieved]
        yield len(remaining)
        if (yield from assignments_hold(context, remaining, assignments)):
            necessary = remaining
        elif len(batch) > 1:
            half = len(batch) // 2
            batches += [batch[half:], batch[:half]]
    return necessary


def assignments_hold(
    context: PlacementContext, evicted: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> Generator[int, None, bool]:
    """Whether the filters accept the assignments, in order, if only these units are evicted."""
    snapshot = with_changes(
        context.snapshot, removed=[pod for unit in evicted for pod in unit.pods]
    )
    simulation = PlacementSimulation(
        snapshot, context.policy, [assignment.member for assignment in assignments]
    )
    for number, assignment in enumerate(assignments):
        if number % MEMBERS_PER_STEP == 0:
            yield number
        if not simulation.place_on(assignment.member, assignment.node):
            return False
    return simulation.meets_mutual_affinity()
