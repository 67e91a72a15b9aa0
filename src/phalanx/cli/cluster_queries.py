"""What `phalanx why` can be asked about: words for kinds, and the pods and groups behind a name.

A pod of a group is asked about as its group; a Job, or whatever else a Workload is about, as the
groups that were made for it. Looks at the cluster through the API and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click

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
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import PartialObjectMetadata
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.scheduler.queue.queued_entity import EntityId

T = TypeVar("T")
IgnoredErrors = tuple[type[ApiError], ...]

#: Why a kind that can be done without is not listed.
_UNAVAILABLE: IgnoredErrors = (NotFound, Forbidden)

#: What can be asked about, and more words for it than its own names.
QUERYABLE_KINDS: dict[Kind, tuple[str, ...]] = {
    POD_GROUP: ("pg", "gang"), COMPOSITE_POD_GROUP: ("cpg", "tree"), POD: (), JOB: (),
    WORKLOAD: ("wl",), JOB_SET: (), LEADER_WORKER_SET: (),
}  # fmt: skip
_KIND_ALIASES = {
    word: kind
    for kind, words in QUERYABLE_KINDS.items()
    for word in (kind.name.lower(), kind.plural, *kind.short_names, *words)
}


@dataclass(frozen=True, slots=True)
class SubjectQuery:
    """A kind and a name, as on the command line."""

    kind: Kind
    key: Key

    @property
    def may_have_several(self) -> bool:
        """Whether there may be several groups behind it."""
        return self.kind not in (POD, POD_GROUP, COMPOSITE_POD_GROUP)

    @property
    def not_found(self) -> NotFound:
        """That there is no such thing, as an error."""
        name = {POD_GROUP: "pod group", POD: "pod"}.get(self.kind, self.kind.name)
        return NotFound(f'there is no {name} "{self.key.name}" in namespace "{self.key.namespace}"')


def parse_subject(what: str) -> tuple[Kind, str]:
    """`podgroup/train` in its parts, or why that is wrong."""
    word, slash, name = what.partition("/")
    kind = _KIND_ALIASES.get(word.lower())
    if not slash or not name or kind is None:
        words = ", ".join(f"{kind.name.lower()}/NAME" for kind in QUERYABLE_KINDS)
        raise click.UsageError(f"{what!r} is none of {words}")
    return kind, name


async def read_cluster(client: Client) -> ClusterObjects:
    """The cluster as it is. Without groups, where they are switched off, every pod is alone."""
    pods: Sequence[Pod] = (await client.list(POD, Pod)).items
    groups: list[Group] = []
    known = await _list_if_served(client, POD_GROUP, PodGroup)
    if known is None:
        pods = [pod.without_group for pod in pods]
    else:
        trees = await _list_if_served(client, COMPOSITE_POD_GROUP, CompositePodGroup)
        groups = [*known, *(trees or ())]
    spaces = (await client.list(NAMESPACE, PartialObjectMetadata)).items
    return ClusterObjects(
        nodes=(await client.list(NODE, Node)).items,
        groups=groups,
        pods=pods,
        services=(await client.list(SERVICE, Service)).items,
        namespaces={space.metadata.name: space.metadata.labels for space in spaces},
        budgets=await _list_if_served(
            client, POD_DISRUPTION_BUDGET, PodDisruptionBudget, _UNAVAILABLE
        )
        or (),
    )


async def find_subjects(
    client: Client, asked: SubjectQuery, cluster: ClusterObjects
) -> list[EntityId]:
    """The pods and groups that it is about; an error if it is not there."""
    match asked.kind:
        case kind if kind is POD:
            return [_pod_subject(asked, cluster.pods)]
        case kind if kind in (POD_GROUP, COMPOSITE_POD_GROUP):
            found = EntityId(True, asked.key, kind is COMPOSITE_POD_GROUP)
            if found.name not in map(group_ref, cluster.groups):
                raise asked.not_found
            return [found]
        case kind if kind is WORKLOAD:
            await _check_exists(client, asked)
            return _workload_groups([asked.key.name], asked, cluster)
        case _:
            return await _owned_groups(client, asked, cluster)


async def _owned_groups(
    client: Client, asked: SubjectQuery, cluster: ClusterObjects
) -> list[EntityId]:
    """The groups of the Workloads that are about an object, and those that its pods are in."""
    await _check_exists(client, asked)
    about = (asked.kind.group, asked.kind.name, asked.key.name)
    workloads = await _list_if_served(client, WORKLOAD, Workload) or ()
    names = [
        one.metadata.name
        for one in workloads
        if one.metadata.namespace == asked.key.namespace and one.controller_identity == about
    ]
    found = _workload_groups(names, asked, cluster)
    pods = [pod for pod in cluster.pods if _is_owned(pod, asked)]
    found += [EntityId(True, pod.group) for pod in pods if pod.group]
    if not found:
        # Pods that are placed one by one are alike: what is true of one is true of all.
        waiting = [pod for pod in pods if not pod.occupied_node and not pod.is_terminal] or pods
        found = [EntityId(False, pod.metadata.key) for pod in waiting[:1]]
    return list(dict.fromkeys(found))


def _pod_subject(asked: SubjectQuery, pods: Iterable[Pod]) -> EntityId:
    pod = next((pod for pod in pods if pod.metadata.key == asked.key), None)
    if pod is None:
        raise asked.not_found
    return EntityId(True, pod.group) if pod.group else EntityId(False, asked.key)


def _workload_groups(
    names: Sequence[str], asked: SubjectQuery, cluster: ClusterObjects
) -> list[EntityId]:
    """The groups that were made of some Workloads; of a tree its root alone."""
    return [
        EntityId(True, group.metadata.key, isinstance(group, CompositePodGroup))
        for group in cluster.groups
        if group.metadata.namespace == asked.key.namespace
        and group.spec.workload_ref
        and group.spec.workload_ref.workload_name in names
        and not group.spec.parent_composite_pod_group_name
    ]


def _is_owned(pod: Pod, asked: SubjectQuery) -> bool:
    meta = pod.metadata
    owners = [(one.kind, one.name) for one in meta.owner_references]
    return meta.namespace == asked.key.namespace and (asked.kind.name, asked.key.name) in owners


async def _check_exists(client: Client, asked: SubjectQuery) -> None:
    things = await _list_if_served(client, asked.kind, PartialObjectMetadata) or ()
    if asked.key not in [thing.metadata.key for thing in things]:
        raise asked.not_found


async def _list_if_served(
    client: Client, kind: Kind, struct: type[T], ignored: IgnoredErrors = (NotFound,)
) -> Sequence[T] | None:
    """All objects of a kind; None where it is switched off, or for another excuse."""
    try:
        found: Sequence[T] = (await client.list(kind, struct)).items
    except ignored:
        return None
    return found
