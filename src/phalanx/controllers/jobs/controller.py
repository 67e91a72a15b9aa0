"""The loop around looks at Jobs: informers tell which Job to look at, workers do so.

A Job is looked at again only when the caches have seen what the last look has done, so that nothing
is done twice. Jobs that another controller manages are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from phalanx.api.batch import JOB_CONTROLLER, OWN_JOB_CONTROLLER, Job
from phalanx.api.core import Pod
from phalanx.api.kinds import JOB, POD, Kind
from phalanx.api.meta import Key
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.client.workqueue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.jobs.claiming import is_of, job_key, place, places, wants
from phalanx.controllers.jobs.groups import Groups, Settings
from phalanx.controllers.jobs.look import Look, Tools
from phalanx.controllers.jobs.metrics import JobMetrics
from phalanx.controllers.jobs.orphans import Orphans
from phalanx.controllers.jobs.roll import is_tracked
from phalanx.controllers.jobs.sync import Remark
from phalanx.controllers.jobs.ungrouped import Ungrouped
from phalanx.controllers.jobs.writes import Writes
from phalanx.controllers.loop import Behind, Informers, observed_queue, work
from phalanx.controllers.recorder import Note, Recorder

#: Seconds that changes of pods wait for others of the same Job.
PAUSE = 0.1
_WORKERS = 16
#: The names under which Jobs are ours where no other Job controller is.
MANAGERS = ("", JOB_CONTROLLER, OWN_JOB_CONTROLLER)


class Jobs:
    """Runs Jobs until cancelled.

    Without settings Jobs are given neither Workloads nor groups. `managers` are the names under
    which Jobs are ours to manage; "" is for those that name nobody, whose pods are let go if they
    outlive them. `missing` is the kind, Workload or PodGroup, that the server does not know.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, recorder: Recorder,
        settings: Settings | None, managers: Iterable[str] = MANAGERS,
        missing: Kind | None = None,
    ) -> None:  # fmt: skip
        self._recorder, self._informers = recorder, informers
        self._managers = frozenset(managers)
        self._queue: WorkQueue[Key] = observed_queue(client, "job")
        #: Pods that wait to be counted and may have no Job to do it.
        self._stranded: WorkQueue[Key] = observed_queue(client, "job_orphan_pod")
        self._jobs, self._pods = informers.of(JOB, Job).cache, informers.of(POD, Pod).cache
        self._of_job, self._loose = self._pods.index(job_key), self._pods.index(places)
        self._selecting = self._jobs.index(lambda job: [place(job)])
        self._orphans = Orphans(client, self._pods, lambda pod: bool(self._suitors(pod)))
        self._tools = self._equipped(client, clock, settings, missing)
        self._jobs.subscribe(self._job_changed)
        self._pods.subscribe(self._pod_changed)

    def _equipped(
        self, client: Client, clock: Clock, settings: Settings | None, missing: Kind | None
    ) -> Tools:
        metrics = JobMetrics(client.metrics)
        caches: dict[Kind, Cache[Any]] = {JOB: self._jobs, POD: self._pods}
        groups: Groups | Ungrouped | None = None
        if settings is not None and missing is not None:
            groups = Ungrouped(self._tell, settings, missing)
        elif settings is not None:
            groups = Groups(client, self._informers, self._tell, self._queue, settings)
            caches |= groups.caches
        writes = Writes(client, caches, clock, metrics)
        return Tools(client, clock, writes, groups, metrics, self._tell)

    async def run(self) -> None:
        """Look after Jobs until cancelled."""
        await self._informers.synced()
        async with asyncio.TaskGroup() as group:
            if "" in self._managers:
                group.create_task(work(self._stranded, self._orphans.free))
            group.create_task(work(self._queue, self.look, _WORKERS))

    async def look(self, key: Key) -> float | None:
        """Do what is due about one Job, and say when to look again; raises what that may cure."""
        if not self._tools.writes.are_seen(key):
            self._tools.metrics.put_off()
            raise Behind(f"what was done about Job {key} is not seen yet")
        job, pods = self._jobs.get(key), self._of_job[key]
        own = [pod for pod in pods if is_of(pod, job)] if job is not None else []
        if len(own) < len(pods):
            self._strand(pods)
        if job is None or job.spec.managed_by not in self._managers:
            return None
        return await Look(self._tools, job, own, self._loose[place(job)]).perform()

    def _tell(self, job: Job, remark: Remark) -> None:
        note = Note(JOB, job.metadata, remark.reason, remark.message, remark.type)
        self._recorder.record(note)

    def _suitors(self, pod: Pod) -> list[Key]:
        """The Jobs that would adopt a pod."""
        jobs = (job for at in places(pod) for job in self._selecting[at])
        return [
            job.metadata.key
            for job in jobs
            if job.spec.managed_by in self._managers and wants(job, pod)
        ]

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        for job in (old, new):
            if job is not None:
                self._queue.add(job.metadata.key)
        if old is not None and (new is None or new.ended or new.metadata.deletion_timestamp):
            # Pods of nobody that it might have adopted, and never will now.
            self._strand(self._loose[place(old)])
        if new is None and old is not None and self._tools.groups is not None:
            self._tools.groups.forget(old.metadata.key)

    def _strand(self, pods: Iterable[Pod]) -> None:
        """Have it looked at whether pods have nobody, if that is ours to do."""
        for pod in pods if "" in self._managers else ():
            if is_tracked(pod):
                self._stranded.add(pod.metadata.key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for key in job_key(pod) if pod is not None else ():
                self._queue.add_after(key, PAUSE)
        if new is None or not places(new):
            return
        for key in self._suitors(new):
            self._queue.add_after(key, PAUSE)
        self._strand([new])
