"""Who makes the scheduling objects of a workload: its controller, its parent's, or its user.

The first reason that holds counts. Kinds have reasons of their own besides (`jobs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from phalanx.api.wire import Object
from phalanx.builder.links import Link, read_link
from phalanx.builder.owners import controller_of

#: Kinds, after their API groups, whose controllers look after the scheduling of what they make.
PARENTS = frozenset(
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


def managed(
    obj: Object,
    pods: Iterable[Object],
    parents: Collection[tuple[str, str]] = PARENTS,
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
