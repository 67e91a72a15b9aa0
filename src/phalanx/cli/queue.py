"""`phalanx queue`: list running and waiting gangs in scheduling order, with their reasons.

cluster ─▶ list_workloads, expected_starts, find_impossible ─▶ ListedWorkload ─▶ table or data
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
    LiveDisplay,
    StyledLine,
    align_columns,
    echo,
    format_structured,
    is_terminal,
    output_option,
)
from phalanx.cli.scheduler_status import find_scheduler_outage
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart, expected_starts
from phalanx.scheduler.diagnosis.queue_order import (
    WorkloadRow,
    WorkloadState,
    list_workloads,
)
from phalanx.scheduler.diagnosis.what_if import find_impossible

NOTHING_LISTED = "No gang runs or waits."
#: Seconds between two looks of --watch.
WATCH_INTERVAL = 2.0
#: The states that users see; those of a waiting gang in the order in which they are tried.
RUNNING, WAITING, HELD = "running", "waiting", "held"
NEVER, RESERVED, PREEMPTED = "never", "reserved", "preempted"
COMPLETED, FAILED = "completed", "failed"
STATES = (RUNNING, WAITING, RESERVED, PREEMPTED, NEVER, HELD, COMPLETED, FAILED)

_HEADER = ("GANG", "STATE", "POS", "PRIORITY", "SINCE", "PODS", "REASON")
_WIDE_HEADER = ("EXPECTED", "NEEDED", "NODES", "SCHEDULER", "KIND", "NAME", "MESSAGE")
_STATE_COLOURS = {RUNNING: "green", NEVER: "red", FAILED: "red", COMPLETED: "blue"}


class ListedWorkload(NamedTuple):
    """A workload with its state for users and its expected start."""

    row: WorkloadRow
    state: str
    expected: ExpectedStart | None


class WorkloadListing(NamedTuple):
    """What one look at the cluster shows, and a warning if no scheduler is running."""

    entries: list[ListedWorkload]
    outage: str
    now: float


class QueueFilter(NamedTuple):
    """Which entries are listed; "" and no states stand for all."""

    namespace: str
    owner: str
    states: tuple[str, ...]

    def accepts(self, entry: ListedWorkload) -> bool:
        """Return whether an entry is listed."""
        row = entry.row
        return (
            (not self.namespace or row.ref.namespace == self.namespace)
            and (not self.owner or self.owner in (row.argument, row.ref.name, row.owner))
            and (not self.states or entry.state in self.states)
        )


@click.command()
@cluster_options
@click.option(
    "-A", "--all-namespaces", "all_namespaces", is_flag=True, help="List gangs of all namespaces."
)
@click.option(
    "--owner", default="", metavar="KIND/NAME", help="List the gangs of one owner: job/train."
)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="List gangs in this state."
)
@click.option(
    "--ended",
    "--finished",
    "with_ended",
    is_flag=True,
    help="List gangs that have ended too, as long as their objects exist.",
)
@click.option("-w", "--watch", is_flag=True, help="List again every two seconds, until ^C.")
@output_option(TABLE, WIDE, JSON, YAML)
def queue_command(
    *, namespace: str, config: Path | None, context: str, all_namespaces: bool, owner: str,
    states: tuple[str, ...], with_ended: bool, watch: bool, output: str,
) -> None:  # fmt: skip
    """List running gangs, then waiting gangs in the order in which the scheduler tries them.

    A waiting gang is reserved (nodes are kept for it; REASON says in how long it is expected to
    start), preempted, never (it would not fit even if nothing else ran), or just waiting. A held
    gang (members are missing, or have a scheduling gate) has no position. Positions count over all
    namespaces. PODS counts members with a node, of all members; SINCE is how long the gang has run
    or waited. Pods without a gang are listed while they wait. Warns if no scheduler is running.
    Changes nothing.

    \b
    Example:
      phalanx queue
      phalanx queue -A --state waiting --state reserved -o wide
      phalanx queue --owner job/train --ended
    """
    if watch and output in (JSON, YAML):
        raise click.UsageError("--watch draws a table: -o json and -o yaml list once")
    display = LiveDisplay(sys.stdout)
    with_ended = with_ended or COMPLETED in states or FAILED in states

    async def query(client: Client, default_namespace: str) -> WorkloadListing:
        chosen = QueueFilter(
            "" if all_namespaces else namespace or default_namespace, owner, states
        )
        while True:
            listing = await list_queue(client, chosen, with_ended=with_ended)
            if not watch:
                return listing
            lines = render_queue(listing, with_namespace=all_namespaces, wide=output == WIDE)
            display.draw(list(lines) or [StyledLine(NOTHING_LISTED)])
            await asyncio.sleep(WATCH_INTERVAL)

    try:
        listing = query_cluster(config, context, query)
    except KeyboardInterrupt:
        return
    if listing.outage:
        echo(f"Warning: {listing.outage}", err=True)
    if output in (JSON, YAML):
        items = [queue_entry_data(*entry, now=listing.now) for entry in listing.entries]
        warning = {"warning": listing.outage} if listing.outage else {}
        echo(format_structured({"items": items} | warning, output))
    elif listing.entries:
        for line in render_queue(listing, with_namespace=all_namespaces, wide=output == WIDE):
            echo(line.text, colour=line.colour if is_terminal() else "")
    else:
        echo(NOTHING_LISTED, err=True)


async def list_queue(
    client: Client, chosen: QueueFilter, *, with_ended: bool = False
) -> WorkloadListing:
    """Read the cluster once; list the chosen entries, and say whether a scheduler is running."""
    cluster, now = await read_cluster(client), WallClock().now()
    rows = [row for row in list_workloads(cluster, include_all=with_ended) if _is_listed(row)]
    starts = expected_starts(cluster, now=now)
    unplanned = [
        row.ref for row in rows if row.state is WorkloadState.WAITING and row.ref not in starts
    ]
    impossible = find_impossible(unplanned, cluster, now=now)
    entries = [
        ListedWorkload(row, _user_state(row, starts.get(row.ref), impossible), starts.get(row.ref))
        for row in rows
    ]
    listed = [entry for entry in entries if chosen.accepts(entry)]
    schedulers = {
        entry.row.scheduler for entry in listed if entry.row.state is WorkloadState.WAITING
    }
    outage = await find_scheduler_outage(client, schedulers, now)
    return WorkloadListing(listed, outage, now)


def _user_state(
    row: WorkloadRow, expected: ExpectedStart | None, impossible: Collection[Ref]
) -> str:
    if row.state is WorkloadState.ENDED:
        return FAILED if row.reason == "Failed" or row.failed else COMPLETED
    if row.state is not WorkloadState.WAITING:
        return str(row.state.value)
    if row.ref in impossible:
        return NEVER
    if expected is not None and expected.is_reserved:
        return RESERVED
    return PREEMPTED if row.preempted else WAITING


def _is_listed(row: WorkloadRow) -> bool:
    """Return whether a row is a gang, or a pod that waits."""
    return row.kind != POD_KIND or row.state in (WorkloadState.WAITING, WorkloadState.HELD)


def queue_entry_data(
    row: WorkloadRow, state: str, expected: ExpectedStart | None, now: float
) -> dict[str, Any]:
    """Return an entry of the queue as data for JSON and YAML."""
    return {
        "kind": row.kind,
        "namespace": row.ref.namespace,
        "name": row.ref.name,
        "owner": row.owner,
        "state": state,
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


def render_queue(
    listing: WorkloadListing, *, with_namespace: bool = False, wide: bool = False
) -> Iterator[StyledLine]:
    """Format the entries as a table; nothing if there is none."""
    if not listing.entries:
        return
    header = (*_HEADER, *_WIDE_HEADER) if wide else _HEADER
    rows = [("NAMESPACE", *header) if with_namespace else header]
    for entry in listing.entries:
        cells = _queue_cells(entry, listing.now)
        cells = (*cells, *_wide_cells(entry, listing.now)) if wide else cells
        rows.append((entry.row.ref.namespace, *cells) if with_namespace else cells)
    colours = ("", *(_STATE_COLOURS.get(entry.state, "yellow") for entry in listing.entries))
    yield from map(StyledLine, align_columns(rows, gap=2), colours)


def _queue_cells(entry: ListedWorkload, now: float) -> tuple[str, ...]:
    row, expected = entry.row, entry.expected
    reason = row.reason
    if entry.state == RESERVED:
        reason = f"starts {_format_start(expected, now)}"
    elif entry.state == PREEMPTED:
        reason = row.preempted.removeprefix("preempted ")
    return (
        row.argument,
        entry.state.capitalize(),
        str(row.position or EMPTY_CELL),
        str(row.priority),
        format_duration(max(now - row.since, 0)),
        f"{row.placed}/{row.members}",
        reason or EMPTY_CELL,
    )


def _wide_cells(entry: ListedWorkload, now: float) -> tuple[str, ...]:
    row = entry.row
    return (
        _format_start(entry.expected, now) if entry.expected else EMPTY_CELL,
        str(row.needed),
        str(len(row.nodes) or EMPTY_CELL),
        row.scheduler,
        row.kind,
        row.ref.name,
        row.message or EMPTY_CELL,
    )


def _format_start(expected: ExpectedStart | None, now: float) -> str:
    if expected is None or expected.time is None:
        return "unknown"
    return f"in {format_duration(max(expected.time - now, 0))}"
