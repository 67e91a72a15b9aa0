"""Sparing: who of those that were to be evicted may stay after all, the placement being what it is.

Asked of every plan of `preemption.py`, the one that is lost hardest first; what is left cannot be
spared without moving somebody.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import Port, Snapshot
from phalanx.scheduler.cluster.variation import varied
from phalanx.scheduler.evicting.units import Unit
from phalanx.scheduler.placing.attempt import Ground, Seat
from phalanx.scheduler.placing.trial import Trial


def needed(ground: Ground, units: Sequence[Unit], seats: Sequence[Seat]) -> list[Unit]:
    """Those of the units, the lightest first, that must go for these members to have their seats.

    `ground` is the cluster with all of them still there.
    """
    members = [seat.member for seat in seats]
    trial = Trial(ground.snapshot, ground.policy, members)
    if all(trial.is_plain(member) for member in members):
        return _by_room(ground.snapshot, units, seats)
    return _by_trial(ground, units, seats)


def _by_room(snapshot: Snapshot, units: Sequence[Unit], seats: Sequence[Seat]) -> list[Unit]:
    """Where members mind nothing but room it is enough to add up."""
    tables = _tables(snapshot, units, seats)
    kept: list[Unit] = []
    for unit in reversed(units):
        concerned = [(tables[pod.node], pod.shape) for pod in unit.pods if pod.node in tables]
        for number, (table, shape) in enumerate(concerned):
            if not table.takes_back(shape):
                kept.append(unit)
                for undone, one in concerned[:number]:
                    undone.lets_go(one)
                break
    return kept[::-1]


class _Table:
    """One node with members seated, and what room is left to those who would like to stay."""

    def __init__(self, snapshot: Snapshot, i: int) -> None:
        self._columns = snapshot.columns
        self._free = (snapshot.room[i] - snapshot.used[i]).tolist()
        self._asked: dict[int, None] = {}
        self._ports: list[Port] = []

    def seat(self, shape: Shape) -> None:
        """A member sits down here."""
        ask = shape.ask(self._columns)
        for column, amount in ask.amounts:
            self._free[column] -= amount
            self._asked[column] = None
        self._ports += ask.ports

    def lets_go(self, shape: Shape) -> None:
        """Somebody leaves."""
        for column, amount in shape.ask(self._columns).amounts:
            self._free[column] += amount

    def takes_back(self, shape: Shape) -> bool:
        """Have somebody stay, if the members still have what they asked for."""
        ask = shape.ask(self._columns)
        if any(port.clashes(mine) for port in ask.ports for mine in self._ports):
            return False
        for column, amount in ask.amounts:
            self._free[column] -= amount
        if all(self._free[column] >= 0 for column in self._asked):
            return True
        self.lets_go(shape)
        return False


def _tables(snapshot: Snapshot, units: Sequence[Unit], seats: Sequence[Seat]) -> dict[str, _Table]:
    """The nodes on which members sit, without those who are to go."""
    tables: dict[str, _Table] = {}
    for seat in seats:
        name = snapshot.names[seat.node]
        if name not in tables:
            tables[name] = _Table(snapshot, seat.node)
        tables[name].seat(seat.member.shape)
    for unit in units:
        for pod in unit.pods:
            if pod.node in tables:
                tables[pod.node].lets_go(pod.shape)
    return tables


def _by_trial(ground: Ground, units: Sequence[Unit], seats: Sequence[Seat]) -> list[Unit]:
    """Ask the filters of every member anew, for as many units at once as can be spared together."""
    kept = list(units)
    heaps = [list(reversed(units))]
    while heaps:
        heap = heaps.pop()
        spared = {id(unit) for unit in heap}
        left = [unit for unit in kept if id(unit) not in spared]
        if stand(ground, left, seats):
            kept = left
        elif len(heap) > 1:
            half = len(heap) // 2
            heaps += [heap[half:], heap[:half]]
    return kept


def stand(ground: Ground, gone: Sequence[Unit], seats: Sequence[Seat]) -> bool:
    """Whether members may sit where they do, in their order, with only these gone."""
    snapshot = varied(ground.snapshot, minus=[pod for unit in gone for pod in unit.pods])
    trial = Trial(snapshot, ground.policy, [seat.member for seat in seats])
    return all(trial.put(seat.member, seat.node) for seat in seats)
