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

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
        return self.word in ("Waiting", "Running")

    def follows(self, other: Line) -> bool:
        """Whether it is one change together with an earlier one."""
        soon = self.time - other.time < BLINK
        return soon and bool(self.nodes) and (other.word, self.word) in _TOGETHER


#: Pods that come or go one after the other come or go together.
_TOGETHER = (("Placed", "Joined"), ("Joined", "Joined"), ("Lost", "Lost"))


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lines in the order of time, and a digest over everything that was heard on the way."""

    lines: tuple[Line, ...]
    digest: str

    def text(self, decimals: int = 1) -> str:
        """The lines as text. Times are rounded: what is finer than that are the lots' latencies."""
        rows = [
            (f"t={_number(line.time, decimals)}", line.subject, line.word, _detail(line))
            for line in self.lines
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
    for line in _lasting(story):
        last = told[-1] if told else None
        if last and line.follows(last):
            told[-1] = replace(last, time=line.time, nodes=last.nodes + line.nodes)
        elif not (last and line.lasts and _says(last) == _says(line)):
            told.append(line)
    return told


def _lasting(story: Sequence[Line]) -> list[Line]:
    ends = [line.time for line in story[1:]]
    kept = [
        line
        for line, end in zip(story, ends, strict=False)
        if not line.lasts or end - line.time >= BLINK
    ]
    return [*kept, *story[-1:]]


def _says(line: Line) -> tuple[str, str]:
    return line.word, line.text


def _detail(line: Line) -> str:
    places = [f"{node} x{count}" for node, count in sorted(Counter(line.nodes).items())]
    return ", ".join(places) or line.text


def _number(time: float, decimals: int) -> str:
    text = f"{time:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
    return "  ".join([*padded, row[-1]]).rstrip()
