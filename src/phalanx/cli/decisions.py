"""`phalanx decisions FILE`: what a scheduler decided, and whether it would again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from phalanx.api.meta import micro_timestamp
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.explain import explain
from phalanx.scheduler.queue.decision_log import RecordFault, encode_decision
from phalanx.scheduler.queue.replay import ReplayedDecision, list_decisions, replay

_HEADER = ("TIME", "ENTITY", "ATTEMPT", "OUTCOME", "MESSAGE")
#: Rows that are looked at together to line up their columns.
_ROWS_PER_PAGE = 200

DecisionRow = tuple[str, ...]


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
    lines = (line for file in files for line in _read_lines(file))
    found = replay(lines) if check else list_decisions(lines)
    tally = _Tally()
    _print_table(tally.count(found)) if output == "table" else _print_json(tally.count(found))
    if output == "table" and check:
        click.echo(f"{tally.decisions} decisions made again, {tally.differences} differ")
    if tally.faults or tally.differences:
        raise click.exceptions.Exit(1)


class _Tally:
    """How many decisions there were, and how many of them, and of the lines, were wrong."""

    def __init__(self) -> None:
        self.decisions = self.differences = self.faults = 0

    def count(self, found: Iterable[ReplayedDecision | RecordFault]) -> Iterator[ReplayedDecision]:
        """The decisions; lines that are wrong are told at once."""
        for one in found:
            if isinstance(one, RecordFault):
                self.faults += 1
                click.echo(f"line {one.line} {one.why}", err=True)
            else:
                self.decisions += 1
                self.differences += one.differs
                yield one


def _read_lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield from opened


def _print_table(found: Iterable[ReplayedDecision]) -> None:
    rows: list[DecisionRow] = [_HEADER]
    for one in found:
        rows += _decision_rows(one)
        if len(rows) >= _ROWS_PER_PAGE:
            _print_rows(rows)
            rows = []
    _print_rows(rows)


def _print_rows(rows: list[DecisionRow]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("   ".join(padded).rstrip())


def _decision_rows(one: ReplayedDecision) -> Iterator[DecisionRow]:
    """A decision, and below it the one that would be made today, if that is another."""
    entity = one.entity
    kind = "pod" if entity.group is None else "podgroup"
    outcome, message = _describe_decision(one.recorded)
    yield (
        micro_timestamp(one.at), f"{kind}/{entity.key}", str(entity.attempts), outcome, message
    )  # fmt: skip
    if one.replayed is not None and one.differs:
        outcome, message = _describe_decision(one.replayed)
        yield "", "", "now:", outcome, message or "other details"


def _describe_decision(decision: Decision) -> tuple[str, str]:
    if not isinstance(decision, Placed):
        return type(decision).__name__, explain(decision).message
    pods, left = len(decision.bindings), len(decision.leftovers)
    nodes = list(dict.fromkeys(binding.node for binding in decision.bindings))
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    more = f", {left} left over" if left else ""
    return "Placed", f"{pods} pod{'s' if pods > 1 else ''} on {where}{more}"


def _print_json(found: Iterable[ReplayedDecision]) -> None:
    for one in found:
        row = {
            "time": micro_timestamp(one.at),
            "line": one.line,
            "entity": one.entity,
            "message": _describe_decision(one.recorded)[1],
            "decision": encode_decision(one.recorded),
        }
        if one.replayed is not None:
            row |= {"differs": one.differs, "now": encode_decision(one.replayed)}
        click.echo(msgspec.json.encode(row))
