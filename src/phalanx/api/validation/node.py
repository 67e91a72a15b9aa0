"""Validation of Nodes: taints, capacity, addresses, immutable fields."""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.field_errors import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    unsupported,
)
from phalanx.api.formats import validate_label_value
from phalanx.api.validation.checks import (
    CREATED,
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

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_taint_effect(new: Any, old: Any) -> Causes:
    """Require a supported taint effect."""
    if not new:
        return [required("")]
    return () if new in TAINT_EFFECTS else [unsupported("", new, TAINT_EFFECTS)]


_TAINT = struct(
    ("key", LABEL_KEY),
    ("value", optional(string_format(validate_label_value))),
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
    addresses = new.get("status", {}).get("addresses", ())
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


check_node: Check = all_of(
    _check_taints,
    _check_resources,
    _check_addresses,
    _set_once("podCIDRs", "podCIDR"),
    _set_once("providerID", "providerID"),
)
