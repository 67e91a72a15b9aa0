"""The metrics of the Job controller: syncs, finished Jobs, created and counted pods, Workloads.

Names and labels are those of kube-controller-manager where it has the same metric.
"""

from __future__ import annotations

from phalanx.api.batch import Job
from phalanx.api.kinds import WORKLOAD, Kind
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import SyncPlan, SyncResult
from phalanx.telemetry import Counter, Histogram, Metrics, MetricSpec, exponential_buckets

_SYNC_LABELS = ("completion_mode", "result", "action")

SYNC_SECONDS = MetricSpec(
    Histogram,
    "job_controller_job_sync_duration_seconds",
    "Duration of one sync of a Job, in seconds.",
    labels=_SYNC_LABELS,
    buckets=exponential_buckets(0.001, 2, 15),
)
SYNCS = MetricSpec(Counter, "job_controller_job_syncs_total", "Syncs of Jobs.", labels=_SYNC_LABELS)
STALE_SYNCS = MetricSpec(
    Counter,
    "job_controller_stale_sync_skips_total",
    "Syncs of Jobs that were postponed because the caches missed earlier writes.",
)
FINISHED = MetricSpec(
    Counter,
    "job_controller_jobs_finished_total",
    "Finished Jobs.",
    labels=("completion_mode", "result", "reason"),
)
PODS_FINISHED = MetricSpec(
    Counter,
    "job_controller_job_pods_finished_total",
    "Finished pods that a Job status counts.",
    labels=("completion_mode", "result"),
)
PODS_CREATED = MetricSpec(
    Counter,
    "job_controller_job_pods_creation_total",
    "Pods that the controller created or failed to create.",
    labels=("reason", "status"),
)
WORKLOADS = MetricSpec(
    Counter,
    "job_controller_job_gang_workload_creation_total",
    "Workloads of Jobs that the controller created or failed to create.",
    labels=("policy", "status"),
)
WORKLOAD_SECONDS = MetricSpec(
    Histogram,
    "job_controller_workload_creation_duration_seconds",
    "Duration of creating the Workload of a Job, in seconds.",
    buckets=exponential_buckets(0.001, 2, 15),
)

JOB_METRICS = (
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
    """Records the metrics of one Job controller."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._stale = metrics.series(STALE_SYNCS)

    def record_stale_skip(self) -> None:
        """Count a sync that was postponed because the caches missed earlier writes."""
        self._stale.add()

    def record_sync(
        self, job: Job, plan: SyncPlan | None, *, succeeded: bool, seconds: float
    ) -> None:
        """Record one sync; `plan` is None for a Job that had finished before."""
        values = job.spec.completion_mode, "success" if succeeded else "error", _sync_action(plan)
        self._metrics.series(SYNCS, *values).add()
        self._metrics.series(SYNC_SECONDS, *values).observe(seconds)

    def record_pod_creations(self, plan: SyncPlan, created: int, failed: int) -> None:
        """Count created pods and failed creations."""
        for status, count in ((_SUCCEEDED, created), (_FAILED, failed)):
            if count:
                self._metrics.series(PODS_CREATED, _creation_reason(plan), status).add(count)

    def record_creation(self, kind: Kind, new: Object, *, succeeded: bool, seconds: float) -> None:
        """Record the creation of an object. Only Workloads are measured."""
        if kind is WORKLOAD:
            (template,) = new["spec"]["podGroupTemplates"]
            policy = "gang" if "gang" in template["schedulingPolicy"] else "basic"
            self._metrics.series(WORKLOADS, policy, _SUCCEEDED if succeeded else _FAILED).add()
            self._metrics.series(WORKLOAD_SECONDS).observe(seconds)

    def record_status_update(self, plan: SyncPlan, performed: SyncResult) -> None:
        """Count the pods and the end of the Job that a written status adds."""
        job, counts = plan.snapshot.job_pods.job, plan.counts
        for result, before, now in (
            (_SUCCEEDED, job.status.succeeded, counts.succeeded),
            (_FAILED, job.status.failed, counts.failed),
        ):
            if now > before:
                self._metrics.series(PODS_FINISHED, job.spec.completion_mode, result).add(
                    now - before
                )
        if plan.outcome is not None and plan.is_finished(performed):
            result = _SUCCEEDED if plan.outcome.is_success else _FAILED
            reason = plan.outcome.reason
            self._metrics.series(FINISHED, job.spec.completion_mode, result, reason).add()


def _sync_action(plan: SyncPlan | None) -> str:
    """The label `action`: what the sync changed."""
    if plan is None:
        return "reconciling"
    if plan.pods_to_create:
        return "pods_created"
    if plan.replicas.to_delete:
        return "pods_deleted"
    return "tracking" if plan.pods_to_untrack else "reconciling"


def _creation_reason(plan: SyncPlan) -> str:
    """The label `reason`: whether pods are created first or as replacements."""
    pods = plan.snapshot.job_pods
    if plan.snapshot.failed_count and pods.job.spec.replaces_failed_only:
        return "recreate_failed"
    if plan.snapshot.failed_count or pods.terminating:
        return "recreate_terminating_or_failed"
    return "new"
