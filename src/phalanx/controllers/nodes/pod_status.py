"""Builds pod status documents and the patches that write them.

Simulated and process kubelets write the phases, conditions and container statuses; the node
controllers write the DisruptionTarget condition before they delete a pod, which a Job's failure
policy reads. Every patch carries the pod's uid, so that it never applies to a later pod of the same
name. This module sends nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from ipaddress import IPv4Address

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.controllers.reconcile_loop import Patch

DISRUPTION_TARGET = "DisruptionTarget"


def nodes_of(pod: Pod) -> Sequence[str]:
    """Return the node of a bound pod: the index function that controllers share."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def disruption_patch(pod: Pod, reason: str, message: str, now: float, **status: object) -> Patch:
    """Return the patch that adds a DisruptionTarget condition and these other status fields."""
    condition = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now),
    }
    return status_patch(pod, {"conditions": [condition], **status})


def status_patch(pod: Pod, status: Object) -> Patch:
    """Return the patch that merges these fields into the status of a pod."""
    change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
    return Patch(POD, pod.metadata.key, change, subresource="status", content=STRATEGIC_PATCH)


#: The condition reason of a pod whose containers are not ready yet.
CONTAINERS_NOT_READY = "ContainersNotReady"
_STATES = ("waiting", "running", "terminated")
_READINESS = ("Initialized", "ContainersReady", "Ready")


def node_address(name: str) -> str:
    """Return the address that a hosted node reports; nothing listens there.

    >>> node_address("node-1")
    '172.18.28.95'
    """
    number = zlib.crc32(name.encode()) % 2**20
    return str(IPv4Address("172.16.0.0") + number)


def pod_address(uid: str) -> str:
    """Return the address that a simulated pod reports; nothing listens there.

    >>> pod_address("uid-1")
    '10.148.25.2'
    """
    number = zlib.crc32(uid.encode()) % 2**23
    return str(IPv4Address("10.128.0.0") + number)


def _addresses(pod: Pod) -> Object:
    """Return the addresses of a pod and its node, and the generation that the kubelet has seen."""
    host, own = node_address(pod.spec.node_name), pod_address(pod.metadata.uid)
    return {
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": own,
        "podIPs": [{"ip": own}],
        "observedGeneration": pod.metadata.generation,
    }


def creating_status(pod: Pod, now: str) -> Object:
    """Return the status of a pod whose containers are being created."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    containers = _container_statuses(pod, waiting, ready=False)
    return {
        "phase": "Pending",
        "startTime": now,
        "containerStatuses": containers,
        "conditions": readiness_conditions(now, ready=False),
    }


def running_status(pod: Pod, now: str, start_time: str, *, ready: bool) -> Object:
    """Return the status of a pod whose containers run."""
    state = {"running": {"startedAt": now}}
    containers = _container_statuses(pod, state, ready=ready)
    return {
        "phase": "Running",
        "startTime": start_time,
        **_addresses(pod),
        "containerStatuses": containers,
        "conditions": readiness_conditions(now, ready=ready),
    }


def terminated_status(pod: Pod, code: int, start_time: str, now: str) -> Object:
    """Return the status of a pod whose containers have terminated with this exit code."""
    terminated = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": start_time,
        "finishedAt": now,
    }
    return {
        "phase": "Succeeded" if code == 0 else "Failed",
        "containerStatuses": _container_statuses(pod, {"terminated": terminated}, ready=False),
        "conditions": [_condition(kind, "False", now) for kind in _READINESS[1:]],
    }


#: The exit code of a container that was killed by SIGKILL.
_KILLED = 137


def exceeded_status(pod: Pod, start_time: str, now: str) -> Object:
    """Return the status of a pod that ran longer than its activeDeadlineSeconds."""
    return {
        **terminated_status(pod, _KILLED, start_time, now),
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }


def rejected_status(reason: str, message: str) -> Object:
    """Return the status of a pod that the node rejects."""
    return {"phase": "Failed", "reason": reason, "message": message}


def readiness_conditions(now: str, *, ready: bool) -> Sequence[Object]:
    """Return the conditions of a pod that the kubelet has accepted."""
    if ready:
        return [_condition(kind, "True", now) for kind in _READINESS]
    initialized, *others = _READINESS
    not_ready = [
        {**_condition(kind, "False", now), "reason": CONTAINERS_NOT_READY} for kind in others
    ]
    return [_condition(initialized, "True", now), *not_ready]


def _container_statuses(pod: Pod, state: Object, *, ready: bool) -> Sequence[Object]:
    return [container_status(c.name, c.image, state, ready=ready) for c in pod.spec.containers]


def _condition(kind: str, status: str, now: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": now}


def container_status(
    name: str, image: str, state: Object, *, ready: bool, restarts: int = 0
) -> Object:
    """Return the status of one container in this state."""
    return {
        "name": name,
        "image": image,
        "imageID": "",
        "restartCount": restarts,
        "ready": ready,
        "started": "running" in state,
        "state": {name: state.get(name) for name in _STATES},
    }
