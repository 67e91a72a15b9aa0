"""Rules of Nodes: taints, capacity, addresses, and what may not change once it is said."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    required,
    under,
    unsupported,
)
from phalanx.api.errors import Cause
from phalanx.api.fields import label_value_faults
from phalanx.api.rules.checks import CREATED, Check, each, every, given, repeated, struct, text
from phalanx.api.rules.meta import LABEL_KEY
from phalanx.api.rules.resource import quantity_faults

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_effect(new: Any, old: Any) -> Causes:
    """What a taint does to pods that do not tolerate it."""
    if not new:
        return [required("")]
    return () if new in EFFECTS else [unsupported("", new, EFFECTS)]


_TAINT = struct(
    ("key", LABEL_KEY),
    ("value", given(text(label_value_faults))),
    ("effect", check_effect),
)


def _taints(new: Any, old: Any) -> Causes:
    """Told below `metadata`, where clients of the API expect it."""
    taints = new.get("spec", {}).get("taints", ())
    twice = [duplicate(f"[{at}]", taints[at]) for at in repeated(taints, "key", "effect")]
    return under("metadata.taints", [*each(_TAINT)(taints, CREATED), *twice])


def _resources(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for field in ("capacity", "allocatable"):
        for name, quantity in new.get("status", {}).get(field, {}).items():
            place = f"status.{field}.{name}"
            found += [invalid(place, quantity, f) for f in quantity_faults(name, quantity)]
    return found


def _addresses(new: Any, old: Any) -> Causes:
    addresses = new.get("status", {}).get("addresses", ())
    again = repeated(addresses, "type", "address")
    return [duplicate(f"status.addresses[{at}]", addresses[at]) for at in again]


def _set_once(field: str, noun: str) -> Check:
    """A field of the spec that may be said later but not changed."""

    def check(new: Any, old: Any) -> Causes:
        before = None if old is CREATED else old.get("spec", {}).get(field)
        if not before or new.get("spec", {}).get(field) == before:
            return ()
        detail = f'node updates may not change {noun} except from "" to valid'
        return [forbidden(f"spec.{field}", detail)]

    return check


NODE: Check = every(
    _taints,
    _resources,
    _addresses,
    _set_once("podCIDRs", "podCIDR"),
    _set_once("providerID", "providerID"),
)
