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
Part = Callable[[Object, Object], None]

#: Metadata that no client writes after creation.
OURS = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "generation", "selfLink",
)  # fmt: skip


def restore(kind: Kind, subresource: str, old: Object, new: Object) -> None:
    """Undo what a write to this part of the resource may not change."""
    if subresource:
        PARTS[subresource](old, new)
        return
    for key in (*OURS, "resourceVersion"):
        _copy(key, old["metadata"], new["metadata"])
    if "status" in kind.subresources:
        _copy("status", old, new)
    if kind is NAMESPACE:
        _copy("spec", old, new)


def _only(field: str) -> Part:
    """A part that is one top-level field."""

    def part(old: Object, new: Object) -> None:
        for key in {**old, **new}:
            if key != field:
                _copy(key, old, new)

    return part


def _resources(old: Object, new: Object) -> None:
    """What the containers ask for, and nothing else of them."""
    spec = dict(old["spec"])
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = _with_resources(spec[field], new.get("spec", {}).get(field) or [])
    if "resources" in new.get("spec", {}):
        spec["resources"] = new["spec"]["resources"]
    _replace_spec(old, new, spec)


def _with_resources(old: list[Any], new: list[Any]) -> list[Any]:
    wanted = {c.get("name"): c.get("resources") for c in new}
    return [{**c, "resources": wanted.get(c["name"], c.get("resources")) or {}} for c in old]


def _ephemeral_containers(old: Object, new: Object) -> None:
    """Containers that are added for looking around; those that are there stay as they are."""
    there = {c.get("name"): c for c in old["spec"].get("ephemeralContainers") or []}
    wanted = new.get("spec", {}).get("ephemeralContainers") or []
    added = [c for c in wanted if c.get("name") not in there]
    _replace_spec(old, new, {**old["spec"], "ephemeralContainers": [*there.values(), *added]})


def _replace_spec(old: Object, new: Object, spec: Object) -> None:
    new.clear()
    new.update({**old, "metadata": dict(old["metadata"]), "spec": spec})


def _copy(key: str, source: Object, target: Object) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


PARTS: Mapping[str, Part] = {
    "status": _only("status"),
    "finalize": _only("spec"),
    "resize": _resources,
    "ephemeralcontainers": _ephemeral_containers,
}
