"""Validation of Nodes, Secrets and Services.

Nodes: taints, capacity, addresses, immutable fields. Secrets: keys, size, and the keys that each
known type requires. Services: ports, addresses, and the fields of each type.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import orjson

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
    validate_config_key,
    validate_dns_label,
    validate_dns_subdomain,
    validate_ip,
    validate_label_key,
    validate_label_value,
    validate_port_name,
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
    in_range,
    mandatory,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import LABEL_KEY, check_labels
from phalanx.api.validation.resources import quantity_faults
from phalanx.api.wire import Object

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


def _check_provider_immutable(new: Any, old: Any) -> Causes:
    before = None if old is CREATED else old.get("spec", {}).get("providerID")
    if not before or new.get("spec", {}).get("providerID") == before:
        return ()
    return [invalid("spec.providerID", None, "field cannot be modified once set")]


def _check_one_cidr_per_family(new: Any, old: Any) -> Causes:
    ranges = new.get("spec", {}).get("podCIDRs", ())
    if len(ranges) == len({":" in one for one in ranges}):
        return ()
    detail = "may specify no more than one CIDR for each IP family"
    return [invalid("spec.podCIDRs", ranges, detail)]


check_node: Check = all_of(
    _check_taints,
    _check_resources,
    _check_addresses,
    _set_once("podCIDRs", "podCIDR"),
    _check_provider_immutable,
    _check_one_cidr_per_family,
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
    size = sum(len(value) * 3 // 4 for value in new.get("data", {}).values())
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
            is_object = isinstance(orjson.loads(binascii.a2b_base64(content)), dict)
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
    """Require unique names (of several ports) and unique pairs of port and protocol."""
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


def _check_service_addresses(new: Any, old: Any) -> Causes:
    """Check cluster IPs: valid addresses or None; ExternalName requires a name and no address."""
    kind, address = new.get("type"), new.get("clusterIP")
    addresses = new.get("clusterIPs") or ([address] if address else [])
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


def _check_load_balancer(new: Any, old: Any) -> Causes:
    """Check source ranges and the class, which never changes; a field has a capital in causes."""
    found = [
        invalid(f"LoadBalancerSourceRanges[{at}]", one, "must be a valid CIDR value")
        for at, one in enumerate(new.get("loadBalancerSourceRanges") or ())
        if not _is_cidr(one.strip())
    ]
    if old is CREATED or not old:
        return found
    name, before = new.get("loadBalancerClass"), old.get("loadBalancerClass")
    was_balanced = old.get("type") == new.get("type") == "LoadBalancer"
    if was_balanced and name != before:
        found.append(invalid("loadBalancerClass", name, "may not change once set"))
    return found


def _is_cidr(text: str) -> bool:
    address, slash, bits = text.partition("/")
    most = 128 if ":" in address else 32
    return bool(slash) and not validate_ip(address) and bits.isdecimal() and int(bits) <= most


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
        (
            "trafficDistribution",
            optional(one_of("PreferClose", "PreferSameNode", "PreferSameZone")),
        ),
    ),
    _check_no_node_ports,
    _check_service_addresses,
    _check_session_affinity,
    _check_external_traffic_policy,
    _check_address_immutable,
    _check_load_balancer,
)

check_service: Check = struct(("spec", if_present(_SERVICE_SPEC)))


def check_service_status(new: Any, old: Any) -> Causes:
    """Refuse an address of a load balancer for a Service of another type."""
    ingress = ((new.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    if not ingress or new.get("spec", {}).get("type") == "LoadBalancer":
        return ()
    detail = "may only be used when `spec.type` is LoadBalancer"
    return [forbidden("status.loadBalancer.ingress", detail)]
