"""Validation of metadata, labels, selectors and conditions, which all kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    too_long,
)
from phalanx.api.formats import (
    UNQUALIFIED_FINALIZER,
    StringValidator,
    has_finalizer_domain,
    validate_annotation_key,
    validate_condition_reason,
    validate_dns_label,
    validate_dns_subdomain,
    validate_label_key,
    validate_label_value,
    validate_name_prefix,
    validate_path_segment,
    validate_service_name,
)
from phalanx.api.kinds import (
    API_SERVICE,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CLUSTER_TRUST_BUNDLE,
    CUSTOM_RESOURCE_DEFINITION,
    IP_ADDRESS,
    LEADER_WORKER_SET,
    LEASE,
    LEASE_CANDIDATE,
    ROLE,
    ROLE_BINDING,
    Kind,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_items,
    mandatory,
    minimum,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.wire import Object

#: Maximum size of all annotations of an object, in bytes.
MAX_ANNOTATIONS_SIZE = 256 * 1024

#: Name formats of kinds whose names are not DNS subdomains.
_NAME_FORMATS: Mapping[str, StringValidator] = {
    "Namespace": validate_dns_label,
    API_SERVICE.qualified_name: validate_path_segment,
    CLUSTER_TRUST_BUNDLE.qualified_name: validate_path_segment,
    IP_ADDRESS.qualified_name: validate_path_segment,
    "Service": validate_dns_label,
    "Event": validate_path_segment,
    "PodDisruptionBudget.policy": validate_path_segment,
    ROLE.qualified_name: validate_path_segment,
    ROLE_BINDING.qualified_name: validate_path_segment,
    CLUSTER_ROLE.qualified_name: validate_path_segment,
    CLUSTER_ROLE_BINDING.qualified_name: validate_path_segment,
    LEADER_WORKER_SET.qualified_name: validate_service_name,
}

_IMMUTABLE_FIELDS = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip
#: The fields that `_check_common` checks.
_COMMON_FIELDS = ("labels", "annotations", "ownerReferences", "finalizers", "generation")
_check_label = mandatory(string_format(validate_dns_label))
_EXCLUSIVE_FINALIZERS = ("orphan", "foregroundDeletion")


def check_metadata(kind: Kind, new: Object, old: Object | None) -> Causes:
    """Check the metadata of an object."""
    meta = new.get("metadata") or {}
    is_plain = kind.is_custom or kind.qualified_name in _PLAIN_KINDS
    check_common = _check_plain if is_plain else _check_common
    if old is None:
        return prefix_causes("metadata", [*_check_name(kind, meta), *check_common(meta, CREATED)])
    before = old.get("metadata") or {}
    if meta == before:
        return ()
    found = _check_unchanged(meta, before)
    # What the stored object has was checked when it was stored.
    changed = [field for field in _COMMON_FIELDS if meta.get(field) != before.get(field)]
    if changed:
        new_part = {field: meta[field] for field in changed if field in meta}
        old_part = {field: before[field] for field in changed if field in before}
        found = [*found, *check_common(new_part, old_part)]
    return prefix_causes("metadata", found)


def _check_name(kind: Kind, meta: Object) -> Causes:
    faults = _NAME_FORMATS.get(kind.qualified_name, validate_dns_subdomain)
    name, prefix = meta.get("name", ""), meta.get("generateName", "")
    found = [
        invalid("generateName", prefix, fault)
        for fault in (validate_name_prefix(faults, prefix) if prefix else ())
    ]
    if not name:
        found.append(required("name", "name or generateName is required"))
    else:
        found += [invalid("name", name, fault) for fault in faults(name)]
    namespace = meta.get("namespace", "")
    if kind.namespaced:
        found += prefix_causes("namespace", _check_label(namespace, CREATED))
    elif namespace:
        found.append(forbidden("namespace", "not allowed on this type"))
    return found


def _check_unchanged(new: Object, old: Object) -> Causes:
    found = [
        invalid(field, new.get(field), IMMUTABLE)
        for field in _IMMUTABLE_FIELDS
        if new.get(field) != old.get(field)
    ]
    if new.get("generation", 0) < old.get("generation", 0):
        found.append(invalid("generation", new.get("generation", 0), "must not be decremented"))
    kept = set(old.get("finalizers", ()))
    added = [finalizer for finalizer in new.get("finalizers", ()) if finalizer not in kept]
    if added and old.get("deletionTimestamp"):
        quoted = ", ".join(f'"{finalizer}"' for finalizer in added)
        detail = (
            "no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{quoted}}}"
        )
        found.append(forbidden("finalizers", detail))
    return found


def check_labels(new: Any, old: Any) -> Causes:
    """Check label keys and values; causes are at the whole map."""
    found: list[Cause] = []
    for key, value in (new or {}).items():
        found += [invalid("", key, fault) for fault in validate_label_key(key)]
        found += [invalid("", value, fault) for fault in validate_label_value(value)]
    return found


def check_annotations(new: Any, old: Any) -> Causes:
    """Check annotation keys and their total size."""
    annotations = new or {}
    found = [
        invalid("", key, fault) for key in annotations for fault in validate_annotation_key(key)
    ]
    size = sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items())
    return [*found, too_long("", MAX_ANNOTATIONS_SIZE)] if size > MAX_ANNOTATIONS_SIZE else found


def _check_not_empty(new: Any, old: Any) -> Causes:
    return () if new else [required("", "must not be empty")]


def _check_not_event(new: Any, old: Any) -> Causes:
    if (new.get("apiVersion"), new.get("kind")) != ("v1", "Event"):
        return ()
    return [invalid("", new, "/v1, Kind=Event is disallowed from being an owner")]


def _check_one_controller(new: Any, old: Any) -> Causes:
    owners = [owner.get("name", "") for owner in new if owner.get("controller")]
    if len(owners) < 2:
        return ()
    detail = (
        'Only one reference can have Controller set to true. Found "true" in references for '
        f"{owners[0]} and {owners[1]}"
    )
    return [invalid("", new, detail)]


def _check_finalizers(new: Any, old: Any) -> Causes:
    found = _check_finalizer_names(new, old)
    for at, name in enumerate(new):
        if not has_finalizer_domain(name):
            found.append(invalid(f"[{at}]", name, UNQUALIFIED_FINALIZER))
    if all(name in new for name in _EXCLUSIVE_FINALIZERS):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        found.append(invalid("", new, detail))
    return found


_check_owner = all_of(
    struct(
        ("apiVersion", _check_not_empty),
        ("kind", _check_not_empty),
        ("name", _check_not_empty),
        ("uid", _check_not_empty),
    ),
    _check_not_event,
)


def _check_finalizer_names(new: Any, old: Any) -> list[Cause]:
    """Check finalizers as qualified names; a domain is not required."""
    return [invalid("", name, fault) for name in new for fault in validate_label_key(name)]


def _metadata_check(finalizers: Check) -> Check:
    return struct(
        ("generation", optional(minimum(0))),
        ("labels", check_labels),
        ("annotations", check_annotations),
        ("ownerReferences", optional(all_of(each(_check_owner), _check_one_controller))),
        ("finalizers", optional(finalizers)),
    )


_check_common = _metadata_check(_check_finalizers)
#: Custom resources and some old kinds accept a finalizer without a domain.
_check_plain = _metadata_check(_check_finalizer_names)
_PLAIN_KINDS = (
    "Event", "Event.events.k8s.io", "PodDisruptionBudget.policy", LEASE.qualified_name,
    LEASE_CANDIDATE.qualified_name, CUSTOM_RESOURCE_DEFINITION.qualified_name,
)  # fmt: skip

# ----------------------------------------------------------------------------------- selectors

_OPERATORS_WITH_VALUES = ("In", "NotIn")
_OPERATORS_WITHOUT_VALUES = ("Exists", "DoesNotExist")


def check_operator_values(new: Any, old: Any) -> Causes:
    """Check that the values of a requirement fit its operator."""
    operator, values = new.get("operator"), new.get("values")
    if operator in _OPERATORS_WITH_VALUES:
        detail = "must be specified when `operator` is 'In' or 'NotIn'"
        return () if values else [required("values", detail)]
    if operator in _OPERATORS_WITHOUT_VALUES:
        detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [forbidden("values", detail)] if values else ()
    return [invalid("operator", operator, "not a valid selector operator")]


LABEL_KEY: Check = string_format(validate_label_key)
_check_requirement = all_of(
    check_operator_values,
    struct(("key", LABEL_KEY), ("values", optional(each(string_format(validate_label_value))))),
)

#: A label selector.
check_selector = struct(
    ("matchLabels", check_labels),
    ("matchExpressions", optional(each(_check_requirement))),
)

# ---------------------------------------------------------------------------------- conditions

_MAX_REASON_LENGTH = 1024
_MAX_MESSAGE_LENGTH = 32768


def _max_length(limit: int) -> Check:
    def check(new: Any, old: Any) -> Causes:
        return [too_long("", limit)] if len(new) > limit else ()

    return check


_check_condition = struct(
    ("type", mandatory(LABEL_KEY)),
    ("status", one_of("False", "True", "Unknown")),
    ("observedGeneration", optional(minimum(0))),
    ("lastTransitionTime", non_empty),
    (
        "reason",
        mandatory(
            all_of(string_format(validate_condition_reason), _max_length(_MAX_REASON_LENGTH))
        ),
    ),
    ("message", optional(_max_length(_MAX_MESSAGE_LENGTH))),
)


def _check_unique_types(new: Any, old: Any) -> Causes:
    return [duplicate(f"[{at}]", new[at].get("type")) for at in find_duplicate_items(new, "type")]


#: Conditions as most kinds have them.
check_conditions = optional(all_of(each(_check_condition), _check_unique_types))
