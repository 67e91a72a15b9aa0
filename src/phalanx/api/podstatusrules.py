"""Rules of the status of Pods."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid
from phalanx.api.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    each,
    every,
    given,
    struct,
    text,
)
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_subdomain_faults, ip_faults, label_key_faults


def _same_quality(new: Any, old: Any) -> Causes:
    before = None if old is CREATED else old.get("qosClass")
    if not before or new.get("qosClass", before) == before:
        return ()
    return [invalid("qosClass", new.get("qosClass"), IMMUTABLE)]


def _ended_for_good(new: Any, old: Any) -> Causes:
    """A container that ended and is not to be restarted stays ended."""
    if old is CREATED or new["spec"].get("restartPolicy") != "Never":
        return ()
    ended = [
        status.get("name")
        for status in old.get("status", {}).get("containerStatuses", ())
        if "terminated" in status.get("state", {})
    ]
    found: list[Cause] = []
    for at, status in enumerate(new.get("status", {}).get("containerStatuses", ())):
        if status.get("name") in ended and "terminated" not in status.get("state", {}):
            place = f"status.containerStatuses[{at}].state"
            found.append(forbidden(place, "may not be transitioned to non-terminated state"))
    return found


def _condition_type(new: Any, old: Any) -> Causes:
    return [invalid("Type", new.get("type"), f) for f in label_key_faults(new.get("type", ""))]


_STATUS = every(
    struct(
        ("nominatedNodeName", given(text(dns_subdomain_faults))),
        ("conditions", given(each(_condition_type))),
        ("podIPs", given(each(struct(("ip", text(ip_faults)))))),
        ("hostIPs", given(each(struct(("ip", text(ip_faults)))))),
    ),
    _same_quality,
)

POD_STATUS: Check = every(struct(("status", _STATUS)), _ended_for_good)
