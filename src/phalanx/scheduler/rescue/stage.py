"""Stage: where a placement on paper is performed before the filters, each on a trial of its own.

What was thought out on a board or by a solver counts only once it has been shown here: every member
is put on its node while the filters watch, those before it being there. Members to spare then go
where they are best, or nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placing.attempt import Ground, Seat
from phalanx.scheduler.placing.trial import Trial
from phalanx.scheduler.rescue.board import Piece
from phalanx.scheduler.rescue.orders import Order
from phalanx.scheduler.rescue.puzzle import Puzzle
from phalanx.scheduler.rescue.search import Found
from phalanx.scheduler.rescue.sequence import Dead, sequence

#: How many steps are taken to find an order for what is placed, beyond one for each.
STEPS = 2_000


class Stage:
    """One puzzle, with the cluster that it is about."""

    def __init__(self, puzzle: Puzzle, ground: Ground) -> None:
        self.puzzle, self._ground = puzzle, ground
        self._members = [member for kind in puzzle.kinds for member in kind.members]

    def played(self, order: Order) -> Found | None:
        """Members one after the other, each where it is best."""
        kinds = [iter(kind.members) for kind in self.puzzle.kinds]
        return self._found(self._trial(), [], (next(kinds[kind]) for kind in order))

    def proposed(self, pieces: Sequence[Piece]) -> Found | None:
        """Members on given nodes, in some order that there is; then the others."""
        if len(pieces) < self.puzzle.needed:
            return None
        if not self.puzzle.is_ordered:
            return self.performed(pieces)
        found = sequence(self.puzzle, Counter(pieces), len(pieces), len(pieces) + STEPS)
        return None if isinstance(found, Dead) else self.performed(found)

    def performed(self, pieces: Iterable[Piece]) -> Found | None:
        """Members on given nodes in this order; then the others where they are best."""
        trial, seats = self._trial(), []
        kinds = [iter(kind.members) for kind in self.puzzle.kinds]
        for kind, node in pieces:
            member, place = next(kinds[kind], None), int(self.puzzle.nodes[node])
            if member is None or not trial.put(member, place):
                return None
            seats.append(Seat(member, place))
        return self._found(trial, seats, (member for left in kinds for member in left))

    def _trial(self) -> Trial:
        ground = self._ground
        return Trial(ground.snapshot, ground.policy, self._members, ground.nodes)

    def _found(self, trial: Trial, seats: list[Seat], others: Iterator[Member]) -> Found | None:
        left, spare = [], len(self._members) - self.puzzle.needed
        for member in others:
            answer = trial.place(member)
            if isinstance(answer, Refusal):
                left.append((member, answer))
                if len(left) > spare:
                    return None
            else:
                seats.append(Seat(member, answer))
        return Found(tuple(seats), tuple(left))
