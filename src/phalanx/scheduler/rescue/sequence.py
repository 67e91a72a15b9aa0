"""Sequence: pieces in an order in which each may be put when its turn comes.

Nearness and evenness are judged as pods come, so that where everybody ends up is not enough: who
must be near others comes after them, and no domain gets ahead of the others on the way. Looks for
an order with backtracking, up to a number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from phalanx.scheduler.rescue.board import Board, Piece
from phalanx.scheduler.rescue.puzzle import Puzzle


class Dead(Enum):
    """Why there is no sequence: there cannot be one, or none was found in time."""

    END = "there is none"
    LIMIT = "none was found"


def sequence(
    puzzle: Puzzle, most: Mapping[Piece, int], needed: int, limit: int
) -> list[Piece] | Dead:
    """So many of these pieces, each at most so often, one after the other.

    Every set of pieces is visited once, in whatever order it came about; `limit` is how many.
    """
    board, seen, counts = Board(puzzle), set[tuple[int, ...]](), puzzle.counts
    numbers = {piece: number for number, piece in enumerate(most)}
    placed = [0] * len(numbers)
    turns = [_turns(board, most, counts)]
    while len(board.pieces) < needed:
        if not turns[-1]:
            turns.pop()
            if not turns:
                return Dead.END
            last = board.pieces[-1]
            board.take(last)
            placed[numbers[last]] -= 1
            continue
        piece = turns[-1].pop()
        number = numbers[piece]
        placed[number] += 1
        if tuple(placed) in seen:
            placed[number] -= 1
            continue
        if len(seen) >= limit:
            return Dead.LIMIT
        seen.add(tuple(placed))
        board.put(piece)
        turns.append(_turns(board, most, counts))
    return board.pieces


def _turns(board: Board, most: Mapping[Piece, int], counts: list[int]) -> list[Piece]:
    """The pieces that may be put now, the most promising last."""
    placed, kinds = Counter(board.pieces), Counter(piece.kind for piece in board.pieces)
    masks = {kind: board.open(kind) for kind, count in enumerate(counts) if kinds[kind] < count}
    free = [
        piece
        for piece, count in most.items()
        if placed[piece] < count and piece.kind in masks and masks[piece.kind][piece.node]
    ]
    picky = frozenset(board.puzzle.picky)
    return sorted(free, key=lambda p: (board.level(p), p.kind not in picky, p), reverse=True)
