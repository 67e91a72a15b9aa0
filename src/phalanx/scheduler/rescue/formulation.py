"""Formulation: a puzzle as an integer program, and the program's values as pieces again.

A column counts how many of a kind are in a slot: on one node, or on any of several that no kind can
tell apart, where counting them together loses nothing. Nearness and evenness are about the order in
which pods come, of which a program knows nothing; hence two readings:

    generous    what every order must meet: a program without solution is a proof
    strict      what is met whatever comes last: a solution nearly always has an order
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.rescue.board import Piece
from phalanx.scheduler.rescue.program import Draft, Program
from phalanx.scheduler.rescue.puzzle import Apart, Even, Layer, Near, Puzzle
from phalanx.scheduler.rescue.slots import Slot, slots

#: Amounts are counted in units so large that none exceeds this, in the puzzle's favour.
_FINEST = 1 << 20


class Formulation(NamedTuple):
    """A program, and of which kind in which slot its first columns count members."""

    program: Program
    columns: tuple[tuple[int, Slot], ...]

    def pieces(self, values: Sequence[int]) -> Iterator[Piece]:
        """What values mean."""
        taken: dict[Slot, int] = {}
        for (kind, slot), count in zip(self.columns, values, strict=False):
            for _ in range(count):
                yield Piece(kind, slot.seat(taken))


def formulate(puzzle: Puzzle, *, strict: bool = False) -> Formulation:
    """The program of a puzzle."""
    return _Writer(puzzle, strict).formulation()


class _Writer:
    """Writes a puzzle down, question by question."""

    def __init__(self, puzzle: Puzzle, strict: bool) -> None:
        self._puzzle, self._strict, self._draft = puzzle, strict, Draft()
        self._slots = slots(puzzle)
        self._columns: dict[tuple[int, Slot], int] = {}
        for slot in self._slots:
            for kind, limit in slot.limits:
                self._columns[kind, slot] = self._draft.column(limit)

    def formulation(self) -> Formulation:
        self._demand()
        self._room()
        for apart in self._puzzle.apart:
            self._apart(apart)
        firsts = [(near, self._near(near)) for near in self._puzzle.near]
        self._one_first(firsts)
        for even in self._puzzle.even:
            self._even(even)
        return Formulation(self._draft.program(), tuple(self._columns))

    def _demand(self) -> None:
        puzzle, everything = self._puzzle, dict.fromkeys(self._columns.values(), 1)
        for kind, count in enumerate(puzzle.counts):
            mine = [column for (k, _), column in self._columns.items() if k == kind]
            self._draft.at_most(dict.fromkeys(mine, 1), count)
        self._draft.at_least(everything, puzzle.needed)

    def _room(self) -> None:
        asks, free = _in_units(self._puzzle)
        for slot in self._slots:
            mine = {kind: self._columns[kind, slot] for kind, _ in slot.limits}
            if slot.is_shared:
                self._draft.at_most(dict.fromkeys(mine.values(), 1), slot.size)
            else:
                for resource, high in enumerate(free[slot.nodes[0]]):
                    terms = {mine[k]: asks[k][resource] for k in mine if asks[k][resource]}
                    self._draft.at_most(terms, high)

    def _domains(self, layer: Layer) -> dict[int, list[Slot]]:
        """The slots in each domain."""
        found = defaultdict[int, list[Slot]](list)
        for slot in self._slots:
            domain = int(layer.ids[slot.nodes[0]])
            # Slots of several nodes keep rivals apart by holding one on each.
            if domain >= 0 and not (slot.is_shared and self._is_own(layer, slot)):
                found[domain].append(slot)
        return found

    def _is_own(self, layer: Layer, slot: Slot) -> bool:
        return len(set(layer.ids[list(slot.nodes)].tolist())) > 1

    def _of(self, kinds: Sequence[int], inside: Sequence[Slot]) -> list[int]:
        """The columns of kinds in some slots."""
        keys = ((kind, slot) for kind in kinds for slot in inside)
        return [self._columns[key] for key in keys if key in self._columns]

    def _apart(self, row: Apart) -> None:
        alone = {one for one, other in row.pairs if one == other}
        for inside in self._domains(row.layer).values():
            for clique in _cliques(row.pairs, alone):
                self._draft.at_most(dict.fromkeys(self._of(clique, inside), 1), 1)
            marks: dict[int, dict[int, int]] = {}
            for pair in row.pairs:
                if not alone.issuperset(pair):
                    both = [self._presence(kind, inside, alone, marks) for kind in pair]
                    if all(both):
                        self._draft.at_most(both[0] | both[1], 1)

    def _presence(
        self, kind: int, inside: Sequence[Slot], alone: set[int], marks: dict[int, dict[int, int]]
    ) -> dict[int, int]:
        """Columns whose sum is 1 if one of a kind is in some slots."""
        if kind not in marks:
            columns = self._of([kind], inside)
            is_one = len(columns) == 1 and self._draft.limits[columns[0]] == 1
            if kind in alone or is_one:
                marks[kind] = dict.fromkeys(columns, 1)
            else:
                marks[kind] = self._mark(columns)
        return marks[kind]

    def _mark(self, columns: Sequence[int]) -> dict[int, int]:
        """A column that must be 1 if any of some is not zero."""
        if not columns:
            return {}
        mark = {self._draft.column(1): 1}
        self._draft.only_if(columns, mark)
        return mark

    def _near(self, row: Near) -> dict[int, int]:
        """Nobody is where nobody else is, but for the first. Returns the columns of who that is."""
        firsts: dict[Slot, int] = {}
        for slot in self._slots if row.may_be_first else ():
            if mine := self._of(row.kinds, [slot]):
                firsts[slot] = first = self._draft.column(1)
                self._draft.at_most({first: 1} | dict.fromkeys(mine, -1), 0)
        self._draft.at_most(dict.fromkeys(firsts.values(), 1), 1)
        others = [kind for kind in row.crowd if kind not in row.kinds]
        for reach in row.reaches:
            for domain, inside in self._domains(reach.layer).items():
                if not reach.residents[domain]:
                    support = dict.fromkeys(self._of(others, inside), 1)
                    support |= {firsts[slot]: 1 for slot in inside if slot in firsts}
                    self._draft.only_if(self._of(row.kinds, inside), support)
        return dict.fromkeys(firsts.values(), 1)

    def _one_first(self, firsts: Sequence[tuple[Near, dict[int, int]]]) -> None:
        """Of kinds that are in each other's crowds only one can be where nobody is."""
        for number, (one, mine) in enumerate(firsts):
            for other, theirs in firsts[:number]:
                mutual = {*one.kinds} <= {*other.crowd} and {*other.kinds} <= {*one.crowd}
                if mutual and self._meet(one, other) and self._meet(other, one):
                    self._draft.at_most(mine | theirs, 1)

    def _meet(self, one: Near, other: Near) -> bool:
        """Whether the other counts one of the first wherever that is."""
        where = self._puzzle.allowed[list(one.kinds)].any(axis=0)
        counted = np.any([reach.layer.labelled for reach in other.reaches], axis=0)
        return bool(counted[where].all())

    def _even(self, row: Even) -> None:
        """Where one of the kinds is, there are not too many more than where there are fewest."""
        draft, domains = self._draft, self._domains(row.layer)
        counted = {d: [s for s in found if row.counted[s.nodes[0]]] for d, found in domains.items()}
        emptiest = self._emptiest(row, counted)
        rising = row.crowd if self._strict else row.kinds if row.itself else ()
        for domain, found in domains.items():
            if columns := self._of(row.kinds, found):
                there = int(row.residents[domain])
                slack = max(there + sum(self._puzzle.counts) - row.max_skew, 0)
                terms = dict.fromkeys(self._of(rising, counted[domain]), 1) | {emptiest: -1}
                terms |= dict.fromkeys(self._mark(columns), slack)
                draft.at_most(terms, row.max_skew - there + slack)

    def _emptiest(self, row: Even, counted: Mapping[int, Sequence[Slot]]) -> int:
        """A column for how many of the crowd are at least in every domain."""
        rising: list[tuple[int, list[int]]] = []
        lowest = int(row.residents.max(initial=0)) + sum(self._puzzle.counts) if row.enough else 0
        for domain in row.present.tolist() if row.enough else ():
            there = int(row.residents[domain])
            if columns := self._of(row.crowd, counted.get(domain, ())):
                rising.append((there, columns))
            else:
                lowest = min(lowest, there)
        emptiest = self._draft.column(lowest)
        for there, columns in rising:
            self._draft.at_most({emptiest: 1} | dict.fromkeys(columns, -1), there)
        return emptiest


def _in_units(puzzle: Puzzle) -> tuple[list[list[int]], list[list[int]]]:
    """Asks and free room in whole units: exactly, or if that takes too long numbers nearly."""
    asks, free = puzzle.asks, puzzle.free
    if not asks.size or not free.size:
        return asks.tolist(), free.tolist()
    units = np.maximum(np.gcd.reduce(asks, axis=0), 1)
    units = np.maximum(units, -(-free.max(axis=0) // _FINEST))
    return (asks // units).tolist(), (free // units).tolist()


def _cliques(pairs: Sequence[tuple[int, int]], alone: set[int]) -> Iterator[list[int]]:
    """Kinds of which a domain takes one piece at most, so that every pair of them is covered."""
    rivals = set(pairs)
    covered: set[tuple[int, int]] = set()
    for one, other in pairs:
        if (one, other) in covered or not alone.issuperset((one, other)):
            continue
        clique = [one] if one == other else [one, other]
        for kind in sorted(alone - {one, other}):
            if all((min(kind, k), max(kind, k)) in rivals for k in clique):
                clique.append(kind)
        covered |= {(min(a, b), max(a, b)) for a in clique for b in clique}
        yield clique
