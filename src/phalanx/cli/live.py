"""Live: a part of the terminal that is drawn again and again in place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import NamedTuple, TextIO

import click

_UP, _CLEAR = "\x1b[{}A", "\x1b[J"


class Line(NamedTuple):
    """A line of text and its colour, if it has one."""

    text: str
    colour: str = ""


class Live:
    """What was drawn last, and where it begins. Only for terminals."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._drawn = out, 0

    def draw(self, lines: Sequence[Line]) -> None:
        """Put these lines in place of those before; what does not fit on the screen is left out."""
        width, height = shutil.get_terminal_size()
        shown = list(lines[: height - 1])
        if len(shown) < len(lines):
            shown[-1] = Line(f"… and {len(lines) - len(shown) + 1} more lines")
        back = _UP.format(self._drawn) if self._drawn else ""
        body = "".join(f"{painted(Line(one.text[:width], one.colour))}\n" for one in shown)
        self._out.write(f"{back}\r{_CLEAR}{body}")
        self._out.flush()
        self._drawn = len(shown)


def painted(line: Line) -> str:
    """A line in its colour."""
    return click.style(line.text, fg=line.colour) if line.colour else line.text
