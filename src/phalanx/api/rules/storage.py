"""Rules of PersistentVolumes and of the claims on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, required, unsupported
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_subdomain_faults
from phalanx.api.quantity import value
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    every,
    given,
    one_of,
    present,
    struct,
    text,
    there,
)
from phalanx.api.rules.meta import check_selector
from phalanx.api.rules.volume import HOST_PATH, NFS
from phalanx.api.wire import Object

_STORAGE = "storage"
_ALONE = "ReadWriteOncePod"
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", _ALONE)
_CLASS = text(dns_subdomain_faults)
_VOLUME_MODE = one_of("Block", "Filesystem")


def _access_modes(new: Any, old: Any) -> Causes:
    found = [unsupported("", mode, _ACCESS_MODES) for mode in new if mode not in _ACCESS_MODES]
    if _ALONE in new and len(set(new)) > 1:
        detail = f"may not use {_ALONE} with other access modes"
        found.append(forbidden("", detail))
    return found


def _more_than_nothing(place: str, amount: str) -> list[Cause]:
    if value(amount) > 0:
        return []
    return [invalid(place, amount, "must be greater than zero")]


# --------------------------------------------------------------------------------------- volume

#: What a volume's spec says besides where it is.
_NOT_SOURCES = (
    "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity",
    "persistentVolumeReclaimPolicy", "storageClassName", "volumeAttributesClassName", "volumeMode",
)  # fmt: skip
#: What is checked of the commonest sources; the others are only counted.
_SOURCES: Mapping[str, Check] = {
    "csi": struct(("driver", there), ("volumeHandle", there)),
    "hostPath": HOST_PATH,
    "local": struct(("path", there)),
    "nfs": NFS,
}


def _sources(spec: Object) -> list[str]:
    return [field for field in spec if field not in _NOT_SOURCES]


def _one_source(new: Any, old: Any) -> Causes:
    named = _sources(new)
    if not named:
        return [required("", "must specify a volume type")]
    return [forbidden(name, "may not specify more than 1 volume type") for name in named[1:]]


def _capacity(new: Any, old: Any) -> Causes:
    if not new:
        return [required(""), unsupported("", {}, (_STORAGE,))]
    found = [] if list(new) == [_STORAGE] else [unsupported("", new, (_STORAGE,))]
    for name, amount in new.items():
        found += _more_than_nothing(f"[{name}]", amount)
    return found


def _volume_stays(new: Any, old: Any) -> Causes:
    """A volume is where it is; who may use it is said once."""
    if old is CREATED or not old:
        return ()
    found: list[Cause] = []
    if any(new.get(name) != old.get(name) for name in (*_sources(new), *_sources(old))):
        what = "persistentvolumesource"
        found.append(forbidden(what, f"spec.{what} is immutable after creation"))
    if new.get("volumeMode") != old.get("volumeMode"):
        found.append(invalid("volumeMode", new.get("volumeMode"), IMMUTABLE))
    affinity = old.get("nodeAffinity")
    if affinity and new.get("nodeAffinity") != affinity:
        found.append(invalid("nodeAffinity", new.get("nodeAffinity"), IMMUTABLE))
    return found


_VOLUME_SPEC = every(
    struct(
        ("accessModes", every(there, given(_access_modes))),
        ("capacity", _capacity),
        ("persistentVolumeReclaimPolicy", given(one_of("Delete", "Recycle", "Retain"))),
    ),
    _one_source,
    struct(*((name, present(check)) for name, check in _SOURCES.items())),
    struct(("storageClassName", given(_CLASS)), ("volumeMode", given(_VOLUME_MODE))),
    _volume_stays,
)

PERSISTENT_VOLUME: Check = struct(("spec", present(_VOLUME_SPEC)))

# ---------------------------------------------------------------------------------------- claim


def _has_access_mode(new: Any, old: Any) -> Causes:
    return () if new else [required("", "at least 1 access mode is required")]


def _size(new: Any, old: Any) -> Causes:
    """Told at the resources, where clients of the API expect it."""
    asked = (new or {}).get("requests", {}).get(_STORAGE)
    place = f"[{_STORAGE}]"
    return [required(place)] if asked is None else _more_than_nothing(place, asked)


def _claim_stays(new: Any, old: Any) -> Causes:
    """A claim finds its volume once; bound, it may ask for more room or another class."""
    if old is CREATED:
        return ()
    after, before = new.get("spec", {}), old.get("spec", {})
    bound = old.get("status", {}).get("phase") == "Bound"
    found: list[Cause] = []
    if _fixed(after, before, bound=bound) != _fixed(before, before, bound=bound):
        detail = (
            "spec is immutable after creation except resources.requests and "
            "volumeAttributesClassName for bound claims"
        )
        found.append(forbidden("spec", detail))
    if bound and _asked(after) < _asked(before):
        place = "spec.resources.requests.storage"
        found.append(forbidden(place, "field can not be less than status.capacity"))
    return found


def _fixed(spec: Object, before: Object, *, bound: bool) -> Object:
    """A spec without what may change."""
    settable = [name for name in ("volumeName", "storageClassName") if not before.get(name)]
    free = ("resources", "volumeAttributesClassName") if bound else ()
    return {key: inner for key, inner in spec.items() if key not in (*settable, *free)}


def _asked(spec: Object) -> Any:
    return value(spec.get("resources", {}).get("requests", {}).get(_STORAGE, "0"))


_SOURCE_REFERENCE = struct(("name", there), ("kind", there))

_CLAIM_SPEC = struct(
    ("accessModes", every(_has_access_mode, given(_access_modes))),
    ("selector", present(check_selector)),
    ("resources", _size),
    ("storageClassName", given(_CLASS)),
    ("volumeMode", given(_VOLUME_MODE)),
    ("dataSource", present(_SOURCE_REFERENCE)),
    ("dataSourceRef", present(_SOURCE_REFERENCE)),
)

PERSISTENT_VOLUME_CLAIM: Check = every(struct(("spec", present(_CLAIM_SPEC))), _claim_stays)
