"""Finds the smallest changes that let a refused entity be placed. Each of them is verified.

    lower minCount, wider topology, fewer constraints of pods    relax_constraints.py
    more nodes, an uncordoned node, the end of a workload        here

A cure is reported only if the scheduling cycle places the entity after the change. Each source of
cures has a budget of decisions; `is_cut_short` says that a budget was used up, so that smaller
changes may exist.

New nodes copy the shape of an existing node: allocatable resources, labels except the hostname, and
taints. A cordon and the taints of the node controller describe the state of a node and are not
copied. Terminating pods and pods of DaemonSets, which would return at once, are never asked to end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Node, NodeSpec, NodeStatus, Pod, Taint
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, Ref, pod_group_ref
from phalanx.api.resources import node_allocatable
from phalanx.scheduler.cluster.device_cache import DeviceCache
from phalanx.scheduler.cluster.group_tree import GroupTreeProblem
from phalanx.scheduler.cluster.pod_shape import format_amount, shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.diagnosis.experiment import ClusterChange, Experiment, find_smallest
from phalanx.scheduler.diagnosis.relax_constraints import (
    NODE_STATE_TAINT_PREFIX,
    suggest_lower_minimum,
    suggest_relaxed_pods,
    suggest_wider_topology,
)
from phalanx.scheduler.explain import CureKind, VerifiedCure
from phalanx.scheduler.placement.capacity_estimate import CapacityEstimate, sum_requests

HOSTNAME = "kubernetes.io/hostname"
#: How many shapes are reported and tried, and how many cordoned nodes are tried.
MAX_REPORTED, MAX_SHAPES_TRIED, MAX_CORDONED_TRIED = 3, 8, 6
#: Resources that the description of a node leaves out.
_UNREPORTED_RESOURCES = ("pods", "ephemeral-storage")


class NodeShape(NamedTuple):
    """What nodes of one sort have in common."""

    allocatable: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    #: How many devices of its own it has, by driver.
    devices: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        amounts = [
            format_amount(name, n)
            for name, n in self.allocatable
            if n and name not in _UNREPORTED_RESOURCES
        ]
        return ", ".join([*amounts, *(f"{driver} {n}" for driver, n in self.devices)])


def node_shape(node: Node, devices: DeviceCache | None = None) -> NodeShape:
    """Return the shape of a node."""
    counts: Counter[str] = Counter()
    for one in devices.local_slices(node.metadata.name) if devices else ():
        counts[one.spec.driver] += len(one.spec.devices)
    labels = {k: v for k, v in node.metadata.labels.items() if k != HOSTNAME}
    return NodeShape(
        tuple(sorted(node_allocatable(node).items())),
        tuple(sorted(labels.items())),
        _permanent_taints(node),
        tuple(sorted(counts.items())),
    )


def group_by_shape(
    nodes: Iterable[Node], devices: DeviceCache | None = None
) -> dict[NodeShape, list[Node]]:
    """Group nodes by shape, each group in the order of names."""
    found: dict[NodeShape, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        found.setdefault(node_shape(node, devices), []).append(node)
    return found


def suggest_more_nodes(experiment: Experiment) -> Iterator[VerifiedCure]:
    """Suggest how many nodes of each shape to add; the shape that takes the fewest first.

    Of shapes with the same description only the one that takes the fewest is suggested.
    """
    known = experiment.known
    by_shape = group_by_shape(known.nodes.values(), known.cache.devices)
    templates = {shape: nodes[0] for shape, nodes in by_shape.items()}
    found: dict[str, VerifiedCure] = {}
    shapes_tried = 0

    def suffices(template: Node, count: int) -> bool:
        nodes = _copy_nodes(experiment, template, count)
        like = {node.metadata.name: template.metadata.name for node in nodes}
        return experiment.is_placed_after(ClusterChange(nodes=nodes, devices_like=like))

    for least, shape in _candidate_shapes(experiment, templates):
        template, previous = templates[shape], found.get(str(shape))
        if previous and previous.size <= least:
            continue
        if (
            shapes_tried == MAX_SHAPES_TRIED
            or sum(cure.size <= least for cure in found.values()) >= MAX_REPORTED
        ):
            break
        shapes_tried += 1
        most = previous.size - 1 if previous else len(experiment.entity.members)
        guess = most if previous else least
        count = find_smallest(partial(suffices, template), guess, most, low=least - 1)
        if count is not None:
            found[str(shape)] = VerifiedCure(
                CureKind.NODES, count, _describe_nodes(experiment, count, template)
            )
    yield from sorted(found.values())[:MAX_REPORTED]


def suggest_uncordon(experiment: Experiment) -> Iterator[VerifiedCure]:
    """Suggest one cordoned node to uncordon, the one with the most capacity first."""
    cordoned = [node for node in experiment.known.nodes.values() if node.spec.unschedulable]
    uncordoned = {node.metadata.name: _uncordon(node) for node in cordoned}
    if not uncordoned:
        return
    with experiment.apply_change(ClusterChange(nodes=tuple(uncordoned.values()))) as snapshot:
        each = CapacityEstimate(experiment.entity, snapshot, experiment.policy).capacity_per_node
        capacity = {name: int(each[snapshot.index[name]]) for name in uncordoned}
    for name in sorted(capacity, key=lambda name: (-capacity[name], name))[:MAX_CORDONED_TRIED]:
        if not capacity[name]:
            continue
        if experiment.is_placed_after(ClusterChange(nodes=(uncordoned[name],))):
            yield VerifiedCure(CureKind.LOOSER, 1, f"uncordon node {name}")
            return


def _candidate_shapes(
    experiment: Experiment, templates: dict[NodeShape, Node]
) -> list[tuple[int, NodeShape]]:
    """Shapes that can hold a member, each with a lower limit of the nodes that are necessary."""
    snapshot = experiment.known.cache.snapshot()
    now = CapacityEstimate(experiment.entity, snapshot, experiment.policy)
    missing = {
        s: now.missing_in_domain(snapshot.index[node.metadata.name])
        for s, node in templates.items()
    }
    new = {shape: _copy_nodes(experiment, template, 1)[0] for shape, template in templates.items()}
    like = {node.metadata.name: templates[s].metadata.name for s, node in new.items()}
    change = ClusterChange(nodes=tuple(new.values()), devices_like=like)
    with experiment.apply_change(change) as snapshot:
        each = CapacityEstimate(experiment.entity, snapshot, experiment.policy).capacity_per_node
        holds = {s: int(each[snapshot.index[node.metadata.name]]) for s, node in new.items()}
    guesses = [(max(-(-missing[s] // n), 1), s) for s, n in holds.items() if n]
    return sorted(guesses, key=lambda guess: (guess[0], templates[guess[1]].metadata.name))


def _copy_nodes(experiment: Experiment, template: Node, count: int) -> tuple[Node, ...]:
    """New, empty nodes with the shape of an existing node."""
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
    location = f" in {key.rpartition('/')[2]} {value}" if value else ""
    noun = f"{count} node{'s' if count > 1 else ''}"
    shape = node_shape(template, experiment.known.cache.devices)
    return f"add {noun} like {name}{location} ({shape})"


#: How many workloads are tried; of more, only those that may free enough resources.
MAX_WORKLOADS_TRIED = 14


class EndingWorkload(NamedTuple):
    """A workload that runs, and the pods that would end with it."""

    size: int
    title: str
    pods: tuple[Key, ...]


def suggest_ending(experiment: Experiment) -> Iterator[VerifiedCure]:
    """Suggest the end of the smallest workload that frees enough resources."""
    workloads = sorted(_running_workloads(experiment))
    if len(workloads) > MAX_WORKLOADS_TRIED:
        workloads = _with_enough_resources(experiment, workloads)
    for size, title, pods in workloads:
        if experiment.is_placed_after(ClusterChange(ended_pods=pods)):
            members = f" and its {size} pods" if size > 1 else ""
            yield VerifiedCure(
                CureKind.ENDING, size, f"wait for {title}{members} to end, or end it"
            )
            return


def _running_workloads(experiment: Experiment) -> Iterator[EndingWorkload]:
    """All running pods, groups and trees that may end."""
    snapshot, own_members = (
        experiment.known.cache.snapshot(),
        {pod.metadata.key for pod in experiment.entity.other_members},
    )
    keys_by_title: dict[str, dict[Key, None]] = {}
    for key, pod in experiment.known.pods.items():
        may_end = not pod.metadata.deletion_timestamp and not pod.is_daemon
        if pod.occupied_node and key not in own_members and may_end:
            for title in _workload_titles(pod, snapshot):
                keys_by_title.setdefault(title, {})[key] = None
    for title, keys in keys_by_title.items():
        yield EndingWorkload(len(keys), title, tuple(sorted(keys)))


def _workload_titles(pod: Pod, snapshot: Snapshot) -> Iterator[str]:
    """The workloads that a pod belongs to: itself, or its group and its tree."""
    if pod.group is None:
        yield f"Pod {pod.metadata.key}"
        return
    ref = pod_group_ref(pod.group)
    yield _title_of_group(ref, snapshot)
    root = snapshot.group_trees.root(ref)
    if not isinstance(root, GroupTreeProblem) and root.kind == COMPOSITE_POD_GROUP_KIND:
        yield _title_of_group(root, snapshot)


def _title_of_group(ref: Ref, snapshot: Snapshot) -> str:
    """Name a group as users know it: by the controller that owns it, if there is one."""
    group = snapshot.group_trees.get(ref)
    owner = group.metadata.controller if group else None
    return f"{owner.kind} {ref.namespace}/{owner.name}" if owner else str(ref)


def _with_enough_resources(
    experiment: Experiment, workloads: list[EndingWorkload]
) -> list[EndingWorkload]:
    """The workloads whose resources may be sufficient for the entity."""
    snapshot, pods = experiment.known.cache.snapshot(), experiment.known.pods
    estimate = CapacityEstimate(experiment.entity, snapshot, experiment.policy)

    def may_suffice(workload: EndingWorkload) -> bool:
        ended = [pods[key] for key in workload.pods if pods[key].occupied_node in snapshot.index]
        freed = sum_requests((snapshot.index[pod.occupied_node], shape_of(pod)) for pod in ended)
        return estimate.is_sufficient_after_freeing(freed)

    return [workload for workload in workloads if may_suffice(workload)]


#: The kinds of cures with their sources and budgets of decisions; the cheapest kind first.
CURE_SOURCES: tuple[tuple[CureKind, Callable[[Experiment], Iterator[VerifiedCure]], int], ...] = (
    (CureKind.SMALLER, suggest_lower_minimum, 10),
    (CureKind.NODES, suggest_more_nodes, 26),
    (CureKind.WIDER, suggest_wider_topology, 6),
    (CureKind.ENDING, suggest_ending, 14),
    (CureKind.LOOSER, suggest_relaxed_pods, 5),
    (CureKind.LOOSER, suggest_uncordon, 3),
)
#: The sum of all budgets.
MAX_DECISIONS = sum(decisions for _, _, decisions in CURE_SOURCES)


@dataclass(frozen=True, slots=True)
class VerifiedCures:
    """The cures that were found, and whether the search was complete."""

    found: tuple[VerifiedCure, ...] = ()
    decisions: int = 0
    is_cut_short: bool = False


def find_cures(experiment: Experiment) -> VerifiedCures:
    """Find the smallest change of every kind; `rank_cures` puts them in order."""
    found: list[VerifiedCure] = []
    for _, source, decisions in CURE_SOURCES:
        experiment.allow_decisions(decisions)
        found += source(experiment)
    return VerifiedCures(tuple(found), experiment.decisions, experiment.is_cut_short)
