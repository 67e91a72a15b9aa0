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
from phalanx.api.meta import Meta, seconds, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.actions import Patch
from phalanx.controllers.cron.times import Remark

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

    metadata: Meta
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


@dataclass
class Books:
    """What the status of a CronJob should say, given its Jobs; `remarks` tell of what changed.

    `seen` is the revision up to which the Jobs are known.
    """

    cron_job: CronJob
    jobs: Sequence[Job]
    seen: int
    active: list[JobReference] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    last_start: str | None = None
    last_success: str | None = None

    def __post_init__(self) -> None:
        """Begin with what the status says, then hear the Jobs."""
        status = self.cron_job.status
        self.last_start, self.last_success = status.last_schedule_time, status.last_successful_time
        jobs = {job.metadata.uid: job for job in self.jobs}
        for reference in status.active:
            self._check(reference, jobs.get(reference.uid))
        for job in self.jobs:
            self._hear(job)

    @property
    def since(self) -> float:
        """From when on starts count as missed."""
        text = self.last_start or self.cron_job.metadata.creation_timestamp
        return max(seconds(text), 0.0)

    @property
    def running(self) -> list[Job]:
        """The Jobs that are noted as running."""
        noted = {reference.uid for reference in self.active}
        return [job for job in self.jobs if job.metadata.uid in noted]

    def started(self, moment: float) -> None:
        """Note that a start has been made."""
        self.last_start = timestamp(moment)

    def strike(self, job: Job) -> None:
        """Note that a Job is to go."""
        self.active = [one for one in self.active if one.uid != job.metadata.uid]

    def strangers(self) -> list[Remark]:
        """The Jobs that run in our name and that somebody else has made."""
        text = "Saw a job that the controller did not create or forgot:"
        noted = {reference.uid for reference in self.active}
        return [
            Remark("UnexpectedJob", f"{text} {job.metadata.name}", "Warning")
            for job in self.jobs
            if job.metadata.uid not in noted and _is_staying(job)
        ]

    def changes(self) -> list[Patch]:
        """The patch by which the status says all this, unless it does already."""
        meta, status = self.cron_job.metadata, self.cron_job.status
        wanted: Object = {}
        if [one.uid for one in self.active] != [one.uid for one in status.active]:
            wanted["active"] = msgspec.to_builtins(self.active) or None
        if self.last_start != status.last_schedule_time:
            wanted["lastScheduleTime"] = self.last_start
        if self.last_success != status.last_successful_time:
            wanted["lastSuccessfulTime"] = self.last_success
        # With its version: what was noted meanwhile must not be lost.
        known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        change = {"metadata": known, "status": wanted}
        return [Patch(CRON_JOB, meta.key, change, "status")] if wanted else []

    def _check(self, reference: JobReference, job: Job | None) -> None:
        """Keep a note of a Job, unless that has ended or is missing."""
        if job is None and _version(reference) <= self.seen:
            self.remarks.append(Remark("MissingJob", f"Active job went missing: {reference.name}"))
        elif job is not None and job.ended:
            text = f"Saw completed job: {reference.name}, condition: {end_of(job)}"
            self.remarks.append(Remark("SawCompletedJob", text))
        else:
            self.active.append(reference)

    def _hear(self, job: Job) -> None:
        """Take in what a Job says of itself."""
        done, start = job.status.completion_time, _start_of(self.cron_job, job)
        if start is not None and (not self.last_start or start > seconds(self.last_start)):
            self.last_start = timestamp(start)
        if job.said(COMPLETE) and done and done > (self.last_success or ""):
            self.last_success = done
        is_noted = any(one.uid == job.metadata.uid for one in self.active)
        if start is not None and _is_staying(job) and not is_noted:
            self.active.append(_reference(job))


def job_name(cron_job: CronJob, start: float) -> str:
    """What the Job for a start is called: after its minute, so that there can be but one."""
    return f"{cron_job.metadata.name}-{int(start // 60)}"


def end_of(job: Job) -> str:
    """The condition by which a Job has ended; "" if it has not."""
    return next((kind for kind in (COMPLETE, FAILED) if job.said(kind)), "")


def _start_of(cron_job: CronJob, job: Job) -> float | None:
    """The start that a Job was made for; None if it does not bear the name that it would have."""
    try:
        start = seconds(job.metadata.annotations.get(SCHEDULED_AT, ""))
    except ValueError:
        return None
    return start if job.metadata.name == job_name(cron_job, start) else None


def _is_staying(job: Job) -> bool:
    return not (job.ended or job.metadata.deletion_timestamp)


def _reference(job: Job) -> JobReference:
    meta = job.metadata
    return JobReference(
        namespace=meta.namespace, name=meta.name, uid=meta.uid,
        resource_version=meta.resource_version,
    )  # fmt: skip


def _version(reference: JobReference) -> int:
    version = reference.resource_version
    return int(version) if version.isdecimal() else 0
