"""Scenarios of volumes and devices beside the recorded ones, in virtual time.

They are written from what the components of Kubernetes do, not recorded. Each row has its steps and
what must be there at the end: the node of every pod, and fields of some objects.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from phalanx.api.wire import Object
from phalanx.sim import virtual_time as loop
from tests.sim.recorded_scenario import run_recorded_scenario

pytestmark = pytest.mark.slow

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
PODS = "/api/v1/namespaces/default/pods"
DEVICE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GPU = "example.com/gpu"
HOST = "kubernetes.io/hostname"


class Row(NamedTuple):
    """The steps of a scenario, the nodes of its pods, and fields of objects by their paths."""

    steps: list[Object]
    placement: Object
    objects: dict[str, Object] = {}


# ---- objects -------------------------------------------------------------------------------------


def node(name: str, cpu: str = "4", **labels: str) -> Object:
    amounts = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    status = {
        "allocatable": amounts,
        "capacity": amounts,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    meta = {"name": name, "labels": {HOST: name, **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def storage_class(mode: str = "WaitForFirstConsumer", *, provisions: bool = False) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "disk"},
        "provisioner": "disk.example" if provisions else "kubernetes.io/no-provisioner",
        "volumeBindingMode": mode,
    }


def volume(name: str, on: str = "", size: str = "10Gi", **fields: Any) -> Object:
    spec: Object = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "disk",
        "csi": {"driver": "disk.example", "volumeHandle": name},
        **fields,
    }
    if on:
        host = {"key": HOST, "operator": "In", "values": [on]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": spec,
    }


def volume_claim(name: str, mode: str = "ReadWriteOnce", **fields: Any) -> Object:
    spec = {
        "accessModes": [mode],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": "disk",
        **fields,
    }
    meta = {"name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def pod(
    name: str,
    *volumes: str,
    claims: tuple[Object, ...] = (),
    group: str = "",
    requests: Object | None = None,
    **fields: Any,
) -> Object:
    amounts = {"cpu": "1", **(requests or {})}
    container: Object = {
        "name": "main",
        "image": "registry.example/pause:1",
        "resources": {"requests": amounts, "limits": dict(requests or {})},
    }
    spec: Object = {"containers": [container], **fields}
    if volumes:
        spec["volumes"] = [
            {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, claim in enumerate(volumes)
        ]
    if claims:
        spec["resourceClaims"] = list(claims)
        container["resources"]["claims"] = [{"name": one["name"]} for one in claims]
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def gang(name: str, minimum: int, **fields: Any) -> Object:
    spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}, **fields}
    meta = {"name": name}
    version = "scheduling.k8s.io/v1beta1"
    return {"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": spec}


def priority(name: str, value: int) -> Object:
    version = "scheduling.k8s.io/v1"
    meta = {"name": name}
    return {"apiVersion": version, "kind": "PriorityClass", "metadata": meta, "value": value}


def resource(kind: str, name: str, spec: Object) -> Object:
    version = "resource.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def device_class(name: str = "gpu", expression: str = "true", **fields: Any) -> Object:
    return resource(
        "DeviceClass", name, {"selectors": [{"cel": {"expression": expression}}], **fields}
    )


def devices_of(on: str, *devices: Object, name: str = "", **fields: Any) -> Object:
    pool = {"name": on or "fabric", "generation": 1, "resourceSliceCount": 1}
    spec: Object = {"driver": "gpu.example", "pool": pool, "devices": list(devices), **fields}
    if on:
        spec["nodeName"] = on
    return resource("ResourceSlice", name or f"slice-{on or 'fabric'}", spec)


def device(name: str, **fields: Any) -> Object:
    return {"name": name, **fields}


def exactly(name: str = "gpu", **fields: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def device_claim(name: str, *requests: Object, **fields: Any) -> Object:
    wanted = {"requests": list(requests) or [exactly()], **fields}
    return resource("ResourceClaim", name, {"devices": wanted})


def template(name: str) -> Object:
    spec = {"spec": {"devices": {"requests": [exactly()]}}}
    return resource("ResourceClaimTemplate", name, spec)


def named(claim: str) -> tuple[Object, ...]:
    return ({"name": "gpu", "resourceClaimName": claim},)


FROM_TEMPLATE: Object = {"name": "gpu", "resourceClaimTemplateName": "gpu"}


# ---- steps ---------------------------------------------------------------------------------------


def create(*objects: Object) -> Object:
    return {"create": list(objects)}


def until_bound(count: int, group: str = "-") -> Object:
    return {"until": {"group": group, "bound": count, "limit": 30}}


def until_refused(count: int = 1, group: str = "-") -> Object:
    return {"until": {"group": group, "reason": "Unschedulable", "count": count, "limit": 8}}


def until(path: str, **fields: Any) -> Object:
    wanted = {name.replace("_", "."): value for name, value in fields.items()}
    return {"until": {"at": path, "is": wanted, "limit": 30}}


SETTLE: Object = {"settle": 1.5}
SELECTED = "metadata.annotations[volume.kubernetes.io/selected-node]"
DEVICES = "status.allocation.devices.results"


def allocated(*names: str, pool: str = "n1", request: str = "gpu") -> list[Object]:
    return [
        {"request": request, "driver": "gpu.example", "pool": pool, "device": one} for one in names
    ]


VOLUME_ROWS = {
    "a volume that names the claim wins over smaller ones": Row(
        [
            create(node("n1"), storage_class(), volume("small", "n1", "5Gi")),
            create(volume("mine", "n1", "50Gi", claimRef={"namespace": "default", "name": "data"})),
            SETTLE,
            create(volume_claim("data"), pod("p", "data")),
            until_bound(1),
            SETTLE,
        ],
        {"p": "n1"},
        {f"{CLAIMS}/data": {"spec.volumeName": "mine"}},
    ),
    "a claim that names a volume is bound by the binder, and the pod follows": Row(
        [
            create(node("n1"), node("n2"), storage_class(), volume_claim("data", volumeName="v")),
            create(pod("p", "data")),
            until_refused(),
            create(volume("v", "n2")),
            until_bound(1),
            SETTLE,
        ],
        {"p": "n2"},
        {f"{VOLUMES}/v": {"status.phase": "Bound", "spec.claimRef.name": "data"}},
    ),
    "a released volume is not bound again until its claimRef is removed": Row(
        [
            create(node("n1"), storage_class("Immediate"), volume("v"), volume_claim("old")),
            until(f"{CLAIMS}/old", status_phase="Bound"),
            {"delete": f"{CLAIMS}/old"},
            until(f"{VOLUMES}/v", status_phase="Released"),
            create(volume_claim("new"), pod("p", "new")),
            until_refused(),
            SETTLE,
            {"patch": [f"{VOLUMES}/v", {"spec": {"claimRef": None}}]},
            until_bound(1),
            SETTLE,
        ],
        {"p": "n1"},
        {f"{CLAIMS}/new": {"spec.volumeName": "v"}},
    ),
    "a pod of higher priority takes a ReadWriteOncePod claim": Row(
        [
            create(priority("low", 1), priority("high", 100), node("n1"), node("n2")),
            create(storage_class("Immediate"), volume("v", accessModes=["ReadWriteOncePod"])),
            create(volume_claim("data", "ReadWriteOncePod")),
            until(f"{CLAIMS}/data", status_phase="Bound"),
            create(pod("low", "data", priorityClassName="low")),
            until_bound(1),
            create(pod("high", "data", priorityClassName="high")),
            {"until": {"gone": "low"}},
            until_bound(1),
            SETTLE,
        ],
        {"high": "n1"},
    ),
    "another node is selected when the selected one is deleted": Row(
        [
            create(node("n1"), storage_class(provisions=True), volume_claim("data")),
            create(pod("p", "data")),
            {"until": {"at": f"{CLAIMS}/data", "is": {SELECTED: "n1"}, "limit": 20}},
            {"delete": "/api/v1/nodes/n1"},
            create(node("n2")),
            {"until": {"at": f"{CLAIMS}/data", "is": {SELECTED: "n2"}, "limit": 20}},
            {"provision": {"claim": "data"}},
            until_bound(1),
            SETTLE,
        ],
        {"p": "n2"},
    ),
    "a gang keeps the volume that was provisioned when another one failed": Row(
        [
            create(node("n1", "1"), node("n2", "1"), storage_class(provisions=True)),
            create(volume_claim("d-0"), volume_claim("d-1"), gang("train", 2)),
            create(pod("t-0", "d-0", group="train"), pod("t-1", "d-1", group="train")),
            {"provision": {"claim": "d-0"}},
            {"refuse": {"claim": "d-1"}},
            {"provision": {"claim": "d-1"}},
            until_bound(2, "train"),
            SETTLE,
        ],
        {"t-0": "n1", "t-1": "n2"},
        {f"{CLAIMS}/d-0": {"status.phase": "Bound"}, f"{CLAIMS}/d-1": {"status.phase": "Bound"}},
    ),
    "a gang that lacks a volume leaves no trace": Row(
        [
            create(node("n1"), node("n2"), storage_class(), volume("v", "n1"), gang("train", 2)),
            create(volume_claim("d-0"), volume_claim("d-1")),
            create(pod("t-0", "d-0", group="train"), pod("t-1", "d-1", group="train")),
            until_refused(2, "train"),
            SETTLE,
        ],
        {"t-0": "", "t-1": ""},
        {
            f"{VOLUMES}/v": {"status.phase": "Available", "spec.claimRef.name": None},
            f"{CLAIMS}/d-0": {SELECTED: None, "spec.volumeName": None},
        },
    ),
    "a volume in use is kept until its claim is deleted": Row(
        [
            create(storage_class("Immediate"), volume("v"), volume_claim("data")),
            until(f"{CLAIMS}/data", status_phase="Bound"),
            {"delete": f"{VOLUMES}/v"},
            SETTLE,
            {"delete": f"{CLAIMS}/data"},
            {"until": {"missing": f"{VOLUMES}/v"}},
            SETTLE,
        ],
        {},
        {f"{VOLUMES}/v": {"code": 404}},
    ),
}

DEVICE_ROWS = {
    "admin access shares a device that is in use": Row(
        [
            create(node("n1"), device_class(), devices_of("n1", device("gpu-0"))),
            create(device_claim("one"), pod("p", claims=named("one"))),
            until_bound(1),
            {
                "patch": [
                    "/api/v1/namespaces/default",
                    {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
                ]
            },
            create(device_claim("watch", exactly(adminAccess=True))),
            create(pod("q", claims=named("watch"))),
            until_bound(2),
            SETTLE,
        ],
        {"p": "n1", "q": "n1"},
        {
            f"{DEVICE_CLAIMS}/watch": {
                DEVICES: [{**allocated("gpu-0")[0], "adminAccess": True}],
            }
        },
    ),
    "partitions of a device fit while its counters last": Row(
        [
            create(
                node("n1"),
                device_class(),
                resource(
                    "ResourceSlice",
                    "counters",
                    {
                        "driver": "gpu.example",
                        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 2},
                        "nodeName": "n1",
                        "sharedCounters": [{"name": "m", "counters": {"gi": {"value": "40"}}}],
                    },
                ),
                resource(
                    "ResourceSlice",
                    "partitions",
                    {
                        "driver": "gpu.example",
                        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 2},
                        "nodeName": "n1",
                        "devices": [
                            device(
                                name,
                                consumesCounters=[
                                    {"counterSet": "m", "counters": {"gi": {"value": amount}}}
                                ],
                            )
                            for name, amount in (("half", "20"), ("whole", "40"), ("rest", "20"))
                        ],
                    },
                ),
            ),
            create(device_claim("a"), device_claim("b"), device_claim("c")),
            create(pod("p-a", claims=named("a"))),
            until_bound(1),
            create(pod("p-b", claims=named("b"))),
            until_bound(2),
            create(pod("p-c", claims=named("c"))),
            until_refused(),
            SETTLE,
        ],
        {"p-a": "n1", "p-b": "n1", "p-c": ""},
        {
            f"{DEVICE_CLAIMS}/a": {DEVICES: allocated("half")},
            f"{DEVICE_CLAIMS}/b": {DEVICES: allocated("rest")},
        },
    ),
    "consumed capacity is rounded up to what the policy allows": Row(
        [
            create(
                node("n1"),
                device_class(),
                devices_of(
                    "n1",
                    device(
                        "gpu-0",
                        allowMultipleAllocations=True,
                        capacity={
                            "memory": {
                                "value": "10Gi",
                                "requestPolicy": {
                                    "default": "1Gi",
                                    "validRange": {"min": "1Gi", "step": "2Gi", "max": "9Gi"},
                                },
                            }
                        },
                    ),
                ),
            ),
            create(device_claim("one", exactly(capacity={"requests": {"memory": "4Gi"}}))),
            create(pod("p", claims=named("one"))),
            until_bound(1),
            SETTLE,
        ],
        {"p": "n1"},
        {f"{DEVICE_CLAIMS}/one": {f"{DEVICES}.0.consumedCapacity": {"memory": "5Gi"}}},
    ),
    "a NoExecute rule evicts the pod and frees its device": Row(
        [
            create(node("n1"), device_class(), devices_of("n1", device("gpu-0"))),
            create(device_claim("one"), pod("p", claims=named("one"))),
            until_bound(1),
            create(
                resource(
                    "DeviceTaintRule",
                    "off",
                    {
                        "deviceSelector": {"driver": "gpu.example"},
                        "taint": {"key": "broken", "effect": "NoExecute"},
                    },
                )
            ),
            {"until": {"gone": "p"}},
            SETTLE,
        ],
        {},
        {f"{DEVICE_CLAIMS}/one": {"status.allocation": None, "status.reservedFor": None}},
    ),
    "an idle claim that is allocated for a cordoned node is allocated anew": Row(
        [
            create(node("n1"), device_class(), devices_of("n1", device("gpu-0"))),
            create(device_claim("one"), pod("p", claims=named("one"))),
            until_bound(1),
            create(node("n2"), devices_of("n2", device("gpu-0"))),
            {"patch": ["/api/v1/nodes/n1", {"spec": {"unschedulable": True}}]},
            create(pod("q", claims=named("one"))),
            until_refused(),
            {"delete": f"{PODS}/p"},
            until_bound(1),
            SETTLE,
        ],
        {"q": "n2"},
        {f"{DEVICE_CLAIMS}/one": {DEVICES: allocated("gpu-0", pool="n2")}},
    ),
    "a claim of the group is placed where its network device is": Row(
        [
            create(*(node(f"n{n}", "1", rack=rack) for n, rack in enumerate("aabb"))),
            create(
                device_class(),
                devices_of(
                    "",
                    device("net-0"),
                    nodeSelector={
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "rack", "operator": "In", "values": ["b"]}
                                ]
                            }
                        ]
                    },
                ),
            ),
            create(template("gpu"), gang("train", 2, resourceClaims=[FROM_TEMPLATE])),
            create(*(pod(f"t-{n}", claims=(FROM_TEMPLATE,), group="train") for n in range(2))),
            until_bound(2, "train"),
            SETTLE,
        ],
        {"t-0": "n2", "t-1": "n3"},
    ),
    "an init container uses the device of the container after it": Row(
        [
            create(node("n1"), device_class(extendedResourceName=GPU)),
            create(devices_of("n1", *(device(f"gpu-{n}") for n in range(3)))),
            create(
                pod(
                    "p",
                    requests={GPU: "1"},
                    initContainers=[
                        {
                            "name": "init",
                            "image": "registry.example/pause:1",
                            "resources": {"requests": {GPU: "2"}, "limits": {GPU: "2"}},
                        }
                    ],
                )
            ),
            until_bound(1),
            SETTLE,
        ],
        {"p": "n1"},
        {
            f"{PODS}/p": {
                "status.extendedResourceClaimStatus.requestMappings": [
                    {"containerName": name, "resourceName": GPU, "requestName": request}
                    for name, request in (
                        ("main", "container-1-request-1"),
                        ("init", "container-1-request-1"),
                        ("init", "container-0-request-0"),
                    )
                ]
            }
        },
    ),
    "a device that failed to attach is released and allocated anew": Row(
        [
            create(
                node("n1"),
                device_class(),
                devices_of(
                    "n1",
                    device(
                        "gpu-0", bindingConditions=["ready"], bindingFailureConditions=["failed"]
                    ),
                ),
            ),
            create(device_claim("one"), pod("p", claims=named("one"))),
            until(f"{DEVICE_CLAIMS}/one", status_allocation_devices_results_0_device="gpu-0"),
            {
                "patch": [
                    f"{DEVICE_CLAIMS}/one/status",
                    {
                        "status": {
                            "devices": [
                                {
                                    "driver": "gpu.example",
                                    "pool": "n1",
                                    "device": "gpu-0",
                                    "conditions": [
                                        {
                                            "type": "failed",
                                            "status": "True",
                                            "reason": "Driver",
                                            "message": "",
                                            "lastTransitionTime": "2026-01-01T00:00:00Z",
                                        }
                                    ],
                                }
                            ]
                        }
                    },
                ]
            },
            SETTLE,
        ],
        {"p": ""},
        {f"{DEVICE_CLAIMS}/one": {DEVICES + ".0.device": "gpu-0", "status.devices": None}},
    ),
}

ROWS = {**VOLUME_ROWS, **DEVICE_ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_scenario_ends_as_in_kubernetes(name: str) -> None:
    steps, placement, objects = ROWS[name]
    looks = [{"get": path, "keep": list(fields)} for path, fields in objects.items()]
    outcome: Object = {"placement": placement}
    if objects:
        outcome["objects"] = objects
    case = {"look": ["placement", *looks], "steps": steps, "outcome": outcome}
    assert loop.run_virtual(lambda: run_recorded_scenario(case)) == []
