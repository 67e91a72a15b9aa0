"""NodeConstraints: what a pod requires or prefers of nodes: labels, names, taints, images.

Part of a pod's shape, with the functions that compute which nodes meet a constraint. These read
only what nodes *are*, which changes rarely, so the snapshot caches the mask of each requirement.
Constraints know nothing of load or of other pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.api.core import NodeAffinity, NodeRequirement, NodeTerm, Pod, Taint, Toleration
from phalanx.api.selectors import LabelRequirement

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.snapshot import BoolArray, Snapshot

#: Taint effects that reject a new pod; the third one, PreferNoSchedule, is a preference.
HARD_EFFECTS = ("NoSchedule", "NoExecute")
SOFT_EFFECT = "PreferNoSchedule"

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

    def tolerates(self, taint: Taint) -> bool:
        """Whether some toleration covers a taint."""
        return any(tolerates(toleration, taint) for toleration in self.tolerations)

    def untolerated_taints(self, taints: tuple[Taint, ...]) -> list[Taint]:
        """Return the taints that reject the pod."""
        return [t for t in taints if t.effect in HARD_EFFECTS and not self.tolerates(t)]

    def count_untolerated_soft_taints(self, taints: tuple[Taint, ...]) -> int:
        """Count the PreferNoSchedule taints that no toleration covers."""
        soft = [t for t in self.tolerations if t.effect in ("", SOFT_EFFECT)]
        return sum(
            taint.effect == SOFT_EFFECT
            and not any(tolerates(toleration, taint) for toleration in soft)
            for taint in taints
        )

    def tolerated_nodes(self, snapshot: Snapshot) -> BoolArray:
        """Return the nodes whose taints do not reject the pod."""
        rejects = np.array(
            [bool(self.untolerated_taints(taints)) for taints in snapshot.taints], bool
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
    return tuple(map(_selector_term, required.node_selector_terms)) if required else None


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
        matches = [requirement.matches({requirement.key: name}) for name in snapshot.names]
        mask &= np.array(matches, bool)
    return mask


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


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
