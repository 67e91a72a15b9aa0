"""Validation of Services: ports, addresses and IP families, and the fields of each type.

`check_cluster_ips` runs twice: before addresses are allocated, which needs well-formed ones, and
with the other rules, when the addresses are allocated.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)
from phalanx.api.formats import (
    validate_cidr,
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

HEADLESS, EXTERNAL_NAME = "None", "ExternalName"
IP_FAMILIES = ("IPv4", "IPv6")
IP_FAMILY_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
_EXTERNAL_TYPES = ("NodePort", "LoadBalancer")
_SERVICE_TYPES = ("ClusterIP", EXTERNAL_NAME, "LoadBalancer", "NodePort")
_MAX_AFFINITY_SECONDS = 86_400
_KUBELET_PORT = 10250
_PORT_NUMBER = in_range(1, 65535)
_TRAFFIC_POLICY = one_of("Cluster", "Local")
_BALANCERS_ONLY = "may only be used when `type` is 'LoadBalancer'"


def is_external(spec: Object) -> bool:
    """Whether clients outside of the cluster reach the Service."""
    kind = spec.get("type", "ClusterIP")
    return kind in _EXTERNAL_TYPES or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def needs_health_check_port(spec: Object) -> bool:
    """Whether a load balancer asks each node if it has endpoints of the Service."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def is_headless(spec: Object) -> bool:
    """Whether the Service has no address of its own."""
    return bool(spec.get("clusterIP") == HEADLESS)


# ---------------------------------------------------------------------------------------- ports


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
    ("appProtocol", if_present(string_format(validate_label_key))),
)


def _check_unique_ports(new: Any, old: Any) -> Causes:
    """Require unique names (of several ports) and unique ports and node ports per protocol."""
    found: list[Cause] = []
    if len(new) > 1:
        unnamed = (at for at, port in enumerate(new) if not port.get("name"))
        found += [required(f"[{at}].name") for at in unnamed]
    names = [port.get("name") or at for at, port in enumerate(new)]
    found += [duplicate(f"[{at}].name", names[at]) for at in find_duplicate_values(names)]
    node_ports = [
        (port["nodePort"], port.get("protocol")) if port.get("nodePort") else at
        for at, port in enumerate(new)
    ]
    found += [
        duplicate(f"[{at}].nodePort", new[at]["nodePort"])
        for at in find_duplicate_values(node_ports)
    ]
    return [
        *found,
        *(duplicate(f"[{at}]", new[at]) for at in find_duplicate_items(new, "port", "protocol")),
    ]


def _check_ports_of_type(new: Any, old: Any) -> Causes:
    """Require ports where there is an address, and node ports only where nodes serve them."""
    kind, ports = new.get("type"), new.get("ports") or ()
    if not ports:
        return () if kind == EXTERNAL_NAME or is_headless(new) else [required("ports")]
    if kind == "ClusterIP":
        detail = "may not be used when `type` is 'ClusterIP'"
        return [
            forbidden(f"ports[{at}].nodePort", detail)
            for at, port in enumerate(ports)
            if port.get("nodePort")
        ]
    detail = f"may not expose port {_KUBELET_PORT} externally since it is used by kubelet"
    return [
        invalid(f"ports[{at}]", _KUBELET_PORT, detail)
        for at, port in enumerate(ports)
        if kind == "LoadBalancer" and port.get("port") == _KUBELET_PORT
    ]


# ------------------------------------------------------------------------------------ addresses


def check_cluster_ips(new: Any, old: Any) -> Causes:
    """Check that cluster IPs, IP families and their policy are well-formed and agree."""
    families = new.get("ipFamilies") or ()
    policy = new.get("ipFamilyPolicy")
    found = [
        unsupported(f"ipFamilies[{at}]", family, IP_FAMILIES)
        for at, family in enumerate(families)
        if family not in IP_FAMILIES
    ]
    found += [
        duplicate(f"ipFamilies[{at}]", families[at]) for at in find_duplicate_values(families)
    ]
    if policy is not None and policy not in IP_FAMILY_POLICIES:
        found.append(unsupported("ipFamilyPolicy", policy, IP_FAMILY_POLICIES))
    addresses = new.get("clusterIPs") or ()
    first = new.get("clusterIP") or ""
    if first and addresses and addresses[0] != first:
        found.append(invalid("clusterIPs", addresses, "first value must match `clusterIP`"))
    if not first and addresses:
        detail = "must be empty when `clusterIP` is not specified"
        found.append(invalid("clusterIPs", addresses, detail))
    return [*found, *_check_addresses(addresses, families)]


def _check_addresses(addresses: Sequence[str], families: Sequence[str]) -> list[Cause]:
    found: list[Cause] = []
    if HEADLESS in addresses[:1]:
        if len(addresses) > 1:
            found.append(
                invalid("clusterIPs", addresses, "'None' must be the first and only value")
            )
        addresses = ()
    found += [
        invalid(f"clusterIPs[{at}]", address, fault)
        for at, address in enumerate(addresses)
        for fault in validate_ip(address)
    ]
    if len(addresses) > 2:
        found.append(invalid("clusterIPs", addresses, "may only hold up to 2 values"))
    if found:
        return found
    versions = [f"IPv{ipaddress.ip_address(address).version}" for address in addresses]
    if len(versions) > len(set(versions)):
        detail = "may specify no more than one IP for each IP family"
        found.append(invalid("clusterIPs", addresses, detail))
    return found + [
        invalid(
            f"clusterIPs[{at}]",
            addresses[at],
            f"expected an {family} value as indicated by `ipFamilies[{at}]`",
        )
        for at, (family, version) in enumerate(zip(families, versions, strict=False))
        if family in IP_FAMILIES and family != version
    ]


def _check_address_of_type(new: Any, old: Any) -> Causes:
    """Require what the type says about addresses: ExternalName has a name and no address."""
    kind = new.get("type")
    if kind == EXTERNAL_NAME:
        detail = "may not be set for ExternalName services"
        fields = ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
        found = [forbidden(field, detail) for field in fields if new.get(field)]
        return [*found, *_check_external_name(new.get("externalName", ""))]
    found = [*check_cluster_ips(new, old)]
    if is_headless(new) and kind in _EXTERNAL_TYPES:
        detail = f"may not be set to 'None' for {kind} services"
        found.append(invalid("clusterIPs[0]", HEADLESS, detail))
    return found


def _check_external_name(name: str) -> list[Cause]:
    if not name:
        return [required("externalName")]
    faults = validate_dns_subdomain(name.removesuffix("."))
    return [invalid("externalName", name, fault) for fault in faults]


def _check_addresses_kept(new: Any, old: Any) -> Causes:
    """Refuse another address or family while the type has one; the second may come and go."""
    if old is CREATED or not old or EXTERNAL_NAME in (new.get("type"), old.get("type")):
        return ()
    found: list[Cause] = []
    for field in ("clusterIPs", "ipFamilies"):
        after, before = new.get(field) or (), old.get(field) or ()
        if before and not after:
            detail = f"primary {field.removesuffix('s')} can not be unset"
            found.append(invalid(f"{field}[0]", after, detail))
            continue
        found += [
            invalid(f"{field}[{at}]", after[at], "may not change once set")
            for at in range(min(len(after), len(before)))
            if after[at] != before[at]
        ]
    return found


# ------------------------------------------------------------------------- sessions and traffic


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


def _check_traffic_policies(new: Any, old: Any) -> Causes:
    """Require the policies of the Services that have such traffic, and of no others."""
    external, internal = new.get("externalTrafficPolicy"), new.get("internalTrafficPolicy")
    found: list[Cause] = []
    if external and not is_external(new):
        detail = "may only be set for externally-accessible services"
        found.append(invalid("externalTrafficPolicy", external, detail))
    if is_external(new) and not external:
        found.append(required("externalTrafficPolicy"))
    if new.get("type") != EXTERNAL_NAME and internal is None:
        found.append(required("internalTrafficPolicy"))
    port = new.get("healthCheckNodePort") or 0
    if needs_health_check_port(new):
        found += [required("healthCheckNodePort")] if not port else []
    elif port:
        detail = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        found.append(invalid("healthCheckNodePort", port, detail))
    return found


# -------------------------------------------------------------------------------- load balancers


def _check_load_balancer(new: Any, old: Any) -> Causes:
    """Check the fields that only load balancers have; the class of one never changes."""
    name, ranges = new.get("loadBalancerClass"), new.get("loadBalancerSourceRanges") or ()
    if new.get("type") != "LoadBalancer":
        # Causes spell the field of the ranges with a capital, as in Kubernetes.
        present = {
            "LoadBalancerSourceRanges": bool(ranges),
            "allocateLoadBalancerNodePorts": new.get("allocateLoadBalancerNodePorts") is not None,
            "loadBalancerClass": name is not None,
        }
        return [forbidden(field, _BALANCERS_ONLY) for field, is_set in present.items() if is_set]
    found = [
        invalid(f"LoadBalancerSourceRanges[{at}]", one, fault)
        for at, one in enumerate(ranges)
        for fault in validate_cidr(one.strip())
    ]
    if new.get("allocateLoadBalancerNodePorts") is None:
        found.append(required("allocateLoadBalancerNodePorts"))
    if old is not CREATED and old and old.get("type") == "LoadBalancer":
        if name != old.get("loadBalancerClass"):
            found.append(invalid("loadBalancerClass", name, "may not change once set"))
    elif name is not None:
        found += [invalid("loadBalancerClass", name, fault) for fault in validate_label_key(name)]
    return found


_SERVICE_SPEC = all_of(
    struct(
        ("ports", optional(all_of(each(_SERVICE_PORT), _check_unique_ports))),
        ("selector", check_labels),
        ("sessionAffinity", mandatory(one_of("ClientIP", "None"))),
        ("externalIPs", optional(each(string_format(validate_ip)))),
        ("type", mandatory(one_of(*_SERVICE_TYPES))),
        ("externalTrafficPolicy", optional(_TRAFFIC_POLICY)),
        ("internalTrafficPolicy", if_present(_TRAFFIC_POLICY)),
        ("healthCheckNodePort", lambda new, old: _PORT_NUMBER(new, old) if new else ()),
        (
            "trafficDistribution",
            if_present(one_of("PreferClose", "PreferSameNode", "PreferSameZone")),
        ),
    ),
    _check_ports_of_type,
    _check_address_of_type,
    _check_session_affinity,
    _check_traffic_policies,
    _check_addresses_kept,
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
