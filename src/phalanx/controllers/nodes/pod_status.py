"""Builds pod status documents and the patches that write them.

Simulated and process kubelets write the phases, conditions and container statuses; the node
controllers write the DisruptionTarget condition before they delete a pod, which a Job's failure
policy reads. Every patch carries the pod's uid, so that it never applies to a later pod of the same
name. This module sends nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import find_condition, timestamp
from phalanx.api.wire import JSON_PATCH, STRATEGIC_PATCH, Object
from phalanx.controllers.reconcile_loop import Patch

DISRUPTION_TARGET = "DisruptionTarget"


def nodes_of(pod: Pod) -> Sequence[str]:
    """Return the node of a bound pod: the index function that controllers share."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def disruption_patch(pod: Pod, reason: str, message: str, *, now: float, **status: object) -> Patch:
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


@lru_cache(maxsize=8192)
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
    """Return the addresses of a pod and its node, and the generation that the kubelet has seen.

    A pod in the network of its node has the address of the node.
    """
    host = node_address(pod.spec.node_name)
    own = host if pod.spec.host_network else pod_address(pod.metadata.uid)
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
        "conditions": [
            *readiness_conditions(now, ready=ready)[:-1],
            ready_condition(pod, now, ready=ready),
        ],
    }


def ready_condition(pod: Pod, now: str, *, ready: bool) -> Object:
    """Return the condition `Ready`: containers are ready, and so are all readiness gates."""
    if not ready:
        return {**_condition("Ready", "False", now), "reason": CONTAINERS_NOT_READY}
    faults = []
    for gate in pod.spec.readiness_gates:
        found = find_condition(pod.status.conditions, gate.condition_type)
        place = f'pod readiness gate "{gate.condition_type}"'
        if found is None:
            faults.append(f"corresponding condition of {place} does not exist.")
        elif found.status != "True":
            faults.append(f'the status of {place} is not "True", but {found.status}')
    if not faults:
        return _condition("Ready", "True", now)
    why = {"reason": "ReadinessGatesNotReady", "message": ", ".join(faults)}
    return {**_condition("Ready", "False", now), **why}


def late_patches(pod: Pod, now: str) -> list[Patch]:
    """Return patches for what may change in a pod that is ready: gates and debug containers."""
    patches = []
    known = find_condition(pod.status.conditions, "Ready")
    wanted = ready_condition(pod, now, ready=True)
    if pod.spec.readiness_gates and known is not None:
        fields = (wanted["status"], wanted.get("reason", ""), wanted.get("message", ""))
        if (known.status, known.reason, known.message) != fields:
            change = {"reason": None, "message": None, **wanted}
            patches.append(status_patch(pod, {"conditions": [change]}))
    names = {one.name for one in pod.status.ephemeral_container_statuses}
    added = [
        container_status(one.name, one.image, {"running": {"startedAt": now}}, ready=False)
        for one in pod.spec.ephemeral_containers
        if one.name not in names
    ]
    if added:
        # A JSON patch appends: the list is replaced as a whole by the other types of patches.
        path = "/status/ephemeralContainerStatuses"
        check: Object = {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid}
        writes: list[Object] = [{"op": "add", "path": f"{path}/-", "value": one} for one in added]
        if not names:
            writes = [{"op": "add", "path": path, "value": added}]
        patches.append(
            Patch(POD, pod.metadata.key, [check, *writes], subresource="status", content=JSON_PATCH)
        )
    return patches


def terminated_status(pod: Pod, code: int, start_time: str, *, now: str) -> Object:
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
        **terminated_status(pod, _KILLED, start_time, now=now),
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
