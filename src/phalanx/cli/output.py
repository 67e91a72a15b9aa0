"""Paper: how commands print. Tables, bars, JSON and YAML; what is a terminal, and what is not.

Knows nothing of what it prints. Colours and whatever moves are for terminals alone.

Live: a part of the terminal that is drawn again and again in place.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

TABLE, TEXT, WIDE, JSON, YAML = "table", "text", "wide", "json", "yaml"
#: Characters that a bar is wide.
BAR_WIDTH = 20
EMPTY_CELL = "-"


def output_option(*formats: str) -> Callable[[F], F]:
    """`-o`: the first format is the usual one."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True,
        help="How to print it.",
    )  # fmt: skip


def is_terminal() -> bool:
    """Whether somebody looks at what is printed."""
    return sys.stdout.isatty()


def format_structured(value: object, output: str) -> str:
    """A value for programs, as JSON or YAML."""
    if output == YAML:
        import yaml

        return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip("\n")
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table: cells below each other, the last ones as long as they are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "   ".join(padded).rstrip()


def progress_bar(done: int, total: int, width: int = BAR_WIDTH) -> str:
    """How much of something is done, as a picture. Full only if all is, empty only if nothing."""
    share = min(max(done / total, 0.0), 1.0) if total else 0.0
    filled = round(share * width)
    if 0 < share < 1:
        filled = min(max(filled, 1), width - 1)
    return "█" * filled + "░" * (width - filled)


def pluralize(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


_CURSOR_UP, _CLEAR_BELOW = "\x1b[{}A", "\x1b[J"


class StyledLine(NamedTuple):
    """A line of text and its colour, if it has one."""

    text: str
    colour: str = ""


class LiveDisplay:
    """What was drawn last, and where it begins. Only for terminals."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._line_count = out, 0

    def draw(self, lines: Sequence[StyledLine]) -> None:
        """Put these lines in place of those before; what does not fit on the screen is left out."""
        width, height = shutil.get_terminal_size()
        shown = list(lines[: height - 1])
        if len(shown) < len(lines):
            shown[-1] = StyledLine(f"… and {len(lines) - len(shown) + 1} more lines")
        back = _CURSOR_UP.format(self._line_count) if self._line_count else ""
        body = "".join(f"{colorize(StyledLine(one.text[:width], one.colour))}\n" for one in shown)
        self._out.write(f"{back}\r{_CLEAR_BELOW}{body}")
        self._out.flush()
        self._line_count = len(shown)


def colorize(line: StyledLine) -> str:
    """A line in its colour."""
    return click.style(line.text, fg=line.colour) if line.colour else line.text
