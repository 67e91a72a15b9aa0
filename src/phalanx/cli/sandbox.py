"""Sandbox: a control plane in this process, in memory, that is nobody's. What is put in, is gone.

`phalanx what-if` has manifests made into groups and pods in one without scheduler and nodes, by the
API server and the Job controller themselves; `phalanx run` runs one that is whole. Nothing of it is
reachable from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

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
from phalanx.controllers.reconcile_loop import PartialObjectMetadata
from phalanx.randomness import SystemRandom
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.sim.simulation import first_error
from phalanx.store.memory import MemoryStore

CLIENT_NAME = "phalanx"
#: Seconds that the Job controller is given to make pods.
POD_CREATION_TIMEOUT = 20.0
#: What shapes pods and groups as they are made, and is copied.
_COPIED_KINDS = (NAMESPACE, PRIORITY_CLASS, LIMIT_RANGE, WORKLOAD)
#: What is not made anew: whoever asks about what is there asks otherwise.
_UNIQUE_KINDS = (JOB, POD, POD_GROUP, COMPOSITE_POD_GROUP, WORKLOAD)
#: What has no controller here that would make its pods.
_UNSUPPORTED_KINDS = (JOB_SET, LEADER_WORKER_SET)


class ManifestRejected(Exception):
    """Somebody's manifests make no sense here; a sentence."""


def create_control_plane(
    nodes: Sequence[SimulatedNode],
    stages: Sequence[StageRule] = (),
    host: ProcessHost | None = None,
) -> ControlPlane:
    """A control plane with everything, on simulated nodes or on those of a host."""
    staff = ComponentConfig(nodes=nodes, stage_rules=stages, host=host)
    return ControlPlane(MemoryStore(), WallClock(), SystemRandom(), staff)


async def expand_manifests(cluster: Client, wanted: Sequence[Manifest]) -> ClusterObjects:
    """The groups and pods that come of manifests in a cluster, which is only looked at."""
    _check_supported(wanted, (*_UNSUPPORTED_KINDS, CRON_JOB))
    await _check_not_existing(cluster, wanted)
    without = ("scheduler", "nodes")
    plane = ControlPlane(
        MemoryStore(), WallClock(), SystemRandom(), ComponentConfig(without=without)
    )
    try:
        async with plane.running():
            own = plane.client(CLIENT_NAME)
            await _copy_dependencies(cluster, own)
            await create_objects(own, wanted)
            await _wait_for_job_pods(own)
            return await _read_workloads(own)
    except ExceptionGroup as group:
        error = first_error(group)
    raise error


async def create_objects(client: Client, wanted: Sequence[Manifest]) -> list[Object]:
    """Create objects in their order; what every cluster has may be there already."""
    _check_supported(wanted, _UNSUPPORTED_KINDS)
    made: list[Object] = []
    for one in wanted:
        try:
            made.append(await client.create(one.kind, one.content))
        except AlreadyExists:
            if one.kind in _UNIQUE_KINDS:
                raise ManifestRejected(
                    f"{one} stands twice in the files; give them different names"
                ) from None
        except ApiError as error:
            raise ManifestRejected(f"{one} is refused: {error}") from None
    return made


def _check_supported(wanted: Sequence[Manifest], without: Sequence[Kind]) -> None:
    for one in wanted:
        if one.kind in without:
            raise ManifestRejected(
                f"nothing here makes the pods of {one}; give its Jobs or PodGroups"
            )


async def _check_not_existing(cluster: Client, wanted: Sequence[Manifest]) -> None:
    for kind in _UNIQUE_KINDS:
        asked = [one for one in wanted if one.kind.name == kind.name]
        there = (
            {thing.metadata.key for thing in await _list_metadata(cluster, kind)} if asked else ()
        )
        for one in asked:
            if one.key in there:
                raise ManifestRejected(
                    f"{one} is in the cluster already; leave -f away to ask about what is there, "
                    f"or give it another name"
                )


async def _copy_dependencies(cluster: Client, own: Client) -> None:
    """Have as much of a cluster in the sandbox as shapes what is made there."""
    for kind in _COPIED_KINDS:
        for found in await _list_objects(cluster, kind):
            meta = found["metadata"]
            kept = {k: meta[k] for k in ("name", "namespace", "labels", "annotations") if k in meta}
            content = {k: v for k, v in found.items() if k not in ("metadata", "status")}
            with suppress(ApiError):
                await own.create(kind, {**content, "metadata": kept})


async def _list_objects(client: Client, kind: Kind) -> Sequence[Object]:
    try:
        return (await client.list(kind)).items
    except (NotFound, Forbidden):
        return ()


async def _list_metadata(client: Client, kind: Kind) -> Sequence[PartialObjectMetadata]:
    try:
        return (await client.list(kind, PartialObjectMetadata)).items
    except (NotFound, Forbidden):
        return ()


async def _wait_for_job_pods(own: Client) -> None:
    """Wait until every Job has the pods that it runs side by side."""
    listing = await own.list(JOB, Job)
    jobs = {job.metadata.key: job for job in listing.items}
    try:
        async with (
            asyncio.timeout(POD_CREATION_TIMEOUT),
            aclosing(own.watch(JOB, Job, since=listing.revision)) as events,
        ):
            while any(map(lacks_pods, jobs.values())):
                event = await anext(events)
                jobs[event.object.metadata.key] = event.object
    except TimeoutError:
        short = next(job for job in jobs.values() if lacks_pods(job))
        raise ManifestRejected(
            f"no pods come of Job {short.metadata.key}; see phalanx run"
        ) from None


def lacks_pods(job: Job) -> bool:
    """Whether the Job controller has yet to make pods of a Job."""
    spec, status = job.spec, job.status
    if spec.suspend or job.is_finished:
        return False
    least = min(spec.parallelism, spec.completions or spec.parallelism)
    return status.active + status.succeeded + status.failed < least


async def _read_workloads(own: Client) -> ClusterObjects:
    spaces = (await own.list(NAMESPACE, PartialObjectMetadata)).items
    groups = (await own.list(POD_GROUP, PodGroup)).items
    trees = (await own.list(COMPOSITE_POD_GROUP, CompositePodGroup)).items
    return ClusterObjects(
        nodes=(), groups=[*groups, *trees], pods=(await own.list(POD, Pod)).items,
        namespaces={space.metadata.name: space.metadata.labels for space in spaces},
    )  # fmt: skip
