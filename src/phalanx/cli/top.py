"""`phalanx top`: show nodes, topology domains and gangs, redrawn on a terminal.

Usage is the sum of the pods' resource requests, as the scheduler counts it, not what containers
measure. Reads the API only.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from phalanx.api.core import Node, Pod
from phalanx.api.meta import find_condition
from phalanx.api.resources import Amounts, node_allocatable, pod_requests, sum_amounts
from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import (
    JSON,
    TABLE,
    YAML,
    LiveDisplay,
    StyledLine,
    align_columns,
    echo,
    format_structured,
    is_terminal,
    output_option,
    pluralize,
    progress_bar,
)
from phalanx.cli.queue import queue_entry_data
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.cluster.pod_shape import format_amount
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, WorkloadState, list_workloads
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: Resources that the tables omit.
_HIDDEN_RESOURCES = ("pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi")
#: Labels of topology levels, the widest first.
TOPOLOGY_LABELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    "topology.kubernetes.io/rack",
)
#: Problems of a node, in the order in which a summary counts them.
_PROBLEMS = ("not ready", "cordoned")
_BAR_WIDTH = 10
STATE_COLORS = {
    WorkloadState.RUNNING: "green",
    WorkloadState.ENDED: "blue",
    WorkloadState.WAITING: "yellow",
    WorkloadState.HELD: "magenta",
}


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Resources and usage of one node, of the nodes of a topology domain, or of all nodes."""

    name: str
    nodes: int
    pods: int
    allocatable: Amounts
    used: Amounts
    #: "not ready" or "cordoned"; of several nodes with their counts.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """All that `phalanx top` shows."""

    total: NodeSummary
    #: The domains of each topology level that has at least two.
    domains: Mapping[str, Sequence[NodeSummary]]
    nodes: Sequence[NodeSummary]
    gangs: Sequence[WorkloadRow]


def summarize_cluster(cluster: ClusterObjects) -> ClusterOverview:
    """Sum up the nodes, domains and gangs of a cluster."""
    pods_on: dict[str, list[Pod]] = {}
    for pod in cluster.pods:
        if pod.occupied_node:
            pods_on.setdefault(pod.occupied_node, []).append(pod)
    nodes = sorted(cluster.nodes, key=lambda node: node.metadata.name)
    summaries = {
        node.metadata.name: _summarize_node(node, pods_on.get(node.metadata.name, ()))
        for node in nodes
    }
    domains: dict[str, list[NodeSummary]] = {}
    for level in TOPOLOGY_LABELS:
        names_by_value = _names_by_label(nodes, level)
        if len(names_by_value) > 1:
            domains[level] = [
                _sum_nodes(value, [summaries[name] for name in names])
                for value, names in names_by_value.items()
            ]
    return ClusterOverview(
        total=_sum_nodes("all", list(summaries.values())),
        domains=domains,
        nodes=list(summaries.values()),
        gangs=list_workloads(cluster),
    )


def _summarize_node(node: Node, pods: Sequence[Pod]) -> NodeSummary:
    ready = find_condition(node.status.conditions, "Ready")
    problem = "cordoned" if node.spec.unschedulable else ""
    if ready is None or ready.status != "True":
        problem = "not ready"
    return NodeSummary(
        node.metadata.name,
        nodes=1,
        pods=len(pods),
        allocatable=node_allocatable(node),
        used=sum_amounts(pod_requests(pod) for pod in pods),
        problem=problem,
    )


def _names_by_label(nodes: Iterable[Node], label: str) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for node in nodes:
        if value := node.metadata.labels.get(label):
            names.setdefault(value, []).append(node.metadata.name)
    return dict(sorted(names.items()))


def _sum_nodes(name: str, nodes: Sequence[NodeSummary]) -> NodeSummary:
    problems = {problem: sum(node.problem == problem for node in nodes) for problem in _PROBLEMS}
    return NodeSummary(
        name,
        nodes=len(nodes),
        pods=sum(node.pods for node in nodes),
        allocatable=sum_amounts(node.allocatable for node in nodes),
        used=sum_amounts(node.used for node in nodes),
        problem=", ".join(f"{count} {problem}" for problem, count in problems.items() if count),
    )


def render_overview(overview: ClusterOverview, namespace: str = "") -> list[StyledLine]:
    """Format the overview as lines, with the gangs of one namespace or of all."""
    total = overview.total
    resources = [name for name in sorted(total.allocatable) if name not in _HIDDEN_RESOURCES]
    gangs = [gang for gang in overview.gangs if not namespace or gang.ref.namespace == namespace]
    waiting = sum(gang.pending for gang in overview.gangs)
    problem = f" ({total.problem})" if total.problem else ""
    nodes, pods = pluralize(total.nodes, "node"), pluralize(total.pods, "pod")
    lines = [
        StyledLine(f"{nodes}{problem}, {pods} placed, {waiting} waiting"),
        *(StyledLine(text) for text in _format_totals(total, resources)),
        StyledLine(""),
        *_gang_table(gangs),
    ]
    for level, domains in overview.domains.items():
        title = level.rpartition("/")[2].upper()
        lines += [StyledLine(""), *_node_table(title, domains, resources)]
    return [*lines, StyledLine(""), *_node_table("NODE", overview.nodes, resources)]


def _format_totals(total: NodeSummary, resources: Iterable[str]) -> Iterator[str]:
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


def _gang_table(gangs: Sequence[WorkloadRow]) -> Iterator[StyledLine]:
    if not gangs:
        yield StyledLine("No gang runs or waits.")
        return
    rows = [("GANG", "STATE", "", "MEMBERS", "REASON")]
    for gang in gangs:
        done = gang.placed + gang.ended
        bar = progress_bar(done, gang.members)
        rows.append((gang.title, gang.state.value, bar, f"{done}/{gang.members}", gang.reason))
    colours = ["", *(STATE_COLORS[gang.state] for gang in gangs)]
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
    """Show the usage of nodes and domains and the progress of gangs; live on a terminal until ^C.

    Usage is the sum of resource requests, not what containers measure. -n shows the gangs of one
    namespace instead of all. Changes nothing.

    \b
    Example:
      phalanx top
      phalanx top --once -n research
    """
    if is_terminal() and not once and output == TABLE:
        _refresh_display(namespace, config, context, interval=interval)
        return

    async def query(client: Client, default_namespace: str) -> ClusterOverview:
        return summarize_cluster(await read_cluster(client))

    overview = query_cluster(config, context, query)
    if output == TABLE:
        for line in render_overview(overview, namespace):
            echo(line.text, colour=line.colour)
        return
    now = WallClock().now()
    gangs = [gang for gang in overview.gangs if not namespace or gang.ref.namespace == namespace]
    data = {
        **overview_data(overview),
        "gangs": [queue_entry_data(gang, gang.state.value, None, now) for gang in gangs],
    }
    echo(format_structured(data, output))


def _refresh_display(namespace: str, config: Path | None, context: str, *, interval: float) -> None:
    """Redraw the overview until ^C."""
    display = LiveDisplay(sys.stdout)

    async def query(client: Client, default_namespace: str) -> None:
        while True:
            display.draw(render_overview(summarize_cluster(await read_cluster(client)), namespace))
            await asyncio.sleep(interval)

    try:
        query_cluster(config, context, query)
    except KeyboardInterrupt:
        return
