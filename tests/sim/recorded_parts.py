"""The further parts of an outcome that a recorded scenario asks for by its `look`.

A part is computed from the objects of the API and compared exactly. `PARTS` has one row per part:
its function, and the kinds that must not change for the cluster to count as settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from phalanx.api.wire import Object
from tests.sim.recorded_device_parts import (
    count_claims_per_device,
    describe_claim_references,
    describe_claims,
)
from tests.sim.recorded_outcome import (
    ObjectsByKind,
    find_conditions,
    find_owners,
    without_hash,
)

_STORAGE_PREFIXES = ("pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/")
#: Kinds whose events are recorded elsewhere.
_EXCLUDED_KINDS = ("Pod", "Node", "Job")


def is_pod_ready(pod: Object) -> bool:
    """Whether a pod has the condition Ready."""
    return any(one[:2] == ["Ready", "True"] for one in find_conditions(pod))


def field_at(obj: Any, path: str) -> Any:
    """Return a field by its dotted path; None if it is absent."""
    for part in path.split("."):
        if isinstance(obj, list):
            obj = obj[int(part)] if int(part) < len(obj) else None
        else:
            obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def _metadata_facts(obj: Object) -> Object:
    meta = obj["metadata"]
    return {
        "owners": find_owners(obj),
        "finalizers": sorted(meta.get("finalizers", ())),
        "deleting": bool(meta.get("deletionTimestamp")),
    }


def _storage_annotations(obj: Object) -> Object:
    annotations = obj["metadata"].get("annotations") or {}
    return {key: text for key, text in annotations.items() if key.startswith(_STORAGE_PREFIXES)}


def _by_name(objects: Iterable[Object], describe: Callable[[Object], Any]) -> Object:
    return {without_hash(obj["metadata"]["name"]): describe(obj) for obj in objects}


def _pods(objects: ObjectsByKind) -> Object:
    def describe(pod: Object) -> Object:
        meta = pod["metadata"]
        return {
            "count": 1,
            "bound": int(bool(pod["spec"].get("nodeName"))),
            "ready": int(is_pod_ready(pod)),
            "deleting": int(bool(meta.get("deletionTimestamp"))),
            "phases": dict(Counter([pod["status"].get("phase", "")])),
            "images": dict(Counter([pod["spec"]["containers"][0]["image"]])),
            "labels": sorted(meta.get("labels") or {}),
            "owners": find_owners(pod),
        }

    return _by_name(objects["Pod"], describe)


def _placement(objects: ObjectsByKind) -> Object:
    return _by_name(objects["Pod"], lambda pod: pod["spec"].get("nodeName", ""))


def _volume_claims(objects: ObjectsByKind) -> Object:
    def describe(claim: Object) -> Object:
        status = claim.get("status") or {}
        return {
            "phase": status.get("phase", ""),
            "volume": claim["spec"].get("volumeName", ""),
            "class": claim["spec"].get("storageClassName"),
            "capacity": (status.get("capacity") or {}).get("storage", ""),
            "annotations": _storage_annotations(claim),
            "conditions": find_conditions(claim),
            **_metadata_facts(claim),
        }

    return _by_name(objects["PersistentVolumeClaim"], describe)


def _volumes(objects: ObjectsByKind) -> Object:
    def describe(volume: Object) -> Object:
        return {
            "phase": (volume.get("status") or {}).get("phase", ""),
            "claim": (volume["spec"].get("claimRef") or {}).get("name", ""),
            "annotations": _storage_annotations(volume),
            **_metadata_facts(volume),
        }

    return _by_name(objects["PersistentVolume"], describe)


def _stateful_sets(objects: ObjectsByKind) -> Object:
    revisions = objects["ControllerRevision"]
    numbers = {one["metadata"]["name"]: one.get("revision", 0) for one in revisions}

    def describe(stateful_set: Object) -> Object:
        status = stateful_set.get("status") or {}
        counts = {key: value for key, value in status.items() if key.endswith("Replicas") and value}
        observed = status.get("observedGeneration", 0)
        return {
            "spec": stateful_set["spec"].get("replicas"),
            **counts,
            **({"replicas": status["replicas"]} if status.get("replicas") else {}),
            "observed": observed == stateful_set["metadata"].get("generation", 0),
            "conditions": find_conditions(stateful_set),
            **_metadata_facts(stateful_set),
            "current": numbers.get(status.get("currentRevision"), "none"),
            "update": numbers.get(status.get("updateRevision"), "none"),
        }

    return _by_name(objects["StatefulSet"], describe)


def _revisions(objects: ObjectsByKind) -> Object:
    return {
        f"{without_hash(one['metadata']['name'])} revision {one.get('revision')}": {
            **_metadata_facts(one),
            "labels": sorted(one["metadata"].get("labels") or {}),
            "data": sorted((one.get("data") or {}).get("spec") or {}),
        }
        for one in objects["ControllerRevision"]
    }


def _event_reasons(objects: ObjectsByKind) -> Object:
    found: dict[str, set[str]] = {}
    for event in objects["Event"]:
        about = event["involvedObject"]
        if about["kind"] not in _EXCLUDED_KINDS:
            key = f"{about['kind']}/{without_hash(about.get('name', ''))}"
            found.setdefault(key, set()).add(event["reason"])
    return {key: sorted(reasons) for key, reasons in found.items()}


PARTS: Mapping[str, tuple[Callable[[ObjectsByKind], Object], tuple[str, ...]]] = {
    "pods": (_pods, ()),
    "placement": (_placement, ()),
    "volumeclaims": (_volume_claims, ("PersistentVolumeClaim", "PersistentVolume")),
    "volumes": (_volumes, ("PersistentVolume",)),
    "statefulsets": (_stateful_sets, ("StatefulSet",)),
    "revisions": (_revisions, ("ControllerRevision",)),
    "told": (_event_reasons, ()),
    "claims": (describe_claims, ("ResourceClaim",)),
    "devices": (count_claims_per_device, ("ResourceClaim",)),
    "claimrefs": (describe_claim_references, ()),
}
