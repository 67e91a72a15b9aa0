"""Columns of volumes, claims and the kinds of storage.k8s.io."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.printing.cells import (
    AGE_COLUMN,
    NAME_COLUMN,
    UNSET,
    Cell,
    Column,
    field_at,
    item_count,
)
from phalanx.api.storage import is_default_class
from phalanx.api.wire import Object

_ACCESS_MODE_NAMES = {
    "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}  # fmt: skip


def _access_modes(path: str) -> Cell:
    """Return a cell with the access modes, each once and in Kubernetes' order."""
    read = field_at(path, ())
    return lambda obj, now: ",".join(
        short for mode, short in _ACCESS_MODE_NAMES.items() if mode in read(obj, now)
    )


def _phase(obj: Object, now: float) -> str:
    deleted = obj["metadata"].get("deletionTimestamp")
    return "Terminating" if deleted else str(obj.get("status", {}).get("phase", ""))


def _claim_reference(volume: Object, now: float) -> str:
    claim = volume.get("spec", {}).get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _bound_claim(cell: Cell) -> Cell:
    """Return a cell that is empty until the claim names a volume."""
    return lambda claim, now: cell(claim, now) if claim.get("spec", {}).get("volumeName") else ""


def _class_of(obj: Object, now: float) -> str:
    """Return the class of a volume or claim; the annotation of old objects comes first."""
    annotations = obj["metadata"].get("annotations") or {}
    named = annotations.get("volume.beta.kubernetes.io/storage-class")
    return str(named if named is not None else obj.get("spec", {}).get("storageClassName", ""))


def _class_name(storage_class: Object, now: float) -> str:
    name = str(storage_class["metadata"].get("name", ""))
    return (
        f"{name} (default)"
        if is_default_class(storage_class["metadata"].get("annotations"))
        else name
    )


def _list_text(path: str) -> Cell:
    """Return a cell with the items of a list; `<unset>` if there are none."""
    read = field_at(path, ())
    return lambda obj, now: ",".join(read(obj, now)) or UNSET


def _token_audiences(driver: Object, now: float) -> str:
    requests = driver.get("spec", {}).get("tokenRequests") or ()
    return ",".join(request.get("audience", "") for request in requests) or UNSET


STORAGE_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "CSIDriver": (
        NAME_COLUMN,
        Column("AttachRequired", field_at("spec.attachRequired", True), "boolean"),
        Column("PodInfoOnMount", field_at("spec.podInfoOnMount", False), "boolean"),
        Column("StorageCapacity", field_at("spec.storageCapacity", False), "boolean"),
        Column("TokenRequests", _token_audiences),
        Column("RequiresRepublish", field_at("spec.requiresRepublish", False), "boolean"),
        Column("Modes", _list_text("spec.volumeLifecycleModes")),
        AGE_COLUMN,
    ),
    "CSINode": (NAME_COLUMN, Column("Drivers", item_count("spec.drivers"), "integer"), AGE_COLUMN),
    "CSIStorageCapacity": (
        NAME_COLUMN,
        Column("StorageClassName", field_at("storageClassName")),
        Column("Capacity", field_at("capacity", UNSET)),
    ),
    "PersistentVolume": (
        NAME_COLUMN,
        Column("Capacity", field_at("spec.capacity.storage")),
        Column("Access Modes", _access_modes("spec.accessModes")),
        Column("Reclaim Policy", field_at("spec.persistentVolumeReclaimPolicy")),
        Column("Status", _phase),
        Column("Claim", _claim_reference),
        Column("StorageClass", _class_of),
        Column("VolumeAttributesClass", field_at("spec.volumeAttributesClassName", UNSET)),
        Column("Reason", field_at("status.reason")),
        AGE_COLUMN,
        Column("VolumeMode", field_at("spec.volumeMode", UNSET), priority=1),
    ),
    "PersistentVolumeClaim": (
        NAME_COLUMN,
        Column("Status", _phase),
        Column("Volume", field_at("spec.volumeName")),
        Column("Capacity", _bound_claim(field_at("status.capacity.storage", "0"))),
        Column("Access Modes", _bound_claim(_access_modes("status.accessModes"))),
        Column("StorageClass", _class_of),
        Column("VolumeAttributesClass", field_at("spec.volumeAttributesClassName", UNSET)),
        AGE_COLUMN,
        Column("VolumeMode", field_at("spec.volumeMode", UNSET), priority=1),
    ),
    "StorageClass": (
        Column("Name", _class_name),
        Column("Provisioner", field_at("provisioner")),
        Column("ReclaimPolicy", field_at("reclaimPolicy", "Delete")),
        Column("VolumeBindingMode", field_at("volumeBindingMode", "Immediate")),
        Column("AllowVolumeExpansion", field_at("allowVolumeExpansion", False), "boolean"),
        AGE_COLUMN,
    ),
    "VolumeAttachment": (
        NAME_COLUMN,
        Column("Attacher", field_at("spec.attacher")),
        Column("PV", field_at("spec.source.persistentVolumeName")),
        Column("Node", field_at("spec.nodeName")),
        Column("Attached", field_at("status.attached", False), "boolean"),
        AGE_COLUMN,
    ),
    "VolumeAttributesClass": (
        NAME_COLUMN,
        Column("DriverName", field_at("driverName")),
        AGE_COLUMN,
    ),
}
