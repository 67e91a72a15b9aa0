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
from phalanx.api.priorityclasses import SYSTEM_CLASSES
from phalanx.api.scheduling import MANAGED_BY, MEMBERS_TO_RUN, TOPOLOGY, PodGroup, Workload
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder import jobs as building
from phalanx.builder.groups import templates
from phalanx.builder.links import Link
from phalanx.client.client import Client
from phalanx.controllers.groups.grouppriority import take_policy
from phalanx.controllers.jobs.claiming import controller
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.hands import is_futile
from phalanx.controllers.jobs.objects import (
    Found,
    Missing,
    Search,
    Unusable,
    controls,
    fallback,
    find_group,
    find_parent,
    find_workload,
    reference,
    workload_object,
)
from phalanx.controllers.jobs.standing import (
    PLAIN,
    Objects,
    Place,
    Standing,
    View,
    members_to_run,
)
from phalanx.controllers.jobs.sync import WARNING, Remark
from phalanx.controllers.jobs.wishes import Wish
from phalanx.controllers.jobs.writes import Pen
from phalanx.controllers.loop import Behind

#: Who has made the objects, as they say themselves.
MANAGER = "job-controller"


class Arrangement:
    """The objects of one Job at one moment, and what it wants of them."""

    def __init__(
        self, client: Client, pen: Pen, view: View, tell: Callable[[Remark], None],
        situation: Situation, wish: Wish,
    ) -> None:  # fmt: skip
        self._client, self._pen, self._view, self._tell = client, pen, view, tell
        self._situation, self._wish = situation, wish
        self._job, self._pods = situation.roll.job, situation.roll.pods

    async def as_root(self) -> Place:
        """Of a Workload that is about the Job."""
        match self._own_workload():
            case Found() as workload:
                return await self._in_group_of(workload, None)
            case Unusable(why, spare):
                return await self._in_doubt(WORKLOAD, why, spare)
        return await self._with_new_workload()

    async def as_part(self, link: Link) -> Place:
        """Of the Workload of whoever controls the Job."""
        owner = controller(self._job.metadata)
        match await self._parent(owner) if owner else Missing():
            case Found() as workload:
                return await self._in_group_of(workload, link)
            case Unusable(why):
                return Place(fallback=why)
        text = "The Workload of its parent is not there"
        return Place(fallback=fallback("ParentWorkloadNotFound", text))

    async def _in_group_of(self, workload: Found[Workload], link: Link | None) -> Place:
        candidates = self._view.groups(workload.obj)
        if link is not None:
            candidates = [one for one in candidates if controls(self._job, one.metadata)]
        match find_group(self._job, candidates):
            case Found() as group:
                return await self._in_group(workload, group)
            case Unusable(why, spare):
                return await self._in_doubt(POD_GROUP, why, spare)
        place = await self._with_new_group(workload, link)
        if link is None and place.group:
            # The user may have made one too: that is seen when this is.
            raise Behind(f"PodGroup {place.group} is new")
        return place

    async def _in_group(self, workload: Found[Workload], group: Found[PodGroup]) -> Place:
        name = group.obj.metadata.name
        if self._is_leaving(group.obj):
            raise Behind(f"PodGroup {name} is going")
        objects = Objects.seen(self._view, workload.obj)
        size = await self._keep_up(workload, group)
        place = Place(name, group.obj.is_gang)
        if workload.obj in objects.workloads and not group.obj.metadata.deletion_timestamp:
            self._wish.standing = Standing(place, workload.obj, group.obj, objects, size)
        return place

    async def _in_doubt(self, kind: Kind, why: Remark, spare: Workload | PodGroup | None) -> Place:
        """Go without; but what is ours, and nothing came of yet, gives way to the user's."""
        groups = self._view.groups(spare) if isinstance(spare, Workload) else ()
        if spare is None or self._pods or not all(map(self._is_fresh, groups)):
            return Place(fallback=why)
        # The Workload goes when its group is gone, so that there is no second one meanwhile.
        for one in groups or (spare,):
            await self._pen.delete(POD_GROUP if groups else kind, one.metadata)
        raise Behind(f"{kind.name} {spare.metadata.name} gives way")

    def _is_fresh(self, group: PodGroup) -> bool:
        """Whether a group is ours, and the Job has not begun with it."""
        return controls(self._job, group.metadata) and self._job.status == JobStatus()

    def _own_workload(self) -> Search[Workload]:
        job = self._job
        return find_workload(job, self._view.workloads(job.metadata.namespace, reference(job)))

    async def _parent(self, owner: OwnerReference) -> Search[Workload]:
        """The parent's Workload. That it is not there is only believed if the API says so."""
        space = self._job.metadata.namespace
        about = owner.api_version.rpartition("/")[0], owner.kind, owner.name
        found = find_parent(owner, self._view.workloads(space, about))
        if isinstance(found, Missing):
            listing = await self._client.list(WORKLOAD, Workload, namespace=space)
            found = find_parent(owner, [one for one in listing.items if one.about == about])
        return found

    async def _with_new_workload(self) -> Place:
        name = self._job.metadata.name
        try:
            wanted = building.workload(self._wish.job)
        except Invalid as error:
            text = f"Failed to compile Workload for Job {name}: {error}"
            self._tell(Remark("FailedWorkloadCompilation", text, WARNING))
            raise
        if place := self._without(building.pod_group(self._wish.job, wanted)):
            return place
        made = msgspec.convert(await self._create(WORKLOAD, wanted), Workload)
        if self._view.groups(made) or self._view.many_wait:
            raise Behind(f"Workload {made.metadata.name} is new")
        place = await self._with_new_group(Found(made, is_ours=True), None)
        await self._view.arrival(made)
        if not isinstance(self._own_workload(), Found):
            raise Behind(f"Workload {made.metadata.name} is not the only one")
        return place

    async def _with_new_group(self, workload: Found[Workload], link: Link | None) -> Place:
        try:
            wanted = building.pod_group(self._wish.job, workload_object(workload.obj), link)
        except NotFound as error:
            return Place(fallback=fallback("TemplateNotFound", str(error)))
        if place := self._without(wanted):
            return place
        if not workload.is_ours:
            # What is another's may stay when the Job goes; its group must not.
            del wanted["metadata"]["ownerReferences"][1:]
        await take_policy(self._client, wanted["spec"])
        made = msgspec.convert(await self._create(POD_GROUP, wanted), PodGroup)
        return Place(made.metadata.name, made.is_gang)

    def _without(self, group: Object) -> Place | None:
        """Where pods go if there can be no such group, or none is to be made."""
        name = group["spec"].get("priorityClassName")
        if name in SYSTEM_CLASSES:
            text = f"No PodGroup can be of the priority class {name}"
            return Place(fallback=fallback("PriorityTooHigh", text))
        return self._retrofitted(group["metadata"]["name"])

    def _retrofitted(self, group: str) -> Place | None:
        """Where pods go if no group of that name may be made: only such as they are in may."""
        groups = [pod.group.name if pod.group else "" for pod in self._pods]
        if all(name == group for name in groups):
            return None
        text = "What its pods were scheduled by is gone"
        return Place(fallback=fallback("SchedulingObjectsLost", text)) if any(groups) else PLAIN

    async def _create(self, kind: Kind, wanted: Object) -> Object:
        """Make an object of ours. One that is there already has only not been seen yet."""
        name = self._job.metadata.name
        await self._check_job()
        wanted["metadata"]["annotations"] = {MANAGED_BY: MANAGER} | self._wishes(kind)
        try:
            made = await self._pen.create(kind, wanted)
        except ApiError as error:
            if isinstance(error, AlreadyExists) and await self._is_ours(kind, wanted):
                raise Behind(str(error)) from error
            if not is_futile(error):
                text = f"Failed to create {kind.name} for Job {name}: {error}"
                self._tell(Remark(f"Failed{kind.name}Create", text, WARNING))
            raise
        text = f"Created {kind.name} {made['metadata']['name']} for Job {name}"
        self._tell(Remark(f"{kind.name}Created", text))
        return made

    def _wishes(self, kind: Kind) -> dict[str, str]:
        """What the Job says about its group in an annotation of its own."""
        near = self._job.metadata.annotations.get(TOPOLOGY)
        return {TOPOLOGY: near} if near and kind is POD_GROUP else {}

    async def _check_job(self) -> None:
        """Make nothing again for a Job that is gone or going: that is why it is missing."""
        if self._job.status == JobStatus():
            return
        try:
            meta = (await self._client.get(JOB, self._job.metadata.key, Job)).metadata
        except NotFound as error:
            raise Behind(str(error)) from error
        if meta.uid != self._job.metadata.uid or meta.deletion_timestamp:
            raise Behind(f"Job {meta.name} is another one, or going")

    async def _is_ours(self, kind: Kind, wanted: Object) -> bool:
        meta = wanted["metadata"]
        key = Key(meta["namespace"], meta["name"])
        try:
            struct: type[Workload | PodGroup] = Workload if kind is WORKLOAD else PodGroup
            return controls(self._job, (await self._client.get(kind, key, struct)).metadata)
        except NotFound:
            return True

    async def _keep_up(self, workload: Found[Workload], group: Found[PodGroup]) -> int | None:
        """Bring the size of a gang in line with its Job, the Workload first; its size if ours."""
        if not group.obj.is_gang:
            return None
        size = await self._resized(workload, group.obj)
        if not group.is_ours:
            return None
        if size != group.obj.size:
            change = {"spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}
            meta = group.obj.metadata
            await self._pen.patch(POD_GROUP, meta, change, content=STRATEGIC_PATCH)
        await self._say_members(group.obj, size)
        return size

    async def _resized(self, workload: Found[Workload], group: PodGroup) -> int:
        """The size of the gang that a group is made of, or its own if it is made of none."""
        name = group.spec.workload_ref.template_name if group.spec.workload_ref else ""
        size = _size_of(workload.obj, name)
        wanted = self._wish.size if workload.is_ours else None
        if size is None or wanted is None or wanted == size:
            return size or group.size
        resized = {"name": name, "schedulingPolicy": {"gang": {"minCount": wanted}}}
        change = {"spec": {"podGroupTemplates": [resized]}}
        await self._pen.patch(WORKLOAD, workload.obj.metadata, change, content=STRATEGIC_PATCH)
        return wanted

    async def _say_members(self, group: PodGroup, size: int) -> None:
        """Say how many members will still run where that is fewer than the gang needs."""
        meta = group.metadata
        wanted = members_to_run(self._situation, meta.name, size)
        if meta.annotations.get(MEMBERS_TO_RUN) != wanted:
            change = {"metadata": {"annotations": {MEMBERS_TO_RUN: wanted}}}
            await self._pen.patch(POD_GROUP, meta, change)

    def _is_leaving(self, group: PodGroup) -> bool:
        """Whether a group is on its way out and none of the Job's pods holds it up."""
        live = (pod for pod in self._pods if not pod.ended and pod.group == group.metadata.key)
        return bool(group.metadata.deletion_timestamp) and next(live, None) is None


def _size_of(workload: Workload, name: str) -> int | None:
    """The size of a gang that a template describes, wherever in the Workload that is."""
    known = {one["name"]: one for one in workload.spec.pod_group_templates or ()}
    if name not in known:
        known = {one.name: one.value for one in templates(workload_object(workload)).values()}
    policy: Object = known.get(name, {}).get("schedulingPolicy") or {}
    size: int | None = (policy.get("gang") or {}).get("minCount")
    return size
