"""Additions: nodes that would help. More of a shape that there is, or one that is let in again.

Nodes of one shape have the same room, the same labels but for their own name, and the same taints.
What says how a node is at the moment (a cordon, the taints of the node controller) is not part of
its shape: a new one is ready.

Departures: who would make room enough by ending. One pod, one group or one tree; the smallest.

Nobody is told to end anything: it says for whom the entity is waiting. Pods that are leaving, and
those of daemons, which would come back at once, are not asked for.

Remedies: the smallest changes that let a refused entity be placed, each tried out.

    what a group could do without     concessions.py
    nodes that would help             additions.py
    who would make room by ending     departures.py

Every remedy was verified: the cycle placed the entity after the change (`experiment.py`). So many
decisions at most are made for all of them; then `is_cut_short` says that there may be smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Node, NodeSpec, NodeStatus, Pod, Taint
from phalanx.api.meta import Key
from phalanx.api.resources import node_allocatable
from phalanx.scheduler.cluster.group_tree import GroupRef, GroupTreeProblem
from phalanx.scheduler.cluster.pod_shape import format_amount, shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.diagnosis.experiment import ClusterChange, Experiment
from phalanx.scheduler.diagnosis.relax_constraints import (
    NODE_STATE_TAINT_PREFIX,
    suggest_lower_minimum,
    suggest_relaxed_pods,
    suggest_wider_topology,
)
from phalanx.scheduler.explain import CureKind, VerifiedCure, find_smallest
from phalanx.scheduler.placement.capacity_estimate import CapacityEstimate, sum_requests

HOSTNAME = "kubernetes.io/hostname"
#: How many shapes are told, how many are tried, and how many nodes that are cordoned.
MAX_REPORTED, MAX_SHAPES_TRIED, MAX_CORDONED_TRIED = 3, 8, 6
#: What is left out when a node is described.
_UNREPORTED_RESOURCES = ("pods", "ephemeral-storage")


class NodeShape(NamedTuple):
    """What some nodes have in common."""

    allocatable: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]

    def __str__(self) -> str:
        return ", ".join(
            format_amount(name, n)
            for name, n in self.allocatable
            if n and name not in _UNREPORTED_RESOURCES
        )


def node_shape(node: Node) -> NodeShape:
    """The shape of a node."""
    labels = {k: v for k, v in node.metadata.labels.items() if k != HOSTNAME}
    return NodeShape(
        tuple(sorted(node_allocatable(node).items())),
        tuple(sorted(labels.items())),
        _permanent_taints(node),
    )


def group_by_shape(nodes: Iterable[Node]) -> dict[NodeShape, list[Node]]:
    """Nodes of one shape together, by name."""
    found: dict[NodeShape, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        found.setdefault(node_shape(node), []).append(node)
    return found


def suggest_more_nodes(experiment: Experiment) -> Iterator[VerifiedCure]:
    """The fewest more nodes of each shape; the shape of which it takes fewest first.

    Of shapes that have the same room, the one of which it takes fewest is told alone.
    """
    models = {
        shape: nodes[0] for shape, nodes in group_by_shape(experiment.known.nodes.values()).items()
    }
    found: dict[str, VerifiedCure] = {}
    tried = 0
    for least, shape in _candidate_shapes(experiment, models):
        model, rival = models[shape], found.get(str(shape))
        if rival and rival.size <= least:
            continue
        if (
            tried == MAX_SHAPES_TRIED
            or sum(one.size <= least for one in found.values()) >= MAX_REPORTED
        ):
            break
        tried += 1
        most = rival.size - 1 if rival else len(experiment.entity.members)
        guess = most if rival else least
        count = find_smallest(partial(_nodes_suffice, experiment, model), guess, most, least - 1)
        if count is not None:
            found[str(shape)] = VerifiedCure(
                CureKind.NODES, count, _describe_nodes(experiment, count, model)
            )
    yield from sorted(found.values())[:MAX_REPORTED]


def suggest_uncordon(experiment: Experiment) -> Iterator[VerifiedCure]:
    """One cordoned node that would be enough, the one with most room first."""
    closed = [node for node in experiment.known.nodes.values() if node.spec.unschedulable]
    opened = {node.metadata.name: _uncordon(node) for node in closed}
    if not opened:
        return
    with experiment.apply_change(ClusterChange(nodes=tuple(opened.values()))) as snapshot:
        each = CapacityEstimate(experiment.entity, snapshot, experiment.policy).capacity_per_node
        room = {name: int(each[snapshot.index[name]]) for name in opened}
    for name in sorted(opened, key=lambda name: (-room[name], name))[:MAX_CORDONED_TRIED]:
        if room[name] and experiment.is_placed_after(ClusterChange(nodes=(opened[name],))):
            yield VerifiedCure(CureKind.LOOSER, 1, f"uncordon node {name}")
            return


def _candidate_shapes(
    experiment: Experiment, templates: dict[NodeShape, Node]
) -> list[tuple[int, NodeShape]]:
    """Shapes that hold a member at all, with how many nodes it takes at least; the fewest first."""
    snapshot = experiment.known.cache.snapshot()
    now = CapacityEstimate(experiment.entity, snapshot, experiment.policy)
    missing = {
        s: now.missing_in_domain(snapshot.index[node.metadata.name])
        for s, node in templates.items()
    }
    new = {shape: _copy_nodes(experiment, model, 1)[0] for shape, model in templates.items()}
    with experiment.apply_change(ClusterChange(nodes=tuple(new.values()))) as snapshot:
        each = CapacityEstimate(experiment.entity, snapshot, experiment.policy).capacity_per_node
        holds = {s: int(each[snapshot.index[node.metadata.name]]) for s, node in new.items()}
    guesses = [(max(-(-missing[s] // n), 1), s) for s, n in holds.items() if n]
    return sorted(guesses, key=lambda guess: (guess[0], templates[guess[1]].metadata.name))


def _nodes_suffice(experiment: Experiment, template: Node, count: int) -> bool:
    return experiment.is_placed_after(ClusterChange(nodes=_copy_nodes(experiment, template, count)))


def _copy_nodes(experiment: Experiment, template: Node, count: int) -> tuple[Node, ...]:
    """New and empty nodes like one that there is."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        number += 1
        if (name := f"{template.metadata.name}-new-{number}") not in experiment.known.nodes:
            names.append(name)
    return tuple(_copy_node(template, name) for name in names)


def _copy_node(template: Node, name: str) -> Node:
    labels = dict(template.metadata.labels)
    if HOSTNAME in labels:
        labels[HOSTNAME] = name
    return Node(
        but(template.metadata, name=name, uid=name, labels=labels),
        NodeSpec(taints=_permanent_taints(template)),
        NodeStatus(allocatable=template.status.allocatable),
    )


def _uncordon(node: Node) -> Node:
    taints = tuple(
        t for t in node.spec.taints if t.key != f"{NODE_STATE_TAINT_PREFIX}unschedulable"
    )
    return but(node, spec=but(node.spec, unschedulable=False, taints=taints))


def _permanent_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(t for t in node.spec.taints if not t.key.startswith(NODE_STATE_TAINT_PREFIX))


def _describe_nodes(experiment: Experiment, count: int, template: Node) -> str:
    key, name = experiment.entity.topology_key, template.metadata.name
    value = template.metadata.labels.get(key)
    where = f" in {key.rpartition('/')[2]} {value}" if value else ""
    what = f"{count} node{'s' if count > 1 else ''}"
    return f"add {what} like {name}{where} ({node_shape(template)})"


#: So many are tried; if there are more, only those whose room may be enough.
MAX_WORKLOADS_TRIED = 14


class EndingWorkload(NamedTuple):
    """Pods that would end together, and what they are called."""

    size: int
    title: str
    pods: tuple[Key, ...]


def suggest_ending(experiment: Experiment) -> Iterator[VerifiedCure]:
    """The smallest whose end is enough."""
    found = sorted(_running_workloads(experiment))
    if len(found) > MAX_WORKLOADS_TRIED:
        found = _with_enough_room(experiment, found)
    for size, title, pods in found:
        if experiment.is_placed_after(ClusterChange(ended_pods=pods)):
            members = f" and its {size} pods" if size > 1 else ""
            yield VerifiedCure(
                CureKind.ENDING, size, f"wait for {title}{members} to end, or end it"
            )
            return


def _running_workloads(experiment: Experiment) -> Iterator[EndingWorkload]:
    """All that runs and may end."""
    snapshot, own = (
        experiment.known.cache.snapshot(),
        {pod.metadata.key for pod in experiment.entity.other_members},
    )
    together: dict[str, list[Key]] = {}
    for key, pod in experiment.known.pods.items():
        if pod.occupied_node and key not in own and _may_end(pod):
            for title in _workload_titles(pod, snapshot):
                together.setdefault(title, []).append(key)
    for title, keys in together.items():
        yield EndingWorkload(len(keys), title, tuple(sorted(keys)))


def _may_end(pod: Pod) -> bool:
    return not pod.metadata.deletion_timestamp and not pod.is_daemon


def _workload_titles(pod: Pod, snapshot: Snapshot) -> Iterator[str]:
    """What would have to end for a pod to: itself, its group, or the tree that it is in."""
    if pod.group is None:
        yield f"Pod {pod.metadata.key}"
        return
    yield f"PodGroup {pod.group}"
    root = snapshot.group_trees.root(GroupRef(False, pod.group))
    if not isinstance(root, GroupTreeProblem) and root.is_composite:
        yield f"CompositePodGroup {root.key}"


def _with_enough_room(experiment: Experiment, found: list[EndingWorkload]) -> list[EndingWorkload]:
    """Those whose room may be enough."""
    snapshot, pods = experiment.known.cache.snapshot(), experiment.known.pods
    headroom = CapacityEstimate(experiment.entity, snapshot, experiment.policy)

    def may_do(one: EndingWorkload) -> bool:
        ended = [pods[key] for key in one.pods if pods[key].occupied_node in snapshot.index]
        freed = sum_requests((snapshot.index[pod.occupied_node], shape_of(pod)) for pod in ended)
        return headroom.is_sufficient_after_freeing(freed)

    return [one for one in found if may_do(one)]


#: Who knows changes of which sort, and how many decisions they may make; the cheapest sort first.
CURE_SOURCES: tuple[tuple[CureKind, Callable[[Experiment], Iterator[VerifiedCure]], int], ...] = (
    (CureKind.SMALLER, suggest_lower_minimum, 10),
    (CureKind.NODES, suggest_more_nodes, 26),
    (CureKind.WIDER, suggest_wider_topology, 6),
    (CureKind.ENDING, suggest_ending, 14),
    (CureKind.LOOSER, suggest_relaxed_pods, 5),
    (CureKind.LOOSER, suggest_uncordon, 3),
)
#: How many decisions that is in all.
MAX_DECISIONS = sum(decisions for _, _, decisions in CURE_SOURCES)


@dataclass(frozen=True, slots=True)
class VerifiedCures:
    """What helps, and how thoroughly that was looked for."""

    found: tuple[VerifiedCure, ...] = ()
    decisions: int = 0
    is_cut_short: bool = False


def find_cures(experiment: Experiment) -> VerifiedCures:
    """The smallest changes of every sort, in no order that means anything."""
    found: list[VerifiedCure] = []
    for _, source, decisions in CURE_SOURCES:
        experiment.allow_decisions(decisions)
        found += source(experiment)
    return VerifiedCures(tuple(found), experiment.decisions, experiment.is_cut_short)
