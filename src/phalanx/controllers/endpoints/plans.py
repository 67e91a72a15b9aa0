"""Plans: the EndpointSlices and Endpoints of a Service, and slices that mirror Endpoints.

Names of slices follow from their owner and a number, so that repeating a creation on a stale cache
does no harm. A Service without endpoints has one empty slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from phalanx.api.core import Node, Service
from phalanx.api.kinds import ENDPOINT_SLICE, ENDPOINTS, Kind
from phalanx.api.meta import ObjectMeta
from phalanx.api.other_kinds import Endpoints, EndpointSlice
from phalanx.api.wire import Object
from phalanx.builder.names import endpoint_slice_name
from phalanx.controllers.endpoints.addresses import ServiceEndpoint, zone_of
from phalanx.controllers.pod_ownership import controller_reference
from phalanx.controllers.reconcile_loop import Action, Create, Delete, Patch

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
SLICE_CONTROLLER = "endpointslice-controller.k8s.io"
MIRRORING_CONTROLLER = "endpointslicemirroring-controller.k8s.io"
HEADLESS_LABEL = "service.kubernetes.io/headless"
ENDPOINTS_MANAGED_BY_LABEL = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_CONTROLLER = "endpoint-controller"
SKIP_MIRROR_LABEL = "endpointslice.kubernetes.io/skip-mirror"
#: The most endpoints of one slice, and of one Endpoints object.
_MAX_SLICE_SIZE, _MAX_ENDPOINTS = 100, 1000


class WantedSlice(NamedTuple):
    """A slice that should exist."""

    address_type: str
    ports: list[Object]
    endpoints: list[Object]


def wanted_slices(
    service: Service, endpoints: Iterable[ServiceEndpoint], nodes: Mapping[str, Node]
) -> list[WantedSlice]:
    """Return the slices of a Service: endpoints with the same ports, in parts of bounded size."""
    groups: dict[tuple[str, Any], list[Object]] = {}
    for one in endpoints:
        described = _describe_endpoint(service, one, nodes)
        groups.setdefault((one.address_type, one.ports), []).append(described)
    if not groups:
        families = service.spec.ip_families or ("IPv4",)
        return [WantedSlice(family, [], []) for family in families]
    return [
        WantedSlice(
            address_type,
            [port.as_object() for port in ports],
            listed[start : start + _MAX_SLICE_SIZE],
        )
        for (address_type, ports), listed in groups.items()
        for start in range(0, len(listed), _MAX_SLICE_SIZE)
    ]


def _describe_endpoint(service: Service, one: ServiceEndpoint, nodes: Mapping[str, Node]) -> Object:
    spec = one.pod.spec
    ready = service.spec.publish_not_ready_addresses or (one.is_ready and not one.is_terminating)
    found: Object = {
        "addresses": [one.address],
        "conditions": {
            "ready": ready,
            "serving": one.is_ready,
            "terminating": one.is_terminating,
        },
        "targetRef": one.target(),
    }
    if spec.hostname and spec.subdomain == service.metadata.name:
        found["hostname"] = spec.hostname
    if spec.node_name:
        found["nodeName"] = spec.node_name
    if zone := zone_of(nodes, spec.node_name):
        found["zone"] = zone
    return found


def slice_labels(service: Service) -> dict[str, str]:
    """Return the labels of the slices of a Service."""
    meta = service.metadata
    headless = {HEADLESS_LABEL: ""} if service.spec.cluster_ip == "None" else {}
    own = {key: value for key, value in meta.labels.items() if key != HEADLESS_LABEL}
    return {**own, **headless, SERVICE_NAME_LABEL: meta.name, MANAGED_BY_LABEL: SLICE_CONTROLLER}


def plan_slices(
    kind: Kind,
    owner: ObjectMeta,
    labels: Mapping[str, str],
    *,
    wanted: Sequence[WantedSlice],
    present: Sequence[EndpointSlice],
) -> list[Action]:
    """Plan: change the present slices to the wanted ones, create missing and delete extra ones."""
    left = sorted(present, key=lambda one: (one.metadata.creation_timestamp, one.metadata.name))
    actions: list[Action] = []
    missing = []
    for one in wanted:
        fit = next(
            (
                found
                for exact in (True, False)
                for found in left
                if found.address_type == one.address_type
                and (list(found.ports or ()) == one.ports or not exact)
            ),
            None,
        )
        if fit is None:
            missing.append(one)
        else:
            left.remove(fit)
            actions += _plan_change(fit, one, labels)
    names = {one.metadata.name for one in present}
    free = (
        name
        for n in count()
        if (name := endpoint_slice_name(owner.name, owner.uid, n)) not in names
    )
    actions += [
        Create(ENDPOINT_SLICE, _build_slice(kind, owner, labels, wanted=one, name=next(free)))
        for one in missing
    ]
    actions += [Delete(ENDPOINT_SLICE, one.metadata.key, one.metadata.uid) for one in left]
    return actions


def _build_slice(
    kind: Kind, owner: ObjectMeta, labels: Mapping[str, str], *, wanted: WantedSlice, name: str
) -> Object:
    return {
        "metadata": {
            "name": name,
            "generateName": f"{owner.name}-",
            "namespace": owner.namespace,
            "labels": dict(labels),
            "ownerReferences": [controller_reference(kind, owner)],
        },
        "addressType": wanted.address_type,
        "ports": wanted.ports,
        "endpoints": wanted.endpoints,
    }


def _plan_change(
    present: EndpointSlice, one: WantedSlice, labels: Mapping[str, str]
) -> list[Action]:
    change: Object = {}
    if list(present.endpoints or ()) != one.endpoints:
        change["endpoints"] = one.endpoints
    if list(present.ports or ()) != one.ports:
        change["ports"] = one.ports
    if dict(present.metadata.labels) != dict(labels):
        gone = {key: None for key in present.metadata.labels if key not in labels}
        change["metadata"] = {"labels": {**labels, **gone}}
    if not change:
        return []
    meta = present.metadata
    exact = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    metadata = {**change.get("metadata", {}), **exact}
    return [Patch(ENDPOINT_SLICE, meta.key, {**change, "metadata": metadata})]


# ---- Endpoints -----------------------------------------------------------------------------------


def plan_endpoints(
    service: Service, endpoints: Iterable[ServiceEndpoint], present: Endpoints | None
) -> list[Action]:
    """Plan: create or change the Endpoints of a Service; pods that terminate are left out."""
    subsets = _subsets(service, endpoints)
    headless = {HEADLESS_LABEL: ""} if service.spec.cluster_ip == "None" else {}
    own = {key: text for key, text in service.metadata.labels.items() if key != HEADLESS_LABEL}
    labels = {**own, **headless, ENDPOINTS_MANAGED_BY_LABEL: ENDPOINTS_CONTROLLER}
    meta = service.metadata
    if present is None:
        metadata = {"name": meta.name, "namespace": meta.namespace, "labels": labels}
        return [Create(ENDPOINTS, {"metadata": metadata, "subsets": subsets})]
    if list(present.subsets or ()) == subsets and dict(present.metadata.labels) == labels:
        return []
    gone = {key: None for key in present.metadata.labels if key not in labels}
    exact = {"uid": present.metadata.uid, "resourceVersion": present.metadata.resource_version}
    change = {"metadata": {"labels": {**labels, **gone}, **exact}, "subsets": subsets or None}
    return [Patch(ENDPOINTS, present.metadata.key, change)]


def _subsets(service: Service, endpoints: Iterable[ServiceEndpoint]) -> list[Object]:
    """Group addresses with the same ports."""
    groups: dict[Any, dict[str, list[Object]]] = {}
    usable = [one for one in endpoints if not one.is_terminating]
    for one in usable[:_MAX_ENDPOINTS]:
        if service.spec.ports and not one.ports:
            continue
        address: Object = {"ip": one.address, "targetRef": one.target()}
        if one.pod.spec.hostname and one.pod.spec.subdomain == service.metadata.name:
            address["hostname"] = one.pod.spec.hostname
        if one.pod.spec.node_name:
            address["nodeName"] = one.pod.spec.node_name
        is_ready = one.is_ready or service.spec.publish_not_ready_addresses
        part = "addresses" if is_ready else "notReadyAddresses"
        groups.setdefault(one.ports, {}).setdefault(part, []).append(address)
    subsets: list[Object] = []
    for ports, group in sorted(groups.items(), key=lambda item: item[0]):
        subset: Object = {
            part: sorted(group[part], key=lambda a: a["ip"]) for part in sorted(group)
        }
        if ports:
            # Without empty names.
            subset["ports"] = [
                {key: value for key, value in port.as_object().items() if key != "name" or value}
                for port in ports
            ]
        subsets.append(subset)
    return subsets


# ---- mirroring -----------------------------------------------------------------------------------


def is_mirrored(endpoints: Endpoints, service: Service | None) -> bool:
    """Whether slices mirror Endpoints: those of a Service without a selector."""
    return (
        service is not None
        and not service.spec.selector
        and endpoints.metadata.labels.get(SKIP_MIRROR_LABEL) != "true"
        and "control-plane.alpha.kubernetes.io/leader" not in endpoints.metadata.annotations
    )


def plan_mirror(endpoints: Endpoints, present: Sequence[EndpointSlice]) -> list[Action]:
    """Plan: slices with the addresses of Endpoints that were written by hand."""
    meta = endpoints.metadata
    own = {key: text for key, text in meta.labels.items() if key != SKIP_MIRROR_LABEL}
    labels = {**own, SERVICE_NAME_LABEL: meta.name, MANAGED_BY_LABEL: MIRRORING_CONTROLLER}
    groups: dict[str, WantedSlice] = {}
    for number, subset in enumerate(endpoints.subsets or ()):
        ports = [
            {
                "name": port.get("name", ""),
                "port": port.get("port", 0),
                "protocol": port.get("protocol", "TCP"),
            }
            for port in subset.get("ports", ())
        ]
        for part, ready in (("addresses", True), ("notReadyAddresses", False)):
            for address in subset.get(part, ()):
                version = "IPv6" if ":" in address.get("ip", "") else "IPv4"
                group = groups.setdefault(f"{number}{version}", WantedSlice(version, ports, []))
                group.endpoints.append(_mirror_address(address, ready=ready))
    return plan_slices(ENDPOINTS, meta, labels, wanted=list(groups.values()), present=present)


def _mirror_address(address: Object, *, ready: bool) -> Object:
    found: Object = {"addresses": [address["ip"]], "conditions": {"ready": ready}}
    for field in ("hostname", "nodeName", "targetRef"):
        if address.get(field):
            found[field] = address[field]
    return found
