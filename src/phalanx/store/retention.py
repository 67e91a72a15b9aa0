"""How much of the past a store keeps. A policy: it says what may go, and forgets nothing itself."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Moments that are remembered within the seconds to keep.
_MARKS = 60


class _Mark(NamedTuple):
    now: float
    revision: int


class Retention:
    """So many seconds of history or so many revisions, whichever is more."""

    def __init__(self, seconds: float = 300, revisions: int = 100_000) -> None:
        self.seconds, self.revisions = seconds, revisions
        self._marks: deque[_Mark] = deque()

    def floor(self, revision: int, now: float) -> int:
        """The revision up to which history may go, now that `revision` is the newest."""
        marks, old = self._marks, now - self.seconds
        if not marks or now - marks[-1].now >= self.seconds / _MARKS:
            marks.append(_Mark(now, revision))
        while len(marks) > 1 and marks[1].now <= old:
            marks.popleft()
        aged = marks[0].revision if marks[0].now <= old else 0
        return min(aged, revision - self.revisions)
