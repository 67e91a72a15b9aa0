"""Jobs and their pods in one line each, as the controller reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.podmaking import new_pod
from phalanx.controllers.jobs.roll import FAILURES, IGNORED_FAILURES, INDEX, TRACKING, Roll
from phalanx.controllers.jobs.staffing import Order
from phalanx.controllers.jobs.sync import Done, Remark, Sync, sync

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
    counts = {FAILURES: failures, IGNORED_FAILURES: ignored or None}
    marks = tuple((mark, str(count)) for mark, count in counts.items() if count is not None)
    made = new_pod(of or job(), Order(index, marks), group)
    made["spec"]["nodeName"] = node
    meta = made["metadata"] | {"name": name, "uid": f"uid-{name}", "creationTimestamp": START}
    meta["finalizers"] = [TRACKING] if tracked else []
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
class Seen:
    """A look at a Job at which everything went well."""

    due: Sync
    #: The fields of the status that change.
    changes: Object
    remarks: tuple[Remark, ...]

    @property
    def made(self) -> list[int | None]:
        """The indexes of the pods that are made."""
        return [order.index for order in self.due.make]

    @property
    def deleted(self) -> list[str]:
        return names(self.due.delete)

    @property
    def dismissed(self) -> list[str]:
        return names(self.due.dismiss)

    @property
    def released(self) -> list[str]:
        return names(self.due.release)

    @property
    def said(self) -> dict[str, tuple[str, str]]:
        """Status and reason of the conditions that it leaves behind."""
        return {c["type"]: (c["status"], c["reason"]) for c in self.changes.get("conditions", ())}

    @property
    def told(self) -> list[str]:
        """The reasons of the events."""
        return [remark.reason for remark in self.remarks]

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing to do."""
        due = self.due
        return not (due.make or due.staff.delete or due.release or self.changes or self.remarks)


def situation(one: Job, *pods: Pod, now: float = NOW) -> Situation:
    return Situation(Roll(one, pods), now)


def look(one: Job, *pods: Pod, now: float = NOW, fallback: Remark | None = None) -> Seen:
    due = sync(situation(one, *pods, now=now))
    report = due.report(Done((*due.delete, *due.dismiss), len(due.make), fallback))
    return Seen(due, report.status, report.remarks)


def condition(kind: str, reason: str = "r", status: str = "True") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": "m"}


def names(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(one.metadata.name for one in pods)


__all__ = ["FAILURES", "IGNORED_FAILURES", "INDEX", "NOW", "START", "condition", "job", "look"]
__all__ += ["names", "pod", "situation"]
