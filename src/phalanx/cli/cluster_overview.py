"""The usage of nodes and topology domains and the progress of gangs, summed up from objects.

Usage is the sum of the pods' resource requests, as the scheduler counts it, not what containers
measure. `phalanx top` shows it, once or live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from phalanx.api.core import Node, Pod
from phalanx.api.meta import find_condition
from phalanx.api.resources import Amounts, node_allocatable, pod_requests, sum_amounts
from phalanx.cli.output import StyledLine, natural_key, pluralize
from phalanx.cli.scheduler_status import OtherScheduler
from phalanx.cli.workload_states import ListedWorkload, assess_workloads
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: Resources that the tables omit.
HIDDEN_RESOURCES = ("pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi")
#: Labels of topology levels, the widest first.
TOPOLOGY_LABELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    "topology.kubernetes.io/rack",
)
#: Problems of a node, in the order in which a summary counts them.
_PROBLEMS = ("not ready", "cordoned")


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
    gangs: Sequence[ListedWorkload]
    #: What is not shown, and why; "" if all is.
    note: str = ""
    #: Why no scheduler runs; "" if one does.
    outage: str = ""

    @property
    def warnings(self) -> list[StyledLine]:
        """The lines about what is not shown, and about a scheduler that does not run."""
        return [
            StyledLine(f"Warning: {text}", "yellow") for text in (self.note, self.outage) if text
        ]

    def gangs_of(self, namespace: str) -> list[ListedWorkload]:
        """Return the gangs of one namespace; "" stands for all."""
        return [one for one in self.gangs if not namespace or one.row.ref.namespace == namespace]

    @property
    def summary(self) -> str:
        """The counts of nodes and pods; pods of gangs alone if nodes are not shown."""
        waiting = sum(gang.row.pending for gang in self.gangs)
        if self.note and not self.nodes:
            placed = sum(gang.row.placed for gang in self.gangs)
            return f"{pluralize(placed, 'pod')} placed, {waiting} waiting"
        total = self.total
        problem = f" ({total.problem})" if total.problem else ""
        nodes, pods = pluralize(total.nodes, "node"), pluralize(total.pods, "pod")
        return f"{nodes}{problem}, {pods} placed, {waiting} waiting"

    @property
    def resources(self) -> list[str]:
        """The resources that tables show."""
        return [name for name in sorted(self.total.allocatable) if name not in HIDDEN_RESOURCES]


def summarize_cluster(
    cluster: ClusterObjects,
    now: float,
    *,
    is_whole: bool = True,
    others: Mapping[str, OtherScheduler] | None = None,
    note: str = "",
    outage: str = "",
) -> ClusterOverview:
    """Sum up the nodes, domains and gangs of a cluster; gangs have the states of the queue."""
    pods_on: dict[str, list[Pod]] = {}
    for pod in cluster.pods:
        if pod.occupied_node:
            pods_on.setdefault(pod.occupied_node, []).append(pod)
    nodes = sorted(cluster.nodes, key=lambda node: natural_key(node.metadata.name))
    summaries = {
        node.metadata.name: summarize_node(node, pods_on.get(node.metadata.name, ()))
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
    gangs = assess_workloads(cluster, now, is_whole=is_whole, others=others)
    return ClusterOverview(
        total=_sum_nodes("all", list(summaries.values())),
        domains=domains,
        nodes=list(summaries.values()),
        # Without a scheduler nothing starts.
        gangs=[gang._replace(expected=None) for gang in gangs] if outage else gangs,
        note=note,
        outage=outage,
    )


def summarize_node(node: Node, pods: Sequence[Pod]) -> NodeSummary:
    """Sum up the requests of the pods of one node."""
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
    return dict(sorted(names.items(), key=lambda item: natural_key(item[0])))


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
