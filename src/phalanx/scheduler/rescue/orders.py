"""Orders: in which to try members of different kinds, when the usual order led nowhere.

Whom others must be near comes before them; of the rest the scarcest first, by one measure or
another. A few orders, always the same ones. Places nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from phalanx.scheduler.rescue.board import Board
from phalanx.scheduler.rescue.puzzle import Puzzle

#: The kinds of a puzzle, each as often as it has members.
Order = tuple[int, ...]


def orders(puzzle: Puzzle) -> Iterator[Order]:
    """Different orders of all members, by their kinds; the most promising first."""
    seen: dict[Order, None] = {}
    for measure in _MEASURES:
        scarcity = measure(puzzle)
        kinds = _by_need(puzzle, sorted(range(len(puzzle.kinds)), key=scarcity.__getitem__))
        for arranged in (_in_blocks(puzzle, kinds), _in_turns(puzzle, kinds)):
            if arranged not in seen:
                seen[arranged] = None
                yield arranged


def _choice(puzzle: Puzzle) -> list[tuple[float, ...]]:
    """Fewest nodes first, then the largest."""
    board, shares = Board(puzzle), _shares(puzzle)
    places = [int(np.count_nonzero(board.open(kind))) for kind in range(len(puzzle.kinds))]
    return [(float(place), -share) for place, share in zip(places, shares, strict=True)]


def _size(puzzle: Puzzle) -> list[tuple[float, ...]]:
    """The largest first."""
    return [(-share,) for share in _shares(puzzle)]


def _pickiness(puzzle: Puzzle) -> list[tuple[float, ...]]:
    """Those who mind most first, then the largest."""
    minds = [0] * len(puzzle.kinds)
    pairs = [pair for row in puzzle.apart for pair in row.pairs]
    for kind in (*puzzle.picky, *(kind for pair in pairs for kind in pair)):
        minds[kind] += 1
    shares = _shares(puzzle)
    return [(-float(mind), -share) for mind, share in zip(minds, shares, strict=True)]


_MEASURES: tuple[Callable[[Puzzle], list[tuple[float, ...]]], ...] = (_choice, _size, _pickiness)


def _shares(puzzle: Puzzle) -> list[float]:
    """What share of all that is free each kind takes of its scarcest resource."""
    if not puzzle.asks.size:
        return [0.0] * len(puzzle.kinds)
    shares: list[float] = (
        (puzzle.asks / np.maximum(puzzle.free.sum(axis=0), 1)).max(axis=1).tolist()
    )
    return shares


def _by_need(puzzle: Puzzle, kinds: list[int]) -> list[int]:
    """The same, but whoever must be near others after those; where all need each other as given."""
    needs: dict[int, set[int]] = {kind: set() for kind in kinds}
    for row in puzzle.near:
        for kind in row.kinds:
            needs[kind] |= set(row.crowd) - set(row.kinds)
    arranged: list[int] = []
    left = list(kinds)
    while left:
        ready = (kind for kind in left if not needs[kind] & set(left) - {kind})
        chosen = next(ready, left[0])
        left.remove(chosen)
        arranged.append(chosen)
    return arranged


def _in_blocks(puzzle: Puzzle, kinds: list[int]) -> Order:
    counts = puzzle.counts
    return tuple(kind for kind in kinds for _ in range(counts[kind]))


def _in_turns(puzzle: Puzzle, kinds: list[int]) -> Order:
    """One of each, again and again: for those that are to be near each other, or even."""
    counts = puzzle.counts
    return tuple(kind for turn in range(max(counts)) for kind in kinds if turn < counts[kind])
