"""What the Job controller measures: looks at Jobs, how they end, what is made and what is counted.

Names and labels are those of kube-controller-manager, as far as there is the same thing here.
"""

from __future__ import annotations

from phalanx.api.batch import Job
from phalanx.api.kinds import WORKLOAD, Kind
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import SyncPlan, SyncResult
from phalanx.telemetry import Counter, Histogram, Metrics, MetricSpec, exponential_buckets

_SYNC_LABELS = ("completion_mode", "result", "action")

SYNC_SECONDS = MetricSpec(
    Histogram, "job_controller_job_sync_duration_seconds", "Seconds that a look at a Job took.",
    _SYNC_LABELS, exponential_buckets(0.001, 2, 15),
)  # fmt: skip
SYNCS = MetricSpec(Counter, "job_controller_job_syncs_total", "Looks at Jobs.", _SYNC_LABELS)
STALE_SYNCS = MetricSpec(
    Counter, "job_controller_stale_sync_skips_total",
    "Looks at Jobs that were put off, because what was done before was not seen yet.",
)  # fmt: skip
FINISHED = MetricSpec(
    Counter, "job_controller_jobs_finished_total", "Jobs that have ended.",
    ("completion_mode", "result", "reason"),
)  # fmt: skip
PODS_FINISHED = MetricSpec(
    Counter, "job_controller_job_pods_finished_total", "Pods that were counted.",
    ("completion_mode", "result"),
)  # fmt: skip
PODS_CREATED = MetricSpec(
    Counter, "job_controller_job_pods_creation_total", "Pods that were made, or were to be.",
    ("reason", "status"),
)  # fmt: skip
WORKLOADS = MetricSpec(
    Counter, "job_controller_job_gang_workload_creation_total",
    "Workloads that were made for Jobs, or were to be.", ("policy", "status"),
)  # fmt: skip
WORKLOAD_SECONDS = MetricSpec(
    Histogram, "job_controller_workload_creation_duration_seconds",
    "Seconds that it took to make the Workload of a Job.", (), exponential_buckets(0.001, 2, 15),
)  # fmt: skip

ROWS = (
    SYNC_SECONDS,
    SYNCS,
    STALE_SYNCS,
    FINISHED,
    PODS_FINISHED,
    PODS_CREATED,
    WORKLOADS,
    WORKLOAD_SECONDS,
)

_SUCCEEDED, _FAILED = "succeeded", "failed"


class JobMetrics:
    """The measurements of one Job controller."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._stale = metrics.series(STALE_SYNCS)

    def record_stale_skip(self) -> None:
        """A look came too early."""
        self._stale.add()

    def record_sync(self, job: Job, plan: SyncPlan | None, succeeded: bool, seconds: float) -> None:
        """A look at a Job is over."""
        values = job.spec.completion_mode, "success" if succeeded else "error", _sync_action(plan)
        self._metrics.series(SYNCS, *values).add()
        self._metrics.series(SYNC_SECONDS, *values).observe(seconds)

    def record_pod_creations(self, plan: SyncPlan, created: int, failed: int) -> None:
        """Pods were made, and some could not be."""
        for status, count in ((_SUCCEEDED, created), (_FAILED, failed)):
            if count:
                self._metrics.series(PODS_CREATED, _creation_reason(plan), status).add(count)

    def record_creation(self, kind: Kind, new: Object, succeeded: bool, seconds: float) -> None:
        """An object was made, or could not be; Workloads are measured."""
        if kind is WORKLOAD:
            (template,) = new["spec"]["podGroupTemplates"]
            policy = "gang" if "gang" in template["schedulingPolicy"] else "basic"
            self._metrics.series(WORKLOADS, policy, _SUCCEEDED if succeeded else _FAILED).add()
            self._metrics.series(WORKLOAD_SECONDS).observe(seconds)

    def record_status_update(self, plan: SyncPlan, done: SyncResult) -> None:
        """The status of a Job was written."""
        job, counted = plan.snapshot.job_pods.job, plan.counts
        for result, before, now in (
            (_SUCCEEDED, job.status.succeeded, counted.succeeded),
            (_FAILED, job.status.failed, counted.failed),
        ):
            if now > before:
                self._metrics.series(PODS_FINISHED, job.spec.completion_mode, result).add(
                    now - before
                )
        if plan.outcome is not None and plan.is_finished(done):
            result = _SUCCEEDED if plan.outcome.is_success else _FAILED
            reason = plan.outcome.reason
            self._metrics.series(FINISHED, job.spec.completion_mode, result, reason).add()


def _sync_action(plan: SyncPlan | None) -> str:
    """What a look was about."""
    if plan is None:
        return "reconciling"
    if plan.pods_to_create:
        return "pods_created"
    if plan.replicas.to_delete:
        return "pods_deleted"
    return "tracking" if plan.pods_to_release else "reconciling"


def _creation_reason(plan: SyncPlan) -> str:
    """Why pods are made: for the first time, or in place of others."""
    roll = plan.snapshot.job_pods
    if plan.snapshot.failed_count and roll.job.spec.replaces_failed_only:
        return "recreate_failed"
    if plan.snapshot.failed_count or roll.terminating:
        return "recreate_terminating_or_failed"
    return "new"
