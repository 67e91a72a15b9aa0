"""How a composite controller tells its children which group is theirs: by annotations.

A parent that leaves the making of PodGroups to the controllers of its children writes a Link on
each of them; these read it. A link is between controllers, never a wish of the user. The
proposal's spelling is written, every known one is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.wire import Object

GROUP_TEMPLATE = "scheduling.k8s.io/group-template-name"
PARENT_COMPOSITE = "scheduling.k8s.io/parent-composite-podgroup"
_PARENT_SPELLINGS = (PARENT_COMPOSITE, "scheduling.k8s.io/parent-compositepodgroup")


@dataclass(frozen=True, slots=True)
class Link:
    """The template in the parent's Workload, and the CompositePodGroup to join ("": none is named).

    >>> Link("workers", "train-root").annotations()  # doctest: +NORMALIZE_WHITESPACE
    {'scheduling.k8s.io/group-template-name': 'workers',
     'scheduling.k8s.io/parent-composite-podgroup': 'train-root'}
    """

    template: str
    parent: str = ""

    def annotations(self) -> dict[str, str]:
        """What to write on the child."""
        parent = {PARENT_COMPOSITE: self.parent} if self.parent else {}
        return {GROUP_TEMPLATE: self.template, **parent}


def read_link(child: Object) -> Link | None:
    """The link that a parent has written on an object; None if the object stands for itself."""
    said = (child.get("metadata") or {}).get("annotations") or {}
    if GROUP_TEMPLATE not in said:
        return None
    parents = (said[spelling] for spelling in _PARENT_SPELLINGS if said.get(spelling))
    return Link(said[GROUP_TEMPLATE], next(parents, ""))
