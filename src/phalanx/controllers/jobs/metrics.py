"""What the Job controller measures: looks at Jobs, how they end, what is made and what is counted.

Names and labels are those of kube-controller-manager, as far as there is the same thing here.
"""

from __future__ import annotations

from phalanx.api.batch import Job
from phalanx.api.kinds import WORKLOAD, Kind
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import Done, Sync
from phalanx.telemetry import Counter, Histogram, Metrics, Row, exponential

_SYNC = ("completion_mode", "result", "action")

SYNC_SECONDS = Row(
    Histogram, "job_controller_job_sync_duration_seconds", "Seconds that a look at a Job took.",
    _SYNC, exponential(0.001, 2, 15),
)  # fmt: skip
SYNCS = Row(Counter, "job_controller_job_syncs_total", "Looks at Jobs.", _SYNC)
STALE = Row(
    Counter, "job_controller_stale_sync_skips_total",
    "Looks at Jobs that were put off, because what was done before was not seen yet.",
)  # fmt: skip
FINISHED = Row(
    Counter, "job_controller_jobs_finished_total", "Jobs that have ended.",
    ("completion_mode", "result", "reason"),
)  # fmt: skip
PODS_FINISHED = Row(
    Counter, "job_controller_job_pods_finished_total", "Pods that were counted.",
    ("completion_mode", "result"),
)  # fmt: skip
PODS_MADE = Row(
    Counter, "job_controller_job_pods_creation_total", "Pods that were made, or were to be.",
    ("reason", "status"),
)  # fmt: skip
WORKLOADS = Row(
    Counter, "job_controller_job_gang_workload_creation_total",
    "Workloads that were made for Jobs, or were to be.", ("policy", "status"),
)  # fmt: skip
WORKLOAD_SECONDS = Row(
    Histogram, "job_controller_workload_creation_duration_seconds",
    "Seconds that it took to make the Workload of a Job.", (), exponential(0.001, 2, 15),
)  # fmt: skip

ROWS = (
    SYNC_SECONDS, SYNCS, STALE, FINISHED, PODS_FINISHED, PODS_MADE, WORKLOADS, WORKLOAD_SECONDS,
)  # fmt: skip

_SUCCEEDED, _FAILED = "succeeded", "failed"


class JobMetrics:
    """The measurements of one Job controller."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._stale = metrics.of(STALE)

    def put_off(self) -> None:
        """A look came too early."""
        self._stale.add()

    def looked(self, job: Job, due: Sync | None, is_well: bool, seconds: float) -> None:
        """A look at a Job is over."""
        values = job.spec.completion_mode, "success" if is_well else "error", _action(due)
        self._metrics.of(SYNCS, *values).add()
        self._metrics.of(SYNC_SECONDS, *values).observe(seconds)

    def made_pods(self, due: Sync, made: int, failed: int) -> None:
        """Pods were made, and some could not be."""
        for status, count in ((_SUCCEEDED, made), (_FAILED, failed)):
            if count:
                self._metrics.of(PODS_MADE, _reason(due), status).add(count)

    def created(self, kind: Kind, new: Object, is_well: bool, seconds: float) -> None:
        """An object was made, or could not be; Workloads are measured."""
        if kind is WORKLOAD:
            (template,) = new["spec"]["podGroupTemplates"]
            policy = "gang" if "gang" in template["schedulingPolicy"] else "basic"
            self._metrics.of(WORKLOADS, policy, _SUCCEEDED if is_well else _FAILED).add()
            self._metrics.of(WORKLOAD_SECONDS).observe(seconds)

    def counted(self, due: Sync, done: Done) -> None:
        """The status of a Job was written."""
        job, counted = due.situation.roll.job, due.counted
        for result, before, now in (
            (_SUCCEEDED, job.status.succeeded, counted.succeeded),
            (_FAILED, job.status.failed, counted.failed),
        ):
            if now > before:
                self._metrics.of(PODS_FINISHED, job.spec.completion_mode, result).add(now - before)
        if due.end is not None and due.is_over(done):
            result = _SUCCEEDED if due.end.is_success else _FAILED
            reason = due.end.reason
            self._metrics.of(FINISHED, job.spec.completion_mode, result, reason).add()


def _action(due: Sync | None) -> str:
    """What a look was about."""
    if due is None:
        return "reconciling"
    if due.make:
        return "pods_created"
    if due.staff.delete:
        return "pods_deleted"
    return "tracking" if due.release else "reconciling"


def _reason(due: Sync) -> str:
    """Why pods are made: for the first time, or in place of others."""
    roll = due.situation.roll
    if due.situation.failed and roll.job.spec.replaces_ended_only:
        return "recreate_failed"
    if due.situation.failed or roll.terminating:
        return "recreate_terminating_or_failed"
    return "new"
