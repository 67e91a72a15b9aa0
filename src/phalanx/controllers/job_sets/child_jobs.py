"""The Jobs of a JobSet, by attempt and state, and the counts of them in its status.

A Job carries two numbers: how often the JobSet had restarted when it was created, and how often
this Job had been restarted alone. Jobs with a smaller number than the status has are deleted; they
count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.api.batch import COMPLETE, FAILED, Job
from phalanx.api.job_sets import (
    JOB_INDEX,
    JOB_RESTART_ATTEMPT,
    REPLICATED_JOB_NAME,
    RESTART_ATTEMPT,
    JobSet,
    ReplicatedJobSpec,
    ReplicatedJobStatus,
)


def role_name(job: Job) -> str:
    """Return the name of the replicated Job of a Job."""
    return job.metadata.labels.get(REPLICATED_JOB_NAME, "")


def job_index(job: Job) -> int:
    """Return the index of a Job in its replicated Job; -1 if it has none."""
    return _parse_number(job.metadata.labels.get(JOB_INDEX, ""))


def pod_count(job: Job) -> int:
    """Return the number of pods of a Job that run at the same time."""
    completions = job.spec.completions
    return job.spec.parallelism if completions is None else min(job.spec.parallelism, completions)


def count_own_restarts(job_set: JobSet, role: str, index: int) -> int:
    """Return how often a Job was restarted alone."""
    status = find_status(job_set.status.replicated_jobs_status, role)
    return status.job_restarts[index] if 0 <= index < len(status.job_restarts) else 0


def find_status(statuses: Sequence[ReplicatedJobStatus], role: str) -> ReplicatedJobStatus:
    """Return the counts of a replicated Job; zeros if there are none."""
    return next((one for one in statuses if one.name == role), ReplicatedJobStatus(role))


@dataclass(frozen=True, slots=True)
class ChildJobs:
    """The Jobs of the present attempt by state, and those of earlier attempts."""

    active: tuple[Job, ...] = ()
    successful: tuple[Job, ...] = ()
    failed: tuple[Job, ...] = ()
    previous: tuple[Job, ...] = ()

    @property
    def current(self) -> tuple[Job, ...]:
        """The Jobs of the present attempt."""
        return *self.active, *self.successful, *self.failed

    def of_role(self, role: str) -> list[Job]:
        """The Jobs of the present attempt of a replicated Job."""
        return [job for job in self.current if role_name(job) == role]


def classify_jobs(job_set: JobSet, jobs: Sequence[Job]) -> ChildJobs:
    """Sort the Jobs that a JobSet controls. A Job without a valid attempt is of an earlier one."""
    active, successful, failed, previous = [], [], [], []
    for job in sorted(jobs, key=lambda one: one.metadata.name):
        labels = job.metadata.labels
        attempt = _parse_number(labels.get(RESTART_ATTEMPT, ""))
        own = _parse_number(labels.get(JOB_RESTART_ATTEMPT, "0"))
        expected = count_own_restarts(job_set, role_name(job), job_index(job))
        if attempt < job_set.status.restarts or own < expected:
            previous.append(job)
        elif job.true_condition(FAILED):
            failed.append(job)
        elif job.true_condition(COMPLETE):
            successful.append(job)
        else:
            active.append(job)
    return ChildJobs(tuple(active), tuple(successful), tuple(failed), tuple(previous))


def count_jobs(job_set: JobSet, jobs: ChildJobs) -> tuple[ReplicatedJobStatus, ...]:
    """Count the Jobs of each replicated Job for the status."""
    return tuple(_count_role(job_set, jobs, role) for role in job_set.spec.replicated_jobs)


def _count_role(job_set: JobSet, jobs: ChildJobs, role: ReplicatedJobSpec) -> ReplicatedJobStatus:
    before = find_status(job_set.status.replicated_jobs_status, role.name)
    active = [job for job in jobs.active if role_name(job) == role.name]
    return ReplicatedJobStatus(
        role.name,
        ready=sum(_is_ready(job) for job in active),
        succeeded=sum(role_name(job) == role.name for job in jobs.successful),
        failed=sum(role_name(job) == role.name for job in jobs.failed),
        active=sum(job.status.active > 0 for job in active),
        suspended=sum(job.spec.suspend for job in active),
        job_restarts=before.job_restarts,
        job_restarts_count_towards_max=before.job_restarts_count_towards_max,
    )


def _is_ready(job: Job) -> bool:
    """Whether all pods of a Job are ready or have succeeded."""
    return job.status.succeeded + (job.status.ready or 0) >= pod_count(job)


def has_started(role: ReplicatedJobSpec, status: ReplicatedJobStatus) -> bool:
    """Whether every Job of a replicated Job is ready or has ended."""
    return role.replicas == status.ready + status.succeeded + status.failed


def _parse_number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1
