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
    prefix_causes,
    required,
    unsupported,
)
from phalanx.api.formats import (
    validate_cidr,
    validate_dns_label,
    validate_dns_subdomain,
    validate_ip,
    validate_label_key,
    validate_non_special_ip,
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
from phalanx.api.validation.metadata import check_labels
from phalanx.api.wire import Object

HEADLESS, EXTERNAL_NAME = "None", "ExternalName"
IP_FAMILIES = ("IPv4", "IPv6")
IP_FAMILY_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
_EXTERNAL_TYPES = ("NodePort", "LoadBalancer")
#: Types of Services that have an address.
ADDRESSED_TYPES = ("ClusterIP", *_EXTERNAL_TYPES)
_SERVICE_TYPES = ("ClusterIP", EXTERNAL_NAME, "LoadBalancer", "NodePort")
_MAX_AFFINITY_SECONDS = 86_400
_PORT_NUMBER = in_range(1, 65535)
_TRAFFIC_POLICY = one_of("Cluster", "Local")
_BALANCERS_ONLY = "may only be used when `type` is 'LoadBalancer'"
_SOURCE_RANGES_ANNOTATION = "service.beta.kubernetes.io/load-balancer-source-ranges"
_TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"
_TOPOLOGY_HINTS = "service.kubernetes.io/topology-aware-hints"


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
    detail = "may not be used when `type` is 'ClusterIP'"
    return [
        forbidden(f"ports[{at}].nodePort", detail)
        for at, port in enumerate(ports)
        if kind == "ClusterIP" and port.get("nodePort")
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
    is_none = HEADLESS in addresses[:1]
    malformed = [
        invalid(f"clusterIPs[{at}]", address, fault)
        for at, address in enumerate(addresses)
        if at or not is_none
        for fault in validate_ip(address)
    ]
    if is_none and len(addresses) > 1:
        detail = "'None' must be the first and only value"
        malformed.append(invalid("clusterIPs", addresses, detail))
    found: list[Cause] = []
    if len(addresses) > 2:
        found.append(invalid("clusterIPs", addresses, "may only hold up to 2 values"))
    if malformed or is_none:
        return [*malformed, *found]
    versions = [f"IPv{ipaddress.ip_address(address).version}" for address in addresses]
    if len(versions) > 1 and len(set(versions)) == 1:
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
    """Require a name; it may end with a dot, which denotes it as fully qualified."""
    if not (cname := name.removesuffix(".")):
        return [required("externalName")]
    faults = validate_dns_subdomain(cname)
    return [invalid("externalName", name, fault) for fault in faults]


def _check_addresses_kept(new: Any, old: Any) -> Causes:
    """Refuse another address or family while the type has one; the second may come and go.

    A headless Service may change its families. The second address or family goes only with the
    policy SingleStack.
    """
    if old is CREATED or not old or EXTERNAL_NAME in (new.get("type"), old.get("type")):
        return ()
    if is_headless(new) and is_headless(old):
        return ()
    changes_address = is_headless(new) != is_headless(old)
    found: list[Cause] = []
    for field, noun in (("clusterIPs", "clusterIP"), ("ipFamilies", "ipFamily")):
        if field == "ipFamilies" and changes_address:
            continue
        after, before = new.get(field) or (), old.get(field) or ()
        is_same_length = len(after) == len(before)
        compared = len(after) if is_same_length else min(len(after), len(before), 1)
        found += [
            # Kubernetes reports a changed family at the first one.
            invalid(
                f"{field}[{at if noun == 'clusterIP' else 0}]", after, "may not change once set"
            )
            for at in range(compared)
            if after[at] != before[at]
        ]
        if len(before) > len(after) == 0 and not new.get("clusterIPs"):
            found.append(invalid(f"{field}[0]", after, f"primary {noun} can not be unset"))
        if len(before) > len(after) == 1 and new.get("ipFamilyPolicy") != "SingleStack":
            detail = f"must be set to 'SingleStack' when releasing the secondary {noun}"
            found.append(invalid("ipFamilyPolicy", new.get("ipFamilyPolicy"), detail))
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
    if is_external(new):
        causes = mandatory(_TRAFFIC_POLICY)(external, old)
        found += prefix_causes("externalTrafficPolicy", causes)
    elif external:
        detail = "may only be set for externally-accessible services"
        found.append(invalid("externalTrafficPolicy", external, detail))
    if new.get("type") in ADDRESSED_TYPES and internal is None:
        found.append(required("internalTrafficPolicy"))
    port = new.get("healthCheckNodePort") or 0
    if needs_health_check_port(new):
        causes = mandatory(_PORT_NUMBER)(port, old)
        found += prefix_causes("healthCheckNodePort", causes)
        before = {} if old is CREATED else old or {}
        if needs_health_check_port(before) and port != (before.get("healthCheckNodePort") or 0):
            found.append(forbidden("healthCheckNodePort", IMMUTABLE))
    elif port:
        detail = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        found.append(invalid("healthCheckNodePort", port, detail))
    return found


# -------------------------------------------------------------------------------- load balancers


def _check_load_balancer(new: Any, old: Any) -> Causes:
    """Check the fields that only load balancers have; the class of one never changes."""
    ranges = new.get("loadBalancerSourceRanges") or ()
    has_ports = new.get("allocateLoadBalancerNodePorts") is not None
    is_balancer = new.get("type") == "LoadBalancer"
    # Causes spell the field of the ranges with a capital, as in Kubernetes.
    found = [
        invalid(f"LoadBalancerSourceRanges[{at}]", one, fault)
        for at, one in enumerate(ranges)
        for fault in validate_cidr(one.strip())
    ]
    if ranges and not is_balancer:
        found.append(forbidden("LoadBalancerSourceRanges", _BALANCERS_ONLY))
    if has_ports and not is_balancer:
        found.append(forbidden("allocateLoadBalancerNodePorts", _BALANCERS_ONLY))
    if is_balancer and not has_ports:
        found.append(required("allocateLoadBalancerNodePorts"))
    return [*found, *_check_load_balancer_class(new, old)]


def _check_load_balancer_class(new: Any, old: Any) -> list[Cause]:
    name, is_balancer = new.get("loadBalancerClass"), new.get("type") == "LoadBalancer"
    before = {} if old is CREATED else old or {}
    found: list[Cause] = []
    if name is not None and is_balancer:
        found += [invalid("loadBalancerClass", name, fault) for fault in validate_label_key(name)]
    elif name is not None:
        found.append(forbidden("loadBalancerClass", _BALANCERS_ONLY))
    was_balancer = before.get("type") == "LoadBalancer"
    if is_balancer and was_balancer and name != before.get("loadBalancerClass"):
        found.append(invalid("loadBalancerClass", name, "may not change once set"))
    return found


def _check_service_annotations(new: Any, old: Any) -> Causes:
    """Check annotations that stand for fields: source ranges and the mode of topology."""
    annotations: Object = new["metadata"].get("annotations") or {}
    spec: Object = new.get("spec") or {}
    found: list[Cause] = []
    mode, hints = annotations.get(_TOPOLOGY_MODE), annotations.get(_TOPOLOGY_HINTS)
    if mode is not None and hints is not None and mode != hints:
        detail = f"must match annotations[{_TOPOLOGY_HINTS}] when both are specified"
        found.append(invalid(f"metadata.annotations[{_TOPOLOGY_MODE}]", mode, detail))
    ranges = annotations.get(_SOURCE_RANGES_ANNOTATION)
    if ranges is None or spec.get("loadBalancerSourceRanges"):
        return found
    place = f"metadata.annotations[{_SOURCE_RANGES_ANNOTATION}]"
    if spec.get("type") != "LoadBalancer":
        found.append(forbidden(place, _BALANCERS_ONLY))
    if not ranges.strip():
        return found
    return [
        *found,
        *(
            invalid(place, one.strip(), fault)
            for one in ranges.split(",")
            for fault in validate_cidr(one.strip())
        ),
    ]


_SERVICE_SPEC = all_of(
    struct(
        ("ports", optional(all_of(each(_SERVICE_PORT), _check_unique_ports))),
        ("selector", check_labels),
        ("sessionAffinity", mandatory(one_of("ClientIP", "None"))),
        ("externalIPs", optional(each(string_format(validate_non_special_ip)))),
        ("type", mandatory(one_of(*_SERVICE_TYPES))),
        ("internalTrafficPolicy", if_present(_TRAFFIC_POLICY)),
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

check_service: Check = all_of(
    _check_service_annotations, struct(("spec", if_present(_SERVICE_SPEC)))
)


def check_service_status(new: Any, old: Any) -> Causes:
    """Check the addresses of a load balancer; a Service of another type has none."""
    ingress = ((new.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    if ingress and new.get("spec", {}).get("type") != "LoadBalancer":
        detail = "may only be used when `spec.type` is 'LoadBalancer'"
        return [forbidden("status.loadBalancer.ingress", detail)]
    return prefix_causes("status.loadBalancer.ingress", each(_check_ingress)(ingress, old))


def _check_ingress(new: Any, old: Any) -> Causes:
    """Check one address of a load balancer: an IP with its mode, or a DNS name."""
    new = new or {}
    ip, mode, hostname = new.get("ip"), new.get("ipMode"), new.get("hostname")
    found = [invalid("ip", ip, fault) for fault in validate_ip(ip)] if ip else []
    if ip and mode is None:
        found.append(required("ipMode", "must be specified when `ip` is set"))
    elif mode is not None and not ip:
        found.append(forbidden("ipMode", "may not be specified when `ip` is not set"))
    elif mode is not None:
        found += prefix_causes("ipMode", one_of("Proxy", "VIP")(mode, old))
    if hostname:
        found += [invalid("hostname", hostname, one) for one in validate_dns_subdomain(hostname)]
        if not validate_ip(hostname):
            detail = "must be a DNS name, not an IP address"
            found.append(invalid("hostname", hostname, detail))
    return found
