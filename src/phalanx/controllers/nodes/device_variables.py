"""The devices of a container as environment variables of its process.

A runtime would inject devices by their CDI names, `vendor/class=device`. A process gets these names
for each claim that its container uses, the driver being the vendor and the request the class:

    CDI_DEVICES_GPU=gpu.example.com/gpu=gpu-0,gpu.example.com/gpu=gpu-1     the claim `gpu`
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
            name = PREFIX + re.sub("[^A-Z0-9]", "_", used["name"].upper())
            variables[name] = ",".join(_cdi_names(claim, used.get("request", "")))
    return variables


def _cdi_names(claim: Object, request: str) -> list[str]:
    """The CDI names of the devices of a claim, or of one of its requests."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [
        f"{one['driver']}/{one['request'].replace('/', '-')}={one['device']}"
        for one in results
        if not request or one["request"].partition("/")[0] == request
    ]
