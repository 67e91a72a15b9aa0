"""The requests that the benchmarks send: small nodes, pods, groups and patches.

Each function returns one request; `http_client` sends it.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.http_client import JSON, Call

MERGE_PATCH = "application/merge-patch+json"
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
DEVICES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DEVICES}/namespaces/default/resourceclaims"
DRIVER = "gpu.example.com"
ONE_DEVICE = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
NODE_CAPACITY = {"cpu": "4", "memory": "32Gi", "pods": "110"}
POD_REQUESTS = {"cpu": "100m", "memory": "100Mi"}


def node(name: str, rack: str = "") -> Call:
    """Return the request that creates a ready node, optionally in a rack."""
    ready = {"type": "Ready", "status": "True"}
    status = {"capacity": NODE_CAPACITY, "allocatable": NODE_CAPACITY, "conditions": [ready]}
    labels = {"rack": rack} if rack else {}
    return _create(NODES, "v1", "Node", name=name, labels=labels, status=status)


def priority_class(name: str, value: int) -> Call:
    """Return the request that creates a priority class."""
    return _create(CLASSES, "scheduling.k8s.io/v1", "PriorityClass", name=name, value=value)


def remove_taints(name: str) -> Call:
    """Return the request that removes all taints of a node, such as not-ready of a new one."""
    return "PATCH", f"{NODES}/{name}", b'{"spec":{"taints":null}}', MERGE_PATCH


def namespace(name: str) -> Call:
    """Return the request that creates a namespace."""
    return _create(NAMESPACES, "v1", "Namespace", name=name)


def pod_group(
    name: str, minimum: int, *, key: str = "", importance: str = "", whole: bool = False
) -> Call:
    """Return the request that creates a gang.

    It may have a topology key, a priority class (`importance`), and disruption mode All (`whole`).
    """
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    if key:
        spec["schedulingConstraints"] = {"topology": [{"key": key}]}
    if importance:
        spec["priorityClassName"] = importance
    if whole:
        spec["disruptionMode"] = {"all": {}}
    return _create(GROUPS, "scheduling.k8s.io/v1beta1", "PodGroup", name=name, spec=spec)


def pod(
    name: str, *, group: str = "", on: str = "", path: str = PODS, cpu: str = "",
    importance: str = "", claims: str = "",
) -> Call:  # fmt: skip
    """Return the request that creates a pod.

    It may have a group and a node; a pod with a priority class (`importance`) has no grace period.
    `claims`: it uses the claim of its name, for a device or a volume, or one from the template.
    """
    need = {**POD_REQUESTS, "cpu": cpu} if cpu else POD_REQUESTS
    container = {"name": "main", "image": "pause", "resources": {"requests": need}}
    spec: dict[str, Any] = {"containers": [container]}
    if importance:
        spec |= {"priorityClassName": importance, "terminationGracePeriodSeconds": 0}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    if on:
        spec["nodeName"] = on
    if claims == "volume":
        used = {"claimName": name}
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": used}]
    elif claims:
        source = {
            "named": ("resourceClaimName", name),
            "template": ("resourceClaimTemplateName", "gpu"),
        }
        spec["resourceClaims"] = [{"name": "gpu", source[claims][0]: source[claims][1]}]
    return _create(path, "v1", "Pod", name=name, spec=spec)


def resource_slice(node_name: str, count: int) -> Call:
    """Return the request that publishes the devices of a node."""
    spec = {
        "driver": DRIVER,
        "nodeName": node_name,
        "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}"} for number in range(count)],
    }
    path, version = f"{DEVICES}/resourceslices", "resource.k8s.io/v1"
    return _create(path, version, "ResourceSlice", name=node_name, spec=spec)


def device_class() -> Call:
    """Return the request that creates the class of all devices."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    path, version = f"{DEVICES}/deviceclasses", "resource.k8s.io/v1"
    return _create(path, version, "DeviceClass", name="gpu", spec={"selectors": [selector]})


def claim_template() -> Call:
    """Return the request that creates the template of claims for one device."""
    path = f"{DEVICES}/namespaces/default/resourceclaimtemplates"
    kind, version = "ResourceClaimTemplate", "resource.k8s.io/v1"
    return _create(path, version, kind, name="gpu", spec={"spec": ONE_DEVICE})


def claim(name: str) -> Call:
    """Return the request that creates a claim for one device."""
    return _create(CLAIMS, "resource.k8s.io/v1", "ResourceClaim", name=name, spec=ONE_DEVICE)


def bound_volume(name: str) -> list[Call]:
    """Return the requests that create a volume, and a claim that is bound to it."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}
    volume = {
        "capacity": size,
        "accessModes": modes,
        "claimRef": reference,
        "nfs": {"server": "files.example", "path": f"/{name}"},
    }
    claim_spec = {
        "accessModes": modes,
        "resources": {"requests": size},
        "volumeName": name,
        "storageClassName": "",
    }
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    claim_meta = {"name": name, "annotations": bound}
    return [
        _create("/api/v1/persistentvolumes", "v1", "PersistentVolume", name=name, spec=volume),
        _create(
            path, "v1", "PersistentVolumeClaim", name=name, metadata=claim_meta, spec=claim_spec
        ),
    ]


def job(name: str, *, gang: bool, pods: int = 1) -> Call:
    """Return the request that creates a Job whose pods are a gang, or have no group."""
    container = {"name": "main", "image": "pause", "resources": {"requests": POD_REQUESTS}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    policy = {"policy": "JobAsGang" if gang else "NoGang"}
    spec = {"parallelism": pods, "completions": pods, "gangPolicy": policy, "template": template}
    return _create(JOBS, "batch/v1", "Job", name=name, spec=spec)


def relabel(path: str, turn: int) -> Call:
    """Return the request that patches one label of an object."""
    return "PATCH", path, b'{"metadata":{"labels":{"turn":"%d"}}}' % turn, MERGE_PATCH


def get(path: str) -> Call:
    """Return the request that reads an object or a list."""
    return "GET", path, b"", JSON


def _create(
    path: str, version: str, kind: str, *, name: str, labels: dict[str, str] | None = None,
    **parts: Any,
) -> Call:  # fmt: skip
    meta = {"name": name, "labels": labels} if labels else {"name": name}
    value = {"apiVersion": version, "kind": kind, "metadata": meta, **parts}
    return "POST", path, json.dumps(value).encode(), JSON
