"""Inquiry: what a solver is asked about a puzzle, and what its answers are worth.

A generous program first: if it has no solution there is no placement. What is found is performed on
the stage. If it cannot be put in order a strict program is asked for another, and where there is
little to try everything is tried.
"""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.rescue.board import Piece
from phalanx.scheduler.rescue.formulation import Formulation, formulate
from phalanx.scheduler.rescue.program import GaveUp, Later, Solved, Unsolvable
from phalanx.scheduler.rescue.search import Found, Outcome, Proven, Search, Steps, Undecided
from phalanx.scheduler.rescue.sequence import Dead, sequence
from phalanx.scheduler.rescue.slots import slots
from phalanx.scheduler.rescue.stage import Stage

#: In how many ways members of each kind and slots may be combined.
COLUMNS = 5_000
#: Up to how many different pieces all that can be placed is tried out, and in how many steps.
FEW, ALL_STEPS = 80, 6_000

TOO_LARGE = "it is too large for an exact search"
UNDER_WAY = "an exact search is under way"
NO_ORDER = "a node for every member was found, but no order in which they may get there"


def inquire(stage: Stage) -> Steps[Outcome]:
    """A placement, proof that there is none, or neither."""
    if sum(len(slot.limits) for slot in slots(stage.puzzle)) > COLUMNS:
        return Undecided(TOO_LARGE)
    outcome = yield from _asked(stage, formulate(stage.puzzle))
    if outcome is None and stage.puzzle.is_ordered:
        strict = yield from _asked(stage, formulate(stage.puzzle, strict=True))
        outcome = strict if isinstance(strict, Found) else _exhausted(stage)
    return outcome or Undecided(NO_ORDER)


def _asked(stage: Stage, formulation: Formulation) -> Steps[Outcome | None]:
    """What the solver says; None if what it found cannot be put in order."""
    answer = yield Search(formulation.program)
    match answer:
        case Solved(values):
            return stage.proposed(list(formulation.pieces(values)))
        case Unsolvable():
            return Proven()
        case GaveUp(why):
            return Undecided(why)
        case Later():
            return Undecided(UNDER_WAY, is_passing=True)
        case None:
            raise AssertionError("a search was not answered")


def _exhausted(stage: Stage) -> Outcome | None:
    """Try everything there is, where that is not much."""
    puzzle, counts = stage.puzzle, stage.puzzle.counts
    kinds, nodes = np.nonzero(puzzle.allowed)
    if len(kinds) > FEW:
        return None
    most = {Piece(k, n): counts[k] for k, n in zip(kinds.tolist(), nodes.tolist(), strict=True)}
    pieces = sequence(puzzle, most, puzzle.needed, ALL_STEPS)
    if isinstance(pieces, Dead):
        return Proven() if pieces is Dead.END else None
    return stage.performed(pieces)
