"""The cheapest victims for equal members, as if every node could be cleared by itself.

For members of one shape that constrain each other by resources only, clearing a node for so many
members has a price that does not depend on other nodes. The prices of one node come from all
combinations of its pods; the cheapest selection of nodes comes from a table over nodes and members:

    price of n1   1 member: 1 pod    2 members: 3 pods
    price of n2   1 member: 2 pods                         2 members in all: 3 pods, on n1 and n2

This leaves out what couples nodes: disruption budgets, quorums of gangs, and units with pods on
several nodes, which cost nothing here. So the price is a lower bound of the cost of any victims. If
the real cost of the selection is equal to it, no other victims cost less.

Nodes with equal free resources and equal pods have equal prices, which are computed once. Of such
nodes at most as many as there are members are compared: those with the latest started victims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product, repeat
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, mask_of
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.group_placement import Assignment, PlacementContext, sort_members
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import find_placements, topology_levels
from phalanx.scheduler.preemption.eviction_units import EvictionScope, EvictionUnit
from phalanx.scheduler.search.solver import Steps

#: Classes of pods, combinations of pods per node, and cells of the table over nodes and members.
MAX_CLASSES, MAX_COMBINATIONS, MAX_CELLS = 256, 4_000, 200_000
#: How many cells are computed between two yields.
CELLS_PER_STEP = 5_000
#: Trees, groups and pods are one number: each counts more than all of the next.
_SCALE = 1 << 20
#: The price of a unit of one pod; units of several pods cost nothing here.
_SINGLE_UNIT_PRICES = {
    EvictionScope.POD: 1,
    EvictionScope.GROUP: _SCALE + 1,
    EvictionScope.TREE: _SCALE * _SCALE + 1,
}
#: The start rank of a selection without victims: better than any other.
_NO_VICTIM = -1
#: An amount by which a node that a member may not use is short.
_NEVER = 1 << 60


class RelaxedPlan(NamedTuple):
    """The cheapest units to evict if nodes were independent, and the nodes of the members."""

    units: list[EvictionUnit]
    assignments: list[Assignment]


class _Price(NamedTuple):
    """What clearing a node costs: trees, groups and pods; then how old the oldest victim is."""

    amount: int
    #: The position of the start time among all start times, the latest first.
    start_rank: int = _NO_VICTIM


class _Option(NamedTuple):
    """How nodes of one sort hold so many members: the price, and how many pods of each class go."""

    amount: int
    counts: list[tuple[int, ...]]


#: Nodes with the number of their members: the earlier ones, a node, its members.
_Selection = tuple["_Selection | None", int, int]


class NodeRelaxation:
    """The nodes, the members and the units of one preemption, for members of one shape."""

    def __init__(
        self, entity: Entity, context: PlacementContext, units: Sequence[EvictionUnit]
    ) -> None:
        self._units, self._members = units, sort_members(entity.members)
        snapshot, shape = context.snapshot, entity.members[0].shape
        scores = node_scores_of(snapshot, context.policy, shape)
        self._columns = [column for column, _ in scores.request.amounts]
        self._request = [amount for _, amount in scores.request.amounts]
        allowed: BoolArray = scores.allowed_nodes
        if context.nodes is not None:
            allowed = allowed & mask_of(context.nodes, len(snapshot))
        self._free: IntArray = (snapshot.allocatable - snapshot.requested)[:, self._columns]
        self._free[~allowed] = -_NEVER
        self._domains = _find_domains(entity, context)
        self._priorities = np.array([unit.priority for unit in units], np.int64)
        starts = sorted({unit.start_time for unit in units}, reverse=True)
        ranks = {start: rank for rank, start in enumerate(starts)}
        self._start_ranks = np.array([ranks[unit.start_time] for unit in units], np.int64)
        self._snapshot = snapshot

    @staticmethod
    def is_applicable(entity: Entity, context: PlacementContext) -> bool:
        """Whether the members are equal, and the node of each depends on resources only."""
        shape = entity.members[0].shape
        if entity.is_composite or shape.ports or shape.claims or shape.volumes.is_dynamic:
            return False
        if not context.policy.checks_capacity:
            return False
        if any(member.shape != shape for member in entity.members):
            return False
        scores = node_scores_of(context.snapshot, context.policy, shape)
        simulation = PlacementSimulation(context.snapshot, context.policy, entity.members)
        return not scores.request.has_unknown_resource and all(
            simulation.depends_on_load_only(member) for member in entity.members
        )

    def read_pods(self) -> Steps[None]:
        """Read the node, the unit and the class of each pod that may be evicted; comes first.

        Pods of one class free the same amounts at the same price. Each pass over tens of thousands
        of pods is a step.
        """
        units, snapshot = self._units, self._snapshot
        yield len(units)
        pods = [pod for unit in units for pod in unit.pods]
        sizes = [unit.size for unit in units]
        yield len(pods)
        prices = [_SINGLE_UNIT_PRICES[unit.scope] if unit.size == 1 else 0 for unit in units]
        self._pod_units: IntArray = np.repeat(np.arange(len(units)), sizes)
        yield len(pods)
        nodes = map(snapshot.index.get, [pod.node for pod in pods], repeat(-1))
        self._pod_nodes: IntArray = np.fromiter(nodes, np.int64, len(pods))
        yield len(pods)
        shapes = {id(pod.shape): pod.shape for pod in pods}
        numbers = {shape_id: number for number, shape_id in enumerate(shapes)}
        vectors = [
            dict(shape.request_vector(snapshot.columns).amounts) for shape in shapes.values()
        ]
        freed = [tuple(vector.get(column, 0) for column in self._columns) for vector in vectors]
        yield len(pods)
        pod_shapes = np.array([numbers[id(pod.shape)] for pod in pods], np.int64)
        pod_prices = np.repeat(np.array(prices, np.int64), sizes)
        yield len(pods)
        pairs, classes = np.unique(pod_prices * (len(shapes) + 1) + pod_shapes, return_inverse=True)
        #: The class of each pod, and the price and the freed amounts of each class.
        self._pod_classes: IntArray = classes.reshape(-1)
        self._class_prices = [int(pair) // (len(shapes) + 1) for pair in pairs]
        self._class_freed = [freed[int(pair) % (len(shapes) + 1)] for pair in pairs]

    def count_placeable(self, usable: BoolArray) -> int:
        """Count the members that fit in one domain once the usable units are gone."""
        pods = usable[self._pod_units] & (self._pod_nodes >= 0)
        nodes, classes = self._pod_nodes[pods], self._pod_classes[pods]
        capacity: IntArray = np.full(len(self._free), len(self._members), np.int64)
        for column, amount in enumerate(self._request):
            per_class = np.array([freed[column] for freed in self._class_freed], float)
            freed_here = np.bincount(nodes, per_class[classes], len(self._free)).astype(np.int64)
            free = np.maximum(self._free[:, column] + freed_here, 0)
            capacity = np.minimum(capacity, free // amount)
        most = max((int(capacity[domain].sum()) for domain in self._domains), default=0)
        return min(most, len(self._members))

    def lowest_priority(self, usable: BoolArray, members: int) -> int | None:
        """Return the lowest priority so that usable units up to it make enough room."""
        levels = sorted(set(self._priorities.tolist()))
        low, high = 0, len(levels)
        while low < high:
            middle = (low + high) // 2
            if self.count_placeable(usable & self.up_to_priority(levels[middle])) >= members:
                high = middle
            else:
                low = middle + 1
        return levels[low] if low < len(levels) else None

    def up_to_priority(self, priority: int) -> BoolArray:
        """Return which units have at most this priority."""
        found: BoolArray = self._priorities <= priority
        return found

    def find_plan(self, usable: BoolArray, members: int) -> Steps[RelaxedPlan | None]:
        """Return the cheapest plan with usable units; None if there are too many combinations."""
        if len(self._class_prices) > MAX_CLASSES:
            return None
        pods = np.flatnonzero(usable[self._pod_units] & (self._pod_nodes >= 0))
        prices = _NodePrices(self, pods, members)
        best: tuple[_Price, _Selection] | None = None
        for nodes in self._domains:
            found = yield from prices.select_nodes(nodes)
            if found is None:
                return None
            price, selection = found
            if selection is not None and (best is None or price < best[0]):
                best = price, selection
        if best is None:
            return None
        waiting, evicted = iter(self._members), dict[int, None]()
        assignments: list[Assignment] = []
        selection = best[1]
        while selection is not None:
            selection, node, count = selection
            evicted |= dict.fromkeys(prices.victims(node, count))
            assignments += [Assignment(next(waiting), node) for _ in range(count)]
        return RelaxedPlan([self._units[number] for number in sorted(evicted)], assignments)

    # ---- read by _NodePrices ---------------------------------------------------------------------

    def sort_pods(self, pods: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Sort pods by node, class and start, the latest first; return them, and their nodes."""
        ranks = self._start_ranks[self._pod_units[pods]]
        order = np.lexsort((ranks, self._pod_classes[pods], self._pod_nodes[pods]))
        pods = pods[order]
        return pods, self._pod_nodes[pods], ranks[order]

    def count_classes(self, pods: IntArray) -> IntArray:
        """Count the pods of each class on each node."""
        counts = np.zeros((len(self._free), max(len(self._class_prices), 1)), np.int64)
        np.add.at(counts, (self._pod_nodes[pods], self._pod_classes[pods]), 1)
        return counts

    def free_amounts(self, nodes: IntArray) -> IntArray:
        """Return the free amounts of nodes, by requested column."""
        found: IntArray = self._free[nodes]
        return found

    def unit_numbers(self, pods: Sequence[int]) -> list[int]:
        """Return the units of pods."""
        found: list[int] = self._pod_units[list(pods)].tolist()
        return found

    def compute_options(
        self, free: Sequence[int], sizes: Sequence[int], members: int
    ) -> list[_Option] | None:
        """Return how a node holds 1, 2, … members; None if there are too many combinations."""
        classes = [number for number, size in enumerate(sizes) if size]
        combinations = 1
        for number in classes:
            combinations *= sizes[number] + 1
        if combinations > MAX_COMBINATIONS:
            return None
        found: dict[int, _Option] = {}
        for chosen in product(*(range(sizes[number] + 1) for number in classes)):
            pairs = [(n, number) for n, number in zip(chosen, classes, strict=True) if n]
            price = sum(n * self._class_prices[number] for n, number in pairs)
            most = members
            for column, amount in enumerate(self._request):
                freed = sum(n * self._class_freed[number][column] for n, number in pairs)
                most = min(most, max(free[column] + freed, 0) // amount)
            for held in range(1, most + 1):
                best = found.get(held)
                if best is None or price < best.amount:
                    found[held] = _Option(price, [chosen])
                elif price == best.amount:
                    best.counts.append(chosen)
        return [found[held] for held in sorted(found)]


def _find_domains(entity: Entity, context: PlacementContext) -> list[IntArray]:
    levels = topology_levels(entity)
    key = "" if isinstance(levels, EntityRejection) else levels[-1].key
    placements = find_placements(entity, context.snapshot, context.nodes, key=key)
    if placements is None:
        return [np.arange(len(context.snapshot))]
    return [] if isinstance(placements, EntityRejection) else [one.nodes for one in placements]


class _NodePrices:
    """The price of each node for each number of members, with these pods."""

    def __init__(self, relaxation: NodeRelaxation, pods: IntArray, members: int) -> None:
        self._relaxation, self._members = relaxation, members
        self._class_counts = relaxation.count_classes(pods)
        self._pods, nodes, self._ranks = relaxation.sort_pods(pods)
        #: Where the pods of each node begin.
        self._begins = np.searchsorted(nodes, np.arange(len(self._class_counts)))
        self._options: dict[bytes, list[_Option] | None] = {}
        self._options_by_node: dict[int, list[_Option]] = {}

    def select_nodes(self, nodes: IntArray) -> Steps[tuple[_Price, _Selection | None] | None]:
        """Return the cheapest selection of nodes; None if there are too many combinations."""
        rows = np.hstack((self._relaxation.free_amounts(nodes), self._class_counts[nodes]))
        sorts, numbers = np.unique(rows, axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
        priced: list[tuple[int, list[_Price]]] = []
        yield len(nodes)
        for number, row in enumerate(sorts):
            key = row.tobytes()
            if key not in self._options:
                yield number
                width = rows.shape[1] - self._class_counts.shape[1]
                self._options[key] = self._relaxation.compute_options(
                    row[:width].tolist(), row[width:].tolist(), self._members
                )
            options = self._options[key]
            if options is None:
                return None
            if options:
                priced += self._price_nodes(nodes[numbers == number], options)
        priced.sort(key=lambda pair: pair[0])
        cells = self._members * sum(len(prices) for _, prices in priced)
        return (yield from self._select_by_table(priced)) if cells <= MAX_CELLS else None

    def _price_nodes(
        self, nodes: IntArray, options: list[_Option]
    ) -> Iterator[tuple[int, list[_Price]]]:
        """Price nodes with equal options: those that are among the best for some of these."""
        ranks = np.stack([self._oldest_ranks(nodes, option) for option in options], axis=1)
        kept: dict[int, None] = {}
        for column in range(len(options)):
            best = np.argsort(ranks[:, column], kind="stable")[: self._members]
            kept |= dict.fromkeys(best.tolist())
        for at in kept:
            node, row = int(nodes[at]), ranks[at].tolist()
            self._options_by_node[node] = options
            yield node, [_Price(o.amount, rank) for o, rank in zip(options, row, strict=True)]

    def _oldest_ranks(self, nodes: IntArray, option: _Option) -> IntArray:
        """Return the start rank of the oldest victim on each node, in the best combination."""
        sizes = self._class_counts[nodes[0]]
        offsets = np.cumsum(sizes)[sizes > 0] - sizes[sizes > 0]
        found: list[IntArray] = []
        for counts in option.counts:
            oldest: IntArray = np.full(len(nodes), _NO_VICTIM, np.int64)
            for offset, count in zip(offsets.tolist(), counts, strict=True):
                if count:
                    last = self._begins[nodes] + offset + count - 1
                    oldest = np.maximum(oldest, self._ranks[last])
            found.append(oldest)
        best: IntArray = np.min(found, axis=0)
        return best

    def _select_by_table(
        self, priced: Sequence[tuple[int, list[_Price]]]
    ) -> Steps[tuple[_Price, _Selection | None]]:
        cells = 0
        table: list[tuple[_Price, _Selection | None] | None] = [None] * (self._members + 1)
        table[0] = _Price(0), None
        for node, prices in priced:
            cells += self._members * len(prices)
            if cells >= CELLS_PER_STEP:
                yield cells
                cells = 0
            for total in range(self._members, 0, -1):
                best = table[total]
                for count, (amount, rank) in enumerate(prices[:total], 1):
                    before = table[total - count]
                    if before is not None:
                        now = _Price(before[0][0] + amount, max(before[0][1], rank))
                        if best is None or now < best[0]:
                            best = now, (before[1], node, count)
                table[total] = best
        return table[self._members] or (_Price(0), None)

    def victims(self, node: int, count: int) -> list[int]:
        """Return the numbers of the units that leave a node for so many members."""
        here, option = np.array([node]), self._options_by_node[node][count - 1]
        combination = min(
            option.counts,
            key=lambda counts: int(self._oldest_ranks(here, _Option(option.amount, [counts]))[0]),
        )
        sizes = self._class_counts[node]
        leaving: list[int] = []
        begin = int(self._begins[node])
        for size, gone in zip(sizes[sizes > 0].tolist(), combination, strict=True):
            leaving += self._pods[begin : begin + gone].tolist()
            begin += size
        return self._relaxation.unit_numbers(leaving)
