"""Printing for all commands: tables, progress bars, JSON and YAML, redrawn terminal lines.

Knows nothing about what it prints. Colours and redrawing are for terminals only. Text of the API is
the text of other users: every command prints with `echo` or `LiveDisplay`, which escape characters
that could control a terminal (`\\x1b`, `\\u202e`). JSON and YAML escape them in their own syntax.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import click

from phalanx.logs import escape_unprintable

F = TypeVar("F", bound=Callable[..., Any])

TABLE, TEXT, WIDE, JSON, YAML = "table", "text", "wide", "json", "yaml"
#: The exit code of a command that ^C ended, as shells have it.
INTERRUPTED = 130
#: Width of a progress bar in characters.
BAR_WIDTH = 20
EMPTY_CELL = "-"
_NUMBERS = re.compile(r"(\d+)")
_CURSOR_UP, _CLEAR_BELOW = "\x1b[{}A", "\x1b[J"


def output_option(*formats: str) -> Callable[[F], F]:
    """Add `-o`; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


def page_option(help_text: str) -> Callable[[F], F]:
    """Add `--html`; the command gets the file to write (`write_page`) as `page`.

    A file that cannot be written is wrong usage: the command may run for hours before it writes.
    So is an input file; see `refuse_input_as_page`.
    """

    def check_page(
        context: click.Context, option: click.Parameter, path: Path | None
    ) -> Path | None:
        # Completion only parses.
        if path is None or context.resilient_parsing:
            return path
        if str(path) in ("-", "."):
            raise click.BadParameter("must name the file to write, for example report.html")
        try:
            # A pipe would end for its reader when it is closed here.
            if stat.S_ISREG(path.stat().st_mode):
                path.open("ab").close()
        except FileNotFoundError:
            _try_to_create(path)
        except OSError as error:
            raise _cannot_write(path, error) from None
        return path

    return click.option(
        "--html",
        "page",
        type=click.Path(dir_okay=False, path_type=Path),
        default=None,
        metavar="FILE",
        callback=check_page,
        help=help_text,
    )


def refuse_input_as_page(page: Path | None, inputs: Iterable[Path]) -> None:
    """Refuse a page that would replace one of the files that a command has read."""
    for path in inputs:
        if page is not None and page.exists() and path.exists() and page.samefile(path):
            raise click.BadParameter(
                f"{page} is the input file {path}; name another file", param_hint="--html"
            )


def _try_to_create(path: Path) -> None:
    """Create a file and remove it; a link may name one that does not exist."""
    target = Path(os.path.realpath(path))
    try:
        target.open("xb").close()
        target.unlink()
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> click.BadParameter:
    return click.BadParameter(f"cannot write {path}: {error.strerror}")


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def echo(text: str, *, err: bool = False, nl: bool = True, colour: str = "") -> None:
    """Print text of any origin."""
    click.echo(colorize(StyledLine(text, colour)), err=err, nl=nl)


def format_structured(value: object, output: str) -> str:
    """Format a value as JSON or YAML."""
    if output == YAML:
        import yaml

        text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
        if escape_unprintable(text) != text:
            text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
        return text.rstrip("\n")
    import msgspec

    return escape_json(msgspec.json.format(msgspec.json.encode(value), indent=2))


def write_page(path: Path, page: str) -> None:
    """Write an HTML page to a file."""
    try:
        # Names of files may contain bytes that are no text.
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None


def escape_json(encoded: bytes) -> str:
    """Escape what JSON need not escape: such characters stand inside of strings only."""
    text = encoded.decode()
    if escape_unprintable(text) == text:
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def align_columns(rows: Sequence[Sequence[str]], *, gap: int = 3) -> Iterator[str]:
    """Format rows of cells as the lines of a table, each column as wide as its widest cell."""
    rows = [[escape_unprintable(cell, keep="") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield (" " * gap).join(padded).rstrip()


def cut_line(text: str, width: int) -> str:
    """Cut a text that is wider than `width` (0: any width will do), and show that with `…`."""
    return text if not width or len(text) <= width else f"{text[: width - 1]}…"


def progress_bar(done: int, total: int, width: int = BAR_WIDTH) -> str:
    """Draw a bar that is full only if all is done and empty only if nothing is."""
    share = min(max(done / total, 0.0), 1.0) if total else 0.0
    filled = round(share * width)
    if 0 < share < 1:
        filled = min(max(filled, 1), width - 1)
    return "█" * filled + "░" * (width - filled)


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun: `1 pod`, `2 pods`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def natural_key(name: str) -> tuple[str | int, ...]:
    """Return what names are sorted by, so that `rack-2` comes before `rack-10`."""
    return tuple(int(part) if part.isdecimal() else part for part in _NUMBERS.split(name))


def join_names(names: Sequence[str], limit: int) -> str:
    """Join the first `limit` names by commas and say how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


class StyledLine(NamedTuple):
    """A line of text with an optional colour."""

    text: str
    colour: str = ""


class LiveDisplay:
    """Lines at the bottom of a terminal that are redrawn in place; elsewhere each list follows."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._line_count = out, 0

    def draw(self, lines: Sequence[StyledLine]) -> None:
        """Replace the lines drawn before; lines that do not fit on the screen are omitted."""
        if not self._out.isatty():
            # A file or a pipe gets every list as it is.
            self._out.write(
                "".join(f"{escape_unprintable(one.text)}\n" for one in (*lines, _BLANK))
            )
            self._out.flush()
            return
        width, height = shutil.get_terminal_size()
        shown = list(lines[: height - 1])
        if len(shown) < len(lines):
            shown[-1] = StyledLine(f"… and {len(lines) - len(shown) + 1} more lines")
        back = _CURSOR_UP.format(self._line_count) if self._line_count else ""
        texts = [(escape_unprintable(one.text, keep="")[:width], one.colour) for one in shown]
        body = "".join(f"{colorize(StyledLine(*one))}\n" for one in texts)
        self._out.write(f"{back}\r{_CLEAR_BELOW}{body}")
        self._out.flush()
        self._line_count = len(shown)


#: The line between two lists in a file.
_BLANK = StyledLine("")


def colorize(line: StyledLine) -> str:
    """Escape the text, and add the terminal codes of the line's colour."""
    text = escape_unprintable(line.text)
    return click.style(text, fg=line.colour) if line.colour else text
