"""Owner references, links between parent and child controllers, and which controller creates what.

- `controller_reference`, `owner_reference`: references from created objects to their owners.
- `Link`: annotations by which a parent controller tells a child which template of the parent's
  Workload is the child's, if the child's controller creates the PodGroups. A link is written by
  controllers, never by users. The proposal's spelling is written, every known one is read.
- `decide_management`: whether the controller of an object creates its Workload and groups, only
  the groups, or nothing. The first reason that applies decides; `jobs` and `jobsets` add their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from phalanx.api.meta import controller_of
from phalanx.api.wire import Object


def controller_reference(owner: Object) -> Object:
    """Build the reference to the owner that controls an object."""
    return {**owner_reference(owner), "controller": True, "blockOwnerDeletion": True}


def owner_reference(owner: Object) -> Object:
    """Build a reference to an owner; the object is deleted with its last owner."""
    meta = owner.get("metadata") or {}
    return {
        "apiVersion": owner.get("apiVersion", ""),
        "kind": owner.get("kind", ""),
        "name": meta.get("name", ""),
        "uid": meta.get("uid", ""),
    }


def group_owner_references(controller: Object, workload: Object) -> list[Object]:
    """Build the owner references of a group: its controller, and its Workload once that exists."""
    references = [controller_reference(controller), owner_reference(workload)]
    return [reference for reference in references if reference["uid"]]


GROUP_TEMPLATE = "scheduling.k8s.io/group-template-name"
PARENT_COMPOSITE = "scheduling.k8s.io/parent-composite-podgroup"
_PARENT_ANNOTATIONS = (PARENT_COMPOSITE, "scheduling.k8s.io/parent-compositepodgroup")


@dataclass(frozen=True, slots=True)
class Link:
    """A template of the parent's Workload, and the CompositePodGroup to join ("" if not named).

    >>> Link("workers", "train-root").annotations()  # doctest: +NORMALIZE_WHITESPACE
    {'scheduling.k8s.io/group-template-name': 'workers',
     'scheduling.k8s.io/parent-composite-podgroup': 'train-root'}
    """

    template: str
    parent: str = ""

    def annotations(self) -> dict[str, str]:
        """Return the annotations for the child."""
        parent = {PARENT_COMPOSITE: self.parent} if self.parent else {}
        return {GROUP_TEMPLATE: self.template, **parent}


def read_link(child: Object) -> Link | None:
    """Read the link from the annotations of an object; None if it has none."""
    annotations = (child.get("metadata") or {}).get("annotations") or {}
    if GROUP_TEMPLATE not in annotations:
        return None
    parents = (annotations[name] for name in _PARENT_ANNOTATIONS if annotations.get(name))
    return Link(annotations[GROUP_TEMPLATE], next(parents, ""))


#: API groups and kinds whose controllers manage the scheduling of the objects that they create.
SCHEDULING_PARENTS = frozenset(
    {
        ("jobset.x-k8s.io", "JobSet"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        ("kubeflow.org", "MPIJob"),
        ("ray.io", "RayCluster"),
        ("ray.io", "RayJob"),
        ("ray.io", "RayService"),
        ("trainer.kubeflow.org", "TrainJob"),
    }
)


def parse_parents(text: str) -> frozenset[tuple[str, str]]:
    """Parse a list of kinds whose controllers manage the scheduling of their children.

    They are added to `SCHEDULING_PARENTS`; `-Kind.group` removes one. Raises ValueError.

    >>> ("example.com", "Training") in parse_parents("Training.example.com,-JobSet.jobset.x-k8s.io")
    True
    """
    parents = set(SCHEDULING_PARENTS)
    for entry in filter(None, (part.strip() for part in text.split(","))):
        kind, _, group = entry.removeprefix("-").partition(".")
        if not kind or not group:
            raise ValueError(f'"{entry}" is not Kind.group, such as Training.example.com')
        if entry.startswith("-"):
            parents.discard((group, kind))
        else:
            parents.add((group, kind))
    return frozenset(parents)


@dataclass(frozen=True, slots=True)
class ManageBoth:
    """The controller creates the Workload and the groups: the object is a root."""


@dataclass(frozen=True, slots=True)
class ManageGroups:
    """The controller creates groups of the parent's Workload, by the link to it."""

    link: Link


@dataclass(frozen=True, slots=True)
class ManageNothing:
    """The controller creates no scheduling objects."""

    reason: str


Management = ManageBoth | ManageGroups | ManageNothing


def decide_management(
    obj: Object,
    pods: Iterable[Object],
    parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
) -> Management:
    """Decide which objects the controller of `obj` creates; `pods` are the specs of its pods."""
    for pod in pods:
        if group := pod.get("schedulingGroup"):
            return ManageNothing(f"its pods already name the PodGroup {group.get('podGroupName')}")
    if link := read_link(obj):
        return ManageGroups(link)
    owner = controller_of(obj)
    if owner and (owner["apiVersion"].rpartition("/")[0], owner["kind"]) in parents:
        return ManageNothing(f"{owner['kind']} {owner['name']} manages its scheduling")
    return ManageBoth()
