"""Volumes, claims, storage classes and pods with claims for tests, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from phalanx.api.core import Node, Pod
from phalanx.api.storage import (
    BIND_COMPLETED,
    SELECTED_NODE,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from phalanx.api.wire import Object
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, SchedulerState, load_state
from phalanx.scheduler.volumes.state import VolumeObject

HOST = "kubernetes.io/hostname"


def host(name: str, **allocatable: Any) -> Node:
    """A node with its name as hostname label; a keyword that begins with `zone` is a label."""
    labels = {HOST: name}
    if zone := allocatable.pop("zone", ""):
        labels["topology.kubernetes.io/zone"] = zone
    amounts = {"cpu": "4", "memory": "8Gi", "pods": 110, **allocatable}
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}}, Node
    )


def storage_class(
    name: str = "disk", provisioner: str = "kubernetes.io/no-provisioner", **fields: Any
) -> StorageClass:
    """A class whose claims wait for their first consumer."""
    fields = {"volumeBindingMode": "WaitForFirstConsumer", **fields}
    return msgspec.convert(
        {"metadata": {"name": name}, "provisioner": provisioner, **fields}, StorageClass
    )


def volume(
    name: str,
    size: str = "10Gi",
    *,
    nodes: Iterable[str] = (),
    claim: str = "",
    labels: dict[str, str] | None = None,
    phase: str = "",
    **spec: Any,
) -> PersistentVolume:
    """A volume of class disk: local to some nodes, and bound to a claim."""
    if values := list(nodes):
        term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": values}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim, "uid": f"uid-{claim}"}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "disk",
                **spec,
            },
            "status": {"phase": phase or ("Bound" if claim else "Available")},
        },
        PersistentVolume,
    )


def csi_volume(name: str, claim: str = "", **fields: Any) -> PersistentVolume:
    """A volume of the CSI driver disk.example."""
    source = {"driver": "disk.example", "volumeHandle": f"handle-{name}"}
    return volume(name, claim=claim, csi=source, **fields)


def volume_claim(
    name: str,
    size: str = "5Gi",
    *,
    bound_to: str = "",
    selected_node: str = "",
    phase: str = "",
    **spec: Any,
) -> PersistentVolumeClaim:
    """A claim of class disk."""
    annotations = {BIND_COMPLETED: "yes"} if bound_to else {}
    if selected_node:
        annotations[SELECTED_NODE] = selected_node
    if bound_to:
        spec["volumeName"] = bound_to
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "annotations": annotations,
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": size}},
                "storageClassName": "disk",
                **spec,
            },
            "status": {"phase": phase or ("Bound" if bound_to else "Pending")},
        },
        PersistentVolumeClaim,
    )


def csi_driver(name: str = "disk.example", **spec: Any) -> CSIDriver:
    """A CSIDriver."""
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, CSIDriver)


def csi_node(name: str, *, limit: int | None, driver: str = "disk.example") -> CSINode:
    """A CSINode whose driver attaches so many volumes."""
    one: Object = {"name": driver, "allocatable": {"count": limit} if limit is not None else None}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": [one]}}, CSINode)


def storage_capacity(
    name: str, capacity: str, topology: dict[str, str], **fields: Any
) -> CSIStorageCapacity:
    """How much storage of class disk nodes with these labels have."""
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default"},
            "storageClassName": "disk",
            "nodeTopology": {"matchLabels": topology},
            "capacity": capacity,
            **fields,
        },
        CSIStorageCapacity,
    )


def volume_attachment(name: str, node: str, volume_name: str) -> VolumeAttachment:
    """A volume that is attached to a node."""
    spec = {
        "attacher": "disk.example",
        "nodeName": node,
        "source": {"persistentVolumeName": volume_name},
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, VolumeAttachment)


def claiming_pod(
    name: str, *claims: str, group: str = "", on: str = "", ephemeral: str = "", **spec: Any
) -> Pod:
    """A pod that uses claims; `ephemeral` names a volume whose claim is created for the pod."""
    volumes: list[Object] = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    if ephemeral:
        volumes.append({"name": ephemeral, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}})
    cpu = spec.pop("cpu", "1")
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "nodeName": on,
                "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
                "volumes": volumes,
                **({"schedulingGroup": {"podGroupName": group}} if group else {}),
                **spec,
            },
        },
        Pod,
    )


def bound_pair(name: str, **fields: Any) -> list[VolumeObject]:
    """A claim, and the volume v-NAME that it is bound to."""
    claim_spec = {"accessModes": fields["accessModes"]} if "accessModes" in fields else {}
    return [
        volume(f"v-{name}", claim=name, **fields),
        volume_claim(name, bound_to=f"v-{name}", **claim_spec),
    ]


class VolumeCluster:
    """A cluster whose first entity is decided about."""

    def __init__(
        self,
        nodes: Sequence[Node],
        volumes: Iterable[VolumeObject],
        pods: Iterable[Pod],
        groups: Iterable[Group] = (),
    ) -> None:
        found = [*volumes]
        if not any(isinstance(one, StorageClass) for one in found):
            found.append(storage_class())
        self.state: SchedulerState = load_state(
            ClusterObjects(nodes, list(groups), list(pods), volumes=found)
        )

    def decide(self) -> Decision:
        """Decide about the first entity, and assume what is placed."""
        entity = self.state.pop(0.0)
        assert entity is not None
        decision = self.state.decide(entity)
        self.state.commit(entity, decision, 0.0)
        assert self.state.cache.check() == []
        return decision

    def place(self) -> tuple[dict[str, str], dict[str, str]]:
        """Decide; the nodes of pods, and the volumes of claims ("": provisioned)."""
        decision = self.decide()
        assert isinstance(decision, Placed), decision
        return (
            {pod.name: node for pod, _, node in decision.bindings},
            {one.claim.name: one.volume for one in decision.volumes},
        )

    def refuse(self) -> dict[str, int]:
        """Decide; why nodes do not take the first pod that was refused."""
        decision = self.decide()
        assert not isinstance(decision, Placed), decision
        refusals = [one.refusal for one in decision.pods if one.refusal is not None]
        return dict(refusals[0].counts)
