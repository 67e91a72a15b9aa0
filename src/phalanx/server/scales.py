"""The scale of an object: how many replicas it wants and has, as every scaler reads it.

The row of its kind says where an object keeps these numbers; a Scale is made of them and written
back into them. The object is checked as by any other write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from phalanx.api.causes import invalid
from phalanx.api.errors import Invalid, NoSuchResource, UnsupportedMediaType
from phalanx.api.kinds import Kind, ScalePaths
from phalanx.api.patch import PatchFailed, apply_patch
from phalanx.api.schema import schema
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, Object, Reply
from phalanx.server.bodies import conformed, read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.formats import load, media_type
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.objects import decoded, not_found, refuse
from phalanx.server.writing import modify

SCALE = Kind(
    "autoscaling", "v1", "Scale", "scales", "autoscaling.v1.Scale",
    singular="scale", subresources=(), verbs=("get", "patch", "update"),
)  # fmt: skip
_HEAD = {"kind": SCALE.name, "apiVersion": SCALE.api_version}
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_PATCHES = (JSON_PATCH, MERGE_PATCH)


async def get(context: Context, call: Call) -> Reply:
    """The scale of an object."""
    accepted = negotiate(call.request)
    record = context.store.get(call.key)
    if record is None:
        raise not_found(call.kind, call.name)
    scale = _scale(_paths(call), decoded(record))
    return in_media(Reply(200, orjson.dumps(scale)), accepted)


async def update(context: Context, call: Call) -> Reply:
    """Another scale of an object."""
    wanted = read_object(context, replace(call, kind=SCALE))
    return await _rescale(context, call, lambda scale: wanted)


async def patch(context: Context, call: Call) -> Reply:
    """A change of the scale of an object."""
    kind = media_type(call.request)
    if kind not in _PATCHES:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(_PATCHES)
        )
    change = load(call.request, (kind,))

    def patched(scale: Object) -> Object:
        try:
            wanted = apply_patch(kind, schema(SCALE.schema), scale, change)
        except PatchFailed as error:
            detail = "the server rejected our request due to an error in our request"
            raise Invalid(detail) from error
        conformed(context, replace(call, kind=SCALE), wanted)
        return wanted

    return await _rescale(context, call, patched)


async def _rescale(context: Context, call: Call, wish: Callable[[Object], Object]) -> Reply:
    accepted, paths = negotiate(call.request), _paths(call)
    call.check_dry_run()

    def scaled(old: Object) -> Object:
        wanted = wish(_scale(paths, old))
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            detail = "must be greater than or equal to 0"
            refuse(SCALE, call.name, [invalid("spec.replicas", replicas, detail)])
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        if version:
            old["metadata"]["resourceVersion"] = version
        _put(old, paths.wanted, replicas)
        return old

    reply = await modify(context, replace(call, subresource=""), scaled, is_patch=True)
    scale = _scale(paths, orjson.loads(reply.body))
    return in_media(Reply(reply.code, orjson.dumps(scale), headers=reply.headers), accepted)


def _paths(call: Call) -> ScalePaths:
    if call.kind.scale is None:
        raise NoSuchResource
    return call.kind.scale


def _scale(paths: ScalePaths, obj: Object) -> Object:
    meta = obj["metadata"]
    status: Object = {"replicas": _at(obj, paths.found, int, 0)}
    if selector := _at(obj, paths.selector, str, ""):
        status["selector"] = selector
    return {
        **_HEAD,
        "metadata": {key: meta[key] for key in _SHOWN if key in meta},
        "spec": {"replicas": _at(obj, paths.wanted, int, 0)},
        "status": status,
    }


def _at(value: Any, path: Sequence[str], kind: type, absent: Any) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, kind) else absent


def _put(obj: Object, path: Sequence[str], value: int) -> None:
    *above, last = path
    for key in above:
        inner = obj.get(key)
        obj[key] = inner if isinstance(inner, dict) else {}
        obj = obj[key]
    obj[last] = value
