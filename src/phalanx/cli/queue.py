"""`phalanx queue`: list running and waiting gangs in scheduling order, with their reasons.

cluster ─▶ assess_workloads ─▶ ListedWorkload ─▶ table or data
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    DEPLOYMENT,
    POD_GROUP,
    REPLICA_SET,
    WORKLOAD,
)
from phalanx.api.meta import timestamp
from phalanx.api.printing.cells import format_duration
from phalanx.api.scheduling import USER_LABEL
from phalanx.cli.cluster_queries import parse_subject_argument, read_visible_cluster
from phalanx.cli.completion import complete_subject
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
    cut_line,
    echo,
    format_structured,
    is_terminal,
    output_option,
    pluralize,
)
from phalanx.cli.scheduler_status import find_other_schedulers, find_scheduler_outage
from phalanx.cli.workload_states import (
    COMPLETED,
    FAILED,
    PREEMPTED,
    RESERVED,
    STATES,
    ListedWorkload,
    assess_workloads,
    waiting_schedulers,
)
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, WorkloadState

NOTHING_CHOSEN = "No gang matches the options; phalanx queue -A --ended lists all."
UNKNOWN = "unknown"
#: Seconds between two looks of --watch.
WATCH_INTERVAL = 2.0
#: Characters that are left of a name at least.
_MIN_NAME = 24

_ENDED_HEADER = ("GANG", "STATE", "ENDED", "WAITED", "RAN", "PREEMPTED", "PODS", "REASON")
_HEADER = ("GANG", "STATE", "POS", "PRIORITY", "SINCE", "PODS", "REASON")
_WIDE_HEADER = ("EXPECTED", "NEEDED", "NODES", "SCHEDULER", "KIND", "NAME", "MESSAGE")


class WorkloadListing(NamedTuple):
    """The workloads of a cluster, with warnings: no scheduler runs, a part is hidden."""

    entries: list[ListedWorkload]
    outage: str
    now: float
    #: What is not shown, and why; "" if all is.
    note: str = ""

    @property
    def warning_lines(self) -> list[StyledLine]:
        """What is not shown, and why no scheduler runs."""
        return [
            StyledLine(f"Warning: {text}", "yellow") for text in (self.note, self.outage) if text
        ]


class QueueFilter(NamedTuple):
    """Which entries are listed; "" and no states stand for all."""

    namespace: str
    owner: str
    states: tuple[str, ...]
    user: str = ""

    def accepts(self, entry: ListedWorkload, workload: str = "") -> bool:
        """Return whether an entry, whose group belongs to this Workload, is listed."""
        row = entry.row
        return (
            (not self.namespace or row.ref.namespace == self.namespace)
            and (self.owner in ("", row.display_name) or self._names_owner_of(row, workload))
            and (not self.states or entry.state in self.states)
            and (not self.user or row.user == self.user)
        )

    def _names_owner_of(self, row: WorkloadRow, workload: str) -> bool:
        """Whether `--owner` names a workload, in one of the ways that `phalanx why` takes."""
        if "[" in self.owner:
            return False
        kind, name = parse_subject_argument(self.owner)
        owner_kind, _, owner_name = row.owner.partition("/")
        if kind is WORKLOAD:
            return workload == name
        if kind is DEPLOYMENT:
            # A ReplicaSet has the name of its Deployment, with a hash.
            return owner_kind == REPLICA_SET.name and owner_name.rpartition("-")[0] == name
        is_itself = (row.kind, row.ref.name) == (kind.name, name)
        if kind in (POD_GROUP, COMPOSITE_POD_GROUP):
            # A gang may be called by the name of its owner, whatever kind that is of.
            return is_itself or (row.kind == kind.name and owner_name == name)
        return is_itself or (owner_kind, owner_name) == (kind.name, name)


@click.command()
@cluster_options
@click.option(
    "-A", "--all-namespaces", "all_namespaces", is_flag=True, help="List gangs of all namespaces."
)
@click.option(
    "--owner",
    default="",
    metavar="KIND/NAME",
    shell_complete=complete_subject,
    callback=lambda context, option, text: (parse_subject_argument(text) and text) if text else "",
    help="List the gangs of one owner: job/train. Other kinds and spellings as in phalanx why.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="List gangs in this state.",
)
@click.option(
    "--user",
    default="",
    metavar="NAME",
    help=f"List gangs whose label {USER_LABEL} has this value.",
)
@click.option(
    "--ended",
    "--finished",
    "with_ended",
    is_flag=True,
    help="First list the gangs that have ended, as long as their objects exist.",
)
@click.option("-w", "--watch", is_flag=True, help="List again every two seconds, until ^C.")
@output_option(TABLE, WIDE, JSON, YAML)
def queue_command(
    *, namespace: str, config: Path | None, context: str, all_namespaces: bool, owner: str,
    states: tuple[str, ...], user: str, with_ended: bool, watch: bool, output: str,
) -> None:  # fmt: skip
    """List running gangs, then waiting gangs in the order in which the scheduler tries them.

    A waiting gang is reserved (nodes are kept for it; REASON says in how long it is expected to
    start), preempted, never (it would not fit even if nothing else ran), or just waiting. A held
    gang (members are missing, or have a scheduling gate) has no position. Positions count over all
    namespaces; a credential for one namespace sees none. PODS counts members with a node, of all
    members; SINCE is how long the gang has run or waited. Pods without a gang are listed while they
    wait. Warns if no scheduler is running. Changes nothing.

    --ended begins with the history: how long ago a gang ended, how long it waited before its last
    start and ran after it, and how often it was preempted.

    \b
    Example:
      phalanx queue
      phalanx queue -A --state waiting --state reserved -o wide
      phalanx queue --owner job/train --ended
    """
    if watch and output in (JSON, YAML):
        raise click.UsageError("--watch draws a table: -o json and -o yaml list once")
    display = LiveDisplay(sys.stdout)
    is_limited = is_terminal() and output == TABLE
    render = partial(
        render_queue,
        with_namespace=all_namespaces,
        wide=output == WIDE,
        width=shutil.get_terminal_size().columns if is_limited else 0,
    )
    where = f" in namespace {namespace}" if namespace and not all_namespaces else ""
    nothing = NOTHING_CHOSEN if owner or states or user else f"No gang runs or waits{where}."
    with_ended = with_ended or COMPLETED in states or FAILED in states

    async def query(client: Client, default_namespace: str) -> WorkloadListing:
        chosen = QueueFilter(
            "" if all_namespaces else namespace or default_namespace, owner, states, user
        )
        while True:
            space, now = namespace or default_namespace, WallClock().now()
            listing = await list_queue(
                client, chosen, space, now=now, with_ended=with_ended, with_ranges=output != TABLE
            )
            if not watch:
                return listing
            lines = list(render(listing)) or [StyledLine(nothing)]
            display.draw([*listing.warning_lines, *lines])
            await asyncio.sleep(WATCH_INTERVAL)

    try:
        listing = query_cluster(config, context, query)
    except KeyboardInterrupt:
        return
    _print_listing(listing, list(render(listing)) or [StyledLine(nothing)], output)


def _print_listing(listing: WorkloadListing, lines: Sequence[StyledLine], output: str) -> None:
    """Print a listing as data, or its lines; on stderr its warnings, and that there is nothing."""
    for line in listing.warning_lines:
        echo(line.text, err=True)
    if output in (JSON, YAML):
        items = [queue_entry_data(*entry, now=listing.now) for entry in listing.entries]
        notes = {"warning": listing.outage, "note": listing.note}
        given = {name: text for name, text in notes.items() if text}
        echo(format_structured({"items": items} | given, output))
        return
    for line in lines:
        colour = line.colour if is_terminal() else ""
        echo(line.text, err=not listing.entries, colour=colour)


async def list_queue(
    client: Client, chosen: QueueFilter, namespace: str, *, now: float, with_ended: bool = False,
    with_pods: bool = False, with_ranges: bool = False,
) -> WorkloadListing:  # fmt: skip
    """Read the cluster once; list the chosen entries, and say whether a scheduler is running.

    Ranges of the expected starts take a simulation of the queue ahead.
    """
    cluster, visibility = await read_visible_cluster(client, namespace)
    entries = assess_workloads(
        cluster,
        now,
        is_whole=visibility.is_whole,
        with_ended=with_ended,
        with_pods=with_pods,
        with_ranges=with_ranges,
        others=await find_other_schedulers(client, waiting_schedulers(cluster), now),
    )
    workloads = {
        group_ref(group): group.spec.workload_ref.workload_name
        for group in cluster.groups
        if group.spec.workload_ref
    }
    listed = [entry for entry in entries if chosen.accepts(entry, workloads.get(entry.row.ref, ""))]
    schedulers = {
        entry.row.scheduler for entry in listed if entry.row.state is WorkloadState.WAITING
    }
    outage = await find_scheduler_outage(client, schedulers, now)
    if outage:
        # Without a scheduler nothing starts.
        listed = [entry._replace(expected=None) for entry in listed]
    return WorkloadListing(listed, outage, now, visibility.note)


def queue_entry_data(
    row: WorkloadRow, state: str, expected: ExpectedStart | None, *, now: float
) -> dict[str, Any]:
    """Return an entry of the queue as data for JSON and YAML."""
    return {
        "kind": row.kind,
        "namespace": row.ref.namespace,
        "name": row.ref.name,
        "owner": row.owner,
        "part": row.part,
        "state": state,
        "position": row.position or None,
        "priority": row.priority,
        "since": timestamp(row.since),
        "seconds": max(int(now - row.since), 0),
        "placed": row.placed,
        "pending": row.pending,
        "ended": row.ended,
        "failed": row.failed,
        "needed": row.needed,
        "reason": row.reason,
        "message": row.message,
        "preempted": row.preempted or None,
        "preemptions": row.preemptions,
        "createdAt": timestamp(row.created),
        "startedAt": _optional_timestamp(row.started_at),
        "endedAt": _optional_timestamp(row.ended_at),
        "user": row.user,
        "nodes": list(row.nodes),
        "scheduler": row.scheduler,
        **start_data(expected),
    }


def start_data(expected: ExpectedStart | None) -> dict[str, Any]:
    """Return when a workload is expected to start as data for JSON and YAML."""
    return {
        "expectedStart": _optional_timestamp(expected.time if expected else None),
        "earliestStart": _optional_timestamp(expected.earliest if expected else None),
        "latestStart": _optional_timestamp(expected.latest if expected else None),
        "reserved": expected is not None and expected.is_reserved,
    }


def _optional_timestamp(time: float | None) -> str | None:
    return None if time is None else timestamp(time)


def render_queue(
    listing: WorkloadListing,
    *,
    with_namespace: bool = False,
    wide: bool = False,
    width: int = 0,
) -> Iterator[StyledLine]:
    """Format the entries as tables, the ended ones first; nothing if there is none.

    Names are shortened if a table is wider than `width` (0: any width will do).
    """
    is_first = True
    for is_ended, first_header, first_cells in (
        (True, _ENDED_HEADER, _ended_cells),
        (False, _HEADER, _queue_cells),
    ):
        entries = [
            entry
            for entry in listing.entries
            if (entry.row.state is WorkloadState.ENDED) == is_ended
        ]
        if not entries:
            continue
        if not is_first:
            yield StyledLine("")
        is_first = False
        header = (*first_header, *_WIDE_HEADER) if wide else first_header
        rows = [("NAMESPACE", *header) if with_namespace else header]
        for entry in entries:
            cells = first_cells(entry, listing.now)
            cells = (*cells, *_wide_cells(entry, listing.now)) if wide else cells
            rows.append((entry.row.ref.namespace, *cells) if with_namespace else cells)
        colours = ("", *(entry.colour for entry in entries))
        lines = align_columns(_fit_names(rows, int(with_namespace), width), gap=2)
        yield from map(StyledLine, (cut_line(line, width) for line in lines), colours)


def _fit_names(
    rows: Sequence[tuple[str, ...]], column: int, width: int
) -> Sequence[tuple[str, ...]]:
    """Shorten the names in a column of a table so that the table is not wider than `width`."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    if not width or excess <= 0:
        return rows
    limit = max(widths[column] - excess, _MIN_NAME)
    return [(*row[:column], cut_line(row[column], limit), *row[column + 1 :]) for row in rows]


def _ended_cells(entry: ListedWorkload, now: float) -> tuple[str, ...]:
    row = entry.row
    return (
        row.display_name,
        entry.state.capitalize(),
        _format_span(row.ended_at, now, " ago"),
        _format_span(row.created, row.started_at),
        _format_span(row.started_at, row.ended_at),
        pluralize(row.preemptions, "time") if row.preemptions else EMPTY_CELL,
        f"{row.ended - row.failed}/{row.members}" if row.members else EMPTY_CELL,
        # The message ends with the reason of the condition: "Failed: DeadlineExceeded".
        row.message.rpartition(": ")[2] or row.reason or EMPTY_CELL,
    )


def _format_span(begin: float | None, end: float | None, suffix: str = "") -> str:
    if begin is None or end is None:
        return EMPTY_CELL
    return f"{format_duration(max(end - begin, 0))}{suffix}"


def _queue_cells(entry: ListedWorkload, now: float) -> tuple[str, ...]:
    row = entry.row
    return (
        row.display_name,
        entry.state.capitalize(),
        str(row.position or EMPTY_CELL),
        str(row.priority),
        format_duration(max(now - row.since, 0)),
        f"{row.placed}/{row.members}",
        format_reason(entry, now) or EMPTY_CELL,
    )


def format_reason(entry: ListedWorkload, now: float) -> str:
    """Say why a gang waits, when one with reserved nodes starts, or what has preempted it."""
    if entry.state == RESERVED:
        start = _format_start(entry.expected, now)
        return "start unknown" if start == UNKNOWN else f"starts {start}"
    if entry.state == PREEMPTED:
        # When the preemptor came, `describe` says.
        return entry.row.preempted.removeprefix("preempted ").rpartition(" at ")[0]
    return entry.row.reason


def _wide_cells(entry: ListedWorkload, now: float) -> tuple[str, ...]:
    row = entry.row
    return (
        format_start_range(entry.expected, now) if entry.expected else EMPTY_CELL,
        str(row.needed),
        str(len(row.nodes) or EMPTY_CELL),
        row.scheduler,
        row.kind,
        row.ref.name,
        row.message or EMPTY_CELL,
    )


def _format_start(expected: ExpectedStart | None, now: float) -> str:
    if expected is None or expected.time is None:
        return UNKNOWN
    return f"in {format_duration(max(expected.time - now, 0))}"


def format_start_range(expected: ExpectedStart, now: float) -> str:
    """Format a start with its range: `in 12m (5m-20m)`; `?` stands for an unknown latest start."""
    text = _format_start(expected, now)
    if expected.earliest is None or (expected.time is None and expected.earliest <= now):
        return text
    ends = [
        "?" if time is None else format_duration(max(time - now, 0))
        for time in (expected.earliest, expected.latest)
    ]
    return text if ends[0] == ends[1] else f"{text} ({ends[0]}-{ends[1]})"
