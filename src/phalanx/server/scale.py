"""The `scale` subresource: the desired and current number of replicas of an object.

The row of a kind says which fields hold these numbers (`ScalePaths`). A Scale is built from them,
and a write of a Scale is a patch of the object, with all its checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
from msgspec.structs import replace

from phalanx.api.errors import (
    BadRequest,
    Cause,
    Invalid,
    NoSuchResource,
    UnsupportedMediaType,
    invalid,
)
from phalanx.api.kinds import Kind, ScalePaths
from phalanx.api.patch import PatchFailed, apply_patch
from phalanx.api.schema import schema
from phalanx.api.selectors import format_selector
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.dynamic_admission.attributes import ReviewForm
from phalanx.server.object_preparation import check_name_and_namespace
from phalanx.server.objects import (
    conflict_error,
    decode_record,
    not_found_error,
    raise_if_invalid,
)
from phalanx.server.request_bodies import normalize_object, read_object
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


async def get_scale(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle GET of a Scale."""
    accepted = negotiate(request_info.request)
    record = context.store.get(request_info.key)
    if record is None:
        raise not_found_error(request_info.kind, request_info.name)
    scale = _scale_of(_scale_paths(request_info), decode_record(record))
    return encode_reply(Reply(200, orjson.dumps(scale)), accepted)


async def update_scale(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle PUT of a Scale."""
    new = read_object(context, replace(request_info, kind=SCALE))
    return await _modify_scale(context, request_info, lambda scale: new)


async def patch_scale(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle PATCH of a Scale."""
    patch_type = media_type(request_info.request)
    if patch_type not in _SCALE_PATCH_TYPES:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(_SCALE_PATCH_TYPES)
        )
    change = load_body(request_info.request, (patch_type,))

    def patch(scale: Object) -> Object:
        try:
            new = apply_patch(patch_type, schema(SCALE.schema), scale, patch=change)
        except PatchFailed as error:
            detail = "the server rejected our request due to an error in our request"
            raise Invalid(detail) from error
        try:
            normalize_object(context, replace(request_info, kind=SCALE), new)
        except BadRequest as error:
            cause = Cause("patch", "FieldValueInvalid", f"Invalid value: {error.message}")
            raise Invalid(f' "" is invalid: {cause}', causes=[cause]) from error
        return new

    return await _modify_scale(context, request_info, patch)


async def _modify_scale(
    context: ServerContext, request_info: RequestInfo, mutate: Callable[[Object], Object]
) -> Reply:
    accepted, paths = negotiate(request_info.request), _scale_paths(request_info)
    request_info.check_dry_run()

    def set_replicas(old: Object) -> Object:
        new = mutate(_scale_of(paths, old))
        check_name_and_namespace(request_info, new)
        uid, old_uid = new["metadata"].get("uid"), old["metadata"]["uid"]
        if uid and uid != old_uid:
            detail = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"
            )
            raise conflict_error(request_info.kind, request_info.name, detail)
        replicas = (new.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            detail = "must be greater than or equal to 0"
            raise_if_invalid(SCALE, request_info.name, [invalid("spec.replicas", replicas, detail)])
        version = new["metadata"].get("resourceVersion")
        if version:
            old["metadata"]["resourceVersion"] = version
        _set_at(old, paths.spec_replicas, replicas)
        return old

    def restore_replicas(scale: Object, obj: Object) -> None:
        _set_at(obj, paths.spec_replicas, (scale.get("spec") or {}).get("replicas", 0))

    reply = await modify(
        context,
        replace(request_info, subresource=""),
        set_replicas,
        is_patch=True,
        review_form=ReviewForm(
            SCALE, "scale", show=partial(_scale_of, paths), restore=restore_replicas
        ),
    )
    scale = _scale_of(paths, orjson.loads(reply.body))
    return encode_reply(Reply(reply.code, orjson.dumps(scale), headers=reply.headers), accepted)


def _scale_paths(request_info: RequestInfo) -> ScalePaths:
    if request_info.kind.scale is None:
        raise NoSuchResource
    return request_info.kind.scale


def _scale_of(paths: ScalePaths, obj: Object) -> Object:
    meta = obj["metadata"]
    status: Object = {"replicas": _value_at(obj, paths.status_replicas, int, default=0)}
    if selector := _selector_text(obj, paths):
        status["selector"] = selector
    return {
        **_TYPE_META,
        "metadata": {key: meta[key] for key in _METADATA_FIELDS if key in meta},
        "spec": {"replicas": _value_at(obj, paths.spec_replicas, int, default=0)},
        "status": status,
    }


def _selector_text(obj: Object, paths: ScalePaths) -> str:
    """Return the selector as text; built-in kinds hold it as a label selector."""
    selector = _value_at(obj, paths.selector, object, default="")
    if paths.selects_by_labels:
        selector = {"matchLabels": selector or {}}
    return format_selector(selector) if isinstance(selector, dict) else str(selector or "")


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
