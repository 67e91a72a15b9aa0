"""Builders of decoded Jobs and pods, and one sync of them."""

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
    """Build a Job that started 100 seconds ago."""
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
    name: str,
    phase: str = "Running",
    *,
    of: Job | None = None,
    index: int | None = None,
    finished: float = -60.0,
    code: int = 1,
    failures: int | None = None,
    tracked: bool = True,
    terminating: bool = False,
    conditions: list[Object] | None = None,
    restarts: int = 0,
    node: str = "",
    ignored: int = 0,
    group: str = "",
) -> Pod:
    """Build a pod of a Job; a terminated pod finished a minute ago."""
    counts = {FAILURE_COUNT: failures, IGNORED_FAILURE_COUNT: ignored or None}
    annotations = tuple((name, str(n)) for name, n in counts.items() if n is not None)
    new = build_pod(of or job(), PodToCreate(index, annotations), group)
    new["spec"]["nodeName"] = node
    meta = new["metadata"] | {"name": name, "uid": f"uid-{name}", "creationTimestamp": START}
    meta["finalizers"] = [TRACKING_FINALIZER] if tracked else []
    if terminating:
        meta["deletionTimestamp"] = timestamp(NOW)
    status: Object = {"phase": phase, "conditions": conditions or []}
    state: Object = {}
    if phase in ("Succeeded", "Failed"):
        moment = timestamp(NOW + finished)
        exit_code = 0 if phase == "Succeeded" else code
        state = {"terminated": {"exitCode": exit_code, "finishedAt": moment}}
    status["containerStatuses"] = [{"name": "main", "state": state, "restartCount": restarts}]
    return msgspec.convert({**new, "metadata": meta, "status": status}, Pod)


@dataclass(frozen=True)
class SyncRun:
    """One sync of a Job in which every request succeeded."""

    plan: SyncPlan
    #: The fields of the status that change.
    changes: Object
    events: tuple[JobEvent, ...]

    @property
    def created(self) -> list[int | None]:
        """The indexes of the created pods."""
        return [new.index for new in self.plan.pods_to_create]

    @property
    def deleted(self) -> list[str]:
        return names(self.plan.pods_to_delete)

    @property
    def discarded(self) -> list[str]:
        return names(self.plan.pods_to_discard)

    @property
    def untracked(self) -> list[str]:
        return names(self.plan.pods_to_untrack)

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and reason of the changed list of conditions."""
        return {c["type"]: (c["status"], c["reason"]) for c in self.changes.get("conditions", ())}

    @property
    def event_reasons(self) -> list[str]:
        """The reasons of the events."""
        return [event.reason for event in self.events]

    @property
    def is_noop(self) -> bool:
        """Whether the sync did nothing."""
        plan = self.plan
        return not (
            plan.pods_to_create
            or plan.replicas.to_delete
            or plan.pods_to_untrack
            or self.changes
            or self.events
        )


def snapshot(one: Job, *pods: Pod, now: float = NOW) -> JobSnapshot:
    return JobSnapshot(JobPods(one, pods), now)


def run_sync(one: Job, *pods: Pod, now: float = NOW, fallback: JobEvent | None = None) -> SyncRun:
    plan = plan_sync(snapshot(one, *pods, now=now))
    update = plan.build_status_update(
        SyncResult(
            (*plan.pods_to_delete, *plan.pods_to_discard), len(plan.pods_to_create), fallback
        )
    )
    return SyncRun(plan, update.status, update.events)


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
__all__ += ["names", "pod", "snapshot"]
