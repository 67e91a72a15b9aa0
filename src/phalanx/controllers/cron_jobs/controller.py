"""The CronJob controller: creates Jobs at the times of a schedule and deletes old ones.

    CronJobs, Jobs ─▶ queue of CronJobs ─▶ history ─▶ is a start due? ─▶ Jobs, status, events

No start time gets two Jobs: the name of a Job contains the minute of its start time, and what was
started is read from the Jobs themselves (`history`). Finished Jobs beyond the history limits, and
Jobs that the concurrency policy replaces, are deleted with their pods. The controller is disabled
on a foreign API server, which has its own.

The schedule is evaluated in the CronJob's time zone:

    last start       startingDeadlineSeconds            now
    ──┬───────┬─────────────┼────┬──────────┬───────────┼───────┬──
      missed  missed        ╰─── start times within the deadline: the latest of them is due
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from phalanx.api.batch import COMPLETE, FAILED, CronJob, CronJobSpec, Job
from phalanx.api.cron_schedule import (
    BadSchedule,
    CronSchedule,
    last_occurrence,
    occurrences,
    parse_schedule,
)
from phalanx.api.errors import ApiError
from phalanx.api.kinds import CRON_JOB, JOB
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.cron_jobs.history import (
    SCHEDULED_AT,
    CronJobEvent,
    CronJobHistory,
    finish_condition,
    job_name,
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
    treat_conflict_as_stale,
)

#: With more missed start times than this, the clock or the CronJob is probably wrong.
MAX_MISSED_STARTS = 100


class MissedStarts(NamedTuple):
    """The latest missed start time, and whether there are more than `MAX_MISSED_STARTS`."""

    latest: float | None = None
    is_over_limit: bool = False


class CronJobSchedule(NamedTuple):
    """The schedule of a CronJob in a time zone."""

    schedule: CronSchedule
    zone: tzinfo

    def missed_starts(self, since: float, now: float) -> MissedStarts:
        """Return the start times after `since` and not after `now`."""
        times = occurrences(self.schedule, since, self.zone)
        found = list(islice(takewhile(lambda time: time <= now, times), MAX_MISSED_STARTS + 1))
        if len(found) <= MAX_MISSED_STARTS:
            return MissedStarts(found[-1] if found else None)
        return MissedStarts(
            last_occurrence(self.schedule, found[-2], now, zone=self.zone), is_over_limit=True
        )

    def next_start(self, now: float) -> float | None:
        """Return the next start time; None if the schedule never occurs."""
        return next(occurrences(self.schedule, now, self.zone), None)

    def format_time(self, time: float) -> str:
        """Format a time with the UTC offset of the time zone."""
        return datetime.fromtimestamp(time, self.zone).isoformat().replace("+00:00", "Z")


def parse_cron_job_schedule(schedule: str, zone: str | None) -> CronJobSchedule | CronJobEvent:
    """Parse a schedule and a time zone; return an event if either is invalid."""
    parsed_zone: tzinfo = UTC
    if zone is not None:
        try:
            parsed_zone = ZoneInfo(zone)
        # The machine may have no time zone database, or a directory of that name.
        except (KeyError, ValueError, OSError):
            text = f'invalid timeZone: "{zone}": unknown time zone {zone}'
            return CronJobEvent("UnknownTimeZone", text, "Warning")
    try:
        return CronJobSchedule(parse_schedule(schedule), parsed_zone)
    except BadSchedule as error:
        text = f'unparseable schedule: "{schedule}" : {error}'
        return CronJobEvent("UnparseableSchedule", text, "Warning")


#: The most seconds between two reconciles: the clock may be set, and the machine may sleep.
_MAX_REQUEUE = 600.0
_WORKERS = 5


class CronJobController:
    """Creates and deletes the Jobs of CronJobs until cancelled; `record` receives the events."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._clock, self._record = clock, record
        self._informers = informers.of(CronJob), informers.of(Job)
        self._cron_jobs, self._jobs = self._informers[0].cache, self._informers[1].cache
        self._jobs_by_owner = self._jobs.index(
            lambda job: [owner.uid for owner in _cron_job_references(job)]
        )
        #: The events that held at the last reconcile of each CronJob.
        self._last_events: dict[Key, Sequence[CronJobEvent]] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record, on_error=self._record_failure
        )
        self._cron_jobs.subscribe(self._on_cron_job_change)
        self._jobs.subscribe(self._on_job_change)

    async def run(self) -> None:
        """Run CronJobs until cancelled."""
        # A Job that the cache does not show yet would count as missing.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: delete old Jobs, create the due Job, update the status, record new events."""
        cron_job = self._cron_jobs.get(key)
        if cron_job is None:
            self._last_events.pop(key, None)
            return ReconcilePlan()
        jobs = sorted(self._jobs_by_owner[cron_job.metadata.uid], key=lambda job: job.metadata.name)
        history = CronJobHistory(cron_job, jobs, self._jobs.revision)
        start = _check_schedule(history, self._clock.now())
        actions = [
            action
            for job in _jobs_beyond_history_limit(cron_job.spec, jobs)
            for action in _delete_job(cron_job, job)
        ]
        actions += _start_job(history, start)
        actions += history.status_patches()
        events = [*history.unexpected_job_events(), *start.events]
        before, self._last_events[key] = self._last_events.get(key, ()), events
        new_events = [event for event in events if event not in before]
        actions += [_record_event(cron_job, event) for event in (*history.events, *new_events)]
        return ReconcilePlan(actions, start.requeue_after)

    def _record_failure(self, key: Key, action: Action, error: ApiError) -> None:
        cron_job = self._cron_jobs.get(key)
        treat_conflict_as_stale(key, action, error)
        if cron_job is None:
            return
        match action:
            case Create():
                event = CronJobEvent("FailedCreate", f"Error creating job: {error}", "Warning")
            case Delete():
                event = CronJobEvent("FailedDelete", f"Deleted job: {error}", "Warning")
            case _:
                return
        self._record(_record_event(cron_job, event).event)

    def _on_cron_job_change(self, old: CronJob | None, new: CronJob | None) -> None:
        changed = new or old
        if changed is not None:
            self._loop.queue.add(changed.metadata.key)

    def _on_job_change(self, old: Job | None, new: Job | None) -> None:
        for job in (job for job in (old, new) if job is not None):
            for owner in _cron_job_references(job):
                self._loop.queue.add(Key(job.metadata.namespace, owner.name))


@dataclass(frozen=True, slots=True)
class DueStart:
    """The start time that is due, if any, with its annotation text; and when to check again."""

    time: float | None = None
    timestamp: str = ""
    events: Sequence[CronJobEvent] = ()
    requeue_after: float | None = None


def _check_schedule(history: CronJobHistory, now: float) -> DueStart:
    """Determine whether a start is due; the events say why not."""
    spec = history.cron_job.spec
    if history.cron_job.metadata.deletion_timestamp or spec.suspend:
        return DueStart()
    schedule = parse_cron_job_schedule(spec.schedule, spec.time_zone)
    if isinstance(schedule, CronJobEvent):
        return DueStart(events=[schedule])
    next_start = schedule.next_start(now)
    if next_start is None:
        reason = "time difference between two schedules is less than 1 second"
        text = f"invalid schedule: {spec.schedule} : {reason}"
        return DueStart(events=[CronJobEvent("InvalidSchedule", text, "Warning")])
    missed, events = _missed_starts(history, schedule, now)
    requeue_after = min(next_start - now, _MAX_REQUEUE)
    if missed.latest is None:
        return DueStart(events=events, requeue_after=requeue_after)
    if spec.concurrency_policy == "Forbid" and history.active:
        text = (
            "Not starting job because prior execution is running and concurrency policy is Forbid"
        )
        event = CronJobEvent("JobAlreadyActive", text, subject=str(missed.latest))
        return DueStart(events=[*events, event], requeue_after=requeue_after)
    return DueStart(
        missed.latest, schedule.format_time(missed.latest), events, requeue_after=requeue_after
    )


def _missed_starts(
    history: CronJobHistory, schedule: CronJobSchedule, now: float
) -> tuple[MissedStarts, list[CronJobEvent]]:
    """The missed start times within the deadline, and events about those before it."""
    deadline = history.cron_job.spec.starting_deadline_seconds
    since = history.missed_since
    if deadline is not None:
        since = max(since, now - deadline)
    missed = schedule.missed_starts(since, now)
    if missed.is_over_limit:
        return missed, [_TOO_MANY_MISSED]
    if missed.latest is None and since > history.missed_since:
        late = schedule.missed_starts(history.missed_since, now).latest
        if late is not None:
            time = datetime.fromtimestamp(late, UTC).strftime("%a, %d %b %Y %H:%M:%S %z")
            text = f"Missed scheduled time to start a job: {time}"
            return missed, [CronJobEvent("MissSchedule", text, "Warning")]
    return missed, []


_TOO_MANY_MISSED = CronJobEvent(
    "TooManyMissedTimes",
    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock "
    "skew",
    "Warning",
)


def _start_job(history: CronJobHistory, start: DueStart) -> list[Action]:
    """Create the Job that is due; under the policy Replace, first delete those that run."""
    if start.time is None:
        return []
    cron_job, actions = history.cron_job, list[Action]()
    if cron_job.spec.concurrency_policy == "Replace":
        for running in history.running_jobs:
            actions += _delete_job(cron_job, running)
            history.remove_active(running)
    new = _build_job(cron_job, start.time, start.timestamp)
    event = CronJobEvent("SuccessfulCreate", f"Created job {new['metadata']['name']}")
    history.record_start(start.time)
    return [*actions, Create(JOB, new), _record_event(cron_job, event)]


def _build_job(cron_job: CronJob, start: float, timestamp: str) -> Object:
    # A copy: the receiver of a request may change its object.
    meta, template = cron_job.metadata, deepcopy(cron_job.spec.job_template)
    template_meta = template.get("metadata") or {}
    owner = OwnerReference(
        CRON_JOB.api_version,
        CRON_JOB.name,
        meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": job_name(cron_job, start),
            "namespace": meta.namespace,
            "labels": template_meta.get("labels") or {},
            "annotations": {**(template_meta.get("annotations") or {}), SCHEDULED_AT: timestamp},
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": template.get("spec") or {},
    }


def _jobs_beyond_history_limit(spec: CronJobSpec, jobs: Sequence[Job]) -> Iterator[Job]:
    """The oldest finished Jobs, beyond the numbers to keep."""
    limits = {COMPLETE: spec.successful_jobs_history_limit, FAILED: spec.failed_jobs_history_limit}
    for condition, limit in limits.items():
        if limit is None:
            continue
        finished = [
            job
            for job in jobs
            if finish_condition(job) == condition and not job.metadata.deletion_timestamp
        ]
        finished.sort(key=lambda job: (job.status.start_time is None, job.status.start_time or ""))
        yield from finished[: max(0, len(finished) - limit)]


def _delete_job(cron_job: CronJob, job: Job) -> list[Action]:
    meta = job.metadata
    event = CronJobEvent("SuccessfulDelete", f"Deleted job {meta.name}")
    return [
        Delete(JOB, meta.key, meta.uid, propagation="Background"),
        _record_event(cron_job, event),
    ]


def _cron_job_references(job: Job) -> list[OwnerReference]:
    """The owner reference to the CronJob that controls a Job, if one does."""
    kind = CRON_JOB.api_version, CRON_JOB.name
    owners = job.metadata.owner_references
    return [one for one in owners if one.controller and (one.api_version, one.kind) == kind]


def _record_event(cron_job: CronJob, event: CronJobEvent) -> RecordEvent:
    return RecordEvent(
        ObjectEvent(
            CRON_JOB, cron_job.metadata, event.reason, message=event.message, type=event.type
        )
    )
