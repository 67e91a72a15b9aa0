"""`phalanx decisions FILE`: what a scheduler decided, and whether it would again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from phalanx.api.meta import micro_timestamp
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.explain import explain
from phalanx.scheduler.queueing.record import Fault, spoken
from phalanx.scheduler.queueing.replay import Replayed, listed, replay

_HEAD = ("TIME", "ENTITY", "ATTEMPT", "OUTCOME", "MESSAGE")
#: Rows that are looked at together to line up their columns.
_PAGE = 200

Row = tuple[str, ...]


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE…",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--check", is_flag=True, help="Make every decision again; exit 1 if any differs.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def command(files: tuple[Path, ...], check: bool, output: str) -> None:
    """List the decisions in a log that `phalanx up --decision-log FILE` wrote, the oldest first.

    With --check everything that the scheduler saw is fed to another one, and each of its decisions
    compared with the one that was made. Full logs are numbered FILE.1, FILE.2 …, the oldest last.

    \b
    Example:
      phalanx decisions decisions.jsonl --check
    """
    lines = (line for file in files for line in _lines(file))
    found = replay(lines) if check else listed(lines)
    tally = _Tally()
    _print_table(tally.counting(found)) if output == "table" else _print_json(tally.counting(found))
    if output == "table" and check:
        click.echo(f"{tally.decisions} decisions made again, {tally.differences} differ")
    if tally.faults or tally.differences:
        raise click.exceptions.Exit(1)


class _Tally:
    """How many decisions there were, and how many of them, and of the lines, were wrong."""

    def __init__(self) -> None:
        self.decisions = self.differences = self.faults = 0

    def counting(self, found: Iterable[Replayed | Fault]) -> Iterator[Replayed]:
        """The decisions; lines that are wrong are told at once."""
        for one in found:
            if isinstance(one, Fault):
                self.faults += 1
                click.echo(f"line {one.line} {one.why}", err=True)
            else:
                self.decisions += 1
                self.differences += one.differs
                yield one


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield from opened


def _print_table(found: Iterable[Replayed]) -> None:
    rows: list[Row] = [_HEAD]
    for one in found:
        rows += _rows(one)
        if len(rows) >= _PAGE:
            _print_rows(rows)
            rows = []
    _print_rows(rows)


def _print_rows(rows: list[Row]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("   ".join(padded).rstrip())


def _rows(one: Replayed) -> Iterator[Row]:
    """A decision, and below it the one that would be made today, if that is another."""
    entity = one.entity
    kind = "pod" if entity.group is None else "podgroup"
    outcome, message = _said(one.then)
    yield (
        micro_timestamp(one.at), f"{kind}/{entity.key}", str(entity.attempts), outcome, message
    )  # fmt: skip
    if one.now is not None and one.differs:
        outcome, message = _said(one.now)
        yield "", "", "now:", outcome, message or "other details"


def _said(decision: Decision) -> tuple[str, str]:
    if not isinstance(decision, Placed):
        return type(decision).__name__, explain(decision).message
    pods, left = len(decision.bindings), len(decision.leftovers)
    nodes = list(dict.fromkeys(binding.node for binding in decision.bindings))
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    more = f", {left} left over" if left else ""
    return "Placed", f"{pods} pod{'s' if pods > 1 else ''} on {where}{more}"


def _print_json(found: Iterable[Replayed]) -> None:
    for one in found:
        row = {
            "time": micro_timestamp(one.at), "line": one.line, "entity": one.entity,
            "message": _said(one.then)[1], "decision": spoken(one.then),
        }  # fmt: skip
        if one.now is not None:
            row |= {"differs": one.differs, "now": spoken(one.now)}
        click.echo(msgspec.json.encode(row))
