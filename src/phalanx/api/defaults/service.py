"""Defaults of Services.

Addresses and node ports are not given out: nothing here could serve them.
"""

from __future__ import annotations

from phalanx.api.rules.service import EXTERNAL
from phalanx.api.wire import Object

_AFFINITY_SECONDS = 10_800


def default_service(service: Object) -> None:
    """Defaults of a Service."""
    spec = service["spec"]
    kind = spec.setdefault("type", "ClusterIP")
    if spec.setdefault("sessionAffinity", "None") == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", _AFFINITY_SECONDS)
    for port in spec.get("ports", ()):
        port["targetPort"] = port.get("targetPort") or port["port"]
    if kind in EXTERNAL:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        _name_address_twice(spec)


def begin_service(service: Object, now: str) -> None:
    """A new Service is reached by nobody yet, and over the first version of IP."""
    service["status"] = {"loadBalancer": {}}
    spec = service["spec"]
    if spec["type"] != "ExternalName":
        version = "IPv6" if ":" in spec.get("clusterIP", "") else "IPv4"
        spec.setdefault("ipFamilies", [version])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


def _name_address_twice(spec: Object) -> None:
    """The first address stands in two places; who says one says both."""
    first = spec.get("clusterIP") or next(iter(spec.get("clusterIPs", ())), "")
    if first:
        spec["clusterIP"] = first
        if first not in spec.get("clusterIPs", ())[:1]:
            spec["clusterIPs"] = [first]
