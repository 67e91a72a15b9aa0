"""Clearing: the nodes that are cheapest to clear for so many members, and who would have to go.

For a member of a shape every node has a price: the lightest units that must leave it. The cheapest
node is cleared, its member seated, and so on; a unit that has gone once costs nothing more. One
proposal for the whole cluster, or one for each place that all members must share. Proposals are
guesses, made by adding up room alone: `preemption.py` has each tried by the cycle.

Sparing: who of those that were to be evicted may stay after all, the placement being what it is.

Asked of every plan of `preemption.py`, the one that is lost hardest first; what is left cannot be
spared without moving somebody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import HostPort, IntArray, Snapshot
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.group_placement import Assignment, PlacementContext, sort_members
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import find_placements
from phalanx.scheduler.preemption.eviction_units import EvictionScope, EvictionUnit

#: How many places are proposed at most.
MAX_PLACEMENTS = 3

#: Trees, groups and pods that are lost.
VictimPrice = tuple[int, int, int]


def propose_victims(
    entity: Entity, context: PlacementContext, units: Sequence[EvictionUnit], members: int
) -> Iterator[list[EvictionUnit]]:
    """Those who would have to go, the cheapest proposals first."""
    found = find_placements(entity, context.snapshot, context.nodes)
    if isinstance(found, EntityRejection):
        return
    places = [context.nodes] if found is None else [placement.nodes for placement in found]
    yard, shapes, proposals = (
        _EvictableCapacity(context, units),
        _member_shapes(entity, members),
        [],
    )
    for number, nodes in enumerate(places):
        clearing = _VictimSearch(yard, nodes)
        if clearing.place_members(shapes):
            proposals.append((clearing.price, number, clearing.evicted))
    for _, _, gone in sorted(proposals)[:MAX_PLACEMENTS]:
        yield [unit for number, unit in enumerate(units) if number in gone]


def _member_shapes(entity: Entity, members: int) -> list[PodShape]:
    """What the members ask for, the largest first."""
    shapes = [member.shape for member in sort_members(entity.members)[:members]]
    return sorted(shapes, key=lambda shape: shape.nonzero_requests, reverse=True)


#: What something takes of a node, by column.
ResourceAmounts = tuple[tuple[int, int], ...]


class _EvictablePod(NamedTuple):
    """A pod that could go, by the number of its unit, and what it would leave behind."""

    unit_index: int
    amounts: ResourceAmounts
    #: The same for pods that leave the same at the same price.
    equivalence: int


class _EvictableCapacity:
    """All nodes before anything is cleared: what is free, and who could leave what behind."""

    def __init__(self, context: PlacementContext, units: Sequence[EvictionUnit]) -> None:
        self.context, self.units = context, units
        snapshot = context.snapshot
        self.free = (snapshot.allocatable - snapshot.requested).tolist()
        self.prices: list[VictimPrice] = [
            (int(unit.rank is EvictionScope.TREE), int(unit.rank is EvictionScope.GROUP), unit.size)
            for unit in units
        ]
        #: By identity, since hashing takes longer; the units keep the shapes alive.
        self._amounts_by_shape: dict[int, ResourceAmounts] = {}
        #: For each node the units on it, the lightest first, with what each would leave there.
        self.pods_by_node: dict[int, list[_EvictablePod]] = {}
        sorts: dict[tuple[int, VictimPrice], int] = {}
        for number, unit in enumerate(units):
            for pod in unit.pods:
                amounts, i = self.request_amounts(pod.shape), snapshot.index.get(pod.node, -1)
                sort = sorts.setdefault((id(amounts), self.prices[number]), len(sorts))
                self.pods_by_node.setdefault(i, []).append(_EvictablePod(number, amounts, sort))

    def request_amounts(self, shape: PodShape) -> ResourceAmounts:
        """What a shape takes."""
        found = self._amounts_by_shape.get(id(shape))
        if found is None:
            found = self._amounts_by_shape[id(shape)] = shape.request_vector(
                self.context.snapshot.columns
            ).amounts
        return found


class _VictimSearch:
    """Nodes being cleared, one member after the other."""

    def __init__(self, capacity: _EvictableCapacity, nodes: IntArray | None) -> None:
        self._capacity = capacity
        self._nodes = range(len(capacity.free)) if nodes is None else nodes.tolist()
        #: What is free now where that has changed.
        self._free: dict[int, list[int]] = {}
        self.evicted: set[int] = set()
        self.price: VictimPrice = (0, 0, 0)

    def place_members(self, shapes: Iterable[PodShape]) -> bool:
        """Seat one member of each shape, wherever that is cheapest; whether all found a seat."""
        heap: list[tuple[VictimPrice, int]] = []
        last: PodShape | None = None
        for shape in shapes:
            if shape is not last:
                heap, last = self._node_prices(shape), shape
            if not self._place_one(shape, heap):
                return False
        return True

    def _node_prices(self, shape: PodShape) -> list[tuple[VictimPrice, int]]:
        ground = self._capacity.context
        allowed = node_scores_of(ground.snapshot, ground.policy, shape).allowed_nodes.tolist()
        known: dict[object, VictimPrice | None] = {}
        heap = []
        for i in self._nodes:
            if allowed[i]:
                sort = self._equivalence_key(i)
                if sort not in known:
                    who = self._victims_on_node(shape, i)
                    known[sort] = None if who is None else self._total_price(who)
                if (price := known[sort]) is not None:
                    heap.append((price, i))
        heapify(heap)
        return heap

    def _equivalence_key(self, i: int) -> object:
        """What nodes have in common that are cleared at the same price."""
        return tuple(self._free_on(i)), tuple([one.equivalence for one in self._remaining_pods(i)])

    def _free_on(self, i: int) -> list[int]:
        return self._free.get(i) or self._capacity.free[i]

    def _remaining_pods(self, i: int) -> list[_EvictablePod]:
        gone, there = self.evicted, self._capacity.pods_by_node.get(i, [])
        return [one for one in there if one.unit_index not in gone] if gone else there

    def _place_one(self, shape: PodShape, heap: list[tuple[VictimPrice, int]]) -> bool:
        while heap:
            price, i = heappop(heap)
            who = self._victims_on_node(shape, i)
            if who is None:
                continue
            now = self._total_price(who)
            if now > price:
                heappush(heap, (now, i))
                continue
            self._evict(who, now)
            self._adjust_free(i, self._capacity.request_amounts(shape), -1)
            if (more := self._victims_on_node(shape, i)) is not None:
                heappush(heap, (self._total_price(more), i))
            return True
        return False

    def _victims_on_node(self, shape: PodShape, i: int) -> list[int] | None:
        """Who must leave a node for a member of a shape: as few of the lightest as will do."""
        free = self._free_on(i)
        lacking = [
            (c, amount - free[c])
            for c, amount in self._capacity.request_amounts(shape)
            if amount > free[c]
        ]
        if not lacking:
            return []
        here = self._remaining_pods(i)
        for count in range(1, len(here) + 1):
            if _frees_enough(here[:count], lacking):
                return self._minimal_victims(here, count, lacking)
        return None

    def _minimal_victims(
        self, pods: Sequence[_EvictablePod], count: int, lacking: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Of those who suffice together no more than needed, or one who suffices alone."""
        chosen = list(pods[:count])
        for one in reversed(chosen[:-1]):
            fewer = [other for other in chosen if other is not one]
            if _frees_enough(fewer, lacking):
                chosen = fewer
        ways = [[one.unit_index for one in chosen]]
        ways += [[one.unit_index] for one in pods if _frees_enough([one], lacking)][:1]
        return min(ways, key=self._total_price)

    def _total_price(self, numbers: Iterable[int]) -> VictimPrice:
        trees = groups = pods = 0
        for number in numbers:
            tree, group, size = self._capacity.prices[number]
            trees, groups, pods = trees + tree, groups + group, pods + size
        return trees, groups, pods

    def _evict(self, numbers: Iterable[int], price: VictimPrice) -> None:
        yard, index = self._capacity, self._capacity.context.snapshot.index
        trees, groups, pods = (a + b for a, b in zip(self.price, price, strict=True))
        self.price = trees, groups, pods
        for number in numbers:
            self.evicted.add(number)
            for pod in yard.units[number].pods:
                self._adjust_free(index.get(pod.node, -1), yard.request_amounts(pod.shape), +1)

    def _adjust_free(self, i: int, amounts: ResourceAmounts, sign: int) -> None:
        free = self._free.get(i)
        if free is None:
            free = self._free[i] = list(self._capacity.free[i])
        for column, amount in amounts:
            free[column] += sign * amount


def _frees_enough(pods: Iterable[_EvictablePod], lacking: Sequence[tuple[int, int]]) -> bool:
    """Whether these leave enough behind."""
    for column, amount in lacking:
        left = sum(n for one in pods for c, n in one.amounts if c == column)
        if left < amount:
            return False
    return True


def necessary_units(
    context: PlacementContext, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> list[EvictionUnit]:
    """Those of the units, the lightest first, that must go for these members to have their seats.

    `ground` is the cluster with all of them still there.
    """
    members = [seat.member for seat in assignments]
    trial = PlacementSimulation(context.snapshot, context.policy, members)
    if all(trial.depends_on_load_only(member) for member in members):
        return _necessary_by_resources(context.snapshot, units, assignments)
    return _necessary_by_filters(context, units, assignments)


def _necessary_by_resources(
    snapshot: Snapshot, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> list[EvictionUnit]:
    """Where members mind nothing but room it is enough to add up."""
    tables = _nodes_with_members(snapshot, units, assignments)
    kept: list[EvictionUnit] = []
    for unit in reversed(units):
        concerned = [(tables[pod.node], pod.shape) for pod in unit.pods if pod.node in tables]
        for number, (table, shape) in enumerate(concerned):
            if not table.try_keep_pod(shape):
                kept.append(unit)
                for undone, one in concerned[:number]:
                    undone.release_pod(one)
                break
    return kept[::-1]


class _NodeReprieve:
    """One node with members seated, and what room is left to those who would like to stay."""

    def __init__(self, snapshot: Snapshot, i: int) -> None:
        self._columns = snapshot.columns
        self._free = (snapshot.allocatable[i] - snapshot.requested[i]).tolist()
        self._requested_columns: dict[int, None] = {}
        self._ports: list[HostPort] = []

    def add_member(self, shape: PodShape) -> None:
        """A member sits down here."""
        ask = shape.request_vector(self._columns)
        for column, amount in ask.amounts:
            self._free[column] -= amount
            self._requested_columns[column] = None
        self._ports += ask.ports

    def release_pod(self, shape: PodShape) -> None:
        """Somebody leaves."""
        for column, amount in shape.request_vector(self._columns).amounts:
            self._free[column] += amount

    def try_keep_pod(self, shape: PodShape) -> bool:
        """Have somebody stay, if the members still have what they asked for."""
        ask = shape.request_vector(self._columns)
        if any(port.conflicts_with(mine) for port in ask.ports for mine in self._ports):
            return False
        for column, amount in ask.amounts:
            self._free[column] -= amount
        if all(self._free[column] >= 0 for column in self._requested_columns):
            return True
        self.release_pod(shape)
        return False


def _nodes_with_members(
    snapshot: Snapshot, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> dict[str, _NodeReprieve]:
    """The nodes on which members sit, without those who are to go."""
    tables: dict[str, _NodeReprieve] = {}
    for seat in assignments:
        name = snapshot.names[seat.node]
        if name not in tables:
            tables[name] = _NodeReprieve(snapshot, seat.node)
        tables[name].add_member(seat.member.shape)
    for unit in units:
        for pod in unit.pods:
            if pod.node in tables:
                tables[pod.node].release_pod(pod.shape)
    return tables


def _necessary_by_filters(
    context: PlacementContext, units: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> list[EvictionUnit]:
    """Ask the filters of every member anew, for as many units at once as can be spared together."""
    kept = list(units)
    heaps = [list(reversed(units))]
    while heaps:
        heap = heaps.pop()
        spared = {id(unit) for unit in heap}
        left = [unit for unit in kept if id(unit) not in spared]
        if assignments_hold(context, left, assignments):
            kept = left
        elif len(heap) > 1:
            half = len(heap) // 2
            heaps += [heap[half:], heap[:half]]
    return kept


def assignments_hold(
    context: PlacementContext, evicted: Sequence[EvictionUnit], assignments: Sequence[Assignment]
) -> bool:
    """Whether members may sit where they do, in their order, with only these gone."""
    snapshot = with_changes(
        context.snapshot, removed=[pod for unit in evicted for pod in unit.pods]
    )
    trial = PlacementSimulation(snapshot, context.policy, [seat.member for seat in assignments])
    return all(trial.place_on(seat.member, seat.node) for seat in assignments)
