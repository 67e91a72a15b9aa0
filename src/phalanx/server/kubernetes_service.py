"""The Service `default/kubernetes` and its endpoints: where clients find this API server.

As in Kubernetes the server writes them itself, at its start and every ten seconds, so that they are
restored when they are deleted or changed. Labels and annotations of users stay. Nothing serves the
cluster IP: the address of the EndpointSlice is the one that answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from phalanx import logs
from phalanx.api.defaults.service import initialize_ip_families
from phalanx.api.kinds import ENDPOINT_SLICE, ENDPOINTS, SERVICE, Kind
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder
from phalanx.server.service_allocator import allocation_writes
from phalanx.store.kv import RevisionConflict, StoreWrite

LOG = logs.component("server")
_NAMESPACE, _NAME, _PORT_NAME, _SERVICE_PORT = "default", "kubernetes", "https", 443
_RECONCILE_SECONDS = 10.0
#: An address to which a route exists wherever there is a network; nothing is sent to it.
_ANY_REMOTE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


async def run_kubernetes_service(context: ServerContext, address: str, port: int) -> None:
    """Restore the Service, its EndpointSlice and its Endpoints until cancelled."""
    while True:
        await asyncio.sleep(_RECONCILE_SECONDS)
        await ensure_kubernetes_service(context, address, port)


async def ensure_kubernetes_service(context: ServerContext, address: str, port: int) -> None:
    """Create or restore the Service and the endpoints of a server at an address."""
    cluster_ip = context.service_ranges.kubernetes_address()
    wanted = (
        (SERVICE, _service(cluster_ip, port)),
        (ENDPOINT_SLICE, _endpoint_slice(address, port)),
        (ENDPOINTS, _endpoints(address, port)),
    )
    served = [(kind, obj) for kind, obj in wanted if kind in context.registry.built_in]
    writes = [_reconcile_write(context, kind, obj) for kind, obj in served]
    service = {**wanted[0][1], "metadata": {"namespace": _NAMESPACE, "name": _NAME}}
    writes += allocation_writes(context, service, None)
    try:
        await context.store.commit([write for write in writes if write])
    except RevisionConflict:
        LOG.debug("conflict, repeated at the next reconcile", kind=SERVICE.name, key=_NAME)


def advertised_address(sock: socket.socket) -> str:
    """Return the address at which clients reach a listening socket.

    A socket that listens on all addresses is reached at the one of the default route.
    """
    address: str = sock.getsockname()[0]
    if not ipaddress.ip_address(address).is_unspecified:
        return address
    with socket.socket(sock.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ANY_REMOTE[socket.AddressFamily(sock.family)], 9))
        except OSError:
            return "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
        found: str = probe.getsockname()[0]
        return found


def _service(cluster_ip: str, port: int) -> Object:
    labels = {"component": "apiserver", "provider": "kubernetes"}
    ports = [
        {"name": _PORT_NAME, "protocol": "TCP", "port": _SERVICE_PORT, "targetPort": port},
    ]
    spec: Object = {"type": "ClusterIP", "clusterIP": cluster_ip, "ports": ports}
    initialize_ip_families(spec, {}, [f"IPv{ipaddress.ip_address(cluster_ip).version}"])
    return {"metadata": {"labels": labels}, "spec": spec}


def _endpoint_slice(address: str, port: int) -> Object:
    return {
        "metadata": {"labels": {"kubernetes.io/service-name": _NAME}, "generation": 1},
        "addressType": f"IPv{ipaddress.ip_address(address).version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": port}],
    }


def _endpoints(address: str, port: int) -> Object:
    labels = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    ports = [{"name": _PORT_NAME, "port": port, "protocol": "TCP"}]
    subset = {"addresses": [{"ip": address}], "ports": ports}
    return {"metadata": {"labels": labels}, "subsets": [subset]}


def _reconcile_write(context: ServerContext, kind: Kind, wanted: Object) -> StoreWrite | None:
    """Return the write that creates or restores an object; None if it is as wanted."""
    strategy = context.registry.strategy(kind)
    strategy.apply_defaults(wanted)
    strategy.prepare_for_create(wanted, context.now_timestamp())
    record = context.store.pending(kind.store_key(_NAMESPACE, _NAME))
    if record is None:
        wanted["metadata"] |= {
            "name": _NAME,
            "namespace": _NAMESPACE,
            "uid": context.random.uid(),
            "creationTimestamp": context.now_timestamp(),
        }
        return StoreWrite(kind.store_key(_NAMESPACE, _NAME), encoder(wanted), 0)
    existing = decode_record(record)
    meta: Object = existing["metadata"]
    labels = {**meta.get("labels", {}), **wanted["metadata"]["labels"]}
    restored = {**existing, **wanted, "metadata": {**meta, "labels": labels}}
    if restored == existing:
        return None
    LOG.info("restored", kind=kind.name, namespace=_NAMESPACE, name=_NAME)
    return StoreWrite(record.key, encoder(restored), record.revision)
