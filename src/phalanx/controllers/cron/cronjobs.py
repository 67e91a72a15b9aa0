"""CronJobs: Jobs that are started by the clock.

    CronJobs, Jobs ─▶ queue of CronJobs ─▶ books ─▶ is a start due? ─▶ Jobs, status, events

No start is made twice: a Job is called after the minute that it is for, and what was started is
read from the Jobs themselves (`cronbooks`). Those that have ended and are too old, and those that
are replaced, are deleted with their pods. On a foreign API server this loop is off: it has one of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from phalanx.api.batch import COMPLETE, FAILED, Job
from phalanx.api.errors import ApiError
from phalanx.api.kinds import CRON_JOB, JOB
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Action, Create, Delete, Plan, Record
from phalanx.controllers.cron.books import (
    SCHEDULED_AT,
    Books,
    CronJob,
    CronJobSpec,
    end_of,
    job_name,
)
from phalanx.controllers.cron.times import Missed, Remark, Timetable, timetable
from phalanx.controllers.loop import Informers, Loop
from phalanx.controllers.recorder import Note

#: Seconds between looks at most: clocks may be set, and machines may sleep.
_LONGEST_NAP = 600.0
_WORKERS = 5


class CronJobs:
    """Starts Jobs and clears them away. `record` hears what people should know of that."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock,
        record: Callable[[Note], None] = lambda note: None,
    ) -> None:  # fmt: skip
        self._clock, self._record = clock, record
        self._informers = informers.of(CRON_JOB, CronJob), informers.of(JOB, Job)
        self._cron_jobs, self._jobs = self._informers[0].cache, self._informers[1].cache
        self._owned = self._jobs.index(lambda job: [owner.uid for owner in _owners(job)])
        #: What there was to say of each at the last look.
        self._said: dict[Key, Sequence[Remark]] = {}
        self._loop: Loop[Key] = Loop(
            client, self.reconcile, _WORKERS, record=record, refused=self._refused
        )
        self._cron_jobs.subscribe(self._cron_job_changed)
        self._jobs.subscribe(self._job_changed)

    async def run(self) -> None:
        """Start Jobs until cancelled."""
        # A Job of which one has not heard yet would be missed.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> Plan:
        """Clear away, start what is due, write down what is so, and come back for the next."""
        cron_job = self._cron_jobs.get(key)
        if cron_job is None:
            self._said.pop(key, None)
            return Plan()
        jobs = sorted(self._owned[cron_job.metadata.uid], key=lambda job: job.metadata.name)
        books = Books(cron_job, jobs, self._jobs.revision)
        start = _due(books, self._clock.now())
        actions = [step for job in _surplus(cron_job.spec, jobs) for step in _clear(cron_job, job)]
        actions += _begin(books, start)
        actions += books.changes()
        news = self._news(key, [*books.strangers(), *start.remarks])
        actions += [_told(cron_job, remark) for remark in (*books.remarks, *news)]
        return Plan(actions, start.again)

    def _news(self, key: Key, remarks: Sequence[Remark]) -> list[Remark]:
        """Those remarks that did not hold at the last look."""
        before, self._said[key] = self._said.get(key, ()), remarks
        return [remark for remark in remarks if remark not in before]

    def _refused(self, key: Key, action: Action, error: ApiError) -> None:
        cron_job = self._cron_jobs.get(key)
        ends = any(cause.reason == "NamespaceTerminating" for cause in error.causes)
        if cron_job is not None and not ends:
            for remark in _failure(action, error):
                self._record(_told(cron_job, remark).note)

    def _cron_job_changed(self, old: CronJob | None, new: CronJob | None) -> None:
        changed = new or old
        if changed is not None:
            self._loop.queue.add(changed.metadata.key)

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        for job in (job for job in (old, new) if job is not None):
            for owner in _owners(job):
                self._loop.queue.add(Key(job.metadata.namespace, owner.name))


@dataclass(frozen=True, slots=True)
class Start:
    """What the clock says: the start to make now, if there is one, and when to look again."""

    moment: float | None = None
    written: str = ""
    remarks: Sequence[Remark] = ()
    again: float | None = None


def _due(books: Books, now: float) -> Start:
    """Whether a start is due, and if not, why not."""
    spec = books.cron_job.spec
    if books.cron_job.metadata.deletion_timestamp or spec.suspend:
        return Start()
    table = timetable(spec.schedule, spec.time_zone)
    if isinstance(table, Remark):
        return Start(remarks=[table])
    following = table.following(now)
    if following is None:
        return Start(remarks=[_never(spec)])
    missed, remarks = _missed(books, table, now)
    again = min(following - now, _LONGEST_NAP)
    if missed.latest is None:
        return Start(remarks=remarks, again=again)
    if spec.concurrency_policy == "Forbid" and books.active:
        return Start(remarks=[*remarks, _busy(missed.latest)], again=again)
    return Start(missed.latest, table.written(missed.latest), remarks, again)


def _missed(books: Books, table: Timetable, now: float) -> tuple[Missed, list[Remark]]:
    """The starts that may still be made, and what there is to say of those that may not."""
    limit = books.cron_job.spec.starting_deadline_seconds
    since = books.since if limit is None else max(books.since, now - limit)
    missed = table.missed(since, now)
    if missed.are_many:
        return missed, [_TOO_MANY]
    if missed.latest is None and since > books.since:
        late = table.missed(books.since, now).latest
        return missed, [_too_late(late)] if late is not None else []
    return missed, []


_TOO_MANY = Remark(
    "TooManyMissedTimes",
    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock "
    "skew",
    "Warning",
)


def _never(spec: CronJobSpec) -> Remark:
    why = "time difference between two schedules is less than 1 second"
    return Remark("InvalidSchedule", f"invalid schedule: {spec.schedule} : {why}", "Warning")


def _too_late(start: float) -> Remark:
    moment = datetime.fromtimestamp(start, UTC).strftime("%a, %d %b %Y %H:%M:%S %z")
    return Remark("MissSchedule", f"Missed scheduled time to start a job: {moment}", "Warning")


def _busy(start: float) -> Remark:
    text = "Not starting job because prior execution is running and concurrency policy is Forbid"
    return Remark("JobAlreadyActive", text, subject=str(start))


def _begin(books: Books, start: Start) -> list[Action]:
    """Make the Job that is due; where they are to be replaced, instead of those that run."""
    if start.moment is None:
        return []
    cron_job, actions = books.cron_job, list[Action]()
    for old in books.running if cron_job.spec.concurrency_policy == "Replace" else ():
        actions += _clear(cron_job, old)
        books.strike(old)
    new = _job(cron_job, start.moment, start.written)
    made = Remark("SuccessfulCreate", f"Created job {new['metadata']['name']}")
    books.started(start.moment)
    return [*actions, Create(JOB, new), _told(cron_job, made)]


def _job(cron_job: CronJob, start: float, written: str) -> Object:
    """The Job for a start: what the template says, and whose it is."""
    # A copy: whoever takes in what is sent may change it.
    meta, template = cron_job.metadata, deepcopy(cron_job.spec.job_template)
    given = template.get("metadata") or {}
    owner = OwnerReference(CRON_JOB.api_version, CRON_JOB.name, meta.name, meta.uid, True, True)
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": job_name(cron_job, start),
            "namespace": meta.namespace,
            "labels": given.get("labels") or {},
            "annotations": {**(given.get("annotations") or {}), SCHEDULED_AT: written},
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": template.get("spec") or {},
    }


def _surplus(spec: CronJobSpec, jobs: Sequence[Job]) -> Iterator[Job]:
    """The oldest of the Jobs that have ended, beyond those that are to be kept."""
    limits = {COMPLETE: spec.successful_jobs_history_limit, FAILED: spec.failed_jobs_history_limit}
    for end, limit in limits.items():
        kept = [job for job in jobs if end_of(job) == end and not job.metadata.deletion_timestamp]
        kept.sort(key=lambda job: (job.status.start_time is None, job.status.start_time or ""))
        if limit is not None:
            yield from kept[: max(0, len(kept) - limit)]


def _clear(cron_job: CronJob, job: Job) -> list[Action]:
    meta = job.metadata
    gone = Remark("SuccessfulDelete", f"Deleted job {meta.name}")
    return [Delete(JOB, meta.key, meta.uid, propagation="Background"), _told(cron_job, gone)]


def _failure(action: Action, error: ApiError) -> list[Remark]:
    """What to say of an action that the server has refused."""
    match action:
        case Create():
            return [Remark("FailedCreate", f"Error creating job: {error}", "Warning")]
        case Delete():
            return [Remark("FailedDelete", f"Deleted job: {error}", "Warning")]
    return []


def _owners(job: Job) -> list[OwnerReference]:
    """The CronJob that a Job belongs to, if any."""
    kind = CRON_JOB.api_version, CRON_JOB.name
    owners = job.metadata.owner_references
    return [one for one in owners if one.controller and (one.api_version, one.kind) == kind]


def _told(cron_job: CronJob, remark: Remark) -> Record:
    note = Note(CRON_JOB, cron_job.metadata, remark.reason, remark.message, remark.type)
    return Record(note)
