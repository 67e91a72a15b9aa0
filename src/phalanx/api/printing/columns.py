"""Columns of `kubectl get`: one row per column of each kind, with a function for its cell.

`server/objects.py` builds tables from them and passes the current time, for ages.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.meta import controller_of, parse_timestamp
from phalanx.api.printing.cells import (
    AGE_COLUMN,
    NAME_COLUMN,
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    Column,
    field_at,
    find_condition,
    format_duration,
    is_true,
    item_count,
    item_list,
    label_selector,
    labels,
)
from phalanx.api.printing.platform_columns import PLATFORM_COLUMNS
from phalanx.api.printing.pod_columns import POD_COLUMNS
from phalanx.api.printing.storage_columns import STORAGE_COLUMNS
from phalanx.api.printing.workload_columns import WORKLOAD_COLUMNS, container_columns
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED
from phalanx.api.wire import Object


def _node_status(node: Object, now: float) -> str:
    ready = find_condition(node, "Ready")
    if ready is None:
        status = "Unknown"
    else:
        status = "Ready" if ready.get("status") == "True" else "NotReady"
    cordoned = node.get("spec", {}).get("unschedulable")
    return f"{status},SchedulingDisabled" if cordoned else status


def _roles(node: Object, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(role for role in roles if role)) or NONE


def _address(kind: str) -> Cell:
    def cell(node: Object, now: float) -> str:
        addresses = node.get("status", {}).get("addresses") or []
        return next((a["address"] for a in addresses if a.get("type") == kind), NONE)

    return cell


def _policy_type(group: Object, now: float) -> str:
    policy = group.get("spec", {}).get("schedulingPolicy") or {}
    return "Gang" if policy.get("gang") is not None else "Basic"


def _group_status(group: Object, now: float) -> str:
    if disrupted := find_condition(group, "DisruptionTarget"):
        return str(disrupted.get("reason"))
    scheduled = find_condition(group, POD_GROUP_INITIALLY_SCHEDULED)
    if scheduled is None:
        return "Pending"
    return "Scheduled" if scheduled.get("status") == "True" else "Unschedulable"


def _event_object(event: Object, now: float) -> str:
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind", "").lower(), about.get("name")
    return f"{kind}/{name}" if name else kind


def _event_source(event: Object, now: float) -> str:
    source = event.get("source") or {}
    name = source.get("component") or event.get("reportingComponent", "")
    host = source.get("host") or event.get("reportingInstance")
    return f"{name}, {host}" if host else str(name)


def _event_message(event: Object, now: float) -> str:
    return str(event.get("message", "")).strip()


def _as_text(path: str, default: str) -> Cell:
    read = field_at(path, default)
    return lambda obj, now: str(read(obj, now))


def _event_count(event: Object, now: float) -> int:
    series = event.get("series")
    return int(series.get("count", 0) if series else event.get("count") or 1)


def _definition_versions(definition: Object, now: float) -> str:
    versions = (definition.get("spec") or {}).get("versions") or ()
    return ",".join(
        f"{version.get('name', '')}(storage)" if version.get("storage") else version.get("name", "")
        for version in versions
    )


def _short_names(definition: Object, now: float) -> str:
    names = (definition.get("spec") or {}).get("names") or {}
    return ",".join(names.get("shortNames") or ())


def _is_established(definition: Object, now: float) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _time_since_first(*paths: str) -> Cell:
    cells = [field_at(path) for path in paths]

    def cell(event: Object, now: float) -> str:
        text = next((found for read in cells if (found := read(event, now))), "")
        return format_duration(now - parse_timestamp(text)) if text else UNKNOWN

    return cell


def _data_count(obj: Object, now: float) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


# ----------------------------------------------------------------------------------------- Jobs

#: The conditions that are the status of a Job; while it is deleted, only the final ones.
_TERMINAL_CONDITIONS = ("Complete", "Failed")
_PROGRESS_CONDITIONS = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def _job_status(job: Object, now: float) -> str:
    deleted = bool(job["metadata"].get("deletionTimestamp"))
    stages = ("Terminating",) if deleted else _PROGRESS_CONDITIONS
    known = [
        kind
        for kind in (*_TERMINAL_CONDITIONS, *stages)
        if kind == "Terminating" or is_true(job, kind)
    ]
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
    end = parse_timestamp(status["completionTime"]) if "completionTime" in status else now
    return format_duration(end - parse_timestamp(status["startTime"]))


def _suspend_text(job: Object, now: float) -> str:
    return str(job.get("spec", {}).get("suspend", UNSET))


def _last_schedule(job: Object, now: float) -> str:
    text = job.get("status", {}).get("lastScheduleTime")
    return format_duration(now - parse_timestamp(text)) if text else NONE


# -------------------------------------------------------------------------- services and volumes


def _external_ip(service: Object, now: float) -> str:
    spec = service.get("spec", {})
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", NONE))
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
    found = sorted({one.get("ip") or one.get("hostname", "") for one in ingress})
    nothing = "<pending>" if spec.get("type") == "LoadBalancer" else NONE
    return ",".join([*found, *spec.get("externalIPs", ())]) or nothing


def _ports(service: Object, now: float) -> str:
    texts = []
    for port in service.get("spec", {}).get("ports", ()):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(texts) or NONE


def _endpoint_ports(endpoint_slice: Object, now: float) -> str:
    ports = endpoint_slice.get("ports", ())
    return _first_three([str(port.get("port", port.get("name", "*"))) for port in ports])


def _endpoint_addresses(endpoint_slice: Object, now: float) -> str:
    endpoints = endpoint_slice.get("endpoints", ())
    return _first_three([address for one in endpoints for address in one.get("addresses", ())])


def _first_three(texts: list[str]) -> str:
    more = f" + {len(texts) - 3} more..." if len(texts) > 3 else ""
    return f"{','.join(texts[:3])}{more}" or "<unset>"


def _controller_name(revision: Object, now: float) -> str:
    owner = controller_of(revision)
    if owner is None:
        return NONE
    group = owner.get("apiVersion", "").rpartition("/")[0]
    kind = owner["kind"].lower() + (f".{group}" if group else "")
    return f"{kind}/{owner['name']}"


def _quota_usage(*, limits: bool) -> Cell:
    """Return a cell with the usage of a quota: of limits, or of requests and counts."""

    def cell(quota: Object, now: float) -> str:
        status = quota.get("status", {})
        hard, used = status.get("hard", {}), status.get("used", {})
        names = sorted(name for name in hard if name.startswith("limits.") == limits)
        return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in names)

    return cell


# ---------------------------------------------------------------------------- roles and devices


def _role_reference(binding: Object, now: float) -> str:
    role = binding.get("roleRef", {})
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Cell:
    def cell(binding: Object, now: float) -> str:
        names = [
            f"{one.get('namespace', '')}/{one['name']}" if kind == "ServiceAccount" else one["name"]
            for one in binding.get("subjects", ())
            if one.get("kind") == kind
        ]
        return ", ".join(names)

    return cell


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


def _optional_text(path: str) -> Cell:
    """Return a cell that formats a number or boolean; empty if there is none."""
    read = field_at(path, None)

    def cell(obj: Object, now: float) -> str | None:
        value = read(obj, now)
        return None if value is None else str(value).lower()

    return cell


def _completed_status(job_set: Object, now: float) -> str | None:
    found = find_condition(job_set, "Completed")
    return None if found is None else found.get("status")


_GROUP_COLUMNS = (
    Column("Policy", _policy_type),
    Column("Workload", field_at("spec.workloadRef.workloadName", NONE)),
)
#: The time of kinds for which Kubernetes has no columns of their own.
CREATED_AT_COLUMN = Column("Created At", field_at("metadata.creationTimestamp"), "date")
_BINDING_COLUMNS = (
    NAME_COLUMN,
    Column("Role", _role_reference),
    AGE_COLUMN,
    Column("Users", _subjects("User"), priority=1),
    Column("Groups", _subjects("Group"), priority=1),
    Column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)

PRINTER_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "ClusterRole": (NAME_COLUMN, CREATED_AT_COLUMN),
    "ClusterRoleBinding": _BINDING_COLUMNS,
    "CompositePodGroup": (NAME_COLUMN, *_GROUP_COLUMNS, AGE_COLUMN),
    "ConfigMap": (NAME_COLUMN, Column("Data", _data_count, "integer"), AGE_COLUMN),
    "ControllerRevision": (
        NAME_COLUMN,
        Column("Controller", _controller_name),
        Column("Revision", field_at("revision", 0), "integer"),
        AGE_COLUMN,
    ),
    "CustomResourceDefinition": (
        NAME_COLUMN,
        Column("Scope", field_at("spec.scope")),
        Column("Versions", _definition_versions),
        CREATED_AT_COLUMN,
        Column("Group", field_at("spec.group"), priority=1),
        Column("Kind", field_at("spec.names.kind"), priority=1),
        Column("ShortNames", _short_names, priority=1),
        Column("Established", _is_established, "boolean", priority=1),
    ),
    "CronJob": (
        NAME_COLUMN,
        Column("Schedule", field_at("spec.schedule")),
        Column("Timezone", field_at("spec.timeZone", NONE)),
        Column("Suspend", _suspend_text, "boolean"),
        Column("Active", item_count("status.active"), "integer"),
        Column("Last Schedule", _last_schedule),
        AGE_COLUMN,
        *container_columns("spec.jobTemplate.spec.template.spec"),
        Column("Selector", label_selector("spec.jobTemplate.spec.selector"), priority=1),
    ),
    "EndpointSlice": (
        NAME_COLUMN,
        Column("AddressType", field_at("addressType")),
        Column("Ports", _endpoint_ports),
        Column("Endpoints", _endpoint_addresses),
        AGE_COLUMN,
    ),
    "Event": (
        Column(
            "Last Seen",
            _time_since_first(
                "series.lastObservedTime", "lastTimestamp", "firstTimestamp", "eventTime"
            ),
        ),
        Column("Type", field_at("type")),
        Column("Reason", field_at("reason")),
        Column("Object", _event_object),
        Column("Subobject", field_at("involvedObject.fieldPath"), priority=1),
        Column("Source", _event_source, priority=1),
        Column("Message", _event_message),
        Column("First Seen", _time_since_first("firstTimestamp", "eventTime"), priority=1),
        Column("Count", _event_count, "integer", priority=1),
        Column("Name", field_at("metadata.name"), priority=1),
    ),
    "Job": (
        NAME_COLUMN,
        Column("Status", _job_status),
        Column("Completions", _completions),
        Column("Duration", _job_duration),
        AGE_COLUMN,
        *container_columns("spec.template.spec"),
        Column("Selector", label_selector("spec.selector"), priority=1),
    ),
    "JobSet": (
        NAME_COLUMN,
        Column(
            "TerminalState",
            field_at("status.terminalState", None),
            description="Final state of JobSet",
        ),
        Column("Restarts", _optional_text("status.restarts"), description="Number of restarts"),
        Column("Completed", _completed_status),
        Column("Suspended", _optional_text("spec.suspend"), description="JobSet suspended"),
        Column("Age", AGE_COLUMN.cell, "date", description="Time this JobSet was created"),
    ),
    "LeaderWorkerSet": (
        NAME_COLUMN,
        Column(
            "Ready",
            field_at("status.readyReplicas", None),
            "integer",
            description="Number of ready replicas",
        ),
        Column(
            "Desired",
            field_at("spec.replicas", None),
            "integer",
            description="Number of desired replicas",
        ),
        Column(
            "Up-to-date",
            field_at("status.updatedReplicas", None),
            "integer",
            description="Number of up-to-date replicas",
        ),
        Column("Age", AGE_COLUMN.cell, "date"),
    ),
    "Lease": (NAME_COLUMN, Column("Holder", field_at("spec.holderIdentity")), AGE_COLUMN),
    "LimitRange": (NAME_COLUMN, CREATED_AT_COLUMN),
    "Namespace": (NAME_COLUMN, Column("Status", field_at("status.phase")), AGE_COLUMN),
    "Node": (
        NAME_COLUMN,
        Column("Status", _node_status),
        Column("Roles", _roles),
        AGE_COLUMN,
        Column("Version", field_at("status.nodeInfo.kubeletVersion")),
        Column("Internal-IP", _address("InternalIP"), priority=1),
        Column("External-IP", _address("ExternalIP"), priority=1),
        Column("OS-Image", field_at("status.nodeInfo.osImage", UNKNOWN), priority=1),
        Column("Kernel-Version", field_at("status.nodeInfo.kernelVersion", UNKNOWN), priority=1),
        Column(
            "Container-Runtime",
            field_at("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
            priority=1,
        ),
    ),
    "NodeMetrics": (
        NAME_COLUMN,
        Column("CPU", field_at("usage.cpu")),
        Column("Memory", field_at("usage.memory")),
        Column("Window", field_at("window")),
    ),
    "PodMetrics": (
        NAME_COLUMN,
        Column("Containers", item_list("containers", "name")),
        Column("Window", field_at("window")),
    ),
    "Pod": POD_COLUMNS,
    "PodDisruptionBudget": (
        NAME_COLUMN,
        Column("Min Available", _as_text("spec.minAvailable", "N/A")),
        Column("Max Unavailable", _as_text("spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", field_at("status.disruptionsAllowed", 0), "integer"),
        AGE_COLUMN,
    ),
    "PodGroup": (NAME_COLUMN, *_GROUP_COLUMNS, Column("Status", _group_status), AGE_COLUMN),
    "PodTemplate": (
        NAME_COLUMN,
        Column("Containers", item_list("template.spec.containers", "name")),
        Column("Images", item_list("template.spec.containers", "image")),
        Column("Pod Labels", labels("template.metadata.labels")),
    ),
    "PriorityClass": (
        NAME_COLUMN,
        Column("Value", field_at("value", 0), "integer"),
        Column("Global-Default", field_at("globalDefault", False), "boolean"),
        AGE_COLUMN,
        Column("PreemptionPolicy", field_at("preemptionPolicy")),
    ),
    "ResourceClaim": (NAME_COLUMN, Column("State", _claim_state), AGE_COLUMN),
    "ResourceQuota": (
        NAME_COLUMN,
        Column("Request", _quota_usage(limits=False)),
        Column("Limit", _quota_usage(limits=True)),
        AGE_COLUMN,
    ),
    "ResourceSlice": (
        NAME_COLUMN,
        Column("Node", field_at("spec.nodeName", UNSET)),
        Column("Driver", field_at("spec.driver")),
        Column("Pool", field_at("spec.pool.name")),
        AGE_COLUMN,
    ),
    "Role": (NAME_COLUMN, CREATED_AT_COLUMN),
    "RoleBinding": _BINDING_COLUMNS,
    "Secret": (
        NAME_COLUMN,
        Column("Type", field_at("type")),
        Column("Data", item_count("data")),
        AGE_COLUMN,
    ),
    "Service": (
        NAME_COLUMN,
        Column("Type", field_at("spec.type")),
        Column("Cluster-IP", field_at("spec.clusterIP", NONE)),
        Column("External-IP", _external_ip),
        Column("Port(s)", _ports),
        AGE_COLUMN,
        Column("Selector", labels("spec.selector"), priority=1),
    ),
    **PLATFORM_COLUMNS,
    **STORAGE_COLUMNS,
    **WORKLOAD_COLUMNS,
}

#: The columns of kinds without rows.
DEFAULT_COLUMNS = (NAME_COLUMN, AGE_COLUMN)
