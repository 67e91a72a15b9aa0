"""A run of manifests on a cluster that others use too: `phalanx run --context NAME`.

The objects are created as kubectl does, with strict validation, and stay when the run ends. Only
the namespaces of the files are read while they are followed, and only what belongs to the files
counts: objects that they create, objects owned by these, and the members of their groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from phalanx.api.batch import FAILED, Job
from phalanx.api.core import Node, Pod
from phalanx.api.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unauthorized
from phalanx.api.job_sets import COMPLETED, JobSet
from phalanx.api.kinds import (
    DEPLOYMENT,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    NODE,
    POD_GROUP,
    REPLICA_SET,
    STATEFUL_SET,
    Kind,
)
from phalanx.api.meta import Key, ObjectMeta, PartialObjectMetadata
from phalanx.api.scheduling import PodGroup
from phalanx.api.workload_sources import CUSTOM_GROUP
from phalanx.cli.cluster_queries import (
    describe_dropped_field,
    list_dropped_fields,
    list_if_readable,
    read_gangs,
    read_visible_cluster,
)
from phalanx.cli.followed_objects import (
    ENDING_KINDS,
    RUNNABLE_KINDS,
    FollowedState,
    ending_state,
    pod_state,
    read_states,
)
from phalanx.cli.manifest_run import (
    ManifestRun,
    ProgressCallback,
    RunObjects,
    RunObservation,
    has_started,
)
from phalanx.cli.manifests import Manifest
from phalanx.cli.output import echo
from phalanx.cli.run_outcome import RunOutcome
from phalanx.cli.sandbox import ManifestRejected
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.transports import Unreachable
from phalanx.randomness import SystemRandom
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: The kind between an object of the files and its pods, if it is not listed anyway.
_OWNED_KINDS = {DEPLOYMENT: REPLICA_SET, LEADER_WORKER_SET: STATEFUL_SET}
#: Seconds that the first lists of Jobs may take before objects are created without them.
_SYNC_TIMEOUT = 10.0

J = TypeVar("J", Job, JobSet)


@dataclass(slots=True)
class FollowedObject:
    """A submitted object that has pods, and how far it is."""

    kind: Kind
    title: str
    state: FollowedState = FollowedState.STARTING


@dataclass(frozen=True, slots=True)
class SubmittedObject:
    """An object that a run has created, or is creating."""

    kind: Kind
    key: Key


class ClusterRun(ManifestRun):
    """Submits batches of manifests to a cluster and follows what belongs to them."""

    #: Lists of a server that others use too are requested less often.
    poll_interval = 1.0

    def __init__(
        self,
        client: Client,
        batches: Sequence[Sequence[Manifest]],
        timeout: float | None,
        *,
        on_progress: ProgressCallback,
        with_logs: bool,
        submitted: list[SubmittedObject],
    ) -> None:
        super().__init__(
            client,
            batches,
            timeout,
            on_progress=on_progress,
            has_processes=False,
            with_logs=with_logs,
        )
        #: The objects that exist now, or may exist; the caller knows them if the run ends early.
        self._submitted = submitted
        self._uids: set[str] = set()
        self._dropped: Sequence[tuple[Manifest, str]] = ()
        #: The submitted objects that have pods, with how far each is, by uid.
        self._followed: dict[str, FollowedObject] = {}
        #: The Jobs and JobSets of the namespaces, and those of the run that were deleted, as they
        #: were last.
        self._jobs: list[Informer[Job]] = []
        self._job_sets: list[Informer[JobSet]] = []
        self._deleted: dict[str, Job | JobSet] = {}
        self._last_read: RunObjects | None = None
        self._is_unreachable = False

    async def run(self) -> RunOutcome:
        """Submit and observe. Jobs are watched: a TTL may delete them right after their end."""
        manifests = [one for batch in self._batches for one in batch if one.kind.namespaced]
        for space in sorted({one.key.namespace for one in manifests}):
            if JOB in self._kinds or JOB_SET in self._kinds:
                self._jobs.append(self._follow(JOB, Job, space))
            if JOB_SET in self._kinds:
                self._job_sets.append(self._follow(JOB_SET, JobSet, space))
        watches = [asyncio.create_task(informer.run()) for informer in self._informers()]
        try:
            return await super().run()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    def _follow(self, kind: Kind, struct: type[J], namespace: str) -> Informer[J]:
        informer = Informer(
            self._client, kind, struct, random=SystemRandom(), optional=True, namespace=namespace
        )
        informer.cache.subscribe(self._on_changed)
        return informer

    def _informers(self) -> list[Informer[Job] | Informer[JobSet]]:
        return [*self._jobs, *self._job_sets]

    def _on_changed(self, old: Job | JobSet | None, new: Job | JobSet | None) -> None:
        if new is None and old is not None and old.metadata.uid in self._uids:
            self._deleted[old.metadata.uid] = old

    async def _prepare(self) -> None:
        """Refuse files without pods, and warn about fields that the server drops."""
        manifests = [manifest for batch in self._batches for manifest in batch]
        if self._kinds.isdisjoint(RUNNABLE_KINDS):
            raise ManifestRejected("the files contain nothing to run: no Job or Pod")
        for kind, space in dict.fromkeys((one.kind, one.key.namespace) for one in manifests):
            if kind in RUNNABLE_KINDS:
                await self._require_readable(kind, space)
        self._dropped = await list_dropped_fields(self._client, manifests)
        for manifest, field in self._dropped:
            echo(f"warning: {describe_dropped_field(manifest, field)}", err=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_TIMEOUT):
                for informer in self._informers():
                    await informer.synced.wait()

    async def _submit(self, batch: Sequence[Manifest]) -> None:
        """Create objects in order; an object that exists is left as it is, unless it has pods."""
        for manifest in batch:
            entry = SubmittedObject(manifest.kind, manifest.key)
            self._submitted.append(entry)
            try:
                created = await self._client.create(
                    manifest.kind, self._without_dropped(manifest), strict=True
                )
            except AlreadyExists:
                self._submitted.remove(entry)
                if manifest.kind in RUNNABLE_KINDS or "PodGroup" in manifest.kind.name:
                    raise ManifestRejected(
                        f"{manifest} exists already; delete it or give the new one another name"
                    ) from None
                echo(f"{manifest} exists already and is left as it is", err=True)
            except Unauthorized:
                self._submitted.remove(entry)
                raise
            except ApiError as error:
                self._submitted.remove(entry)
                raise ManifestRejected(_describe_rejection(manifest, error)) from None
            else:
                meta = created["metadata"]
                self._uids.add(meta["uid"])
                if manifest.kind in RUNNABLE_KINDS:
                    title = f"{manifest.kind.name}/{meta['name']}"
                    self._followed[meta["uid"]] = FollowedObject(manifest.kind, title)
                self._submitted[-1] = replace(entry, key=Key(entry.key.namespace, meta["name"]))

    def _without_dropped(self, manifest: Manifest) -> dict[str, object]:
        """Return the object without fields that were warned about: strict servers reject them."""
        fields = {field for one, field in self._dropped if one is manifest}
        if not fields:
            return manifest.content
        spec = {k: v for k, v in manifest.content["spec"].items() if k not in fields}
        return {**manifest.content, "spec": spec}

    async def _require_readable(self, kind: Kind, namespace: str) -> None:
        """Refuse to begin what could not be followed to its end."""
        try:
            await self._client.list(kind, PartialObjectMetadata, namespace=namespace)
        except Forbidden as error:
            text = f"a {kind.name} of this run could not be followed: {error}; ask for that right"
            raise ManifestRejected(text) from None
        except NotFound:
            return  # The submission says so.

    async def _read(self) -> RunObjects:
        """Read the namespaces of the files; while that fails for a time, nothing has changed."""
        try:
            self._last_read = await self._read_namespaces()
        except (ApiError, Unreachable) as error:
            is_passing = isinstance(error, Unreachable) or error.code == 429 or error.code >= 500
            if self._last_read is None or not is_passing:
                raise
            if not self._is_unreachable:
                echo(f"warning: {error}; the run goes on, trying again", err=True)
            self._is_unreachable = True
            return self._last_read
        self._is_unreachable = False
        return self._last_read

    async def _read_namespaces(self) -> RunObjects:
        """Read the namespaces of the files; keep what belongs to the files."""
        spaces = sorted({one.key.namespace for one in self._submitted if one.kind.namespaced})
        pods: list[Pod] = []
        groups: list[Group] = []
        owned: list[PartialObjectMetadata] = []
        for space in spaces:
            found, found_groups = await read_gangs(self._client, space)
            pods += found
            groups += found_groups
            for kind in self._kinds & _OWNED_KINDS.keys():
                owned += await list_if_readable(
                    self._client, _OWNED_KINDS[kind], PartialObjectMetadata, namespace=space
                )
        states = await read_states(self._client, self._kinds - {JOB_SET}, spaces)
        states |= {pod.metadata.uid: pod_state(pod) for pod in pods}
        jobs = [one for informer in self._jobs for one in informer.cache.values()]
        jobs += [one for one in self._list_ended() if isinstance(one, Job)]
        states |= {one.metadata.uid: ending_state(one) for one in jobs}
        states |= {one.metadata.uid: ending_state(one) for one in self._list_job_sets()}
        self._update_followed(states)
        cluster, jobs = select_submitted(
            ClusterObjects(nodes=(), groups=groups, pods=pods),
            jobs,
            self._uids,
            owned=[one.metadata for one in owned],
        )
        return RunObjects(cluster, jobs, [one.state for one in self._followed.values()])

    def _list_job_sets(self) -> list[JobSet]:
        """Return the JobSets of the namespaces; what a TTL has deleted is as it was at its end."""
        present = [one for informer in self._job_sets for one in informer.cache.values()]
        return present + [one for one in self._list_ended() if isinstance(one, JobSet)]

    def _list_ended(self) -> list[Job | JobSet]:
        """Return the objects of the files that were deleted after their end."""
        return [one for one in self._deleted.values() if ending_state(one) is FollowedState.ENDED]

    def _update_followed(self, states: Mapping[str, FollowedState]) -> None:
        """Take over how far objects are; one that is missing was deleted, or is not watched yet."""
        for uid, followed in self._followed.items():
            if state := states.get(uid):
                followed.state = state
            elif followed.state is not FollowedState.ENDED:
                is_deleted = followed.kind not in ENDING_KINDS or uid in self._deleted
                followed.state = FollowedState.GONE if is_deleted else followed.state

    async def _read_for_diagnosis(self, cluster: ClusterObjects) -> ClusterObjects | None:
        space = next((one.key.namespace for one in self._submitted if one.kind.namespaced), "")
        whole, visibility = await read_visible_cluster(self._client, space)
        return whole if visibility.is_whole else None

    def _is_complete(self, seen: RunObservation) -> bool:
        """Whether all Jobs have ended, or wait for their user, and all other gangs run."""
        over = {FollowedState.ENDED, FollowedState.GONE}
        return (
            not self._batches
            and all(
                one.state in over
                or (one.state is FollowedState.RUNNING and one.kind not in ENDING_KINDS)
                for one in self._followed.values()
            )
            and all(map(has_started, seen.gangs))
        )

    def _completed_owners(self, seen: RunObjects) -> list[tuple[str, str]]:
        """Return the namespaces and titles of complete Jobs and JobSets."""
        owners = super()._completed_owners(seen)
        return owners + [
            (one.metadata.namespace, f"JobSet/{one.metadata.name}")
            for one in self._list_job_sets()
            if one.true_condition(COMPLETED)
        ]

    def _may_change(self, seen: RunObservation) -> bool:
        """Other workloads of a cluster end at any time: waiting is always worth it."""
        return True

    async def _create_outcome(
        self,
        seen: RunObservation,
        seconds: float,
        *,
        timed_out: bool = False,
        is_interrupted: bool = False,
    ) -> RunOutcome:
        """Add the nodes, whose domains the summary names, if the credential may read them."""
        nodes = await list_if_readable(self._client, NODE, Node)
        seen = replace(seen, cluster=replace(seen.cluster, nodes=nodes))
        return await super()._create_outcome(
            seen, seconds, timed_out=timed_out, is_interrupted=is_interrupted
        )

    async def _failed_jobs(self, seen: RunObservation) -> dict[str, str]:
        """The Jobs that failed, are suspended or got no pods, and objects that were deleted."""
        reasons = await super()._failed_jobs(seen)
        for job_set in self._list_job_sets():
            failure = job_set.true_condition(FAILED)
            if failure and job_set.metadata.uid in self._uids:
                title = f"JobSet/{job_set.metadata.name}"
                reasons[title] = f"failed, {failure.reason}: {failure.message}"
        for one in self._followed.values():
            if one.state is FollowedState.GONE:
                reasons[one.title] = "was deleted while it was followed"
        return reasons


def select_submitted(
    cluster: ClusterObjects,
    jobs: Sequence[Job],
    uids: Iterable[str],
    *,
    owned: Iterable[ObjectMeta] = (),
) -> tuple[ClusterObjects, list[Job]]:
    """Return what belongs to the objects with these uids: by owners and by membership in groups.

    Example: the pods of a Job in the files, the PodGroup that they name, and all its members.
    """
    known = set(uids)
    groups = {one.metadata.key: one for one in cluster.groups if isinstance(one, PodGroup)}
    metas = [*(one.metadata for one in (*jobs, *cluster.groups, *cluster.pods)), *owned]
    while True:
        size = len(known)
        for meta in metas:
            if any(owner.uid in known for owner in meta.owner_references):
                known.add(meta.uid)
        for pod in cluster.pods:
            group = groups.get(pod.group) if pod.group is not None else None
            if group is not None and not {pod.metadata.uid, group.metadata.uid}.isdisjoint(known):
                known |= {pod.metadata.uid, group.metadata.uid}
        if len(known) == size:
            break
    selected = replace(
        cluster,
        groups=[one for one in cluster.groups if one.metadata.uid in known],
        pods=[one for one in cluster.pods if one.metadata.uid in known],
    )
    return selected, [job for job in jobs if job.metadata.uid in known]


def deletion_commands(submitted: Iterable[SubmittedObject], *server: str) -> list[str]:
    """Return the kubectl commands that delete objects, one for each namespace."""
    by_space: dict[str, list[str]] = {}
    for one in submitted:
        resource = f"{one.kind.plural}.{one.kind.group}" if one.kind.group else one.kind.plural
        space = one.key.namespace if one.kind.namespaced else ""
        if one.key.name:
            by_space.setdefault(space, []).append(f"{resource}/{one.key.name}")
    return [
        shlex.join(["kubectl", *server, *(["-n", space] if space else []), "delete", *names])
        for space, names in by_space.items()
    ]


def _describe_rejection(manifest: Manifest, error: ApiError) -> str:
    if isinstance(error, NotFound) and "namespaces" not in str(error):
        text = f"the API server does not serve {manifest.kind.name} of {manifest.kind.api_version}"
        if manifest.kind.group == POD_GROUP.group:
            text += f"; such a server has groups in {CUSTOM_GROUP}/v1 (phalanx install)"
        return text
    if isinstance(error, Forbidden):
        return f"{manifest} is not allowed: {error}; ask for that right"
    return f"{manifest} is rejected: {error}"
