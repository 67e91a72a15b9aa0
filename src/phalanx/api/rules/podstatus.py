"""Rules of the status of Pods."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_subdomain_faults, ip_faults, label_key_faults
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    changed,
    each,
    every,
    given,
    present,
    repeated,
    struct,
    text,
)
from phalanx.api.wire import Object

_NODE_NAME = text(dns_subdomain_faults)


def _same_quality(new: Any, old: Any) -> Causes:
    before = None if old is CREATED else old.get("qosClass")
    if not before or new.get("qosClass", before) == before:
        return ()
    return [invalid("qosClass", new.get("qosClass"), IMMUTABLE)]


def _address(new: Any, old: Any) -> Causes:
    return [invalid("", new.get("ip", ""), fault) for fault in ip_faults(new.get("ip", ""))]


def _one_per_family(new: Any, old: Any) -> Causes:
    families = [":" in one.get("ip", "") for one in new]
    found = [duplicate(f"[{at}]", new[at]) for at in repeated(new, "ip")]
    if len(families) > len(set(families)):
        detail = "may specify no more than one IP for each IP family"
        found.append(invalid("", new, detail))
    return found


_ADDRESSES = given(every(each(_address), _one_per_family))


def _host_address(new: Any, old: Any) -> Causes:
    addresses = new.get("hostIPs", ())
    if not addresses or addresses[0].get("ip") == new.get("hostIP"):
        return ()
    return [invalid("hostIPs[0].ip", addresses[0].get("ip"), "must be equal to `hostIP`")]


def _claims(new: Any, old: Any) -> Causes:
    known = {claim.get("name") for claim in new.get("spec", {}).get("resourceClaims", ())}
    statuses = new.get("status", {}).get("resourceClaimStatuses", ())
    detail = "must match the name of an entry in `spec.resourceClaims`"
    found: list[Cause] = [
        invalid(f"[{at}].name", status.get("name"), detail)
        for at, status in enumerate(statuses)
        if status.get("name") not in known
    ]
    twice = [duplicate(f"[{at}].name", statuses[at]["name"]) for at in repeated(statuses, "name")]
    return under("status.resourceClaimStatuses", [*found, *twice])


def _conditions(new: Any, old: Any) -> Causes:
    """Told below `metadata`, where clients of the API expect it."""
    types = [one.get("type", "") for one in new.get("status", {}).get("conditions", ())]
    return [
        invalid(f"metadata.conditions[{at}].Type", kind, fault)
        for at, kind in enumerate(types)
        for fault in label_key_faults(kind)
    ]


def _ended_for_good(new: Any, old: Any) -> Causes:
    """A container that ended and is not to be restarted stays ended."""
    if old is CREATED:
        return ()
    policy = old["spec"].get("restartPolicy", "")
    sidecars = [
        container.get("name")
        for container in old["spec"].get("initContainers", ())
        if container.get("restartPolicy") == "Always"
    ]
    return [
        *_revived("containerStatuses", new, old, policy, []),
        *_revived("initContainerStatuses", new, old, policy, sidecars),
        *_revived("ephemeralContainerStatuses", new, old, "Never", []),
    ]


def _revived(
    field: str, new: Object, old: Object, policy: str, restarted: list[Any]
) -> list[Cause]:
    after = {one.get("name"): one for one in new.get("status", {}).get(field, ())}
    found: list[Cause] = []
    for at, status in enumerate(old.get("status", {}).get(field, ())):
        name = status.get("name")
        if name in restarted or not _is_final(status, policy) or name not in after:
            continue
        if "terminated" not in after[name].get("state", {}):
            detail = "may not be transitioned to non-terminated state"
            found.append(forbidden(f"status.{field}[{at}].state", detail))
    return found


def _is_final(status: Object, policy: str) -> bool:
    ended = status.get("state", {}).get("terminated")
    if ended is None or policy == "Always":
        return False
    return policy != "OnFailure" or ended.get("exitCode", 0) == 0


_STATUS = every(
    struct(
        ("nominatedNodeName", changed(given(_NODE_NAME))),
        ("podIPs", _ADDRESSES),
        ("hostIPs", _ADDRESSES),
    ),
    _host_address,
    _same_quality,
)

POD_STATUS: Check = every(
    struct(("status", present(_STATUS))), _conditions, _claims, _ended_for_good
)
