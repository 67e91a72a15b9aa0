"""Rules of what is done to a running container: probes, and hooks of its life."""

from __future__ import annotations

import re
from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, required
from phalanx.api.fields import port_name_faults
from phalanx.api.rules.checks import (
    Check,
    at_least,
    between,
    every,
    given,
    one_of,
    present,
    struct,
    there,
)

PORT_NUMBER: Check = between(1, 65535)
_HEADER = r"[-A-Za-z0-9]+"
_HEADER_FAULT = (
    "a valid HTTP header must consist of alphanumeric characters or '-' "
    f"(e.g. 'X-Header-Name', regex used for validation is '{_HEADER}')"
)
_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")


def _port(new: Any, old: Any) -> Causes:
    if isinstance(new, str):
        return [invalid("", new, fault) for fault in port_name_faults(new)]
    return PORT_NUMBER(new or 0, old)


def _headers(new: Any, old: Any) -> Causes:
    names = [header.get("name", "") for header in new]
    return [invalid("", name, _HEADER_FAULT) for name in names if not re.fullmatch(_HEADER, name)]


_HANDLERS: dict[str, Check] = {
    "exec": struct(("command", there)),
    "httpGet": struct(
        ("path", there),
        ("port", _port),
        ("scheme", one_of("HTTP", "HTTPS")),
        ("httpHeaders", given(_headers)),
    ),
    "tcpSocket": struct(("port", _port)),
    "grpc": struct(("port", _port)),
    "sleep": struct(),
}
_WAYS = {name: struct((name, check)) for name, check in _HANDLERS.items()}


def _handler(*known: str) -> Check:
    """Exactly one way to act; those after the first are refused unread."""

    def check(new: Any, old: Any) -> Causes:
        named = [name for name in known if name in new]
        if not named:
            return [required("", "must specify a handler type")]
        many = [forbidden(name, "may not specify more than 1 handler type") for name in named[1:]]
        return [*_WAYS[named[0]](new, old), *many]

    return check


def _exactly_one(new: Any, old: Any) -> Causes:
    return () if new == 1 else [invalid("", new, "must be 1")]


def _positive(new: Any, old: Any) -> Causes:
    return () if new > 0 else [invalid("", new, "must be greater than 0")]


def _no_grace(new: Any, old: Any) -> Causes:
    return [invalid("", new, "must not be set for readinessProbes")]


_NATURAL = given(at_least(0))
_PROBE = every(
    _handler(*_PROBE_HANDLERS),
    struct(
        ("initialDelaySeconds", _NATURAL),
        ("timeoutSeconds", _NATURAL),
        ("periodSeconds", _NATURAL),
        ("successThreshold", _NATURAL),
        ("failureThreshold", _NATURAL),
        ("terminationGracePeriodSeconds", given(_positive)),
    ),
)
_SUCCEEDS_ONCE = struct(("successThreshold", given(_exactly_one)))

#: The three probes of a container.
PROBES: Check = struct(
    ("livenessProbe", present(every(_PROBE, _SUCCEEDS_ONCE))),
    (
        "readinessProbe",
        present(every(_PROBE, struct(("terminationGracePeriodSeconds", given(_no_grace))))),
    ),
    ("startupProbe", present(every(_PROBE, _SUCCEEDS_ONCE))),
)

_HOOK = present(_handler(*_HOOK_HANDLERS))

#: What is done after a container starts and before it stops.
LIFECYCLE: Check = struct(("postStart", _HOOK), ("preStop", _HOOK))
