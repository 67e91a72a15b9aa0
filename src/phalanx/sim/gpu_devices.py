"""Shares of GPUs in a simulation, as devices with consumable capacity.

    node with nvidia.com/milli-gpu: 2000       two devices of the capacity `milli: 1000`
    pod that requests 460 of it                a claim for 460 of one device
    pod that requests 4000 of it               a claim for four whole devices

The resource alone would let a share be put together from the rests of several GPUs. Other amounts,
such as 1500, are no number of devices: pods that request them have no claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.api.core import Node
from phalanx.api.resources import BadQuantity, exact_value
from phalanx.api.wire import Object
from phalanx.sim.workloads.workload import MILLI_GPU, TraceJob

DEVICE_CLASS, DRIVER = "gpu", "gpu.nvidia.com"
#: The name of the claim in a pod, of its request, and of the consumable capacity.
CLAIM, CAPACITY = "gpu", "milli"
#: What a whole device has of it.
WHOLE = 1000


def uses_shares(jobs: Iterable[TraceJob]) -> bool:
    """Whether some job requests shares of GPUs."""
    return any(MILLI_GPU in job.requests for job in jobs)


def build_device_class() -> Object:
    """Return the DeviceClass of all GPUs."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {"metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [selector]}}


def count_devices(node: Node) -> int:
    """Return the number of GPUs of a node."""
    return int(exact_value(node.status.allocatable.get(MILLI_GPU, "0"))) // WHOLE


def build_slice(node: str, count: int) -> Object:
    """Return the ResourceSlice with the GPUs of a node."""
    devices = [
        {
            "name": f"gpu-{number}",
            "allowMultipleAllocations": True,
            "capacity": {CAPACITY: {"value": str(WHOLE)}},
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-gpu"}, "spec": spec}


def build_claim_spec(requests: Mapping[str, str]) -> Object | None:
    """Return the spec of the claim of a pod; None if it needs none."""
    try:
        amount = exact_value(requests.get(MILLI_GPU, "0"))
    except BadQuantity:
        return None
    if amount <= 0 or amount.denominator != 1 or (amount > WHOLE and amount % WHOLE):
        return None
    share = min(int(amount), WHOLE)
    request = {
        "deviceClassName": DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": int(amount) // share,
        "capacity": {"requests": {CAPACITY: str(share)}},
    }
    return {"devices": {"requests": [{"name": CLAIM, "exactly": request}]}}
