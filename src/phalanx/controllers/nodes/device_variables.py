"""The devices of a container as environment variables of its process.

A runtime would inject devices by their CDI names, `vendor/class=device`. A process gets these names
for each claim that its container uses, the driver being the vendor and the request the class:

    CDI_DEVICES_GPU=gpu.example.com/gpu=gpu-0,gpu.example.com/gpu=gpu-1     the claim `gpu`

An extended resource that a DeviceClass serves has no entry in `resourceClaims`: the scheduler
creates the claim, and the pod's status says which request belongs to which container and resource.

    CDI_DEVICES_EXAMPLE_COM_GPU=gpu.example.com/container-0-request-0=gpu-0     `example.com/gpu`
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from phalanx.api.wire import Object

PREFIX = "CDI_DEVICES_"


def claim_names(pod: Object) -> dict[str, str]:
    """Return the names of a pod's claims by the name of their entry in `resourceClaims`."""
    status = pod.get("status") or {}
    created = {
        one["name"]: one.get("resourceClaimName", "")
        for one in status.get("resourceClaimStatuses") or ()
    }
    names = {
        one["name"]: one.get("resourceClaimName") or created.get(one["name"], "")
        for one in pod["spec"].get("resourceClaims") or ()
    }
    return {entry: name for entry, name in names.items() if name}


def device_variables(container: Object, claims: Mapping[str, Object]) -> dict[str, str]:
    """Return the variables for the claims, by entry, that a container uses."""
    variables: dict[str, str] = {}
    for used in (container.get("resources") or {}).get("claims") or ():
        claim = claims.get(used["name"])
        if claim is not None:
            names = _cdi_names(claim, used.get("request", ""))
            variables[_variable_name(used["name"])] = ",".join(names)
    return variables


def extended_claim_name(pod: Object) -> str:
    """Return the name of the claim for a pod's extended resources; "" without one."""
    name: str = _extended_status(pod).get("resourceClaimName", "")
    return name


def extended_resource_variables(container: Object, pod: Object, claim: Object) -> dict[str, str]:
    """Return the variables for the extended resources of a container that devices serve."""
    devices: dict[str, list[str]] = {}
    for mapping in _extended_status(pod).get("requestMappings") or ():
        if mapping["containerName"] == container["name"]:
            found = devices.setdefault(_variable_name(mapping["resourceName"]), [])
            found += _cdi_names(claim, mapping["requestName"])
    return {name: ",".join(names) for name, names in devices.items()}


def _extended_status(pod: Object) -> Object:
    return (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}


def _variable_name(used: str) -> str:
    return PREFIX + re.sub("[^A-Z0-9]", "_", used.upper())


def _cdi_names(claim: Object, request: str) -> list[str]:
    """The CDI names of the devices of a claim, or of one of its requests."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [
        f"{one['driver']}/{one['request'].replace('/', '-')}={one['device']}"
        for one in results
        if not request or one["request"].partition("/")[0] == request
    ]
