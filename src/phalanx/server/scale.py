"""The `scale` subresource: the desired and current number of replicas of an object.

The row of a kind says which fields hold these numbers (`ScalePaths`). A Scale is built from them,
and a write of a Scale is a patch of the object, with all its checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from phalanx.api.errors import Invalid, NoSuchResource, UnsupportedMediaType
from phalanx.api.field_errors import invalid
from phalanx.api.kinds import Kind, ScalePaths
from phalanx.api.patch import PatchFailed, apply_patch
from phalanx.api.schema import schema
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, not_found_error, raise_if_invalid
from phalanx.server.request_bodies import conform_object, read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import encode_reply, load_body, media_type, negotiate
from phalanx.server.write_handlers import modify

SCALE = Kind(
    "autoscaling", "v1", "Scale", "scales", "autoscaling.v1.Scale",
    singular="scale", subresources=(), verbs=("get", "patch", "update"),
)  # fmt: skip
_TYPE_META = {"kind": SCALE.name, "apiVersion": SCALE.api_version}
_METADATA_FIELDS = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_SCALE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH)


async def get_scale(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle GET of a Scale."""
    accepted = negotiate(call.request)
    record = context.store.get(call.key)
    if record is None:
        raise not_found_error(call.kind, call.name)
    scale = _scale_of(_scale_paths(call), decode_record(record))
    return encode_reply(Reply(200, orjson.dumps(scale)), accepted)


async def update_scale(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle PUT of a Scale."""
    new = read_object(context, replace(call, kind=SCALE))
    return await _modify_scale(context, call, lambda scale: new)


async def patch_scale(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle PATCH of a Scale."""
    patch_type = media_type(call.request)
    if patch_type not in _SCALE_PATCH_TYPES:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(_SCALE_PATCH_TYPES)
        )
    change = load_body(call.request, (patch_type,))

    def patch(scale: Object) -> Object:
        try:
            new = apply_patch(patch_type, schema(SCALE.schema), scale, change)
        except PatchFailed as error:
            detail = "the server rejected our request due to an error in our request"
            raise Invalid(detail) from error
        conform_object(context, replace(call, kind=SCALE), new)
        return new

    return await _modify_scale(context, call, patch)


async def _modify_scale(
    context: ServerContext, call: RequestInfo, mutate: Callable[[Object], Object]
) -> Reply:
    accepted, paths = negotiate(call.request), _scale_paths(call)
    call.check_dry_run()

    def set_replicas(old: Object) -> Object:
        new = mutate(_scale_of(paths, old))
        replicas = (new.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            detail = "must be greater than or equal to 0"
            raise_if_invalid(SCALE, call.name, [invalid("spec.replicas", replicas, detail)])
        version = (new.get("metadata") or {}).get("resourceVersion")
        if version:
            old["metadata"]["resourceVersion"] = version
        _set_at(old, paths.spec_replicas, replicas)
        return old

    reply = await modify(context, replace(call, subresource=""), set_replicas, is_patch=True)
    scale = _scale_of(paths, orjson.loads(reply.body))
    return encode_reply(Reply(reply.code, orjson.dumps(scale), headers=reply.headers), accepted)


def _scale_paths(call: RequestInfo) -> ScalePaths:
    if call.kind.scale is None:
        raise NoSuchResource
    return call.kind.scale


def _scale_of(paths: ScalePaths, obj: Object) -> Object:
    meta = obj["metadata"]
    status: Object = {"replicas": _value_at(obj, paths.status_replicas, int, default=0)}
    if selector := _value_at(obj, paths.selector, str, default=""):
        status["selector"] = selector
    return {
        **_TYPE_META,
        "metadata": {key: meta[key] for key in _METADATA_FIELDS if key in meta},
        "spec": {"replicas": _value_at(obj, paths.spec_replicas, int, default=0)},
        "status": status,
    }


def _value_at(value: Any, path: Sequence[str], value_type: type, *, default: Any) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, value_type) else default


def _set_at(obj: Object, path: Sequence[str], value: int) -> None:
    *above, last = path
    for key in above:
        inner = obj.get(key)
        obj[key] = inner if isinstance(inner, dict) else {}
        obj = obj[key]
    obj[last] = value
