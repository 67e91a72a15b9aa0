"""The Job controller: informers enqueue Jobs, workers sync them.

    Jobs, Pods ─▶ queue of Jobs ─▶ JobController.reconcile ─▶ JobReconciliation.run ─▶ requests

A sync performs the plan of `sync.plan_sync` in this order: claim pods, ensure the PodGroup, delete
or create pods, write the status, remove finalizers. If a part fails, the other parts are still
performed and the Job is retried, with one exception: if the status is not written, no finalizer is
removed, so that no pod is lost before it is counted.

A Job is synced only once the caches show the writes of its last sync. Jobs that another controller
manages (`spec.managedBy`) are never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx import logs
from phalanx.api.batch import (
    COMPLETE,
    FAILED,
    JOB_CONTROLLER,
    OWN_JOB_CONTROLLER,
    SCHEDULING_FALLBACK,
    SUSPENDED,
    Job,
)
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Invalid
from phalanx.api.kinds import JOB, POD, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ResourceQuota
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.jobs.completion import JobSnapshot, is_disrupted
from phalanx.controllers.jobs.job_pods import (
    JobPods,
    claim_pods,
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
    OrphanPodReconciler,
    PodOperations,
)
from phalanx.controllers.jobs.quota_estimator import RETRY_SECONDS, QuotaEstimator, is_quota_refusal
from phalanx.controllers.jobs.replicas import MAX_PODS_PER_SYNC
from phalanx.controllers.jobs.restart import GangRestart, find_restart, restart_time
from phalanx.controllers.jobs.scheduling_intent import GroupMembership
from phalanx.controllers.jobs.sync import (
    MAX_UNCOUNTED_PODS,
    WARNING,
    JobEvent,
    JobStatusUpdate,
    SyncPlan,
    SyncResult,
    plan_sync,
)
from phalanx.controllers.jobs.workload_manager import (
    DisabledWorkloadManager,
    JobSchedulingOptions,
    JobWorkloadManager,
    JobWorkloads,
    MissingKindWorkloadManager,
)
from phalanx.controllers.reconcile_loop import (
    CountDelay,
    Informers,
    PodCreations,
    StaleCacheError,
    is_namespace_terminating,
    new_work_queue,
    run_workers,
)
from phalanx.controllers.write_tracker import WriteTracker

LOG = logs.component("job-controller")
#: The log line for each change of a condition that an operator cares about.
_TRANSITIONS = {
    (SUSPENDED, "True"): "Job suspended",
    (SUSPENDED, "False"): "Job resumed",
    (FAILED, "True"): "Job failed",
    (COMPLETE, "True"): "Job completed",
    (SCHEDULING_FALLBACK, "True"): "Job falls back to pods without a PodGroup",
    (SCHEDULING_FALLBACK, "False"): "Job uses its PodGroup again",
}


#: The fields of the status that follow from the creation of pods.
_CREATION_FIELDS = {"startTime", "active"}


@dataclass(frozen=True, slots=True)
class JobControllerContext:
    """What every sync uses."""

    client: Client
    clock: Clock
    write_tracker: WriteTracker
    workloads: JobWorkloads
    quotas: QuotaEstimator
    metrics: JobMetrics
    record_event: Callable[[Job, JobEvent], None]
    count_delay: CountDelay
    creations: PodCreations


class JobReconciliation:
    """One sync of a Job, given the pods that it controls and the orphans that it may adopt."""

    def __init__(
        self,
        context: JobControllerContext,
        job: Job,
        pods: Sequence[Pod],
        *,
        orphans: Sequence[Pod],
    ) -> None:
        self._context, self._job, self._pods, self._orphans = context, job, pods, orphans
        self._record_event = partial(context.record_event, job)
        self._writer = context.write_tracker.writer_for(job.metadata.key)
        self._pod_operations = PodOperations(self._writer, job, self._record_event)
        self._failures: list[OperationFailure] = []
        self._plan: SyncPlan | None = None
        self._quota_excess = ""
        #: After how many seconds a restart that backs off is due.
        self._requeue_after: float | None = None

    async def run(self) -> float | None:
        """Sync the Job; return after how many seconds to sync again, None for no time.

        Raises the first failure that a retry may cure.
        """
        clock, succeeded = self._context.clock, False
        start = clock.now()
        try:
            await (self._clean_up_finished() if self._job.is_finished else self._sync())
            retryable = [
                failure for failure in self._failures if not is_namespace_terminating(failure)
            ]
            succeeded = all(isinstance(failure, StaleCacheError) for failure in retryable)
            if retryable:
                raise retryable[0]
        finally:
            self._context.metrics.record_sync(
                self._job, self._plan, succeeded=succeeded, seconds=clock.now() - start
            )
        delays = (
            self._plan.requeue_after if self._plan else None,
            RETRY_SECONDS if self._quota_excess else None,
            self._requeue_after,
        )
        return min((delay for delay in delays if delay is not None), default=None)

    async def _clean_up_finished(self) -> None:
        """Clean up after a finished Job: its PodGroup, late pods, and remaining finalizers."""
        await self._context.workloads.clean_up(self._job, self._writer)
        late = JobPods(self._job, self._pods).active[:MAX_PODS_PER_SYNC]
        self._failures += (await self._pod_operations.discard(late))[1]
        tracked = [
            pod
            for pod in self._pods
            if is_tracked(pod) and (pod.is_terminal or is_terminating(pod))
        ]
        self._failures += await self._pod_operations.remove_finalizers(tracked[:MAX_UNCOUNTED_PODS])

    async def _sync(self) -> None:
        job_pods = JobPods(self._job, await self._claim_pods())
        await self._restart_degraded_gang(job_pods)
        self._plan = plan = plan_sync(self._take_snapshot(job_pods))
        membership = await self._ensure_group(plan)
        if self._failures and self._job.status.start_time is None:
            return  # The Job starts when its Workload and PodGroup exist.
        deleted, delete_failures = await self._pod_operations.delete(plan.pods_to_delete)
        discarded, discard_failures = await self._discard_pods(plan)
        self._failures += [*delete_failures, *discard_failures]
        created = await self._create_pods(plan, membership) if membership else 0
        result = SyncResult(
            deleted=[*deleted, *discarded],
            created=created,
            fallback=membership.fallback if membership else None,
            is_group_known=membership is not None,
            quota_excess=self._quota_excess,
        )
        await self._write_status(plan, result)
        self._failures += await self._pod_operations.remove_finalizers(plan.pods_to_untrack)

    def _take_snapshot(self, job_pods: JobPods) -> JobSnapshot:
        workloads = self._context.workloads
        return JobSnapshot(
            job_pods,
            self._context.clock.now(),
            ignores_disruptions=any(map(is_disrupted, job_pods.pods))
            and workloads.ignores_disruptions(self._job, job_pods.pods),
            restarted_at=max(map(restart_time, workloads.owned_groups(self._job)), default=0.0),
            gang_size=(
                workloads.gang_size(self._job) if self._context.quotas.concerns(self._job) else None
            ),
        )

    async def _restart_degraded_gang(self, job_pods: JobPods) -> None:
        """Begin to restart a gang whose lost members cannot be replaced, if the Job asks for it."""
        job, now = self._job, self._context.clock.now()
        if job.metadata.deletion_timestamp or job.spec.suspend:
            return
        groups = self._context.workloads.owned_groups(job)
        restart = find_restart(job, groups, job_pods.active, now=now)
        if isinstance(restart, float):
            self._requeue_after = restart
        if not isinstance(restart, GangRestart):
            return
        change = {"metadata": {"annotations": restart.annotations}}
        await self._writer.patch(POD_GROUP, restart.group.metadata, change, exact=True)
        self._record_event(JobEvent("GangRestarted", f"Restarting: {restart.cause}", WARNING))
        LOG.info("Gang restarted", kind=JOB.name, key=job.metadata.key, reason=restart.cause)
        raise StaleCacheError(f"PodGroup {restart.group.metadata.name} was restarted")

    async def _discard_pods(self, plan: SyncPlan) -> tuple[list[Pod], list[OperationFailure]]:
        if plan.replicas.restarts_gang:
            text = "the gang is restarted: lost members could not be replaced"
            return await self._pod_operations.evict(plan.pods_to_discard, text, plan.snapshot.now)
        return await self._pod_operations.discard(plan.pods_to_discard)

    async def _claim_pods(self) -> Sequence[Pod]:
        """Return the owned pods, or adopt and release pods and raise until the cache shows it."""
        claimed = claim_pods(self._job, self._pods, self._orphans)
        if not (claimed.to_adopt or claimed.to_release):
            return claimed.owned
        failures = await self._pod_operations.release(claimed.to_release)
        if claimed.to_adopt:
            # The API itself confirms that the Job exists: the cache may be behind its deletion.
            live = (await self._context.client.get(JOB, self._job.metadata.key, Job)).metadata
            if live.uid == self._job.metadata.uid and not live.deletion_timestamp:
                failures += await self._pod_operations.adopt(claimed.to_adopt)
        raise failures[0] if failures else StaleCacheError("pods were adopted or released")

    async def _ensure_group(self, plan: SyncPlan) -> GroupMembership | None:
        """Return the PodGroup for new pods; None if no pods are due, or if ensuring it failed."""
        if plan.outcome is not None or self._job.metadata.deletion_timestamp:
            return None
        try:
            return await self._context.workloads.ensure_group(plan.snapshot, self._writer)
        except (ApiError, Unreachable, StaleCacheError) as failure:
            self._failures.append(failure)
            return None

    async def _create_pods(self, plan: SyncPlan, membership: GroupMembership) -> int:
        """Create pods; those of a gang only if no ResourceQuota refuses them."""
        if membership.is_gang and plan.pods_to_create:
            self._quota_excess = await self._context.quotas.find_excess(plan.snapshot)
            if self._quota_excess:
                return 0
        first_batch = len(plan.pods_to_create) if membership.is_gang else 1
        if (self._job.spec.template.get("spec") or {}).get("schedulingGroup"):
            # The pods of a JobSet name their group themselves: a gang waits for the last of them.
            first_batch = GROUP_BATCH
        creations, number = self._context.creations, len(plan.pods_to_create)
        creations.active += number
        try:
            created, failures = await self._pod_operations.create(
                plan.pods_to_create, membership.group, first_batch=first_batch
            )
        finally:
            creations.active -= number
        self._context.metrics.record_pod_creations(plan, created, len(failures))
        refusals = [one for one in failures if membership.is_gang and is_quota_refusal(one)]
        if refusals:
            # The rest follows, or is given up, by the rules of `quota`; not by a retry.
            self._quota_excess = str(refusals[0])
        self._failures += [one for one in failures if one not in refusals]
        return created

    async def _write_status(self, plan: SyncPlan, result: SyncResult) -> None:
        """Write the status to the version of the Job that was synced, then record its events."""
        update = plan.build_status_update(result)
        key = self._job.metadata.key
        if self._may_wait(plan, update) and (
            wait := self._context.count_delay.seconds_to_wait(key)
        ):
            self._requeue_after = min(wait, self._requeue_after or wait)
            return
        self._context.count_delay.forget(key)
        if not update.status:
            return
        meta, change = self._job.metadata, {"status": update.status}
        try:
            await self._writer.patch(JOB, meta, change, subresource="status", exact=True)
        except Invalid as error:
            self._record_event(JobEvent("FailedStatusUpdate", str(error), WARNING))
            raise
        self._context.metrics.record_status_update(plan, result)
        for event in update.events:
            self._record_event(event)
        self._log_transitions(update)

    def _may_wait(self, plan: SyncPlan, update: JobStatusUpdate) -> bool:
        """Whether the first status of a Job says no more than that pods were created."""
        job, fields = self._job, {name for name, value in update.status.items() if value}
        is_first = job.status.start_time is None and job.spec.active_deadline_seconds is None
        is_simple = bool(fields) and fields <= _CREATION_FIELDS and not update.events
        return is_first and is_simple and not plan.pods_to_untrack

    def _log_transitions(self, update: JobStatusUpdate) -> None:
        before = {
            (condition.type, condition.status, condition.reason)
            for condition in self._job.status.conditions
        }
        key = self._job.metadata.key
        for condition in update.status.get("conditions", ()):
            message = _TRANSITIONS.get((condition["type"], condition["status"]))
            reason, detail = condition.get("reason", ""), condition.get("message", "")
            if (
                message is not None
                and (condition["type"], condition["status"], reason) not in before
            ):
                LOG.info(message, kind=JOB.name, key=key, reason=reason, detail=detail)


#: Seconds for which changes of the pods of one Job are collected before it is synced.
POD_EVENT_DELAY = 0.1
_WORKERS = 16
#: The pods that a Job in the group of another owner creates first; a quota may refuse them.
GROUP_BATCH = 16
#: The values of `spec.managedBy` that this controller manages where it is the only one.
MANAGED_BY_NAMES = ("", JOB_CONTROLLER, OWN_JOB_CONTROLLER)


class JobController:
    """Runs Jobs until cancelled.

    Without `options` Jobs get neither Workloads nor PodGroups. `managers` are the values of
    `spec.managedBy` to manage; if "" is among them, orphan pods are untracked too. `missing_kind`
    is the kind, Workload or PodGroup, that the API server does not serve. Counts wait while
    `is_busy`; `creations` counts the pods that are being created.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        recorder: EventRecorder,
        options: JobSchedulingOptions | None,
        managers: Iterable[str] = MANAGED_BY_NAMES,
        missing_kind: Kind | None = None,
        is_busy: Callable[[], bool] = lambda: False,
        creations: PodCreations | None = None,
    ) -> None:
        self._recorder, self._informers = recorder, informers
        self._managed_by_names = frozenset(managers)
        self._queue: WorkQueue[Key] = new_work_queue(client, "job")
        #: Tracked pods that may have no Job to count them.
        self._orphan_queue: WorkQueue[Key] = new_work_queue(client, "job_orphan_pod")
        self._jobs, self._pods = informers.of(Job).cache, informers.of(Pod).cache
        self._pods_by_job = self._pods.index(job_keys)
        self._orphans_by_label = self._pods.index(orphan_index_keys)
        self._jobs_by_selector = self._jobs.index(lambda job: [selector_index_key(job)])
        self._orphan_pods = OrphanPodReconciler(
            client, self._pods, lambda pod: bool(self._adopting_jobs(pod))
        )
        self._context = self._build_context(
            client,
            clock,
            options,
            missing_kind=missing_kind,
            count_delay=CountDelay(clock, is_busy),
            creations=creations or PodCreations(),
        )
        self._jobs.subscribe(self._on_job_change)
        self._pods.subscribe(self._on_pod_change)

    def _build_context(
        self,
        client: Client,
        clock: Clock,
        options: JobSchedulingOptions | None,
        *,
        missing_kind: Kind | None,
        count_delay: CountDelay,
        creations: PodCreations,
    ) -> JobControllerContext:
        metrics = JobMetrics(client.metrics)
        caches: dict[Kind, ObjectCache[Any]] = {JOB: self._jobs, POD: self._pods}
        workloads: JobWorkloads
        if options is None:
            workloads = DisabledWorkloadManager()
        elif missing_kind is not None:
            workloads = MissingKindWorkloadManager(self._record_event, options, missing_kind)
        else:
            workloads = JobWorkloadManager(
                client, self._informers, self._record_event, queue=self._queue, options=options
            )
            caches |= workloads.caches
        return JobControllerContext(
            client,
            clock,
            WriteTracker(client, caches, clock, metrics=metrics),
            workloads=workloads,
            quotas=QuotaEstimator(
                client,
                self._informers.of(ResourceQuota, optional=True).cache,
                self._jobs,
                on_change=lambda key: self._queue.add_after(key, POD_EVENT_DELAY),
            ),
            metrics=metrics,
            record_event=self._record_event,
            count_delay=count_delay,
            creations=creations,
        )

    async def run(self) -> None:
        """Run Jobs until cancelled."""
        await self._informers.wait_for_sync()
        async with asyncio.TaskGroup() as group:
            if "" in self._managed_by_names:
                group.create_task(run_workers(self._orphan_queue, self._orphan_pods.reconcile))
            group.create_task(run_workers(self._queue, self.reconcile, _WORKERS))

    async def reconcile(self, key: Key) -> float | None:
        """Sync one Job; return after how many seconds to sync again. Raises what a retry cures."""
        if not self._context.write_tracker.has_caught_up(key):
            self._context.metrics.record_stale_skip()
            raise StaleCacheError(f"the caches do not show the last writes for Job {key} yet")
        job, pods = self._jobs.get(key), self._pods_by_job[key]
        uid = job.metadata.uid if job is not None else ""
        owned = [pod for pod in pods if pod.metadata.is_controlled_by(uid)]
        if len(owned) < len(pods):
            self._enqueue_orphans(pods)
        if job is None or job.spec.managed_by not in self._managed_by_names:
            return None
        orphans = self._orphans_by_label[selector_index_key(job)]
        return await JobReconciliation(self._context, job, owned, orphans=orphans).run()

    def _record_event(self, job: Job, event: JobEvent) -> None:
        self._recorder.record(
            ObjectEvent(JOB, job.metadata, event.reason, message=event.message, type=event.type)
        )

    def _adopting_jobs(self, pod: Pod) -> list[Key]:
        """The Jobs that would adopt a pod."""
        jobs = (job for index in orphan_index_keys(pod) for job in self._jobs_by_selector[index])
        return [
            job.metadata.key
            for job in jobs
            if job.spec.managed_by in self._managed_by_names and would_adopt(job, pod)
        ]

    def _on_job_change(self, old: Job | None, new: Job | None) -> None:
        for job in (old, new):
            if job is not None:
                self._queue.add(job.metadata.key)
        if old is not None and (new is None or new.is_finished or new.metadata.deletion_timestamp):
            # The Job might have adopted these orphans, and cannot any more.
            self._enqueue_orphans(self._orphans_by_label[selector_index_key(old)])
        if new is None and old is not None:
            self._context.workloads.forget(old.metadata.key)
            self._context.count_delay.forget(old.metadata.key)

    def _enqueue_orphans(self, pods: Iterable[Pod]) -> None:
        for pod in pods if "" in self._managed_by_names else ():
            if is_tracked(pod):
                self._orphan_queue.add(pod.metadata.key)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for key in job_keys(pod) if pod is not None else ():
                self._queue.add_after(key, POD_EVENT_DELAY)
        if new is None or new.metadata.controller is not None:
            return
        for key in self._adopting_jobs(new):
            self._queue.add_after(key, POD_EVENT_DELAY)
        self._enqueue_orphans([new])
