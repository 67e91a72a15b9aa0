"""What became of every gang and pod of a simulation, a line per change: the golden text.

    t=0      train-a  Placed    node-0 x4, node-1 x2
    t=0      train-a  Running   6 pods
    t=1      train-b  Waiting   minCount (4) cannot be satisfied: 2 scheduled, 0 remaining
    t=60     train-a  Finished
    t=60     train-b  Placed    node-0 x4

A Line is either a milestone, which stays, or a state, which is told only if it lasted. What is told
comes from `chronicle`; here it is put in order and into words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

#: Seconds within which changes of one gang are one change, and for which a state must last.
BLINK = 0.1


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened to one gang or pod. `nodes` names a node once for each pod there."""

    time: float
    subject: str
    word: str
    text: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def lasts(self) -> bool:
        """Whether it is a state, true until the next line about the same subject."""
        return self.word in _STATES

    def follows(self, other: Line) -> bool:
        """Whether it is one change together with an earlier one."""
        return self.time - other.time < BLINK and (other.word, self.word) in _TOGETHER


#: The states, in the order in which they are told if they begin together.
_STATES = ("Running", "Waiting")
#: Pods that come or go one after the other come or go together.
_TOGETHER = (("Placed", "Joined"), ("Joined", "Joined"), ("Lost", "Lost"))


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lines in the order of time, and a digest over everything that was heard on the way."""

    lines: tuple[Line, ...]
    digest: str

    def text(self, decimals: int = 1) -> str:
        """The lines as text. Times are rounded: what is finer than that are the lots' latencies.

        So is the order in which kubelets and scheduler say how things are: states come last.
        """
        lines = sorted(self.lines, key=lambda line: (round(line.time, decimals), _turn(line)))
        rows = [
            (f"t={_number(line.time, decimals)}", line.subject, line.word, _detail(line))
            for line in lines
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        return "".join(_aligned(row, widths) + "\n" for row in rows)


def condense(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Leave out states that did not last, join what belongs together, say nothing twice."""
    stories: dict[str, list[Line]] = {}
    for line in lines:
        stories.setdefault(line.subject, []).append(line)
    told = [line for story in stories.values() for line in _condensed(story)]
    return tuple(sorted(told, key=lambda line: line.time))


def _condensed(story: Sequence[Line]) -> list[Line]:
    """The lines about one subject that remain."""
    told: list[Line] = []
    for at, line in enumerate(story):
        if line.lasts and (_is_brief(line, story[at + 1 :]) or _is_repeated(line, told)):
            continue
        if told and line.follows(told[-1]):
            first = told.pop()
            line = replace(first, time=line.time, nodes=first.nodes + line.nodes)
        told.append(line)
    return told


def _is_brief(state: Line, later: Iterable[Line]) -> bool:
    """Whether a milestone or another state of its sort ends it at once."""
    ends = (line.time for line in later if not line.lasts or line.word == state.word)
    return next(ends, math.inf) - state.time < BLINK


def _is_repeated(state: Line, told: Sequence[Line]) -> bool:
    """Whether the same was said since the last milestone."""
    since = takewhile(lambda line: line.lasts, reversed(told))
    last = next((line for line in since if line.word == state.word), None)
    return last is not None and last.text == state.text


def _turn(line: Line) -> int:
    """Milestones in the order of time, then states by what they are."""
    return _STATES.index(line.word) + 1 if line.lasts else 0


def _detail(line: Line) -> str:
    counts = sorted(Counter(line.nodes).items())
    places = [f"{node} x{count}" if count > 1 else node for node, count in counts]
    return ", ".join(places) or line.text


def _number(time: float, decimals: int) -> str:
    text = f"{time:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
    return "  ".join([*padded, row[-1]]).rstrip()
