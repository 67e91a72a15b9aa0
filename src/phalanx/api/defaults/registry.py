"""The defaulting functions of every kind, applied in order and in place.

`apply_defaults` runs on every object that is written, on create and on update, and is idempotent.
Before the functions of the kind it applies the defaults that the schema declares
(`Schema.apply_defaults`). `prepare_for_create` runs once, on create, and sets the initial status,
whatever the request contains. Defaults that depend on other objects (priority classes, limit
ranges, the addresses and ports that Services have) are admission and belong to the server.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import orjson

from phalanx.api import kinds
from phalanx.api.defaults import platform, storage
from phalanx.api.defaults.pod import default_pod, default_pod_status, prepare_pod_for_create
from phalanx.api.defaults.service import (
    default_service,
    prepare_service_for_create,
    prepare_service_for_update,
)
from phalanx.api.defaults.workloads import (
    count_template_change,
    default_cron_job,
    default_daemon_set,
    default_deployment,
    default_job,
    default_job_set,
    default_leader_worker_set,
    default_pod_template,
    default_replica_set,
    default_replication_controller,
    default_stateful_set,
    prepare_daemon_set_for_create,
    prepare_job_for_create,
    prepare_replicas_for_create,
    prepare_stateful_set_for_create,
)
from phalanx.api.kinds import RBAC_GROUP, Kind
from phalanx.api.schema import schema
from phalanx.api.wire import CACHE_SIZE, MAX_CACHED_BYTES, Object, compact_json

DefaultFunction = Callable[[Object], None]
CreateFunction = Callable[[Object, str], None]
UpdateFunction = Callable[[Object, Object, str], None]

_PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"
_METADATA = "meta.v1.ObjectMeta"
_POD_STATUS = "core.v1.PodStatus"
#: Fields in which the specs of equal pods differ; no default depends on them.
_OWN_POD_FIELDS = frozenset(("hostname", "subdomain", "nodeName", "schedulingGroup"))
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
_BUDGET_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def apply_defaults(kind: Kind, obj: Object) -> None:
    """Apply the defaults of an object in place."""
    if kind is kinds.POD:
        _apply_pod_defaults(obj)
    else:
        _apply_all(kind, obj)


def _apply_all(kind: Kind, obj: Object) -> None:
    schema(kind.schema).apply_defaults(obj)
    for default in _DEFAULTS.get(kind.qualified_name, ()):
        default(obj)


def _apply_pod_defaults(pod: Object) -> None:
    """Apply the defaults of a Pod: those of its spec, which many pods share, from a cache."""
    spec = pod.setdefault("spec", {})
    shared = spec.copy()
    for key in _OWN_POD_FIELDS.intersection(spec):
        del shared[key]
    encoded = compact_json(shared)
    if len(encoded) > MAX_CACHED_BYTES:
        _apply_all(kinds.POD, pod)
        return
    schema(_METADATA).apply_defaults(pod.setdefault("metadata", {}))
    # The spec of a stored pod has its defaults.
    if (defaulted := _default_cached_spec(encoded)) != encoded:
        spec.update(orjson.loads(defaulted))
    status = pod.setdefault("status", {})
    if status:  # An empty one has no defaults.
        schema(_POD_STATUS).apply_defaults(status)
        default_pod_status(status, spec)


@lru_cache(maxsize=CACHE_SIZE)
def _default_cached_spec(encoded: bytes) -> bytes:
    """Return the defaulted spec of a Pod, from a cache keyed by its JSON."""
    pod = {"metadata": {}, "spec": orjson.loads(encoded), "status": {}}
    _apply_all(kinds.POD, pod)
    return compact_json(pod["spec"])


def prepare_for_create(kind: Kind, obj: Object, now: str) -> None:
    """Set the initial state of a new object."""
    for begin in _CREATE_FUNCTIONS.get(kind.qualified_name, ()):
        begin(obj, now)


def prepare_for_update(kind: Kind, new: Object, old: Object, *, now: str) -> None:
    """Set what follows from the change of an object."""
    update = _UPDATE_FUNCTIONS.get(kind.qualified_name)
    if update is not None:
        update(new, old, now)


def _set_name_label(obj: Object) -> None:
    if name := obj["metadata"].get("name"):
        obj["metadata"].setdefault("labels", {})[NAMESPACE_NAME_LABEL] = name


def _default_namespace_phase(obj: Object) -> None:
    obj["status"].setdefault("phase", "Active")


def _mirror_pod_cidr(obj: Object) -> None:
    """Mirror `podCIDR` and the first of `podCIDRs`."""
    spec = obj["spec"]
    first = spec.get("podCIDR") or next(iter(spec.get("podCIDRs", ())), "")
    if first:
        spec["podCIDR"] = first
        if first not in spec.get("podCIDRs", ())[:1]:
            spec["podCIDRs"] = [first]


def _default_allocatable(obj: Object) -> None:
    """Copy the capacity, unless `allocatable` is given; an empty one stays empty."""
    status = obj["status"]
    if "allocatable" not in status and "capacity" in status:
        status["allocatable"] = dict(status["capacity"])
    elif not status.get("allocatable", True):
        del status["allocatable"]


def _default_class_preemption_policy(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", _PREEMPT_LOWER_PRIORITY)


def _default_group_preemption_policy(obj: Object) -> None:
    obj["spec"].setdefault("preemptionPolicy", _PREEMPT_LOWER_PRIORITY)


def _encode_string_data(obj: Object) -> None:
    """Move `stringData` to `data`, base64-encoded; it overrides equal keys."""
    for key, text in obj.pop("stringData", {}).items():
        encoded = binascii.b2a_base64(text.encode(), newline=False).decode()
        obj.setdefault("data", {})[key] = encoded


def _default_secret_type(obj: Object) -> None:
    obj.setdefault("type", "Opaque")


def _default_container_limits(obj: Object) -> None:
    """Fill in default limits and requests from the container limits of a LimitRange."""
    for limit in obj["spec"].get("limits") or ():
        if limit["type"] == "Container":
            limits = {**limit.get("max", {}), **limit.get("default", {})}
            requests = {**limit.get("min", {}), **limits, **limit.get("defaultRequest", {})}
            limit |= {"default": limits} if limits else {}
            limit |= {"defaultRequest": requests} if requests else {}


def _drop_empty_limits(obj: Object) -> None:
    """Drop an empty list of limits: Kubernetes stores none."""
    if not obj["spec"].get("limits"):
        obj["spec"].pop("limits", None)


def _drop_coordinated_election(obj: Object) -> None:
    """Drop the fields of coordinated leader election, as Kubernetes does by default."""
    for field in ("strategy", "preferredHolder"):
        obj.get("spec", {}).pop(field, None)


def _default_api_groups(obj: Object) -> None:
    """Set the API group of role references and subjects."""
    obj["roleRef"]["apiGroup"] = obj["roleRef"].get("apiGroup") or RBAC_GROUP
    for subject in obj.get("subjects", ()):
        if subject["kind"] in ("User", "Group"):
            subject["apiGroup"] = subject.get("apiGroup") or RBAC_GROUP


def _default_endpoint_ports(obj: Object) -> None:
    for port in obj.get("ports", ()):
        port.setdefault("name", "")
        port["protocol"] = port.get("protocol") or "TCP"


def _drop_deprecated_topology(obj: Object) -> None:
    """Drop the topology of endpoints, which discovery.k8s.io/v1 does not store."""
    for endpoint in obj.get("endpoints", ()):
        endpoint.pop("deprecatedTopology", None)


def _default_device_count(obj: Object) -> None:
    """Set the count of a device request to one, unless it has a count or asks for all."""
    for request in obj["spec"].get("devices", {}).get("requests", ()):
        exactly = [request["exactly"]] if "exactly" in request else []
        for wanted in (*exactly, *request.get("firstAvailable", ())):
            if wanted.setdefault("allocationMode", "ExactCount") == "ExactCount":
                wanted["count"] = wanted.get("count") or 1


def _default_template_device_count(obj: Object) -> None:
    _default_device_count(obj["spec"])


def _set_taint_times(obj: Object, now: str) -> None:
    """Set the time of the taints of a new ResourceSlice or DeviceTaintRule.

    Eviction counts the seconds of a toleration from `timeAdded`.
    """
    for _, taint in _taints(obj):
        if not taint.get("timeAdded"):
            taint["timeAdded"] = now


def _keep_taint_times(new: Object, old: Object, now: str) -> None:
    """Set the time of the taints of a changed object; taints that it had keep theirs."""
    times = {
        _taint_identity(device, taint): taint.get("timeAdded") for device, taint in _taints(old)
    }
    for device, taint in _taints(new):
        if not taint.get("timeAdded"):
            taint["timeAdded"] = times.get(_taint_identity(device, taint)) or now


def _taint_identity(device: str, taint: Object) -> tuple[object, ...]:
    return (device, *(taint.get(field) for field in ("key", "value", "effect")))


def _taints(obj: Object) -> Iterator[tuple[str, Object]]:
    """Yield the taints, each with the name of its device; objects are not validated yet."""
    spec = obj.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    if isinstance(spec.get("taint"), dict):
        yield "", spec["taint"]
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            yield str(device.get("name")), taint


def _activate_namespace(obj: Object, now: str) -> None:
    finalizers = obj["spec"].setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _clear_status(obj: Object, now: str) -> None:
    obj["status"] = {}


def _remove_status(obj: Object, now: str) -> None:
    obj.pop("status", None)


def _zero_budget_counts(obj: Object, now: str) -> None:
    obj["status"] = dict.fromkeys(_BUDGET_COUNTS, 0)


#: Functions by the qualified kind.
_DEFAULTS: Mapping[str, tuple[DefaultFunction, ...]] = {
    kinds.NAMESPACE.qualified_name: (_set_name_label, _default_namespace_phase),
    kinds.NODE.qualified_name: (_default_allocatable, _mirror_pod_cidr),
    kinds.POD.qualified_name: (default_pod,),
    kinds.POD_TEMPLATE.qualified_name: (default_pod_template,),
    kinds.SECRET.qualified_name: (_encode_string_data, _default_secret_type),
    kinds.SERVICE.qualified_name: (default_service,),
    kinds.PERSISTENT_VOLUME.qualified_name: (storage.default_volume,),
    kinds.PERSISTENT_VOLUME_CLAIM.qualified_name: (
        storage.default_volume_mode,
        storage.default_claim_phase,
    ),
    kinds.LIMIT_RANGE.qualified_name: (_default_container_limits, _drop_empty_limits),
    kinds.LEASE.qualified_name: (_drop_coordinated_election,),
    kinds.JOB.qualified_name: (default_job,),
    kinds.CRON_JOB.qualified_name: (default_cron_job,),
    kinds.ROLE_BINDING.qualified_name: (_default_api_groups,),
    kinds.CLUSTER_ROLE_BINDING.qualified_name: (_default_api_groups,),
    kinds.PRIORITY_CLASS.qualified_name: (_default_class_preemption_policy,),
    kinds.POD_GROUP.qualified_name: (_default_group_preemption_policy,),
    kinds.COMPOSITE_POD_GROUP.qualified_name: (_default_group_preemption_policy,),
    kinds.ENDPOINT_SLICE.qualified_name: (_default_endpoint_ports, _drop_deprecated_topology),
    kinds.RESOURCE_CLAIM.qualified_name: (_default_device_count,),
    kinds.RESOURCE_CLAIM_TEMPLATE.qualified_name: (_default_template_device_count,),
    kinds.STORAGE_CLASS.qualified_name: (storage.default_storage_class,),
    kinds.CSI_DRIVER.qualified_name: (storage.default_csi_driver,),
    kinds.DEPLOYMENT.qualified_name: (default_deployment,),
    kinds.REPLICA_SET.qualified_name: (default_replica_set,),
    kinds.DAEMON_SET.qualified_name: (default_daemon_set,),
    kinds.REPLICATION_CONTROLLER.qualified_name: (default_replication_controller,),
    kinds.STATEFUL_SET.qualified_name: (default_stateful_set,),
    kinds.ENDPOINTS.qualified_name: (platform.default_endpoints,),
    kinds.HORIZONTAL_POD_AUTOSCALER.qualified_name: (platform.default_autoscaler,),
    kinds.NETWORK_POLICY.qualified_name: (platform.default_network_policy,),
    kinds.INGRESS_CLASS.qualified_name: (platform.default_ingress_class,),
    kinds.CERTIFICATE_SIGNING_REQUEST.qualified_name: (platform.default_signing_request,),
    kinds.FLOW_SCHEMA.qualified_name: (platform.default_flow_schema,),
    kinds.PRIORITY_LEVEL_CONFIGURATION.qualified_name: (platform.default_priority_level,),
    kinds.MUTATING_WEBHOOK_CONFIGURATION.qualified_name: (
        platform.default_webhooks,
        platform.default_reinvocation,
    ),
    kinds.VALIDATING_WEBHOOK_CONFIGURATION.qualified_name: (platform.default_webhooks,),
    kinds.VALIDATING_ADMISSION_POLICY.qualified_name: (platform.default_admission_policy,),
    kinds.MUTATING_ADMISSION_POLICY.qualified_name: (platform.default_admission_policy,),
    kinds.VALIDATING_ADMISSION_POLICY_BINDING.qualified_name: (platform.default_policy_binding,),
    kinds.MUTATING_ADMISSION_POLICY_BINDING.qualified_name: (platform.default_policy_binding,),
    kinds.API_SERVICE.qualified_name: (platform.default_api_service,),
    kinds.JOB_SET.qualified_name: (default_job_set,),
    kinds.LEADER_WORKER_SET.qualified_name: (default_leader_worker_set,),
}

_CREATE_FUNCTIONS: Mapping[str, tuple[CreateFunction, ...]] = {
    kinds.NAMESPACE.qualified_name: (_activate_namespace,),
    kinds.POD.qualified_name: (prepare_pod_for_create,),
    kinds.SERVICE.qualified_name: (prepare_service_for_create,),
    kinds.PERSISTENT_VOLUME.qualified_name: (storage.prepare_volume_for_create,),
    kinds.PERSISTENT_VOLUME_CLAIM.qualified_name: (storage.prepare_claim_for_create,),
    kinds.RESOURCE_QUOTA.qualified_name: (_clear_status,),
    kinds.JOB.qualified_name: (prepare_job_for_create,),
    kinds.CRON_JOB.qualified_name: (_clear_status,),
    kinds.POD_DISRUPTION_BUDGET.qualified_name: (_zero_budget_counts,),
    kinds.POD_GROUP.qualified_name: (_clear_status,),
    kinds.COMPOSITE_POD_GROUP.qualified_name: (_clear_status,),
    kinds.RESOURCE_CLAIM.qualified_name: (_clear_status,),
    kinds.DEVICE_TAINT_RULE.qualified_name: (_clear_status, _set_taint_times),
    kinds.RESOURCE_SLICE.qualified_name: (_set_taint_times,),
    kinds.CSI_NODE.qualified_name: (_clear_status,),
    kinds.VOLUME_ATTACHMENT.qualified_name: (storage.prepare_attachment_for_create,),
    kinds.DEPLOYMENT.qualified_name: (_clear_status,),
    kinds.REPLICA_SET.qualified_name: (prepare_replicas_for_create,),
    kinds.REPLICATION_CONTROLLER.qualified_name: (prepare_replicas_for_create,),
    kinds.DAEMON_SET.qualified_name: (prepare_daemon_set_for_create,),
    kinds.STATEFUL_SET.qualified_name: (prepare_stateful_set_for_create,),
    kinds.INGRESS.qualified_name: (platform.prepare_ingress_for_create,),
    kinds.SERVICE_CIDR.qualified_name: (_clear_status,),
    kinds.HORIZONTAL_POD_AUTOSCALER.qualified_name: (platform.prepare_autoscaler_for_create,),
    kinds.CERTIFICATE_SIGNING_REQUEST.qualified_name: (_clear_status,),
    kinds.POD_CERTIFICATE_REQUEST.qualified_name: (_clear_status,),
    kinds.FLOW_SCHEMA.qualified_name: (_clear_status,),
    kinds.PRIORITY_LEVEL_CONFIGURATION.qualified_name: (_clear_status,),
    kinds.VALIDATING_ADMISSION_POLICY.qualified_name: (_clear_status,),
    kinds.STORAGE_VERSION_MIGRATION.qualified_name: (_clear_status,),
    kinds.JOB_SET.qualified_name: (_remove_status,),
    kinds.LEADER_WORKER_SET.qualified_name: (_remove_status,),
}

_UPDATE_FUNCTIONS: Mapping[str, UpdateFunction] = {
    kinds.PERSISTENT_VOLUME.qualified_name: storage.set_phase_transition_time,
    kinds.PERSISTENT_VOLUME_CLAIM.qualified_name: storage.prepare_claim_for_update,
    kinds.SERVICE.qualified_name: prepare_service_for_update,
    kinds.DAEMON_SET.qualified_name: count_template_change,
    kinds.DEVICE_TAINT_RULE.qualified_name: _keep_taint_times,
    kinds.RESOURCE_SLICE.qualified_name: _keep_taint_times,
}
