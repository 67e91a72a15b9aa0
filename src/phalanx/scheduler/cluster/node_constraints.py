"""NodeConstraints: what a pod requires or prefers of nodes: labels, names, taints, images.

Part of a pod's shape, with the functions that compute which nodes meet a constraint. These read
only what nodes *are*, which changes rarely, so the snapshot caches the mask of each requirement.
Constraints know nothing of load or of other pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.api.core import (
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeTerm,
    Pod,
    Taint,
    Toleration,
)
from phalanx.api.selectors import LabelRequirement

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.snapshot import BoolArray, Snapshot

#: Taint effects that reject a new pod; the third one, PreferNoSchedule, is a preference.
HARD_EFFECTS = ("NoSchedule", "NoExecute")
SOFT_EFFECT = "PreferNoSchedule"
#: The taint that a pod must tolerate to run on a cordoned node.
UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

_OPERATORS = {
    "In": "in",
    "NotIn": "notin",
    "Exists": "exists",
    "DoesNotExist": "absent",
    "Gt": "gt",
    "Lt": "lt",
}


class NodeSelectorTerm(NamedTuple):
    """Requirements on the labels and the name of a node, all of which must hold.

    A term without requirements matches no node, as in Kubernetes.
    """

    label_requirements: tuple[LabelRequirement, ...]
    name_requirements: tuple[LabelRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether one node meets all requirements."""
        return (
            bool(self.label_requirements or self.name_requirements)
            and all(requirement.matches(labels) for requirement in self.label_requirements)
            and all(one.matches({one.key: name}) for one in self.name_requirements)
        )


class NodeConstraints(NamedTuple):
    """The constraints of a pod on nodes.

    Required are every label of the node selector and one of the required terms.
    """

    node_selector: tuple[tuple[str, str], ...] = ()
    #: None: every node.
    required_terms: tuple[NodeSelectorTerm, ...] | None = None
    preferred_terms: tuple[tuple[int, NodeSelectorTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    images: tuple[str, ...] = ()

    def matching_nodes(self, snapshot: Snapshot) -> BoolArray:
        """Return the nodes that the node selector and the node affinity allow."""
        mask = np.ones(len(snapshot), bool)
        for key, value in self.node_selector:
            mask &= snapshot.nodes_matching(LabelRequirement(key, "in", frozenset({value})))
        if self.required_terms is not None:
            mask &= nodes_matching_any(snapshot, self.required_terms)
        return mask

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node selector and the node affinity allow one node."""
        if any(labels.get(key) != value for key, value in self.node_selector):
            return False
        terms = self.required_terms
        return terms is None or any(term.matches(name, labels) for term in terms)

    def only_node(self, snapshot: Snapshot) -> int | None:
        """Return the row of the only node that may match, found without reading the others.

        None if several may match, or none: then all nodes are compared. The pods of a DaemonSet
        name their node in a required term; other pods select a host by its label.
        """
        if self.required_terms is not None:
            names = [
                next((one.values for one in term.name_requirements if one.operator == "in"), None)
                for term in self.required_terms
            ]
            known = {name for values in names if values is not None for name in values}
            if None not in names and len(known) == 1:
                return snapshot.index.get(known.pop())
        rows = (snapshot.node_with_label(key, value) for key, value in self.node_selector)
        return next((row for row in rows if row is not None), None)

    def tolerates(self, taint: Taint) -> bool:
        """Whether some toleration covers a taint."""
        return any(tolerates(toleration, taint) for toleration in self.tolerations)

    def untolerated_taints(self, taints: tuple[Taint, ...]) -> list[Taint]:
        """Return the taints that reject the pod."""
        return [t for t in taints if t.effect in HARD_EFFECTS and not self.tolerates(t)]

    def count_untolerated_soft_taints(self, taint_sets: Iterable[tuple[Taint, ...]]) -> list[int]:
        """Count in each set the PreferNoSchedule taints that no toleration covers."""
        covered = _covered_taints(self.tolerations)
        return [
            sum(taint.effect == SOFT_EFFECT and not _is_covered(taint, covered) for taint in taints)
            for taints in taint_sets
        ]

    def tolerated_nodes(self, snapshot: Snapshot) -> BoolArray:
        """Return the nodes whose taints do not reject the pod."""
        covered = _covered_taints(self.tolerations)
        rejects = np.array(
            [
                any(t.effect in HARD_EFFECTS and not _is_covered(t, covered) for t in taints)
                for taints in snapshot.taints
            ],
            bool,
        )
        return ~rejects[snapshot.taint_class] if len(rejects) else np.ones(len(snapshot), bool)


NO_NODE_CONSTRAINTS = NodeConstraints()


def node_constraints_of(pod: Pod) -> NodeConstraints:
    """Read the constraints of a pod on nodes."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return NodeConstraints(
        node_selector=tuple(sorted(spec.node_selector.items())),
        required_terms=required_terms_of(affinity),
        preferred_terms=preferred_terms_of(affinity),
        tolerations=spec.tolerations,
        images=tuple(sorted(_image_names(pod))),
    )


def required_terms_of(affinity: NodeAffinity | None) -> tuple[NodeSelectorTerm, ...] | None:
    """Return the required terms of a node affinity; None: every node."""
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return terms_of(required) if required else None


def terms_of(selector: NodeSelector) -> tuple[NodeSelectorTerm, ...]:
    """Return the terms of a node selector, of which one must match."""
    return tuple(map(_selector_term, selector.node_selector_terms))


def preferred_terms_of(affinity: NodeAffinity | None) -> tuple[tuple[int, NodeSelectorTerm], ...]:
    """Return the preferred terms of a node affinity with their weights."""
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(
        (term.weight, _selector_term(term.preference)) for term in preferred if term.weight
    )


def nodes_matching_any(snapshot: Snapshot, terms: tuple[NodeSelectorTerm, ...]) -> BoolArray:
    """Return the nodes that match one of some terms."""
    masks = (nodes_matching_term(snapshot, term) for term in terms)
    return reduce(np.logical_or, masks, np.zeros(len(snapshot), bool))


def nodes_matching_term(snapshot: Snapshot, term: NodeSelectorTerm) -> BoolArray:
    """Return the nodes that meet all requirements of a term."""
    mask = np.full(len(snapshot), bool(term.label_requirements or term.name_requirements))
    for requirement in term.label_requirements:
        mask &= snapshot.nodes_matching(requirement)
    for requirement in term.name_requirements:
        mask &= _nodes_named(snapshot, requirement)
    return mask


def _nodes_named(snapshot: Snapshot, requirement: LabelRequirement) -> BoolArray:
    """Return the nodes whose names meet a requirement, which is `in` or `notin`."""
    is_match = requirement.operator == "in"
    mask = np.full(len(snapshot), not is_match)
    mask[[snapshot.index[name] for name in requirement.values if name in snapshot.index]] = is_match
    return mask


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _covered_taints(tolerations: Iterable[Toleration]) -> set[tuple[str, str | None, str]]:
    """Return tolerations as key, value (None: any) and effect ("": any), to look taints up."""
    return {
        (one.key, None if one.operator == "Exists" else one.value, one.effect)
        for one in tolerations
    }


def _is_covered(taint: Taint, covered: set[tuple[str, str | None, str]]) -> bool:
    """Whether a toleration covers a taint; `tolerates` for thousands of tolerations."""
    return any(
        (key, value, effect) in covered
        for key, value in ((taint.key, taint.value), (taint.key, None), ("", None))
        for effect in (taint.effect, "")
    )


def _selector_term(term: NodeTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        tuple(map(_requirement, term.match_expressions)),
        tuple(map(_requirement, term.match_fields)),
    )


def _requirement(requirement: NodeRequirement) -> LabelRequirement:
    return LabelRequirement(
        requirement.key, _OPERATORS.get(requirement.operator, "in"), frozenset(requirement.values)
    )


def _image_names(pod: Pod) -> Iterator[str]:
    """Iterate over the images of containers and volumes, named as nodes list them."""
    run = [container.image for container in (*pod.spec.init_containers, *pod.spec.containers)]
    mounted = [volume.image.reference for volume in pod.spec.volumes if volume.image]
    for image in run + mounted:
        yield image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
