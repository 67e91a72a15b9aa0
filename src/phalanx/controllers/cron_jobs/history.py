"""The Jobs of a CronJob, and the status of the CronJob that follows from them.

The annotations of the Jobs count as much as the status: a controller that crashed between creating
a Job and writing the status finds the Job again. A Job in `status.active` that the cache does not
show is missing only if the cache is at least as new as the reference. Pure; `controller` writes the
status.

    status.active    cache of Jobs           active afterwards    event
    [a]              a runs                  [a]                  -
    [a]              a has finished          []                   SawCompletedJob
    [a]              a is not there          []                   MissingJob
    []               b runs, created by us   [b]                  -
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from phalanx.api.batch import COMPLETE, FAILED, CronJob, Job, JobReference
from phalanx.api.kinds import CRON_JOB
from phalanx.api.meta import parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.reconcile_loop import Patch

#: The annotation of a Job with the start time for which it was created.
SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"


class CronJobEvent(NamedTuple):
    """An event about a CronJob. `subject` tells events apart that have the same text."""

    reason: str
    message: str
    type: str = "Normal"
    subject: str = ""


@dataclass
class CronJobHistory:
    """The status that a CronJob should have, given its Jobs; `events` are about the differences.

    `observed_revision` is the revision of the cache of Jobs.
    """

    cron_job: CronJob
    jobs: Sequence[Job]
    observed_revision: int
    active: list[JobReference] = field(default_factory=list)
    events: list[CronJobEvent] = field(default_factory=list)
    last_schedule_time: str | None = None
    last_successful_time: str | None = None

    def __post_init__(self) -> None:
        """Start from the status and apply the Jobs to it."""
        status = self.cron_job.status
        self.last_schedule_time = status.last_schedule_time
        self.last_successful_time = status.last_successful_time
        jobs = {job.metadata.uid: job for job in self.jobs}
        for reference in status.active:
            self._check_active(reference, jobs.get(reference.uid))
        for job in self.jobs:
            self._include_job(job)

    @property
    def missed_since(self) -> float:
        """The time after which start times count as missed."""
        text = self.last_schedule_time or self.cron_job.metadata.creation_timestamp
        return max(parse_timestamp(text), 0.0)

    @property
    def running_jobs(self) -> list[Job]:
        """The Jobs in `active`."""
        active = {reference.uid for reference in self.active}
        return [job for job in self.jobs if job.metadata.uid in active]

    def record_start(self, time: float) -> None:
        """Record that the Job of a start time is created."""
        self.last_schedule_time = timestamp(time)

    def remove_active(self, job: Job) -> None:
        """Remove a Job that is deleted from `active`."""
        self.active = [one for one in self.active if one.uid != job.metadata.uid]

    def unexpected_job_events(self) -> list[CronJobEvent]:
        """Return an event for each running Job that this controller did not create."""
        text = "Saw a job that the controller did not create or forgot:"
        active = {reference.uid for reference in self.active}
        return [
            CronJobEvent("UnexpectedJob", f"{text} {job.metadata.name}", "Warning")
            for job in self.jobs
            if job.metadata.uid not in active and _is_active(job)
        ]

    def status_patches(self) -> list[Patch]:
        """Return the patch of the status, or nothing if the status is up to date."""
        meta, status = self.cron_job.metadata, self.cron_job.status
        changed: Object = {}
        if [one.uid for one in self.active] != [one.uid for one in status.active]:
            changed["active"] = msgspec.to_builtins(self.active) or None
        if self.last_schedule_time != status.last_schedule_time:
            changed["lastScheduleTime"] = self.last_schedule_time
        if self.last_successful_time != status.last_successful_time:
            changed["lastSuccessfulTime"] = self.last_successful_time
        # Conditional on the version: a concurrent write of the status must not be overwritten.
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        change = {"metadata": preconditions, "status": changed}
        return [Patch(CRON_JOB, meta.key, change, subresource="status")] if changed else []

    def _check_active(self, reference: JobReference, job: Job | None) -> None:
        """Keep a reference of the status, unless its Job has finished or is missing."""
        version = reference.resource_version
        revision = int(version) if version.isdecimal() else 0
        if job is None and revision <= self.observed_revision:
            text = f"Active job went missing: {reference.name}"
            self.events.append(CronJobEvent("MissingJob", text))
        elif job is not None and job.is_finished:
            text = f"Saw completed job: {reference.name}, condition: {finish_condition(job)}"
            self.events.append(CronJobEvent("SawCompletedJob", text))
        else:
            self.active.append(reference)

    def _include_job(self, job: Job) -> None:
        """Apply the start time, the completion and the state of a Job."""
        completed, start = job.status.completion_time, _scheduled_time(self.cron_job, job)
        if start is not None and (
            not self.last_schedule_time or start > parse_timestamp(self.last_schedule_time)
        ):
            self.last_schedule_time = timestamp(start)
        if (
            job.true_condition(COMPLETE)
            and completed
            and completed > (self.last_successful_time or "")
        ):
            self.last_successful_time = completed
        meta = job.metadata
        is_recorded = any(one.uid == meta.uid for one in self.active)
        if start is not None and _is_active(job) and not is_recorded:
            reference = JobReference(
                namespace=meta.namespace,
                name=meta.name,
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
            self.active.append(reference)


def job_name(cron_job: CronJob, start: float) -> str:
    """Return the name of the Job for a start time: it contains the minute, so it is unique."""
    return f"{cron_job.metadata.name}-{int(start // 60)}"


def finish_condition(job: Job) -> str:
    """Return the condition of a finished Job, Complete or Failed; "" if it has not finished."""
    return next((kind for kind in (COMPLETE, FAILED) if job.true_condition(kind)), "")


def _scheduled_time(cron_job: CronJob, job: Job) -> float | None:
    """The start time for which a Job was created; None unless annotation and name agree."""
    try:
        start = parse_timestamp(job.metadata.annotations.get(SCHEDULED_AT, ""))
    except ValueError:
        return None
    return start if job.metadata.name == job_name(cron_job, start) else None


def _is_active(job: Job) -> bool:
    return not (job.is_finished or job.metadata.deletion_timestamp)
