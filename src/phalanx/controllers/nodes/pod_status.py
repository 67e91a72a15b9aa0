"""Pods on nodes that come to grief: which they are, and how they are marked before they go.

Whoever counts failures (a Job's failure policy) reads the mark. It is of that very pod: a namesake
that came meanwhile is not meant.

What kubelets report of pods: status documents, for simulated and process nodes alike.

Makes them and sends none: `disruptedpods.status_patch` merges them into what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.controllers.reconcile_loop import Patch

DISRUPTION_TARGET = "DisruptionTarget"


def nodes_of(pod: Pod) -> Sequence[str]:
    """The node that a pod is bound to, if any: by this loops share one index."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def disruption_patch(pod: Pod, reason: str, message: str, now: float, **status: object) -> Patch:
    """The patch that says why a pod goes, and what else there is to say of its status."""
    mark = {
        "type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": timestamp(now),
    }  # fmt: skip
    return status_patch(pod, {"conditions": [mark], **status})


def status_patch(pod: Pod, status: Object) -> Patch:
    """The patch that merges something into the status of a pod."""
    change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
    return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)


#: Why a pod whose containers run or start is not ready yet.
CONTAINERS_NOT_READY = "ContainersNotReady"
_STATES = ("waiting", "running", "terminated")
_READINESS = ("Initialized", "ContainersReady", "Ready")


def creating_status(pod: Pod, now: str) -> Object:
    """A pod that was taken in and whose containers do not run yet."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    containers = _container_statuses(pod, waiting, ready=False)
    return {
        "phase": "Pending", "startTime": now, "containerStatuses": containers,
        "conditions": readiness_conditions(now, ready=False),
    }  # fmt: skip


def running_status(pod: Pod, now: str, start_time: str, *, ready: bool) -> Object:
    """A pod whose containers run."""
    state = {"running": {"startedAt": now}}
    containers = _container_statuses(pod, state, ready=ready)
    return {
        "phase": "Running", "startTime": start_time, "containerStatuses": containers,
        "conditions": readiness_conditions(now, ready=ready),
    }  # fmt: skip


def terminated_status(pod: Pod, code: int, start_time: str, now: str) -> Object:
    """A pod that has run to its end, or was made to end."""
    end = {
        "exitCode": code, "reason": "Completed" if code == 0 else "Error",
        "startedAt": start_time, "finishedAt": now,
    }  # fmt: skip
    containers = _container_statuses(pod, {"terminated": end}, ready=False)
    return {
        "phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": containers,
        "conditions": [_condition(kind, "False", now) for kind in _READINESS[1:]],
    }  # fmt: skip


def rejected_status(reason: str, message: str) -> Object:
    """A pod that this node will not run."""
    return {"phase": "Failed", "reason": reason, "message": message}


def readiness_conditions(now: str, *, ready: bool) -> Sequence[Object]:
    """How far a pod is that has been taken in."""
    if ready:
        return [_condition(kind, "True", now) for kind in _READINESS]
    started, *later = _READINESS
    waits = [{**_condition(kind, "False", now), "reason": CONTAINERS_NOT_READY} for kind in later]
    return [_condition(started, "True", now), *waits]


def _container_statuses(pod: Pod, state: Object, *, ready: bool) -> Sequence[Object]:
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
