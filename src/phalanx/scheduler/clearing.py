"""Clearing: the nodes that are cheapest to clear for so many members, and who would have to go.

For a member of a shape every node has a price: the lightest units that must leave it. The cheapest
node is cleared, its member seated, and so on; a unit that has gone once costs nothing more. One
proposal for the whole cluster, or one for each place that all members must share. Proposals are
guesses, made by adding up room alone: `preemption.py` has each tried by the cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from phalanx.scheduler.attempt import Ground, in_order
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.objections import Objection
from phalanx.scheduler.shape import Shape
from phalanx.scheduler.snapshot import IntArray
from phalanx.scheduler.topology import placements
from phalanx.scheduler.units import Rank, Unit, by_node
from phalanx.scheduler.view import view_of

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
    proposals = []
    for number, nodes in enumerate(places):
        clearing = _Clearing(ground, units, nodes)
        if clearing.seat(_shapes(entity, members)):
            proposals.append((clearing.price, number, clearing.gone))
    for _, _, gone in sorted(proposals)[:MOST_PLACES]:
        yield [unit for number, unit in enumerate(units) if number in gone]


def _shapes(entity: Entity, members: int) -> list[Shape]:
    """What the members ask for, the largest first."""
    shapes = [member.shape for member in in_order(entity.members)[:members]]
    return sorted(shapes, key=lambda shape: shape.scored, reverse=True)


class _Clearing:
    """Nodes being cleared, one member after the other."""

    def __init__(self, ground: Ground, units: Sequence[Unit], nodes: IntArray | None) -> None:
        self._ground, self._units = ground, units
        snapshot = ground.snapshot
        self._nodes = range(len(snapshot)) if nodes is None else nodes.tolist()
        self._free = (snapshot.room - snapshot.used).tolist()
        there = by_node(units)
        self._there = {
            snapshot.index[n]: units for n, units in there.items() if n in snapshot.index
        }
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
        allowed = view_of(self._ground.snapshot, self._ground.policy, shape).allowed
        ways = ((i, self._way(shape, i)) for i in self._nodes if allowed[i])
        heap = [(self._sum(who), i) for i, who in ways if who is not None]
        heapify(heap)
        return heap

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
            for column, amount in shape.ask(self._ground.snapshot.columns).amounts:
                self._free[i][column] -= amount
            if (more := self._way(shape, i)) is not None:
                heappush(heap, (self._sum(more), i))
            return True
        return False

    def _way(self, shape: Shape, i: int) -> list[int] | None:
        """Who must leave a node for a member of a shape: as few of the lightest as will do."""
        ask = shape.ask(self._ground.snapshot.columns).amounts
        lacking = {c: amount - self._free[i][c] for c, amount in ask if amount > self._free[i][c]}
        if not lacking:
            return []
        here = [number for number in self._there.get(i, ()) if number not in self.gone]
        alone = next((n for n in here if self._suffices([n], i, lacking)), None)
        chosen: list[int] = []
        for number in here:
            chosen.append(number)
            if self._suffices(chosen, i, lacking):
                break
        else:
            return None
        for number in reversed(chosen[:-1]):
            fewer = [one for one in chosen if one != number]
            if self._suffices(fewer, i, lacking):
                chosen = fewer
        ways = [chosen] if alone is None else [chosen, [alone]]
        return min(ways, key=self._sum)

    def _suffices(self, numbers: Iterable[int], i: int, lacking: dict[int, int]) -> bool:
        snapshot = self._ground.snapshot
        name, left = snapshot.names[i], dict(lacking)
        for number in numbers:
            for pod in self._units[number].pods:
                if pod.node == name:
                    for column, amount in pod.shape.ask(snapshot.columns).amounts:
                        if column in left:
                            left[column] -= amount
        return all(amount <= 0 for amount in left.values())

    def _sum(self, numbers: Iterable[int]) -> Price:
        chosen = [self._units[number] for number in numbers]
        ranks = [unit.rank for unit in chosen]
        return (
            ranks.count(Rank.TREE),
            ranks.count(Rank.GROUP),
            sum(len(unit.pods) for unit in chosen),
        )

    def _clear(self, numbers: Iterable[int], price: Price) -> None:
        snapshot = self._ground.snapshot
        trees, groups, pods = (a + b for a, b in zip(self.price, price, strict=True))
        self.price = trees, groups, pods
        for number in numbers:
            self.gone.add(number)
            for pod in self._units[number].pods:
                i = snapshot.index.get(pod.node)
                if i is not None:
                    for column, amount in pod.shape.ask(snapshot.columns).amounts:
                        self._free[i][column] += amount
