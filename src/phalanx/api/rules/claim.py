"""Rules of claims on devices, of their templates, and of the classes that devices come in.

Expressions that select devices are only measured; they are not read.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    under,
    unsupported,
)
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults, label_value_faults
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    at_most,
    each,
    every,
    frozen,
    given,
    needed,
    one_of,
    present,
    repeated,
    struct,
    text,
    there,
    unique_field,
)
from phalanx.api.rules.meta import LABEL_KEY, check_conditions
from phalanx.api.rules.resource import is_extended
from phalanx.api.wire import Object

MAX_REQUESTS = MAX_SELECTORS = MAX_CONSTRAINTS = MAX_CONFIGS = 32
MAX_ALTERNATIVES, MAX_TOLERATIONS, MAX_CONSUMERS = 8, 16, 256
_MAX_EXPRESSION, _MAX_DRIVER, _MAX_IDENTIFIER = 10 * 1024, 63, 32
_SUBDOMAIN = text(dns_subdomain_faults)
_LABEL = text(dns_label_faults)
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_MODES = ("All", "ExactCount")

# ------------------------------------------------------------------------------ what is asked for


def _expression(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    return [too_long("", _MAX_EXPRESSION)] if len(new) > _MAX_EXPRESSION else ()


SELECTORS: Check = at_most(
    MAX_SELECTORS, each(struct(("cel", needed(struct(("expression", _expression))))))
)


def _toleration(new: Any, old: Any) -> Causes:
    operator, value = new.get("operator", ""), new.get("value", "")
    if operator == "Exists":
        detail = "must be empty for operator `Exists`"
        return [invalid("value", value, detail)] if value else ()
    if operator != "Equal":
        return [unsupported("operator", operator, ("Equal", "Exists"))]
    found = [invalid("value", value, fault) for fault in label_value_faults(value)]
    return (
        found if new.get("key") else [required("key", "must be set for operator `Equal`"), *found]
    )


TOLERATIONS: Check = at_most(
    MAX_TOLERATIONS,
    each(
        every(
            struct(("key", given(LABEL_KEY)), ("effect", given(one_of(*_EFFECTS)))),
            _toleration,
        )
    ),
)


def _count(new: Any, old: Any) -> Causes:
    """All devices have no number; otherwise there is at least one."""
    mode, count = new.get("allocationMode"), new.get("count", 0)
    if mode not in _MODES:
        return [unsupported("allocationMode", mode, _MODES)]
    if mode == "All" and count:
        detail = "must not be specified when allocationMode is 'All'"
        return [invalid("count", count, detail)]
    if mode == "ExactCount" and count <= 0:
        return [invalid("count", count, "must be greater than zero")]
    return ()


_DEVICES = every(
    struct(
        ("deviceClassName", needed(_SUBDOMAIN)),
        ("selectors", given(SELECTORS)),
        ("tolerations", given(TOLERATIONS)),
    ),
    _count,
)
_ALTERNATIVE = every(struct(("name", needed(_LABEL))), _DEVICES)


def _one_way(new: Any, old: Any) -> Causes:
    ways = [way for way in ("exactly", "firstAvailable") if new.get(way) is not None]
    detail = "exactly one of `exactly` or `firstAvailable` is required"
    if not ways:
        return [required("", detail)]
    return [invalid("", None, f"{detail}, but multiple fields are set")] if len(ways) > 1 else ()


_REQUEST = every(
    struct(("name", needed(_LABEL))),
    _one_way,
    struct(
        ("exactly", present(_DEVICES)),
        (
            "firstAvailable",
            given(at_most(MAX_ALTERNATIVES, every(each(_ALTERNATIVE), unique_field("name")))),
        ),
    ),
)

# ----------------------------------------------------------------------- constraints and settings


def check_qualified(new: Any, old: Any) -> Causes:
    """The name of an attribute with the domain it belongs to: `gpu.example.com/memory`."""
    domain, _, name = (new or "").partition("/")
    if not domain or not name:
        return [invalid("", new, "must be a fully qualified name: a domain, a slash, a name")]
    faults = [*dns_subdomain_faults(domain), *identifier_faults(name)]
    return [invalid("", new, fault) for fault in faults]


def identifier_faults(name: str) -> list[str]:
    """What is wrong with the own part of an attribute's name."""
    faults = (
        [] if len(name) <= _MAX_IDENTIFIER else [f"must be no more than {_MAX_IDENTIFIER} bytes"]
    )
    if name.isidentifier() and name.isascii():
        return faults
    detail = "a valid C identifier must start with alphabetic character or '_', followed by a "
    return [*faults, f"{detail}string of alphanumeric characters or '_'"]


def _one_attribute(new: Any, old: Any) -> Causes:
    named = [name for name in ("matchAttribute", "distinctAttribute") if name in new]
    if len(named) == 1:
        return ()
    detail = "exactly one of `matchAttribute` or `distinctAttribute` is required"
    return [invalid("", None, detail) if named else required("", detail)]


_CONSTRAINT = every(
    _one_attribute,
    struct(
        ("matchAttribute", present(check_qualified)),
        ("distinctAttribute", present(check_qualified)),
    ),
)


def check_driver(new: Any, old: Any) -> Causes:
    """The name of who runs devices: a short subdomain."""
    if not new:
        return [required("")]
    found = [too_long("", _MAX_DRIVER)] if len(new) > _MAX_DRIVER else []
    return [*found, *_SUBDOMAIN(new, old)]


_CONFIGURATION = struct(
    ("opaque", needed(struct(("driver", check_driver), ("parameters", there)))),
)


def _known_requests(new: Any, old: Any) -> Causes:
    """Constraints and settings name requests that there are, or alternatives within them."""
    known = set(_request_names(new))
    return [
        invalid(f"{part}[{at}].requests[{number}]", name, "must be the name of a request")
        for part in ("constraints", "config")
        for at, item in enumerate(new.get(part, ()))
        for number, name in enumerate(item.get("requests", ()))
        if name not in known
    ]


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
        present(
            every(
                struct(
                    (
                        "requests",
                        given(at_most(MAX_REQUESTS, every(each(_REQUEST), unique_field("name")))),
                    ),
                    ("constraints", given(at_most(MAX_CONSTRAINTS, each(_CONSTRAINT)))),
                    ("config", given(at_most(MAX_CONFIGS, each(_CONFIGURATION)))),
                ),
                _known_requests,
            )
        ),
    ),
)

RESOURCE_CLAIM: Check = struct(("spec", frozen(present(_CLAIM_SPEC))))
RESOURCE_CLAIM_TEMPLATE: Check = struct(
    ("spec", frozen(present(struct(("spec", present(_CLAIM_SPEC)))))),
)

# ----------------------------------------------------------------------------- what was allocated

_CONSUMER = struct(("resource", there), ("name", there), ("uid", there))
_ALLOCATED = struct(("driver", check_driver), ("pool", there), ("device", needed(_LABEL)))


def _consumers(new: Any, old: Any) -> Causes:
    return [duplicate(f"[{at}].uid", new[at].get("uid")) for at in repeated(new, "uid")]


def _allocation(new: Any, old: Any) -> Causes:
    """What was allocated is given back as a whole; only what is allocated can be used."""
    status: Object = new.get("status", {})
    before: Object = {} if old is CREATED else old.get("status", {})
    now, then = status.get("allocation"), before.get("allocation")
    found: list[Cause] = []
    if now is not None and then is not None and now != then:
        found.append(invalid("allocation", None, "field is immutable"))
    if status.get("reservedFor") and now is None:
        found.append(forbidden("reservedFor", "may not be specified when `allocated` is not set"))
    users, earlier = status.get("reservedFor", ()), before.get("reservedFor", ())
    if new["metadata"].get("deletionTimestamp") and len(users) > len(earlier):
        detail = "new claim users may not be added while the claim is meant to be deallocated"
        found.append(forbidden("reservedFor", detail))
    return under("status", found)


_CLAIM_STATUS = struct(
    (
        "allocation",
        present(struct(("devices", present(struct(("results", given(each(_ALLOCATED)))))))),
    ),
    ("reservedFor", given(at_most(MAX_CONSUMERS, every(each(_CONSUMER), _consumers)))),
    ("devices", given(each(every(_ALLOCATED, struct(("conditions", check_conditions)))))),
)

RESOURCE_CLAIM_STATUS: Check = every(struct(("status", present(_CLAIM_STATUS))), _allocation)

# ---------------------------------------------------------------------------------------- classes


def _extended(new: Any, old: Any) -> Causes:
    found = LABEL_KEY(new, old)
    if found or is_extended(new):
        return found
    return [invalid("", new, "must be a valid extended resource name")]


DEVICE_CLASS: Check = struct(
    (
        "spec",
        present(
            struct(
                ("selectors", given(SELECTORS)),
                ("config", given(at_most(MAX_CONFIGS, each(_CONFIGURATION)))),
                ("extendedResourceName", given(_extended)),
            )
        ),
    ),
)
