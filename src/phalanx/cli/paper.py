"""Paper: how commands print. Tables, bars, JSON and YAML; what is a terminal, and what is not.

Knows nothing of what it prints. Colours and whatever moves are for terminals alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

TABLE, TEXT, WIDE, JSON, YAML = "table", "text", "wide", "json", "yaml"
#: Characters that a bar is wide.
BAR = 20
NOTHING = "-"


def output_option(*formats: str) -> Callable[[F], F]:
    """`-o`: the first format is the usual one."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True,
        help="How to print it.",
    )  # fmt: skip


def is_terminal() -> bool:
    """Whether somebody looks at what is printed."""
    return sys.stdout.isatty()


def structured(value: object, output: str) -> str:
    """A value for programs, as JSON or YAML."""
    if output == YAML:
        import yaml

        return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip("\n")
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table: cells below each other, the last ones as long as they are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "   ".join(padded).rstrip()


def bar(done: int, total: int, width: int = BAR) -> str:
    """How much of something is done, as a picture. Full only if all is, empty only if nothing."""
    share = min(max(done / total, 0.0), 1.0) if total else 0.0
    filled = round(share * width)
    if 0 < share < 1:
        filled = min(max(filled, 1), width - 1)
    return "█" * filled + "░" * (width - filled)


def counted(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
