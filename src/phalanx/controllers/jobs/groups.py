"""The Workloads and PodGroups of Jobs: where they are found, and whose Job a change concerns.

What of them a Job is to have, the builder says (`builder/jobs.py`); `arranging.py` sees to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx.api.batch import Job
from phalanx.api.gates import (
    JOB_GANG_INFERENCE,
    JOB_GANG_POLICY,
    JOB_RELEASE_SCHEDULING,
    WORKLOAD_WITH_JOB,
    Gates,
)
from phalanx.api.kinds import JOB, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Key, Meta
from phalanx.api.scheduling import MEMBERS_TO_RUN, PodGroup, Workload
from phalanx.builder.links import GROUP_TEMPLATE
from phalanx.builder.management import ManageBoth, ManageGroups
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.client.workqueue import WorkQueue
from phalanx.controllers.jobs.arranging import Arrangement
from phalanx.controllers.jobs.claiming import controller
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.standing import PLAIN, Place
from phalanx.controllers.jobs.sync import Remark
from phalanx.controllers.jobs.wishes import Wishes
from phalanx.controllers.jobs.writes import Pen
from phalanx.controllers.loop import Behind, Informers

#: Seconds that a look waits at most until what it has made is seen.
PATIENCE = 1.0
#: Jobs that wait and are many.
MANY = 16

Tell = Callable[[Job, Remark], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the scheduling of Jobs is looked after here."""

    #: Whether Jobs that are no gangs get objects too.
    basic: bool = True
    #: Whether it counts what Jobs say in the one word `gangPolicy`.
    words: bool = True
    #: Whether Jobs that say nothing of it are gangs if they look like one.
    infer: bool = False
    #: Whether Jobs that rest or have ended give their group back.
    release: bool = False


def by_gates(gates: Gates, *, basic: bool = True) -> Settings | None:
    """What is to be looked after where these features are on; None if nothing is."""
    if not gates.is_on(WORKLOAD_WITH_JOB):
        return None
    return Settings(
        basic, gates.is_on(JOB_GANG_POLICY), gates.is_on(JOB_GANG_INFERENCE),
        gates.is_on(JOB_RELEASE_SCHEDULING),
    )  # fmt: skip


class Groups:
    """Looks after the objects of Jobs. Jobs that a change of them concerns go into the queue."""

    def __init__(
        self, client: Client, informers: Informers, tell: Tell, queue: WorkQueue[Key],
        settings: Settings,
    ) -> None:  # fmt: skip
        self._client, self._tell, self._queue, self._settings = client, tell, queue, settings
        self._workloads = informers.of(WORKLOAD, Workload).cache
        self._groups = informers.of(POD_GROUP, PodGroup).cache
        self._jobs = informers.of(JOB, Job).cache
        self._about = self._workloads.index(_about)
        self._made_of = self._groups.index(_made_of)
        self._owned = self._groups.index(_owner)
        self._linked = self._jobs.index(_linked)
        self._wishes = Wishes(basic=settings.basic, words=settings.words, infer=settings.infer)
        #: Workloads that somebody waits to see, by uid.
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self.caches: dict[Kind, Cache[Any]] = {WORKLOAD: self._workloads, POD_GROUP: self._groups}
        self._workloads.subscribe(self._workload_changed)
        self._groups.subscribe(self._group_changed)

    async def ensure(self, situation: Situation, pen: Pen) -> Place:
        """The group of a Job, made if it is missing."""
        job = situation.roll.job
        if self._settings.release and job.spec.suspend:
            await self._release(job, pen)
            return PLAIN
        wish = self._wishes.of(job)
        if wish.standing is not None and wish.standing.holds(self, situation):
            return wish.standing.place
        tell = partial(self._tell, job)
        arrangement = Arrangement(self._client, pen, self, tell, situation, wish)
        match wish.management:
            case ManageBoth():
                return await arrangement.as_root()
            case ManageGroups(link):
                return await arrangement.as_part(link)
        return PLAIN

    def forget(self, job: Key) -> None:
        """A Job is gone."""
        self._wishes.forget(job)

    async def wind_up(self, job: Job, pen: Pen) -> None:
        """See to the group of a Job that has ended: it is given back, or says nothing more."""
        await self._release(job, pen)
        for group in self._owned[job.metadata.uid]:
            if MEMBERS_TO_RUN in group.metadata.annotations:
                change = {"metadata": {"annotations": {MEMBERS_TO_RUN: None}}}
                await pen.patch(POD_GROUP, group.metadata, change)

    async def _release(self, job: Job, pen: Pen) -> None:
        """Give back the group of a Job that has no use for it now, where that is asked for."""
        for group in self._owned[job.metadata.uid] if self._settings.release else ():
            if not group.metadata.deletion_timestamp:
                await pen.delete(POD_GROUP, group.metadata)

    def workloads(self, namespace: str, about: tuple[str, str, str]) -> Sequence[Workload]:
        """Those that are about an object, by its group, kind and name."""
        return self._about[namespace, *about]

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        """Those that are made of a Workload."""
        return self._made_of[workload.metadata.key]

    @property
    def many_wait(self) -> bool:
        """Whether many Jobs wait, so that no more is done about one than must be now."""
        return len(self._queue) >= MANY

    async def arrival(self, workload: Workload) -> None:
        """Return when a Workload that was just made is seen; raises Behind if it is not."""
        meta = workload.metadata
        held = self._workloads.get(meta.key)
        if held is not None and held.metadata.uid == meta.uid:
            return
        self._awaited[meta.uid] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._awaited[meta.uid]
        except TimeoutError:
            raise Behind(f"Workload {meta.name} is not seen") from None
        finally:
            del self._awaited[meta.uid]

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        awaited = self._awaited.get(new.metadata.uid) if new else None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)
        for workload in (old, new):
            for key in self._concerned(workload) if workload else ():
                self._queue.add(key)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if old and new and _standing(old) == _standing(new):
            return
        for group in (old, new):
            for key in self._concerned_by(group) if group else ():
                self._queue.add(key)

    def _concerned(self, workload: Workload) -> Iterator[Key]:
        """The Job that a Workload is about, or those whose parent it is about."""
        for namespace, group, kind, name in _about(workload):
            if (group, kind) == (JOB.group, JOB.name):
                yield Key(namespace, name)
            yield from (job.metadata.key for job in self._linked[namespace, group, kind, name])

    def _concerned_by(self, group: PodGroup) -> Iterator[Key]:
        """The Job that controls a group, or those that the Workload of one is about."""
        owner = controller(group.metadata)
        if owner is not None:
            if (owner.api_version, owner.kind) == (JOB.api_version, JOB.name):
                yield Key(group.metadata.namespace, owner.name)
            return
        for key in _made_of(group):
            workload = self._workloads.get(key)
            yield from self._concerned(workload) if workload else ()


def _about(workload: Workload) -> list[tuple[str, str, str, str]]:
    return [(workload.metadata.namespace, *workload.about)] if workload.about else []


def _made_of(group: PodGroup) -> list[Key]:
    ref = group.spec.workload_ref
    return [Key(group.metadata.namespace, ref.workload_name)] if ref else []


def _owner(group: PodGroup) -> list[str]:
    owner = controller(group.metadata)
    return [owner.uid] if owner else []


def _linked(job: Job) -> list[tuple[str, str, str, str]]:
    """Whose Workload a Job is a part of."""
    owner = controller(job.metadata)
    if owner is None or GROUP_TEMPLATE not in job.metadata.annotations:
        return []
    return [(job.metadata.namespace, owner.api_version.rpartition("/")[0], owner.kind, owner.name)]


def _standing(group: PodGroup) -> tuple[object, ...]:
    """As much of a group as matters to its Job."""
    meta: Meta = group.metadata
    return group.spec, meta.annotations, meta.owner_references, meta.deletion_timestamp
