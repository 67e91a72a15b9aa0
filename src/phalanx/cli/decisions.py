"""`phalanx decisions FILE`: list the decisions of a decision log, and replay them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from phalanx.api.meta import micro_timestamp
from phalanx.cli.output import align_columns, echo, escape_json, pluralize
from phalanx.cli.scheduler_configuration import load_installed_plugins
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.explain import explain
from phalanx.scheduler.queue.decision_log import RecordFault, encode_decision
from phalanx.scheduler.queue.replay import ReplayedDecision, list_decisions, replay

_HEADER = ("TIME", "ENTITY", "ATTEMPT", "OUTCOME", "MESSAGE")
#: Rows whose columns are aligned with each other: a long log is printed as it is read.
_ROWS_PER_PAGE = 200

DecisionRow = tuple[str, ...]


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE…",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--check", is_flag=True, help="Replay every decision; exit 1 if one differs.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def decisions_command(files: tuple[Path, ...], check: bool, output: str) -> None:
    """List the decisions in a log that `phalanx up --decision-log FILE` wrote, oldest first.

    With --check a second scheduler gets the recorded input, and its decisions are compared with the
    recorded ones. Full logs are numbered FILE.1, FILE.2 …; the highest number is the oldest.

    \b
    Example:
      phalanx decisions decisions.jsonl --check
    """
    lines = (line for file in files for line in _read_lines(file))
    counter = _DecisionCounter()
    decisions = counter.count(
        replay(lines, load_installed_plugins()) if check else list_decisions(lines)
    )
    if output == "table":
        _print_table(decisions)
        if check:
            echo(f"{counter.decisions} decisions replayed, {counter.differences} differ")
    else:
        _print_json(decisions)
    if counter.faults or counter.differences:
        raise click.exceptions.Exit(1)


class _DecisionCounter:
    """Counts decisions, decisions that differ in the replay, and invalid lines."""

    def __init__(self) -> None:
        self.decisions = self.differences = self.faults = 0

    def count(self, items: Iterable[ReplayedDecision | RecordFault]) -> Iterator[ReplayedDecision]:
        """Yield the decisions; print an error for each invalid line."""
        for item in items:
            if isinstance(item, RecordFault):
                self.faults += 1
                echo(f"line {item.line} {item.reason}", err=True)
            else:
                self.decisions += 1
                self.differences += item.differs
                yield item


def _read_lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield from opened


def _print_table(decisions: Iterable[ReplayedDecision]) -> None:
    rows: list[DecisionRow] = [_HEADER]
    for decision in decisions:
        rows += _decision_rows(decision)
        if len(rows) >= _ROWS_PER_PAGE:
            echo("\n".join(align_columns(rows)))
            rows = []
    if rows:
        echo("\n".join(align_columns(rows)))


def _decision_rows(decision: ReplayedDecision) -> Iterator[DecisionRow]:
    """The row of a decision, and below it the replayed decision if that differs."""
    entity = decision.entity
    kind = "pod" if entity.group is None else "podgroup"
    outcome, message = _describe_decision(decision.recorded)
    yield (
        micro_timestamp(decision.at),
        f"{kind}/{entity.key}",
        str(entity.attempts),
        outcome,
        message,
    )
    if decision.replayed is not None and decision.differs:
        outcome, message = _describe_decision(decision.replayed)
        yield "", "", "now:", outcome, message or "other details"


def _describe_decision(decision: Decision) -> tuple[str, str]:
    if not isinstance(decision, Placed):
        return type(decision).__name__, explain(decision).message
    nodes = list(dict.fromkeys(binding.node for binding in decision.bindings))
    location = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    pending = f", {len(decision.leftovers)} left over" if decision.leftovers else ""
    return "Placed", f"{pluralize(len(decision.bindings), 'pod')} on {location}{pending}"


def _print_json(decisions: Iterable[ReplayedDecision]) -> None:
    for decision in decisions:
        row = {
            "time": micro_timestamp(decision.at),
            "line": decision.line,
            "entity": decision.entity,
            "message": _describe_decision(decision.recorded)[1],
            "decision": encode_decision(decision.recorded),
        }
        if decision.replayed is not None:
            row |= {"differs": decision.differs, "now": encode_decision(decision.replayed)}
        echo(escape_json(msgspec.json.encode(row)))
