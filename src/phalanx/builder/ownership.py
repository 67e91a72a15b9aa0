"""References from what is made to what it is made for.

How a composite controller tells its children which group is theirs: by annotations.

A parent that leaves the making of PodGroups to the controllers of its children writes a Link on
each of them; these read it. A link is between controllers, never a wish of the user. The
proposal's spelling is written, every known one is read.

Who makes the scheduling objects of a workload: its controller, its parent's, or its user.

The first reason that holds counts. Kinds have reasons of their own besides (`jobs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from phalanx.api.wire import Object


def controller_reference(owner: Object) -> Object:
    """The owner that manages an object and outlives it."""
    return {**owner_reference(owner), "controller": True, "blockOwnerDeletion": True}


def owner_reference(owner: Object) -> Object:
    """An owner that an object goes with."""
    meta = owner.get("metadata") or {}
    return {
        "apiVersion": owner.get("apiVersion", ""),
        "kind": owner.get("kind", ""),
        "name": meta.get("name", ""),
        "uid": meta.get("uid", ""),
    }


def group_owner_references(controller: Object, workload: Object) -> list[Object]:
    """A group is managed by a controller's object and goes with its Workload, once that exists."""
    references = [controller_reference(controller), owner_reference(workload)]
    return [reference for reference in references if reference["uid"]]


def controller_of(obj: Object) -> Object | None:
    """The reference to the owner that manages an object, if it has one."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return next((dict(owner) for owner in owners if owner.get("controller")), None)


GROUP_TEMPLATE = "scheduling.k8s.io/group-template-name"
PARENT_COMPOSITE = "scheduling.k8s.io/parent-composite-podgroup"
_PARENT_ANNOTATIONS = (PARENT_COMPOSITE, "scheduling.k8s.io/parent-compositepodgroup")


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
    parents = (said[spelling] for spelling in _PARENT_ANNOTATIONS if said.get(spelling))
    return Link(said[GROUP_TEMPLATE], next(parents, ""))


#: Kinds, after their API groups, whose controllers look after the scheduling of what they make.
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


@dataclass(frozen=True, slots=True)
class ManageBoth:
    """It is a root: its controller makes the Workload and the groups."""


@dataclass(frozen=True, slots=True)
class ManageGroups:
    """Its parent has the Workload; its controller makes the groups, by the link to it."""

    link: Link


@dataclass(frozen=True, slots=True)
class ManageNothing:
    """Its controller makes nothing."""

    reason: str


Management = ManageBoth | ManageGroups | ManageNothing


def decide_management(
    obj: Object,
    pods: Iterable[Object],
    parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
) -> Management:
    """What the controller of an object makes, given the specs of the pods of that."""
    for pod in pods:
        if group := pod.get("schedulingGroup"):
            return ManageNothing(f"its pods are in the group {group.get('podGroupName')} already")
    if link := read_link(obj):
        return ManageGroups(link)
    owner = controller_of(obj)
    if owner and (owner["apiVersion"].rpartition("/")[0], owner["kind"]) in parents:
        return ManageNothing(f"{owner['kind']} {owner['name']} looks after its scheduling")
    return ManageBoth()
