"""The Workloads and PodGroups of all Jobs: their caches, and which Job a change concerns.

`JobWorkloadManager` enqueues the Jobs of changed objects and ensures the objects of a Job at a sync
(`workload_objects`). Which objects a Job should have is decided by `phalanx.builder.jobs`.

`MissingKindWorkloadManager` takes its place where the API server does not serve Workloads or
PodGroups:

    the Job asks for             the Job gets
    nothing                      pods that are scheduled one by one
    a gang or a topology         no pods; an event says which kind is missing
    a group of its parent        pods that are scheduled one by one; a condition says why

`DisabledWorkloadManager` takes its place where the feature gate WorkloadWithJob is off: pods are
scheduled one by one, and a Job that asks for a gang gets a condition that says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx import logs
from phalanx.api.batch import COMPLETE, FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import Invalid, NotFound
from phalanx.api.feature_gates import (
    JOB_GANG_INFERENCE,
    JOB_GANG_POLICY,
    JOB_IGNORE_DISRUPTIONS,
    JOB_RELEASE_SCHEDULING,
    WORKLOAD_WITH_JOB,
    FeatureGates,
)
from phalanx.api.kinds import JOB, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Key, find_condition
from phalanx.api.scheduling import (
    DEGRADED,
    FINISHED_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    PodGroup,
    Workload,
)
from phalanx.api.validation.job_policies import asks_for_gang
from phalanx.builder.ownership import (
    SCHEDULING_PARENTS,
    ManageBoth,
    ManageGroups,
)
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.scheduling_intent import (
    NO_GROUP,
    GroupMembership,
    SchedulingIntents,
    fallback_event,
    job_object,
)
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.jobs.workload_objects import JobWorkloadReconciler
from phalanx.controllers.pod_ownership import controlling_uids
from phalanx.controllers.reconcile_loop import Informers, StaleCacheError
from phalanx.controllers.workload_operations import (
    AncestorIndex,
    TargetKey,
    linked_parent_keys,
    target_keys,
    workload_keys,
)
from phalanx.controllers.write_tracker import TrackedWriter

LOG = logs.component("job-controller")
#: The most seconds that a sync waits until the cache shows a Workload that it created.
CACHE_TIMEOUT = 1.0
#: The length from which on a queue of Jobs counts as long.
LONG_QUEUE = 16

RecordJobEvent = Callable[[Job, JobEvent], None]


@dataclass(frozen=True, slots=True)
class JobSchedulingOptions:
    """Which scheduling objects the controller manages for Jobs."""

    #: Whether Jobs that are not gangs get a Workload and a PodGroup too.
    include_basic: bool = True
    #: Whether the field `gangPolicy` counts.
    use_gang_policy: bool = True
    #: Whether a Job without a policy is a gang if it has the shape of one.
    infer_gang: bool = False
    #: Whether the PodGroup of a suspended or finished Job is deleted.
    release_groups: bool = False
    #: Whether disrupted pods of gangs are replaced without counting as failures.
    ignore_disruptions: bool = True
    #: API groups and kinds whose controllers manage the scheduling of their Jobs.
    parents: frozenset[tuple[str, str]] = SCHEDULING_PARENTS


def options_from_gates(
    gates: FeatureGates,
    *,
    include_basic: bool = True,
    parents: frozenset[tuple[str, str]] = SCHEDULING_PARENTS,
) -> JobSchedulingOptions | None:
    """Return the options that feature gates select; None if WorkloadWithJob is disabled."""
    if not gates.is_enabled(WORKLOAD_WITH_JOB):
        return None
    return JobSchedulingOptions(
        include_basic=include_basic,
        use_gang_policy=gates.is_enabled(JOB_GANG_POLICY),
        infer_gang=gates.is_enabled(JOB_GANG_INFERENCE),
        release_groups=gates.is_enabled(JOB_RELEASE_SCHEDULING),
        ignore_disruptions=gates.is_enabled(JOB_IGNORE_DISRUPTIONS),
        parents=parents,
    )


class JobWorkloadManager:
    """Ensures the Workload and the PodGroup of each Job, and enqueues Jobs when these change."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record_event: RecordJobEvent,
        *,
        queue: WorkQueue[Key],
        options: JobSchedulingOptions,
    ) -> None:
        self._client, self._record_event = client, record_event
        self._queue, self._options = queue, options
        self._workloads = informers.of(Workload).cache
        self._groups = informers.of(PodGroup).cache
        self._jobs = informers.of(Job).cache
        self._workloads_by_target = self._workloads.index(target_keys)
        self._groups_by_workload = self._groups.index(workload_keys)
        self._groups_by_owner = self._groups.index(controlling_uids)
        self._jobs_by_parent = self._jobs.index(linked_parent_keys)
        self._intents = _build_intents(options)
        self._ancestors = AncestorIndex()
        #: The Workloads for which a sync waits, by uid.
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self.caches: dict[Kind, ObjectCache[Any]] = {
            WORKLOAD: self._workloads,
            POD_GROUP: self._groups,
        }
        self._workloads.subscribe(self._on_workload_change)
        self._groups.subscribe(self._on_group_change)

    async def ensure_group(self, snapshot: JobSnapshot, writer: TrackedWriter) -> GroupMembership:
        """Return the PodGroup for new pods of a Job; create it if it is missing."""
        job = snapshot.job_pods.job
        if job.spec.suspend and self._releases_groups(job):
            await self._release_groups(job, writer)
            return NO_GROUP
        intent = self._intents.get(job)
        if intent.verified is not None and intent.verified.is_current(self, snapshot):
            return intent.verified.membership
        reconciler = JobWorkloadReconciler(
            self._client,
            writer,
            self,
            record_event=partial(self._record_event, job),
            snapshot=snapshot,
            intent=intent,
        )
        match intent.management:
            case ManageBoth():
                return await reconciler.ensure_for_root()
            case ManageGroups(link):
                return await reconciler.ensure_for_child(link)
        return NO_GROUP

    def owned_groups(self, job: Job) -> Sequence[PodGroup]:
        """List the PodGroups that a Job controls."""
        return self._groups_by_owner[job.metadata.uid]

    def gang_size(self, job: Job) -> int | None:
        """Return the `minCount` of a Job; None if it is not a gang.

        It is what the Job asks for, or that of the PodGroup of a Workload that is not its own.
        """
        intent = self._intents.get(job)
        group = intent.verified.group if intent.verified else None
        try:
            size = intent.size
        except Invalid:
            return None
        return group.min_count if size is None and group and group.is_gang else size

    def ignores_disruptions(self, job: Job, pods: Iterable[Pod]) -> bool:
        """Whether disrupted pods of a Job are no failures: the Job, or a group of its pods, is a
        gang.
        """
        if not self._options.ignore_disruptions:
            return False
        if self.gang_size(job) is not None:
            return True
        groups = {pod.group: None for pod in pods if pod.group}
        return any((group := self._groups.get(key)) and group.is_gang for key in groups)

    def forget(self, job: Key) -> None:
        """Drop the state of a deleted Job."""
        self._intents.forget(job)
        self.remember_ancestors(job, ())

    def remember_ancestors(self, job: Key, above: Sequence[TargetKey]) -> None:
        """Sync a Job again when the Workload of a controller far above it changes."""
        self._ancestors.remember(job, above)

    async def clean_up(self, job: Job, writer: TrackedWriter) -> None:
        """Delete the PodGroup of a finished Job if that is enabled, or annotate how it ended."""
        await self._release_groups(job, writer)
        desired = {MEMBERS_TO_RUN_ANNOTATION: None, FINISHED_ANNOTATION: describe_end(job)}
        for group in self._groups_by_owner[job.metadata.uid]:
            annotations = group.metadata.annotations
            changed = {
                name: text for name, text in desired.items() if annotations.get(name) != text
            }
            if changed and not group.metadata.deletion_timestamp:
                await writer.patch(
                    POD_GROUP, group.metadata, {"metadata": {"annotations": changed}}
                )

    def _releases_groups(self, job: Job) -> bool:
        """Whether the PodGroup is deleted when the Job is suspended or has finished.

        Always if the Job uses resource claims: the claims of a PodGroup keep their devices until
        the PodGroup is gone.
        """
        spec = job.spec.template.get("spec") or {}
        return self._options.release_groups or bool(spec.get("resourceClaims"))

    async def _release_groups(self, job: Job, writer: TrackedWriter) -> None:
        if not self._releases_groups(job):
            return
        for group in self._groups_by_owner[job.metadata.uid]:
            if not group.metadata.deletion_timestamp:
                await writer.delete(POD_GROUP, group.metadata)
                key, name = job.metadata.key, group.metadata.name
                LOG.debug("PodGroup released", kind=JOB.name, key=key, object=name)

    def workloads(self, namespace: str, target: tuple[str, str, str]) -> Sequence[Workload]:
        """List the Workloads whose `controllerRef` is this group, kind and name."""
        return self._workloads_by_target[namespace, *target]

    def workload(self, key: Key) -> Workload | None:
        """Return a Workload by its key."""
        return self._workloads.get(key)

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        """List the PodGroups of a Workload."""
        return self._groups_by_workload[workload.metadata.key]

    @property
    def is_queue_long(self) -> bool:
        """Whether many Jobs wait: then one sync makes no more than the first missing object."""
        return len(self._queue) >= LONG_QUEUE

    async def wait_until_cached(self, workload: Workload) -> None:
        """Wait until the cache has a new Workload; raise StaleCacheError after a timeout."""
        meta = workload.metadata
        cached = self._workloads.get(meta.key)
        if cached is not None and cached.metadata.uid == meta.uid:
            return
        self._awaited[meta.uid] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CACHE_TIMEOUT):
                await self._awaited[meta.uid]
        except TimeoutError:
            raise StaleCacheError(f"Workload {meta.name} is not in the cache yet") from None
        finally:
            del self._awaited[meta.uid]

    def _on_workload_change(self, old: Workload | None, new: Workload | None) -> None:
        awaited = self._awaited.get(new.metadata.uid) if new else None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)
        for workload in (old, new):
            for key in self._jobs_of_workload(workload) if workload else ():
                self._queue.add(key)

    def _on_group_change(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if old and new and _relevant_fields(old) == _relevant_fields(new):
            return
        for group in (old, new):
            for key in self._jobs_of_group(group) if group else ():
                self._queue.add(key)

    def _jobs_of_workload(self, workload: Workload) -> Iterator[Key]:
        """The Job to which a Workload refers, or the Jobs whose parent it refers to."""
        for namespace, group, kind, name in target_keys(workload):
            if (group, kind) == (JOB.group, JOB.name):
                yield Key(namespace, name)
            target = namespace, group, kind, name
            yield from (job.metadata.key for job in self._jobs_by_parent[target])
            yield from self._ancestors.keys_below(target)

    def _jobs_of_group(self, group: PodGroup) -> Iterator[Key]:
        """The Job that controls a PodGroup; without a controller, the Jobs of its Workload."""
        owner = group.metadata.controller
        if owner is not None:
            if (owner.api_version, owner.kind) == (JOB.api_version, JOB.name):
                yield Key(group.metadata.namespace, owner.name)
            return
        for key in workload_keys(group):
            workload = self._workloads.get(key)
            yield from self._jobs_of_workload(workload) if workload else ()


def describe_end(job: Job) -> str:
    """Say how a finished Job ended: `Complete`, or `Failed: BackoffLimitExceeded`."""
    failed = job.true_condition(FAILED)
    return f"{FAILED}: {failed.reason}" if failed else COMPLETE


def _build_intents(options: JobSchedulingOptions) -> SchedulingIntents:
    return SchedulingIntents(
        include_basic=options.include_basic,
        use_gang_policy=options.use_gang_policy,
        infer_gang=options.infer_gang,
        parents=options.parents,
    )


def _relevant_fields(group: PodGroup) -> tuple[object, ...]:
    """The fields of a PodGroup that a sync of its Job reads."""
    meta, degraded = group.metadata, find_condition(group.status.conditions, DEGRADED)
    state = (degraded.status, degraded.reason) if degraded else ()
    return group.spec, meta.annotations, meta.owner_references, meta.deletion_timestamp, state


class _WithoutGroups:
    """The methods that the workload managers without groups share."""

    def owned_groups(self, job: Job) -> Sequence[PodGroup]:
        """Return nothing: there are no groups."""
        return ()

    def gang_size(self, job: Job) -> int | None:
        """Return None: there are no gangs."""
        return None

    def ignores_disruptions(self, job: Job, pods: Iterable[Pod]) -> bool:
        """Return False: there are no gangs."""
        return False

    def forget(self, job: Key) -> None:
        """Do nothing: nothing is kept."""

    async def clean_up(self, job: Job, writer: TrackedWriter) -> None:
        """Do nothing: a finished Job has no objects."""


class MissingKindWorkloadManager(_WithoutGroups):
    """Creates no objects: the API server does not serve `missing_kind`."""

    def __init__(
        self, record_event: RecordJobEvent, options: JobSchedulingOptions, missing_kind: Kind
    ) -> None:
        self._record_event, self._missing_kind = record_event, missing_kind
        self._intents = _build_intents(options)

    async def ensure_group(self, snapshot: JobSnapshot, writer: TrackedWriter) -> GroupMembership:
        """Return no group. Raise NotFound for a Job that must not start without one."""
        job = snapshot.job_pods.job
        intent, kind = self._intents.get(job), self._missing_kind
        text = f'no matches for kind "{kind.name}" in version "{kind.api_version}"'
        scheduling = intent.job["spec"].get("scheduling") or {}
        requires_group = intent.size is not None or scheduling.get("schedulingConstraints")
        match intent.management:
            case ManageBoth() if requires_group:
                message = f"Failed to create {kind.name} for Job {job.metadata.name}: {text}"
                self._record_event(job, JobEvent(f"Failed{kind.name}Create", message, WARNING))
                raise NotFound(text)
            case ManageGroups():
                return GroupMembership(fallback=fallback_event("ParentWorkloadNotFound", text))
        return NO_GROUP

    def forget(self, job: Key) -> None:
        """Drop the state of a deleted Job."""
        self._intents.forget(job)


class DisabledWorkloadManager(_WithoutGroups):
    """Creates no objects: the feature gate WorkloadWithJob is off."""

    async def ensure_group(self, snapshot: JobSnapshot, writer: TrackedWriter) -> GroupMembership:
        """Return no group, with the reason if the Job asks for a gang."""
        if not asks_for_gang(job_object(snapshot.job_pods.job)["spec"]):
            return NO_GROUP
        text = f"The feature gate {WORKLOAD_WITH_JOB} is off"
        return GroupMembership(fallback=fallback_event("WorkloadWithJobDisabled", text))


JobWorkloads = JobWorkloadManager | MissingKindWorkloadManager | DisabledWorkloadManager
