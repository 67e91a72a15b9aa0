"""`phalanx queue`: list running and waiting gangs in scheduling order, with their reasons."""

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
    "NAME",
    "OWNER",
    "STATE",
    "POSITION",
    "PRIORITY",
    "SINCE",
    "MEMBERS",
    "REASON",
)
_WIDE_HEADER: QueueRow = ("KIND", "NEEDED", "NODES", "SCHEDULER", "MESSAGE")


@click.command()
@cluster_options
@click.option(
    "-A", "--all-namespaces", "all_namespaces", is_flag=True, help="List gangs of all namespaces."
)
@output_option(TABLE, WIDE, JSON, YAML)
def command(
    *, namespace: str, config: Path | None, context: str, all_namespaces: bool, output: str
) -> None:
    """List running gangs, then waiting gangs in the order in which the scheduler tries them.

    Positions count over all namespaces. A held gang (members are missing, or have a scheduling
    gate) has no position. MEMBERS counts members with a node, of all members; SINCE is how long the
    gang has run or waited. Pods without a gang are listed while they wait. Changes nothing.

    \b
    Example:
      phalanx queue
      phalanx queue -A -o wide
    """
    now = WallClock().now()

    async def query(client: Client, default_namespace: str) -> list[WorkloadRow]:
        rows = list_workloads(await read_cluster(client))
        return in_namespace(rows, "" if all_namespaces else namespace or default_namespace)

    rows = query_cluster(config, context, query)
    if output in (JSON, YAML):
        items = [queue_entry_data(row, now) for row in rows]
        click.echo(format_structured({"items": items}, output))
    elif rows:
        table = _queue_table(rows, now, with_namespace=all_namespaces, wide=output == WIDE)
        for line in align_columns(list(table)):
            click.echo(line)
    else:
        click.echo("No gang runs or waits.", err=True)


def queue_entry_data(row: WorkloadRow, now: float) -> dict[str, Any]:
    """Return a row of the queue as data for JSON and YAML."""
    return {
        "kind": row.kind,
        "namespace": row.ref.namespace,
        "name": row.ref.name,
        "owner": row.owner,
        "state": row.state.value,
        "position": row.position or None,
        "priority": row.priority,
        "since": timestamp(row.since),
        "seconds": max(int(now - row.since), 0),
        "placed": row.placed,
        "pending": row.pending,
        "ended": row.ended,
        "needed": row.needed,
        "reason": row.reason,
        "message": row.message,
        "nodes": list(row.nodes),
        "scheduler": row.scheduler,
    }


def _queue_table(
    rows: Sequence[WorkloadRow], now: float, *, with_namespace: bool, wide: bool
) -> Iterator[QueueRow]:
    head = ("NAMESPACE", *_HEADER) if with_namespace else _HEADER
    yield (*head, *_WIDE_HEADER) if wide else head
    for row in rows:
        cells: QueueRow = (
            row.ref.name,
            row.owner or EMPTY_CELL,
            row.state.value,
            str(row.position or EMPTY_CELL),
            str(row.priority),
            format_duration(max(now - row.since, 0)),
            f"{row.placed}/{row.members}",
            row.reason or EMPTY_CELL,
        )
        if with_namespace:
            cells = (row.ref.namespace, *cells)
        if wide:
            nodes = str(len(row.nodes) or EMPTY_CELL)
            message = row.message or EMPTY_CELL
            cells = (*cells, row.kind, str(row.needed), nodes, row.scheduler, message)
        yield cells
