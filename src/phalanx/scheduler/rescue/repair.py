"""Repair: placing on a board with second thoughts. Who does not fit may move somebody who does.

Packs tightly, and where a piece has no place takes one other piece away that then goes elsewhere.
A bounded number of moves is tried, always in the same order. May miss a way; never invents one.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from phalanx.scheduler.rescue.board import Board, Piece
from phalanx.scheduler.rescue.orders import Order
from phalanx.scheduler.rescue.puzzle import Puzzle

#: How many moves are tried for one order.
MOVES = 256
#: How many members are tried between two yields.
PACE = 64


def repaired(puzzle: Puzzle, order: Order) -> Generator[int, None, list[Piece]]:
    """As many members as can be placed this way, tried in this order."""
    board, moves = Board(puzzle), _Moves(MOVES)
    spare = len(order) - puzzle.needed
    for number, kind in enumerate(order, 1):
        if number % PACE == 0:
            yield number
        node = _tightest(board, kind)
        if node is not None:
            board.put(Piece(kind, node))
        elif not moves.make_way(board, kind):
            spare -= 1
            if spare < 0:
                break
    return board.pieces


class _Moves:
    """Moves, as long as there are any left to try."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def make_way(self, board: Board, kind: int) -> bool:
        """Place one of a kind by moving another piece; nothing has changed if that fails."""
        for piece in dict.fromkeys(reversed(board.pieces)):
            if piece.kind == kind:
                continue
            if not self._budget:
                return False
            self._budget -= 1
            board.take(piece)
            for node in np.flatnonzero(board.open(kind)).tolist():
                board.put(Piece(kind, node))
                elsewhere = _tightest(board, piece.kind)
                if elsewhere is not None:
                    board.put(Piece(piece.kind, elsewhere))
                    return True
                board.take(Piece(kind, node))
            board.put(piece)
        return False


def _tightest(board: Board, kind: int) -> int | None:
    """The open node with least left, each resource measured by what all nodes have of it."""
    mask = board.open(kind)
    if not mask.any():
        return None
    whole = np.maximum(board.puzzle.free.sum(axis=0), 1)
    left = (board.left / whole).sum(axis=1)
    return int(np.where(mask, left, np.inf).argmin())
