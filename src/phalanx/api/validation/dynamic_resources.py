"""Validation of ResourceClaims, their templates, DeviceClasses and ResourceSlices.

CEL expressions that select devices must compile.
"""

from __future__ import annotations

import re
from typing import Any

from phalanx.api.device_selectors import compile_device_selector
from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    too_long,
    unsupported,
)
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_label_key,
    validate_label_value,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_items,
    find_duplicate_values,
    if_present,
    immutable,
    mandatory,
    max_items,
    minimum,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)
from phalanx.api.validation.metadata import LABEL_KEY, check_conditions
from phalanx.api.validation.pod_scheduling import NODE_SELECTOR
from phalanx.api.validation.resources import is_extended_resource
from phalanx.api.validation.volumes import check_csi_driver_name
from phalanx.api.wire import Object

MAX_REQUESTS = MAX_SELECTORS = MAX_CONSTRAINTS = MAX_CONFIGS = 32
MAX_SUB_REQUESTS, MAX_TOLERATIONS, MAX_CONSUMERS = 8, 16, 256
_MAX_EXPRESSION, _MAX_IDENTIFIER = 10 * 1024, 32
_SUBDOMAIN = string_format(validate_dns_subdomain)
_LABEL = string_format(validate_dns_label)
_TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")
_ALLOCATION_MODES = ("All", "ExactCount")

# ---------------------------------------------------------------------------------------- requests


def _check_expression(new: Any, old: Any) -> Causes:
    if len(new or "") > _MAX_EXPRESSION:
        return [too_long("", _MAX_EXPRESSION)]
    compiled = compile_device_selector(new or "")
    return [invalid("", new or "", compiled)] if isinstance(compiled, str) else ()


DEVICE_SELECTORS: Check = max_items(
    MAX_SELECTORS, each(struct(("cel", mandatory(struct(("expression", _check_expression))))))
)


def _check_toleration(new: Any, old: Any) -> Causes:
    operator, value = new.get("operator", ""), new.get("value", "")
    if operator == "Exists":
        detail = "must be empty for operator `Exists`"
        return [invalid("value", value, detail)] if value else ()
    if operator != "Equal":
        return [unsupported("operator", operator, ("Equal", "Exists"))]
    return [invalid("value", value, fault) for fault in validate_label_value(value)]


DEVICE_TOLERATIONS: Check = max_items(
    MAX_TOLERATIONS,
    each(
        all_of(
            struct(("key", optional(LABEL_KEY)), ("effect", optional(one_of(*_TAINT_EFFECTS)))),
            _check_toleration,
        )
    ),
)


def _check_allocation_mode(new: Any, old: Any) -> Causes:
    """Require no count with the mode All, and a positive count otherwise."""
    mode, count = new.get("allocationMode"), new.get("count", 0)
    if mode not in _ALLOCATION_MODES:
        return [unsupported("allocationMode", mode, _ALLOCATION_MODES)]
    if mode == "All" and count:
        detail = "must not be specified when allocationMode is 'All'"
        return [invalid("count", count, detail)]
    if mode == "ExactCount" and count <= 0:
        return [invalid("count", count, "must be greater than zero")]
    return ()


_DEVICE_REQUEST = all_of(
    struct(
        ("deviceClassName", mandatory(_SUBDOMAIN)),
        ("selectors", optional(DEVICE_SELECTORS)),
        ("tolerations", optional(DEVICE_TOLERATIONS)),
    ),
    _check_allocation_mode,
)
_SUB_REQUEST = all_of(struct(("name", _LABEL)), _DEVICE_REQUEST)


def _check_request_type(new: Any, old: Any) -> Causes:
    types = [name for name in ("exactly", "firstAvailable") if new.get(name) is not None]
    detail = "exactly one of `exactly` or `firstAvailable` is required"
    if not types:
        return [required("", detail)]
    return [invalid("", None, f"{detail}, but multiple fields are set")] if len(types) > 1 else ()


_REQUEST = all_of(
    struct(("name", _LABEL)),
    _check_request_type,
    struct(
        ("exactly", if_present(_DEVICE_REQUEST)),
        (
            "firstAvailable",
            optional(max_items(MAX_SUB_REQUESTS, all_of(each(_SUB_REQUEST), unique_field("name")))),
        ),
    ),
)

# ------------------------------------------------------------------- constraints and configuration


def check_qualified_name(new: Any, old: Any) -> Causes:
    """Require a qualified attribute name: `gpu.example.com/memory`."""
    found = check_attribute_name(new or "", old)
    if "/" not in (new or ""):
        detail = "a fully qualified name must be a domain and a name separated by a slash"
        found.append(invalid("", new, detail))
    return found


def check_attribute_name(new: str, old: Any) -> list[Cause]:
    """Check `memory` or `gpu.example.com/memory`; Kubernetes accepts any name with more slashes."""
    domain, slash, name = new.rpartition("/")
    if "/" in domain:
        return []
    found = []
    if slash and not domain:
        found.append(invalid("", "", "the domain must not be empty"))
    if domain:
        found += check_csi_driver_name(domain, old)
    if slash and not name:
        return [*found, invalid("", "", "the name must not be empty")]
    return [*found, *check_identifier(name)]


def check_identifier(name: str) -> list[Cause]:
    """Check the unqualified part of an attribute name."""
    found = [] if len(name) <= _MAX_IDENTIFIER else [too_long("", _MAX_IDENTIFIER)]
    if name.isidentifier() and name.isascii():
        return found
    detail = "a valid C identifier must start with alphabetic character or '_', followed by a "
    return [*found, invalid("", name, f"{detail}string of alphanumeric characters or '_'")]


def _check_one_attribute(new: Any, old: Any) -> Causes:
    named = [name for name in ("matchAttribute", "distinctAttribute") if name in new]
    if len(named) == 1:
        return ()
    detail = "exactly one of `matchAttribute` or `distinctAttribute` is required"
    return [invalid("", None, detail) if named else required("", detail)]


_CONSTRAINT = all_of(
    _check_one_attribute,
    struct(
        ("matchAttribute", if_present(check_qualified_name)),
        ("distinctAttribute", if_present(check_qualified_name)),
    ),
)


def _check_parameters(new: Any, old: Any) -> Causes:
    if new is None:
        return [required("")]
    return () if isinstance(new, dict) else [invalid("", None, "must be a valid JSON object")]


_CONFIGURATION = struct(
    (
        "opaque",
        mandatory(struct(("driver", check_csi_driver_name), ("parameters", _check_parameters))),
    ),
)


def _check_request_references(new: Any, old: Any) -> Causes:
    """Require that constraints and configuration name existing requests or their alternatives."""
    known = set(_request_names(new))
    found: list[Cause] = []
    for part in ("constraints", "config"):
        for at, item in enumerate(new.get(part, ())):
            names = item.get("requests", ())
            place = f"{part}[{at}].requests"
            for number, name in enumerate(names):
                faults = [fault for label in name.split("/") for fault in validate_dns_label(label)]
                if name not in known or not name:
                    faults.append("must be the name of a request")
                found += [invalid(f"{place}[{number}]", name, fault) for fault in faults]
            found += [duplicate(f"{place}[{n}]", names[n]) for n in find_duplicate_values(names)]
    return found


def _request_names(devices: Object) -> list[str]:
    requests = devices.get("requests", ())
    return [
        *(request.get("name", "") for request in requests),
        *(
            f"{request.get('name', '')}/{alternative.get('name', '')}"
            for request in requests
            for alternative in request.get("firstAvailable", ())
        ),
    ]


_CLAIM_SPEC = struct(
    (
        "devices",
        if_present(
            all_of(
                struct(
                    (
                        "requests",
                        optional(
                            max_items(MAX_REQUESTS, all_of(each(_REQUEST), unique_field("name")))
                        ),
                    ),
                    ("constraints", optional(max_items(MAX_CONSTRAINTS, each(_CONSTRAINT)))),
                    ("config", optional(max_items(MAX_CONFIGS, each(_CONFIGURATION)))),
                ),
                _check_request_references,
            )
        ),
    ),
)


def _fixed(check: Check) -> Check:
    """Check a value that never changes: a change is refused, and still checked."""

    def check_fixed(new: Any, old: Any) -> Causes:
        if old is CREATED or new == old:
            return check(new, CREATED)
        return [invalid("", new, IMMUTABLE), *check(new, CREATED)]

    return check_fixed


check_resource_claim: Check = struct(("spec", immutable(if_present(_CLAIM_SPEC))))
check_resource_claim_template: Check = struct(
    ("spec", _fixed(if_present(struct(("spec", if_present(_CLAIM_SPEC)))))),
)

# -------------------------------------------------------------------------------------- allocation

_CONSUMER = struct(("resource", non_empty), ("name", non_empty), ("uid", non_empty))
_ALLOCATED_DEVICE = struct(
    ("driver", check_csi_driver_name), ("pool", non_empty), ("device", mandatory(_LABEL))
)


def _check_unique_consumers(new: Any, old: Any) -> Causes:
    return [duplicate(f"[{at}].uid", new[at].get("uid")) for at in find_duplicate_items(new, "uid")]


def _check_allocation(new: Any, old: Any) -> Causes:
    """Check an allocation, which may be removed but not changed, and `reservedFor`.

    Only an allocated claim can be reserved, and a claim that is being deleted gets no new users.
    """
    status: Object = new.get("status", {})
    before: Object = {} if old is CREATED else old.get("status", {})
    allocation, old_allocation = status.get("allocation"), before.get("allocation")
    found: list[Cause] = []
    if allocation is not None and old_allocation is not None and allocation != old_allocation:
        found.append(invalid("allocation", None, "field is immutable"))
    if status.get("reservedFor") and allocation is None:
        found.append(forbidden("reservedFor", "may not be specified when `allocated` is not set"))
    users, earlier = status.get("reservedFor", ()), before.get("reservedFor", ())
    if new["metadata"].get("deletionTimestamp") and len(users) > len(earlier):
        detail = "new claim users may not be added while the claim is meant to be deallocated"
        found.append(forbidden("reservedFor", detail))
    return prefix_causes("status", found)


_CLAIM_STATUS = struct(
    (
        "allocation",
        if_present(
            struct(("devices", if_present(struct(("results", optional(each(_ALLOCATED_DEVICE)))))))
        ),
    ),
    (
        "reservedFor",
        optional(max_items(MAX_CONSUMERS, all_of(each(_CONSUMER), _check_unique_consumers))),
    ),
    (
        "devices",
        optional(each(all_of(_ALLOCATED_DEVICE, struct(("conditions", check_conditions))))),
    ),
)

check_resource_claim_status: Check = all_of(
    struct(("status", if_present(_CLAIM_STATUS))), _check_allocation
)

# ---------------------------------------------------------------------------------- device classes


def _check_extended_resource_name(new: Any, old: Any) -> Causes:
    domain, _, name = new.rpartition("/")
    faults = [] if domain else ["a name must be a domain-prefixed path, such as example.com/x"]
    faults += validate_dns_subdomain(domain) if domain else ()
    faults += list(validate_label_key(name))[-1:]
    if not faults and not is_extended_resource(new):
        faults.append("must be a valid extended resource name")
    return [invalid("", new, fault) for fault in faults]


check_device_class: Check = struct(
    (
        "spec",
        if_present(
            struct(
                ("selectors", optional(DEVICE_SELECTORS)),
                ("config", optional(max_items(MAX_CONFIGS, each(_CONFIGURATION)))),
                ("extendedResourceName", if_present(_check_extended_resource_name)),
            )
        ),
    ),
)


MAX_DEVICES, MAX_PROPERTIES, MAX_TAINTS, MAX_COUNTER_SETS = 128, 32, 16, 8
_MAX_POOL_NAME, _MAX_ATTRIBUTE_VALUE = 253, 64
_NODE_SELECTIONS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ATTRIBUTE_TYPES = ("bool", "bools", "int", "ints", "string", "strings", "version", "versions")
_STRING_TYPES = ("string", "version")
_NUMBER = r"(?:0|[1-9]\d*)"
_SEMANTIC_VERSION = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-(?:{_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:{_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_DEVICE_NAME = string_format(validate_dns_label)
_NODE_NAME = string_format(validate_dns_subdomain)


def _check_one_node_selection(new: Any, old: Any) -> Causes:
    """Require exactly one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection."""
    named = [place for place in _NODE_SELECTIONS if new.get(place) not in (None, "", False)]
    detail = f"exactly one of {', '.join(f'`{place}`' for place in _NODE_SELECTIONS)} is required"
    if not named:
        return [required("", detail)]
    if len(named) > 1:
        return [invalid("", f"{{{', '.join(named)}}}", detail)]
    return ()


def _check_pool_name(new: Any, old: Any) -> Causes:
    found = [too_long("", _MAX_POOL_NAME)] if len(new) > _MAX_POOL_NAME else []
    return [
        *found,
        *(invalid("", part, f) for part in new.split("/") for f in validate_dns_subdomain(part)),
    ]


def _check_positive(new: Any, old: Any) -> Causes:
    return () if (new or 0) > 0 else [invalid("", new or 0, "must be greater than zero")]


_POOL = struct(
    ("name", mandatory(_check_pool_name)),
    ("resourceSliceCount", _check_positive),
    ("generation", optional(minimum(0))),
)


def _check_attribute_names(new: Any, old: Any) -> Causes:
    """Check the names of attributes; unqualified ones belong to the driver."""
    return [cause for name in new for cause in check_attribute_name(name, old)]


def _check_one_value(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for name, attribute in new.items():
        types = [kind for kind in _ATTRIBUTE_TYPES if kind in attribute]
        if len(types) != 1:
            detail = f"must specify one of: {', '.join(f'`{kind}`' for kind in _ATTRIBUTE_TYPES)}"
            found.append(invalid(f"[{name}]", attribute, detail))
        if "version" in attribute and not _SEMANTIC_VERSION.fullmatch(attribute["version"]):
            detail = "must be a string compatible with semver.org spec 2.0.0"
            found.append(invalid(f"[{name}].version", attribute["version"], detail))
        long = (
            kind for kind in _STRING_TYPES if len(attribute.get(kind, "")) > _MAX_ATTRIBUTE_VALUE
        )
        found += [too_long(f"[{name}].{kind}", _MAX_ATTRIBUTE_VALUE) for kind in long]
    return found


_DEVICE_TAINT = struct(
    ("key", LABEL_KEY),
    ("value", optional(string_format(validate_label_value))),
    ("effect", mandatory(one_of("NoExecute", "NoSchedule", "None"))),
)


def _check_property_count(new: Any, old: Any) -> Causes:
    count = len(new.get("attributes", ())) + len(new.get("capacity", ()))
    if count <= MAX_PROPERTIES:
        return ()
    what = "the total number of attributes and capacities"
    return [invalid("", count, f"{what} must not exceed {MAX_PROPERTIES}")]


_DEVICE = all_of(
    struct(
        ("name", _DEVICE_NAME),
        ("attributes", optional(all_of(_check_attribute_names, _check_one_value))),
        ("taints", optional(max_items(MAX_TAINTS, each(_DEVICE_TAINT)))),
        ("nodeName", optional(_NODE_NAME)),
    ),
    _check_property_count,
)


def _check_immutable(new: Any, old: Any) -> Causes:
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


def _check_pool_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED or (new or {}).get("name") == (old or {}).get("name"):
        return ()
    return [invalid("name", (new or {}).get("name"), IMMUTABLE)]


def _check_one_term(new: Any, old: Any) -> Causes:
    terms = new.get("nodeSelectorTerms") or ()
    if len(terms) == 1:
        return ()
    return [invalid("nodeSelectorTerms", terms, "must have exactly one node selector term")]


_SLICE_SPEC = all_of(
    struct(
        ("driver", all_of(check_csi_driver_name, _check_immutable)),
        ("pool", all_of(_POOL, _check_pool_immutable)),
        ("nodeName", all_of(if_present(_NODE_NAME), _check_immutable)),
        ("nodeSelector", if_present(all_of(NODE_SELECTOR, _check_one_term))),
        ("devices", optional(max_items(MAX_DEVICES, all_of(each(_DEVICE), unique_field("name"))))),
        (
            "sharedCounters",
            optional(
                max_items(
                    MAX_COUNTER_SETS,
                    all_of(each(struct(("name", mandatory(_DEVICE_NAME)))), unique_field("name")),
                )
            ),
        ),
    ),
    _check_one_node_selection,
)

check_device_taint_rule: Check = struct(
    (
        "spec",
        struct(
            (
                "deviceSelector",
                if_present(
                    struct(
                        ("driver", optional(check_csi_driver_name)),
                        ("pool", optional(_check_pool_name)),
                        ("device", optional(_DEVICE_NAME)),
                    )
                ),
            ),
            ("taint", _DEVICE_TAINT),
        ),
    )
)
check_device_taint_rule_status: Check = struct(
    ("status", if_present(struct(("conditions", check_conditions))))
)

check_resource_slice: Check = struct(("spec", if_present(_SLICE_SPEC)))
