"""One look at one Job, performed: pods are claimed, made and deleted, the status is written, and
only then are those let go that it has counted.

A part that is refused keeps no other part from being done, but for one: who is not written down is
not let go.

The loop around looks at Jobs: informers tell which Job to look at, workers do so.

A Job is looked at again only when the caches have seen what the last look has done, so that nothing
is done twice. Jobs that another controller manages are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx.api.batch import JOB_CONTROLLER, OWN_JOB_CONTROLLER, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Invalid
from phalanx.api.kinds import JOB, POD, Kind
from phalanx.api.meta import Key
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import (
    JobPods,
    claim_pods,
    is_controlled_by,
    is_terminating,
    is_tracked,
    job_keys,
    orphan_index_keys,
    selector_index_key,
    would_adopt,
)
from phalanx.controllers.jobs.metrics import JobMetrics
from phalanx.controllers.jobs.pod_operations import (
    OperationFailure,
    OrphanPodReleaser,
    PodOperations,
    is_namespace_terminating,
)
from phalanx.controllers.jobs.replicas import MAX_PODS_PER_SYNC
from phalanx.controllers.jobs.scheduling_intent import NO_GROUP, GroupMembership
from phalanx.controllers.jobs.sync import (
    MAX_UNCOUNTED_PODS,
    WARNING,
    JobEvent,
    SyncPlan,
    SyncResult,
    plan_sync,
)
from phalanx.controllers.jobs.workload_manager import (
    JobSchedulingOptions,
    JobWorkloadManager,
    MissingKindWorkloadManager,
)
from phalanx.controllers.jobs.write_tracker import WriteTracker
from phalanx.controllers.reconcile_loop import (
    Informers,
    StaleCacheError,
    new_work_queue,
    run_workers,
)


@dataclass(frozen=True, slots=True)
class JobControllerContext:
    """What every look uses. Without groups pods are scheduled one by one."""

    client: Client
    clock: Clock
    write_tracker: WriteTracker
    workloads: JobWorkloadManager | MissingKindWorkloadManager | None
    metrics: JobMetrics
    record_event: Callable[[Job, JobEvent], None]


class JobReconciliation:
    """A Job, its pods, and the pods of nobody that it may want."""

    def __init__(
        self, context: JobControllerContext, job: Job, pods: Sequence[Pod], orphans: Sequence[Pod]
    ) -> None:
        self._context, self._job, self._pods, self._orphans = context, job, pods, orphans
        self._record_event = partial(context.record_event, job)
        self._writer = context.write_tracker.writer_for(job.metadata.key)
        self._pod_operations = PodOperations(self._writer, job, self._record_event)
        self._failures: list[OperationFailure] = []
        self._plan: SyncPlan | None = None

    async def run(self) -> float | None:
        """Do what is due; in how many seconds to look again, if at all.

        Raises one of the failures that another look may cure.
        """
        clock, is_well = self._context.clock, False
        since = clock.now()
        try:
            await (self._clean_up_finished() if self._job.is_finished else self._sync())
            pressing = [
                failure for failure in self._failures if not is_namespace_terminating(failure)
            ]
            is_well = all(isinstance(failure, StaleCacheError) for failure in pressing)
            if pressing:
                raise pressing[0]
        finally:
            self._context.metrics.record_sync(self._job, self._plan, is_well, clock.now() - since)
        return self._plan.requeue_after if self._plan else None

    async def _clean_up_finished(self) -> None:
        """What is left to do about a Job that has ended; what still runs came after its end."""
        if self._context.workloads is not None:
            await self._context.workloads.clean_up(self._job, self._writer)
        late = JobPods(self._job, self._pods).active[:MAX_PODS_PER_SYNC]
        self._failures += (await self._pod_operations.discard(late))[1]
        held = [
            pod
            for pod in self._pods
            if is_tracked(pod) and (pod.is_terminal or is_terminating(pod))
        ]
        self._failures += await self._pod_operations.remove_finalizers(held[:MAX_UNCOUNTED_PODS])

    async def _sync(self) -> None:
        roll = JobPods(self._job, await self._claim_pods())
        self._plan = due = plan_sync(JobSnapshot(roll, self._context.clock.now()))
        found = await self._ensure_group(due)
        if self._failures and self._job.status.start_time is None:
            return  # It begins when its objects are there.
        gone, refused = await self._pod_operations.delete(due.pods_to_delete)
        dismissed, kept = await self._pod_operations.discard(due.pods_to_discard)
        self._failures += [*refused, *kept]
        made = await self._create_pods(due, found) if found else 0
        fallback = found.fallback if found else None
        await self._write_status(
            due, SyncResult([*gone, *dismissed], made, fallback, found is not None)
        )
        self._failures += await self._pod_operations.remove_finalizers(due.pods_to_release)

    async def _claim_pods(self) -> Sequence[Pod]:
        """The pods of the Job, once all of them are its own and none of them is not."""
        found = claim_pods(self._job, self._pods, self._orphans)
        if not (found.to_adopt or found.to_disown):
            return found.owned
        failures = await self._pod_operations.disown(found.to_disown)
        if found.to_adopt and await self._job_exists():
            failures += await self._pod_operations.adopt(found.to_adopt)
        raise failures[0] if failures else StaleCacheError("its pods have changed")

    async def _job_exists(self) -> bool:
        """Whether the Job is still to stay, as the API has it."""
        meta = (await self._context.client.get(JOB, self._job.metadata.key, Job)).metadata
        return meta.uid == self._job.metadata.uid and not meta.deletion_timestamp

    async def _ensure_group(self, plan: SyncPlan) -> GroupMembership | None:
        """Where new pods belong; None if none are to be made, or if that cannot be told now."""
        groups = self._context.workloads
        if plan.outcome is not None or self._job.metadata.deletion_timestamp:
            return None
        try:
            return await groups.ensure_group(plan.snapshot, self._writer) if groups else NO_GROUP
        except (ApiError, Unreachable, StaleCacheError) as failure:
            self._failures.append(failure)
            return None

    async def _create_pods(self, plan: SyncPlan, membership: GroupMembership) -> int:
        made, failures = await self._pod_operations.create(
            plan.pods_to_create, membership.group, at_once=membership.is_gang
        )
        self._failures += failures
        self._context.metrics.record_pod_creations(plan, made, len(failures))
        return made

    async def _write_status(self, plan: SyncPlan, result: SyncResult) -> None:
        """Write the status of the very Job that was looked at, then tell what there is to tell."""
        report = plan.build_status_update(result)
        if not report.status:
            return
        meta, change = self._job.metadata, {"status": report.status}
        try:
            await self._writer.patch(JOB, meta, change, subresource="status", exact=True)
        except Invalid as error:
            self._record_event(JobEvent("FailedStatusUpdate", str(error), WARNING))
            raise
        self._context.metrics.record_status_update(plan, result)
        for remark in report.events:
            self._record_event(remark)


#: Seconds that changes of pods wait for others of the same Job.
POD_EVENT_DELAY = 0.1
_WORKERS = 16
#: The names under which Jobs are ours where no other Job controller is.
MANAGED_BY_NAMES = ("", JOB_CONTROLLER, OWN_JOB_CONTROLLER)


class JobController:
    """Runs Jobs until cancelled.

    Without settings Jobs are given neither Workloads nor groups. `managers` are the names under
    which Jobs are ours to manage; "" is for those that name nobody, whose pods are let go if they
    outlive them. `missing` is the kind, Workload or PodGroup, that the server does not know.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, recorder: EventRecorder,
        options: JobSchedulingOptions | None, managers: Iterable[str] = MANAGED_BY_NAMES,
        missing: Kind | None = None,
    ) -> None:  # fmt: skip
        self._recorder, self._informers = recorder, informers
        self._managed_by_names = frozenset(managers)
        self._queue: WorkQueue[Key] = new_work_queue(client, "job")
        #: Pods that wait to be counted and may have no Job to do it.
        self._orphan_queue: WorkQueue[Key] = new_work_queue(client, "job_orphan_pod")
        self._jobs, self._pods = informers.of(JOB, Job).cache, informers.of(POD, Pod).cache
        self._pods_by_job, self._orphans_by_label = (
            self._pods.index(job_keys),
            self._pods.index(orphan_index_keys),
        )
        self._jobs_by_selector = self._jobs.index(lambda job: [selector_index_key(job)])
        self._orphan_releaser = OrphanPodReleaser(
            client, self._pods, lambda pod: bool(self._adopting_jobs(pod))
        )
        self._context = self._build_context(client, clock, options, missing)
        self._jobs.subscribe(self._job_changed)
        self._pods.subscribe(self._pod_changed)

    def _build_context(
        self,
        client: Client,
        clock: Clock,
        options: JobSchedulingOptions | None,
        missing_kind: Kind | None,
    ) -> JobControllerContext:
        metrics = JobMetrics(client.metrics)
        caches: dict[Kind, ObjectCache[Any]] = {JOB: self._jobs, POD: self._pods}
        groups: JobWorkloadManager | MissingKindWorkloadManager | None = None
        if options is not None and missing_kind is not None:
            groups = MissingKindWorkloadManager(self._record_event, options, missing_kind)
        elif options is not None:
            groups = JobWorkloadManager(
                client, self._informers, self._record_event, self._queue, options
            )
            caches |= groups.caches
        writes = WriteTracker(client, caches, clock, metrics)
        return JobControllerContext(client, clock, writes, groups, metrics, self._record_event)

    async def run(self) -> None:
        """Look after Jobs until cancelled."""
        await self._informers.wait_for_sync()
        async with asyncio.TaskGroup() as group:
            if "" in self._managed_by_names:
                group.create_task(run_workers(self._orphan_queue, self._orphan_releaser.release))
            group.create_task(run_workers(self._queue, self.reconcile, _WORKERS))

    async def reconcile(self, key: Key) -> float | None:
        """Do what is due about one Job, and say when to look again; raises what that may cure."""
        if not self._context.write_tracker.has_caught_up(key):
            self._context.metrics.record_stale_skip()
            raise StaleCacheError(f"what was done about Job {key} is not seen yet")
        job, pods = self._jobs.get(key), self._pods_by_job[key]
        own = [pod for pod in pods if is_controlled_by(pod, job)] if job is not None else []
        if len(own) < len(pods):
            self._enqueue_orphans(pods)
        if job is None or job.spec.managed_by not in self._managed_by_names:
            return None
        return await JobReconciliation(
            self._context, job, own, self._orphans_by_label[selector_index_key(job)]
        ).run()

    def _record_event(self, job: Job, event: JobEvent) -> None:
        note = ObjectEvent(JOB, job.metadata, event.reason, event.message, event.type)
        self._recorder.record(note)

    def _adopting_jobs(self, pod: Pod) -> list[Key]:
        """The Jobs that would adopt a pod."""
        jobs = (job for at in orphan_index_keys(pod) for job in self._jobs_by_selector[at])
        return [
            job.metadata.key
            for job in jobs
            if job.spec.managed_by in self._managed_by_names and would_adopt(job, pod)
        ]

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        for job in (old, new):
            if job is not None:
                self._queue.add(job.metadata.key)
        if old is not None and (new is None or new.is_finished or new.metadata.deletion_timestamp):
            # Pods of nobody that it might have adopted, and never will now.
            self._enqueue_orphans(self._orphans_by_label[selector_index_key(old)])
        if new is None and old is not None and self._context.workloads is not None:
            self._context.workloads.forget(old.metadata.key)

    def _enqueue_orphans(self, pods: Iterable[Pod]) -> None:
        """Have it looked at whether pods have nobody, if that is ours to do."""
        for pod in pods if "" in self._managed_by_names else ():
            if is_tracked(pod):
                self._orphan_queue.add(pod.metadata.key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for key in job_keys(pod) if pod is not None else ():
                self._queue.add_after(key, POD_EVENT_DELAY)
        if new is None or not orphan_index_keys(new):
            return
        for key in self._adopting_jobs(new):
            self._queue.add_after(key, POD_EVENT_DELAY)
        self._enqueue_orphans([new])
