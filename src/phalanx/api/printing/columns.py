"""What `kubectl get` prints of each kind: one row per column, a function per cell.

`server.tables` walks these rows. `now` is an argument because ages are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.api.meta import seconds
from phalanx.api.printing.cells import (
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    at,
    count,
    duration,
    labels,
    listed,
    selector,
    since,
)
from phalanx.api.scheduling import INITIALLY_SCHEDULED
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class Column:
    """One column: priority 0 is always shown, 1 only in a wide view."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    description: str = ""

    @property
    def format(self) -> str:
        """The first column is the name, which kubectl treats specially."""
        return "name" if self.name == "Name" else ""


NAME = Column("Name", at("metadata.name"))
AGE = Column("Age", since("metadata.creationTimestamp"))


def _ready_containers(pod: Object, now: float) -> str:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    ready = sum(1 for status in statuses if status.get("ready"))
    return f"{ready}/{len(pod.get('spec', {}).get('containers') or [])}"


def _pod_status(pod: Object, now: float) -> str:
    status = pod.get("status", {})
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    scheduled = _condition(pod, "PodScheduled")
    if scheduled and scheduled.get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        reason = (state.get("waiting") or state.get("terminated") or {}).get("reason") or reason
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else reason


def _restarts(pod: Object, now: float) -> str:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return str(sum(status.get("restartCount", 0) for status in statuses))


def _readiness_gates(pod: Object, now: float) -> str:
    gates = pod.get("spec", {}).get("readinessGates") or []
    met = sum(1 for gate in gates if _is_true(pod, gate.get("conditionType", "")))
    return f"{met}/{len(gates)}" if gates else NONE


def _node_status(node: Object, now: float) -> str:
    ready = _condition(node, "Ready")
    words = {"True": "Ready", "False": "NotReady"}
    word = words.get(ready.get("status", ""), "Unknown") if ready else "Unknown"
    cordoned = node.get("spec", {}).get("unschedulable")
    return f"{word},SchedulingDisabled" if cordoned else word


def _roles(node: Object, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))
    return ",".join(role for role in roles if role) or NONE


def _address(kind: str) -> Cell:
    def cell(node: Object, now: float) -> str:
        addresses = node.get("status", {}).get("addresses") or []
        return next((a["address"] for a in addresses if a.get("type") == kind), NONE)

    return cell


def _policy(group: Object, now: float) -> str:
    policy = group.get("spec", {}).get("schedulingPolicy") or {}
    return "Gang" if policy.get("gang") is not None else "Basic"


def _group_status(group: Object, now: float) -> str:
    if disrupted := _condition(group, "DisruptionTarget"):
        return str(disrupted.get("reason"))
    scheduled = _condition(group, INITIALLY_SCHEDULED)
    if scheduled is None:
        return "Pending"
    return "Scheduled" if scheduled.get("status") == "True" else "Unschedulable"


def _event_object(event: Object, now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(event: Object, now: float) -> str:
    source = event.get("source") or {}
    name = source.get("component") or event.get("reportingComponent") or ""
    return f"{name}, {source['host']}" if source.get("host") else name


def _seen(*paths: str) -> Cell:
    cells = [at(path) for path in paths]

    def cell(event: Object, now: float) -> str:
        text = next((found for read in cells if (found := read(event, now))), "")
        return duration(now - seconds(text)) if text else UNKNOWN

    return cell


def _data_count(obj: Object, now: float) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _condition(obj: Object, kind: str) -> Object | None:
    conditions = obj.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), None)


def _is_true(obj: Object, kind: str) -> bool:
    found = _condition(obj, kind)
    return found is not None and found.get("status") == "True"


# ----------------------------------------------------------------------------------------- Jobs

#: Conditions of a Job by which it is known; while it is deleted only those that end it count.
_ENDS = ("Complete", "Failed")
_STAGES = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def _job_status(job: Object, now: float) -> str:
    deleted = bool(job["metadata"].get("deletionTimestamp"))
    stages = ("Terminating",) if deleted else _STAGES
    known = [kind for kind in (*_ENDS, *stages) if kind == "Terminating" or _is_true(job, kind)]
    return known[0] if known else "Running"


def _completions(job: Object, now: float) -> str:
    spec, done = job.get("spec", {}), job.get("status", {}).get("succeeded", 0)
    if "completions" in spec:
        return f"{done}/{spec['completions']}"
    parallelism = spec.get("parallelism", 1)
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _job_duration(job: Object, now: float) -> str:
    status = job.get("status", {})
    if "startTime" not in status:
        return ""
    end = seconds(status["completionTime"]) if "completionTime" in status else now
    return duration(end - seconds(status["startTime"]))


def _suspended(job: Object, now: float) -> str:
    return str(job.get("spec", {}).get("suspend", UNSET))


def _last_schedule(job: Object, now: float) -> str:
    text = job.get("status", {}).get("lastScheduleTime")
    return duration(now - seconds(text)) if text else NONE


def _containers(pod_spec: str) -> tuple[Column, ...]:
    """The columns of a pod template."""
    return (
        Column("Containers", listed(f"{pod_spec}.containers", "name"), priority=1),
        Column("Images", listed(f"{pod_spec}.containers", "image"), priority=1),
    )


# -------------------------------------------------------------------------- services and volumes

_MODES = {
    "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}  # fmt: skip


def _outside(service: Object, now: float) -> str:
    """Where a Service is reached from outside."""
    spec = service.get("spec", {})
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", NONE))
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
    found = [one.get("ip") or one.get("hostname", "") for one in ingress]
    nothing = "<pending>" if spec.get("type") == "LoadBalancer" else NONE
    return ",".join([*found, *spec.get("externalIPs", ())]) or nothing


def _ports(service: Object, now: float) -> str:
    ports = service.get("spec", {}).get("ports", ())
    return ",".join(map(_port, ports)) or NONE


def _port(port: Object) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"


def _modes(path: str) -> Cell:
    read = at(path, ())
    return lambda obj, now: ",".join(_MODES.get(mode, mode) for mode in read(obj, now))


def _phase(obj: Object, now: float) -> str:
    deleted = obj["metadata"].get("deletionTimestamp")
    return "Terminating" if deleted else str(obj.get("status", {}).get("phase", ""))


def _claim(volume: Object, now: float) -> str:
    claim = volume.get("spec", {}).get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _used(*, limits: bool) -> Cell:
    """What of a quota is used, of requests and counts or of limits."""

    def cell(quota: Object, now: float) -> str:
        status = quota.get("status", {})
        hard, used = status.get("hard", {}), status.get("used", {})
        names = sorted(name for name in hard if name.startswith("limits.") == limits)
        return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in names)

    return cell


# ---------------------------------------------------------------------------- roles and devices


def _role(binding: Object, now: float) -> str:
    role = binding.get("roleRef", {})
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Cell:
    def cell(binding: Object, now: float) -> str:
        subjects = [one for one in binding.get("subjects", ()) if one.get("kind") == kind]
        return ", ".join(_subject(one) for one in subjects)

    return cell


def _subject(subject: Object) -> str:
    name = subject.get("name", "")
    return f"{subject['namespace']}/{name}" if subject.get("namespace") else str(name)


def _claim_state(claim: Object, now: float) -> str:
    status, deleted = claim.get("status", {}), "deletionTimestamp" in claim["metadata"]
    allocated, reserved = "allocation" in status, bool(status.get("reservedFor"))
    states = {
        "deleted": deleted,
        "pending": not deleted and not allocated,
        "allocated": allocated,
        "reserved": allocated and reserved,
    }
    return ",".join(state for state, holds in states.items() if holds)


def _written(path: str) -> Cell:
    """A cell of text that shows a number or a truth, and nothing where there is none."""
    read = at(path, None)

    def cell(obj: Object, now: float) -> str | None:
        value = read(obj, now)
        return None if value is None else str(value).lower()

    return cell


def _completed(job_set: Object, now: float) -> str | None:
    found = _condition(job_set, "Completed")
    return None if found is None else found.get("status")


_GROUP = (
    Column("Policy", _policy),
    Column("Workload", at("spec.workloadRef.workloadName", NONE)),
)
_CREATED_AT = Column("Created At", at("metadata.creationTimestamp"))
_BINDING = (
    NAME,
    Column("Role", _role),
    AGE,
    Column("Users", _subjects("User"), priority=1),
    Column("Groups", _subjects("Group"), priority=1),
    Column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "ClusterRole": (NAME, _CREATED_AT),
    "ClusterRoleBinding": _BINDING,
    "CompositePodGroup": (NAME, *_GROUP, AGE),
    "ConfigMap": (NAME, Column("Data", _data_count, "integer"), AGE),
    "CustomResourceDefinition": (
        NAME,
        Column("Created At", at("metadata.creationTimestamp"), "date"),
    ),
    "CronJob": (
        NAME,
        Column("Schedule", at("spec.schedule")),
        Column("Timezone", at("spec.timeZone", NONE)),
        Column("Suspend", _suspended, "boolean"),
        Column("Active", count("status.active"), "integer"),
        Column("Last Schedule", _last_schedule),
        AGE,
        *_containers("spec.jobTemplate.spec.template.spec"),
        Column("Selector", selector("spec.jobTemplate.spec.selector"), priority=1),
    ),
    "Event": (
        Column("Last Seen", _seen("lastTimestamp", "eventTime", "metadata.creationTimestamp")),
        Column("Type", at("type")),
        Column("Reason", at("reason")),
        Column("Object", _event_object),
        Column("Subobject", at("involvedObject.fieldPath"), priority=1),
        Column("Source", _event_source, priority=1),
        Column("Message", at("message")),
        Column("First Seen", _seen("firstTimestamp", "eventTime"), priority=1),
        Column("Count", at("count", 1), "integer", priority=1),
        Column("Name", at("metadata.name"), priority=1),
    ),
    "Job": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _completions),
        Column("Duration", _job_duration),
        AGE,
        *_containers("spec.template.spec"),
        Column("Selector", selector("spec.selector"), priority=1),
    ),
    "JobSet": (
        NAME,
        Column("TerminalState", at("status.terminalState", None),
               description="Final state of JobSet"),
        Column("Restarts", _written("status.restarts"), description="Number of restarts"),
        Column("Completed", _completed),
        Column("Suspended", _written("spec.suspend"), description="JobSet suspended"),
        Column("Age", AGE.cell, "date", description="Time this JobSet was created"),
    ),
    "LeaderWorkerSet": (
        NAME,
        Column("Ready", at("status.readyReplicas", None), "integer",
               description="Number of ready replicas"),
        Column("Desired", at("spec.replicas", None), "integer",
               description="Number of desired replicas"),
        Column("Up-to-date", at("status.updatedReplicas", None), "integer",
               description="Number of up-to-date replicas"),
        Column("Age", AGE.cell, "date"),
    ),
    "Lease": (NAME, Column("Holder", at("spec.holderIdentity")), AGE),
    "LimitRange": (NAME, _CREATED_AT),
    "Namespace": (NAME, Column("Status", at("status.phase")), AGE),
    "Node": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _roles),
        AGE,
        Column("Version", at("status.nodeInfo.kubeletVersion")),
        Column("Internal-IP", _address("InternalIP"), priority=1),
        Column("External-IP", _address("ExternalIP"), priority=1),
        Column("OS-Image", at("status.nodeInfo.osImage", UNKNOWN), priority=1),
        Column("Kernel-Version", at("status.nodeInfo.kernelVersion", UNKNOWN), priority=1),
        Column("Container-Runtime", at("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
               priority=1),
    ),
    "PersistentVolume": (
        NAME,
        Column("Capacity", at("spec.capacity.storage")),
        Column("Access Modes", _modes("spec.accessModes")),
        Column("Reclaim Policy", at("spec.persistentVolumeReclaimPolicy")),
        Column("Status", _phase),
        Column("Claim", _claim),
        Column("StorageClass", at("spec.storageClassName")),
        Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", UNSET)),
        Column("Reason", at("status.reason")),
        AGE,
        Column("VolumeMode", at("spec.volumeMode", UNSET), priority=1),
    ),
    "PersistentVolumeClaim": (
        NAME,
        Column("Status", _phase),
        Column("Volume", at("spec.volumeName")),
        Column("Capacity", at("status.capacity.storage")),
        Column("Access Modes", _modes("status.accessModes")),
        Column("StorageClass", at("spec.storageClassName")),
        Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", UNSET)),
        AGE,
        Column("VolumeMode", at("spec.volumeMode", UNSET), priority=1),
    ),
    "NodeMetrics": (
        NAME,
        Column("CPU", at("usage.cpu")),
        Column("Memory", at("usage.memory")),
        Column("Window", at("window")),
    ),
    "PodMetrics": (
        NAME,
        Column("Containers", listed("containers", "name")),
        Column("Window", at("window")),
    ),
    "Pod": (
        NAME,
        Column("Ready", _ready_containers),
        Column("Status", _pod_status),
        Column("Restarts", _restarts),
        AGE,
        Column("IP", at("status.podIP", NONE), priority=1),
        Column("Node", at("spec.nodeName", NONE), priority=1),
        Column("Nominated Node", at("status.nominatedNodeName", NONE), priority=1),
        Column("Readiness Gates", _readiness_gates, priority=1),
    ),
    "PodDisruptionBudget": (
        NAME,
        Column("Min Available", at("spec.minAvailable", "N/A")),
        Column("Max Unavailable", at("spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", at("status.disruptionsAllowed", 0), "integer"),
        AGE,
    ),
    "PodGroup": (NAME, *_GROUP, Column("Status", _group_status), AGE),
    "PodTemplate": (
        NAME,
        Column("Containers", listed("template.spec.containers", "name")),
        Column("Images", listed("template.spec.containers", "image")),
        Column("Pod Labels", labels("template.metadata.labels")),
    ),
    "PriorityClass": (
        NAME,
        Column("Value", at("value", 0), "integer"),
        Column("Global-Default", at("globalDefault", False), "boolean"),
        AGE,
        Column("PreemptionPolicy", at("preemptionPolicy")),
    ),
    "ResourceClaim": (NAME, Column("State", _claim_state), AGE),
    "ResourceQuota": (
        NAME,
        Column("Request", _used(limits=False)),
        Column("Limit", _used(limits=True)),
        AGE,
    ),
    "ResourceSlice": (
        NAME,
        Column("Node", at("spec.nodeName", UNSET)),
        Column("Driver", at("spec.driver")),
        Column("Pool", at("spec.pool.name")),
        AGE,
    ),
    "Role": (NAME, _CREATED_AT),
    "RoleBinding": _BINDING,
    "Secret": (NAME, Column("Type", at("type")), Column("Data", count("data"), "integer"), AGE),
    "Service": (
        NAME,
        Column("Type", at("spec.type")),
        Column("Cluster-IP", at("spec.clusterIP", NONE)),
        Column("External-IP", _outside),
        Column("Port(s)", _ports),
        AGE,
        Column("Selector", labels("spec.selector"), priority=1),
    ),
    "ServiceAccount": (NAME, Column("Secrets", count("secrets"), "integer"), AGE),
}  # fmt: skip

#: What a kind without rows of its own shows.
PLAIN = (NAME, AGE)
