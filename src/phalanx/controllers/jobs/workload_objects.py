"""Ensures the Workload and the PodGroup of one Job, in one sync, before its pods are created.

    Workload ─▶ PodGroup ─▶ pods

`phalanx.builder.ensure` plans what to create, resize and delete; a `JobWorkloadReconciler` observes
the objects, performs the plan and records events. The PodGroup of a new Workload is created at
once, unless the queue of Jobs is long. Pods wait until the cache shows the new Workload: the cache
then also shows a Workload that the user created before it, and that one takes precedence.

A failure here keeps pods from being created. An ambiguous or malformed object does not: the pods
are then scheduled one by one, and the condition SchedulingFallback says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from phalanx import logs
from phalanx.api.batch import Job, JobStatus
from phalanx.api.errors import AlreadyExists, ApiError, Invalid, NotFound
from phalanx.api.kinds import COMPOSITE_POD_GROUP, JOB, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Key, OwnerReference, PartialObjectMetadata
from phalanx.api.scheduling import (
    ON_DEGRADED_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    CompositePodGroup,
    PodGroup,
    Workload,
)
from phalanx.api.wire import Object
from phalanx.builder.discovery import ObjectFound, ObjectMissing
from phalanx.builder.ensure import (
    ensure_linked,
    find_own_workload,
    find_workload,
    has_composite_template,
)
from phalanx.builder.ensure_plan import (
    CreateObject,
    DeleteObject,
    EnsurePlan,
    GroupInstance,
    ObservedObjects,
    PatchObject,
)
from phalanx.builder.ownership import Link
from phalanx.client.client import Client
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.scheduling_intent import (
    NO_GROUP,
    GroupMembership,
    SchedulingIntent,
    SchedulingObjectLister,
    SchedulingObjects,
    VerifiedScheduling,
    count_members_to_run,
    fallback_event,
    workload_target,
)
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.pod_groups import inherit_preemption_policy
from phalanx.controllers.reconcile_loop import StaleCacheError, is_namespace_terminating
from phalanx.controllers.workload_operations import find_ancestors, target_of
from phalanx.controllers.write_tracker import TrackedWriter

#: The value of the managed-by annotation on objects that this controller creates.
MANAGER_NAME = "job-controller"
LOG = logs.component("job-controller")
#: The annotations of a Job that its PodGroup gets.
_COPIED_ANNOTATIONS = (TOPOLOGY_ANNOTATION, ON_DEGRADED_ANNOTATION)
#: A plan for the Workload, one for its groups, and one that finds nothing missing.
_MAX_PLANS = 3

Planner = Callable[[ObservedObjects], EnsurePlan]


class JobWorkloadReconciler:
    """Ensures the scheduling objects of one Job in one sync."""

    def __init__(
        self,
        client: Client,
        writer: TrackedWriter,
        lister: SchedulingObjectLister,
        *,
        record_event: Callable[[JobEvent], None],
        snapshot: JobSnapshot,
        intent: SchedulingIntent,
    ) -> None:
        self._client, self._writer, self._lister = client, writer, lister
        self._record_event = record_event
        self._snapshot, self._intent = snapshot, intent
        self._job, self._pods = snapshot.job_pods.job, snapshot.job_pods.pods

    async def ensure_for_root(self) -> GroupMembership:
        """Ensure the Workload and the PodGroup of a Job that is not part of another workload."""
        job, groups = self._intent.job, [self._wanted_group()]

        def plan(observed: ObservedObjects) -> EnsurePlan:
            return self._intent.builder.ensure(
                job, observed, groups, manager=MANAGER_NAME, is_started=self._is_started
            )

        workloads = self._list_own_workloads()
        planned, created = await self._perform(plan, self._observe(workloads))
        new = next((one for one in created if isinstance(one, Workload)), None)
        if new is not None:
            await self._lister.wait_until_cached(new)
            if not isinstance(find_own_workload(job, self._list_own_workloads()), ObjectFound):
                raise StaleCacheError(f"Workload {new.metadata.name} is not the only one")
        elif created:
            # The user may have created one too: the cache shows it when it shows this one.
            raise StaleCacheError(f"PodGroup {created[0].metadata.name} is not in the cache yet")
        return self._use(planned)

    async def ensure_for_child(self, link: Link) -> GroupMembership:
        """Ensure the PodGroup of a Job in the Workload of a controller above the Job."""
        group = self._wanted_group()
        workloads, ancestors = await self._find_parent_workloads(link)
        observed = await self._observe_linked(workloads, link)

        def plan(observed: ObservedObjects) -> EnsurePlan:
            return ensure_linked(
                self._intent.job,
                link,
                observed,
                groups=[group],
                ancestors=[msgspec.to_builtins(one) for one in ancestors],
                manager=MANAGER_NAME,
                is_started=self._is_started,
            )

        planned, _ = await self._perform(plan, observed)
        return self._use(planned)

    @property
    def _is_started(self) -> bool:
        """Whether the Job has, or had, pods: then its own objects do not give way to others."""
        return bool(self._pods) or self._job.status != JobStatus()

    def _wanted_group(self) -> GroupInstance:
        given = self._job.metadata.annotations
        return GroupInstance(
            pod_groups=frozenset(pod.group.name if pod.group else "" for pod in self._pods),
            members_to_run=lambda group: count_members_to_run(self._snapshot, group),
            annotations={name: given[name] for name in _COPIED_ANNOTATIONS if given.get(name)},
        )

    # ---- observing -------------------------------------------------------------------------------

    def _list_own_workloads(self) -> Sequence[Workload]:
        job = self._job
        return self._lister.workloads(job.metadata.namespace, workload_target(job))

    def _observe(
        self, workloads: Sequence[Workload], composites: Sequence[CompositePodGroup] = ()
    ) -> ObservedObjects:
        groups = [group for one in workloads for group in self._lister.groups(one)]
        return ObservedObjects(workloads, groups, composites)

    async def _observe_linked(self, workloads: Sequence[Workload], link: Link) -> ObservedObjects:
        """Observe the groups of a parent's Workload.

        CompositePodGroups are read with the API: few Jobs need them.
        """
        owner, namespace = self._job.metadata.controller, self._job.metadata.namespace
        is_direct = owner is not None and self._list_workloads_of([owner])
        if is_direct and not any(has_composite_template(one, link.template) for one in workloads):
            return self._observe(workloads)
        listing = await self._client.list(
            COMPOSITE_POD_GROUP, CompositePodGroup, namespace=namespace
        )
        return self._observe(workloads, listing.items)

    async def _find_parent_workloads(
        self, link: Link
    ) -> tuple[Sequence[Workload], Sequence[OwnerReference]]:
        """Find the Workload of the controller of the Job, or of one above that.

        They are looked up in the cache, then with the API.
        """
        meta = self._job.metadata
        owner, namespace = meta.controller, meta.namespace
        if owner is None:
            return (), ()
        if found := self._list_workloads_of([owner]):
            return found, ()
        if joined := await self._find_workload_of_group(Key(namespace, link.parent)):
            target = joined.controller_identity
            self._lister.remember_ancestors(meta.key, [(namespace, *target)] if target else [])
            return [joined], ()
        ancestors = await find_ancestors(self._client, namespace, owner)
        above = [target_of(namespace, one) for one in ancestors]
        self._lister.remember_ancestors(meta.key, above)
        found = self._list_workloads_of([owner, *ancestors])
        if not found:
            listing = await self._client.list(WORKLOAD, Workload, namespace=namespace)
            found = listing.items
        return found, ancestors

    async def _find_workload_of_group(self, parent: Key) -> Workload | None:
        """Find the Workload of the CompositePodGroup that a link names, if it names one."""
        try:
            group = (
                await self._client.get(COMPOSITE_POD_GROUP, parent, CompositePodGroup)
                if parent.name
                else None
            )
        except NotFound:
            return None
        ref = group.spec.workload_ref if group else None
        return self._lister.workload(Key(parent.namespace, ref.workload_name)) if ref else None

    def _list_workloads_of(self, owners: Sequence[OwnerReference]) -> Sequence[Workload]:
        """List the Workloads in the cache of the first of these owners that has a usable one."""
        namespace = self._job.metadata.namespace
        for owner in owners:
            workloads = self._lister.workloads(namespace, target_of(namespace, owner)[1:])
            found = find_workload(msgspec.to_builtins(owner), namespace, workloads)
            if not isinstance(found, ObjectMissing):
                return workloads
        return ()

    # ---- performing a plan -----------------------------------------------------------------------

    async def _perform(
        self, plan: Planner, observed: ObservedObjects
    ) -> tuple[EnsurePlan, list[Workload | PodGroup | CompositePodGroup]]:
        """Perform a plan, and plan again with what was created, until nothing is missing.

        Returns the last plan, and the created objects.
        """
        made: list[Workload | PodGroup | CompositePodGroup] = []
        for _ in range(_MAX_PLANS):
            planned, before = self._compile(plan, observed), len(made)
            for operation in planned.operations:
                match operation:
                    case CreateObject(kind, new):
                        created = await self._create(kind, new)
                        observed = observed.with_created(created)
                        made.append(msgspec.convert(created, _STRUCTS[kind]))
                    case PatchObject(kind, meta, change, content):
                        await self._writer.patch(kind, meta, change, content=content)
                        self._log(f"{kind.name} patched", object=meta.name, change=change)
                    case DeleteObject(kind, meta):
                        await self._writer.delete(kind, meta)
                        self._log(f"{kind.name} deleted", object=meta.name)
            if len(made) == before:
                return planned, made
            last = made[-1]
            if isinstance(last, Workload) and (
                self._lister.groups(last) or self._lister.is_queue_long
            ):
                raise StaleCacheError(f"Workload {last.metadata.name} is not in the cache yet")
        raise StaleCacheError(f"{made[-1].metadata.name} does not have the form that was created")

    def _compile(self, plan: Planner, observed: ObservedObjects) -> EnsurePlan:
        try:
            return plan(observed)
        except Invalid as error:
            text = f"Failed to compile Workload for Job {self._job.metadata.name}: {error}"
            self._record_event(JobEvent("FailedWorkloadCompilation", text, WARNING))
            raise

    def _use(self, plan: EnsurePlan) -> GroupMembership:
        """Return the membership of new pods; raise StaleCacheError if they must wait."""
        if not plan.is_ready:
            raise StaleCacheError("a scheduling object of the Job is being deleted")
        if plan.fallback is not None:
            return GroupMembership(
                fallback=fallback_event(plan.fallback.reason, plan.fallback.message)
            )
        group = next((one for one in plan.groups.values() if isinstance(one, PodGroup)), None)
        if group is None or plan.workload is None:
            return NO_GROUP
        meta, is_deleted = group.metadata, bool(group.metadata.deletion_timestamp)
        if is_deleted and not any(
            not pod.is_terminal and pod.group == meta.key for pod in self._pods
        ):
            raise StaleCacheError(f"PodGroup {meta.name} is being deleted and has no running pod")
        membership = GroupMembership(meta.name, is_gang=group.is_gang)
        objects = SchedulingObjects.from_lister(self._lister, plan.workload.obj)
        is_cached = plan.workload.obj in objects.workloads and group in objects.groups
        if is_cached and not plan.operations and not is_deleted:
            is_own_gang = group.is_gang and meta.is_controlled_by(self._job.metadata.uid)
            self._intent.verified = VerifiedScheduling(
                membership,
                plan.workload.obj,
                group,
                objects=objects,
                size=group.min_count if is_own_gang else None,
            )
        return membership

    async def _create(self, kind: Kind, new: Object) -> Object:
        """Create an object that the Job owns."""
        name = self._job.metadata.name
        await self._check_job_exists()
        if kind is not WORKLOAD:
            await inherit_preemption_policy(self._client, new["spec"])
        try:
            created = await self._writer.create(kind, new)
        except ApiError as error:
            if isinstance(error, AlreadyExists) and await self._is_controlled(kind, new):
                raise StaleCacheError(str(error)) from error
            if not is_namespace_terminating(error):
                text = f"Failed to create {kind.name} for Job {name}: {error}"
                self._record_event(JobEvent(f"Failed{kind.name}Create", text, WARNING))
            raise
        created_name = created["metadata"]["name"]
        text = f"Created {kind.name} {created_name} for Job {name}"
        self._record_event(JobEvent(f"{kind.name}Created", text))
        self._log(f"{kind.name} created", object=created_name)
        return created

    async def _check_job_exists(self) -> None:
        """Confirm with the API that a started Job exists: its objects may have gone with it."""
        if self._job.status == JobStatus():
            return
        try:
            meta = (await self._client.get(JOB, self._job.metadata.key, Job)).metadata
        except NotFound as error:
            raise StaleCacheError(str(error)) from error
        if meta.uid != self._job.metadata.uid or meta.deletion_timestamp:
            raise StaleCacheError(f"Job {meta.name} was replaced or is being deleted")

    async def _is_controlled(self, kind: Kind, new: Object) -> bool:
        """Whether the Job controls the existing object of that name; True if it is gone again."""
        key = Key(new["metadata"]["namespace"], new["metadata"]["name"])
        try:
            existing = await self._client.get(kind, key, PartialObjectMetadata)
        except NotFound:
            return True
        return existing.metadata.is_controlled_by(self._job.metadata.uid)

    def _log(self, action: str, **fields: object) -> None:
        LOG.debug(action, kind=JOB.name, key=self._job.metadata.key, **fields)


_STRUCTS: dict[Kind, type[Workload | PodGroup | CompositePodGroup]] = {
    WORKLOAD: Workload,
    POD_GROUP: PodGroup,
    COMPOSITE_POD_GROUP: CompositePodGroup,
}
