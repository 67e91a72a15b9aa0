"""A control plane in this process, in memory, for manifests that must not reach a cluster.

`phalanx what-if` expands manifests into groups and pods with the API server and the Job controller
alone; `phalanx run` runs manifests on a complete control plane. Nothing outside the process can
reach a sandbox, and its objects end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import AlreadyExists, ApiError, Forbidden, NotFound
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CRON_JOB,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    LIMIT_RANGE,
    NAMESPACE,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import PartialObjectMetadata
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.wire import Object
from phalanx.cli.manifests import Manifest
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule
from phalanx.randomness import SystemRandom
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.simulation import first_error
from phalanx.store.memory import MemoryStore

T = TypeVar("T")

CLIENT_NAME = "phalanx"
#: Seconds without a change of any Job after which its controller creates no more pods.
POD_CREATION_TIMEOUT = 20.0
#: Kinds that shape pods and groups when they are created: copied into the sandbox.
_COPIED_KINDS = (NAMESPACE, PRIORITY_CLASS, LIMIT_RANGE, WORKLOAD)
#: Kinds whose objects must not exist yet: `phalanx why` is for existing ones.
_UNIQUE_KINDS = (JOB, POD, POD_GROUP, COMPOSITE_POD_GROUP, WORKLOAD)
#: Kinds whose pods a forecast cannot expand: their controllers create objects in several steps.
_NOT_EXPANDED_KINDS = (CRON_JOB, JOB_SET, LEADER_WORKER_SET)


class ManifestRejected(Exception):
    """Manifests that a sandbox cannot run; the message is one sentence."""


def create_control_plane(
    nodes: Sequence[SimulatedNode],
    stages: Sequence[StageRule] = (),
    host: ProcessHost | None = None,
    *,
    profiles: Profiles = DEFAULT_PROFILES,
) -> ControlPlane:
    """Create a complete control plane with simulated nodes, or with process nodes of a host."""
    config = ComponentConfig(nodes=nodes, stage_rules=stages, host=host, profiles=profiles)
    return ControlPlane(MemoryStore(), WallClock(), SystemRandom(), config=config)


async def expand_manifests(cluster: Client, manifests: Sequence[Manifest]) -> ClusterObjects:
    """Return the groups and pods that the manifests would create in a cluster; only reads it."""
    _check_expandable(manifests)
    await _check_not_existing(cluster, manifests)
    config = ComponentConfig(without=("scheduler", "nodes"))
    plane = ControlPlane(MemoryStore(), WallClock(), SystemRandom(), config=config)
    try:
        async with plane.running():
            client = plane.client(CLIENT_NAME)
            await _copy_dependencies(cluster, client)
            await create_objects(client, manifests)
            await _wait_for_job_pods(client)
            return await _read_workloads(client)
    except ExceptionGroup as group:
        error = first_error(group)
    raise error


async def create_objects(client: Client, manifests: Sequence[Manifest]) -> list[Object]:
    """Create objects in order. An object that every cluster has may exist already."""
    created: list[Object] = []
    for manifest in manifests:
        try:
            created.append(await client.create(manifest.kind, manifest.content))
        except AlreadyExists:
            if manifest.kind in _UNIQUE_KINDS:
                raise ManifestRejected(
                    f"the files define {manifest} twice; give the objects different names"
                ) from None
        except ApiError as error:
            raise ManifestRejected(f"{manifest} is invalid: {error}") from None
    return created


def _check_expandable(manifests: Sequence[Manifest]) -> None:
    for manifest in manifests:
        if manifest.kind in _NOT_EXPANDED_KINDS:
            raise ManifestRejected(
                f"what-if does not expand {manifest} yet; try it with `phalanx run`, or ask about "
                "its Jobs or PodGroups"
            )


async def _check_not_existing(cluster: Client, manifests: Sequence[Manifest]) -> None:
    for kind in _UNIQUE_KINDS:
        candidates = [item for item in manifests if item.kind.name == kind.name]
        listed = await _list_objects(cluster, kind, PartialObjectMetadata) if candidates else ()
        existing = {item.metadata.key for item in listed}
        for manifest in candidates:
            if manifest.key in existing:
                raise ManifestRejected(
                    f"{manifest} already exists in the cluster; leave out -f to ask about existing "
                    "objects, or give it another name"
                )


async def _copy_dependencies(cluster: Client, sandbox: Client) -> None:
    """Copy the objects that shape pods and groups from the cluster to the sandbox."""
    for kind in _COPIED_KINDS:
        for obj in await _list_objects(cluster, kind, dict):
            meta = obj["metadata"]
            kept = {k: meta[k] for k in ("name", "namespace", "labels", "annotations") if k in meta}
            content = {k: v for k, v in obj.items() if k not in ("metadata", "status")}
            # An object that the sandbox has already, or does not accept, changes nothing.
            with suppress(ApiError):
                await sandbox.create(kind, {**content, "metadata": kept})


async def _list_objects(client: Client, kind: Kind, struct: type[T]) -> Sequence[T]:
    try:
        return (await client.list(kind, struct)).items
    except (NotFound, Forbidden):
        return ()


async def _wait_for_job_pods(client: Client) -> None:
    """Wait until every Job has as many pods as it runs in parallel."""
    listing = await client.list(JOB, Job)
    jobs = {job.metadata.key: job for job in listing.items}
    try:
        async with aclosing(client.watch(JOB, Job, since=listing.revision)) as events:
            while any(map(lacks_pods, jobs.values())):
                async with asyncio.timeout(POD_CREATION_TIMEOUT):
                    event = await anext(events)
                jobs[event.object.metadata.key] = event.object
    except TimeoutError:
        waiting = next(job for job in jobs.values() if lacks_pods(job))
        raise ManifestRejected(
            f"Job {waiting.metadata.key} gets no pods; phalanx run tells why"
        ) from None


def lacks_pods(job: Job) -> bool:
    """Return whether the Job controller has yet to create pods of a Job."""
    spec, status = job.spec, job.status
    if spec.suspend or job.is_finished:
        return False
    needed = min(spec.parallelism, spec.completions or spec.parallelism)
    return status.active + status.succeeded + status.failed < needed


async def _read_workloads(client: Client) -> ClusterObjects:
    namespaces = (await client.list(NAMESPACE, PartialObjectMetadata)).items
    groups = (await client.list(POD_GROUP, PodGroup)).items
    composites = (await client.list(COMPOSITE_POD_GROUP, CompositePodGroup)).items
    return ClusterObjects(
        nodes=(),
        groups=[*groups, *composites],
        pods=(await client.list(POD, Pod)).items,
        namespaces={namespace.metadata.name: namespace.metadata.labels for namespace in namespaces},
    )
