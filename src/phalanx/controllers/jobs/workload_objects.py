"""Arranging: sees to it, at one look at one Job, that it has its Workload and its PodGroup.

    Workload ─▶ PodGroup ─▶ pods

Each is looked for by reference, used as it is if it is the user's, made if it is missing, and its
size brought up to date if it is the Job's own. A group follows its new Workload at once, unless
many Jobs wait for theirs; pods wait until that is seen, for so is then what was there before it,
and the user's comes first. Whatever goes wrong here keeps pods from being made; what is merely
unclear has them scheduled one by one, and the Job says why.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from phalanx.api.batch import Job, JobStatus
from phalanx.api.errors import AlreadyExists, ApiError, Invalid, NotFound
from phalanx.api.kinds import JOB, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
    TOPOLOGY_ANNOTATION,
    PodGroup,
    Workload,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder import jobs as building
from phalanx.builder.groups import templates
from phalanx.builder.ownership import Link
from phalanx.client.client import Client
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import controller_of
from phalanx.controllers.jobs.pod_operations import is_namespace_terminating
from phalanx.controllers.jobs.scheduling_intent import (
    NO_GROUP,
    GroupMembership,
    LookupResult,
    ObjectFound,
    ObjectMissing,
    ObjectUnusable,
    SchedulingIntent,
    SchedulingObjectLister,
    SchedulingObjects,
    VerifiedScheduling,
    fallback_event,
    find_parent_workload,
    find_pod_group,
    find_workload,
    is_controlled_by_job,
    members_to_run,
    workload_object,
    workload_target,
)
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.jobs.write_tracker import TrackedWriter
from phalanx.controllers.pod_groups.replica_groups import inherit_preemption_policy
from phalanx.controllers.reconcile_loop import StaleCacheError

#: Who has made the objects, as they say themselves.
MANAGER_NAME = "job-controller"


class JobWorkloadReconciler:
    """The objects of one Job at one moment, and what it wants of them."""

    def __init__(
        self,
        client: Client,
        writer: TrackedWriter,
        lister: SchedulingObjectLister,
        record_event: Callable[[JobEvent], None],
        snapshot: JobSnapshot,
        intent: SchedulingIntent,
    ) -> None:
        self._client, self._writer, self._lister, self._record_event = (
            client,
            writer,
            lister,
            record_event,
        )
        self._snapshot, self._intent = snapshot, intent
        self._job, self._pods = snapshot.job_pods.job, snapshot.job_pods.pods

    async def ensure_for_root(self) -> GroupMembership:
        """Of a Workload that is about the Job."""
        match self._find_own_workload():
            case ObjectFound() as workload:
                return await self._use_workload(workload, None)
            case ObjectUnusable(why, spare):
                return await self._fall_back(WORKLOAD, why, spare)
        return await self._create_workload()

    async def ensure_for_child(self, link: Link) -> GroupMembership:
        """Of the Workload of whoever controls the Job."""
        owner = controller_of(self._job.metadata)
        match await self._find_parent_workload(owner) if owner else ObjectMissing():
            case ObjectFound() as workload:
                return await self._use_workload(workload, link)
            case ObjectUnusable(why):
                return GroupMembership(fallback=why)
        text = "The Workload of its parent is not there"
        return GroupMembership(fallback=fallback_event("ParentWorkloadNotFound", text))

    async def _use_workload(
        self, workload: ObjectFound[Workload], link: Link | None
    ) -> GroupMembership:
        candidates = self._lister.groups(workload.obj)
        if link is not None:
            candidates = [
                one for one in candidates if is_controlled_by_job(self._job, one.metadata)
            ]
        match find_pod_group(self._job, candidates):
            case ObjectFound() as group:
                return await self._use_group(workload, group)
            case ObjectUnusable(why, spare):
                return await self._fall_back(POD_GROUP, why, spare)
        place = await self._create_group(workload, link)
        if link is None and place.group:
            # The user may have made one too: that is seen when this is.
            raise StaleCacheError(f"PodGroup {place.group} is new")
        return place

    async def _use_group(
        self, workload: ObjectFound[Workload], group: ObjectFound[PodGroup]
    ) -> GroupMembership:
        name = group.obj.metadata.name
        if self._is_terminating(group.obj):
            raise StaleCacheError(f"PodGroup {name} is going")
        objects = SchedulingObjects.from_lister(self._lister, workload.obj)
        size = await self._sync_gang_size(workload, group)
        place = GroupMembership(name, group.obj.is_gang)
        if workload.obj in objects.workloads and not group.obj.metadata.deletion_timestamp:
            self._intent.verified = VerifiedScheduling(
                place, workload.obj, group.obj, objects, size
            )
        return place

    async def _fall_back(
        self, kind: Kind, event: JobEvent, redundant: Workload | PodGroup | None
    ) -> GroupMembership:
        """Go without; but what is ours, and nothing came of yet, gives way to the user's."""
        groups = self._lister.groups(redundant) if isinstance(redundant, Workload) else ()
        if redundant is None or self._pods or not all(map(self._is_unused, groups)):
            return GroupMembership(fallback=event)
        # The Workload goes when its group is gone, so that there is no second one meanwhile.
        for one in groups or (redundant,):
            await self._writer.delete(POD_GROUP if groups else kind, one.metadata)
        raise StaleCacheError(f"{kind.name} {redundant.metadata.name} gives way")

    def _is_unused(self, group: PodGroup) -> bool:
        """Whether a group is ours, and the Job has not begun with it."""
        return is_controlled_by_job(self._job, group.metadata) and self._job.status == JobStatus()

    def _find_own_workload(self) -> LookupResult[Workload]:
        job = self._job
        return find_workload(
            job, self._lister.workloads(job.metadata.namespace, workload_target(job))
        )

    async def _find_parent_workload(self, owner: OwnerReference) -> LookupResult[Workload]:
        """The parent's Workload. That it is not there is only believed if the API says so."""
        space = self._job.metadata.namespace
        about = owner.api_version.rpartition("/")[0], owner.kind, owner.name
        found = find_parent_workload(owner, self._lister.workloads(space, about))
        if isinstance(found, ObjectMissing):
            listing = await self._client.list(WORKLOAD, Workload, namespace=space)
            found = find_parent_workload(
                owner, [one for one in listing.items if one.controller_identity == about]
            )
        return found

    async def _create_workload(self) -> GroupMembership:
        name = self._job.metadata.name
        try:
            wanted = building.workload(self._intent.job)
        except Invalid as error:
            text = f"Failed to compile Workload for Job {name}: {error}"
            self._record_event(JobEvent("FailedWorkloadCompilation", text, WARNING))
            raise
        if place := self._membership_without_group(building.pod_group(self._intent.job, wanted)):
            return place
        made = msgspec.convert(await self._create(WORKLOAD, wanted), Workload)
        if self._lister.groups(made) or self._lister.is_queue_long:
            raise StaleCacheError(f"Workload {made.metadata.name} is new")
        place = await self._create_group(ObjectFound(made, is_owned=True), None)
        await self._lister.wait_until_cached(made)
        if not isinstance(self._find_own_workload(), ObjectFound):
            raise StaleCacheError(f"Workload {made.metadata.name} is not the only one")
        return place

    async def _create_group(
        self, workload: ObjectFound[Workload], link: Link | None
    ) -> GroupMembership:
        try:
            wanted = building.pod_group(self._intent.job, workload_object(workload.obj), link)
        except NotFound as error:
            return GroupMembership(fallback=fallback_event("TemplateNotFound", str(error)))
        if place := self._membership_without_group(wanted):
            return place
        if not workload.is_owned:
            # What is another's may stay when the Job goes; its group must not.
            del wanted["metadata"]["ownerReferences"][1:]
        await inherit_preemption_policy(self._client, wanted["spec"])
        made = msgspec.convert(await self._create(POD_GROUP, wanted), PodGroup)
        return GroupMembership(made.metadata.name, made.is_gang)

    def _membership_without_group(self, group: Object) -> GroupMembership | None:
        """Where pods go if there can be no such group, or none is to be made."""
        name = group["spec"].get("priorityClassName")
        if name in SYSTEM_PRIORITY_CLASSES:
            text = f"No PodGroup can be of the priority class {name}"
            return GroupMembership(fallback=fallback_event("PriorityTooHigh", text))
        return self._membership_of_existing_pods(group["metadata"]["name"])

    def _membership_of_existing_pods(self, group: str) -> GroupMembership | None:
        """Where pods go if no group of that name may be made: only such as they are in may."""
        groups = [pod.group.name if pod.group else "" for pod in self._pods]
        if all(name == group for name in groups):
            return None
        text = "What its pods were scheduled by is gone"
        return (
            GroupMembership(fallback=fallback_event("SchedulingObjectsLost", text))
            if any(groups)
            else NO_GROUP
        )

    async def _create(self, kind: Kind, wanted: Object) -> Object:
        """Make an object of ours. One that is there already has only not been seen yet."""
        name = self._job.metadata.name
        await self._check_job_exists()
        wanted["metadata"]["annotations"] = {
            MANAGED_BY_ANNOTATION: MANAGER_NAME
        } | self._topology_annotation(kind)
        try:
            made = await self._writer.create(kind, wanted)
        except ApiError as error:
            if isinstance(error, AlreadyExists) and await self._is_controlled(kind, wanted):
                raise StaleCacheError(str(error)) from error
            if not is_namespace_terminating(error):
                text = f"Failed to create {kind.name} for Job {name}: {error}"
                self._record_event(JobEvent(f"Failed{kind.name}Create", text, WARNING))
            raise
        text = f"Created {kind.name} {made['metadata']['name']} for Job {name}"
        self._record_event(JobEvent(f"{kind.name}Created", text))
        return made

    def _topology_annotation(self, kind: Kind) -> dict[str, str]:
        """What the Job says about its group in an annotation of its own."""
        near = self._job.metadata.annotations.get(TOPOLOGY_ANNOTATION)
        return {TOPOLOGY_ANNOTATION: near} if near and kind is POD_GROUP else {}

    async def _check_job_exists(self) -> None:
        """Make nothing again for a Job that is gone or going: that is why it is missing."""
        if self._job.status == JobStatus():
            return
        try:
            meta = (await self._client.get(JOB, self._job.metadata.key, Job)).metadata
        except NotFound as error:
            raise StaleCacheError(str(error)) from error
        if meta.uid != self._job.metadata.uid or meta.deletion_timestamp:
            raise StaleCacheError(f"Job {meta.name} is another one, or going")

    async def _is_controlled(self, kind: Kind, wanted: Object) -> bool:
        meta = wanted["metadata"]
        key = Key(meta["namespace"], meta["name"])
        try:
            struct: type[Workload | PodGroup] = Workload if kind is WORKLOAD else PodGroup
            return is_controlled_by_job(
                self._job, (await self._client.get(kind, key, struct)).metadata
            )
        except NotFound:
            return True

    async def _sync_gang_size(
        self, workload: ObjectFound[Workload], group: ObjectFound[PodGroup]
    ) -> int | None:
        """Bring the size of a gang in line with its Job, the Workload first; its size if ours."""
        if not group.obj.is_gang:
            return None
        size = await self._sync_template_size(workload, group.obj)
        if not group.is_owned:
            return None
        if size != group.obj.min_count:
            change = {"spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}
            meta = group.obj.metadata
            await self._writer.patch(POD_GROUP, meta, change, content=STRATEGIC_PATCH)
        await self._update_members_to_run(group.obj, size)
        return size

    async def _sync_template_size(self, workload: ObjectFound[Workload], group: PodGroup) -> int:
        """The size of the gang that a group is made of, or its own if it is made of none."""
        name = group.spec.workload_ref.template_name if group.spec.workload_ref else ""
        size = _template_gang_size(workload.obj, name)
        wanted = self._intent.size if workload.is_owned else None
        if size is None or wanted is None or wanted == size:
            return size or group.min_count
        resized = {"name": name, "schedulingPolicy": {"gang": {"minCount": wanted}}}
        change = {"spec": {"podGroupTemplates": [resized]}}
        await self._writer.patch(WORKLOAD, workload.obj.metadata, change, content=STRATEGIC_PATCH)
        return wanted

    async def _update_members_to_run(self, group: PodGroup, size: int) -> None:
        """Say how many members will still run where that is fewer than the gang needs."""
        meta = group.metadata
        wanted = members_to_run(self._snapshot, meta.name, size)
        if meta.annotations.get(MEMBERS_TO_RUN_ANNOTATION) != wanted:
            change = {"metadata": {"annotations": {MEMBERS_TO_RUN_ANNOTATION: wanted}}}
            await self._writer.patch(POD_GROUP, meta, change)

    def _is_terminating(self, group: PodGroup) -> bool:
        """Whether a group is on its way out and none of the Job's pods holds it up."""
        live = (
            pod for pod in self._pods if not pod.is_terminal and pod.group == group.metadata.key
        )
        return bool(group.metadata.deletion_timestamp) and next(live, None) is None


def _template_gang_size(workload: Workload, name: str) -> int | None:
    """The size of a gang that a template describes, wherever in the Workload that is."""
    known = {one["name"]: one for one in workload.spec.pod_group_templates or ()}
    if name not in known:
        known = {one.name: one.value for one in templates(workload_object(workload)).values()}
    policy: Object = known.get(name, {}).get("schedulingPolicy") or {}
    size: int | None = (policy.get("gang") or {}).get("minCount")
    return size
