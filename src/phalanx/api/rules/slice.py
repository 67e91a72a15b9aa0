"""Rules of ResourceSlices, in which drivers say which devices there are, and where."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid, required, too_long
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults, label_value_faults
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    at_least,
    at_most,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
    text,
    unique_field,
)
from phalanx.api.rules.claim import check_driver, check_qualified, identifier_faults
from phalanx.api.rules.meta import LABEL_KEY

MAX_DEVICES, MAX_PROPERTIES, MAX_TAINTS, MAX_COUNTER_SETS = 128, 32, 16, 8
_MAX_POOL, _MAX_VALUE = 253, 64
_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_VALUES = ("bool", "bools", "int", "ints", "string", "strings", "version", "versions")
_TEXTS = ("string", "version")
_LABEL = text(dns_label_faults)
_SUBDOMAIN = text(dns_subdomain_faults)


def _one_place(new: Any, old: Any) -> Causes:
    """Devices are on one node, on some, on all, or each says where it is."""
    named = [place for place in _PLACES if new.get(place)]
    detail = f"exactly one of {', '.join(f'`{place}`' for place in _PLACES)} is required"
    if not named:
        return [required("", detail)]
    if len(named) > 1:
        return [invalid("", f"{{{', '.join(named)}}}", detail)]
    return ()


def _pool_name(new: Any, old: Any) -> Causes:
    found = [too_long("", _MAX_POOL)] if len(new) > _MAX_POOL else []
    return [
        *found,
        *(invalid("", part, f) for part in new.split("/") for f in dns_subdomain_faults(part)),
    ]


def _more_than_zero(new: Any, old: Any) -> Causes:
    return () if (new or 0) > 0 else [invalid("", new or 0, "must be greater than zero")]


_POOL = struct(
    ("name", needed(_pool_name)),
    ("resourceSliceCount", _more_than_zero),
    ("generation", given(at_least(0))),
)


def _names(new: Any, old: Any) -> Causes:
    """Names of attributes and capacities; those without a domain belong to the driver."""
    found: list[Cause] = []
    for name in new:
        faults = check_qualified(name, old) if "/" in name else ()
        own = identifier_faults(name) if "/" not in name else ()
        found += [*faults, *(invalid("", name, fault) for fault in own)]
    return found


def _one_value(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for name, attribute in new.items():
        said = [kind for kind in _VALUES if kind in attribute]
        if len(said) != 1:
            detail = "exactly one value must be specified"
            found.append(invalid(f"[{name}]", attribute, detail) if said else required(f"[{name}]"))
        long = (kind for kind in _TEXTS if len(attribute.get(kind, "")) > _MAX_VALUE)
        found += [too_long(f"[{name}].{kind}", _MAX_VALUE) for kind in long]
    return found


_TAINT = struct(
    ("key", needed(LABEL_KEY)),
    ("value", given(text(label_value_faults))),
    ("effect", needed(one_of("NoExecute", "NoSchedule", "None"))),
)


def _few_properties(new: Any, old: Any) -> Causes:
    count = len(new.get("attributes", ())) + len(new.get("capacity", ()))
    if count <= MAX_PROPERTIES:
        return ()
    what = "the total number of attributes and capacities"
    return [invalid("", count, f"{what} must not exceed {MAX_PROPERTIES}")]


_DEVICE = every(
    struct(
        ("name", needed(_LABEL)),
        ("attributes", given(every(_names, _one_value))),
        ("capacity", given(_names)),
        ("taints", given(at_most(MAX_TAINTS, each(_TAINT)))),
        ("nodeName", given(_SUBDOMAIN)),
    ),
    _few_properties,
)


def _stays(new: Any, old: Any) -> Causes:
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


def _pool_stays(new: Any, old: Any) -> Causes:
    if old is CREATED or (new or {}).get("name") == (old or {}).get("name"):
        return ()
    return [invalid("name", (new or {}).get("name"), IMMUTABLE)]


_SPEC = every(
    struct(
        ("driver", every(check_driver, _stays)),
        ("pool", every(_POOL, _pool_stays)),
        ("nodeName", every(given(_SUBDOMAIN), _stays)),
        ("devices", given(at_most(MAX_DEVICES, every(each(_DEVICE), unique_field("name"))))),
        (
            "sharedCounters",
            given(
                at_most(
                    MAX_COUNTER_SETS,
                    every(each(struct(("name", needed(_LABEL)))), unique_field("name")),
                )
            ),
        ),
    ),
    _one_place,
)

RESOURCE_SLICE: Check = struct(("spec", present(_SPEC)))
