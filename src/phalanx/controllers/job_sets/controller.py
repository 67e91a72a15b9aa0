"""The JobSet controller: informers enqueue JobSets, workers sync them.

    JobSets, Jobs, Workloads, groups, Services, claims ─▶ queue of JobSets ─▶ plan_sync ─▶ requests

A sync performs its plan in the order of the fields of `JobSetPlan`. It fails closed: if a group,
the Service or a claim cannot be created, no Job is, an event says why, and the JobSet is retried
with back-off. The counts of Jobs are written in any case. A JobSet is synced only once the caches
show the Jobs and the status of its last sync. JobSets that another controller manages
(`spec.managedBy`) are never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from phalanx import logs
from phalanx.api.batch import COMPLETE, Job
from phalanx.api.batch import FAILED as JOB_FAILED
from phalanx.api.core import Service
from phalanx.api.errors import ApiError, Conflict, NotFound
from phalanx.api.job_sets import (
    COMPLETED,
    JOB_SET_CONTROLLER,
    JobSet,
    ReplicatedJobStatus,
)
from phalanx.api.kinds import JOB, JOB_SET, PERSISTENT_VOLUME_CLAIM, SERVICE, Kind
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.api.storage import PersistentVolumeClaim
from phalanx.api.wire import Object
from phalanx.builder.ensure_plan import CreateObject, Group, ObjectOperation, ObservedObjects
from phalanx.builder.ownership import SCHEDULING_PARENTS, read_link
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.job_sets.job_objects import claim_name, claim_templates
from phalanx.controllers.job_sets.scheduling import JobSetTrees
from phalanx.controllers.job_sets.sync import (
    WARNING,
    JobSetEvent,
    JobSetPlan,
    JobSetState,
    encode_status,
    plan_sync,
)
from phalanx.controllers.reconcile_loop import (
    CountDelay,
    Create,
    Delete,
    Informers,
    Patch,
    StaleCacheError,
    new_work_queue,
    perform,
    run_workers,
)
from phalanx.controllers.workload_operations import (
    AncestorIndex,
    TargetKey,
    find_ancestors,
    linked_parent_keys,
    perform_operations,
    target_keys,
    target_of,
    workload_keys,
)
from phalanx.controllers.write_tracker import WriteTracker
from phalanx.telemetry import Counter, MetricSpec

LOG = logs.component("jobset-controller")
_WORKERS = 16
#: Seconds for which changes of the numbers of pods of Jobs are collected.
COUNT_DELAY = 0.1
#: Jobs of one JobSet that are created or deleted at the same time.
MAX_PARALLEL_JOBS = 50
#: The values of `spec.managedBy` that this controller manages.
MANAGED_BY_NAMES = ("", JOB_SET_CONTROLLER)

#: The metrics of the controller, with the names and labels of the JobSet project.
_LABELS = ("jobset_name", "namespace")
COMPLETED_JOB_SETS = MetricSpec(
    Counter, "jobset_completed_total", "Completed JobSets.", labels=_LABELS
)
FAILED_JOB_SETS = MetricSpec(Counter, "jobset_failed_total", "Failed JobSets.", labels=_LABELS)
JOB_SET_METRICS = (COMPLETED_JOB_SETS, FAILED_JOB_SETS)


class JobSetController:
    """Runs JobSets until cancelled.

    `missing_kind` is a kind of scheduling objects that the API server does not serve: then no
    JobSet gets groups, and a condition says so. `parents` are the kinds whose controllers manage
    the scheduling of their children. Counts of Jobs wait while `is_busy`.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
        missing_kind: Kind | None = None,
        parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client, self._clock, self._record = client, clock, record
        self._missing_kind, self._parents = missing_kind, parents
        self._count_delay = CountDelay(clock, is_busy)
        self._ancestors, self._trees = AncestorIndex(), JobSetTrees()
        self._informers = informers
        self._queue: WorkQueue[Key] = new_work_queue(client, "job_set")
        self._job_sets = informers.of(JobSet).cache
        self._jobs = informers.of(Job).cache
        self._workloads: ObjectCache[Workload] = ObjectCache()
        self._groups: ObjectCache[PodGroup] = ObjectCache()
        self._composites: ObjectCache[CompositePodGroup] = ObjectCache()
        if missing_kind is None:
            self._workloads = informers.of(Workload).cache
            self._groups = informers.of(PodGroup).cache
            self._composites = informers.of(CompositePodGroup).cache
        self._services = informers.of(Service).cache
        self._writes = WriteTracker(
            client, {JOB: self._jobs, JOB_SET: self._job_sets, SERVICE: self._services}, clock
        )
        self._claims = informers.of(PersistentVolumeClaim).cache
        self._jobs_by_owner = self._jobs.index(_owner_uids)
        self._workloads_by_target = self._workloads.index(target_keys)
        self._groups_by_workload = self._groups.index(workload_keys)
        self._composites_by_workload = self._composites.index(workload_keys)
        self._job_sets_by_parent = self._job_sets.index(linked_parent_keys)
        self._job_sets.subscribe(self._on_job_set_change)
        self._jobs.subscribe(self._on_job_change)
        self._services.subscribe(self._on_service_change)
        self._workloads.subscribe(self._on_workload_change)
        self._groups.subscribe(self._on_group_change)
        self._composites.subscribe(self._on_group_change)

    async def run(self) -> None:
        """Run JobSets until cancelled."""
        await self._informers.wait_for_sync()
        await run_workers(self._queue, self.reconcile, _WORKERS)

    async def reconcile(self, key: Key) -> float | None:
        """Sync one JobSet; return after how many seconds to sync again.

        Raises what a retry cures.
        """
        if not self._writes.has_caught_up(key):
            raise StaleCacheError(f"the caches do not show the last writes for JobSet {key} yet")
        job_set = self._job_sets.get(key)
        if job_set is None or job_set.spec.managed_by not in MANAGED_BY_NAMES:
            return None
        plan = plan_sync(self.read_state(job_set, await self._find_ancestors(job_set)))
        try:
            await self._perform(job_set, plan)
        except ApiError:
            # Conditions and counters say what was done; the counts of Jobs hold in any case.
            counts = plan.status.replicated_jobs_status
            plan.status = replace(job_set.status, replicated_jobs_status=counts)
            plan.events.clear()
            await self._write_status(job_set, plan)
            raise
        has_counts_only = plan.status != job_set.status and not (
            plan.events
            or plan.deletes_job_set
            or _without_counts(replace(job_set, status=plan.status)) != _without_counts(job_set)
        )
        if has_counts_only and (wait := self._count_delay.seconds_to_wait(key)):
            return wait if plan.requeue_after is None else min(wait, plan.requeue_after)
        self._count_delay.forget(key)
        await self._write_status(job_set, plan)
        return plan.requeue_after

    async def _find_ancestors(self, job_set: JobSet) -> Sequence[OwnerReference]:
        """Find the controllers above that of a linked JobSet, if that one has no Workload."""
        ancestors: Sequence[OwnerReference] = ()
        namespace, owner = job_set.metadata.namespace, job_set.metadata.controller
        targets, above = linked_parent_keys(job_set), list[TargetKey]()
        if owner is not None and targets and not self._workloads_by_target[targets[0]]:
            if workload := self._workload_of_parent_group(job_set):
                above = target_keys(workload)
            else:
                ancestors = await find_ancestors(self._client, namespace, owner)
                above = [target_of(namespace, one) for one in ancestors]
        self._ancestors.remember(job_set.metadata.key, above)
        return ancestors

    def _workload_of_parent_group(self, job_set: JobSet) -> Workload | None:
        """The Workload of the CompositePodGroup that a linked JobSet joins."""
        link = read_link({"metadata": {"annotations": job_set.metadata.annotations}})
        parent = Key(job_set.metadata.namespace, link.parent if link else "")
        group = self._composites.get(parent)
        return next(map(self._workloads.get, workload_keys(group)), None) if group else None

    def read_state(self, job_set: JobSet, ancestors: Sequence[OwnerReference] = ()) -> JobSetState:
        """Read what belongs to a JobSet from the caches."""
        meta = job_set.metadata
        names = [claim_name(job_set, template) for template, _ in claim_templates(job_set)]
        return JobSetState(
            job_set,
            self._jobs_by_owner[meta.uid],
            self._observe(job_set, ancestors),
            self._clock.now(),
            service=self._services.get(Key(meta.namespace, job_set.subdomain)),
            claims=[name for name in names if Key(meta.namespace, name) in self._claims],
            missing_kind=self._missing_kind,
            ancestors=ancestors,
            parents=self._parents,
            tree=None if job_set.end_condition else self._trees.get(job_set),
        )

    def _observe(self, job_set: JobSet, ancestors: Sequence[OwnerReference]) -> ObservedObjects:
        """The Workloads that refer to a JobSet or to a controller above it, and their groups."""
        namespace, name = job_set.metadata.namespace, job_set.metadata.name
        own = (namespace, JOB_SET.group, JOB_SET.name, name)
        above = [target_of(namespace, one) for one in ancestors]
        targets = [own, *linked_parent_keys(job_set), *above]
        found = [one for target in targets for one in self._workloads_by_target[target]]
        joined = self._workload_of_parent_group(job_set)
        if joined is not None and joined not in found:
            found.append(joined)
        return ObservedObjects(
            found,
            [g for one in found for g in self._groups_by_workload[one.metadata.key]],
            [g for one in found for g in self._composites_by_workload[one.metadata.key]],
        )

    async def _perform(self, job_set: JobSet, plan: JobSetPlan) -> None:
        """Perform the requests of a plan up to the status; stop at the first that fails."""
        await self._perform_together(
            perform(
                self._client,
                Delete(JOB, job.metadata.key, job.metadata.uid, propagation="Foreground"),
            )
            for job in plan.jobs_to_delete
        )

        def report(operation: ObjectOperation, error: ApiError) -> None:
            verb = "Create" if isinstance(operation, CreateObject) else "Update"
            self._report_failure(job_set, f"Failed{operation.kind.name}{verb}", error)

        await perform_operations(
            self._client, plan.group_operations, job_set.metadata.uid, on_error=report
        )
        for obj in plan.objects_to_create:
            await self._create(job_set, obj)
        await self._perform_together(self._create(job_set, job) for job in plan.jobs_to_create)
        await self._perform_together(
            perform(
                self._client,
                Patch(JOB, job.metadata.key, {**change, "metadata": {"uid": job.metadata.uid}}),
            )
            for job, change in plan.jobs_to_patch
        )
        if plan.deletes_job_set:
            meta = job_set.metadata
            action = Delete(
                JOB_SET,
                meta.key,
                meta.uid,
                version=meta.resource_version,
                propagation="Foreground",
            )
            await perform(self._client, action)

    async def _create(self, job_set: JobSet, obj: Object) -> None:
        kind, meta = _KIND_BY_NAME[obj["kind"]], job_set.metadata
        # A retained claim has no owner, and is used again by a JobSet of the same name.
        owner = meta.uid if obj["metadata"].get("ownerReferences") else ""
        try:
            created = await perform(self._client, Create(kind, obj, owner_uid=owner))
        except ApiError as error:
            self._report_failure(job_set, _CREATION_FAILURES[kind], error)
            raise
        self._writes.record(meta.key, kind, created or {})
        LOG.debug("object created", key=meta.key, kind=kind.name, object=obj["metadata"]["name"])

    async def _perform_together(self, requests: Iterable[Coroutine[Any, Any, object]]) -> None:
        """Perform requests about Jobs, a bounded number at a time; raise the first failure."""
        waiting = list(requests)
        try:
            while waiting:
                batch = [waiting.pop(0) for _ in range(min(len(waiting), MAX_PARALLEL_JOBS))]
                results = await asyncio.gather(*batch, return_exceptions=True)
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
        finally:
            for one in waiting:
                one.close()

    async def _write_status(self, job_set: JobSet, plan: JobSetPlan) -> None:
        """Write the status to the version of the JobSet that was synced, then record its events."""
        if plan.status == job_set.status or plan.deletes_job_set:
            return
        meta = job_set.metadata
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": encode_status(plan.status),
        }
        try:
            written = await self._client.patch(
                JOB_SET, meta.key, change, subresource="status", brief=True
            )
        except NotFound:
            return
        except Conflict as error:
            raise StaleCacheError(str(error)) from error
        self._writes.record(meta.key, JOB_SET, written)
        if plan.status.terminal_state and not job_set.status.terminal_state:
            is_completed = plan.status.terminal_state == COMPLETED
            counter = COMPLETED_JOB_SETS if is_completed else FAILED_JOB_SETS
            self._client.metrics.series(counter, meta.name, meta.namespace).add()
        for event in plan.events:
            self._record_event(job_set, event)
            LOG.info("JobSet changed", key=meta.key, reason=event.reason, detail=event.message)

    def _report_failure(self, job_set: JobSet, reason: str, error: ApiError) -> None:
        self._record_event(job_set, JobSetEvent(reason, str(error), WARNING))

    def _record_event(self, job_set: JobSet, event: JobSetEvent) -> None:
        self._record(
            ObjectEvent(
                JOB_SET, job_set.metadata, event.reason, message=event.message, type=event.type
            )
        )

    def _on_job_set_change(self, old: JobSet | None, new: JobSet | None) -> None:
        if new is not None and (old is None or _without_counts(old) != _without_counts(new)):
            self._queue.add(new.metadata.key)
        elif new is None and old is not None:
            self._ancestors.remember(old.metadata.key, ())
            self._count_delay.forget(old.metadata.key)

    def _on_job_change(self, old: Job | None, new: Job | None) -> None:
        # A new Job only has to be counted, as changes of the numbers of its pods.
        is_counted = new and (not old or _relevant_state(old) == _relevant_state(new))
        for key in _job_set_keys(old, new):
            self._queue.add_after(key, COUNT_DELAY if is_counted else 0.0)

    def _on_service_change(self, old: Service | None, new: Service | None) -> None:
        for key in _job_set_keys(old):
            self._queue.add(key)

    def _on_workload_change(self, old: Workload | None, new: Workload | None) -> None:
        for workload in (old, new):
            for key in self._job_sets_of(workload) if workload else ():
                self._queue.add(key)

    def _on_group_change(self, old: Group | None, new: Group | None) -> None:
        if old and new and _relevant_fields(old) == _relevant_fields(new):
            return
        for group in (old, new):
            for key in workload_keys(group) if group else ():
                if workload := self._workloads.get(key):
                    for job_set in self._job_sets_of(workload):
                        self._queue.add(job_set)

    def _job_sets_of(self, workload: Workload) -> Iterator[Key]:
        """The JobSet to which a Workload refers, or the JobSets whose parent it refers to."""
        for target in target_keys(workload):
            namespace, group, kind, name = target
            if (group, kind) == (JOB_SET.group, JOB_SET.name):
                yield Key(namespace, name)
            yield from (one.metadata.key for one in self._job_sets_by_parent[target])
            yield from self._ancestors.keys_below(target)


#: The reasons of events about objects that cannot be created.
_CREATION_FAILURES: dict[Kind, str] = {
    JOB: "JobCreationFailed",
    SERVICE: "HeadlessServiceCreationFailed",
    PERSISTENT_VOLUME_CLAIM: "PVCCreationFailed",
}
_KIND_BY_NAME = {kind.name: kind for kind in _CREATION_FAILURES}


def _job_set_keys(*owned: Job | Service | None) -> set[Key]:
    """The JobSets that control objects."""
    metas = [one.metadata for one in owned if one is not None]
    return {
        Key(meta.namespace, owner.name)
        for meta in metas
        if (owner := meta.controller) is not None and owner.kind == JOB_SET.name
    }


def _without_counts(job_set: JobSet) -> JobSet:
    """A JobSet without what a sync writes last and never acts on: the counts of its Jobs."""
    metadata = replace(job_set.metadata, resource_version="")
    counts = tuple(
        ReplicatedJobStatus(
            one.name,
            job_restarts=one.job_restarts,
            job_restarts_count_towards_max=one.job_restarts_count_towards_max,
        )
        for one in job_set.status.replicated_jobs_status
    )
    return replace(
        job_set, metadata=metadata, status=replace(job_set.status, replicated_jobs_status=counts)
    )


def _relevant_state(job: Job) -> tuple[object, ...]:
    """What a sync of its JobSet reads of a Job, except for the numbers of pods."""
    meta = job.metadata
    is_counted = job.true_condition(COMPLETE), job.true_condition(JOB_FAILED)
    return meta.deletion_timestamp, meta.labels, job.spec, is_counted


def _owner_uids(job: Job) -> list[str]:
    owner = job.metadata.controller
    return [owner.uid] if owner and owner.kind == JOB_SET.name else []


def _relevant_fields(group: Group) -> tuple[object, ...]:
    """The fields of a group that a sync of its JobSet reads."""
    meta = group.metadata
    return group.spec, meta.annotations, meta.owner_references, meta.deletion_timestamp
