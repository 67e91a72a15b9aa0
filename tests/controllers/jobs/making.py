"""Jobs and their pods in one line each, as the controller reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.podmaking import new_pod
from phalanx.controllers.jobs.roll import FAILURES, INDEX, TRACKING
from phalanx.controllers.jobs.staffing import Order

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
) -> Pod:  # fmt: skip
    """A pod of a Job; one that has ended did so a minute ago."""
    marks = () if failures is None else ((FAILURES, str(failures)),)
    made = new_pod(of or job(), Order(index, marks), "")
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


def names(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(one.metadata.name for one in pods)


__all__ = ["FAILURES", "INDEX", "NOW", "START", "job", "names", "pod"]
