"""The checks of every built-in kind and subresource, and the checks of small kinds.

The server calls `validate` and `check_gated_rules` before every write of such a kind, with the
stored object on an update. A kind has a check for its main resource and one per subresource with
checks of its own, all built from the combinators of `checks.py`. Checks that depend on a feature
gate are rows of GATED_RULES. Validation never changes an object and never reads another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from phalanx.api import kinds
from phalanx.api.errors import Cause, Causes, forbidden, invalid, required, too_long
from phalanx.api.feature_gates import JOB_GANG_INFERENCE, FeatureGates
from phalanx.api.formats import validate_config_key, validate_finalizer, validate_label_key
from phalanx.api.kinds import JOB, Kind
from phalanx.api.scheduling import MAX_USER_PRIORITY, SYSTEM_PRIORITY_CLASSES
from phalanx.api.validation import (
    admission_registration,
    cluster_services,
    dynamic_resources,
    networking,
    policy,
    replicated_workloads,
    resources,
    storage,
    volumes,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    if_present,
    immutable,
    mandatory,
    minimum,
    non_empty,
    on_create,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.core_kinds import check_node, check_secret
from phalanx.api.validation.dynamic_resources import check_resource_slice
from phalanx.api.validation.endpoint_slice import check_endpoint_slice
from phalanx.api.validation.job import check_cron_job, check_job
from phalanx.api.validation.job_policies import check_inferred_gang_size
from phalanx.api.validation.job_set import check_job_set, check_job_set_status
from phalanx.api.validation.job_status import check_job_status
from phalanx.api.validation.leader_worker_set import (
    check_leader_worker_set,
    check_leader_worker_set_status,
)
from phalanx.api.validation.metadata import check_metadata
from phalanx.api.validation.pod import (
    check_ephemeral_containers,
    check_pod,
    check_pod_status,
    check_resize,
)
from phalanx.api.validation.pod_group import (
    check_composite_pod_group,
    check_composite_pod_group_status,
    check_pod_group,
    check_pod_group_status,
    check_workload,
)
from phalanx.api.validation.pod_template import check_pod_template
from phalanx.api.validation.service import check_service, check_service_status
from phalanx.api.validation.stateful_set import (
    check_controller_revision,
    check_stateful_set,
    check_stateful_set_status,
)
from phalanx.api.wire import Object

#: Maximum size of a ConfigMap's data, in bytes.
MAX_CONFIG_MAP_SIZE = 1024 * 1024

_IMMUTABLE_MESSAGE = "field is immutable when `immutable` is set"


def validate(kind: Kind, new: Object, old: Object | None, *, subresource: str = "") -> list[Cause]:
    """Return the causes for which an object or one of its subresources is refused."""
    check = _CHECKS.get((kind.qualified_name, subresource))
    causes = check(new, CREATED if old is None else old) if check else ()
    return list(dict.fromkeys((*check_metadata(kind, new, old), *causes)))


# -------------------------------------------------------------------------------- PriorityClass


def _check_priority_class_name(new: Any, old: Any) -> Causes:
    name, value = new["metadata"].get("name", ""), new.get("value", 0)
    if not name.startswith("system-"):
        detail = f"maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}"
        return [forbidden("value", detail)] if value > MAX_USER_PRIORITY else ()
    if name not in SYSTEM_PRIORITY_CLASSES:
        why = f"{name} is not a known system priority class"
    elif value != SYSTEM_PRIORITY_CLASSES[name]:
        why = f"value of {name} PriorityClass must be {SYSTEM_PRIORITY_CLASSES[name]}"
    elif new.get("globalDefault"):
        why = f"globalDefault of {name} PriorityClass must be false"
    else:
        return ()
    detail = (
        f"priority class names with 'system-' prefix are reserved for system use only. error: {why}"
    )
    return [forbidden("metadata.name", detail)]


def _check_value_unchanged(new: Any, old: Any) -> Causes:
    if old is CREATED or new.get("value", 0) == old.get("value", 0):
        return ()
    return [forbidden("value", "may not be changed in an update.")]


_PRIORITY_CLASS = all_of(
    on_create(_check_priority_class_name),
    _check_value_unchanged,
    struct(("preemptionPolicy", immutable(mandatory(one_of("PreemptLowerPriority", "Never"))))),
)

# ------------------------------------------------------------------------------------ ConfigMap


def _check_config_map_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED or not old.get("immutable"):
        return ()
    return [
        forbidden(field, _IMMUTABLE_MESSAGE)
        for field in ("immutable", "data", "binaryData")
        if new.get(field) != old.get(field)
    ]


def _check_config_map_keys(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for field in ("data", "binaryData"):
        for key in new.get(field, {}):
            found += [invalid(f"{field}[{key}]", key, f) for f in validate_config_key(key)]
    both = [key for key in new.get("data", {}) if key in new.get("binaryData", {})]
    detail = "duplicate of key present in binaryData"
    return [*found, *(invalid(f"data[{key}]", key, detail) for key in both)]


def _check_config_map_size(new: Any, old: Any) -> Causes:
    texts = sum(len(value.encode()) for value in new.get("data", {}).values())
    binary = sum(len(value) * 3 // 4 for value in new.get("binaryData", {}).values())
    return [too_long("[]", MAX_CONFIG_MAP_SIZE)] if texts + binary > MAX_CONFIG_MAP_SIZE else ()


_CONFIG_MAP = all_of(_check_config_map_immutable, _check_config_map_keys, _check_config_map_size)

# ---------------------------------------------------------------------------------------- Lease


def _check_positive(new: Any, old: Any) -> Causes:
    return () if new > 0 else [invalid("", new, "must be greater than 0")]


_LEASE = struct(
    (
        "spec",
        all_of(
            struct(
                ("leaseDurationSeconds", optional(_check_positive)),
                ("leaseTransitions", optional(minimum(0))),
            ),
        ),
    ),
)

# ---------------------------------------------------------------------------------------- Event


def _check_event_namespace(new: Any, old: Any) -> Causes:
    """Require the namespace of the involved object; cluster-scoped objects use `default`.

    An Event with `eventTime` (of events.k8s.io/v1) may be in any namespace if its object has one,
    else in `default` or `kube-system`.
    """
    own = new["metadata"].get("namespace", "")
    about = new.get("involvedObject", {}).get("namespace", "")
    if new.get("eventTime"):
        fits = bool(about) or own in ("default", "kube-system")
    else:
        fits = own == about or (not about and own == "default")
    detail = "does not match event.namespace"
    return () if fits else [invalid("involvedObject.namespace", about, detail)]


def _max_characters(limit: int) -> Check:
    def check(new: Any, old: Any) -> Causes:
        if len(new) <= limit:
            return ()
        return [invalid("", "", f"can have at most {limit} characters")]

    return check


def _check_reporting_component(new: Any, old: Any) -> Causes:
    return [*non_empty(new, old), *string_format(validate_label_key)(new, old)]


_EVENTS_API_FIELDS = struct(
    ("reportingComponent", _check_reporting_component),
    ("reportingInstance", mandatory(_max_characters(128))),
    ("action", mandatory(_max_characters(128))),
    ("reason", mandatory(_max_characters(128))),
    ("message", optional(_max_characters(1024))),
)


def _check_events_api_fields(new: Any, old: Any) -> Causes:
    return _EVENTS_API_FIELDS(new, CREATED) if new.get("eventTime") else ()


_EVENT = all_of(_check_event_namespace, _check_events_api_fields)


def _check_event_type(new: Any, old: Any) -> Causes:
    known = ("Normal", "Warning")
    return () if new in known else [invalid("", new or "", f"has invalid value: {new or ''}")]


def _check_event_immutable(new: Any, old: Any) -> Causes:
    """Refuse changes of an events.k8s.io/v1 Event other than of its metadata and series."""
    if old is CREATED:
        return ()
    kept = [key for key in {**old, **new} if key not in ("metadata", "series")]
    return [invalid(key, new.get(key), IMMUTABLE) for key in kept if new.get(key) != old.get(key)]


def _check_event_series(new: Any, old: Any) -> Causes:
    """Require a count of at least two, and the time of the last Event, of a changed series."""
    if new is None or (old is not CREATED and new == old):
        return ()
    found = [] if new.get("lastObservedTime") else [required("lastObservedTime")]
    if new.get("count", 0) < _MIN_SERIES_COUNT:
        found.append(invalid("count", "", f"should be at least {_MIN_SERIES_COUNT}"))
    return found


def _check_absent(new: Any, old: Any) -> Causes:
    return [invalid("", "", "needs to be unset")] if new else ()


_MIN_SERIES_COUNT = 2
#: Fields of core/v1 that an Event of events.k8s.io/v1 has under deprecated names only.
_DEPRECATED_EVENT_FIELDS = ("firstTimestamp", "lastTimestamp", "count", "source")
_EVENTS_EVENT = all_of(
    _EVENT,
    on_create(
        struct(
            ("eventTime", non_empty),
            ("type", _check_event_type),
            *((name, _check_absent) for name in _DEPRECATED_EVENT_FIELDS),
        )
    ),
    struct(("series", _check_event_series)),
    _check_event_immutable,
)

# ------------------------------------------------------------------------------------ Namespace


def _check_namespace_finalizers(new: Any, old: Any) -> Causes:
    """Check the finalizers of a new namespace; Kubernetes reports causes at the whole list."""
    return [invalid("", name, fault) for name in new for fault in validate_finalizer(name)]


def _check_namespace_phase(new: Any, old: Any) -> Causes:
    """Require the phase that fits; Kubernetes writes the field with a capital letter."""
    phase = new.get("status", {}).get("phase", "")
    wanted = "Terminating" if new["metadata"].get("deletionTimestamp") else "Active"
    detail = f"may only be '{wanted}' while `deletionTimestamp` is as it is"
    return () if phase == wanted else [invalid("status.Phase", phase, detail)]


_NAMESPACE = struct(
    ("spec", struct(("finalizers", on_create(optional(_check_namespace_finalizers)))))
)
_FINALIZED_NAMESPACE = struct(
    ("spec", struct(("finalizers", optional(each(string_format(validate_finalizer))))))
)

_PLATFORM_CHECKS: tuple[tuple[Kind, str, Check], ...] = (
    (kinds.ENDPOINTS, "", networking.check_endpoints),
    (kinds.INGRESS, "", networking.check_ingress),
    (kinds.INGRESS_CLASS, "", networking.check_ingress_class),
    (kinds.NETWORK_POLICY, "", networking.check_network_policy),
    (kinds.IP_ADDRESS, "", networking.check_ip_address),
    (kinds.SERVICE_CIDR, "", networking.check_service_cidr),
    (kinds.SERVICE_CIDR, "status", networking.check_service_cidr_status),
    (kinds.HORIZONTAL_POD_AUTOSCALER, "", cluster_services.check_autoscaler),
    (kinds.HORIZONTAL_POD_AUTOSCALER, "status", cluster_services.check_autoscaler_status),
    (kinds.CERTIFICATE_SIGNING_REQUEST, "", cluster_services.check_signing_request),
    (kinds.CERTIFICATE_SIGNING_REQUEST, "approval", cluster_services.check_signing_request_status),
    (kinds.CERTIFICATE_SIGNING_REQUEST, "status", cluster_services.check_signing_request_status),
    (kinds.CLUSTER_TRUST_BUNDLE, "", cluster_services.check_cluster_trust_bundle),
    (kinds.POD_CERTIFICATE_REQUEST, "", cluster_services.check_pod_certificate_request),
    (kinds.LEASE_CANDIDATE, "", cluster_services.check_lease_candidate),
    (kinds.FLOW_SCHEMA, "", cluster_services.check_flow_schema),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, "", cluster_services.check_priority_level),
    (kinds.RUNTIME_CLASS, "", cluster_services.check_runtime_class),
    (kinds.API_SERVICE, "", cluster_services.check_api_service),
    (kinds.STORAGE_VERSION_MIGRATION, "", cluster_services.check_storage_version_migration),
    (
        kinds.STORAGE_VERSION_MIGRATION,
        "status",
        cluster_services.check_storage_version_migration_status,
    ),
    (
        kinds.MUTATING_WEBHOOK_CONFIGURATION,
        "",
        admission_registration.check_webhook_configuration,
    ),
    (
        kinds.VALIDATING_WEBHOOK_CONFIGURATION,
        "",
        admission_registration.check_webhook_configuration,
    ),
    (kinds.VALIDATING_ADMISSION_POLICY, "", admission_registration.check_validating_policy),
    (
        kinds.VALIDATING_ADMISSION_POLICY_BINDING,
        "",
        admission_registration.check_validating_policy_binding,
    ),
    (kinds.MUTATING_ADMISSION_POLICY, "", admission_registration.check_mutating_policy),
    (
        kinds.MUTATING_ADMISSION_POLICY_BINDING,
        "",
        admission_registration.check_mutating_policy_binding,
    ),
)

#: Checks by qualified kind and subresource.
_CHECKS: Mapping[tuple[str, str], Check] = {
    (kind.qualified_name, part): check
    for kind, part, check in (
        (kinds.CONFIG_MAP, "", _CONFIG_MAP),
        (kinds.EVENT, "", _EVENT),
        (kinds.EVENTS_EVENT, "", _EVENTS_EVENT),
        (kinds.LIMIT_RANGE, "", resources.check_limit_range),
        (kinds.NAMESPACE, "", _NAMESPACE),
        (kinds.NAMESPACE, "finalize", _FINALIZED_NAMESPACE),
        (kinds.NAMESPACE, "status", _check_namespace_phase),
        (kinds.NODE, "", check_node),
        (kinds.NODE, "status", check_node),
        (kinds.PERSISTENT_VOLUME, "", volumes.check_persistent_volume),
        (kinds.PERSISTENT_VOLUME_CLAIM, "", volumes.check_persistent_volume_claim),
        (kinds.POD, "", check_pod),
        (kinds.POD, "status", check_pod_status),
        (kinds.POD, "resize", check_resize),
        (kinds.POD, "ephemeralcontainers", check_ephemeral_containers),
        (kinds.POD_TEMPLATE, "", check_pod_template),
        (kinds.RESOURCE_QUOTA, "", resources.check_resource_quota),
        (kinds.RESOURCE_QUOTA, "status", resources.check_resource_quota_status),
        (kinds.SECRET, "", check_secret),
        (kinds.SERVICE, "", check_service),
        (kinds.SERVICE, "status", check_service_status),
        (kinds.CRON_JOB, "", check_cron_job),
        (kinds.JOB, "", check_job),
        (kinds.JOB, "status", check_job_status),
        (kinds.POD_DISRUPTION_BUDGET, "", policy.check_disruption_budget),
        (kinds.POD_DISRUPTION_BUDGET, "status", policy.check_disruption_budget_status),
        (kinds.CLUSTER_ROLE, "", policy.check_cluster_role),
        (kinds.CLUSTER_ROLE_BINDING, "", policy.check_cluster_role_binding),
        (kinds.ROLE, "", policy.check_role),
        (kinds.ROLE_BINDING, "", policy.check_role_binding),
        (kinds.PRIORITY_CLASS, "", _PRIORITY_CLASS),
        (kinds.POD_GROUP, "", check_pod_group),
        (kinds.POD_GROUP, "status", check_pod_group_status),
        (kinds.COMPOSITE_POD_GROUP, "", check_composite_pod_group),
        (kinds.COMPOSITE_POD_GROUP, "status", check_composite_pod_group_status),
        (kinds.WORKLOAD, "", check_workload),
        (kinds.LEASE, "", _LEASE),
        (kinds.ENDPOINT_SLICE, "", check_endpoint_slice),
        (kinds.DEVICE_CLASS, "", dynamic_resources.check_device_class),
        (kinds.RESOURCE_CLAIM, "", dynamic_resources.check_resource_claim),
        (kinds.RESOURCE_CLAIM, "status", dynamic_resources.check_resource_claim_status),
        (kinds.RESOURCE_CLAIM_TEMPLATE, "", dynamic_resources.check_resource_claim_template),
        (kinds.RESOURCE_SLICE, "", check_resource_slice),
        (kinds.DEVICE_TAINT_RULE, "", dynamic_resources.check_device_taint_rule),
        (kinds.DEVICE_TAINT_RULE, "status", dynamic_resources.check_device_taint_rule_status),
        (kinds.DEPLOYMENT, "", replicated_workloads.check_deployment),
        (kinds.DEPLOYMENT, "status", replicated_workloads.check_deployment_status),
        (kinds.REPLICA_SET, "", replicated_workloads.check_replica_set),
        (kinds.REPLICA_SET, "status", replicated_workloads.check_replica_set_status),
        (kinds.DAEMON_SET, "", replicated_workloads.check_daemon_set),
        (kinds.DAEMON_SET, "status", replicated_workloads.check_daemon_set_status),
        (kinds.REPLICATION_CONTROLLER, "", replicated_workloads.check_replication_controller),
        (kinds.REPLICATION_CONTROLLER, "status", replicated_workloads.check_replica_set_status),
        (kinds.STATEFUL_SET, "", check_stateful_set),
        (kinds.STATEFUL_SET, "status", check_stateful_set_status),
        (kinds.CONTROLLER_REVISION, "", check_controller_revision),
        *_PLATFORM_CHECKS,
        (kinds.STORAGE_CLASS, "", storage.check_storage_class),
        (kinds.CSI_DRIVER, "", storage.check_csi_driver),
        (kinds.CSI_NODE, "", storage.check_csi_node),
        (kinds.CSI_STORAGE_CAPACITY, "", storage.check_csi_storage_capacity),
        (kinds.VOLUME_ATTACHMENT, "", storage.check_volume_attachment),
        (kinds.VOLUME_ATTACHMENT, "status", storage.check_volume_attachment_status),
        (kinds.VOLUME_ATTRIBUTES_CLASS, "", storage.check_volume_attributes_class),
        (kinds.JOB_SET, "", check_job_set),
        (kinds.JOB_SET, "status", check_job_set_status),
        (kinds.LEADER_WORKER_SET, "", check_leader_worker_set),
        (kinds.LEADER_WORKER_SET, "status", check_leader_worker_set_status),
    )
}


class GatedRule(NamedTuple):
    """A check of a kind that applies only while its feature gate is on."""

    gate: str
    kind: Kind
    check: Check


GATED_RULES = (
    GatedRule(JOB_GANG_INFERENCE, JOB, struct(("spec", if_present(check_inferred_gang_size)))),
)


def check_gated_rules(
    gates: FeatureGates, kind: Kind, new: Object, *, old: Object | None
) -> list[Cause]:
    """Return the causes of the checks whose feature gates are on."""
    return [
        cause
        for rule in GATED_RULES
        if rule.kind is kind and gates.is_enabled(rule.gate)
        for cause in rule.check(new, CREATED if old is None else old)
    ]
