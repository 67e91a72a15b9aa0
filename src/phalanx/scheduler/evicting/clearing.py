"""Clearing: the nodes that are cheapest to clear for so many members, and who would have to go.

For a member of a shape every node has a price: the lightest units that must leave it. The cheapest
node is cleared, its member seated, and so on; a unit that has gone once costs nothing more. One
proposal for the whole cluster, or one for each place that all members must share. Proposals are
guesses, made by adding up room alone: `preemption.py` has each tried by the cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.evicting.units import Rank, Unit
from phalanx.scheduler.placing.attempt import Ground, in_order
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.placing.topology import placements
from phalanx.scheduler.placing.view import view_of

#: How many places are proposed at most.
MOST_PLACES = 3

#: Trees, groups and pods that are lost.
Price = tuple[int, int, int]


def cleared(
    entity: Entity, ground: Ground, units: Sequence[Unit], members: int
) -> Iterator[list[Unit]]:
    """Those who would have to go, the cheapest proposals first."""
    found = placements(entity, ground.snapshot, ground.nodes)
    if isinstance(found, Objection):
        return
    places = [ground.nodes] if found is None else [placement.nodes for placement in found]
    yard, shapes, proposals = _Yard(ground, units), _shapes(entity, members), []
    for number, nodes in enumerate(places):
        clearing = _Clearing(yard, nodes)
        if clearing.seat(shapes):
            proposals.append((clearing.price, number, clearing.gone))
    for _, _, gone in sorted(proposals)[:MOST_PLACES]:
        yield [unit for number, unit in enumerate(units) if number in gone]


def _shapes(entity: Entity, members: int) -> list[Shape]:
    """What the members ask for, the largest first."""
    shapes = [member.shape for member in in_order(entity.members)[:members]]
    return sorted(shapes, key=lambda shape: shape.scored, reverse=True)


#: What something takes of a node, by column.
Amounts = tuple[tuple[int, int], ...]


class _Leaver(NamedTuple):
    """A pod that could go, by the number of its unit, and what it would leave behind."""

    number: int
    amounts: Amounts
    #: The same for pods that leave the same at the same price.
    sort: int


class _Yard:
    """All nodes before anything is cleared: what is free, and who could leave what behind."""

    def __init__(self, ground: Ground, units: Sequence[Unit]) -> None:
        self.ground, self.units = ground, units
        snapshot = ground.snapshot
        self.free = (snapshot.room - snapshot.used).tolist()
        self.prices: list[Price] = [
            (int(unit.rank is Rank.TREE), int(unit.rank is Rank.GROUP), unit.size) for unit in units
        ]
        #: By identity, since hashing takes longer; the units keep the shapes alive.
        self._asks: dict[int, Amounts] = {}
        #: For each node the units on it, the lightest first, with what each would leave there.
        self.there: dict[int, list[_Leaver]] = {}
        sorts: dict[tuple[int, Price], int] = {}
        for number, unit in enumerate(units):
            for pod in unit.pods:
                amounts, i = self.ask(pod.shape), snapshot.index.get(pod.node, -1)
                sort = sorts.setdefault((id(amounts), self.prices[number]), len(sorts))
                self.there.setdefault(i, []).append(_Leaver(number, amounts, sort))

    def ask(self, shape: Shape) -> Amounts:
        """What a shape takes."""
        found = self._asks.get(id(shape))
        if found is None:
            found = self._asks[id(shape)] = shape.ask(self.ground.snapshot.columns).amounts
        return found


class _Clearing:
    """Nodes being cleared, one member after the other."""

    def __init__(self, yard: _Yard, nodes: IntArray | None) -> None:
        self._yard = yard
        self._nodes = range(len(yard.free)) if nodes is None else nodes.tolist()
        #: What is free now where that has changed.
        self._free: dict[int, list[int]] = {}
        self.gone: set[int] = set()
        self.price: Price = (0, 0, 0)

    def seat(self, shapes: Iterable[Shape]) -> bool:
        """Seat one member of each shape, wherever that is cheapest; whether all found a seat."""
        heap: list[tuple[Price, int]] = []
        last: Shape | None = None
        for shape in shapes:
            if shape is not last:
                heap, last = self._prices(shape), shape
            if not self._seat_one(shape, heap):
                return False
        return True

    def _prices(self, shape: Shape) -> list[tuple[Price, int]]:
        ground = self._yard.ground
        allowed = view_of(ground.snapshot, ground.policy, shape).allowed.tolist()
        known: dict[object, Price | None] = {}
        heap = []
        for i in self._nodes:
            if allowed[i]:
                sort = self._sort(i)
                if sort not in known:
                    who = self._way(shape, i)
                    known[sort] = None if who is None else self._sum(who)
                if (price := known[sort]) is not None:
                    heap.append((price, i))
        heapify(heap)
        return heap

    def _sort(self, i: int) -> object:
        """What nodes have in common that are cleared at the same price."""
        return tuple(self._free_on(i)), tuple([one.sort for one in self._here(i)])

    def _free_on(self, i: int) -> list[int]:
        return self._free.get(i) or self._yard.free[i]

    def _here(self, i: int) -> list[_Leaver]:
        gone, there = self.gone, self._yard.there.get(i, [])
        return [one for one in there if one.number not in gone] if gone else there

    def _seat_one(self, shape: Shape, heap: list[tuple[Price, int]]) -> bool:
        while heap:
            price, i = heappop(heap)
            who = self._way(shape, i)
            if who is None:
                continue
            now = self._sum(who)
            if now > price:
                heappush(heap, (now, i))
                continue
            self._clear(who, now)
            self._add(i, self._yard.ask(shape), -1)
            if (more := self._way(shape, i)) is not None:
                heappush(heap, (self._sum(more), i))
            return True
        return False

    def _way(self, shape: Shape, i: int) -> list[int] | None:
        """Who must leave a node for a member of a shape: as few of the lightest as will do."""
        free = self._free_on(i)
        lacking = [(c, amount - free[c]) for c, amount in self._yard.ask(shape) if amount > free[c]]
        if not lacking:
            return []
        here = self._here(i)
        for count in range(1, len(here) + 1):
            if _suffices(here[:count], lacking):
                return self._fewest(here, count, lacking)
        return None

    def _fewest(
        self, here: Sequence[_Leaver], count: int, lacking: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Of those who suffice together no more than needed, or one who suffices alone."""
        chosen = list(here[:count])
        for one in reversed(chosen[:-1]):
            fewer = [other for other in chosen if other is not one]
            if _suffices(fewer, lacking):
                chosen = fewer
        ways = [[one.number for one in chosen]]
        ways += [[one.number] for one in here if _suffices([one], lacking)][:1]
        return min(ways, key=self._sum)

    def _sum(self, numbers: Iterable[int]) -> Price:
        trees = groups = pods = 0
        for number in numbers:
            tree, group, size = self._yard.prices[number]
            trees, groups, pods = trees + tree, groups + group, pods + size
        return trees, groups, pods

    def _clear(self, numbers: Iterable[int], price: Price) -> None:
        yard, index = self._yard, self._yard.ground.snapshot.index
        trees, groups, pods = (a + b for a, b in zip(self.price, price, strict=True))
        self.price = trees, groups, pods
        for number in numbers:
            self.gone.add(number)
            for pod in yard.units[number].pods:
                self._add(index.get(pod.node, -1), yard.ask(pod.shape), +1)

    def _add(self, i: int, amounts: Amounts, sign: int) -> None:
        free = self._free.get(i)
        if free is None:
            free = self._free[i] = list(self._yard.free[i])
        for column, amount in amounts:
            free[column] += sign * amount


def _suffices(leavers: Iterable[_Leaver], lacking: Sequence[tuple[int, int]]) -> bool:
    """Whether these leave enough behind."""
    for column, amount in lacking:
        left = sum(n for one in leavers for c, n in one.amounts if c == column)
        if left < amount:
            return False
    return True
