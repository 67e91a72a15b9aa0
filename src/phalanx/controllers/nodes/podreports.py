"""What kubelets report of pods: status documents, for simulated and process nodes alike.

Makes them and sends none: `disruptedpods.status_patch` merges them into what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.api.core import Pod
from phalanx.api.wire import Object

#: Why a pod whose containers run or start is not ready yet.
NOT_READY = "ContainersNotReady"
_STATES = ("waiting", "running", "terminated")
_READINESS = ("Initialized", "ContainersReady", "Ready")


def creating(pod: Pod, now: str) -> Object:
    """A pod that was taken in and whose containers do not run yet."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    containers = _all(pod, waiting, ready=False)
    return {
        "phase": "Pending", "startTime": now, "containerStatuses": containers,
        "conditions": conditions(now, ready=False),
    }  # fmt: skip


def running(pod: Pod, now: str, begin: str, *, ready: bool) -> Object:
    """A pod whose containers run."""
    state = {"running": {"startedAt": now}}
    containers = _all(pod, state, ready=ready)
    return {
        "phase": "Running", "startTime": begin, "containerStatuses": containers,
        "conditions": conditions(now, ready=ready),
    }  # fmt: skip


def ended(pod: Pod, code: int, begin: str, now: str) -> Object:
    """A pod that has run to its end, or was made to end."""
    end = {
        "exitCode": code, "reason": "Completed" if code == 0 else "Error",
        "startedAt": begin, "finishedAt": now,
    }  # fmt: skip
    containers = _all(pod, {"terminated": end}, ready=False)
    return {
        "phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": containers,
        "conditions": [_condition(kind, "False", now) for kind in _READINESS[1:]],
    }  # fmt: skip


def refused(reason: str, message: str) -> Object:
    """A pod that this node will not run."""
    return {"phase": "Failed", "reason": reason, "message": message}


def conditions(now: str, *, ready: bool) -> Sequence[Object]:
    """How far a pod is that has been taken in."""
    if ready:
        return [_condition(kind, "True", now) for kind in _READINESS]
    started, *later = _READINESS
    waits = [{**_condition(kind, "False", now), "reason": NOT_READY} for kind in later]
    return [_condition(started, "True", now), *waits]


def _all(pod: Pod, state: Object, *, ready: bool) -> Sequence[Object]:
    return [container_status(c.name, c.image, state, ready=ready) for c in pod.spec.containers]


def _condition(kind: str, status: str, now: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": now}


def container_status(
    name: str, image: str, state: Object, *, ready: bool, restarts: int = 0
) -> Object:
    """How one container is."""
    return {
        "name": name, "image": image, "imageID": "", "restartCount": restarts,
        "ready": ready, "started": "running" in state,
        "state": {name: state.get(name) for name in _STATES},
    }  # fmt: skip
