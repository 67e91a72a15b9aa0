"""The loop around a sync: informers tell which Job to look at, and what is due is performed.

A Job is looked at again only when the caches have seen what the last look has done, so that no pod
is made twice. Pods whose Job is gone are let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from phalanx.api.batch import JOB_CONTROLLER, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.client.workqueue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.groups import Groups, Place, Settings
from phalanx.controllers.jobs.podmaking import new_pod
from phalanx.controllers.jobs.roll import TRACKING, Roll, is_tracked
from phalanx.controllers.jobs.staffing import Order, wanted_still
from phalanx.controllers.jobs.sync import Remark, Sync, sync
from phalanx.controllers.loop import Informers
from phalanx.controllers.recorder import Note, Recorder

#: Seconds that changes of pods wait for others of the same Job.
PAUSE = 0.1
#: Seconds until a cache is looked at again that has not seen our last write yet.
_LAG = 0.02
_WORKERS = 16
#: Requests of one Job under way at a time.
_AT_ONCE = 32


Act = Callable[[Key], Awaitable[None]]


class Jobs:
    """Runs Jobs until cancelled."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, recorder: Recorder,
        settings: Settings | None, managers: Iterable[str] = ("", JOB_CONTROLLER),
    ) -> None:  # fmt: skip
        """Without settings Jobs are given neither Workloads nor groups."""
        self._client, self._clock, self._recorder = client, clock, recorder
        self._managers = frozenset(managers)
        self._jobs, self._pods = informers.of(JOB, Job).cache, informers.of(POD, Pod).cache
        self._of_job = self._pods.index(lambda pod: [_owner_key(pod)] if _owner(pod) else [])
        self._groups = Groups(client, informers, self._tell, settings) if settings else None
        self._informers = informers
        self._queue: WorkQueue[Key] = WorkQueue()
        #: Pods that wait to be counted and have no Job to do it.
        self._orphans: WorkQueue[Key] = WorkQueue()
        #: The latest of our own writes of pods, per Job.
        self._floors: dict[Key, int] = {}
        self._jobs.subscribe(self._job_changed)
        self._pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        """Look after Jobs until cancelled."""
        await self._informers.synced()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._work(self._orphans, self._free))
                for _ in range(_WORKERS):
                    group.create_task(self._work(self._queue, self._look))
        finally:
            self._queue.close()
            self._orphans.close()

    async def _work(self, queue: WorkQueue[Key], act: Act) -> None:
        while True:
            key = await queue.get()
            try:
                await act(key)
                queue.forget(key)
            except (ApiError, Unreachable):
                queue.retry(key)
            finally:
                queue.done(key)

    async def _free(self, key: Key) -> None:
        """Let a pod go that has no Job any more."""
        pod = self._pods.get(key)
        if pod is not None and is_tracked(pod) and not _owner(pod):
            await self._release(key, pod)

    async def _look(self, key: Key) -> None:
        if self._pods.revision < self._floors.get(key, 0):
            self._queue.add_after(key, _LAG)
            return
        job, pods = self._jobs.get(key), self._of_job[key]
        if job is None or _is_stranger(job, pods):
            await self._let_go(key, [pod for pod in pods if not _is_of(pod, job)])
        if job is None:
            self._floors.pop(key, None)
        elif job.spec.managed_by in self._managers:
            await self._settle(job, [pod for pod in pods if _is_of(pod, job)])

    async def _settle(self, job: Job, pods: Sequence[Pod]) -> None:
        due = sync(job, pods, self._clock.now())
        place = Place()
        if self._groups and not job.ended and not job.metadata.deletion_timestamp:
            members = wanted_still(Situation(Roll(job, pods), self._clock.now()))
            place = await self._groups.ensure(job, pods, members)
        await self._together(self._dismiss(job, pod) for pod in due.dismiss)
        await self._together(self._delete(job, pod) for pod in due.delete)
        await self._make(job, due.make, place)
        await self._write(job, due)
        await self._together(self._release(job.metadata.key, pod) for pod in due.release)
        if due.again is not None:
            self._queue.add_after(job.metadata.key, due.again)

    async def _make(self, job: Job, orders: Sequence[Order], place: Place) -> None:
        """Gangs come at once; other pods in batches that grow, so that a bad one costs little."""
        size = len(orders) if place.is_gang else 1
        at = 0
        while at < len(orders):
            batch = orders[at : at + size]
            await self._together(self._create(job, order, place) for order in batch)
            at, size = at + size, 2 * size

    async def _create(self, job: Job, order: Order, place: Place) -> None:
        try:
            made = await self._client.create(POD, new_pod(job, order, place.group))
        except ApiError as error:
            self._tell(job, Remark("FailedCreate", f"Error creating: {error}", "Warning"))
            raise
        self._note_write(job.metadata.key, made)
        self._tell(job, Remark("SuccessfulCreate", f"Created pod: {made['metadata']['name']}"))

    async def _dismiss(self, job: Job, pod: Pod) -> None:
        await self._release(job.metadata.key, pod)
        await self._delete(job, pod)

    async def _delete(self, job: Job, pod: Pod) -> None:
        name = pod.metadata.name
        try:
            await self._client.delete(POD, pod.metadata.key, uid=pod.metadata.uid)
        except NotFound:
            return
        except ApiError as error:
            text = f"Error deleting: {error}"
            self._tell(job, Remark("FailedDelete", text, "Warning"))
            raise
        self._tell(job, Remark("SuccessfulDelete", f"Deleted pod: {name}"))

    async def _write(self, job: Job, due: Sync) -> None:
        if due.status is None:
            return
        meta = job.metadata
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {name: value or _zero(value) for name, value in due.status.items()},
        }
        await self._client.patch(JOB, meta.key, change, subresource="status")
        for remark in due.remarks:
            self._tell(job, remark)

    async def _release(self, key: Key, pod: Pod) -> None:
        """Take our finalizer off a pod that has been counted."""
        meta = pod.metadata
        kept = [name for name in meta.finalizers if name != TRACKING]
        change = {"metadata": {"finalizers": kept, "resourceVersion": meta.resource_version}}
        try:
            changed = await self._client.patch(POD, meta.key, change)
        except NotFound:
            return
        self._note_write(key, changed)

    async def _let_go(self, key: Key, pods: Iterable[Pod]) -> None:
        """Let pods go whose Job is not there any more."""
        await self._together(self._release(key, pod) for pod in pods if is_tracked(pod))

    async def _together(self, acts: Iterable[Awaitable[None]]) -> None:
        """Do several things side by side; the first failure counts, once all are done."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(act: Awaitable[None]) -> None:
            async with gate:
                await act

        results = await asyncio.gather(*(one(act) for act in acts), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    def _note_write(self, key: Key, written: Object) -> None:
        version = int(written["metadata"]["resourceVersion"])
        self._floors[key] = max(self._floors.get(key, 0), version)

    def _tell(self, job: Job, remark: Remark) -> None:
        note = Note(JOB, job.metadata, remark.reason, remark.message, remark.type)
        self._recorder.record(note)

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        changed = new if new is not None else old
        if changed is not None:
            self._queue.add(changed.metadata.key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None and _owner(pod):
                self._queue.add_after(_owner_key(pod), PAUSE)
        if new is not None and is_tracked(new) and not _owner(new):
            self._orphans.add(new.metadata.key)


def _zero(value: object) -> object:
    """Nothing is written as nothing, but numbers and lists as themselves."""
    return None if value in ("", None) else value


def _owner(pod: Pod) -> OwnerReference | None:
    """The Job that controls a pod."""
    for one in pod.metadata.owner_references:
        if one.controller and one.kind == JOB.name and one.api_version == JOB.api_version:
            return one
    return None


def _owner_key(pod: Pod) -> Key:
    owner = _owner(pod)
    assert owner is not None
    return Key(pod.metadata.namespace, owner.name)


def _is_of(pod: Pod, job: Job | None) -> bool:
    """Whether a pod belongs to this very Job, not to an earlier one of the same name."""
    owner = _owner(pod)
    return job is not None and owner is not None and owner.uid == job.metadata.uid


def _is_stranger(job: Job, pods: Sequence[Pod]) -> bool:
    return any(not _is_of(pod, job) for pod in pods)
