"""Defaults of volumes, claims, storage classes and CSI drivers.

The storage class of a claim depends on other objects: it is set by admission in the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.wire import Object

_CLASS_DEFAULTS: Mapping[str, Any] = {
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}
_DRIVER_DEFAULTS: Mapping[str, Any] = {
    "attachRequired": True,
    "podInfoOnMount": False,
    "storageCapacity": False,
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "requiresRepublish": False,
    "seLinuxMount": False,
}
#: API group and kind of the sources that `dataSource` of a claim can name.
_CLONE_SOURCES = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))


def default_volume(volume: Object) -> None:
    """Apply the defaults of a PersistentVolume."""
    spec = volume["spec"]
    spec["persistentVolumeReclaimPolicy"] = spec.get("persistentVolumeReclaimPolicy") or "Retain"
    default_volume_mode(volume)
    volume["status"].setdefault("phase", "Pending")


def default_claim_phase(claim: Object) -> None:
    """A claim is pending until it is bound."""
    claim["status"].setdefault("phase", "Pending")


def default_volume_mode(obj: Object) -> None:
    """Set the volume mode of a volume, or of a claim."""
    obj["spec"].setdefault("volumeMode", "Filesystem")


def prepare_volume_for_create(volume: Object, now: str) -> None:
    """Set the phase of a new PersistentVolume."""
    volume["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


def set_phase_transition_time(new: Object, old: Object, now: str) -> None:
    """Set when the phase of a volume last changed, unless the writer does; it is not removed."""
    time = "lastPhaseTransitionTime"
    after, before = new["status"], old.get("status", {})
    if after.get("phase") == before.get("phase"):
        if time in before:
            after.setdefault(time, before[time])
    elif after.get(time) in (None, before.get(time)):
        after[time] = now


def prepare_claim_for_create(claim: Object, now: str) -> None:
    """Set the phase of a new claim; mirror `dataSource` and `dataSourceRef`."""
    claim["status"] = {"phase": "Pending"}
    _drop_other_source(claim["spec"])
    _mirror_sources(claim["spec"])


def prepare_claim_for_update(new: Object, old: Object, now: str) -> None:
    """Mirror `dataSource` and `dataSourceRef`: who removes one of them changes nothing."""
    if not {"dataSource", "dataSourceRef"} & old.get("spec", {}).keys():
        _drop_other_source(new["spec"])
    _mirror_sources(new["spec"])


def _drop_other_source(spec: Object) -> None:
    """Drop a `dataSource` that is neither a claim nor a snapshot."""
    source = spec.get("dataSource")
    if source is None:
        return
    if (source.get("apiGroup") or "", source.get("kind")) not in _CLONE_SOURCES:
        del spec["dataSource"]


def _mirror_sources(spec: Object) -> None:
    if "dataSource" in spec:
        spec.setdefault("dataSourceRef", dict(spec["dataSource"]))
    elif "dataSourceRef" in spec and not spec["dataSourceRef"].get("namespace"):
        spec["dataSource"] = dict(spec["dataSourceRef"])


def default_storage_class(storage_class: Object) -> None:
    """Apply the defaults of a StorageClass."""
    for key, default in _CLASS_DEFAULTS.items():
        storage_class.setdefault(key, default)


def default_csi_driver(driver: Object) -> None:
    """Apply the defaults of a CSIDriver."""
    spec = driver["spec"]
    for key, default in _DRIVER_DEFAULTS.items():
        spec.setdefault(key, default)
    spec["volumeLifecycleModes"] = spec.get("volumeLifecycleModes") or ["Persistent"]


def prepare_attachment_for_create(attachment: Object, now: str) -> None:
    """Reset the status of a new VolumeAttachment."""
    attachment["status"] = {"attached": False}
