"""Slots: the nodes of a puzzle as a program sees them. Nodes that are all the same come together.

Nodes are the same if they have the same room, take the same kinds and are in the same domains.
Where each of them holds one piece at most, or one kind only, it is enough to count what is on all
of them. Else every node is a slot of its own; of equal ones no more are needed than there are
members, and one if it has room for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from phalanx.scheduler.cluster.snapshot import IntArray
from phalanx.scheduler.rescue.puzzle import Layer, Puzzle

#: The domain of a node that it has for itself.
_OWN = -2


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """Nodes that are filled as one, and how many of each kind they hold together."""

    nodes: tuple[int, ...]
    limits: tuple[tuple[int, int], ...]
    #: How many pieces each node takes where they are several; else rows say.
    per_node: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether it is several nodes."""
        return self.per_node > 0

    @property
    def size(self) -> int:
        """How many pieces it takes where it is several nodes."""
        return self.per_node * len(self.nodes)

    def seat(self, taken: dict[Slot, int]) -> int:
        """The node of the next piece in this slot; `taken` counts those before, of all slots."""
        number = taken[self] = taken.get(self, -1) + 1
        return self.nodes[number // max(self.per_node, 1) % len(self.nodes)]


def slots(puzzle: Puzzle) -> list[Slot]:
    """All slots of a puzzle."""
    found: dict[tuple[object, ...], list[int]] = {}
    for node, sort in enumerate(zip(*_sorts(puzzle), strict=True)):
        found.setdefault(sort, []).append(node)
    return [slot for alike in found.values() for slot in _slots(puzzle, alike)]


def _sorts(puzzle: Puzzle) -> Iterator[list[object]]:
    """What tells nodes apart, question by question."""
    yield [tuple(row) for row in puzzle.free.tolist()]
    yield [tuple(row) for row in puzzle.allowed.T.tolist()]
    for layer in _layers(puzzle):
        yield list(_domains(layer).tolist())
    for near in puzzle.near:
        for reach in near.reaches:
            yield list((reach.residents[reach.layer.ids] > 0).tolist())
    for even in puzzle.even:
        yield list(even.counted.tolist())
        yield list(even.residents[even.layer.ids].tolist())


def _layers(puzzle: Puzzle) -> Iterator[Layer]:
    yield from (row.layer for row in puzzle.apart)
    yield from (reach.layer for row in puzzle.near for reach in row.reaches)
    yield from (row.layer for row in puzzle.even)


def _domains(layer: Layer) -> IntArray:
    """The domain of each node, or that it has one for itself."""
    sizes = np.bincount(layer.ids[layer.labelled], minlength=layer.size + 1)
    return np.where(layer.labelled & (sizes[layer.ids] == 1), _OWN, layer.ids)


def _slots(puzzle: Puzzle, alike: list[int]) -> Iterator[Slot]:
    """The slots that equal nodes make up."""
    members, node = sum(puzzle.counts), alike[0]
    most = _most(puzzle, node)
    if (per_node := _per_node(puzzle, node, most)) and len(alike) > 1:
        limits = [(k, min(m * len(alike), puzzle.counts[k])) for k, m in most.items()]
        yield Slot(tuple(alike), tuple(limits), per_node)
        return
    needed = 1 if _holds_all(puzzle, node, most) else members
    for one in alike[:needed]:
        yield Slot((one,), tuple(most.items()))


def _most(puzzle: Puzzle, node: int) -> dict[int, int]:
    """How many of each kind one node holds, were it for that kind alone."""
    most = {}
    for kind, count in enumerate(puzzle.counts):
        if puzzle.allowed[kind, node]:
            asks = puzzle.asks[kind]
            room = puzzle.free[node][asks > 0] // asks[asks > 0]
            alone = 1 if _is_apart(puzzle, kind, kind, node) else count
            if held := min(count, alone, int(room.min(initial=count))):
                most[kind] = held
    return most


def _per_node(puzzle: Puzzle, node: int, most: dict[int, int]) -> int:
    """How many pieces such a node holds, where these are of one kind or only one; else 0."""
    if any(_is_counted(puzzle, kind, node) for kind in most):
        return 0
    if len(most) == 1:
        return next(iter(most.values()))
    together = (_go_together(puzzle, a, b, node) for a in most for b in most if a <= b)
    return 0 if any(together) else 1


def _is_counted(puzzle: Puzzle, kind: int, node: int) -> bool:
    """Whether it matters which of several equal nodes has a domain for itself."""
    near = [(row.kinds + row.crowd, reach.layer) for row in puzzle.near for reach in row.reaches]
    even = [(row.kinds + row.crowd, row.layer) for row in puzzle.even]
    return any(kind in kinds and _has_own(layer, node) for kinds, layer in near + even)


def _has_own(layer: Layer, node: int) -> bool:
    domain = layer.ids[node]
    return bool(domain >= 0 and np.count_nonzero(layer.ids == domain) == 1)


def _go_together(puzzle: Puzzle, one: int, other: int, node: int) -> bool:
    if one == other and puzzle.counts[one] == 1:
        return False
    fits = (puzzle.asks[one] + puzzle.asks[other] <= puzzle.free[node]).all()
    return bool(fits) and not _is_apart(puzzle, one, other, node)


def _is_apart(puzzle: Puzzle, one: int, other: int, node: int) -> bool:
    """Whether two kinds may not both be on a node."""
    return any(row.layer.ids[node] >= 0 and (one, other) in row.pairs for row in puzzle.apart)


def _holds_all(puzzle: Puzzle, node: int, most: dict[int, int]) -> bool:
    """Whether one node takes all that such nodes could."""
    if any(_is_counted(puzzle, kind, node) for kind in most):
        return False
    rivals = any(_is_apart(puzzle, a, b, node) for a in most for b in most)
    counts, kinds = np.array(puzzle.counts), list(most)
    wanted = counts[kinds] @ puzzle.asks[kinds]
    return not rivals and bool((wanted <= puzzle.free[node]).all())
