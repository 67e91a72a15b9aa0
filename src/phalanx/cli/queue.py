"""`phalanx queue`: list running and waiting gangs in scheduling order, with their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from phalanx.api.meta import POD_KIND, Ref, timestamp
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
    echo,
    format_structured,
    output_option,
)
from phalanx.cli.scheduler_status import find_scheduler_outage
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart, expected_starts
from phalanx.scheduler.diagnosis.queue_order import (
    WorkloadRow,
    WorkloadState,
    in_namespace,
    list_workloads,
)

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
    "EXPECTED",
)
_WIDE_HEADER: QueueRow = ("KIND", "NEEDED", "NODES", "SCHEDULER", "MESSAGE")


@click.command()
@cluster_options
@click.option(
    "-A", "--all-namespaces", "all_namespaces", is_flag=True, help="List gangs of all namespaces."
)
@click.option("--finished", "with_finished", is_flag=True, help="List finished gangs too.")
@output_option(TABLE, WIDE, JSON, YAML)
def queue_command(
    *,
    namespace: str,
    config: Path | None,
    context: str,
    all_namespaces: bool,
    with_finished: bool,
    output: str,
) -> None:
    """List running gangs, then waiting gangs in the order in which the scheduler tries them.

    Positions count over all namespaces. A held gang (members are missing, or have a scheduling
    gate) has no position. MEMBERS counts members with a node, of all members; SINCE is how long the
    gang has run or waited. REASON says why a gang waits, which entity has preempted it, or how it
    ended. EXPECTED is in how long a gang is expected to start, by the deadlines and expected run
    times of what runs; a star marks gangs for which nodes are reserved. Pods without a gang are
    listed while they wait. Warns if no scheduler is running. Changes nothing.

    \b
    Example:
      phalanx queue
      phalanx queue -A -o wide
    """
    now = WallClock().now()

    async def query(
        client: Client, default_namespace: str
    ) -> tuple[list[WorkloadRow], dict[Ref, ExpectedStart], str]:
        cluster = await read_cluster(client)
        rows, starts = (
            list_workloads(cluster, include_all=with_finished),
            expected_starts(cluster, now=now),
        )
        rows = [row for row in rows if _is_listed(row)]
        rows = in_namespace(rows, "" if all_namespaces else namespace or default_namespace)
        waiting = {row.scheduler for row in rows if row.state is WorkloadState.WAITING}
        return rows, starts, await find_scheduler_outage(client, waiting, now)

    rows, starts, outage = query_cluster(config, context, query)
    if outage:
        echo(f"Warning: {outage}", err=True)
    if output in (JSON, YAML):
        data: dict[str, Any] = {
            "items": [queue_entry_data(row, now, starts.get(row.ref)) for row in rows]
        }
        echo(format_structured(data | ({"warning": outage} if outage else {}), output))
    elif rows:
        table = _queue_table(rows, starts, now, with_namespace=all_namespaces, wide=output == WIDE)
        for line in align_columns(list(table)):
            echo(line)
    else:
        echo("No gang runs or waits.", err=True)


def _is_listed(row: WorkloadRow) -> bool:
    """Return whether a row is a gang, or a pod that waits."""
    return row.kind != POD_KIND or row.state in (WorkloadState.WAITING, WorkloadState.HELD)


def queue_entry_data(
    row: WorkloadRow, now: float, expected: ExpectedStart | None = None
) -> dict[str, Any]:
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
        "preempted": row.preempted or None,
        "nodes": list(row.nodes),
        "scheduler": row.scheduler,
        **start_data(expected),
    }


def start_data(expected: ExpectedStart | None) -> dict[str, Any]:
    """Return when a workload is expected to start as data for JSON and YAML."""
    time = expected.time if expected else None
    return {
        "expectedStart": None if time is None else timestamp(time),
        "reserved": expected is not None and expected.is_reserved,
    }


def _queue_table(
    rows: Sequence[WorkloadRow],
    starts: Mapping[Ref, ExpectedStart],
    now: float,
    *,
    with_namespace: bool,
    wide: bool,
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
            f"{row.preempted}, waiting" if row.preempted else row.reason or EMPTY_CELL,
            _expected_cell(starts.get(row.ref), now),
        )
        if with_namespace:
            cells = (row.ref.namespace, *cells)
        if wide:
            nodes = str(len(row.nodes) or EMPTY_CELL)
            message = row.message or EMPTY_CELL
            cells = (*cells, row.kind, str(row.needed), nodes, row.scheduler, message)
        yield cells


def _expected_cell(expected: ExpectedStart | None, now: float) -> str:
    """Format when a row is expected to start; a star marks reserved nodes."""
    if expected is None:
        return EMPTY_CELL
    mark = "*" if expected.is_reserved else ""
    if expected.time is None:
        return f"unknown{mark}"
    return f"{format_duration(max(expected.time - now, 0))}{mark}"
