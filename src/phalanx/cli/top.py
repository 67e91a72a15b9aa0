"""Overview: a whole cluster on one page, as `phalanx top` shows it. Values and their lines.

Taken from what the API shows; requests are counted as the scheduler counts them, which is not what
pods really use. Decides nothing.

`phalanx top`: nodes, domains and gangs, live on a terminal, as they are now elsewhere.
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
    format_structured,
    is_terminal,
    output_option,
    pluralize,
    progress_bar,
)
from phalanx.cli.queue import queue_entry_data as gang_data
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.scheduler.cluster.pod_shape import format_amount
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, WorkloadState, list_workloads
from phalanx.scheduler.queue.cluster_objects import ClusterObjects

#: What is not shown though it is counted.
_HIDDEN_RESOURCES = ("pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi")
#: Labels that say where a node is, the widest first.
TOPOLOGY_LABELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    "topology.kubernetes.io/rack",
)
_BAR_WIDTH = 10
STATE_COLORS = {
    WorkloadState.RUNNING: "green",
    WorkloadState.ENDED: "blue",
    WorkloadState.WAITING: "yellow",
    WorkloadState.HELD: "magenta",
}


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Some nodes: one, those of a domain, or all."""

    name: str
    nodes: int
    pods: int
    allocatable: Amounts
    used: Amounts
    #: What is wrong with a node, in a word.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The page."""

    total: NodeSummary
    #: The domains of each level that there are several of.
    domains: Mapping[str, Sequence[NodeSummary]]
    nodes: Sequence[NodeSummary]
    gangs: Sequence[WorkloadRow]


def summarize_cluster(cluster: ClusterObjects) -> ClusterOverview:
    """The cluster on a page."""
    on: dict[str, list[Pod]] = {}
    for pod in cluster.pods:
        if pod.occupied_node:
            on.setdefault(pod.occupied_node, []).append(pod)
    nodes = sorted(cluster.nodes, key=lambda node: node.metadata.name)
    sites = {
        node.metadata.name: _summarize_node(node, on.get(node.metadata.name, ())) for node in nodes
    }
    domains = {
        level: [_sum_nodes(name, [sites[one] for one in names]) for name, names in found.items()]
        for level in TOPOLOGY_LABELS
        if len(found := _nodes_by_label(nodes, level)) > 1
    }
    return ClusterOverview(
        _sum_nodes("all", list(sites.values())),
        domains,
        list(sites.values()),
        list_workloads(cluster),
    )


def _summarize_node(node: Node, pods: Sequence[Pod]) -> NodeSummary:
    used = sum_amounts(pod_requests(pod) for pod in pods)
    return NodeSummary(
        node.metadata.name, 1, len(pods), node_allocatable(node), used, _node_problem(node)
    )


def _node_problem(node: Node) -> str:
    ready = find_condition(node.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return "not ready"
    return "cordoned" if node.spec.unschedulable else ""


def _nodes_by_label(nodes: Iterable[Node], label: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        if value := node.metadata.labels.get(label):
            found.setdefault(value, []).append(node.metadata.name)
    return dict(sorted(found.items()))


def _sum_nodes(name: str, sites: Sequence[NodeSummary]) -> NodeSummary:
    return NodeSummary(
        name, len(sites), sum(site.pods for site in sites),
        sum_amounts(site.allocatable for site in sites), sum_amounts(site.used for site in sites),
        ", ".join(_problem_counts(sites)),
    )  # fmt: skip


def _problem_counts(sites: Sequence[NodeSummary]) -> Iterator[str]:
    for word in ("not ready", "cordoned"):
        if count := sum(site.problem == word for site in sites):
            yield f"{count} {word}"


def render_overview(seen: ClusterOverview, namespace: str = "") -> list[StyledLine]:
    """All of it in lines; gangs of one namespace, or of all."""
    resources = [name for name in sorted(seen.total.allocatable) if name not in _HIDDEN_RESOURCES]
    shown = [one for one in seen.gangs if not namespace or one.ref.key.namespace == namespace]
    lines = [
        StyledLine(_format_headline(seen)),
        *(StyledLine(text) for text in _format_totals(seen.total, resources)),
    ]
    lines += [StyledLine(""), *_gang_table(shown)]
    for level, sites in seen.domains.items():
        lines += [StyledLine(""), *_node_table(level.rpartition("/")[2].upper(), sites, resources)]
    return [*lines, StyledLine(""), *_node_table("NODE", seen.nodes, resources)]


def _format_headline(seen: ClusterOverview) -> str:
    waiting = sum(one.pending for one in seen.gangs)
    trouble = f" ({seen.total.problem})" if seen.total.problem else ""
    nodes, pods = pluralize(seen.total.nodes, "node"), pluralize(seen.total.pods, "pod")
    return f"{nodes}{trouble}, {pods} placed, {waiting} waiting"


def _format_totals(whole: NodeSummary, resources: Iterable[str]) -> Iterator[str]:
    rows = [
        (
            name,
            progress_bar(whole.used.get(name, 0), whole.allocatable[name]),
            f"{_format_amount(name, whole.used.get(name, 0))} of {_format_amount(name, whole.allocatable[name])}",
        )
        for name in resources
    ]
    yield from align_columns(rows)


def _node_table(
    head: str, sites: Sequence[NodeSummary], resources: Sequence[str]
) -> Iterator[StyledLine]:
    """A row for each site: how full it is of everything."""
    rows = [(head, "NODES", "PODS", *(name.upper() for name in resources), "")]
    rows += [
        (site.name, str(site.nodes), str(site.pods), *_usage_cells(site, resources), site.problem)
        for site in sites
    ]
    colours = ["", *("red" if site.problem else "" for site in sites)]
    yield from (
        StyledLine(text, colour) for text, colour in zip(align_columns(rows), colours, strict=True)
    )


def _usage_cells(site: NodeSummary, resources: Iterable[str]) -> Iterator[str]:
    for name in resources:
        used, room = site.used.get(name, 0), site.allocatable.get(name, 0)
        yield f"{progress_bar(used, room, _BAR_WIDTH)} {used * 100 // room:3}%" if room else ""


def _gang_table(lines: Sequence[WorkloadRow]) -> Iterator[StyledLine]:
    if not lines:
        yield StyledLine("No gang runs or waits.")
        return
    rows = [("GANG", "STATE", "", "MEMBERS", "REASON")]
    rows += [
        (one.title, one.state.value, progress_bar(one.placed + one.ended, one.members),
         f"{one.placed + one.ended}/{one.members}", one.reason)
        for one in lines
    ]  # fmt: skip
    colours = ["", *(STATE_COLORS[one.state] for one in lines)]
    yield from (
        StyledLine(text, colour) for text, colour in zip(align_columns(rows), colours, strict=True)
    )


def _format_amount(name: str, amount: int) -> str:
    return format_amount(name, amount).removeprefix(f"{name} ")


def overview_data(seen: ClusterOverview) -> dict[str, Any]:
    """The page for programs; the gangs are left to `phalanx queue`."""
    return {
        "cluster": _node_data(seen.total),
        "domains": {
            level: [_node_data(site) for site in sites] for level, sites in seen.domains.items()
        },
        "nodes": [_node_data(site) for site in seen.nodes],
    }


def _node_data(site: NodeSummary) -> dict[str, Any]:
    return {
        "name": site.name, "nodes": site.nodes, "pods": site.pods, "trouble": site.problem,
        "room": dict(sorted(site.allocatable.items())), "used": dict(sorted(site.used.items())),
    }  # fmt: skip


@click.command()
@cluster_options
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="How often to look again.",
)
@click.option("--once", is_flag=True, help="Show it once, on a terminal too.")
@output_option(TABLE, JSON, YAML)
def command(
    namespace: str, config: Path | None, context: str, interval: float, once: bool, output: str
) -> None:  # fmt: skip
    """Show how full nodes and domains are and how gangs get on; live on a terminal, ^C ends it.

    Room is counted by what pods ask for, not by what they use. With -n gangs of one namespace are
    shown, otherwise of all. Nothing is changed.

    \b
    Example:
      phalanx top
      phalanx top --once -n research
    """
    if is_terminal() and not once and output == TABLE:
        _refresh_display(namespace, config, context, interval)
        return

    async def question(client: Client, default: str) -> ClusterOverview:
        return summarize_cluster(await read_cluster(client))

    found = query_cluster(config, context, question)
    if output == TABLE:
        for line in render_overview(found, namespace):
            click.secho(line.text, fg=line.colour or None)
    else:
        click.echo(format_structured(_top_data(found, namespace), output))


def _refresh_display(namespace: str, config: Path | None, context: str, interval: float) -> None:
    """Look again and again, until somebody has seen enough."""
    live = LiveDisplay(sys.stdout)

    async def question(client: Client, default: str) -> None:
        while True:
            live.draw(render_overview(summarize_cluster(await read_cluster(client)), namespace))
            await asyncio.sleep(interval)

    try:
        query_cluster(config, context, question)
    except KeyboardInterrupt:
        return


def _top_data(found: ClusterOverview, namespace: str) -> dict[str, Any]:
    now = WallClock().now()
    gangs = [one for one in found.gangs if not namespace or one.ref.key.namespace == namespace]
    return {**overview_data(found), "gangs": [gang_data(one, now) for one in gangs]}
