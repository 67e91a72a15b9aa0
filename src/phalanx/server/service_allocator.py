"""Cluster IPs and node ports of Services, allocated in the transaction that writes the Service.

An IPAddress object, named like the address, marks a cluster IP as taken and names its Service. A
node port is taken if a Service in the store has it. So the store is the only record: nothing is
repaired after a crash. Addresses come from the range of the server and from the ServiceCIDRs that
users add. As in Kubernetes they are random, and small numbers stay free for Services that ask for
them. Nothing serves the addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.api.defaults.service import (
    has_node_ports,
    initialize_ip_families,
    mirror_cluster_ip,
    needs_cluster_ip,
)
from phalanx.api.errors import Cause, Causes, ServerError, invalid, prefix_causes
from phalanx.api.kinds import IP_ADDRESS, SERVICE, SERVICE_CIDR
from phalanx.api.validation.service import is_headless, needs_health_check_port
from phalanx.api.wire import Object
from phalanx.server.objects import decode_record, encoder, raise_if_invalid
from phalanx.store.kv import StoreWrite

if TYPE_CHECKING:
    from phalanx.server.context import ServerContext

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
#: The ServiceCIDR that shows the range of the server itself.
DEFAULT_SERVICE_CIDR = "kubernetes"
_FAMILY_LABEL = "ipaddress.kubernetes.io/ip-family"
_MANAGER_LABEL, _MANAGER = "ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io"
_NODE_PORT_BYTES = (b'"nodePort"', b'"healthCheckNodePort"')
#: The part of a range that is given out last: a sixteenth, in these bounds.
_RESERVED_SHARE, _MIN_RESERVED, _MAX_RESERVED = 16, 16, 256
_MAX_RESERVED_PORTS = 128


class InvalidRange(ValueError):
    """A range of addresses or ports that cannot be used, with the reason."""


@dataclass(frozen=True, slots=True)
class ServiceRanges:
    """The addresses and node ports that Services may have."""

    cluster_ips: tuple[IPNetwork, ...] = (ipaddress.ip_network("10.96.0.0/12"),)
    node_ports: range = range(30000, 32768)

    def kubernetes_address(self) -> str:
        """Return the cluster IP of the Service `default/kubernetes`: the first of the range."""
        return str(self.cluster_ips[0][1])


def parse_cluster_ip_range(text: str) -> tuple[IPNetwork, ...]:
    """Parse one CIDR, or two of different IP families: `10.96.0.0/12,fd00:10:96::/112`."""
    try:
        networks = tuple(ipaddress.ip_network(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise InvalidRange(str(error)) from None
    if len({network.version for network in networks}) != len(networks):
        raise InvalidRange("at most one range per IP family")
    if any(network.num_addresses < 8 for network in networks):
        raise InvalidRange("a range needs at least eight addresses")
    return networks


def parse_node_port_range(text: str) -> range:
    """Parse `30000-32767`."""
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535:
        return range(int(first), int(last) + 1)
    raise InvalidRange("a range is FIRST-LAST, within 1-65535")


def allocate(context: ServerContext, service: Object, old: Object | None) -> None:
    """Complete the addresses and ports of a Service in place; raise 422 if one cannot be had."""
    spec, before = service["spec"], (old or {}).get("spec") or {}
    networks = _networks(context)
    families = [f"IPv{network.version}" for network in context.service_ranges.cluster_ips]
    mirror_cluster_ip(spec, before)
    causes = initialize_ip_families(spec, before, families)
    _raise_if_refused(service, causes)
    if needs_cluster_ip(spec) and not is_headless(spec):
        _allocate_addresses(context, service, before, networks=networks)
    if not has_node_ports(spec):
        return
    taken, had = _taken_ports(context, service), _ports_of(before)
    _allocate_node_ports(context, service, taken=taken, had=had)
    if needs_health_check_port(spec):
        port = spec.get("healthCheckNodePort")
        if not port:
            spec["healthCheckNodePort"] = _next_port(context, taken | _ports_of(spec))
        elif port not in had:
            cause = _port_cause(context, "healthCheckNodePort", port, taken=taken)
            _raise_if_refused(service, cause)


def allocation_writes(
    context: ServerContext, service: Object | None, old: Object | None
) -> list[StoreWrite]:
    """Return the writes of IPAddresses for a Service that replaces `old`; None is deleted.

    The node ports are checked again: another Service may have been written since `allocate`.
    """
    before, after = _addresses_of(old), _addresses_of(service)
    if service is not None:
        added = _ports_of(service["spec"]) - _ports_of((old or {}).get("spec") or {})
        clash = added & _taken_ports(context, service) if added else ()
        causes = [invalid("ports", port, "provided port is already allocated") for port in clash]
        _raise_if_refused(service, causes)
    if IP_ADDRESS not in context.registry.built_in:
        return []
    writes = []
    for address in after:
        key = IP_ADDRESS.store_key("", address)
        if context.store.pending(key) is None:
            assert service is not None
            writes.append(StoreWrite(key, encoder(_ip_address(context, address, service)), 0))
    for address in before:
        record = context.store.pending(IP_ADDRESS.store_key("", address))
        if address in after or record is None or old is None:
            continue
        if _parent(decode_record(record)) == _service_reference(old):
            writes.append(StoreWrite(record.key, None, record.revision))
    return writes


# ---- addresses -----------------------------------------------------------------------------------


def _networks(context: ServerContext) -> list[IPNetwork]:
    """The ranges of the server, then those of ServiceCIDRs that are not being deleted."""
    networks = [*context.service_ranges.cluster_ips]
    for record in context.store.range(SERVICE_CIDR.store_prefix()):
        obj = decode_record(record)
        meta = obj["metadata"]
        if meta["name"] != DEFAULT_SERVICE_CIDR and "deletionTimestamp" not in meta:
            networks += [ipaddress.ip_network(text, strict=False) for text in obj["spec"]["cidrs"]]
    return networks


def _allocate_addresses(
    context: ServerContext, service: Object, before: Object, *, networks: list[IPNetwork]
) -> None:
    spec = service["spec"]
    addresses = [*spec.get("clusterIPs", ())]
    for at, family in enumerate(spec["ipFamilies"]):
        usable = [network for network in networks if f"IPv{network.version}" == family]
        if at == len(addresses):
            addresses.append(_next_address(context, usable))
        elif addresses[at] not in before.get("clusterIPs", ()):
            why = _address_refusal(context, service, addresses[at], networks=usable)
            if why:
                detail = f"failed to allocate IP {addresses[at]}: {why}"
                _raise_if_refused(service, [invalid("clusterIPs", addresses, detail)])
    spec["clusterIP"], spec["clusterIPs"] = addresses[0], addresses


def _address_refusal(
    context: ServerContext, service: Object, text: str, *, networks: list[IPNetwork]
) -> str:
    address = ipaddress.ip_address(text)
    if not any(address in network and address not in _unusable(network) for network in networks):
        ranges = ", ".join(str(network) for network in networks)
        return f"the provided network does not match the current range {ranges}"
    record = context.store.pending(IP_ADDRESS.store_key("", str(address)))
    if record is None or _parent(decode_record(record)) == _service_reference(service):
        return ""
    return "provided IP is already allocated"


def _unusable(network: IPNetwork) -> tuple[object, ...]:
    first = network.network_address
    return (first, network.broadcast_address) if network.version == 4 else (first,)


def _next_address(context: ServerContext, networks: list[IPNetwork]) -> str:
    for network in networks:
        size = network.num_addresses - len(_unusable(network))
        for offset in _offsets(context, size, _MAX_RESERVED):
            address = str(network[offset + 1])
            if context.store.pending(IP_ADDRESS.store_key("", address)) is None:
                return address
    raise ServerError(
        "failed to allocate a serviceIP: range is full; delete Services, or add a ServiceCIDR"
    )


def _offsets(context: ServerContext, size: int, most_reserved: int) -> Iterator[int]:
    """Every number below `size`: from a random one upwards, and the reserved small ones last."""
    reserved = min(max(_MIN_RESERVED, size // _RESERVED_SHARE), most_reserved, size)
    dynamic = size - reserved
    start = int(context.random.between(0, dynamic))
    for step in range(dynamic):
        yield reserved + (start + step) % dynamic
    yield from range(reserved)


def _addresses_of(service: Object | None) -> list[str]:
    spec = (service or {}).get("spec") or {}
    return [] if is_headless(spec) else [*(spec.get("clusterIPs") or ())]


def _ip_address(context: ServerContext, address: str, service: Object) -> Object:
    family = f"IPv{ipaddress.ip_address(address).version}"
    return {
        "metadata": {
            "name": address,
            "uid": context.random.uid(),
            "creationTimestamp": context.now_timestamp(),
            "generation": 1,
            "labels": {_FAMILY_LABEL: family, _MANAGER_LABEL: _MANAGER},
        },
        "spec": {"parentRef": _service_reference(service)},
    }


def _service_reference(service: Object) -> Object:
    meta = service["metadata"]
    return {"resource": SERVICE.plural, "namespace": meta["namespace"], "name": meta["name"]}


def _parent(ip_address: Object) -> Object:
    reference: Object = dict(ip_address["spec"]["parentRef"])
    reference.pop("group", None)
    return reference


# ---- node ports ----------------------------------------------------------------------------------


def _allocate_node_ports(
    context: ServerContext, service: Object, *, taken: frozenset[int], had: frozenset[int]
) -> None:
    """Fill in missing node ports. Entries of one port number, as of TCP and UDP, share one."""
    spec = service["spec"]
    is_automatic = spec["type"] == "NodePort" or spec.get("allocateLoadBalancerNodePorts")
    ports: list[Object] = spec.get("ports") or []
    wanted: dict[int, int] = {}
    for at, port in enumerate(ports):
        if number := port.get("nodePort"):
            wanted.setdefault(port["port"], number)
            if number not in had:
                cause = _port_cause(context, f"ports[{at}].nodePort", number, taken=taken)
                _raise_if_refused(service, cause)
    used = set(taken | _ports_of(spec))
    for port in ports:
        if not port.get("nodePort") and is_automatic:
            if port["port"] not in wanted:
                wanted[port["port"]] = _next_port(context, used)
            port["nodePort"] = wanted[port["port"]]
            used.add(port["nodePort"])


def _port_cause(
    context: ServerContext, field: str, port: int, *, taken: frozenset[int]
) -> list[Cause]:
    valid = context.service_ranges.node_ports
    if port not in valid:
        detail = (
            "provided port is not in the valid range. The range of valid ports is "
            f"{valid.start}-{valid.stop - 1}"
        )
        return [invalid(field, port, detail)]
    return [invalid(field, port, "provided port is already allocated")] if port in taken else []


def _next_port(context: ServerContext, used: frozenset[int] | set[int]) -> int:
    valid = context.service_ranges.node_ports
    for offset in _offsets(context, len(valid), _MAX_RESERVED_PORTS):
        if valid[offset] not in used:
            return valid[offset]
    raise ServerError("failed to allocate a nodePort: range is full; delete Services")


def _taken_ports(context: ServerContext, service: Object) -> frozenset[int]:
    """The node ports of all other Services, committed or not."""
    own = SERVICE.store_key(service["metadata"]["namespace"], service["metadata"]["name"])
    taken: set[int] = set()
    for record in context.store.pending_range(SERVICE.store_prefix()):
        if record.key != own and any(mark in record.value for mark in _NODE_PORT_BYTES):
            taken |= _ports_of(decode_record(record)["spec"])
    return frozenset(taken)


def _ports_of(spec: Object) -> frozenset[int]:
    ports = [port.get("nodePort") for port in spec.get("ports") or ()]
    return frozenset(port for port in (*ports, spec.get("healthCheckNodePort")) if port)


def _raise_if_refused(service: Object, causes: Causes) -> None:
    raise_if_invalid(SERVICE, service["metadata"].get("name", ""), prefix_causes("spec", causes))
