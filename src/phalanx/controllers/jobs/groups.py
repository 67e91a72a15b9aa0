"""Sees to it that a Job has its Workload and its PodGroup before it has pods.

    Workload ─▶ PodGroup ─▶ pods

Each is looked for by reference, used as it is if it is the user's, made if it is missing, and its
size brought up to date if it is the Job's own. Whatever goes wrong here keeps pods from being made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Invalid, NotFound
from phalanx.api.kinds import POD_GROUP, PRIORITY_CLASS, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.scheduling import MEMBERS_TO_RUN, PodGroup, Workload
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder import jobs as building
from phalanx.builder.links import Link
from phalanx.builder.management import ManageGroups, Management, ManageNothing
from phalanx.client.client import Client
from phalanx.controllers.jobs.objects import (
    Found,
    Missing,
    Search,
    Unusable,
    as_object,
    find_group,
    find_workload,
    parent,
    reference,
)
from phalanx.controllers.jobs.sync import Remark
from phalanx.controllers.loop import Informers

Tell = Callable[[Job, Remark], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the scheduling of Jobs is looked after here."""

    #: Whether Jobs that are no gangs get objects too.
    basic: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """The group that the pods of a Job belong to ("": none), and whether that is a gang."""

    group: str = ""
    is_gang: bool = False


PLAIN = Place()


class Groups:
    """The Workloads and PodGroups of Jobs."""

    def __init__(
        self, client: Client, informers: Informers, tell: Tell, settings: Settings
    ) -> None:
        self._client, self._tell, self._settings = client, tell, settings
        workloads, groups = (
            informers.of(WORKLOAD, Workload).cache,
            informers.of(POD_GROUP, PodGroup).cache,
        )
        self._workloads = workloads.index(lambda one: [_about(one)] if one.about else [])
        self._groups = groups.index(lambda one: [_made_of(one)] if one.spec.workload_ref else [])

    def management(self, job: Job) -> Management:
        """What of its scheduling objects is to be made for a Job."""
        return building.management(as_object(job), basic=self._settings.basic)

    async def ensure(self, job: Job, pods: Sequence[Pod], members: int) -> Place:
        """The group of a Job, made if it is missing. `members` are how many it will still run.

        Jobs that have pods without a group are never given one.
        """
        management = self.management(job)
        if isinstance(management, ManageNothing):
            return PLAIN
        may_make = all(pod.group for pod in pods)
        if isinstance(management, ManageGroups):
            return await self._delegated(job, management.link, may_make)
        workload = await self._workload(job, find_workload(job, self._of(job)), may_make)
        if workload is None:
            return PLAIN
        group = await self._group(job, workload, None, may_make)
        return await self._up_to_date(job, workload, group, members) if group else PLAIN

    def _of(self, job: Job) -> tuple[Workload, ...]:
        return self._workloads[(job.metadata.namespace, *reference(job))]

    async def _workload(self, job: Job, found: Search, may_make: bool) -> Found | None:
        match found:
            case Found():
                return found
            case Unusable(reason, message):
                self._tell(job, Remark(reason, message, "Warning"))
                return None
            case Missing():
                return await self._new_workload(job) if may_make else None

    async def _new_workload(self, job: Job) -> Found:
        name = job.metadata.name
        try:
            wanted = building.workload(as_object(job))
        except Invalid as error:
            text = f"Failed to compile Workload for Job {name}: {error}"
            self._tell(job, Remark("FailedWorkloadCompilation", text, "Warning"))
            raise
        try:
            made = await self._client.create(WORKLOAD, wanted)
        except ApiError as error:
            text = f"Failed to create Workload for Job {name}: {error}"
            self._tell(job, Remark("FailedWorkloadCreate", text, "Warning"))
            raise
        text = f"Created Workload {made['metadata']['name']} for Job {name}"
        self._tell(job, Remark("WorkloadCreated", text))
        return Found(made, is_ours=True)

    async def _delegated(self, job: Job, link: Link, may_make: bool) -> Place:
        """A group of the Workload of the Job's parent."""
        owner = parent(job)
        about = (owner.api_version.rpartition("/")[0], owner.kind, owner.name) if owner else ()
        candidates = self._workloads[(job.metadata.namespace, *about)]
        workload = next((one for one in candidates if not one.metadata.deletion_timestamp), None)
        if workload is None:
            text = "The Workload of its parent is not there, pods are scheduled one by one"
            self._tell(job, Remark("ParentWorkloadNotFound", text, "Warning"))
            return PLAIN
        group = await self._group(job, Found(workload, is_ours=False), link, may_make)
        return _place(group.obj) if group else PLAIN

    async def _group(
        self, job: Job, workload: Found, link: Link | None, may_make: bool
    ) -> Found | None:
        name = _name(workload.obj)
        mine = self._groups[Key(job.metadata.namespace, name)]
        if link is not None:
            mine = tuple(one for one in mine if _controls(job, one))
        match find_group(job, mine):
            case Found() as found:
                return found
            case Unusable(reason, message):
                self._tell(job, Remark(reason, message, "Warning"))
                return None
            case Missing():
                return await self._new_group(job, workload, link) if may_make else None

    async def _new_group(self, job: Job, workload: Found, link: Link | None) -> Found | None:
        source = await self._whole(workload.obj)
        try:
            wanted = building.pod_group(as_object(job), source, link)
        except NotFound as error:
            self._tell(job, Remark("TemplateNotFound", str(error), "Warning"))
            return None
        await self._take_policy(wanted)
        try:
            made = await self._client.create(POD_GROUP, wanted)
        except ApiError as error:
            text = f"Failed to create PodGroup for Job {job.metadata.name}: {error}"
            self._tell(job, Remark("FailedPodGroupCreate", text, "Warning"))
            raise
        text = f"Created PodGroup {made['metadata']['name']} for Job {job.metadata.name}"
        self._tell(job, Remark("PodGroupCreated", text))
        return Found(made, is_ours=True)

    async def _whole(self, workload: Workload | Object) -> Object:
        """A Workload with all its fields: what was decoded in part is read again."""
        if isinstance(workload, Workload):
            return await self._client.get(WORKLOAD, workload.metadata.key)
        return workload

    async def _take_policy(self, group: Object) -> None:
        """A class that never preempts is only taken by groups that say so too."""
        spec = group["spec"]
        if spec.get("priorityClassName") and "preemptionPolicy" not in spec:
            key = Key("", spec["priorityClassName"])
            found = await self._client.get(PRIORITY_CLASS, key)
            if policy := found.get("preemptionPolicy"):
                spec["preemptionPolicy"] = policy

    async def _up_to_date(self, job: Job, workload: Found, group: Found, members: int) -> Place:
        """Bring the size of a gang in line with its Job, the Workload first."""
        place = _place(group.obj)
        if not (place.is_gang and group.is_ours):
            return place
        if workload.is_ours:
            await self._resize(job, workload.obj, group.obj)
        await self._say_members(job, group.obj, members)
        return place

    async def _resize(
        self, job: Job, workload: Workload | Object, group: PodGroup | Object
    ) -> None:
        wanted = building.workload(as_object(job))["spec"]["podGroupTemplates"][0]
        size = wanted["schedulingPolicy"].get("gang", {}).get("minCount")
        if size is None:
            return
        space = job.metadata.namespace
        if _template_size(workload) not in (None, size):
            change = [{**_template(workload), "schedulingPolicy": {"gang": {"minCount": size}}}]
            key, patch = Key(space, _name(workload)), {"spec": {"podGroupTemplates": change}}
            await self._client.patch(WORKLOAD, key, patch)
        if _size(group) not in (None, size):
            policy = {"spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}
            await self._client.patch(
                POD_GROUP, Key(space, _name(group)), policy, content=STRATEGIC_PATCH
            )

    async def _say_members(self, job: Job, group: PodGroup | Object, members: int) -> None:
        """Say how many members will still run where that is fewer than the gang needs."""
        size, said = _size(group) or 0, _annotations(group).get(MEMBERS_TO_RUN)
        wanted = str(members) if 0 < members < size else None
        if said != wanted and not (said is None and members <= 0):
            change = {"metadata": {"annotations": {MEMBERS_TO_RUN: wanted}}}
            await self._client.patch(POD_GROUP, Key(job.metadata.namespace, _name(group)), change)


def _about(workload: Workload) -> tuple[str, ...]:
    assert workload.about is not None
    return (workload.metadata.namespace, *workload.about)


def _made_of(group: PodGroup) -> Key:
    assert group.spec.workload_ref is not None
    return Key(group.metadata.namespace, group.spec.workload_ref.workload_name)


def _controls(job: Job, group: PodGroup) -> bool:
    owners = group.metadata.owner_references
    return any(one.controller and one.uid == job.metadata.uid for one in owners)


def _name(found: Workload | PodGroup | Object) -> str:
    name: str = found["metadata"]["name"] if isinstance(found, dict) else found.metadata.name
    return name


def _annotations(group: PodGroup | Object) -> dict[str, str]:
    if isinstance(group, dict):
        return dict(group["metadata"].get("annotations") or {})
    return group.metadata.annotations


def _template(workload: Workload | Object) -> Object:
    if isinstance(workload, dict):
        first: Object = workload["spec"]["podGroupTemplates"][0]
        return first
    return (workload.spec.pod_group_templates or ({},))[0]


def _template_size(workload: Workload | Object) -> int | None:
    size: int | None = _template(workload)["schedulingPolicy"].get("gang", {}).get("minCount")
    return size


def _size(group: PodGroup | Object) -> int | None:
    if isinstance(group, dict):
        size: int | None = group["spec"]["schedulingPolicy"].get("gang", {}).get("minCount")
        return size
    gang = group.spec.scheduling_policy.gang
    return gang.min_count if gang else None


def _place(group: PodGroup | Object) -> Place:
    return Place(_name(group), _size(group) is not None)
