"""Validation of Services: ports, addresses and the fields of each type."""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, duplicate, forbidden, invalid, required
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_ip,
    validate_label_key,
    validate_port_name,
)
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    find_duplicate_items,
    find_duplicate_values,
    if_present,
    in_range,
    mandatory,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import check_labels
from phalanx.api.wire import Object

HEADLESS = "None"
EXTERNAL_TYPES = ("NodePort", "LoadBalancer")
SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_MAX_AFFINITY_SECONDS = 86_400
_PORT_NUMBER = in_range(1, 65535)
_TRAFFIC_POLICY = one_of("Cluster", "Local")


def _check_target_port(new: Any, old: Any) -> Causes:
    if isinstance(new, str):
        return [invalid("", new, fault) for fault in validate_port_name(new)]
    return _PORT_NUMBER(new, old)


_SERVICE_PORT = struct(
    ("name", optional(string_format(validate_dns_label))),
    ("port", lambda new, old: _PORT_NUMBER(new or 0, old)),
    ("protocol", mandatory(one_of("SCTP", "TCP", "UDP"))),
    ("targetPort", optional(_check_target_port)),
    ("nodePort", optional(in_range(0, 65535))),
    ("appProtocol", optional(string_format(validate_label_key))),
)


def _check_unique_ports(new: Any, old: Any) -> Causes:
    """Require unique names, and unique pairs of port and protocol."""
    found: list[Cause] = []
    if len(new) > 1:
        unnamed = (at for at, port in enumerate(new) if not port.get("name"))
        found += [required(f"[{at}].name") for at in unnamed]
    names = [port.get("name") or at for at, port in enumerate(new)]
    found += [duplicate(f"[{at}].name", names[at]) for at in find_duplicate_values(names)]
    return [
        *found,
        *(duplicate(f"[{at}]", new[at]) for at in find_duplicate_items(new, "port", "protocol")),
    ]


def _check_has_ports(new: Any, old: Any) -> Causes:
    is_bare = new.get("type") == "ExternalName" or new.get("clusterIP") == HEADLESS
    return () if is_bare or new.get("ports") else [required("ports")]


def _check_no_node_ports(new: Any, old: Any) -> Causes:
    if new.get("type") != "ClusterIP":
        return ()
    detail = "may not be used when `type` is 'ClusterIP'"
    ports = enumerate(new.get("ports", ()))
    return [forbidden(f"ports[{at}].nodePort", detail) for at, port in ports if "nodePort" in port]


# ------------------------------------------------------------------------------------ addresses


def _check_addresses(new: Any, old: Any) -> Causes:
    """Check cluster IPs: valid addresses, None, or absent for ExternalName."""
    kind, addresses = new.get("type"), new.get("clusterIPs") or _as_list(new.get("clusterIP"))
    if kind == "ExternalName":
        found = _check_external_name(new.get("externalName", ""))
        detail = "may not be set when `type` is 'ExternalName'"
        return [*found, forbidden("clusterIPs", detail)] if addresses else found
    if HEADLESS in addresses:
        detail = f"may not be set to 'None' for {kind} services"
        return [invalid("clusterIPs[0]", HEADLESS, detail)] if kind in EXTERNAL_TYPES else ()
    return [
        invalid(f"clusterIPs[{at}]", address, fault)
        for at, address in enumerate(addresses)
        for fault in validate_ip(address)
    ]


def _as_list(address: str | None) -> list[str]:
    return [address] if address else []


def _check_external_name(name: str) -> list[Cause]:
    if not name:
        return [required("externalName")]
    faults = validate_dns_subdomain(name.removesuffix("."))
    return [invalid("externalName", name, fault) for fault in faults]


def _check_address_immutable(new: Any, old: Any) -> Causes:
    """Refuse a change of the cluster IP while the type has one."""
    if old is CREATED or "ExternalName" in (new.get("type"), (old or {}).get("type")):
        return ()
    before = (old or {}).get("clusterIP")
    if not before or new.get("clusterIP") == before:
        return ()
    return [invalid("clusterIPs[0]", new.get("clusterIP"), "may not change once set")]


# ------------------------------------------------------------------------------------- sessions


def _check_session_affinity(new: Any, old: Any) -> Causes:
    config: Object | None = new.get("sessionAffinityConfig")
    if new.get("sessionAffinity") == "None":
        detail = "must not be set when session affinity is None"
        return [forbidden("sessionAffinityConfig", detail)] if config else ()
    if new.get("sessionAffinity") != "ClientIP":
        return ()
    place = "sessionAffinityConfig.clientIP.timeoutSeconds"
    seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
    if seconds is None:
        return [required(place)]
    if 0 < seconds <= _MAX_AFFINITY_SECONDS:
        return ()
    detail = f"must be greater than 0 and less than {_MAX_AFFINITY_SECONDS}"
    return [invalid(place, seconds, detail)]


def _check_external_traffic_policy(new: Any, old: Any) -> Causes:
    """Allow externalTrafficPolicy only for Services with external traffic."""
    if new.get("type") in EXTERNAL_TYPES or new.get("externalIPs"):
        return ()
    if not new.get("externalTrafficPolicy"):
        return ()
    detail = "may only be set for externally-accessible services"
    return [invalid("externalTrafficPolicy", new["externalTrafficPolicy"], detail)]


_SERVICE_SPEC = all_of(
    _check_has_ports,
    struct(
        ("ports", optional(all_of(each(_SERVICE_PORT), _check_unique_ports))),
        ("selector", check_labels),
        ("sessionAffinity", mandatory(one_of("ClientIP", "None"))),
        ("externalIPs", optional(each(string_format(validate_ip)))),
        ("type", mandatory(one_of(*SERVICE_TYPES))),
        ("externalTrafficPolicy", optional(_TRAFFIC_POLICY)),
        ("internalTrafficPolicy", optional(_TRAFFIC_POLICY)),
        ("ipFamilies", optional(each(one_of("IPv4", "IPv6")))),
        (
            "ipFamilyPolicy",
            optional(one_of("PreferDualStack", "RequireDualStack", "SingleStack")),
        ),
    ),
    _check_no_node_ports,
    _check_addresses,
    _check_session_affinity,
    _check_external_traffic_policy,
    _check_address_immutable,
)

check_service: Check = struct(("spec", if_present(_SERVICE_SPEC)))
