"""Reads the objects of a cluster through the API, for the commands that answer questions about it.

    read_cluster          what the scheduler reads: nodes, pods, groups, Services, budgets, devices
    read_visible_cluster  the same, or the part that the credential may read: one namespace
    read_library_cluster  the same as a `phalanx.library.Cluster`, with the owners of the groups

Only lists objects; the library and the scheduler decide. A part of a cluster is no basis for a
decision: nodes may be missing, and pods of other namespaces that use them. Commands show what the
scheduler has written instead, and say so (`Visibility.note`).
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from phalanx.api.batch import Job
from phalanx.api.core import Node, Pod, Service
from phalanx.api.errors import ApiError, Forbidden, NotFound
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    PRIORITY_CLASS,
    SERVICE,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key, PartialObjectMetadata, Ref
from phalanx.api.other_kinds import PodDisruptionBudget, PriorityClass
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS, struct_of
from phalanx.api.workload_sources import (
    COMPAT_NAMES,
    GANG,
    POLICY_ANNOTATION,
    resolve_priority,
)
from phalanx.cli.manifests import Manifest
from phalanx.client.client import Client
from phalanx.client.workload_sources import discover_sources, list_groups
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.library import Cluster, parse_subject
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

T = TypeVar("T")
IgnoredErrors = tuple[type[ApiError], ...]

#: The word for a gang as a kind; the name may be that of its owner.
GANG_WORD = "gang"

#: Errors for which an optional kind counts as empty.
_UNAVAILABLE: IgnoredErrors = (NotFound, Forbidden)


@dataclass(frozen=True, slots=True)
class SubjectQuery:
    """A kind and a name, as on the command line."""

    kind: Kind
    key: Key

    @property
    def ref(self) -> Ref:
        """Return the object that the query names."""
        return Ref(self.kind.name, *self.key)

    @property
    def may_have_several(self) -> bool:
        """Return whether several groups may belong to the object."""
        return self.kind not in (POD, POD_GROUP, COMPOSITE_POD_GROUP)


def parse_subject_argument(subject: str) -> tuple[Kind, str]:
    """Split an argument such as `podgroup/train` into kind and name, or fail with a usage error.

    A name alone is that of a gang: `train` is `gang/train`. The part of `leaderworkerset/llm[0]`,
    as tables have it, is left out: the owner is explained.
    """
    text = subject.partition("[")[0]
    try:
        return parse_subject(text if "/" in text else f"{GANG_WORD}/{text}")
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def name_subject(cluster: Cluster, subject: SubjectQuery, refs: Sequence[Ref]) -> Ref | None:
    """Return the object that an answer is about, if the subject stands for one group.

    A gang that was named by its owner (`gang/train` of the Job `train`) is the owner's.
    """
    if len(refs) != 1:
        return None
    if subject.may_have_several or subject.ref == refs[0]:
        return subject.ref
    groups = [group for group in cluster.objects.groups if group_ref(group) == refs[0]]
    owner = groups[0].metadata.controller if groups else None
    return Ref(owner.kind, refs[0].namespace, owner.name) if owner else refs[0]


@contextlib.contextmanager
def report_scheduler_bugs() -> Iterator[None]:
    """Turn an unexpected exception of the scheduling cycle into an error of one sentence."""
    try:
        yield
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise click.ClickException(
            f"the scheduling cycle failed with {type(error).__name__} ({error}) at "
            f"{Path(frame.filename).name}:{frame.lineno}; "
            "this is a bug: report it with the support bundle of phalanx debug"
        ) from error


@dataclass(frozen=True, slots=True)
class Visibility:
    """The part of a cluster that was read: one namespace or all (""), with its nodes or without."""

    namespace: str = ""
    has_nodes: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether all namespaces were read, and the nodes."""
        return not self.namespace and self.has_nodes

    @property
    def note(self) -> str:
        """Say what is not shown; "" if all is."""
        if self.is_whole:
            return ""
        kinds = "pods of other namespaces" if self.has_nodes else "other namespaces or nodes"
        return f"only namespace {self.namespace} is shown: the credential may not read {kinds}"


async def read_cluster(client: Client) -> ClusterObjects:
    """List what the scheduler reads. Without the PodGroup API every pod is on its own."""
    nodes = (await client.list(NODE, Node)).items
    return await _read_objects(client, nodes)


async def read_visible_cluster(client: Client, namespace: str) -> tuple[ClusterObjects, Visibility]:
    """List what the scheduler reads; in one namespace if the credential may not read the others.

    Raises Forbidden if the pods of the namespace may not be read either.
    """
    try:
        return await read_cluster(client), Visibility()
    except Forbidden:
        nodes = await _list_if_served(client, NODE, Node, ignored=(Forbidden,))
        objects = await _read_objects(client, nodes or (), namespace)
        return objects, Visibility(namespace, has_nodes=nodes is not None)


async def _read_objects(
    client: Client, nodes: Sequence[Node], namespace: str = ""
) -> ClusterObjects:
    """List everything except nodes. Kinds that may not be read count as empty, except groups."""
    pods, groups = await read_gangs(client, namespace)

    async def read(kind: Kind, struct: type[T]) -> Sequence[T]:
        scope = namespace if kind.namespaced else ""
        return await list_if_readable(client, kind, struct, namespace=scope)

    namespaces = await read(NAMESPACE, PartialObjectMetadata)
    return ClusterObjects(
        nodes=nodes,
        groups=groups,
        pods=pods,
        services=await read(SERVICE, Service),
        namespaces={one.metadata.name: one.metadata.labels for one in namespaces},
        budgets=await read(POD_DISRUPTION_BUDGET, PodDisruptionBudget),
        devices=[one for kind in DEVICE_KINDS for one in await read(kind, struct_of(kind))],
        volumes=[one for kind in VOLUME_KINDS for one in await read(kind, struct_of(kind))],
        # Deadlines and expected run times, by which starts are foreseen.
        jobs=await read(JOB, Job),
    )


async def read_gangs(client: Client, namespace: str = "") -> tuple[Sequence[Pod], list[Group]]:
    """List the pods and groups of one namespace, or of all, whatever kinds the server has."""
    sources = await discover_sources(client, COMPAT_NAMES)
    pods: Sequence[Pod] = (await client.list(POD, Pod, namespace=namespace)).items
    pod_groups: Sequence[PodGroup] | None = await list_groups(
        client, sources, POD_GROUP, namespace=namespace
    )
    if pod_groups is None:
        return [pod.without_group for pod in pods], []
    composites: Sequence[CompositePodGroup] = (
        await list_groups(client, sources, COMPOSITE_POD_GROUP, namespace=namespace) or ()
    )
    if sources.need_conversion:
        pods = [sources.link_pod(pod) for pod in pods]
        members: dict[Key | None, list[Pod]] = {}
        for pod in pods:
            members.setdefault(pod.group, []).append(pod)
        found = await list_if_readable(client, PRIORITY_CLASS, PriorityClass)
        classes = {one.metadata.name: one for one in found}
        pod_groups = [
            resolve_priority(group, members.get(group.metadata.key, ()), classes)
            for group in pod_groups
        ]
        composites = [resolve_priority(group, (), classes) for group in composites]
    return pods, [*pod_groups, *composites]


async def read_library_cluster(
    client: Client,
    namespace: str,
    subject: Kind | None = None,
    *,
    profiles: Profiles = DEFAULT_PROFILES,
    now: float = 0.0,
) -> tuple[Cluster, Visibility]:
    """Read a cluster for questions about objects of a kind, which may own groups."""
    workloads: Sequence[Workload] = ()
    others: Sequence[PartialObjectMetadata] = ()
    objects, visibility = await read_visible_cluster(client, namespace)
    if subject is not None and subject not in (POD, POD_GROUP, COMPOSITE_POD_GROUP):
        sources, scope = await discover_sources(client), visibility.namespace
        workloads = await list_groups(client, sources, WORKLOAD, namespace=scope) or ()
        others = (
            await _list_if_served(client, subject, PartialObjectMetadata, namespace=scope) or ()
        )
    cluster = Cluster(
        objects,
        workloads=workloads,
        others=frozenset(Ref(subject.name, *one.metadata.key) for one in others if subject),
        profiles=profiles,
        solver=HighsSolver(),
        now=now,
    )
    return cluster, visibility


async def find_dropped_fields(client: Client, manifests: Sequence[Manifest]) -> list[str]:
    """Return warnings about Jobs whose scheduling fields the API server drops without an error."""
    found = await list_dropped_fields(client, manifests)
    return [describe_dropped_field(job, field) for job, field in found]


async def list_dropped_fields(
    client: Client, manifests: Sequence[Manifest]
) -> list[tuple[Manifest, str]]:
    """Return the Jobs with scheduling fields that the API server drops, each with the field."""
    fields = [
        (one, field)
        for one in manifests
        for field in ("scheduling", "gangPolicy")
        if one.kind is JOB and (one.content.get("spec") or {}).get(field)
    ]
    sources = await discover_sources(client) if fields else None
    if sources is None or not sources.is_foreign:
        return []
    # A server with the workload APIs knows `scheduling`, but `gangPolicy` is ours.
    known = set() if sources.drops_scheduling_group else await _job_fields(client)
    return [(one, field) for one, field in fields if field not in known]


def describe_dropped_field(job: Manifest, field: str) -> str:
    """Say what it means that an API server drops a field of a Job, and what to do."""
    return (
        f"Job {job.key.name}: the API server drops spec.{field}, so that its pods are no gang "
        f"there; add the annotation {POLICY_ANNOTATION}: {GANG}"
    )


class _FieldsSchema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}


class _SchemaComponents(msgspec.Struct):
    schemas: dict[str, _FieldsSchema] = {}


class _OpenApiDocument(msgspec.Struct):
    components: _SchemaComponents


async def _job_fields(client: Client) -> set[str]:
    """Return the fields of a Job's spec that the server knows, by its OpenAPI document."""
    try:
        text = await client.get_raw(f"/openapi/v3/apis/{JOB.api_version}")
        schemas = msgspec.json.decode(text, type=_OpenApiDocument).components.schemas
    except (Forbidden, NotFound, msgspec.DecodeError):
        return {"scheduling"}
    return {
        field
        for name, schema in schemas.items()
        if name.endswith(".batch.v1.JobSpec")
        for field in schema.properties
    }


async def list_if_readable(
    client: Client, kind: Kind, struct: type[T], *, namespace: str = ""
) -> Sequence[T]:
    """All objects of a kind; none if the API does not serve it or the credential may not read."""
    found = await _list_if_served(client, kind, struct, ignored=_UNAVAILABLE, namespace=namespace)
    return found or ()


async def _list_if_served(
    client: Client,
    kind: Kind,
    struct: type[T],
    *,
    ignored: IgnoredErrors = (NotFound,),
    namespace: str = "",
) -> Sequence[T] | None:
    """All objects of a kind; None if the API does not serve it, or for another ignored error."""
    try:
        found: Sequence[T] = (await client.list(kind, struct, namespace=namespace)).items
    except ignored:
        return None
    return found
