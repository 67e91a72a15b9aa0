"""Board: a puzzle being played. Who may go where as it stands; pieces are put and taken back.

The same answers as the filters give in a `Trial`, for kinds instead of pods, and reversible. What
depends on the other members is kept by one rule each; a kind that no rule concerns is asked nothing
but whether there is room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.rescue.puzzle import Apart, Even, Layer, Near, Puzzle


class Piece(NamedTuple):
    """One of a kind on a node, both by their numbers in the puzzle."""

    kind: int
    node: int


class Board:
    """What has been placed so far, and what that leaves open."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self.left: IntArray = puzzle.free.copy()
        self.pieces: list[Piece] = []
        kinds = len(puzzle.kinds)
        self._rules: list[_Rule] = [
            *(_Keeping(row, kinds) for row in puzzle.apart),
            *(_Nearness(row, kinds) for row in puzzle.near),
            *(_Balance(row) for row in puzzle.even),
        ]
        self._asked = [[rule for rule in self._rules if k in rule.asked] for k in range(kinds)]
        self._told = [[rule for rule in self._rules if k in rule.told] for k in range(kinds)]

    def open(self, kind: int) -> BoolArray:
        """The nodes where one more of a kind may go."""
        puzzle = self.puzzle
        mask: BoolArray = puzzle.allowed[kind] & (self.left >= puzzle.asks[kind]).all(axis=1)
        for rule in self._asked[kind]:
            mask &= rule.open(kind)
        return mask

    def admits(self, piece: Piece) -> bool:
        """Whether a piece may be put."""
        return bool(self.open(piece.kind)[piece.node])

    def put(self, piece: Piece) -> None:
        """Place one more; where it may be is not asked."""
        self.pieces.append(piece)
        self.left[piece.node] -= self.puzzle.asks[piece.kind]
        for rule in self._told[piece.kind]:
            rule.count(piece, +1)

    def take(self, piece: Piece) -> None:
        """Take one back: of equal pieces the last."""
        pieces = self.pieces
        del pieces[len(pieces) - 1 - pieces[::-1].index(piece)]
        self.left[piece.node] += self.puzzle.asks[piece.kind]
        for rule in self._told[piece.kind]:
            rule.count(piece, -1)

    def level(self, piece: Piece) -> int:
        """How many there are already where it would count; whoever is lowest had better go first.

        Of pieces that nobody is counted with it is zero.
        """
        return max((rule.level(piece) for rule in self._told[piece.kind]), default=0)


class _Rule(ABC):
    """Something about members among each other."""

    #: The kinds that it may keep from nodes, and those whose placing changes what it says.
    asked: frozenset[int]
    told: frozenset[int]

    @abstractmethod
    def open(self, kind: int) -> BoolArray:
        """The nodes where it allows one more of a kind."""

    @abstractmethod
    def count(self, piece: Piece, change: int) -> None:
        """A piece came or went."""

    def level(self, piece: Piece) -> int:
        """How many are counted where a piece would be."""
        return 0


class _Heads:
    """How many of each kind are in each domain; the last place, of nodes without one, stays 0."""

    def __init__(self, layer: Layer, kinds: int) -> None:
        self.ids = layer.ids
        self.counts: IntArray = np.zeros((kinds, layer.size + 1), np.int64)

    def add(self, piece: Piece, change: int) -> None:
        domain = self.ids[piece.node]
        if domain >= 0:
            self.counts[piece.kind, domain] += change


class _Keeping(_Rule):
    """Rivals keep out of each other's domains."""

    def __init__(self, row: Apart, kinds: int) -> None:
        self._heads = _Heads(row.layer, kinds)
        rivals: list[list[int]] = [[] for _ in range(kinds)]
        for one, other in row.pairs:
            rivals[one].append(other)
            if one != other:
                rivals[other].append(one)
        self._rivals = [np.array(found, np.int64) for found in rivals]
        self.asked = self.told = frozenset(kind for pair in row.pairs for kind in pair)

    def open(self, kind: int) -> BoolArray:
        here: IntArray = self._heads.counts[self._rivals[kind]].sum(axis=0)
        mask: BoolArray = here[self._heads.ids] == 0
        return mask

    def count(self, piece: Piece, change: int) -> None:
        self._heads.add(piece, change)


class _Nearness(_Rule):
    """Somebody of the crowd is near, or nobody is anywhere and one is the first."""

    def __init__(self, row: Near, kinds: int) -> None:
        self._row, self._crowd = row, np.array(row.crowd, np.int64)
        self._heads = [_Heads(reach.layer, kinds) for reach in row.reaches]
        self.asked, self.told = frozenset(row.kinds), frozenset(row.crowd)

    def open(self, kind: int) -> BoolArray:
        found = [heads.counts[self._crowd].sum(axis=0) for heads in self._heads]
        reaches = self._row.reaches
        first = self._row.may_be_first and not any(counts.any() for counts in found)
        mask = np.ones(len(reaches[0].layer.ids), bool)
        for reach, counts in zip(reaches, found, strict=True):
            ids = reach.layer.ids
            mask &= reach.layer.labelled if first else (counts + reach.residents)[ids] > 0
        return mask

    def count(self, piece: Piece, change: int) -> None:
        for heads in self._heads:
            heads.add(piece, change)


class _Balance(_Rule):
    """No domain gets too far ahead of the emptiest."""

    def __init__(self, row: Even) -> None:
        self._row, self._ids = row, row.layer.ids
        self._counts: IntArray = row.residents.copy()
        self.asked, self.told = frozenset(row.kinds), frozenset((*row.crowd, *row.kinds))

    def open(self, kind: int) -> BoolArray:
        row, counts = self._row, self._counts
        least = counts[row.present].min() if row.enough else 0
        mask: BoolArray = counts[self._ids] + row.itself - least <= row.max_skew
        return mask & row.layer.labelled

    def count(self, piece: Piece, change: int) -> None:
        row = self._row
        if piece.kind in row.crowd and row.counted[piece.node] and self._ids[piece.node] >= 0:
            self._counts[self._ids[piece.node]] += change

    def level(self, piece: Piece) -> int:
        return int(self._counts[self._ids[piece.node]])
