"""Admission of volumes and claims: protection finalizers, the default class, larger requests."""

from __future__ import annotations

from fractions import Fraction

from phalanx.api.kinds import STORAGE_CLASS
from phalanx.api.resources import exact_value
from phalanx.api.storage import BETA_STORAGE_CLASS, is_default_class
from phalanx.api.wire import Object
from phalanx.server.objects import decode_record
from phalanx.store.kv import Store

#: Stored bytes without this need not be decoded to know that a class is no default class.
_DEFAULT_CLASS_BYTES = b"is-default-class"


def add_finalizer(obj: Object, finalizer: str) -> None:
    """Add a protection finalizer to a new object."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in finalizers:
        finalizers.append(finalizer)


def set_default_class(store: Store, claim: Object) -> None:
    """Set the default class of a claim that names none: the newest one, then the first by name."""
    spec, annotations = claim["spec"], claim["metadata"].get("annotations") or {}
    if "storageClassName" in spec or BETA_STORAGE_CLASS in annotations:
        return
    records = store.range(STORAGE_CLASS.store_prefix())
    metas = [decode_record(one)["metadata"] for one in records if _DEFAULT_CLASS_BYTES in one.value]
    defaults = [meta for meta in metas if is_default_class(meta.get("annotations"))]
    defaults.sort(key=lambda meta: str(meta["name"]))
    if defaults:
        newest = max(defaults, key=lambda meta: str(meta["creationTimestamp"]))
        spec["storageClassName"] = newest["name"]


def find_expansion_refusal(store: Store, old: Object, new: Object) -> str:
    """Return why a claim may not get larger; "" if it does not, or if its class allows it."""
    if _requested(new) <= _requested(old) or old.get("status", {}).get("phase") != "Bound":
        return ""
    record = store.get(STORAGE_CLASS.store_key("", new["spec"].get("storageClassName") or ""))
    if record is not None and decode_record(record).get("allowVolumeExpansion"):
        return ""
    return (
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the "
        "pvc must support resize"
    )


def _requested(claim: Object) -> Fraction:
    return exact_value(claim["spec"].get("resources", {}).get("requests", {}).get("storage", "0"))
