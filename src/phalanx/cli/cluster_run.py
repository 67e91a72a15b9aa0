"""A run of manifests on a cluster that others use too: `phalanx run --context NAME`.

The objects are created as kubectl does, with strict validation, and stay when the run ends. Only
the namespaces of the files are read while they are followed, and only what belongs to the files
counts: objects that they create, objects owned by these, and the members of their groups.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from phalanx.api.batch import Job
from phalanx.api.core import Node, Pod
from phalanx.api.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unauthorized
from phalanx.api.job_sets import JobSet
from phalanx.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    NODE,
    POD,
    POD_GROUP,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
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
from phalanx.cli.manifest_run import ManifestRun, ProgressCallback, RunObservation, has_started
from phalanx.cli.manifests import Manifest
from phalanx.cli.output import echo
from phalanx.cli.run_outcome import RunOutcome
from phalanx.cli.sandbox import ManifestRejected
from phalanx.client.client import Client
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: Kinds that have pods at once; of these at least one must be in the files.
_RUNNABLE_KINDS = (
    POD, JOB, JOB_SET, LEADER_WORKER_SET, STATEFUL_SET, DEPLOYMENT, REPLICA_SET, DAEMON_SET,
    REPLICATION_CONTROLLER,
)  # fmt: skip
#: The kind between an object of the files and its pods, if it is not listed anyway.
_OWNED_KINDS = {DEPLOYMENT: REPLICA_SET, LEADER_WORKER_SET: STATEFUL_SET}


@dataclass(frozen=True, slots=True)
class SubmittedObject:
    """An object that a run has created, or is creating."""

    kind: Kind
    key: Key


class ClusterRun(ManifestRun):
    """Submits batches of manifests to a cluster and follows what belongs to them."""

    #: Lists of a server that others use too are requested less often.
    poll_interval = 1.0
    nothing_left = "the objects were deleted while they were followed"

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
        self._kinds = {manifest.kind for batch in batches for manifest in batch}
        self._dropped: Sequence[tuple[Manifest, str]] = ()
        self._has_gangs = self._has_unfinished_sets = False

    async def _prepare(self) -> None:
        """Refuse files without pods, and warn about fields that the server drops."""
        manifests = [manifest for batch in self._batches for manifest in batch]
        if self._kinds.isdisjoint(_RUNNABLE_KINDS):
            raise ManifestRejected("the files contain nothing to run: no Job or Pod")
        self._dropped = await list_dropped_fields(self._client, manifests)
        for manifest, field in self._dropped:
            echo(f"warning: {describe_dropped_field(manifest, field)}", err=True)

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
                if manifest.kind in _RUNNABLE_KINDS or "PodGroup" in manifest.kind.name:
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
                self._submitted[-1] = replace(entry, key=Key(entry.key.namespace, meta["name"]))

    def _without_dropped(self, manifest: Manifest) -> dict[str, object]:
        """Return the object without fields that were warned about: strict servers reject them."""
        fields = {field for one, field in self._dropped if one is manifest}
        if not fields:
            return manifest.content
        spec = {k: v for k, v in manifest.content["spec"].items() if k not in fields}
        return {**manifest.content, "spec": spec}

    async def _read(self) -> tuple[ClusterObjects, Sequence[Job]]:
        """Read the namespaces of the files; keep what belongs to the files."""
        spaces = sorted({one.key.namespace for one in self._submitted if one.kind.namespaced})
        pods: list[Pod] = []
        groups: list[Group] = []
        jobs: list[Job] = []
        owned: list[PartialObjectMetadata] = []
        self._has_unfinished_sets = False
        for space in spaces:
            found, found_groups = await read_gangs(self._client, space)
            pods += found
            groups += found_groups
            jobs += await list_if_readable(self._client, JOB, Job, namespace=space)
            for kind in self._kinds & _OWNED_KINDS.keys():
                owned += await list_if_readable(
                    self._client, _OWNED_KINDS[kind], PartialObjectMetadata, namespace=space
                )
            if JOB_SET in self._kinds:
                sets = await list_if_readable(self._client, JOB_SET, JobSet, namespace=space)
                self._has_unfinished_sets |= any(
                    one.metadata.uid in self._uids
                    and one.end_condition is None
                    and not one.spec.suspend
                    for one in sets
                )
        cluster = ClusterObjects(nodes=(), groups=groups, pods=pods)
        metas = [one.metadata for one in owned]
        return select_submitted(cluster, jobs, self._uids, owned=metas)

    async def _read_for_diagnosis(self, cluster: ClusterObjects) -> ClusterObjects | None:
        space = next((one.key.namespace for one in self._submitted if one.kind.namespaced), "")
        whole, visibility = await read_visible_cluster(self._client, space)
        return whole if visibility.is_whole else None

    def _is_complete(self, seen: RunObservation) -> bool:
        """Whether all Jobs have ended, or wait for their user, and all other gangs run."""
        is_first, self._has_gangs = not self._has_gangs, self._has_gangs or bool(seen.gangs)
        are_suspended = bool(seen.jobs) and all(job.spec.suspend for job in seen.jobs)
        if self._batches or (not seen.gangs and is_first and not are_suspended):
            return False
        is_unfinished = any(not job.is_finished and not job.spec.suspend for job in seen.jobs)
        return (
            not is_unfinished
            and not self._has_unfinished_sets
            and all(map(has_started, seen.gangs))
        )

    def _may_change(self, seen: RunObservation) -> bool:
        """Other workloads of a cluster end at any time: waiting is always worth it."""
        return True

    async def _create_outcome(
        self, seen: RunObservation, seconds: float, *, timed_out: bool
    ) -> RunOutcome:
        """Add the nodes, whose domains the summary names, if the credential may read them."""
        nodes = await list_if_readable(self._client, NODE, Node)
        seen = replace(seen, cluster=replace(seen.cluster, nodes=nodes))
        return await super()._create_outcome(seen, seconds, timed_out=timed_out)


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
