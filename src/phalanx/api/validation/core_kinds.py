"""Validation of Nodes and Secrets.

Nodes: taints, capacity, addresses, immutable fields. Secrets: keys, size, and the keys that each
known type requires.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from types import NoneType
from typing import Any

import orjson

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    internal,
    invalid,
    prefix_causes,
    required,
    too_long,
    unsupported,
)
from phalanx.api.formats import (
    validate_cidr,
    validate_config_key,
    validate_label_value,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_items,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import LABEL_KEY
from phalanx.api.validation.resources import quantity_faults
from phalanx.api.wire import Object

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_taint_effect(new: Any, old: Any) -> Causes:
    """Require a supported taint effect."""
    if not new:
        return [required("")]
    return () if new in TAINT_EFFECTS else [unsupported("", new, TAINT_EFFECTS)]


def _join_label_value_faults(text: str) -> list[str]:
    """Return all faults of the value of a taint as one, as Kubernetes does."""
    return [";".join(faults)] if (faults := validate_label_value(text)) else []


_TAINT = struct(
    ("key", LABEL_KEY),
    ("value", optional(string_format(_join_label_value_faults))),
    ("effect", check_taint_effect),
)


def _check_taints(new: Any, old: Any) -> Causes:
    """Check taints; Kubernetes reports their causes below `metadata`."""
    taints = new.get("spec", {}).get("taints", ())
    twice = [
        duplicate(f"[{at}]", taints[at]) for at in find_duplicate_items(taints, "key", "effect")
    ]
    return prefix_causes("metadata.taints", [*each(_TAINT)(taints, CREATED), *twice])


def _check_resources(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for field in ("capacity", "allocatable"):
        for name, quantity in new.get("status", {}).get(field, {}).items():
            place = f"status.{field}.{name}"
            found += [invalid(place, quantity, f) for f in quantity_faults(name, quantity)]
    return found


def _check_addresses(new: Any, old: Any) -> Causes:
    """Refuse an address that occurs twice; Kubernetes does so on updates only."""
    addresses = () if old is CREATED else new.get("status", {}).get("addresses", ())
    again = find_duplicate_items(addresses, "type", "address")
    return [duplicate(f"status.addresses[{at}]", addresses[at]) for at in again]


def _set_once(field: str, noun: str) -> Check:
    """Allow setting a spec field later, but not changing it."""

    def check(new: Any, old: Any) -> Causes:
        before = None if old is CREATED else old.get("spec", {}).get(field)
        if not before or new.get("spec", {}).get(field) == before:
            return ()
        detail = f'node updates may not change {noun} except from "" to valid'
        return [forbidden(f"spec.{field}", detail)]

    return check


def _check_provider_immutable(new: Any, old: Any) -> Causes:
    before = None if old is CREATED else old.get("spec", {}).get("providerID")
    if not before or new.get("spec", {}).get("providerID") == before:
        return ()
    return [invalid("spec.providerID", None, "field cannot be modified once set")]


def _check_pod_cidrs(new: Any, old: Any) -> Causes:
    """Require valid ranges of pod addresses, at most one for each IP family."""
    ranges = new.get("spec", {}).get("podCIDRs", ())
    found = [
        invalid(f"spec.podCIDRs[{at}]", one, fault)
        for at, one in enumerate(ranges)
        for fault in validate_cidr(one)
    ]
    if len(ranges) == 1 or (not found and len(ranges) == len({":" in one for one in ranges})):
        return found
    if found:
        found.append(internal("spec.podCIDRs", "failed to check with dual stack"))
    detail = "may specify no more than one CIDR for each IP family"
    return [*found, invalid("spec.podCIDRs", ranges, detail)]


check_node: Check = all_of(
    _check_taints,
    _check_resources,
    _check_addresses,
    _set_once("podCIDRs", "podCIDR"),
    _check_provider_immutable,
    _check_pod_cidrs,
)


#: Maximum size of a Secret's data, in bytes.
MAX_SECRET_SIZE = 1024 * 1024
SERVICE_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
_IMMUTABLE_MESSAGE = "field is immutable when `immutable` is set"


def _check_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    found: list[Cause] = []
    if new.get("type") != old.get("type"):
        found.append(invalid("type", new.get("type"), IMMUTABLE))
    if old.get("immutable"):
        changed = (field for field in ("immutable", "data") if new.get(field) != old.get(field))
        found += [forbidden(field, _IMMUTABLE_MESSAGE) for field in changed]
    return found


def _check_keys(new: Any, old: Any) -> Causes:
    return [
        invalid(f"data[{key}]", key, fault)
        for key in new.get("data", {})
        for fault in validate_config_key(key)
    ]


def _check_size(new: Any, old: Any) -> Causes:
    values = new.get("data", {}).values()
    size = sum(len(value) * 3 // 4 - value.count("=", -2) for value in values)
    return [too_long("data", MAX_SECRET_SIZE)] if size > MAX_SECRET_SIZE else ()


def _mandatory_keys(*keys: str) -> Check:
    """Require all these keys."""

    def check(new: Any, old: Any) -> Causes:
        return [required(f"data[{key}]") for key in keys if key not in new.get("data", {})]

    return check


def _any_mandatory_key(*keys: str) -> Check:
    """Require at least one of these keys."""

    def check(new: Any, old: Any) -> Causes:
        missing = _mandatory_keys(*keys)(new, old)
        return missing if len(missing) == len(keys) else ()

    return check


def _json_object_key(key: str) -> Check:
    """Require that a key holds a JSON object; the cause does not quote the content."""

    def check(new: Any, old: Any) -> Causes:
        content = new.get("data", {}).get(key)
        if content is None:
            return [required(f"data[{key}]")]
        try:
            # Go decodes null to an empty map.
            is_object = isinstance(orjson.loads(binascii.a2b_base64(content)), dict | NoneType)
        except orjson.JSONDecodeError:
            is_object = False
        detail = "must be a JSON object"
        return () if is_object else [invalid(f"data[{key}]", "<secret contents redacted>", detail)]

    return check


def _check_private_key(new: Any, old: Any) -> Causes:
    key = "ssh-privatekey"
    return () if new.get("data", {}).get(key) else [required(f"data[{key}]")]


def _check_service_account(new: Any, old: Any) -> Causes:
    annotations: Object = new["metadata"].get("annotations") or {}
    place = f"metadata.annotations[{SERVICE_ACCOUNT_ANNOTATION}]"
    return () if annotations.get(SERVICE_ACCOUNT_ANNOTATION) else [required(place)]


_TYPE_CHECKS: Mapping[str, Check] = {
    "kubernetes.io/service-account-token": _check_service_account,
    "kubernetes.io/dockercfg": _json_object_key(".dockercfg"),
    "kubernetes.io/dockerconfigjson": _json_object_key(".dockerconfigjson"),
    "kubernetes.io/basic-auth": _any_mandatory_key("username", "password"),
    "kubernetes.io/ssh-auth": _check_private_key,
    "kubernetes.io/tls": _mandatory_keys("tls.crt", "tls.key"),
}


def _check_content(new: Any, old: Any) -> Causes:
    check = _TYPE_CHECKS.get(new.get("type", ""))
    return check(new, old) if check else ()


check_secret: Check = all_of(_check_immutable, _check_keys, _check_size, _check_content)
