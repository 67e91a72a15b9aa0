"""The Workloads and PodGroups of Jobs: where they are found, and whose Job a change concerns.

What of them a Job is to have, the builder says (`builder/jobs.py`); `arranging.py` sees to it.

Jobs on a server that knows no Workloads or no PodGroups: the peer of `groups.Groups` there.

what a Job asks for        what becomes of it
nothing of it              its pods are scheduled one by one
a gang, or one domain      no pods: it says why, and goes on when the kind is there
a part of its parent's     its pods are scheduled one by one, and it says why
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx.api.batch import Job
from phalanx.api.errors import NotFound
from phalanx.api.feature_gates import (
    JOB_GANG_INFERENCE,
    JOB_GANG_POLICY,
    JOB_RELEASE_SCHEDULING,
    WORKLOAD_WITH_JOB,
    FeatureGates,
)
from phalanx.api.kinds import JOB, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, PodGroup, Workload
from phalanx.builder.ownership import GROUP_TEMPLATE, ManageBoth, ManageGroups
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import controller_of
from phalanx.controllers.jobs.scheduling_intent import (
    NO_GROUP,
    GroupMembership,
    SchedulingIntent,
    SchedulingIntents,
    fallback_event,
)
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.jobs.workload_objects import JobWorkloadReconciler
from phalanx.controllers.jobs.write_tracker import TrackedWriter
from phalanx.controllers.reconcile_loop import Informers, StaleCacheError

#: Seconds that a look waits at most until what it has made is seen.
CACHE_TIMEOUT = 1.0
#: Jobs that wait and are many.
LONG_QUEUE = 16

RecordJobEvent = Callable[[Job, JobEvent], None]


@dataclass(frozen=True, slots=True)
class JobSchedulingOptions:
    """What of the scheduling of Jobs is looked after here."""

    #: Whether Jobs that are no gangs get objects too.
    include_basic: bool = True
    #: Whether it counts what Jobs say in the one word `gangPolicy`.
    use_gang_policy: bool = True
    #: Whether Jobs that say nothing of it are gangs if they look like one.
    infer_gang: bool = False
    #: Whether Jobs that rest or have ended give their group back.
    release_groups: bool = False


def options_from_gates(
    gates: FeatureGates, *, include_basic: bool = True
) -> JobSchedulingOptions | None:
    """What is to be looked after where these features are on; None if nothing is."""
    if not gates.is_enabled(WORKLOAD_WITH_JOB):
        return None
    return JobSchedulingOptions(
        include_basic, gates.is_enabled(JOB_GANG_POLICY), gates.is_enabled(JOB_GANG_INFERENCE),
        gates.is_enabled(JOB_RELEASE_SCHEDULING),
    )  # fmt: skip


class JobWorkloadManager:
    """Looks after the objects of Jobs. Jobs that a change of them concerns go into the queue."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record_event: RecordJobEvent,
        queue: WorkQueue[Key],
        options: JobSchedulingOptions,
    ) -> None:
        self._client, self._record_event, self._queue, self._options = (
            client,
            record_event,
            queue,
            options,
        )
        self._workloads = informers.of(WORKLOAD, Workload).cache
        self._groups = informers.of(POD_GROUP, PodGroup).cache
        self._jobs = informers.of(JOB, Job).cache
        self._workloads_by_target = self._workloads.index(_target_keys)
        self._groups_by_workload = self._groups.index(_workload_keys)
        self._groups_by_owner = self._groups.index(_owner_uids)
        self._jobs_by_parent = self._jobs.index(_parent_keys)
        self._intents = SchedulingIntents(
            include_basic=options.include_basic,
            use_gang_policy=options.use_gang_policy,
            infer_gang=options.infer_gang,
        )
        #: Workloads that somebody waits to see, by uid.
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self.caches: dict[Kind, ObjectCache[Any]] = {
            WORKLOAD: self._workloads,
            POD_GROUP: self._groups,
        }
        self._workloads.subscribe(self._workload_changed)
        self._groups.subscribe(self._group_changed)

    async def ensure_group(self, snapshot: JobSnapshot, writer: TrackedWriter) -> GroupMembership:
        """The group of a Job, made if it is missing."""
        job = snapshot.job_pods.job
        if self._options.release_groups and job.spec.suspend:
            await self._release_groups(job, writer)
            return NO_GROUP
        wish = self._intents.get(job)
        if wish.verified is not None and wish.verified.is_current(self, snapshot):
            return wish.verified.membership
        tell = partial(self._record_event, job)
        arrangement = JobWorkloadReconciler(self._client, writer, self, tell, snapshot, wish)
        match wish.management:
            case ManageBoth():
                return await arrangement.ensure_for_root()
            case ManageGroups(link):
                return await arrangement.ensure_for_child(link)
        return NO_GROUP

    def forget(self, job: Key) -> None:
        """A Job is gone."""
        self._intents.forget(job)

    async def clean_up(self, job: Job, writer: TrackedWriter) -> None:
        """See to the group of a Job that has ended: it is given back, or says nothing more."""
        await self._release_groups(job, writer)
        for group in self._groups_by_owner[job.metadata.uid]:
            if MEMBERS_TO_RUN_ANNOTATION in group.metadata.annotations:
                change = {"metadata": {"annotations": {MEMBERS_TO_RUN_ANNOTATION: None}}}
                await writer.patch(POD_GROUP, group.metadata, change)

    async def _release_groups(self, job: Job, writer: TrackedWriter) -> None:
        """Give back the group of a Job that has no use for it now, where that is asked for."""
        for group in (
            self._groups_by_owner[job.metadata.uid] if self._options.release_groups else ()
        ):
            if not group.metadata.deletion_timestamp:
                await writer.delete(POD_GROUP, group.metadata)

    def workloads(self, namespace: str, about: tuple[str, str, str]) -> Sequence[Workload]:
        """Those that are about an object, by its group, kind and name."""
        return self._workloads_by_target[namespace, *about]

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        """Those that are made of a Workload."""
        return self._groups_by_workload[workload.metadata.key]

    @property
    def is_queue_long(self) -> bool:
        """Whether many Jobs wait, so that no more is done about one than must be now."""
        return len(self._queue) >= LONG_QUEUE

    async def wait_until_cached(self, workload: Workload) -> None:
        """Return when a Workload that was just made is seen; raises Behind if it is not."""
        meta = workload.metadata
        held = self._workloads.get(meta.key)
        if held is not None and held.metadata.uid == meta.uid:
            return
        self._awaited[meta.uid] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CACHE_TIMEOUT):
                await self._awaited[meta.uid]
        except TimeoutError:
            raise StaleCacheError(f"Workload {meta.name} is not seen") from None
        finally:
            del self._awaited[meta.uid]

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        awaited = self._awaited.get(new.metadata.uid) if new else None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)
        for workload in (old, new):
            for key in self._jobs_of_workload(workload) if workload else ():
                self._queue.add(key)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if old and new and _relevant_fields(old) == _relevant_fields(new):
            return
        for group in (old, new):
            for key in self._jobs_of_group(group) if group else ():
                self._queue.add(key)

    def _jobs_of_workload(self, workload: Workload) -> Iterator[Key]:
        """The Job that a Workload is about, or those whose parent it is about."""
        for namespace, group, kind, name in _target_keys(workload):
            if (group, kind) == (JOB.group, JOB.name):
                yield Key(namespace, name)
            yield from (
                job.metadata.key for job in self._jobs_by_parent[namespace, group, kind, name]
            )

    def _jobs_of_group(self, group: PodGroup) -> Iterator[Key]:
        """The Job that controls a group, or those that the Workload of one is about."""
        owner = controller_of(group.metadata)
        if owner is not None:
            if (owner.api_version, owner.kind) == (JOB.api_version, JOB.name):
                yield Key(group.metadata.namespace, owner.name)
            return
        for key in _workload_keys(group):
            workload = self._workloads.get(key)
            yield from self._jobs_of_workload(workload) if workload else ()


def _target_keys(workload: Workload) -> list[tuple[str, str, str, str]]:
    return (
        [(workload.metadata.namespace, *workload.controller_identity)]
        if workload.controller_identity
        else []
    )


def _workload_keys(group: PodGroup) -> list[Key]:
    ref = group.spec.workload_ref
    return [Key(group.metadata.namespace, ref.workload_name)] if ref else []


def _owner_uids(group: PodGroup) -> list[str]:
    owner = controller_of(group.metadata)
    return [owner.uid] if owner else []


def _parent_keys(job: Job) -> list[tuple[str, str, str, str]]:
    """Whose Workload a Job is a part of."""
    owner = controller_of(job.metadata)
    if owner is None or GROUP_TEMPLATE not in job.metadata.annotations:
        return []
    return [(job.metadata.namespace, owner.api_version.rpartition("/")[0], owner.kind, owner.name)]


def _relevant_fields(group: PodGroup) -> tuple[object, ...]:
    """As much of a group as matters to its Job."""
    meta: ObjectMeta = group.metadata
    return group.spec, meta.annotations, meta.owner_references, meta.deletion_timestamp


class MissingKindWorkloadManager:
    """Arranges nothing. `missing` is the kind that the server lacks."""

    def __init__(
        self, record_event: RecordJobEvent, options: JobSchedulingOptions, missing_kind: Kind
    ) -> None:
        self._record_event, self._missing_kind = record_event, missing_kind
        self._intents = SchedulingIntents(
            include_basic=options.include_basic,
            use_gang_policy=options.use_gang_policy,
            infer_gang=options.infer_gang,
        )

    async def ensure_group(self, snapshot: JobSnapshot, writer: TrackedWriter) -> GroupMembership:
        """No group; raises NotFound for a Job that must not begin without one."""
        job = snapshot.job_pods.job
        wish, missing = self._intents.get(job), self._missing_kind
        text = f'no matches for kind "{missing.name}" in version "{missing.api_version}"'
        match wish.management:
            case ManageBoth() if _requires_group(wish):
                said = f"Failed to create {missing.name} for Job {job.metadata.name}: {text}"
                self._record_event(job, JobEvent(f"Failed{missing.name}Create", said, WARNING))
                raise NotFound(text)
            case ManageGroups():
                return GroupMembership(fallback=fallback_event("ParentWorkloadNotFound", text))
        return NO_GROUP

    def forget(self, job: Key) -> None:
        """A Job is gone."""
        self._intents.forget(job)

    async def clean_up(self, job: Job, writer: TrackedWriter) -> None:
        """There is nothing to see to."""


def _requires_group(intent: SchedulingIntent) -> bool:
    """Whether a Job asks for what only a group can give."""
    asked = intent.job["spec"].get("scheduling") or {}
    return intent.size is not None or bool(asked.get("schedulingConstraints"))
