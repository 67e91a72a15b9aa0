"""Jobs and their pods in one line each, as the controller reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import (
    COMPLETION_INDEX,
    FAILURE_COUNT,
    IGNORED_FAILURE_COUNT,
    TRACKING_FINALIZER,
    JobPods,
)
from phalanx.controllers.jobs.pod_operations import build_pod
from phalanx.controllers.jobs.replicas import PodToCreate
from phalanx.controllers.jobs.sync import JobEvent, SyncPlan, SyncResult, plan_sync

NOW = 1_800_000_000.0
START = timestamp(NOW - 100)


def job(
    status: Object | None = None, *, name: str = "train", meta: Object | None = None, **spec: Any
) -> Job:
    """A Job that began a while ago."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}}
    defaults: Object = {"parallelism": 1, "completions": 1, "template": template}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                **(meta or {}),
            },
            "spec": {**defaults, **spec},
            "status": {"startTime": START, "ready": 0, "terminating": 0, **(status or {})},
        },
        Job,
    )


def pod(
    name: str, phase: str = "Running", *, of: Job | None = None, index: int | None = None,
    ended: float = -60.0, code: int = 1, failures: int | None = None, tracked: bool = True,
    leaving: bool = False, conditions: list[Object] | None = None, restarts: int = 0,
    node: str = "", ignored: int = 0, group: str = "",
) -> Pod:  # fmt: skip
    """A pod of a Job; one that has ended did so a minute ago."""
    counts = {FAILURE_COUNT: failures, IGNORED_FAILURE_COUNT: ignored or None}
    marks = tuple((mark, str(count)) for mark, count in counts.items() if count is not None)
    made = build_pod(of or job(), PodToCreate(index, marks), group)
    made["spec"]["nodeName"] = node
    meta = made["metadata"] | {"name": name, "uid": f"uid-{name}", "creationTimestamp": START}
    meta["finalizers"] = [TRACKING_FINALIZER] if tracked else []
    if leaving:
        meta["deletionTimestamp"] = timestamp(NOW)
    status: Object = {"phase": phase, "conditions": conditions or []}
    state: Object = {}
    if phase in ("Succeeded", "Failed"):
        moment = timestamp(NOW + ended)
        exit_code = 0 if phase == "Succeeded" else code
        state = {"terminated": {"exitCode": exit_code, "finishedAt": moment}}
    status["containerStatuses"] = [{"name": "main", "state": state, "restartCount": restarts}]
    return msgspec.convert({**made, "metadata": meta, "status": status}, Pod)


@dataclass(frozen=True)
class SyncRun:
    """A look at a Job at which everything went well."""

    plan: SyncPlan
    #: The fields of the status that change.
    changes: Object
    events: tuple[JobEvent, ...]

    @property
    def created(self) -> list[int | None]:
        """The indexes of the pods that are made."""
        return [order.index for order in self.plan.pods_to_create]

    @property
    def deleted(self) -> list[str]:
        return names(self.plan.pods_to_delete)

    @property
    def discarded(self) -> list[str]:
        return names(self.plan.pods_to_discard)

    @property
    def released(self) -> list[str]:
        return names(self.plan.pods_to_release)

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and reason of the conditions that it leaves behind."""
        return {c["type"]: (c["status"], c["reason"]) for c in self.changes.get("conditions", ())}

    @property
    def event_reasons(self) -> list[str]:
        """The reasons of the events."""
        return [remark.reason for remark in self.events]

    @property
    def is_noop(self) -> bool:
        """Whether there was nothing to do."""
        due = self.plan
        return not (
            due.pods_to_create
            or due.replicas.to_delete
            or due.pods_to_release
            or self.changes
            or self.events
        )


def situation(one: Job, *pods: Pod, now: float = NOW) -> JobSnapshot:
    return JobSnapshot(JobPods(one, pods), now)


def run_sync(one: Job, *pods: Pod, now: float = NOW, fallback: JobEvent | None = None) -> SyncRun:
    due = plan_sync(situation(one, *pods, now=now))
    report = due.build_status_update(
        SyncResult((*due.pods_to_delete, *due.pods_to_discard), len(due.pods_to_create), fallback)
    )
    return SyncRun(due, report.status, report.events)


def condition(kind: str, reason: str = "r", status: str = "True") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": "m"}


def names(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(one.metadata.name for one in pods)


__all__ = [
    "COMPLETION_INDEX",
    "FAILURE_COUNT",
    "IGNORED_FAILURE_COUNT",
    "NOW",
    "START",
    "condition",
    "job",
    "run_sync",
]
__all__ += ["names", "pod", "situation"]
