"""Defaults of Services, and the fields that an update keeps or drops.

The server allocates cluster IPs and node ports (`server/service_allocator.py`). What depends on one
Service only is here: `clusterIPs` follows `clusterIP`, an update that leaves allocated values out
keeps them, and a change of the type drops those that the new type does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phalanx.api.errors import Cause, Causes, invalid
from phalanx.api.validation.service import (
    ADDRESSED_TYPES,
    EXTERNAL_NAME,
    IP_FAMILIES,
    check_cluster_ips,
    is_external,
    is_headless,
    needs_health_check_port,
)
from phalanx.api.wire import Object

_AFFINITY_SECONDS = 10_800
_SINGLE, _PREFER, _REQUIRE = "SingleStack", "PreferDualStack", "RequireDualStack"


def default_service(service: Object) -> None:
    """Apply the defaults of a Service."""
    spec = service["spec"]
    kind = spec.setdefault("type", "ClusterIP")
    affinity = spec.setdefault("sessionAffinity", "None")
    if affinity == "None":
        spec.pop("sessionAffinityConfig", None)
    elif affinity == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", _AFFINITY_SECONDS)
    for port in spec.get("ports", ()):
        port["targetPort"] = port.get("targetPort") or port["port"]
    if is_external(spec):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if kind in ADDRESSED_TYPES:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    for ingress in ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
        if ingress.get("ip"):
            ingress.setdefault("ipMode", "VIP")


def prepare_service_for_create(service: Object, now: str) -> None:
    """Clear the load balancer status of a new Service."""
    service["status"] = {"loadBalancer": {}}
    mirror_cluster_ip(service["spec"], {})


def prepare_service_for_update(new: Object, old: Object, now: str) -> None:
    """Keep allocated values that an update leaves out; drop those that the type no longer has."""
    spec, before = new["spec"], old.get("spec") or {}
    if needs_cluster_ip(spec) and needs_cluster_ip(before):
        if not spec.get("clusterIP") and "clusterIP" in before:
            spec["clusterIP"] = before["clusterIP"]
        if not spec.get("clusterIPs") and spec.get("clusterIP") == before.get("clusterIP"):
            spec |= {"clusterIPs": before["clusterIPs"]} if "clusterIPs" in before else {}
        for field in ("ipFamilies", "ipFamilyPolicy"):
            if field in before:
                spec.setdefault(field, before[field])
    if has_node_ports(spec) and has_node_ports(before):
        _keep_node_ports(spec, before)
    if needs_health_check_port(spec) and before.get("healthCheckNodePort"):
        spec.setdefault("healthCheckNodePort", before["healthCheckNodePort"])
    mirror_cluster_ip(spec, before)
    _drop_fields_of_other_types(spec, before)


def needs_cluster_ip(spec: Object) -> bool:
    """Whether the type has an address, which may be `None`."""
    return bool(spec.get("type") != EXTERNAL_NAME)


def has_node_ports(spec: Object) -> bool:
    """Whether the type may have node ports."""
    return spec.get("type") in ("NodePort", "LoadBalancer")


def mirror_cluster_ip(spec: Object, before: Object) -> None:
    """Derive `clusterIPs` from `clusterIP` where a client wrote only that one.

    A client that writes `clusterIPs` must write `clusterIP` too; validation compares them.
    """
    first, addresses = spec.get("clusterIP"), spec.get("clusterIPs")
    is_unchanged = bool(before) and addresses == before.get("clusterIPs")
    if first and (not addresses or (is_unchanged and first != before.get("clusterIP"))):
        spec["clusterIPs"] = [first]


def _keep_node_ports(spec: Object, before: Object) -> None:
    """Give ports without a node port the one that the port of the same name had."""
    old_ports = {port.get("name", ""): port.get("nodePort") for port in before.get("ports") or ()}
    kept = {port.get("nodePort") for port in spec.get("ports") or ()}
    used = kept.intersection(old_ports.values())
    for port in spec.get("ports") or ():
        value = old_ports.get(port.get("name", ""))
        if not port.get("nodePort") and value and value not in used:
            port["nodePort"] = value
            used.add(value)


def _node_ports(spec: Object) -> list[Any]:
    return [port.get("nodePort") for port in spec.get("ports") or ()]


#: Fields that the server may have filled in, and the types that have them.
_TYPE_FIELDS: tuple[tuple[str, Callable[[Object], bool]], ...] = (
    ("clusterIPs", needs_cluster_ip),
    ("ipFamilies", needs_cluster_ip),
    ("ipFamilyPolicy", needs_cluster_ip),
    ("internalTrafficPolicy", needs_cluster_ip),
    ("healthCheckNodePort", needs_health_check_port),
    ("externalTrafficPolicy", is_external),
    ("allocateLoadBalancerNodePorts", lambda spec: bool(spec.get("type") == "LoadBalancer")),
    ("loadBalancerClass", lambda spec: bool(spec.get("type") == "LoadBalancer")),
)


def _drop_fields_of_other_types(spec: Object, before: Object) -> None:
    """Drop what the old type had and the new one has not, unless the client changed it too."""
    for field, has_field in _TYPE_FIELDS:
        is_dropped = has_field(before) and not has_field(spec)
        if is_dropped and field in spec and spec[field] == before.get(field):
            del spec[field]
            if field == "clusterIPs":
                spec.pop("clusterIP", None)
    is_dropped = has_node_ports(before) and not has_node_ports(spec)
    if is_dropped and _node_ports(spec) == _node_ports(before):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)


def initialize_ip_families(spec: Object, before: Object, configured: Sequence[str]) -> Causes:
    """Set IP families and their policy in place, or return why they cannot be had.

    `configured` are the families of which the cluster has addresses, the default first; `before` is
    the spec that an update replaces.
    """
    if not needs_cluster_ip(spec):
        return ()
    is_open = is_headless(spec) and not spec.get("selector")
    default = _REQUIRE if is_open else _SINGLE
    policy = spec.setdefault("ipFamilyPolicy", before.get("ipFamilyPolicy") or default)
    if causes := check_cluster_ips(spec, before):
        return causes
    found = _release_second_family(spec, before) if before else []
    addresses, families = spec.get("clusterIPs") or [], [*spec.get("ipFamilies", ())]
    if policy == _SINGLE:
        detail = f"must be '{_REQUIRE}' or '{_PREFER}' when multiple {{}} are specified"
        if len(addresses) == 2:
            found.append(invalid("ipFamilyPolicy", policy, detail.format("cluster IPs")))
        if len(families) == 2:
            found.append(invalid("ipFamilyPolicy", policy, detail.format("IP families")))
    if not is_headless(spec):
        for at in range(len(families), len(addresses)):
            family = "IPv6" if ":" in addresses[at] else "IPv4"
            families.append(family)
            if family not in configured:
                detail = f"{family} is not configured on this cluster"
                found.append(invalid(f"clusterIPs[{at}]", addresses, detail))
    if found:
        return found
    if not is_open:
        if policy == _REQUIRE and len(configured) < 2:
            detail = "this cluster is not configured for dual-stack services"
            found.append(invalid("ipFamilyPolicy", policy, detail))
        found += [
            invalid(f"ipFamilies[{at}]", family, "not configured on this cluster")
            for at, family in enumerate(families)
            if family not in configured
        ]
    families = families or [configured[0]]
    if policy != _SINGLE and len(families) == 1 and (is_open or len(configured) == 2):
        families += [family for family in IP_FAMILIES if family not in families]
    spec["ipFamilies"] = families
    return found


def _release_second_family(spec: Object, before: Object) -> list[Cause]:
    """Drop the second address for `SingleStack`; another policy must not lose it by omission."""
    policy, found = spec["ipFamilyPolicy"], []
    for field, noun in (("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")):
        after, old = spec.get(field) or [], before.get(field) or []
        if policy == _SINGLE and len(after) > 1 and after == old:
            spec[field] = after[:1]
        elif policy != _SINGLE and len(old) == 2 and old[:1] == after:
            detail = f"must be '{_SINGLE}' to release the secondary {noun}"
            found.append(invalid("ipFamilyPolicy", policy, detail))
    return found
