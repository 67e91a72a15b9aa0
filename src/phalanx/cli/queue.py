"""`phalanx queue`: gangs that run and wait, in order, each with its turn and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from phalanx.api.meta import timestamp
from phalanx.api.printing.cells import format_duration
from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import (
    EMPTY_CELL,
    JSON,
    TABLE,
    WIDE,
    YAML,
    align_columns,
    format_structured,
    output_option,
)
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, in_namespace, list_workloads

QueueRow = tuple[str, ...]

_HEADER: QueueRow = (
    "NAME", "OWNER", "STATE", "POSITION", "PRIORITY", "SINCE", "MEMBERS", "REASON",
)  # fmt: skip
_WIDE_HEADER: QueueRow = ("KIND", "NEEDED", "NODES", "SCHEDULER", "MESSAGE")


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

    async def question(client: Client, default: str) -> list[WorkloadRow]:
        lines = list_workloads(await read_cluster(client))
        return in_namespace(lines, "" if everywhere else namespace or default)

    lines = query_cluster(config, context, question)
    if output in (JSON, YAML):
        click.echo(
            format_structured({"items": [queue_entry_data(line, now) for line in lines]}, output)
        )
    elif lines:
        for text in align_columns(list(_queue_table(lines, now, everywhere, output == WIDE))):
            click.echo(text)
    else:
        click.echo("No gang runs or waits.", err=True)


def queue_entry_data(line: WorkloadRow, now: float) -> dict[str, Any]:
    """A line for programs."""
    return {
        "kind": line.kind, "namespace": line.ref.key.namespace, "name": line.ref.key.name,
        "owner": line.owner,
        "state": line.state.value, "position": line.position or None,
        "priority": line.priority, "since": timestamp(line.since),
        "seconds": max(int(now - line.since), 0),
        "placed": line.placed, "pending": line.pending, "ended": line.ended,
        "needed": line.needed, "reason": line.reason, "message": line.message,
        "nodes": list(line.nodes), "scheduler": line.scheduler,
    }  # fmt: skip


def _queue_table(
    lines: Sequence[WorkloadRow], now: float, spaces: bool, wide: bool
) -> Iterator[QueueRow]:
    space: QueueRow = ("NAMESPACE",) if spaces else ()
    yield (*space, *_HEADER, *(_WIDE_HEADER if wide else ()))
    for line in lines:
        space = (line.ref.key.namespace,) if spaces else ()
        yield (*space, *_queue_cells(line, now), *(_wide_cells(line) if wide else ()))


def _queue_cells(line: WorkloadRow, now: float) -> QueueRow:
    return (
        line.ref.key.name,
        line.owner or EMPTY_CELL,
        line.state.value,
        str(line.position or EMPTY_CELL),
        str(line.priority),
        format_duration(max(now - line.since, 0)),
        f"{line.placed}/{line.members}",
        line.reason or EMPTY_CELL,
    )


def _wide_cells(line: WorkloadRow) -> QueueRow:
    needed, nodes = str(line.needed), str(len(line.nodes) or EMPTY_CELL)
    return line.kind, needed, nodes, line.scheduler, line.message or EMPTY_CELL
