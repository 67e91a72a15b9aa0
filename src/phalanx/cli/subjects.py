"""What `phalanx why` can be asked about: words for kinds, and the pods and groups behind a name.

A pod of a group is asked about as its group; a Job, or whatever else a Workload is about, as the
groups that were made for it. Looks at the cluster through the API and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod, Service
from phalanx.api.errors import ApiError, Forbidden, NotFound
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.client.client import Client
from phalanx.controllers.loop import Thing
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.cluster.forest import Group, name_of
from phalanx.scheduler.queueing.entry import Id

T = TypeVar("T")
Excuses = tuple[type[ApiError], ...]

#: Why a kind that can be done without is not listed.
_CLOSED: Excuses = (NotFound, Forbidden)

#: What can be asked about, and more words for it than its own names.
KINDS: dict[Kind, tuple[str, ...]] = {
    POD_GROUP: ("pg", "gang"), COMPOSITE_POD_GROUP: ("cpg", "tree"), POD: (), JOB: (),
    WORKLOAD: ("wl",), JOB_SET: (), LEADER_WORKER_SET: (),
}  # fmt: skip
_WORDS = {
    word: kind
    for kind, words in KINDS.items()
    for word in (kind.name.lower(), kind.plural, *kind.short_names, *words)
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A kind and a name, as on the command line."""

    kind: Kind
    key: Key

    @property
    def is_many(self) -> bool:
        """Whether there may be several groups behind it."""
        return self.kind not in (POD, POD_GROUP, COMPOSITE_POD_GROUP)

    @property
    def absent(self) -> NotFound:
        """That there is no such thing, as an error."""
        name = {POD_GROUP: "pod group", POD: "pod"}.get(self.kind, self.kind.name)
        return NotFound(f'there is no {name} "{self.key.name}" in namespace "{self.key.namespace}"')


def parsed(what: str) -> tuple[Kind, str]:
    """`podgroup/train` in its parts, or why that is wrong."""
    word, slash, name = what.partition("/")
    kind = _WORDS.get(word.lower())
    if not slash or not name or kind is None:
        words = ", ".join(f"{kind.name.lower()}/NAME" for kind in KINDS)
        raise click.UsageError(f"{what!r} is none of {words}")
    return kind, name


async def seen(client: Client) -> Cluster:
    """The cluster as it is. Without groups, where they are switched off, every pod is alone."""
    pods: Sequence[Pod] = (await client.list(POD, Pod)).items
    groups: list[Group] = []
    known = await _listed(client, POD_GROUP, PodGroup)
    if known is None:
        pods = [pod.alone for pod in pods]
    else:
        trees = await _listed(client, COMPOSITE_POD_GROUP, CompositePodGroup)
        groups = [*known, *(trees or ())]
    spaces = (await client.list(NAMESPACE, Thing)).items
    return Cluster(
        nodes=(await client.list(NODE, Node)).items,
        groups=groups,
        pods=pods,
        services=(await client.list(SERVICE, Service)).items,
        namespaces={space.metadata.name: space.metadata.labels for space in spaces},
        budgets=await _listed(client, POD_DISRUPTION_BUDGET, Budget, _CLOSED) or (),
    )


async def subjects(client: Client, asked: Asked, cluster: Cluster) -> list[Id]:
    """The pods and groups that it is about; an error if it is not there."""
    match asked.kind:
        case kind if kind is POD:
            return [_of_pod(asked, cluster.pods)]
        case kind if kind in (POD_GROUP, COMPOSITE_POD_GROUP):
            found = Id(True, asked.key, kind is COMPOSITE_POD_GROUP)
            if found.name not in map(name_of, cluster.groups):
                raise asked.absent
            return [found]
        case kind if kind is WORKLOAD:
            await _existing(client, asked)
            return _of_workloads([asked.key.name], asked, cluster)
        case _:
            return await _of_owner(client, asked, cluster)


async def _of_owner(client: Client, asked: Asked, cluster: Cluster) -> list[Id]:
    """The groups of the Workloads that are about an object, and those that its pods are in."""
    await _existing(client, asked)
    about = (asked.kind.group, asked.kind.name, asked.key.name)
    workloads = await _listed(client, WORKLOAD, Workload) or ()
    names = [one.metadata.name for one in workloads
             if one.metadata.namespace == asked.key.namespace and one.about == about]  # fmt: skip
    found = _of_workloads(names, asked, cluster)
    pods = [pod for pod in cluster.pods if _is_owned(pod, asked)]
    found += [Id(True, pod.group) for pod in pods if pod.group]
    if not found:
        # Pods that are placed one by one are alike: what is true of one is true of all.
        waiting = [pod for pod in pods if not pod.node and not pod.ended] or pods
        found = [Id(False, pod.metadata.key) for pod in waiting[:1]]
    return list(dict.fromkeys(found))


def _of_pod(asked: Asked, pods: Iterable[Pod]) -> Id:
    pod = next((pod for pod in pods if pod.metadata.key == asked.key), None)
    if pod is None:
        raise asked.absent
    return Id(True, pod.group) if pod.group else Id(False, asked.key)


def _of_workloads(names: Sequence[str], asked: Asked, cluster: Cluster) -> list[Id]:
    """The groups that were made of some Workloads; of a tree its root alone."""
    return [
        Id(True, group.metadata.key, isinstance(group, CompositePodGroup))
        for group in cluster.groups
        if group.metadata.namespace == asked.key.namespace
        and group.spec.workload_ref
        and group.spec.workload_ref.workload_name in names
        and not group.spec.parent_composite_pod_group_name
    ]


def _is_owned(pod: Pod, asked: Asked) -> bool:
    meta = pod.metadata
    owners = [(one.kind, one.name) for one in meta.owner_references]
    return meta.namespace == asked.key.namespace and (asked.kind.name, asked.key.name) in owners


async def _existing(client: Client, asked: Asked) -> None:
    things = await _listed(client, asked.kind, Thing) or ()
    if asked.key not in [thing.metadata.key for thing in things]:
        raise asked.absent


async def _listed(
    client: Client, kind: Kind, struct: type[T], excuses: Excuses = (NotFound,)
) -> Sequence[T] | None:
    """All objects of a kind; None where it is switched off, or for another excuse."""
    try:
        found: Sequence[T] = (await client.list(kind, struct)).items
    except excuses:
        return None
    return found
