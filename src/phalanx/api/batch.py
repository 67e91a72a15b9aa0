"""Job as its controller reads it. Partial and frozen, but for the template, which pods copy."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.meta import Condition, Meta

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
#: Said before the end, while pods are still to be counted.
FAILURE_TARGET, SUCCESS_CRITERIA_MET = "FailureTarget", "SuccessCriteriaMet"
#: That its pods are scheduled one by one, because the objects that say otherwise cannot be used.
SCHEDULING_FALLBACK = "SchedulingFallback"
#: The controller of Jobs that name none.
JOB_CONTROLLER = "kubernetes.io/job-controller"
#: The name by which a Job asks for our controller on any API server.
OWN_JOB_CONTROLLER = "phalanx.dev/job-controller"


class ExitCodes(Struct, frozen=True, rename="camel"):
    """The exit codes that a rule is about, of one container or of any."""

    operator: str = "In"
    values: tuple[int, ...] = ()
    container_name: str = ""


class ConditionPattern(Struct, frozen=True):
    """A pod condition that a rule is about."""

    type: str = ""
    status: str = "True"


class FailureRule(Struct, frozen=True, rename="camel"):
    """What to do about a failed pod of some sort."""

    action: str = "Count"
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[ConditionPattern, ...] = ()


class FailurePolicy(Struct, frozen=True):
    """Rules of which the first that fits counts."""

    rules: tuple[FailureRule, ...] = ()


class SuccessRule(Struct, frozen=True, rename="camel"):
    """Which indexes, or how many, must have succeeded."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Struct, frozen=True):
    """Rules of which any makes the Job a success."""

    rules: tuple[SuccessRule, ...] = ()


class JobSpec(Struct, frozen=True, rename="camel"):
    """What the Job asks for."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    pod_replacement_policy: str = "TerminatingOrFailed"
    managed_by: str = ""
    selector: dict[str, Any] | None = None
    pod_failure_policy: FailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    template: dict[str, Any] = {}
    scheduling: dict[str, Any] | None = None
    gang_policy: dict[str, Any] | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether every pod has a number."""
        return self.completion_mode == "Indexed"

    @property
    def restarts(self) -> bool:
        """Whether containers are started again in their pod."""
        return bool(self.template.get("spec", {}).get("restartPolicy") == "OnFailure")

    @property
    def replaces_ended_only(self) -> bool:
        """Whether a pod that is on its way out is replaced only when it has ended."""
        return self.pod_replacement_policy == "Failed"


class Uncounted(Struct, frozen=True):
    """Pods that have ended, by uid, and are still to be counted."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobCondition(Condition, frozen=True, rename="camel"):
    """One observation about a Job; it also says when that was last made."""

    last_probe_time: str | None = None


class JobStatus(Struct, frozen=True, rename="camel"):
    """What has come of the Job so far."""

    conditions: tuple[JobCondition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: Uncounted = Uncounted()


class Job(Struct, frozen=True):
    """Pods that run to their end."""

    metadata: Meta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    def said(self, kind: str) -> JobCondition | None:
        """A condition that holds."""
        held = (c for c in self.status.conditions if c.type == kind and c.status == "True")
        return next(held, None)

    @property
    def ended(self) -> bool:
        """Whether it is over, for better or worse."""
        return self.said(COMPLETE) is not None or self.said(FAILED) is not None
