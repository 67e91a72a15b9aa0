"""Validation of the kinds of storage.k8s.io: classes, drivers, capacities and attachments."""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import Causes, duplicate, forbidden, invalid, required, too_long
from phalanx.api.formats import validate_dns_subdomain, validate_label_key
from phalanx.api.resources import exact_value
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_values,
    if_present,
    immutable,
    in_range,
    mandatory,
    minimum,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)
from phalanx.api.validation.metadata import LABEL_KEY, check_selector
from phalanx.api.validation.volumes import INLINE_VOLUME_SPEC, check_csi_driver_name

MAX_PARAMETERS, MAX_PARAMETERS_SIZE = 512, 256 * 1024
_MAX_NODE_ID = 192
_MIN_TOKEN_SECONDS, _MAX_TOKEN_SECONDS = 10 * 60, 1 << 32
_SUBDOMAIN = string_format(validate_dns_subdomain)


def _fixed(*fields: str) -> Check:
    """Refuse changes of these fields after creation."""

    def check(new: Any, old: Any) -> Causes:
        if old is CREATED:
            return ()
        changed = [field for field in fields if new.get(field) != old.get(field)]
        return [forbidden(field, f"updates to {field} are forbidden.") for field in changed]

    return check


def _parameters(*, are_required: bool) -> Check:
    """Check the settings of a class: their number, their size and their keys."""

    def check(new: Any, old: Any) -> Causes:
        if not new:
            return (
                [required("", "must contain at least one key/value pair")] if are_required else ()
            )
        if len(new) > MAX_PARAMETERS:
            return [too_long("", MAX_PARAMETERS)]
        found = [invalid("", key, "field can not be empty.") for key in new if not key]
        if sum(len(key) + len(value) for key, value in new.items()) > MAX_PARAMETERS_SIZE:
            found.append(too_long("", MAX_PARAMETERS_SIZE))
        return found

    return check


# --------------------------------------------------------------------------------- StorageClass


def _check_provisioner(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    return [invalid("", new, fault) for fault in validate_label_key(new.lower())]


def _check_unique_strings(new: Any, old: Any) -> Causes:
    return [duplicate(f"[{at}]", new[at]) for at in find_duplicate_values(new)]


_TOPOLOGY_TERM = struct(
    (
        "matchLabelExpressions",
        optional(
            all_of(
                each(
                    struct(
                        ("key", LABEL_KEY),
                        ("values", all_of(non_empty, optional(_check_unique_strings))),
                    )
                ),
                unique_field("key"),
            )
        ),
    ),
)


def _check_unique_terms(new: Any, old: Any) -> Causes:
    terms = [
        frozenset(
            (one.get("key"), frozenset(one.get("values") or ()))
            for one in term.get("matchLabelExpressions") or ()
        )
        for term in new
    ]
    return [duplicate(f"[{at}].matchLabelExpressions", "") for at in find_duplicate_values(terms)]


check_storage_class: Check = all_of(
    struct(
        ("provisioner", _check_provisioner),
        ("parameters", _parameters(are_required=False)),
        ("reclaimPolicy", optional(one_of("Delete", "Retain"))),
        ("volumeBindingMode", immutable(mandatory(one_of("Immediate", "WaitForFirstConsumer")))),
        ("allowedTopologies", optional(all_of(each(_TOPOLOGY_TERM), _check_unique_terms))),
    ),
    _fixed("parameters", "provisioner", "reclaimPolicy"),
)

check_volume_attributes_class: Check = all_of(
    struct(
        ("driverName", check_csi_driver_name),
        ("parameters", _parameters(are_required=True)),
    ),
    _fixed("driverName", "parameters"),
)

# --------------------------------------------------------------------- drivers and their limits


def _is_set(new: Any, old: Any) -> Causes:
    return [required("")] if new is None else ()


def _check_token_audiences(new: Any, old: Any) -> Causes:
    audiences = [request.get("audience", "") for request in new]
    return [duplicate(f"[{at}].audience", audiences[at]) for at in find_duplicate_values(audiences)]


def _unchanged(check: Check) -> Check:
    """Check a value always, and refuse changes of it after creation."""

    def check_value(new: Any, old: Any) -> Causes:
        changed = old is not CREATED and new != old
        return [*check(new, old), *([invalid("", new, IMMUTABLE)] if changed else ())]

    return check_value


_TOKEN_REQUEST = struct(
    ("expirationSeconds", optional(in_range(_MIN_TOKEN_SECONDS, _MAX_TOKEN_SECONDS))),
)

check_csi_driver: Check = struct(
    (
        "spec",
        struct(
            ("attachRequired", _unchanged(_is_set)),
            ("podInfoOnMount", _is_set),
            ("storageCapacity", _is_set),
            ("fsGroupPolicy", optional(one_of("File", "None", "ReadWriteOnceWithFSType"))),
            ("nodeAllocatableUpdatePeriodSeconds", optional(minimum(10))),
            ("tokenRequests", optional(all_of(each(_TOKEN_REQUEST), _check_token_audiences))),
            (
                "volumeLifecycleModes",
                _unchanged(optional(each(one_of("Ephemeral", "Persistent")))),
            ),
        ),
    )
)


def _check_node_id(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    if len(new) <= _MAX_NODE_ID:
        return ()
    return [invalid("", new, f"must be {_MAX_NODE_ID} characters or less")]


_NODE_DRIVER = struct(
    ("name", check_csi_driver_name),
    ("nodeID", _check_node_id),
    ("topologyKeys", optional(all_of(each(mandatory(LABEL_KEY)), _check_unique_strings))),
    ("allocatable", if_present(struct(("count", optional(minimum(0)))))),
)


def _check_drivers_unchanged(new: Any, old: Any) -> Causes:
    """Refuse changes of a driver other than of its volume limit; drivers come and go."""
    before = {} if old is CREATED else {one.get("name"): one for one in old or ()}
    return [
        invalid("", driver, IMMUTABLE)
        for driver in new
        if driver.get("name") in before
        and {**driver, "allocatable": 0} != {**before[driver["name"]], "allocatable": 0}
    ]


check_csi_node: Check = struct(
    (
        "spec",
        struct(
            (
                "drivers",
                optional(
                    all_of(each(_NODE_DRIVER), unique_field("name"), _check_drivers_unchanged)
                ),
            )
        ),
    )
)


def _check_capacity(new: Any, old: Any) -> Causes:
    detail = "must be greater than or equal to 0"
    return () if exact_value(new) >= 0 else [invalid("", new, detail)]


check_csi_storage_capacity: Check = struct(
    ("storageClassName", _unchanged(_SUBDOMAIN)),
    ("nodeTopology", _unchanged(if_present(check_selector))),
    ("capacity", if_present(_check_capacity)),
    ("maximumVolumeSize", if_present(_check_capacity)),
)

# ----------------------------------------------------------------------------- VolumeAttachment


def _check_attachment_source(new: Any, old: Any) -> Causes:
    source = new or {}
    detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    found = [name for name in ("inlineVolumeSpec", "persistentVolumeName") if name in source]
    if not found:
        return [required("", detail)]
    if len(found) > 1:
        return [forbidden("", detail)]
    if source.get("persistentVolumeName") == "":
        return [required("persistentVolumeName", "must specify non empty persistentVolumeName")]
    return struct(("inlineVolumeSpec", if_present(INLINE_VOLUME_SPEC)))(source, CREATED)


_ATTACHMENT_SPEC = struct(
    ("attacher", check_csi_driver_name),
    ("source", _check_attachment_source),
    ("nodeName", _SUBDOMAIN),
)

check_volume_attachment: Check = struct(("spec", immutable(_ATTACHMENT_SPEC)))
check_volume_attachment_status: Check = struct(
    (
        "status",
        struct(("attachmentMetadata", optional(_parameters(are_required=False)))),
    )
)
