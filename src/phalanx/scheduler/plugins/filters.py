"""Labels: with which ones a node would be where a pod's selector and affinity want it to be.

Asked by `filters.py` for the words of a refusal. Labels are given or changed, never taken away, and
the name of a node is what it is; what takes more than that has no answer here. Decides nothing.

The two filters that are about other pods: even spreading, and who must be near or apart.

Rows of `filters.py`. Each names a node under the first reason only, as Kubernetes does.

May a pod of this shape run on this node? One row per question; the order is the documentation.

A filter names the nodes that it refuses, all at once, with the reason; a node counts under the
first filter that refuses it. What depends only on what nodes *are* is asked once per view; what
depends on their load is asked again of single nodes (`admits`) as the load moves; what depends on
other pods is asked again for every pod. Nothing here ranks nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_

import numpy as np

from phalanx.api.core import Taint
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.node_class import NodeClass
from phalanx.scheduler.cluster.node_constraints import (
    NodeConstraints,
    NodeSelectorTerm,
    nodes_matching_any,
)
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cluster.pod_shape import PodShape, RequestVector, format_amount
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.decision import (
    CAPACITY_EVENTS,
    NODE_EVENTS,
    PEER_EVENTS,
    ClusterEvent,
    Refusal,
)
from phalanx.scheduler.plugins import filters as peerfilters
from phalanx.scheduler.plugins.peer_counts import DomainCounts
from phalanx.scheduler.plugins.plugin_context import PluginContext, SpreadState

#: What a label is set to that may have any value.
_ANY_VALUE = "true"


def missing_labels(
    constraints: NodeConstraints, labels: Labels, name: str
) -> dict[str, str] | None:
    """The fewest labels that a node of these labels and this name lacks; None: more than labels."""
    found = [
        {key: value for key, value in given.items() if labels.get(key) != value}
        for given in _satisfying_label_sets(constraints, labels, name)
    ]
    return min(found, key=len, default=None)


def matches_any_term(placements: Iterable[NodeSelectorTerm], labels: Labels, name: str) -> bool:
    """Whether a node of these labels and this name is in one of some places."""
    return any(_term_matches(place, labels, name) for place in placements)


def _satisfying_label_sets(
    constraints: NodeConstraints, labels: Labels, name: str
) -> Iterator[Labels]:
    """The labels of a node after it has got those that it lacks, one for each place."""
    selector = dict(constraints.node_selector)
    if constraints.required_terms is None:
        yield {**labels, **selector}
    for place in constraints.required_terms or ():
        given = {**labels, **selector}
        for need in place.label_requirements:
            if need.key not in selector and not need.matches(given):
                given |= _satisfying_label(need)
        if _term_matches(place, given, name):
            yield given


def _satisfying_label(requirement: LabelRequirement) -> dict[str, str]:
    """A label that meets a condition, where giving one does."""
    match requirement.operator:
        case "in" if requirement.values:
            return {requirement.key: min(requirement.values)}
        case "exists":
            return {requirement.key: _ANY_VALUE}
        case _:
            return {}


def _term_matches(term: NodeSelectorTerm, labels: Labels, name: str) -> bool:
    return (
        bool(term.label_requirements or term.name_requirements)
        and all(need.matches(labels) for need in term.label_requirements)
        and all(need.matches({need.key: name}) for need in term.name_requirements)
    )


SPREAD_VIOLATED = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = f"{SPREAD_VIOLATED} (missing required label)"
AFFINITY_UNMET = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_VIOLATED = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY_VIOLATED = "node(s) didn't satisfy existing pods anti-affinity rules"

_PeerRejections = Iterator[tuple[str, BoolArray]]


def reject_uneven_spread(context: PluginContext) -> _PeerRejections:
    """Nodes where one more would make the spread too uneven, or that are in no domain."""
    if context.affinity_state is None or not context.affinity_state.hard_spreads:
        return iter(())
    return _keep_first_reason(
        _spread_rejections(context.affinity_state.hard_spreads), len(context.snapshot)
    )


def cure_uneven_spread(context: PluginContext, nodes: BoolArray) -> str:
    """What would let the pod in on one of these nodes."""
    assert context.affinity_state is not None
    node = nodes.argmax()
    for one in context.affinity_state.hard_spreads:
        spread, domains = one.spread, one.domain_counts.domains
        if domains.ids[node] < 0:
            return f"label node {context.snapshot.names[node]} with {spread.topology_key}"
        skew = max(
            int(_skews(like)[node])
            for like in context.affinity_state.hard_spreads
            if like.spread == spread
        )
        if skew > spread.max_skew:
            return f"allow a maxSkew of {skew} over {spread.topology_key}, or make room in other domains"
    raise AssertionError("no constraint is in the way")


def reject_unmet_affinity(context: PluginContext) -> _PeerRejections:
    """Nodes far from whom the pod must be near, or near whom it must be apart from."""
    if context.affinity_state is None:
        return iter(())
    return _keep_first_reason(_affinity_rejections(context), len(context.snapshot))


def cure_unmet_affinity(context: PluginContext, nodes: BoolArray) -> str:
    """What would let the pod in on one of these nodes."""
    assert context.affinity_state is not None
    node, among = nodes.argmax(), context.affinity_state
    name = context.snapshot.names[node]
    for term, heads in among.anti_affinity:
        if _has_peers(heads)[node]:
            return f"move the pods with {term.selector} away from the {term.topology_key} of node {name}"
    if keys := [
        one.term.topology_key
        for one, heads in among.existing_anti_affinity
        if _has_peers(heads)[node]
    ]:
        return f"move the pods that keep others away from the {min(keys)} of node {name}"
    wanted = ", ".join(
        f"{term.selector} in its {term.topology_key}"
        for term in context.shape.peer_constraints.affinity
    )
    return f"run a pod with {wanted} near node {name}"


def _spread_rejections(constraints: list[SpreadState]) -> _PeerRejections:
    for one in constraints:
        yield SPREAD_LABEL_MISSING, ~one.domain_counts.domains.labelled
        yield SPREAD_VIOLATED, _skews(one) > one.spread.max_skew


def _skews(one: SpreadState) -> IntArray:
    """How far above the emptiest domain each node's would be with the pod in it."""
    heads, present = one.domain_counts, one.domain_counts.present_domains
    enough = len(present) >= one.spread.min_domains
    least = heads.counts[present].min() if enough and len(present) else 0
    return heads.counts_per_node() + (one.matches_itself - least)


def _affinity_rejections(context: PluginContext) -> _PeerRejections:
    among = context.affinity_state
    assert among is not None
    for near in among.affinity:
        # The first of a crowd that wants to be together has nobody to be near.
        first = among.matches_own_affinity and not any(heads.total for heads in near)
        for heads in near:
            yield AFFINITY_UNMET, ~heads.domains.labelled if first else heads.counts_per_node() == 0
    for _, heads in among.anti_affinity:
        yield ANTI_AFFINITY_VIOLATED, _has_peers(heads)
    for _, heads in among.existing_anti_affinity:
        yield EXISTING_ANTI_AFFINITY_VIOLATED, _has_peers(heads)


def _has_peers(counts: DomainCounts) -> BoolArray:
    return counts.counts_per_node() > 0


def _keep_first_reason(found: _PeerRejections, size: int) -> _PeerRejections:
    """The same without the nodes that were named before, one mask per reason."""
    named: dict[str, BoolArray] = {}
    left = np.ones(size, bool)
    for reason, mask in found:
        fresh = mask & left
        left &= ~mask
        named[reason] = named[reason] | fresh if reason in named else fresh
    yield from named.items()


UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

Rejections = Iterator[tuple[str, BoolArray]]


class FilterDependency(Enum):
    """On what the answer of a filter depends, and so when it must be asked again."""

    NODES = "what nodes are"
    LOAD = "what is on a node"
    PEERS = "what is on all nodes"


@dataclass(frozen=True, slots=True)
class FilterPlugin:
    """One question. `refuses` yields (reason, nodes refused for it)."""

    name: str
    reject: Callable[[PluginContext], Rejections]
    #: What would turn one of these nodes, refused by this filter alone, into one that is not.
    suggest_cure: Callable[[PluginContext, BoolArray], str]
    depends_on: FilterDependency
    wakes_on: frozenset[ClusterEvent]
    #: Whether evicting pods can help.
    helped_by_preemption: bool = False
    #: The same question about one node, for filters that depend on load.
    admits_node_class: Callable[[RequestVector, NodeClass], bool] | None = None
    #: Whether shapes of this sort need be asked at all.
    applies_to: Callable[[PodShape], bool] = lambda shape: True


def _reject_cordoned(context: PluginContext) -> Rejections:
    if not context.shape.node_constraints.tolerates(UNSCHEDULABLE_TAINT):
        yield "node(s) were unschedulable", context.snapshot.cordoned


def _cure_cordoned(context: PluginContext, nodes: BoolArray) -> str:
    return f"uncordon node {context.snapshot.names[nodes.argmax()]}"


def _reject_tainted(context: PluginContext) -> Rejections:
    refused = ~context.shape.node_constraints.tolerated_nodes(context.snapshot)
    if refused.any():
        yield "node(s) had untolerated taint(s)", refused


def _cure_tainted(context: PluginContext, nodes: BoolArray) -> str:
    snapshot, node = context.snapshot, nodes.argmax()
    taints = context.shape.node_constraints.untolerated_taints(
        list(snapshot.taints)[snapshot.taint_class[node]]
    )
    names = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints)
    return f"tolerate {names} of node {snapshot.names[node]}, or remove it"


def _reject_unmatched_affinity(context: PluginContext) -> Rejections:
    wishes = context.shape.node_constraints
    if wishes.node_selector or wishes.required_terms is not None:
        refused = ~wishes.matching_nodes(context.snapshot)
        yield "node(s) didn't match Pod's node affinity/selector", refused


def node_affinity_filter(added: tuple[NodeSelectorTerm, ...] | None = None) -> FilterPlugin:
    """Where the pod wants to be, and, before that, where all pods must be."""

    def refuses(scene: PluginContext) -> Rejections:
        outside = np.zeros(len(scene.snapshot), bool)
        if added is not None:
            outside = ~nodes_matching_any(scene.snapshot, added)
            yield "node(s) didn't match scheduler-enforced node affinity", outside
        for reason, refused in _reject_unmatched_affinity(scene):
            yield reason, refused & ~outside

    def cure(scene: PluginContext, nodes: BoolArray) -> str:
        inside = nodes if added is None else nodes & nodes_matching_any(scene.snapshot, added)
        if inside.any():
            return _cure_node_affinity(scene, inside, added)
        name = scene.snapshot.names[nodes.argmax()]
        return f"let the affinity that the scheduler adds to all pods allow node {name}"

    return FilterPlugin("NodeAffinity", refuses, cure, FilterDependency.NODES, NODE_EVENTS)


def _cure_node_affinity(
    context: PluginContext, nodes: BoolArray, added: tuple[NodeSelectorTerm, ...] | None
) -> str:
    snapshot, node, wishes = context.snapshot, nodes.argmax(), context.shape.node_constraints
    labels, name = snapshot.labels[node], snapshot.names[node]
    if dict(wishes.node_selector).items() <= labels.items():
        return f"let the pod's node affinity allow node {name}"
    more = missing_labels(wishes, labels, name)
    if more is None or not (added is None or matches_any_term(added, {**labels, **more}, name)):
        return f"let the pod's {_node_constraint_names(wishes)} allow node {name}"
    return f"label node {name} with {_format_labels(more)}"


def _node_constraint_names(constraints: NodeConstraints) -> str:
    """What of a pod says where it may be."""
    said = {
        "selector": bool(constraints.node_selector),
        "affinity": constraints.required_terms is not None,
    }
    return f"node {' and '.join(word for word, is_said in said.items() if is_said)}"


def _format_labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _reject_port_conflicts(context: PluginContext) -> Rejections:
    wanted = context.shape.ports
    if not wanted:
        return
    refused = np.zeros(len(context.snapshot), bool)
    for i, taken in context.used_ports.items():
        refused[i] = any(port.conflicts_with(other) for port in wanted for other in taken)
    yield "node(s) didn't have free ports for the requested pod ports", refused


def _cure_port_conflicts(context: PluginContext, nodes: BoolArray) -> str:
    node = int(nodes.argmax())
    taken = context.used_ports[node]
    clashing = [p for p in context.shape.ports if any(p.conflicts_with(other) for other in taken)]
    numbers = ", ".join(f"{port.number}/{port.protocol}" for port in clashing)
    return f"free port {numbers} of node {context.snapshot.names[node]}"


def has_free_ports(request: RequestVector, node_class: NodeClass) -> bool:
    """Whether one node has all the ports that a pod takes."""
    return not any(
        port.conflicts_with(taken) for port in request.ports for taken in node_class.used_ports
    )


def _reject_insufficient(context: PluginContext) -> Rejections:
    snapshot, used = context.snapshot, context.requested
    for name, amount in context.shape.requests:
        reason = "Too many pods" if name == "pods" else f"Insufficient {name}"
        column = snapshot.columns.get(name)
        if column is None:
            yield reason, np.ones(len(snapshot), bool)
        else:
            yield reason, used[:, column] + amount > snapshot.allocatable[:, column]


def _cure_insufficient(context: PluginContext, nodes: BoolArray) -> str:
    """On the node that lacks least, each resource measured by what is asked of it."""
    snapshot, lacks = context.snapshot, {}
    for name, amount in context.shape.requests:
        column = snapshot.columns.get(name)
        free = (
            0 if column is None else snapshot.allocatable[:, column] - context.requested[:, column]
        )
        lacks[name, amount] = np.broadcast_to(np.maximum(amount - free, 0), nodes.shape)
    burden = sum(lack / amount for (_, amount), lack in lacks.items())
    node = np.where(nodes, burden, np.inf).argmin()
    needed = [
        format_amount(name, int(lack[node])) for (name, _), lack in lacks.items() if lack[node]
    ]
    return f"free or add {', '.join(needed)} on node {snapshot.names[node]}"


def fits(request: RequestVector, node_class: NodeClass) -> bool:
    """Whether one node has room for one more."""
    room, used = node_class.allocatable, node_class.requested
    for column, amount in request.amounts:
        if used[column] + amount > room[column]:
            return False
    return not request.has_unknown_resource


FILTER_PLUGINS = (
    FilterPlugin(
        "NodeUnschedulable", _reject_cordoned, _cure_cordoned, FilterDependency.NODES, NODE_EVENTS
    ),
    FilterPlugin(
        "TaintToleration", _reject_tainted, _cure_tainted, FilterDependency.NODES, NODE_EVENTS
    ),
    node_affinity_filter(),
    FilterPlugin(
        "NodePorts",
        _reject_port_conflicts,
        _cure_port_conflicts,
        FilterDependency.LOAD,
        CAPACITY_EVENTS,
        helped_by_preemption=True,
        admits_node_class=has_free_ports,
        applies_to=lambda shape: bool(shape.ports),
    ),
    FilterPlugin(
        "NodeResourcesFit",
        _reject_insufficient,
        _cure_insufficient,
        FilterDependency.LOAD,
        CAPACITY_EVENTS,
        helped_by_preemption=True,
        admits_node_class=fits,
    ),
    FilterPlugin(
        "PodTopologySpread",
        peerfilters.reject_uneven_spread,
        peerfilters.cure_uneven_spread,
        FilterDependency.PEERS,
        PEER_EVENTS,
        helped_by_preemption=True,
    ),
    FilterPlugin(
        "InterPodAffinity",
        peerfilters.reject_unmet_affinity,
        peerfilters.cure_unmet_affinity,
        FilterDependency.PEERS,
        PEER_EVENTS,
        helped_by_preemption=True,
    ),
)


def rejected_nodes(row: FilterPlugin, context: PluginContext) -> BoolArray:
    """The nodes that one filter refuses, for whatever reason. Only to be read."""
    masks = [mask for _, mask in row.reject(context)]
    return reduce(or_, masks) if masks else np.zeros(len(context.snapshot), bool)


def build_refusal(filters: Sequence[FilterPlugin], context: PluginContext) -> Refusal:
    """Why no node takes a pod: asked only when none does."""
    counts: dict[str, int] = {}
    inside = context.candidates
    still = inside.copy()
    by_filter = []
    blamed: dict[str, None] = {}
    wakes_on = {ClusterEvent.NODE_ADDED}
    for row in filters:
        nodes = None
        for reason, mask in row.reject(context):
            nodes = mask if nodes is None else nodes | mask
            if count := int(np.count_nonzero(mask & still)):
                counts[reason] = count
                blamed[row.name] = None
                wakes_on |= row.wakes_on
        if nodes is not None:
            still &= ~nodes
            by_filter.append((row, nodes))
    cures = (*_collect_cures(by_filter, context, inside), *_cure_with_new_node(context.shape))
    size = int(np.count_nonzero(inside))
    return Refusal(size, tuple(counts.items()), cures, frozenset(wakes_on), tuple(blamed))


def _collect_cures(
    by_filter: list[tuple[FilterPlugin, BoolArray]], context: PluginContext, inside: BoolArray
) -> Iterator[str]:
    """A change per filter that would let the pod in where nothing else is in its way."""
    obstacles = np.zeros(len(inside), np.int64)
    for _, nodes in by_filter:
        obstacles += nodes
    by_one = (obstacles == 1) & inside
    for row, nodes in by_filter:
        alone = nodes & by_one
        if alone.any():
            yield row.suggest_cure(context, alone)


def _cure_with_new_node(shape: PodShape) -> Iterator[str]:
    """A node that would take the pod, unless its affinity allows none at all."""
    wishes, words = shape.node_constraints, f"add a node with room for {shape}"
    labels = missing_labels(wishes, {}, "")
    if labels is not None:
        yield words + (f" and the label {_format_labels(labels)}" if labels else "")
    elif any(
        place.label_requirements or place.name_requirements for place in wishes.required_terms or ()
    ):
        yield f"{words} that the pod's {_node_constraint_names(wishes)} would allow"
