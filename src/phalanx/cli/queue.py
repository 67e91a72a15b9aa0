"""`phalanx queue`: gangs that run and wait, in order, each with its turn and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from phalanx.api.meta import timestamp
from phalanx.api.printing.cells import duration
from phalanx.cli.connection import ask, cluster_options
from phalanx.cli.paper import (
    JSON,
    NOTHING,
    TABLE,
    WIDE,
    YAML,
    aligned,
    output_option,
    structured,
)
from phalanx.cli.subjects import seen
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.asking.lineup import Lined, lineup, of_namespace

Row = tuple[str, ...]

_HEAD: Row = (
    "NAME", "OWNER", "STATE", "POSITION", "PRIORITY", "SINCE", "MEMBERS", "REASON",
)  # fmt: skip
_MORE: Row = ("KIND", "NEEDED", "NODES", "SCHEDULER", "MESSAGE")


@click.command()
@cluster_options
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces.")
@output_option(TABLE, WIDE, JSON, YAML)
def command(
    namespace: str, config: Path | None, context: str, everywhere: bool, output: str
) -> None:
    """List the gangs that run and those that wait, in the order in which they are tried.

    Positions count over all namespaces. A gang that is held (members are missing, or behind a
    scheduling gate) has none. MEMBERS are those with a node, of all; SINCE is how long it has run
    or waited. Pods that belong to no gang are listed while they wait. Nothing is changed.

    \b
    Example:
      phalanx queue
      phalanx queue -A -o wide
    """
    now = WallClock().now()

    async def question(client: Client, default: str) -> list[Lined]:
        lines = lineup(await seen(client))
        return of_namespace(lines, "" if everywhere else namespace or default)

    lines = ask(config, context, question)
    if output in (JSON, YAML):
        click.echo(structured({"items": [as_data(line, now) for line in lines]}, output))
    elif lines:
        for text in aligned(list(_table(lines, now, everywhere, output == WIDE))):
            click.echo(text)
    else:
        click.echo("No gang runs or waits.", err=True)


def as_data(line: Lined, now: float) -> dict[str, Any]:
    """A line for programs."""
    return {
        "kind": line.kind, "namespace": line.id.key.namespace, "name": line.id.key.name,
        "owner": line.owner,
        "state": line.standing.value, "position": line.position or None,
        "priority": line.priority, "since": timestamp(line.since),
        "seconds": max(int(now - line.since), 0),
        "placed": line.placed, "pending": line.pending, "ended": line.ended,
        "needed": line.needed, "reason": line.reason, "message": line.message,
        "nodes": list(line.nodes), "scheduler": line.scheduler,
    }  # fmt: skip


def _table(lines: Sequence[Lined], now: float, spaces: bool, wide: bool) -> Iterator[Row]:
    space: Row = ("NAMESPACE",) if spaces else ()
    yield (*space, *_HEAD, *(_MORE if wide else ()))
    for line in lines:
        space = (line.id.key.namespace,) if spaces else ()
        yield (*space, *_cells(line, now), *(_more(line) if wide else ()))


def _cells(line: Lined, now: float) -> Row:
    return (
        line.id.key.name, line.owner or NOTHING, line.standing.value, str(line.position or NOTHING),
        str(line.priority), duration(max(now - line.since, 0)), f"{line.placed}/{line.members}",
        line.reason or NOTHING,
    )  # fmt: skip


def _more(line: Lined) -> Row:
    needed, nodes = str(line.needed), str(len(line.nodes) or NOTHING)
    return line.kind, needed, nodes, line.scheduler, line.message or NOTHING
