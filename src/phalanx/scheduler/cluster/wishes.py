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
from phalanx.api.selectors import Requirement

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.snapshot import BoolArray, Snapshot

#: Effects that keep a new pod away; the third one, PreferNoSchedule, is a preference.
HARD_EFFECTS = ("NoSchedule", "NoExecute")
SOFT_EFFECT = "PreferNoSchedule"

_OPERATORS = {
    "In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent", "Gt": "gt",
    "Lt": "lt",
}  # fmt: skip


class Place(NamedTuple):
    """Conditions on the labels and the name of a node that must all hold; none hold for none."""

    labels: tuple[Requirement, ...]
    names: tuple[Requirement, ...] = ()


class Wishes(NamedTuple):
    """What a pod insists on (every selector label, one of the places) and what it would rather."""

    selector: tuple[tuple[str, str], ...] = ()
    #: None: anywhere.
    places: tuple[Place, ...] | None = None
    preferred: tuple[tuple[int, Place], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    images: tuple[str, ...] = ()

    def selected(self, snapshot: Snapshot) -> BoolArray:
        """The nodes that its selector and node affinity allow."""
        mask = np.ones(len(snapshot), bool)
        for key, value in self.selector:
            mask &= snapshot.meeting(Requirement(key, "in", frozenset({value})))
        if self.places is not None:
            mask &= within_any(snapshot, self.places)
        return mask

    def tolerates(self, taint: Taint) -> bool:
        """Whether it does not mind a taint."""
        return any(tolerates(one, taint) for one in self.tolerations)

    def minds(self, taints: tuple[Taint, ...]) -> list[Taint]:
        """The taints that keep it away."""
        return [t for t in taints if t.effect in HARD_EFFECTS and not self.tolerates(t)]

    def dislikes(self, taints: tuple[Taint, ...]) -> int:
        """How many taints it would rather not meet, and does not tolerate in so many words."""
        ours = [t for t in self.tolerations if t.effect in ("", SOFT_EFFECT)]
        return sum(
            taint.effect == SOFT_EFFECT and not any(tolerates(one, taint) for one in ours)
            for taint in taints
        )

    def tolerated(self, snapshot: Snapshot) -> BoolArray:
        """The nodes whose taints do not keep it away."""
        minded = np.array([bool(self.minds(taints)) for taints in snapshot.taints], bool)
        return ~minded[snapshot.taint_class] if len(minded) else np.ones(len(snapshot), bool)


NO_WISHES = Wishes()


def wishes_of(pod: Pod) -> Wishes:
    """What a pod asks of nodes."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return Wishes(
        selector=tuple(sorted(spec.node_selector.items())),
        places=required_places(affinity),
        preferred=preferred_places(affinity),
        tolerations=spec.tolerations,
        images=tuple(sorted(_images(pod))),
    )


def required_places(affinity: NodeAffinity | None) -> tuple[Place, ...] | None:
    """The places that an affinity insists on; None: anywhere."""
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return tuple(map(_place, required.node_selector_terms)) if required else None


def preferred_places(affinity: NodeAffinity | None) -> tuple[tuple[int, Place], ...]:
    """The places that an affinity prefers, with weights."""
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    return tuple((one.weight, _place(one.preference)) for one in preferred if one.weight)


def within_any(snapshot: Snapshot, places: tuple[Place, ...]) -> BoolArray:
    """The nodes that are in one of some places."""
    nowhere = np.zeros(len(snapshot), bool)
    return reduce(np.logical_or, (within(snapshot, place) for place in places), nowhere)


def within(snapshot: Snapshot, place: Place) -> BoolArray:
    """The nodes for which all conditions of a place hold."""
    mask = np.full(len(snapshot), bool(place.labels or place.names))
    for need in place.labels:
        mask &= snapshot.meeting(need)
    for need in place.names:
        mask &= np.array([need.matches({need.key: name}) for name in snapshot.names], bool)
    return mask


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _place(term: NodeTerm) -> Place:
    return Place(
        tuple(map(_requirement, term.match_expressions)),
        tuple(map(_requirement, term.match_fields)),
    )


def _requirement(one: NodeRequirement) -> Requirement:
    return Requirement(one.key, _OPERATORS.get(one.operator, "in"), frozenset(one.values))


def _images(pod: Pod) -> Iterator[str]:
    """The images of all containers and volumes, each under the name that nodes list it by."""
    run = [container.image for container in (*pod.spec.init_containers, *pod.spec.containers)]
    mounted = [volume.image.reference for volume in pod.spec.volumes if volume.image]
    for image in run + mounted:
        yield image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
