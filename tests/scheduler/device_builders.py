"""Devices, claims, nodes and pods for tests, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from phalanx.api.core import Node, Pod
from phalanx.api.dynamic_resources import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaimSpec,
    ResourceSlice,
)
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, SchedulerState, load_state

DRIVER = "gpu.example"


def device(name: str, **fields: Any) -> Object:
    """A device; `attributes` and `capacity` are plain values."""
    kinds = {bool: "bool", int: "int", str: "string"}
    attributes = fields.pop("attributes", {})
    capacity = fields.pop("capacity", {})
    return {
        "name": name,
        "attributes": {key: {kinds[type(one)]: one} for key, one in attributes.items()},
        "capacity": {
            key: one if isinstance(one, dict) else {"value": one} for key, one in capacity.items()
        },
        **fields,
    }


def gpus(count: int, **attributes: Any) -> list[Object]:
    """Equal devices gpu-0, gpu-1, …"""
    return [device(f"gpu-{number}", attributes=attributes) for number in range(count)]


def resource_slice(
    node: str = "",
    devices: Iterable[Object] = (),
    *,
    name: str = "",
    pool: str = "",
    generation: int = 1,
    slices: int = 1,
    **spec: Any,
) -> ResourceSlice:
    """A slice of the devices of a node; without a node, `spec` says which nodes reach them."""
    if node:
        spec["nodeName"] = node
    return msgspec.convert(
        {
            "metadata": {"name": name or f"slice-{node or pool}"},
            "spec": {
                "driver": DRIVER,
                "pool": {
                    "name": pool or node,
                    "generation": generation,
                    "resourceSliceCount": slices,
                },
                "devices": list(devices),
                **spec,
            },
        },
        ResourceSlice,
    )


def device_class(name: str = "gpu", expression: str = "", **spec: Any) -> DeviceClass:
    """A class of all devices of the driver, or of those that an expression selects."""
    selector = {"cel": {"expression": expression or f'device.driver == "{DRIVER}"'}}
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"selectors": [selector], **spec}}, DeviceClass
    )


def taint_rule(name: str, **spec: Any) -> DeviceTaintRule:
    """A taint for devices."""
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceTaintRule)


def exactly(name: str = "gpu", count: int = 1, **fields: Any) -> Object:
    """A request for devices of the class `gpu`."""
    mode = {} if "allocationMode" in fields else {"count": count}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **mode, **fields}}


def spec(*requests: Object, constraints: Sequence[Object] = ()) -> Object:
    """The spec of a claim; without requests, for one device."""
    devices: Object = {"requests": list(requests or (exactly(),))}
    if constraints:
        devices["constraints"] = list(constraints)
    return {"devices": devices}


def claim_spec(*requests: Object, constraints: Sequence[Object] = ()) -> ResourceClaimSpec:
    """The same, decoded."""
    return msgspec.convert(spec(*requests, constraints=constraints), ResourceClaimSpec)


def claim(
    name: str, *requests: Object, constraints: Sequence[Object] = (), **fields: Any
) -> DeviceClaim:
    """A claim."""
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}"},
            "spec": spec(*requests, constraints=constraints),
            **fields,
        },
        DeviceClaim,
    )


def allocated(name: str, device_id: str, *consumers: str, node: str = "") -> DeviceClaim:
    """A claim that has one device, `pool/device`, and is reserved for pods."""
    pool, _, device_name = device_id.rpartition("/")
    result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device_name}
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node or pool]}]}
    ]
    return claim(
        name,
        status={
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": terms},
            },
            "reservedFor": [
                {"resource": "pods", "name": one, "uid": f"pod-{one}"} for one in consumers
            ],
        },
    )


def node(name: str, cpu: int = 8, **labels: str) -> Node:
    """A node."""
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
            "status": {"allocatable": {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}},
        },
        Node,
    )


def pod(
    name: str,
    *claims: str,
    group: str = "",
    cpu: str = "1",
    on: str = "",
    requests: Object | None = None,
    **fields: Any,
) -> Pod:
    """A pod that uses claims by name."""
    entries = [{"name": f"entry-{one}", "resourceClaimName": one} for one in claims]
    resources = {"requests": {"cpu": cpu, **(requests or {})}}
    pod_spec: Object = {
        "containers": [{"name": "main", "image": "x", "resources": resources}],
        "resourceClaims": entries,
        **fields,
    }
    if group:
        pod_spec["schedulingGroup"] = {"podGroupName": group}
    if on:
        pod_spec["nodeName"] = on
    meta = {"name": name, "namespace": "default", "uid": f"pod-{name}"}
    return msgspec.convert({"metadata": meta, "spec": pod_spec}, Pod)


def gang(name: str, minimum: int, **fields: Any) -> PodGroup:
    """A gang."""
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"group-{name}"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}, **fields},
        },
        PodGroup,
    )


def state_of(
    nodes: Iterable[Node],
    devices: Iterable[Any],
    pods: Iterable[Pod],
    groups: Iterable[PodGroup] = (),
) -> SchedulerState:
    """The state of a scheduler that has observed these objects."""
    return load_state(ClusterObjects(list(nodes), list(groups), list(pods), devices=list(devices)))


def decide(state: SchedulerState) -> Decision:
    """Pop the next entity and decide about it."""
    entity = state.pop(0.0)
    assert entity is not None
    decision = state.decide(entity)
    state.commit(entity, decision, 0.0)
    return decision


def devices_of(decision: Decision) -> dict[str, list[str]]:
    """The devices of each claim that a decision allocates: `pool/device`."""
    assert isinstance(decision, Placed)
    return {
        one.claim.name: [
            f"{result['pool']}/{result['device']}"
            for result in one.allocation["devices"]["results"]
        ]
        for one in decision.claims
        if one.allocation is not None
    }


def nodes_of(decision: Decision) -> dict[str, str]:
    """The node of each pod."""
    assert isinstance(decision, Placed)
    return {one.pod.name: one.node for one in decision.bindings}
