"""Ensures the Workload and the PodGroup of one Job, in one sync, before its pods are created.

    Workload ─▶ PodGroup ─▶ pods

Each object is looked up by reference (`scheduling_intent`), used unchanged if it is the user's,
created if it is missing, and resized if it is the Job's own. The PodGroup of a new Workload is
created at once, unless the queue of Jobs is long. Pods wait until the cache shows the new Workload:
the cache then also shows a Workload that the user created before it, and that one takes precedence.

A failure here keeps pods from being created. An ambiguous or malformed object does not: the pods
are then scheduled one by one, and the condition SchedulingFallback says why.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from phalanx import logs
from phalanx.api.batch import Job, JobStatus
from phalanx.api.errors import AlreadyExists, ApiError, Invalid, NotFound
from phalanx.api.kinds import JOB, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    ON_DEGRADED_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
    TOPOLOGY_ANNOTATION,
    PodGroup,
    Workload,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder import jobs as job_builder
from phalanx.builder.discovery import (
    Fallback,
    LookupResult,
    ObjectFound,
    ObjectMissing,
    ObjectUnusable,
)
from phalanx.builder.ensure import resize_templates, workload_object
from phalanx.builder.groups import templates
from phalanx.builder.ownership import Link
from phalanx.client.client import Client
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.pod_operations import is_namespace_terminating
from phalanx.controllers.jobs.scheduling_intent import (
    NO_GROUP,
    GroupMembership,
    SchedulingIntent,
    SchedulingObjectLister,
    SchedulingObjects,
    VerifiedScheduling,
    fallback_event,
    find_parent_workload,
    find_pod_group,
    find_workload,
    members_to_run,
    workload_target,
)
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.pod_groups import inherit_preemption_policy
from phalanx.controllers.reconcile_loop import StaleCacheError
from phalanx.controllers.write_tracker import TrackedWriter

#: The value of the managed-by annotation on objects that this controller creates.
MANAGER_NAME = "job-controller"
LOG = logs.component("job-controller")
#: The annotations of a Job that its PodGroup gets.
_COPIED_ANNOTATIONS = (TOPOLOGY_ANNOTATION, ON_DEGRADED_ANNOTATION)


class JobWorkloadReconciler:
    """Ensures the scheduling objects of one Job in one sync."""

    def __init__(
        self,
        client: Client,
        writer: TrackedWriter,
        lister: SchedulingObjectLister,
        record_event: Callable[[JobEvent], None],
        *,
        snapshot: JobSnapshot,
        intent: SchedulingIntent,
    ) -> None:
        self._client, self._writer, self._lister = client, writer, lister
        self._record_event = record_event
        self._snapshot, self._intent = snapshot, intent
        self._job, self._pods = snapshot.job_pods.job, snapshot.job_pods.pods

    async def ensure_for_root(self) -> GroupMembership:
        """Ensure the Workload and the PodGroup of a Job that is not part of another workload."""
        match self._find_own_workload():
            case ObjectFound() as workload:
                return await self._use_workload(workload, None)
            case ObjectUnusable(fallback, redundant):
                return await self._fall_back(WORKLOAD, _event(fallback), redundant)
        return await self._create_workload()

    async def ensure_for_child(self, link: Link) -> GroupMembership:
        """Ensure the PodGroup of a Job in the Workload of the Job's controller."""
        owner = self._job.metadata.controller
        match await self._find_parent_workload(owner) if owner else ObjectMissing():
            case ObjectFound() as workload:
                return await self._use_workload(workload, link)
            case ObjectUnusable(fallback):
                return GroupMembership(fallback=_event(fallback))
        text = "The Workload of its parent was not found"
        return GroupMembership(fallback=fallback_event("ParentWorkloadNotFound", text))

    async def _use_workload(
        self, workload: ObjectFound[Workload], link: Link | None
    ) -> GroupMembership:
        candidates = self._lister.groups(workload.obj)
        if link is not None:
            candidates = [
                one for one in candidates if one.metadata.is_controlled_by(self._job.metadata.uid)
            ]
        match find_pod_group(self._job, candidates):
            case ObjectFound() as group:
                return await self._use_group(workload, group)
            case ObjectUnusable(fallback, redundant):
                return await self._fall_back(POD_GROUP, _event(fallback), redundant)
        membership = await self._create_group(workload, link)
        if link is None and membership.group:
            # The user may have created one too: the cache shows it when it shows this one.
            raise StaleCacheError(f"PodGroup {membership.group} is not in the cache yet")
        return membership

    async def _use_group(
        self, workload: ObjectFound[Workload], group: ObjectFound[PodGroup]
    ) -> GroupMembership:
        name, is_deleted = group.obj.metadata.name, bool(group.obj.metadata.deletion_timestamp)
        if is_deleted and not any(
            not pod.is_terminal and pod.group == group.obj.metadata.key for pod in self._pods
        ):
            raise StaleCacheError(f"PodGroup {name} is being deleted and has no running pod")
        objects = SchedulingObjects.from_lister(self._lister, workload.obj)
        size = await self._sync_gang_size(workload, group)
        membership = GroupMembership(name, is_gang=group.obj.is_gang)
        if workload.obj in objects.workloads and not is_deleted:
            self._intent.verified = VerifiedScheduling(
                membership, workload.obj, group.obj, objects=objects, size=size
            )
        return membership

    async def _fall_back(
        self, kind: Kind, event: JobEvent, redundant: Workload | PodGroup | None
    ) -> GroupMembership:
        """Use no group; but delete our own redundant object if the Job has not started with it."""
        groups = self._lister.groups(redundant) if isinstance(redundant, Workload) else ()
        is_started = self._job.status != JobStatus()
        is_used = any(
            is_started or not group.metadata.is_controlled_by(self._job.metadata.uid)
            for group in groups
        )
        if redundant is None or self._pods or is_used:
            return GroupMembership(fallback=event)
        # First the PodGroup, at a later sync the Workload: else a second PodGroup could be created.
        for one in groups or (redundant,):
            await self._writer.delete(POD_GROUP if groups else kind, one.metadata)
            self._log("Redundant object deleted", object=one.metadata.name)
        raise StaleCacheError(f"{kind.name} {redundant.metadata.name} is redundant and was deleted")

    def _find_own_workload(self) -> LookupResult[Workload]:
        job = self._job
        return find_workload(
            job, self._lister.workloads(job.metadata.namespace, workload_target(job))
        )

    async def _find_parent_workload(self, owner: OwnerReference) -> LookupResult[Workload]:
        """Find the parent's Workload in the cache, or with the API if the cache has none."""
        namespace = self._job.metadata.namespace
        target = owner.api_version.rpartition("/")[0], owner.kind, owner.name
        found = find_parent_workload(owner, self._lister.workloads(namespace, target))
        if isinstance(found, ObjectMissing):
            listing = await self._client.list(WORKLOAD, Workload, namespace=namespace)
            found = find_parent_workload(
                owner, [one for one in listing.items if one.controller_identity == target]
            )
        return found

    async def _create_workload(self) -> GroupMembership:
        name = self._job.metadata.name
        try:
            new = job_builder.build_workload(self._intent.job)
        except Invalid as error:
            text = f"Failed to compile Workload for Job {name}: {error}"
            self._record_event(JobEvent("FailedWorkloadCompilation", text, WARNING))
            raise
        group = job_builder.build_pod_group(self._intent.job, new)
        if membership := self._membership_without_group(group):
            return membership
        created = msgspec.convert(await self._create(WORKLOAD, new), Workload)
        if self._lister.groups(created) or self._lister.is_queue_long:
            raise StaleCacheError(f"Workload {created.metadata.name} is not in the cache yet")
        membership = await self._create_group(ObjectFound(created, is_owned=True), None)
        await self._lister.wait_until_cached(created)
        if not isinstance(self._find_own_workload(), ObjectFound):
            raise StaleCacheError(f"Workload {created.metadata.name} is not the only one")
        return membership

    async def _create_group(
        self, workload: ObjectFound[Workload], link: Link | None
    ) -> GroupMembership:
        try:
            new = job_builder.build_pod_group(self._intent.job, workload_object(workload.obj), link)
        except NotFound as error:
            return GroupMembership(fallback=fallback_event("TemplateNotFound", str(error)))
        if membership := self._membership_without_group(new):
            return membership
        if not workload.is_owned:
            # A Workload that is not the Job's may outlive the Job. Its PodGroup must not.
            del new["metadata"]["ownerReferences"][1:]
        await inherit_preemption_policy(self._client, new["spec"])
        created = msgspec.convert(await self._create(POD_GROUP, new), PodGroup)
        return GroupMembership(created.metadata.name, is_gang=created.is_gang)

    def _membership_without_group(self, group: Object) -> GroupMembership | None:
        """Return the membership of new pods if this PodGroup must not be created; else None.

        A PodGroup cannot have a system priority class. And pods cannot join a PodGroup later: if
        the Job has pods, only the PodGroup in which they already are is created again.
        """
        priority_class = group["spec"].get("priorityClassName")
        if priority_class in SYSTEM_PRIORITY_CLASSES:
            text = f"A PodGroup cannot have the priority class {priority_class}"
            return GroupMembership(fallback=fallback_event("PriorityTooHigh", text))
        groups = [pod.group.name if pod.group else "" for pod in self._pods]
        if all(name == group["metadata"]["name"] for name in groups):
            return None
        if not any(groups):
            return NO_GROUP
        text = "The Workload or PodGroup of its pods was deleted"
        return GroupMembership(fallback=fallback_event("SchedulingObjectsLost", text))

    async def _create(self, kind: Kind, new: Object) -> Object:
        """Create an object that the Job owns."""
        name = self._job.metadata.name
        await self._check_job_exists()
        annotations = {MANAGED_BY_ANNOTATION: MANAGER_NAME}
        if kind is POD_GROUP:
            given = self._job.metadata.annotations
            annotations |= {name: given[name] for name in _COPIED_ANNOTATIONS if given.get(name)}
        new["metadata"]["annotations"] = annotations
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
        meta = new["metadata"]
        key = Key(meta["namespace"], meta["name"])
        struct: type[Workload | PodGroup] = Workload if kind is WORKLOAD else PodGroup
        try:
            existing = await self._client.get(kind, key, struct)
        except NotFound:
            return True
        return existing.metadata.is_controlled_by(self._job.metadata.uid)

    async def _sync_gang_size(
        self, workload: ObjectFound[Workload], group: ObjectFound[PodGroup]
    ) -> int | None:
        """Resize the Workload, then the PodGroup; return the size if the Job owns the PodGroup."""
        if not group.obj.is_gang:
            return None
        size = await self._sync_template_size(workload, group.obj)
        if not group.is_owned:
            return None
        meta = group.obj.metadata
        if size != group.obj.min_count:
            change: Object = {"spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}
            await self._writer.patch(POD_GROUP, meta, change, content=STRATEGIC_PATCH)
            self._log("PodGroup resized", object=meta.name, size=size)
        members = members_to_run(self._snapshot, meta.name, size)
        if meta.annotations.get(MEMBERS_TO_RUN_ANNOTATION) != members:
            change = {"metadata": {"annotations": {MEMBERS_TO_RUN_ANNOTATION: members}}}
            await self._writer.patch(POD_GROUP, meta, change)
            self._log("PodGroup annotated", object=meta.name, members=members)
        return size

    async def _sync_template_size(self, workload: ObjectFound[Workload], group: PodGroup) -> int:
        """Resize the template of a PodGroup if the Job owns it; return the size of the gang."""
        name = group.spec.workload_ref.template_name if group.spec.workload_ref else ""
        current = _template_gang_size(workload.obj, name)
        desired = self._intent.size if workload.is_owned else None
        if current is None or desired is None or desired == current:
            return current or group.min_count
        change = {"spec": resize_templates(workload_object(workload.obj)["spec"], {name: desired})}
        await self._writer.patch(WORKLOAD, workload.obj.metadata, change)
        self._log("Workload resized", object=workload.obj.metadata.name, size=desired)
        return desired

    def _log(self, action: str, **fields: object) -> None:
        LOG.debug(action, kind=JOB.name, key=self._job.metadata.key, **fields)


def _event(fallback: Fallback) -> JobEvent:
    return fallback_event(fallback.reason, fallback.message)


def _template_gang_size(workload: Workload, name: str) -> int | None:
    """The `minCount` of a template on any level of a Workload; None if it is not a gang."""
    by_name = {template["name"]: template for template in workload.spec.pod_group_templates or ()}
    if name not in by_name:
        by_name = {
            template.name: template.value
            for template in templates(workload_object(workload)).values()
        }
    policy: Object = by_name.get(name, {}).get("schedulingPolicy") or {}
    size: int | None = (policy.get("gang") or {}).get("minCount")
    return size
