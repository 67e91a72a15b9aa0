"""Extended resources that devices serve: a pod requests `example.com/gpu`, a DeviceClass serves it.

On a node that does not list the resource, the pod gets a claim for it, which is created when the
pod is bound. On a node that lists it, the pod uses that. The claim has one request for each
container and resource:

    containers[0]: cpu 1, example.com/gpu 2     request container-0-request-1, two devices

An init container that ends before the others start uses their devices. Only what it needs beyond
them is requested, and init containers of that kind share it:

    initContainers[0]: example.com/gpu 3        the two of container-1-request-0, and
    containers[0]:     example.com/gpu 2        container-0-request-0, one device
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from phalanx.api.core import Container, Pod
from phalanx.api.dynamic_resources import (
    DeviceRequest,
    DeviceRequests,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from phalanx.api.resources import exact_value
from phalanx.api.wire import Object
from phalanx.scheduler.devices.inventory import DeviceInventory


class ExtendedRequest(NamedTuple):
    """A request of the claim: devices of a class that serve a resource."""

    name: str
    resource: str
    device_class: str
    number: int


class ExtendedMapping(NamedTuple):
    """A container, a resource of it, and a request whose devices serve it."""

    container: str
    resource: str
    request: str


class ExtendedRequests(NamedTuple):
    """The requests of the claim, sorted by name, and which containers use them."""

    requests: tuple[ExtendedRequest, ...]
    mappings: tuple[ExtendedMapping, ...]


def extended_requests(
    pod: Pod, resources: Collection[str], inventory: DeviceInventory
) -> ExtendedRequests:
    """Return the requests for these resources of a pod."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    amounts = [_amounts(container) for container in containers]
    requests, mappings = list[ExtendedRequest](), list[ExtendedMapping]()
    for resource in sorted({name for one in amounts for name in one if name in resources}):
        found = _requests_for(
            resource,
            inventory.class_of_resource(resource),
            containers,
            amounts=amounts,
            inits=len(pod.spec.init_containers),
        )
        requests += found.requests
        mappings += found.mappings
    return ExtendedRequests(tuple(sorted(requests)), tuple(mappings))


def _requests_for(
    resource: str,
    device_class: str,
    containers: Sequence[Container],
    *,
    amounts: Sequence[dict[str, int]],
    inits: int,
) -> ExtendedRequests:
    """Return the requests for one resource; the first `inits` containers are init containers."""
    lasting: dict[int, ExtendedRequest] = {}
    mappings: list[ExtendedMapping] = []
    ending: list[int] = []
    for number, (container, amount) in enumerate(zip(containers, amounts, strict=True)):
        if not amount.get(resource):
            continue
        if number < inits and container.restart_policy != "Always":
            ending.append(number)
            continue
        name = f"container-{number}-request-{list(amount).index(resource)}"
        lasting[number] = ExtendedRequest(name, resource, device_class, amount[resource])
        mappings.append(ExtendedMapping(container.name, resource, name))
    largest: ExtendedRequest | None = None
    used: list[tuple[int, list[str]]] = []
    for number in ending:
        left, names = amounts[number][resource], list[str]()
        for later, request in lasting.items():
            if left > 0 and later > number:
                left -= request.number
                names.append(request.name)
        if left > 0:
            name = f"container-{number}-request-{list(amounts[number]).index(resource)}"
            names.append("")
            if largest is None or largest.number < left:
                largest = ExtendedRequest(name, resource, device_class, left)
        used.append((number, names))
    own = largest.name if largest else ""
    mappings += (
        ExtendedMapping(containers[number].name, resource, name or own)
        for number, names in used
        for name in names
    )
    return ExtendedRequests((*lasting.values(), *([largest] if largest else ())), tuple(mappings))


def _amounts(container: Container) -> dict[str, int]:
    """Return what a container requests, sorted by resource."""
    requests = {**container.resources.limits, **container.resources.requests}
    return {resource: int(exact_value(amount)) for resource, amount in sorted(requests.items())}


def extended_claim_spec(requests: Collection[ExtendedRequest]) -> ResourceClaimSpec:
    """Return the spec of the claim for these requests."""
    return ResourceClaimSpec(
        DeviceRequests(
            tuple(
                DeviceRequest(
                    one.name,
                    ExactDeviceRequest(device_class_name=one.device_class, count=one.number),
                )
                for one in requests
            )
        )
    )


def spec_object(requests: Collection[ExtendedRequest]) -> Object:
    """Return the same spec as the API has it."""
    return {
        "devices": {
            "requests": [
                {
                    "name": one.name,
                    "exactly": {
                        "deviceClassName": one.device_class,
                        "allocationMode": "ExactCount",
                        "count": one.number,
                    },
                }
                for one in requests
            ]
        }
    }


def mapping_objects(mappings: Collection[ExtendedMapping]) -> tuple[Object, ...]:
    """Return which request serves which resource of which container, as a pod's status has it."""
    return tuple(
        {"containerName": one.container, "resourceName": one.resource, "requestName": one.request}
        for one in mappings
    )
