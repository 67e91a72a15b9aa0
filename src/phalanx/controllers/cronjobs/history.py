"""The books of a CronJob: which Jobs are its own, which of them run, what came last.

What a Job says of itself counts as much as the status: whoever ended between making a Job and
noting it finds it again. A Job that is noted and not to be seen is missed only by somebody whose
view is no older than the note. Pure; `cronjobs` writes down what is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from phalanx.api.batch import COMPLETE, FAILED, Job
from phalanx.api.kinds import CRON_JOB, JOB
from phalanx.api.meta import ObjectMeta, parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.cronjobs.schedule import CronJobEvent
from phalanx.controllers.reconcile_loop import Patch

SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"


class JobReference(Struct, frozen=True, rename="camel"):
    """A Job that runs, as it was when it was noted."""

    api_version: str = JOB.api_version
    kind: str = JOB.name
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class CronJobSpec(Struct, frozen=True, rename="camel"):
    """When, what, and how many of them."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool = False
    job_template: dict[str, Any] = {}
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Struct, frozen=True, rename="camel"):
    """What runs, and what came last."""

    active: tuple[JobReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Struct, frozen=True):
    """Jobs by the clock."""

    metadata: ObjectMeta
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


@dataclass
class CronJobHistory:
    """What the status of a CronJob should say, given its Jobs; `remarks` tell of what changed.

    `seen` is the revision up to which the Jobs are known.
    """

    cron_job: CronJob
    jobs: Sequence[Job]
    observed_revision: int
    active: list[JobReference] = field(default_factory=list)
    events: list[CronJobEvent] = field(default_factory=list)
    last_schedule_time: str | None = None
    last_successful_time: str | None = None

    def __post_init__(self) -> None:
        """Begin with what the status says, then hear the Jobs."""
        status = self.cron_job.status
        self.last_schedule_time, self.last_successful_time = (
            status.last_schedule_time,
            status.last_successful_time,
        )
        jobs = {job.metadata.uid: job for job in self.jobs}
        for reference in status.active:
            self._check_active(reference, jobs.get(reference.uid))
        for job in self.jobs:
            self._include_job(job)

    @property
    def missed_since(self) -> float:
        """From when on starts count as missed."""
        text = self.last_schedule_time or self.cron_job.metadata.creation_timestamp
        return max(parse_timestamp(text), 0.0)

    @property
    def running_jobs(self) -> list[Job]:
        """The Jobs that are noted as running."""
        noted = {reference.uid for reference in self.active}
        return [job for job in self.jobs if job.metadata.uid in noted]

    def record_start(self, moment: float) -> None:
        """Note that a start has been made."""
        self.last_schedule_time = timestamp(moment)

    def remove_active(self, job: Job) -> None:
        """Note that a Job is to go."""
        self.active = [one for one in self.active if one.uid != job.metadata.uid]

    def unexpected_job_events(self) -> list[CronJobEvent]:
        """The Jobs that run in our name and that somebody else has made."""
        text = "Saw a job that the controller did not create or forgot:"
        noted = {reference.uid for reference in self.active}
        return [
            CronJobEvent("UnexpectedJob", f"{text} {job.metadata.name}", "Warning")
            for job in self.jobs
            if job.metadata.uid not in noted and _is_active(job)
        ]

    def status_patches(self) -> list[Patch]:
        """The patch by which the status says all this, unless it does already."""
        meta, status = self.cron_job.metadata, self.cron_job.status
        wanted: Object = {}
        if [one.uid for one in self.active] != [one.uid for one in status.active]:
            wanted["active"] = msgspec.to_builtins(self.active) or None
        if self.last_schedule_time != status.last_schedule_time:
            wanted["lastScheduleTime"] = self.last_schedule_time
        if self.last_successful_time != status.last_successful_time:
            wanted["lastSuccessfulTime"] = self.last_successful_time
        # With its version: what was noted meanwhile must not be lost.
        known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        change = {"metadata": known, "status": wanted}
        return [Patch(CRON_JOB, meta.key, change, "status")] if wanted else []

    def _check_active(self, reference: JobReference, job: Job | None) -> None:
        """Keep a note of a Job, unless that has ended or is missing."""
        if job is None and _resource_version(reference) <= self.observed_revision:
            self.events.append(
                CronJobEvent("MissingJob", f"Active job went missing: {reference.name}")
            )
        elif job is not None and job.is_finished:
            text = f"Saw completed job: {reference.name}, condition: {finish_condition(job)}"
            self.events.append(CronJobEvent("SawCompletedJob", text))
        else:
            self.active.append(reference)

    def _include_job(self, job: Job) -> None:
        """Take in what a Job says of itself."""
        done, start = job.status.completion_time, _scheduled_time(self.cron_job, job)
        if start is not None and (
            not self.last_schedule_time or start > parse_timestamp(self.last_schedule_time)
        ):
            self.last_schedule_time = timestamp(start)
        if job.true_condition(COMPLETE) and done and done > (self.last_successful_time or ""):
            self.last_successful_time = done
        is_noted = any(one.uid == job.metadata.uid for one in self.active)
        if start is not None and _is_active(job) and not is_noted:
            self.active.append(_job_reference(job))


def job_name(cron_job: CronJob, start: float) -> str:
    """What the Job for a start is called: after its minute, so that there can be but one."""
    return f"{cron_job.metadata.name}-{int(start // 60)}"


def finish_condition(job: Job) -> str:
    """The condition by which a Job has ended; "" if it has not."""
    return next((kind for kind in (COMPLETE, FAILED) if job.true_condition(kind)), "")


def _scheduled_time(cron_job: CronJob, job: Job) -> float | None:
    """The start that a Job was made for; None if it does not bear the name that it would have."""
    try:
        start = parse_timestamp(job.metadata.annotations.get(SCHEDULED_AT, ""))
    except ValueError:
        return None
    return start if job.metadata.name == job_name(cron_job, start) else None


def _is_active(job: Job) -> bool:
    return not (job.is_finished or job.metadata.deletion_timestamp)


def _job_reference(job: Job) -> JobReference:
    meta = job.metadata
    return JobReference(
        namespace=meta.namespace, name=meta.name, uid=meta.uid,
        resource_version=meta.resource_version,
    )  # fmt: skip


def _resource_version(reference: JobReference) -> int:
    version = reference.resource_version
    return int(version) if version.isdecimal() else 0
