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
from phalanx.controllers.cronjobs.history import (
    SCHEDULED_AT,
    CronJob,
    CronJobHistory,
    CronJobSpec,
    finish_condition,
    job_name,
)
from phalanx.controllers.cronjobs.schedule import (
    CronJobEvent,
    CronJobSchedule,
    MissedStarts,
    parse_cron_job_schedule,
)
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)

#: Seconds between looks at most: clocks may be set, and machines may sleep.
_MAX_REQUEUE = 600.0
_WORKERS = 5


class CronJobController:
    """Starts Jobs and clears them away. `record` hears what people should know of that."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock,
        record: Callable[[ObjectEvent], None] = lambda note: None,
    ) -> None:  # fmt: skip
        self._clock, self._record = clock, record
        self._informers = informers.of(CRON_JOB, CronJob), informers.of(JOB, Job)
        self._cron_jobs, self._jobs = self._informers[0].cache, self._informers[1].cache
        self._jobs_by_owner = self._jobs.index(
            lambda job: [owner.uid for owner in _cron_job_references(job)]
        )
        #: What there was to say of each at the last look.
        self._last_events: dict[Key, Sequence[CronJobEvent]] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record, on_error=self._record_failure
        )
        self._cron_jobs.subscribe(self._cron_job_changed)
        self._jobs.subscribe(self._job_changed)

    async def run(self) -> None:
        """Start Jobs until cancelled."""
        # A Job of which one has not heard yet would be missed.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Clear away, start what is due, write down what is so, and come back for the next."""
        cron_job = self._cron_jobs.get(key)
        if cron_job is None:
            self._last_events.pop(key, None)
            return ReconcilePlan()
        jobs = sorted(self._jobs_by_owner[cron_job.metadata.uid], key=lambda job: job.metadata.name)
        books = CronJobHistory(cron_job, jobs, self._jobs.revision)
        start = _check_schedule(books, self._clock.now())
        actions = [
            step
            for job in _jobs_beyond_history_limit(cron_job.spec, jobs)
            for step in _delete_job(cron_job, job)
        ]
        actions += _start_job(books, start)
        actions += books.status_patches()
        news = self._new_events(key, [*books.unexpected_job_events(), *start.events])
        actions += [_record_event(cron_job, remark) for remark in (*books.events, *news)]
        return ReconcilePlan(actions, start.requeue_after)

    def _new_events(self, key: Key, events: Sequence[CronJobEvent]) -> list[CronJobEvent]:
        """Those remarks that did not hold at the last look."""
        before, self._last_events[key] = self._last_events.get(key, ()), events
        return [remark for remark in events if remark not in before]

    def _record_failure(self, key: Key, action: Action, error: ApiError) -> None:
        cron_job = self._cron_jobs.get(key)
        ends = any(cause.reason == "NamespaceTerminating" for cause in error.causes)
        if cron_job is not None and not ends:
            for remark in _failure_events(action, error):
                self._record(_record_event(cron_job, remark).event)

    def _cron_job_changed(self, old: CronJob | None, new: CronJob | None) -> None:
        changed = new or old
        if changed is not None:
            self._loop.queue.add(changed.metadata.key)

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        for job in (job for job in (old, new) if job is not None):
            for owner in _cron_job_references(job):
                self._loop.queue.add(Key(job.metadata.namespace, owner.name))


@dataclass(frozen=True, slots=True)
class DueStart:
    """What the clock says: the start to make now, if there is one, and when to look again."""

    time: float | None = None
    timestamp: str = ""
    events: Sequence[CronJobEvent] = ()
    requeue_after: float | None = None


def _check_schedule(history: CronJobHistory, now: float) -> DueStart:
    """Whether a start is due, and if not, why not."""
    spec = history.cron_job.spec
    if history.cron_job.metadata.deletion_timestamp or spec.suspend:
        return DueStart()
    table = parse_cron_job_schedule(spec.schedule, spec.time_zone)
    if isinstance(table, CronJobEvent):
        return DueStart(events=[table])
    following = table.next_start(now)
    if following is None:
        return DueStart(events=[_invalid_schedule_event(spec)])
    missed, remarks = _missed_starts(history, table, now)
    again = min(following - now, _MAX_REQUEUE)
    if missed.latest is None:
        return DueStart(events=remarks, requeue_after=again)
    if spec.concurrency_policy == "Forbid" and history.active:
        return DueStart(
            events=[*remarks, _already_active_event(missed.latest)], requeue_after=again
        )
    return DueStart(missed.latest, table.format_time(missed.latest), remarks, again)


def _missed_starts(
    history: CronJobHistory, schedule: CronJobSchedule, now: float
) -> tuple[MissedStarts, list[CronJobEvent]]:
    """The starts that may still be made, and what there is to say of those that may not."""
    limit = history.cron_job.spec.starting_deadline_seconds
    since = history.missed_since if limit is None else max(history.missed_since, now - limit)
    missed = schedule.missed_starts(since, now)
    if missed.is_over_limit:
        return missed, [_TOO_MANY_MISSED]
    if missed.latest is None and since > history.missed_since:
        late = schedule.missed_starts(history.missed_since, now).latest
        return missed, [_missed_start_event(late)] if late is not None else []
    return missed, []


_TOO_MANY_MISSED = CronJobEvent(
    "TooManyMissedTimes",
    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock "
    "skew",
    "Warning",
)


def _invalid_schedule_event(spec: CronJobSpec) -> CronJobEvent:
    why = "time difference between two schedules is less than 1 second"
    return CronJobEvent("InvalidSchedule", f"invalid schedule: {spec.schedule} : {why}", "Warning")


def _missed_start_event(start: float) -> CronJobEvent:
    moment = datetime.fromtimestamp(start, UTC).strftime("%a, %d %b %Y %H:%M:%S %z")
    return CronJobEvent(
        "MissSchedule", f"Missed scheduled time to start a job: {moment}", "Warning"
    )


def _already_active_event(start: float) -> CronJobEvent:
    text = "Not starting job because prior execution is running and concurrency policy is Forbid"
    return CronJobEvent("JobAlreadyActive", text, subject=str(start))


def _start_job(history: CronJobHistory, start: DueStart) -> list[Action]:
    """Make the Job that is due; where they are to be replaced, instead of those that run."""
    if start.time is None:
        return []
    cron_job, actions = history.cron_job, list[Action]()
    for old in history.running_jobs if cron_job.spec.concurrency_policy == "Replace" else ():
        actions += _delete_job(cron_job, old)
        history.remove_active(old)
    new = _build_job(cron_job, start.time, start.timestamp)
    made = CronJobEvent("SuccessfulCreate", f"Created job {new['metadata']['name']}")
    history.record_start(start.time)
    return [*actions, Create(JOB, new), _record_event(cron_job, made)]


def _build_job(cron_job: CronJob, start: float, timestamp: str) -> Object:
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
            "annotations": {**(given.get("annotations") or {}), SCHEDULED_AT: timestamp},
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": template.get("spec") or {},
    }


def _jobs_beyond_history_limit(spec: CronJobSpec, jobs: Sequence[Job]) -> Iterator[Job]:
    """The oldest of the Jobs that have ended, beyond those that are to be kept."""
    limits = {COMPLETE: spec.successful_jobs_history_limit, FAILED: spec.failed_jobs_history_limit}
    for end, limit in limits.items():
        kept = [
            job
            for job in jobs
            if finish_condition(job) == end and not job.metadata.deletion_timestamp
        ]
        kept.sort(key=lambda job: (job.status.start_time is None, job.status.start_time or ""))
        if limit is not None:
            yield from kept[: max(0, len(kept) - limit)]


def _delete_job(cron_job: CronJob, job: Job) -> list[Action]:
    meta = job.metadata
    gone = CronJobEvent("SuccessfulDelete", f"Deleted job {meta.name}")
    return [
        Delete(JOB, meta.key, meta.uid, propagation="Background"),
        _record_event(cron_job, gone),
    ]


def _failure_events(action: Action, error: ApiError) -> list[CronJobEvent]:
    """What to say of an action that the server has refused."""
    match action:
        case Create():
            return [CronJobEvent("FailedCreate", f"Error creating job: {error}", "Warning")]
        case Delete():
            return [CronJobEvent("FailedDelete", f"Deleted job: {error}", "Warning")]
    return []


def _cron_job_references(job: Job) -> list[OwnerReference]:
    """The CronJob that a Job belongs to, if any."""
    kind = CRON_JOB.api_version, CRON_JOB.name
    owners = job.metadata.owner_references
    return [one for one in owners if one.controller and (one.api_version, one.kind) == kind]


def _record_event(cron_job: CronJob, event: CronJobEvent) -> RecordEvent:
    note = ObjectEvent(CRON_JOB, cron_job.metadata, event.reason, event.message, event.type)
    return RecordEvent(note)
