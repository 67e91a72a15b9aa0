"""Columns of pods: how many containers are ready, the state of the pod, its restarts.

The state of a pod is the reason of its init containers while these run, then the reason of its
containers; `kubectl get pods` shows it as its status.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.meta import parse_timestamp
from phalanx.api.printing.cells import (
    AGE_COLUMN,
    NAME_COLUMN,
    NONE,
    Column,
    field_at,
    format_duration,
    is_true,
)
from phalanx.api.wire import Object


def _sidecar_names(pod: Object) -> set[str]:
    containers = pod.get("spec", {}).get("initContainers") or ()
    lasting = [one for one in containers if one.get("restartPolicy") == "Always"]
    return {container.get("name", "") for container in lasting}


def _find_init_reason(pod: Object) -> str | None:
    """Return the reason of the first init container that has not finished; None if all have."""
    sidecars = _sidecar_names(pod)
    total = len(pod.get("spec", {}).get("initContainers") or ())
    for at, container in enumerate(pod.get("status", {}).get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if container.get("name") in sidecars and container.get("started"):
            continue
        if ended is not None:
            return f"Init:{_termination_reason(ended)}"
        if waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{at}/{total}"
    return None


def _termination_reason(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended['exitCode']}"


def _is_initializing(pod: Object) -> bool:
    return _find_init_reason(pod) is not None and not is_true(pod, "Initialized")


def _runs_ready(container: Object) -> bool:
    state = container.get("state") or {}
    if (state.get("waiting") or {}).get("reason") or state.get("terminated") is not None:
        return False
    return bool(container.get("ready")) and state.get("running") is not None


def _ready_containers(pod: Object, now: float) -> str:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    sidecars = _sidecar_names(pod)
    ready = 0
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if container.get("name") not in sidecars or not container.get("started"):
            break
        ready += bool(container.get("ready"))
    if not _is_initializing(pod):
        ready += sum(map(_runs_ready, status.get("containerStatuses") or ()))
    return f"{ready}/{len(spec.get('containers') or ()) + len(sidecars)}"


def _pod_status(pod: Object, now: float) -> str:
    status = pod.get("status", {})
    phase = status.get("phase", "")
    reason: str = status.get("reason") or phase
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("reason")) == ("PodScheduled", "SchedulingGated"):
            reason = "SchedulingGated"
    reason = _find_init_reason(pod) or reason
    if not _is_initializing(pod):
        containers = status.get("containerStatuses") or ()
        for container in reversed(containers):
            state = container.get("state") or {}
            if (state.get("waiting") or {}).get("reason"):
                reason = state["waiting"]["reason"]
            elif state.get("terminated") is not None:
                reason = _termination_reason(state["terminated"])
        if reason == "Completed" and any(map(_runs_ready, containers)):
            reason = "Running" if is_true(pod, "Ready") else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if phase not in ("Succeeded", "Failed"):
            return "Terminating"
    return reason


def _restarts(pod: Object, now: float) -> str:
    """Count the restarts of the init containers while these run, then of all that keep running."""
    status, sidecars = pod.get("status", {}), _sidecar_names(pod)
    counted: Iterable[Object] = status.get("initContainerStatuses") or ()
    if not _is_initializing(pod):
        lasting = [one for one in counted if one.get("name") in sidecars]
        counted = [*lasting, *(status.get("containerStatuses") or ())]
    restarts, ends = 0, []
    for container in counted:
        restarts += container.get("restartCount", 0)
        ended = (container.get("lastState") or {}).get("terminated") or {}
        ends += [ended["finishedAt"]] if ended.get("finishedAt") else []
    if not restarts or not ends:
        return str(restarts)
    return f"{restarts} ({format_duration(now - max(map(parse_timestamp, ends)))} ago)"


def _readiness_gates(pod: Object, now: float) -> str:
    gates = pod.get("spec", {}).get("readinessGates") or []
    met = sum(1 for gate in gates if is_true(pod, gate.get("conditionType", "")))
    return f"{met}/{len(gates)}" if gates else NONE


POD_COLUMNS = (
    NAME_COLUMN,
    Column("Ready", _ready_containers),
    Column("Status", _pod_status),
    Column("Restarts", _restarts),
    AGE_COLUMN,
    Column("IP", field_at("status.podIP", NONE), priority=1),
    Column("Node", field_at("spec.nodeName", NONE), priority=1),
    Column("Nominated Node", field_at("status.nominatedNodeName", NONE), priority=1),
    Column("Readiness Gates", _readiness_gates, priority=1),
)
