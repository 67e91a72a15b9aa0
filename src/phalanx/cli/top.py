"""`phalanx top`: show nodes, topology domains and gangs, redrawn on a terminal.

Usage is the sum of the pods' resource requests, as the scheduler counts it, not what containers
measure. Reads the API only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from phalanx.cli.cluster_overview import (
    ClusterOverview,
    NodeSummary,
    summarize_cluster,
)
from phalanx.cli.cluster_queries import read_visible_cluster
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import (
    JSON,
    TABLE,
    YAML,
    StyledLine,
    align_columns,
    echo,
    format_structured,
    is_terminal,
    output_option,
    progress_bar,
)
from phalanx.cli.queue import format_reason, queue_entry_data
from phalanx.cli.scheduler_status import find_other_schedulers, find_scheduler_outage
from phalanx.cli.top_screen import TopScreen, run_screen
from phalanx.cli.workload_states import ListedWorkload, waiting_schedulers
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.cluster.pod_shape import format_amount
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

_BAR_WIDTH = 10


def render_overview(
    overview: ClusterOverview, namespace: str = "", *, now: float = 0.0
) -> list[StyledLine]:
    """Format the overview as lines, with the gangs of one namespace or of all."""
    resources = overview.resources
    gangs = overview.gangs_of(namespace)
    lines = [
        *overview.warnings,
        StyledLine(overview.summary),
        *(StyledLine(text) for text in format_totals(overview.total, resources)),
        StyledLine(""),
        *_gang_table(gangs, now),
    ]
    for level, domains in overview.domains.items():
        title = level.rpartition("/")[2].upper()
        lines += [StyledLine(""), *_node_table(title, domains, resources)]
    if overview.nodes or not overview.note:
        lines += [StyledLine(""), *_node_table("NODE", overview.nodes, resources)]
    return lines


def format_totals(total: NodeSummary, resources: Iterable[str]) -> Iterator[str]:
    """Format the usage of all nodes as a bar per resource."""
    rows = []
    for name in resources:
        used, allocatable = total.used.get(name, 0), total.allocatable[name]
        amounts = [format_amount(name, one).removeprefix(f"{name} ") for one in (used, allocatable)]
        rows.append((name, progress_bar(used, allocatable), " of ".join(amounts)))
    yield from align_columns(rows)


def _node_table(
    title: str, nodes: Sequence[NodeSummary], resources: Sequence[str]
) -> Iterator[StyledLine]:
    rows = [(title, "NODES", "PODS", *(name.upper() for name in resources), "")]
    for node in nodes:
        usage = [_usage_cell(node, name) for name in resources]
        rows.append((node.name, str(node.nodes), str(node.pods), *usage, node.problem))
    colours = ["", *("red" if node.problem else "" for node in nodes)]
    yield from map(StyledLine, align_columns(rows), colours)


def _usage_cell(node: NodeSummary, resource: str) -> str:
    used, allocatable = node.used.get(resource, 0), node.allocatable.get(resource, 0)
    if not allocatable:
        return ""
    return f"{progress_bar(used, allocatable, _BAR_WIDTH)} {used * 100 // allocatable:3}%"


def _gang_table(gangs: Sequence[ListedWorkload], now: float) -> Iterator[StyledLine]:
    if not gangs:
        yield StyledLine("No gang runs or waits.")
        return
    has_namespaces = len({gang.row.ref.namespace for gang in gangs}) > 1
    header = ("GANG", "STATE", "", "MEMBERS", "REASON")
    rows: list[tuple[str, ...]] = [("NAMESPACE", *header) if has_namespaces else header]
    for gang in gangs:
        row = gang.row
        done = row.placed + row.ended
        bar = progress_bar(done, row.members)
        state = gang.state.capitalize()
        reason = format_reason(gang, now)
        cells = (row.display_name, state, bar, f"{done}/{row.members}", reason)
        rows.append((row.ref.namespace, *cells) if has_namespaces else cells)
    colours = ["", *(gang.colour for gang in gangs)]
    yield from map(StyledLine, align_columns(rows), colours)


def overview_data(overview: ClusterOverview) -> dict[str, Any]:
    """Return the nodes of the overview as data for JSON and YAML."""
    return {
        "cluster": _node_data(overview.total),
        "domains": {
            level: [_node_data(domain) for domain in domains]
            for level, domains in overview.domains.items()
        },
        "nodes": [_node_data(node) for node in overview.nodes],
    }


def _node_data(node: NodeSummary) -> dict[str, Any]:
    return {
        "name": node.name,
        "nodes": node.nodes,
        "pods": node.pods,
        "trouble": node.problem,
        "room": dict(sorted(node.allocatable.items())),
        "used": dict(sorted(node.used.items())),
    }


@click.command()
@cluster_options
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Time between two refreshes.",
)
@click.option("--once", is_flag=True, help="Print once and exit, on a terminal too.")
@output_option(TABLE, JSON, YAML)
def top_command(
    *,
    namespace: str,
    config: Path | None,
    context: str,
    interval: float,
    once: bool,
    output: str,
) -> None:
    """Show the usage of nodes and domains and the progress of gangs; live on a terminal.

    Keys: Tab goes to the next table (gangs, domains of each topology level, nodes), arrow keys and
    page keys move, Enter opens the selected row, Esc goes back, s sorts by the next column, r
    reverses, q quits.

    Usage is the sum of resource requests, not what containers measure. -n shows the gangs of one
    namespace instead of all; a credential for one namespace sees its gangs alone. Changes nothing.

    \b
    Example:
      phalanx top
      phalanx top --once -n research
    """
    if is_terminal() and not once and output == TABLE:
        _show_screen(namespace, config, context, interval=interval)
        return

    async def query(client: Client, default_namespace: str) -> ClusterOverview:
        return (await _read_overview(client, namespace or default_namespace))[1]

    overview = query_cluster(config, context, query)
    if output == TABLE:
        for line in render_overview(overview, namespace, now=WallClock().now()):
            echo(line.text, colour=line.colour)
        return
    now = WallClock().now()
    data = {
        **overview_data(overview),
        "gangs": [queue_entry_data(*gang, now=now) for gang in overview.gangs_of(namespace)],
    }
    notes = {"warning": overview.outage, "note": overview.note}
    data |= {name: text for name, text in notes.items() if text}
    echo(format_structured(data, output))


async def _read_overview(client: Client, namespace: str) -> tuple[ClusterObjects, ClusterOverview]:
    """Read the cluster and sum it up, in a thread: keys are handled meanwhile."""
    cluster, visibility = await read_visible_cluster(client, namespace)
    now = WallClock().now()
    overview = await asyncio.to_thread(
        summarize_cluster,
        cluster,
        now,
        is_whole=visibility.is_whole,
        others=await find_other_schedulers(client, waiting_schedulers(cluster), now),
        note=visibility.note,
        outage=await find_scheduler_outage(client, waiting_schedulers(cluster), now),
    )
    return cluster, overview


def _show_screen(namespace: str, config: Path | None, context: str, *, interval: float) -> None:
    """Show the live screen until the user quits."""

    async def query(client: Client, default_namespace: str) -> None:
        space = namespace or default_namespace
        cluster, overview = await _read_overview(client, space)
        screen = TopScreen(cluster, overview, WallClock().now(), namespace)

        async def refresh() -> None:
            cluster, overview = await _read_overview(client, space)
            screen.update(cluster, overview, WallClock().now())

        await run_screen(screen, refresh, interval=interval)

    # ^C is a key to quit; it may also arrive as a signal.
    with contextlib.suppress(KeyboardInterrupt):
        query_cluster(config, context, query)
