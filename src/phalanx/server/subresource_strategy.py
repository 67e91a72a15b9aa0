"""Subresources that are a part of their object: what of a wish each lets through.

A write to a part takes that part from the wish and everything else from the stored object; a
write to the main resource takes everything but the parts that have a place of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.wire import Object

#: (stored object, wish): the wish is changed in place to what it may be.
SubresourceUpdate = Callable[[Object, Object], None]

#: Metadata that no client writes after creation.
SERVER_MANAGED_METADATA = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "generation", "selfLink",
)  # fmt: skip


def restore_immutable_fields(kind: Kind, subresource: str, old: Object, new: Object) -> None:
    """Undo what a write to this part of the resource may not change."""
    if subresource:
        SUBRESOURCE_UPDATES[subresource](old, new)
        return
    for key in (*SERVER_MANAGED_METADATA, "resourceVersion"):
        _copy_field(key, old["metadata"], new["metadata"])
    if "status" in kind.subresources:
        _copy_field("status", old, new)
    if kind is NAMESPACE:
        _copy_field("spec", old, new)


def _update_only(field: str) -> SubresourceUpdate:
    """A part that is one top-level field."""

    def part(old: Object, new: Object) -> None:
        for key in {**old, **new}:
            if key != field:
                _copy_field(key, old, new)

    return part


def _update_resources(old: Object, new: Object) -> None:
    """What the containers ask for, and nothing else of them."""
    spec = dict(old["spec"])
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = _merge_container_resources(
                spec[field], new.get("spec", {}).get(field) or []
            )
    if "resources" in new.get("spec", {}):
        spec["resources"] = new["spec"]["resources"]
    _replace_spec(old, new, spec)


def _merge_container_resources(old: list[Any], new: list[Any]) -> list[Any]:
    wanted = {c.get("name"): c.get("resources") for c in new}
    return [{**c, "resources": wanted.get(c["name"], c.get("resources")) or {}} for c in old]


def _update_ephemeral_containers(old: Object, new: Object) -> None:
    """Containers that are added for looking around; those that are there stay as they are."""
    there = {c.get("name"): c for c in old["spec"].get("ephemeralContainers") or []}
    wanted = new.get("spec", {}).get("ephemeralContainers") or []
    added = [c for c in wanted if c.get("name") not in there]
    _replace_spec(old, new, {**old["spec"], "ephemeralContainers": [*there.values(), *added]})


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
