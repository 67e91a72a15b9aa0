"""Overview: a whole cluster on one page, as `phalanx top` shows it. Values and their lines.

Taken from what the API shows; requests are counted as the scheduler counts them, which is not what
pods really use. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.core import Node, Pod
from phalanx.api.meta import condition
from phalanx.api.resources import Amounts, node_room, pod_requests, total
from phalanx.cli.live import Line
from phalanx.cli.paper import aligned, bar, counted
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.asking.lineup import Lined, Standing, lineup
from phalanx.scheduler.cluster.shape import spell

#: What is not shown though it is counted.
_UNSHOWN = ("pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi")
#: Labels that say where a node is, the widest first.
LEVELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    "topology.kubernetes.io/rack",
)
_NARROW = 10
COLOURS = {
    Standing.RUNNING: "green",
    Standing.ENDED: "blue",
    Standing.WAITING: "yellow",
    Standing.HELD: "magenta",
}


@dataclass(frozen=True, slots=True)
class Site:
    """Some nodes: one, those of a domain, or all."""

    name: str
    nodes: int
    pods: int
    room: Amounts
    used: Amounts
    #: What is wrong with a node, in a word.
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The page."""

    whole: Site
    #: The domains of each level that there are several of.
    domains: Mapping[str, Sequence[Site]]
    nodes: Sequence[Site]
    gangs: Sequence[Lined]


def overview(cluster: Cluster) -> Overview:
    """The cluster on a page."""
    on: dict[str, list[Pod]] = {}
    for pod in cluster.pods:
        if pod.node:
            on.setdefault(pod.node, []).append(pod)
    nodes = sorted(cluster.nodes, key=lambda node: node.metadata.name)
    sites = {node.metadata.name: _site(node, on.get(node.metadata.name, ())) for node in nodes}
    domains = {
        level: [_merged(name, [sites[one] for one in names]) for name, names in found.items()]
        for level in LEVELS
        if len(found := _by_label(nodes, level)) > 1
    }
    return Overview(
        _merged("all", list(sites.values())), domains, list(sites.values()), lineup(cluster)
    )


def _site(node: Node, pods: Sequence[Pod]) -> Site:
    used = total(pod_requests(pod) for pod in pods)
    return Site(node.metadata.name, 1, len(pods), node_room(node), used, _trouble(node))


def _trouble(node: Node) -> str:
    ready = condition(node.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return "not ready"
    return "cordoned" if node.spec.unschedulable else ""


def _by_label(nodes: Iterable[Node], label: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        if value := node.metadata.labels.get(label):
            found.setdefault(value, []).append(node.metadata.name)
    return dict(sorted(found.items()))


def _merged(name: str, sites: Sequence[Site]) -> Site:
    return Site(
        name, len(sites), sum(site.pods for site in sites),
        total(site.room for site in sites), total(site.used for site in sites),
        ", ".join(_troubles(sites)),
    )  # fmt: skip


def _troubles(sites: Sequence[Site]) -> Iterator[str]:
    for word in ("not ready", "cordoned"):
        if count := sum(site.trouble == word for site in sites):
            yield f"{count} {word}"


def page(seen: Overview, namespace: str = "") -> list[Line]:
    """All of it in lines; gangs of one namespace, or of all."""
    resources = [name for name in sorted(seen.whole.room) if name not in _UNSHOWN]
    shown = [one for one in seen.gangs if not namespace or one.id.key.namespace == namespace]
    lines = [Line(_headline(seen)), *(Line(text) for text in _totals(seen.whole, resources))]
    lines += [Line(""), *_gangs(shown)]
    for level, sites in seen.domains.items():
        lines += [Line(""), *_table(level.rpartition("/")[2].upper(), sites, resources)]
    return [*lines, Line(""), *_table("NODE", seen.nodes, resources)]


def _headline(seen: Overview) -> str:
    waiting = sum(one.pending for one in seen.gangs)
    trouble = f" ({seen.whole.trouble})" if seen.whole.trouble else ""
    nodes, pods = counted(seen.whole.nodes, "node"), counted(seen.whole.pods, "pod")
    return f"{nodes}{trouble}, {pods} placed, {waiting} waiting"


def _totals(whole: Site, resources: Iterable[str]) -> Iterator[str]:
    rows = [
        (name, bar(whole.used.get(name, 0), whole.room[name]),
         f"{_said(name, whole.used.get(name, 0))} of {_said(name, whole.room[name])}")
        for name in resources
    ]  # fmt: skip
    yield from aligned(rows)


def _table(head: str, sites: Sequence[Site], resources: Sequence[str]) -> Iterator[Line]:
    """A row for each site: how full it is of everything."""
    rows = [(head, "NODES", "PODS", *(name.upper() for name in resources), "")]
    rows += [(site.name, str(site.nodes), str(site.pods), *_shares(site, resources), site.trouble)
             for site in sites]  # fmt: skip
    colours = ["", *("red" if site.trouble else "" for site in sites)]
    yield from (Line(text, colour) for text, colour in zip(aligned(rows), colours, strict=True))


def _shares(site: Site, resources: Iterable[str]) -> Iterator[str]:
    for name in resources:
        used, room = site.used.get(name, 0), site.room.get(name, 0)
        yield f"{bar(used, room, _NARROW)} {used * 100 // room:3}%" if room else ""


def _gangs(lines: Sequence[Lined]) -> Iterator[Line]:
    if not lines:
        yield Line("No gang runs or waits.")
        return
    rows = [("GANG", "STATE", "", "MEMBERS", "REASON")]
    rows += [
        (one.title, one.standing.value, bar(one.placed + one.ended, one.members),
         f"{one.placed + one.ended}/{one.members}", one.reason)
        for one in lines
    ]  # fmt: skip
    colours = ["", *(COLOURS[one.standing] for one in lines)]
    yield from (Line(text, colour) for text, colour in zip(aligned(rows), colours, strict=True))


def _said(name: str, amount: int) -> str:
    return spell(name, amount).removeprefix(f"{name} ")


def as_data(seen: Overview) -> dict[str, Any]:
    """The page for programs; the gangs are left to `phalanx queue`."""
    return {
        "cluster": _site_data(seen.whole),
        "domains": {
            level: [_site_data(site) for site in sites] for level, sites in seen.domains.items()
        },
        "nodes": [_site_data(site) for site in seen.nodes],
    }


def _site_data(site: Site) -> dict[str, Any]:
    return {
        "name": site.name, "nodes": site.nodes, "pods": site.pods, "trouble": site.trouble,
        "room": dict(sorted(site.room.items())), "used": dict(sorted(site.used.items())),
    }  # fmt: skip
