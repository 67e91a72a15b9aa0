"""NodeAffinity: rejects nodes outside a pod's node selector and required node affinity, and
prefers nodes that match its preferred terms.

The argument `addedAffinity` adds terms for every pod of a profile: required ones are checked
first, preferred ones add to the score. `missing_labels` finds the labels that would let a node
match; a label may be added or changed, never removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from phalanx.api.core import NodeAffinity
from phalanx.api.validation.checks import if_present, struct
from phalanx.api.validation.pod_scheduling import NODE_AFFINITY as NODE_AFFINITY_RULES
from phalanx.scheduler.cluster.node_constraints import (
    NodeConstraints,
    NodeSelectorTerm,
    nodes_matching_any,
    nodes_matching_term,
    preferred_terms_of,
    required_terms_of,
)
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.plugins.arguments import PluginArgs, and_then, matches_definition
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    NormalizedScore,
    Plugin,
    Rejections,
    percent_of_max,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext

#: The value of a label for which any value would do.
_ANY_VALUE = "true"


class NodeAffinityArgs(PluginArgs, frozen=True):
    """The arguments of NodeAffinity."""

    added_affinity: NodeAffinity | None = None


_ARGS_RULES = struct(
    (
        "addedAffinity",
        if_present(and_then(matches_definition("core.v1.NodeAffinity"), NODE_AFFINITY_RULES)),
    )
)


def node_affinity(args: NodeAffinityArgs) -> Plugin:
    """The plugin with an affinity that is added to every pod."""
    required = required_terms_of(args.added_affinity)
    preferred = preferred_terms_of(args.added_affinity)

    def applies_to(context: PluginContext) -> bool:
        return bool(preferred or context.shape.node_constraints.preferred_terms)

    def score_nodes(context: PluginContext, passed: BoolArray) -> IntArray:
        total = np.zeros(len(context.snapshot), np.int64)
        for weight, term in (*preferred, *context.shape.node_constraints.preferred_terms):
            total += weight * nodes_matching_term(context.snapshot, term)
        return percent_of_max(total, passed)

    return Plugin(
        "NodeAffinity",
        filter=node_affinity_filter(required),
        score=NormalizedScore(applies_to, score_nodes),
        weight=2,
        arguments=Arguments(NodeAffinityArgs, node_affinity, _ARGS_RULES),
    )


def node_affinity_filter(added: tuple[NodeSelectorTerm, ...] | None = None) -> Filter:
    """The filter, with terms of which every pod requires one; None: no such terms."""

    def reject(context: PluginContext) -> Rejections:
        outside = np.zeros(len(context.snapshot), bool)
        if added is not None:
            outside = ~nodes_matching_any(context.snapshot, added)
            yield "node(s) didn't match scheduler-enforced node affinity", outside
        constraints = context.shape.node_constraints
        if constraints.node_selector or constraints.required_terms is not None:
            rejected = ~constraints.matching_nodes(context.snapshot)
            yield "node(s) didn't match Pod's node affinity/selector", rejected & ~outside

    def suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
        snapshot, constraints = context.snapshot, context.shape.node_constraints
        inside = nodes if added is None else nodes & nodes_matching_any(snapshot, added)
        if not inside.any():
            name = snapshot.names[nodes.argmax()]
            return f"let the affinity that the scheduler adds to all pods allow node {name}"
        node = inside.argmax()
        labels, name = snapshot.labels[node], snapshot.names[node]
        if dict(constraints.node_selector).items() <= labels.items():
            return f"let the pod's node affinity allow node {name}"
        missing = missing_labels(constraints, labels, name)
        if missing is not None and (
            added is None or any(_term_matches(term, {**labels, **missing}, name) for term in added)
        ):
            return f"label node {name} with {format_labels(missing)}"
        return f"let the pod's {constraint_names(constraints)} allow node {name}"

    return Filter(reject=reject, suggest_cure=suggest_cure, is_modelled=True)


def missing_labels(
    constraints: NodeConstraints, labels: Labels, name: str
) -> dict[str, str] | None:
    """The fewest labels to set so that a node matches; None if no labels make it match."""
    found = [
        {key: value for key, value in labelled.items() if labels.get(key) != value}
        for labelled in _matching_label_sets(constraints, labels, name)
    ]
    return min(found, key=len, default=None)


def _matching_label_sets(
    constraints: NodeConstraints, labels: Labels, name: str
) -> Iterator[Labels]:
    """For each required term, the labels of a node after it got those that the term requires."""
    selector = dict(constraints.node_selector)
    if constraints.required_terms is None:
        yield {**labels, **selector}
    for term in constraints.required_terms or ():
        labelled = {**labels, **selector}
        for requirement in term.label_requirements:
            if requirement.key in selector or requirement.matches(labelled):
                continue
            if requirement.operator == "in" and requirement.values:
                labelled[requirement.key] = min(requirement.values)
            elif requirement.operator == "exists":
                labelled[requirement.key] = _ANY_VALUE
        if _term_matches(term, labelled, name):
            yield labelled


def _term_matches(term: NodeSelectorTerm, labels: Labels, name: str) -> bool:
    return (
        bool(term.label_requirements or term.name_requirements)
        and all(requirement.matches(labels) for requirement in term.label_requirements)
        and all(
            requirement.matches({requirement.key: name}) for requirement in term.name_requirements
        )
    )


def constraint_names(constraints: NodeConstraints) -> str:
    """The names of the pod's fields that restrict nodes: `node selector and affinity`."""
    names = ["selector"] if constraints.node_selector else []
    names += ["affinity"] if constraints.required_terms is not None else []
    return f"node {' and '.join(names)}"


def format_labels(labels: Mapping[str, str]) -> str:
    """Labels as text: `disk=ssd, zone=a`."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


NODE_AFFINITY = node_affinity(NodeAffinityArgs())
