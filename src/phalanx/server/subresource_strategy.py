"""Which fields a write may change: those of its subresource, or all but the subresources' fields.

A write to `status` takes the status from the request and everything else from the stored object. A
write to the main resource ignores the status and the metadata that the server manages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.wire import Object

#: (stored object, new object): undoes in the new object what it may not change.
SubresourceUpdate = Callable[[Object, Object], None]

#: Metadata that the server sets, whatever a client sends.
SERVER_MANAGED_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "resourceVersion",
)
#: Metadata that no client can change after creation.
_IMMUTABLE_METADATA = ("name", "namespace", *SERVER_MANAGED_METADATA)


def restore_immutable_fields(kind: Kind, subresource: str, old: Object, new: Object) -> None:
    """Undo in `new` the changes that a write to this (sub)resource may not make."""
    if subresource:
        SUBRESOURCE_UPDATES[subresource](old, new)
        return
    for key in _IMMUTABLE_METADATA:
        _copy_field(key, old["metadata"], new["metadata"])
    if "status" in kind.subresources:
        _copy_field("status", old, new)
    if kind is NAMESPACE:
        _copy_field("spec", old, new)


def _update_only(field: str) -> SubresourceUpdate:
    """An update that may change one top-level field only."""

    def update(old: Object, new: Object) -> None:
        for key in {**old, **new}:
            if key != field:
                _copy_field(key, old, new)

    return update


def _update_resources(old: Object, new: Object) -> None:
    """The `resize` subresource: resources of containers and of the pod."""
    spec = dict(old["spec"])
    for field in ("containers", "initContainers"):
        if field in spec:
            requested = new.get("spec", {}).get(field) or []
            resources = {c.get("name"): c.get("resources") for c in requested}
            spec[field] = [
                {**c, "resources": resources.get(c["name"], c.get("resources")) or {}}
                for c in spec[field]
            ]
    if "resources" in new.get("spec", {}):
        spec["resources"] = new["spec"]["resources"]
    _replace_spec(old, new, spec)


def _update_ephemeral_containers(old: Object, new: Object) -> None:
    """Add ephemeral containers; existing ones cannot change."""
    existing = {c.get("name"): c for c in old["spec"].get("ephemeralContainers") or []}
    requested = new.get("spec", {}).get("ephemeralContainers") or []
    containers = [*existing.values(), *(c for c in requested if c.get("name") not in existing)]
    _replace_spec(old, new, {**old["spec"], "ephemeralContainers": containers})


def _replace_spec(old: Object, new: Object, spec: Object) -> None:
    new.clear()
    new.update({**old, "metadata": dict(old["metadata"]), "spec": spec})


def _copy_field(key: str, source: Object, target: Object) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


SUBRESOURCE_UPDATES: Mapping[str, SubresourceUpdate] = {
    "status": _update_only("status"),
    "finalize": _update_only("spec"),
    "resize": _update_resources,
    "ephemeralcontainers": _update_ephemeral_containers,
}
