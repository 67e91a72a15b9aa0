"""The endpoints of a Service: the addresses, ports and states of its pods.

Pods that have ended, and pods without an address, are no endpoints. A named target port may have
another number in each pod, so that endpoints are grouped by their ports:

    Service port http -> "web"      pod a: web = 8080, pod b: web = 9090      two groups
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import POD
from phalanx.api.wire import Object

ZONE_LABEL = "topology.kubernetes.io/zone"


class EndpointPortNumber(NamedTuple):
    """A port of endpoints: name, number, protocol and application protocol ("" for none)."""

    name: str
    number: int
    protocol: str
    app_protocol: str = ""

    def as_object(self) -> Object:
        """Return the port as it is written."""
        port: Object = {"name": self.name, "port": self.number, "protocol": self.protocol}
        return {**port, "appProtocol": self.app_protocol} if self.app_protocol else port


class ServiceEndpoint(NamedTuple):
    """One address of one pod with its ports."""

    pod: Pod
    address: str
    ports: tuple[EndpointPortNumber, ...]
    is_ready: bool

    @property
    def address_type(self) -> str:
        """IPv4 or IPv6."""
        return f"IPv{ipaddress.ip_address(self.address).version}"

    @property
    def is_terminating(self) -> bool:
        """Whether the pod is being deleted."""
        return bool(self.pod.metadata.deletion_timestamp)

    def target(self) -> Object:
        """Return the reference to the pod."""
        meta = self.pod.metadata
        return {"kind": POD.name, "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}


def find_endpoints(service: Service, pods: Iterable[Pod]) -> list[ServiceEndpoint]:
    """Return the endpoints of a Service, sorted by name and address."""
    families = service.spec.ip_families or ("IPv4",)
    found = []
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        if pod.is_terminal:
            continue
        ports = resolve_ports(service, pod)
        for one in pod.status.pod_ips:
            endpoint = ServiceEndpoint(pod, one.ip, ports, is_ready=pod.is_ready)
            if endpoint.address_type in families:
                found.append(endpoint)
    return found


def resolve_ports(service: Service, pod: Pod) -> tuple[EndpointPortNumber, ...]:
    """Return the ports of a Service as numbers of a pod; a name that the pod lacks is left out."""
    found = []
    for port in service.spec.ports:
        protocol = port.get("protocol", "TCP")
        number = _target_number(port.get("targetPort") or port.get("port"), pod, protocol)
        if number:
            found.append(
                EndpointPortNumber(
                    port.get("name", ""), number, protocol, port.get("appProtocol", "")
                )
            )
    return tuple(found)


def _target_number(target: Any, pod: Pod, protocol: str) -> int:
    if isinstance(target, int):
        return target
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for port in container.ports:
            if port.name == target and port.protocol == protocol:
                return port.container_port
    return 0


def zone_of(nodes: Mapping[str, Node], name: str) -> str:
    """Return the zone of a node; "" if it has none."""
    node = nodes.get(name)
    return node.metadata.labels.get(ZONE_LABEL, "") if node else ""
