"""A control plane in this process, in memory, for manifests that must not reach a cluster.

`phalanx what-if` expands manifests into groups and pods with the API server and the controllers,
without a scheduler and nodes; `phalanx run` runs manifests on a complete control plane. Nothing
outside the process can reach a sandbox, and its objects end with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import AlreadyExists, ApiError, Forbidden, NotFound
from phalanx.api.job_sets import JobSet
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
    RESOURCE_CLAIM_TEMPLATE,
    STORAGE_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.leader_worker_sets import LEADER_READY, NAME_LABEL, LeaderWorkerSet
from phalanx.api.meta import Key, PartialObjectMetadata
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS, struct_of
from phalanx.api.wire import Object
from phalanx.api.workload_sources import convert_to_native
from phalanx.cli.manifests import Manifest
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.clock import WallClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.job_sets.controller import MANAGED_BY_NAMES as JOB_SET_MANAGERS
from phalanx.controllers.job_sets.job_objects import job_name
from phalanx.controllers.job_sets.policies import startable_roles
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule
from phalanx.randomness import SystemRandom
from phalanx.scheduler.devices.state import claims_of_pod
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.simulation import first_error
from phalanx.store.memory import MemoryStore

T = TypeVar("T")
M = TypeVar("M", bound=HasMetadata)

CLIENT_NAME = "phalanx"
#: Seconds without a change of any object after which the controllers create no more pods.
POD_CREATION_TIMEOUT = 20.0
#: Kinds that shape pods, groups and claims when they are created: copied into the sandbox.
_COPIED_KINDS = (
    NAMESPACE, PRIORITY_CLASS, LIMIT_RANGE, WORKLOAD, RESOURCE_CLAIM_TEMPLATE, STORAGE_CLASS,
)  # fmt: skip
#: Kinds whose objects must not exist yet: `phalanx why` is for existing ones.
_UNIQUE_KINDS = (
    JOB, JOB_SET, LEADER_WORKER_SET, POD, POD_GROUP, COMPOSITE_POD_GROUP, WORKLOAD,
)  # fmt: skip


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
    """Return the groups, pods and claims that manifests would create; only reads the cluster."""
    for manifest in manifests:
        if manifest.kind is CRON_JOB:
            raise ManifestRejected(f"{manifest} has no pods until it is due; ask about a Job of it")
    await _check_not_existing(cluster, manifests)
    config = ComponentConfig(without=("scheduler", "nodes"))
    plane = ControlPlane(MemoryStore(), WallClock(), SystemRandom(), config=config)
    try:
        async with plane.running():
            client = plane.client(CLIENT_NAME)
            await _copy_dependencies(cluster, client, {item.key.namespace for item in manifests})
            await create_objects(client, manifests)
            await _wait_for_jobs_of_job_sets(client)
            await _wait_for_job_pods(client)
            await _wait_for_leader_worker_set_pods(client)
            await _wait_for_resource_claims(client)
            return await _read_workloads(client)
    except ExceptionGroup as group:
        error = first_error(group)
    raise error


async def create_objects(client: Client, manifests: Sequence[Manifest]) -> list[Object]:
    """Create objects in order. An object that every cluster has may exist already.

    Groups of our custom resources, and objects that name them, are created as our server has them.
    """
    created: list[Object] = []
    for manifest in manifests:
        try:
            created.append(await client.create(*convert_to_native(*manifest)))
        except AlreadyExists:
            if manifest.kind.name in {kind.name for kind in _UNIQUE_KINDS}:
                raise ManifestRejected(
                    f"the files define {manifest} twice; give the objects different names"
                ) from None
        except ApiError as error:
            raise ManifestRejected(f"{manifest} is invalid: {error}") from None
    return created


async def _check_not_existing(cluster: Client, manifests: Sequence[Manifest]) -> None:
    for kind in _UNIQUE_KINDS:
        candidates = [item for item in manifests if item.kind.name == kind.name]
        listed: list[PartialObjectMetadata] = []
        for served in dict.fromkeys([kind, *(item.kind for item in candidates)]):
            if candidates:
                names = sorted({item.key.namespace for item in candidates})
                listed += await _list_objects(
                    cluster, served, PartialObjectMetadata, namespaces=names
                )
        existing = {item.metadata.key for item in listed}
        for manifest in candidates:
            if manifest.key in existing:
                raise ManifestRejected(
                    f"{manifest} already exists in the cluster; leave out -f to ask about existing "
                    "objects, or give it another name"
                )


async def _copy_dependencies(cluster: Client, sandbox: Client, used: Collection[str]) -> None:
    """Copy the objects that shape pods, groups and claims from the cluster to the sandbox.

    With a credential for some namespaces, the `used` ones are read; those that cannot be listed
    are created, since the cluster would say if one is absent.
    """
    names = sorted(filter(None, used))
    for kind in _COPIED_KINDS:
        for obj in await _list_objects(cluster, kind, dict, namespaces=names):
            meta = obj["metadata"]
            kept = {k: meta[k] for k in ("name", "namespace", "labels", "annotations") if k in meta}
            content = {k: v for k, v in obj.items() if k not in ("metadata", "status")}
            # An object that the sandbox has already, or does not accept, changes nothing.
            with suppress(ApiError):
                await sandbox.create(kind, {**content, "metadata": kept})
        if kind is NAMESPACE and not await _may_list(cluster, kind):
            for name in names:
                with suppress(AlreadyExists):
                    await sandbox.create(kind, {"metadata": {"name": name}})


async def _may_list(client: Client, kind: Kind) -> bool:
    try:
        await client.list(kind, PartialObjectMetadata)
    except Forbidden:
        return False
    return True


async def _list_objects(
    client: Client, kind: Kind, struct: type[T], *, namespaces: Sequence[str] = ()
) -> Sequence[T]:
    """List the objects of a kind that may be read: everywhere, or else in these namespaces."""
    try:
        return (await client.list(kind, struct)).items
    except NotFound:
        return ()
    except Forbidden:
        found: list[T] = []
        for name in namespaces if kind.namespaced else ():
            with suppress(Forbidden):
                found += (await client.list(kind, struct, namespace=name)).items
        return found


async def _wait_until(
    client: Client,
    kind: Kind,
    struct: type[M],
    *,
    find_missing: Callable[[Collection[M]], str],
) -> None:
    """Wait until nothing is missing among the objects of a kind; say what is, at a timeout."""
    listing = await client.list(kind, struct)
    found = {one.metadata.key: one for one in listing.items}
    try:
        async with aclosing(client.watch(kind, struct, since=listing.revision)) as events:
            while find_missing(found.values()):
                async with asyncio.timeout(POD_CREATION_TIMEOUT):
                    event = await anext(events)
                found[event.object.metadata.key] = event.object
    except TimeoutError:
        missing = find_missing(found.values())
        raise ManifestRejected(f"{missing}; phalanx run tells why") from None


async def _wait_for_jobs_of_job_sets(client: Client) -> None:
    """Wait until JobSets have the Jobs that start first; later ones wait for these to run."""
    wanted = {
        Key(one.metadata.namespace, job_name(one, role, index)): one.metadata.key
        for one in (await client.list(JOB_SET, JobSet)).items
        if not one.spec.suspend and one.spec.managed_by in JOB_SET_MANAGERS
        for role in startable_roles(one, ())[0]
        for index in range(role.replicas)
    }

    def find_missing(jobs: Collection[Job]) -> str:
        present = {job.metadata.key for job in jobs}
        missing = next((owner for key, owner in wanted.items() if key not in present), None)
        return f"JobSet {missing} gets no Jobs" if missing else ""

    await _wait_until(client, JOB, Job, find_missing=find_missing)


async def _wait_for_job_pods(client: Client) -> None:
    """Wait until every Job has as many pods as it runs in parallel."""

    def find_missing(jobs: Collection[Job]) -> str:
        waiting = next((job for job in jobs if lacks_pods(job)), None)
        return f"Job {waiting.metadata.key} gets no pods" if waiting else ""

    await _wait_until(client, JOB, Job, find_missing=find_missing)


async def _wait_for_leader_worker_set_pods(client: Client) -> None:
    """Wait until LeaderWorkerSets have their pods; workers may wait for a leader that runs."""
    wanted: dict[Key, int] = {}
    for one in (await client.list(LEADER_WORKER_SET, LeaderWorkerSet)).items:
        is_leader_first = one.spec.startup_policy == LEADER_READY
        size = 1 if is_leader_first else one.spec.leader_worker_template.get("size", 1)
        wanted[one.metadata.key] = one.spec.replicas * size

    def find_missing(pods: Collection[Pod]) -> str:
        counts = Counter(
            Key(pod.metadata.namespace, pod.metadata.labels.get(NAME_LABEL, "")) for pod in pods
        )
        missing = next((key for key, count in wanted.items() if counts[key] < count), None)
        return f"LeaderWorkerSet {missing} gets no pods" if missing else ""

    await _wait_until(client, POD, Pod, find_missing=find_missing)


async def _wait_for_resource_claims(client: Client) -> None:
    """Wait until pods have the claims of their templates; a template may be absent."""
    listing = await client.list(RESOURCE_CLAIM_TEMPLATE, PartialObjectMetadata)
    templates = {one.metadata.key for one in listing.items}

    def find_missing(pods: Collection[Pod]) -> str:
        for pod in pods:
            for entry, claim in claims_of_pod(pod):
                template = Key(pod.metadata.namespace, entry.resource_claim_template_name)
                if claim is None and template in templates:
                    return f"Pod {pod.metadata.key} gets no ResourceClaim of {template}"
        return ""

    await _wait_until(client, POD, Pod, find_missing=find_missing)


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
        devices=[
            one for kind in DEVICE_KINDS for one in (await client.list(kind, struct_of(kind))).items
        ],
        volumes=[
            one for kind in VOLUME_KINDS for one in (await client.list(kind, struct_of(kind))).items
        ],
    )
