"""Wishes: what a pod asks of nodes for what they are: labels, names, taints, images.

Part of a pod's shape, with the masks of nodes that each wish allows. What a node is changes seldom,
so the snapshot remembers the masks. Knows nothing of load or of other pods.
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

#: Effects that keep a new pod away; the third one, PreferNoSchedule, is a preference.
HARD_EFFECTS = ("NoSchedule", "NoExecute")
SOFT_EFFECT = "PreferNoSchedule"

_OPERATORS = {
    "In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent", "Gt": "gt",
    "Lt": "lt",
}  # fmt: skip


class NodeSelectorTerm(NamedTuple):
    """Conditions on the labels and the name of a node that must all hold; none hold for none."""

    label_requirements: tuple[LabelRequirement, ...]
    name_requirements: tuple[LabelRequirement, ...] = ()


class NodeConstraints(NamedTuple):
    """What a pod insists on (every selector label, one of the places) and what it would rather."""

    node_selector: tuple[tuple[str, str], ...] = ()
    #: None: anywhere.
    required_terms: tuple[NodeSelectorTerm, ...] | None = None
    preferred_terms: tuple[tuple[int, NodeSelectorTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    images: tuple[str, ...] = ()

    def matching_nodes(self, snapshot: Snapshot) -> BoolArray:
        """The nodes that its selector and node affinity allow."""
        mask = np.ones(len(snapshot), bool)
        for key, value in self.node_selector:
            mask &= snapshot.nodes_matching(LabelRequirement(key, "in", frozenset({value})))
        if self.required_terms is not None:
            mask &= nodes_matching_any(snapshot, self.required_terms)
        return mask

    def tolerates(self, taint: Taint) -> bool:
        """Whether it does not mind a taint."""
        return any(tolerates(one, taint) for one in self.tolerations)

    def untolerated_taints(self, taints: tuple[Taint, ...]) -> list[Taint]:
        """The taints that keep it away."""
        return [t for t in taints if t.effect in HARD_EFFECTS and not self.tolerates(t)]

    def count_untolerated_soft_taints(self, taints: tuple[Taint, ...]) -> int:
        """How many taints it would rather not meet, and does not tolerate in so many words."""
        ours = [t for t in self.tolerations if t.effect in ("", SOFT_EFFECT)]
        return sum(
            taint.effect == SOFT_EFFECT and not any(tolerates(one, taint) for one in ours)
            for taint in taints
        )

    def tolerated_nodes(self, snapshot: Snapshot) -> BoolArray:
        """The nodes whose taints do not keep it away."""
        minded = np.array(
            [bool(self.untolerated_taints(taints)) for taints in snapshot.taints], bool
        )
        return ~minded[snapshot.taint_class] if len(minded) else np.ones(len(snapshot), bool)


NO_NODE_CONSTRAINTS = NodeConstraints()


def node_constraints_of(pod: Pod) -> NodeConstraints:
    """What a pod asks of nodes."""
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
    """The places that an affinity insists on; None: anywhere."""
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return tuple(map(_selector_term, required.node_selector_terms)) if required else None


def preferred_terms_of(affinity: NodeAffinity | None) -> tuple[tuple[int, NodeSelectorTerm], ...]:
    """The places that an affinity prefers, with weights."""
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    return tuple((one.weight, _selector_term(one.preference)) for one in preferred if one.weight)


def nodes_matching_any(snapshot: Snapshot, placements: tuple[NodeSelectorTerm, ...]) -> BoolArray:
    """The nodes that are in one of some places."""
    nowhere = np.zeros(len(snapshot), bool)
    return reduce(
        np.logical_or, (nodes_matching_term(snapshot, place) for place in placements), nowhere
    )


def nodes_matching_term(snapshot: Snapshot, term: NodeSelectorTerm) -> BoolArray:
    """The nodes for which all conditions of a place hold."""
    mask = np.full(len(snapshot), bool(term.label_requirements or term.name_requirements))
    for need in term.label_requirements:
        mask &= snapshot.nodes_matching(need)
    for need in term.name_requirements:
        mask &= np.array([need.matches({need.key: name}) for name in snapshot.names], bool)
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


def _requirement(one: NodeRequirement) -> LabelRequirement:
    return LabelRequirement(one.key, _OPERATORS.get(one.operator, "in"), frozenset(one.values))


def _image_names(pod: Pod) -> Iterator[str]:
    """The images of all containers and volumes, each under the name that nodes list it by."""
    run = [container.image for container in (*pod.spec.init_containers, *pod.spec.containers)]
    mounted = [volume.image.reference for volume in pod.spec.volumes if volume.image]
    for image in run + mounted:
        yield image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
