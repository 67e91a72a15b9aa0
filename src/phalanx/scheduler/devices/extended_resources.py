"""Extended resources that devices serve: a pod requests `example.com/gpu`, a DeviceClass serves it.

On a node that does not list the resource, the pod gets a claim for it, which is created when the
pod is bound. On a node that lists it, the pod uses that. The claim has one request for each
container and resource:

    containers[0]: cpu 1, example.com/gpu 2     request container-0-request-1, two devices
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
    """One resource of one container that a class serves."""

    name: str
    container: str
    resource: str
    device_class: str
    number: int


def extended_requests(
    pod: Pod, resources: Collection[str], inventory: DeviceInventory
) -> list[ExtendedRequest]:
    """Return the requests for these resources of a pod, in the order of its containers."""
    found = []
    for number, container in enumerate((*pod.spec.init_containers, *pod.spec.containers)):
        for position, (resource, amount) in enumerate(_amounts(container)):
            if resource in resources and amount > 0:
                found.append(
                    ExtendedRequest(
                        f"container-{number}-request-{position}",
                        container.name,
                        resource,
                        inventory.class_of_resource(resource),
                        amount,
                    )
                )
    return found


def _amounts(container: Container) -> Iterator[tuple[str, int]]:
    requests = {**container.resources.limits, **container.resources.requests}
    for resource, amount in sorted(requests.items()):
        yield resource, int(exact_value(amount))


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


def request_mappings(requests: Collection[ExtendedRequest]) -> tuple[Object, ...]:
    """Return which request serves which resource of which container, as a pod's status has it."""
    return tuple(
        {"containerName": one.container, "resourceName": one.resource, "requestName": one.name}
        for one in requests
    )
