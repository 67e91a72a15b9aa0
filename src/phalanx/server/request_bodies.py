"""Request bodies: from bytes to the object to store, or a 4xx.

    bytes ─▶ load (JSON, YAML, protobuf) ─▶ resolve field aliases ─▶ normalize by the schema
          ─▶ restore the fields that the write may not change

A write to `status` takes the status from the request and everything else from the stored object. A
write to the main resource ignores the status and the metadata that the server manages.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from phalanx.api.conversion.alias_resolution import ResolvedRequest, resolve_aliases
from phalanx.api.conversion.hub import to_hub, validate_in_version
from phalanx.api.errors import BadRequest, TooLarge, invalid
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, POD, Kind
from phalanx.api.normalization import Malformed
from phalanx.api.protobuf import message_name
from phalanx.api.wire import JSON, Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import raise_if_invalid
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import OBJECT_MEDIA_TYPES, PROTOBUF, load_body, media_type

#: The fields and items that the parts of an object may have: each takes its time to check.
MAX_OBJECT_VALUES, MAX_METADATA_VALUES, MAX_MANAGED_VALUES = 25_000, 50_000, 60_000
#: The length of a field's name: it is part of the path of each error below it. No smaller object
#: is visited for it.
MAX_NAME_LENGTH, _MAX_UNVISITED_BYTES = 4096, 16 * 1024
_MAX_WARNINGS = 50
#: A body of this size may take long to read: other requests run before the object is written.
_LARGE_BODY_BYTES = 64 * 1024
_JSON_TYPES = {list: "array", str: "string", bool: "bool", type(None): "null"}
#: The end of a key in JSON, in the usual form and with spaces.
_KEY_END, _SPACED_KEY_END = b'":', re.compile(rb'"\s+:')


def read_object(context: ServerContext, request_info: RequestInfo) -> Object:
    """The object of a create or update, normalized and of the right kind."""
    obj = _load_body(request_info)
    if obj is None and request_info.request.body == b"null":
        obj = {}  # Kubernetes decodes null to an object without fields.
    if not isinstance(obj, dict):
        found = _JSON_TYPES.get(type(obj), "number")
        raise BadRequest(
            _unrecognized_message(request_info.kind, f"cannot unmarshal {found} into an object")
        )
    if request_info.kind.is_custom:
        _check_custom_kind(request_info, obj)
    check_kind(request_info.kind, obj)
    duplicates = _find_duplicate_keys(request_info, obj)
    for key in ("apiVersion", "kind"):
        obj.pop(key, None)
    rename_fields(request_info, JSON, obj)
    if "list" in request_info.kind.verbs:
        check_value_count(request_info.kind, obj)
    normalize_object(context, request_info, obj, duplicates=duplicates)
    return obj


def rename_fields(request_info: RequestInfo, content_type: str, body: Any) -> ResolvedRequest:
    """Replace field aliases in a body or patch by the stored names, with a warning for each."""
    if request_info.kind.is_custom:
        return ResolvedRequest(body)
    resolved = resolve_aliases(
        request_info.kind.schema, content_type, body, namespace=request_info.namespace
    )
    if resolved is None:
        return ResolvedRequest(body)
    raise_if_invalid(request_info.kind, request_info.name or _body_name(body), resolved.causes)
    request_info.warnings.extend(resolved.warnings)
    return resolved


def convert_to_stored(
    request_info: RequestInfo, obj: Object, convert: Callable[[Kind, Object], Object] = to_hub
) -> Object:
    """Convert a normalized object to the stored version; check rules of its own version."""
    raise_if_invalid(
        request_info.kind,
        request_info.name or _body_name(obj),
        validate_in_version(request_info.kind, obj),
    )
    return convert(request_info.kind, obj)


def normalize_object(
    context: ServerContext,
    request_info: RequestInfo,
    obj: Object,
    *,
    duplicates: Sequence[str] = (),
    strict: bool = False,
    keep_empty: bool = False,
) -> None:
    """Prune and check an object in place; warn of or refuse unknown and duplicate fields."""
    kind, mode = request_info.kind, "Strict" if strict else request_info.field_validation()
    try:
        report = context.registry.strategy(kind).normalize(obj, keep_empty=keep_empty)
    except Malformed as error:
        raise BadRequest(_cannot_handle_message(kind, str(error))) from error
    found = [f'unknown field "{path}"' for path in report.unknown_fields]
    found += [f'duplicate field "{path}"' for path in duplicates]
    if found and mode == "Strict":
        raise BadRequest(_cannot_handle_message(kind, f"strict decoding error: {', '.join(found)}"))
    if mode == "Warn":
        request_info.warnings.extend(found[:_MAX_WARNINGS])


def check_value_count(kind: Kind, obj: Object) -> None:
    """Refuse an object to store with too many fields, items or levels: every step visits them all.

    Only administrators write CustomResourceDefinitions, and real ones are large: the limit of a
    body is enough for them.
    """
    try:
        text = orjson.dumps(obj)
    except orjson.JSONEncodeError as error:
        # A JSON patch can add a value with many levels below another one.
        raise BadRequest(f"{kind.name} cannot be stored: exceeded max depth") from error
    if kind == CUSTOM_RESOURCE_DEFINITION:
        return
    if len(text) <= _MAX_UNVISITED_BYTES:
        # Fewer bytes than fields and items are allowed: most objects are not visited.
        return
    parts = dict(obj)
    if isinstance(meta := parts.pop("metadata", None), dict):
        meta = dict(meta)
        _limit_values(meta.pop("managedFields", None), MAX_MANAGED_VALUES, "managedFields")
        _limit_values(meta, MAX_METADATA_VALUES, "metadata", max_name=MAX_NAME_LENGTH)
    _limit_values(parts, MAX_OBJECT_VALUES, "an object", max_name=MAX_NAME_LENGTH)


def _limit_values(value: Any, limit: int, name: str, *, max_name: int | None = None) -> None:
    count, containers = 0, [value] if isinstance(value, (dict, list)) else []
    while containers:
        container = containers.pop()
        count += len(container)
        if count > limit:
            raise TooLarge(f"Request entity too large: {name} may have {limit} fields and items")
        values = container.values() if isinstance(container, dict) else container
        if max_name and values is not container and max(map(len, container), default=0) > max_name:
            detail = f"the name of a field may have {max_name} characters"
            raise TooLarge(f"Request entity too large: {detail}")
        containers += [inner for inner in values if isinstance(inner, (dict, list))]


async def yield_if_large(request_info: RequestInfo) -> None:
    """Let other requests run after a large body is read, before the handler reads any state."""
    if len(request_info.request.body) > _LARGE_BODY_BYTES:
        await asyncio.sleep(0)


def _check_custom_kind(request_info: RequestInfo, obj: Object) -> None:
    """Refuse a custom object of another kind; Kubernetes notices only when it validates.

    An update without resourceVersion is refused earlier, so its kind does not matter.
    """
    kind, stated, meta = request_info.kind, obj.get("kind"), obj.get("metadata")
    if not isinstance(stated, str) or stated in ("", kind.name):
        return
    if request_info.name and isinstance(meta, dict) and not meta.get("resourceVersion"):
        obj["kind"] = kind.name
        return
    raise_if_invalid(kind, _body_name(obj), [invalid("kind", stated, f"must be {kind.name}")])


def check_kind(kind: Kind, obj: Object) -> None:
    """Refuse an object of another kind or version than the request path."""
    name, version = obj.get("kind") or kind.name, obj.get("apiVersion") or kind.api_version
    if name != kind.name:
        short = str(version).rpartition("/")[2]
        raise BadRequest(f'{name} in version "{short}" cannot be handled as a {kind.name}')
    if version != kind.api_version:
        raise BadRequest(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({kind.api_version})"
        )


def _body_name(obj: Any) -> str:
    """The name in a body that is not checked yet."""
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""


def _load_body(request_info: RequestInfo) -> Any:
    accepted: tuple[str, ...] = OBJECT_MEDIA_TYPES
    if not message_name(request_info.kind.api_version, request_info.kind.name):
        # Some kinds have no protobuf message.
        accepted = tuple(form for form in OBJECT_MEDIA_TYPES if form != PROTOBUF)
    try:
        return load_body(request_info.request, accepted)
    except BadRequest as error:
        raw = request_info.request.body if isinstance(request_info.request.body, bytes) else b""
        excerpt = raw[:30].decode(errors="replace") + " ..." if raw else "<empty>"
        detail = f"{error.message} ({excerpt})"
        raise BadRequest(_unrecognized_message(request_info.kind, detail)) from error


def _find_duplicate_keys(request_info: RequestInfo, obj: Object) -> list[str]:
    """The duplicate keys of a JSON body; encoding the parsed object again shows if any exist."""
    raw = request_info.request.body
    if not isinstance(raw, bytes) or media_type(request_info.request) != JSON:
        return []
    has_same_keys = raw.count(_KEY_END) == orjson.dumps(obj).count(_KEY_END)
    if has_same_keys and not _SPACED_KEY_END.search(raw):
        return []
    return _parse_duplicate_keys(raw)


def _parse_duplicate_keys(raw: bytes) -> list[str]:
    found: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                found.append(key)
            seen[key] = value
        return seen

    try:
        json.loads(raw, object_pairs_hook=collect)
    except ValueError:
        return []
    return found


def _unrecognized_message(kind: Kind, detail: str) -> str:
    return f"the object provided is unrecognized (must be of type {kind.name}): {detail}"


def _cannot_handle_message(kind: Kind, detail: str) -> str:
    return f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {detail}'


# ---- fields that a write may change --------------------------------------------------------------

#: (stored object, new object): undoes in the new object what it may not change.
SubresourceUpdate = Callable[[Object, Object], None]

#: Subresources whose writes may change metadata too, unless the kind says otherwise.
_METADATA_SUBRESOURCES = ("status", "finalize")
#: Metadata that the server sets, whatever a client sends.
SERVER_MANAGED_METADATA = frozenset(
    (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
        "resourceVersion",
    )
)
#: Metadata whose change a write ignores. A change of the uid, or a deletionTimestamp of an object
#: that is not being deleted, is invalid.
_RESTORED_METADATA = (
    "name",
    "namespace",
    "creationTimestamp",
    "generation",
    "selfLink",
    "resourceVersion",
)
#: Metadata that a write cannot remove, and deletionTimestamp cannot change either.
_KEPT_METADATA = ("uid", "deletionGracePeriodSeconds")


def restore_immutable_fields(kind: Kind, subresource: str, *, old: Object, new: Object) -> None:
    """Undo in `new` the changes that a write to this (sub)resource may not make."""
    if subresource:
        metadata = new["metadata"]
        SUBRESOURCE_UPDATES[subresource](old, new)
        if subresource not in _METADATA_SUBRESOURCES or not kind.status_updates_metadata:
            return
        new["metadata"] = metadata
    before, meta = old["metadata"], new["metadata"]
    for key in _RESTORED_METADATA:
        _copy_field(key, before, meta)
    for key in _KEPT_METADATA:
        if key in before:
            meta.setdefault(key, before[key])
    if kind is POD and subresource == "status":
        # As in Kubernetes, where old kubelets sent broken owner references.
        _copy_field("ownerReferences", before, meta)
    if "deletionTimestamp" in before:
        meta["deletionTimestamp"] = before["deletionTimestamp"]
    if "status" in kind.subresources and not subresource:
        _copy_field("status", old, new)
    if kind is NAMESPACE and subresource != "finalize":
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
    """Take the ephemeral containers of a request; validation keeps the existing ones."""
    spec = {key: value for key, value in old["spec"].items() if key != "ephemeralContainers"}
    requested = new.get("spec", {}).get("ephemeralContainers")
    _replace_spec(old, new, {**spec, **({"ephemeralContainers": requested} if requested else {})})


def _replace_spec(old: Object, new: Object, spec: Object) -> None:
    new.clear()
    new.update({**old, "metadata": dict(old["metadata"]), "spec": spec})


def _copy_field(key: str, source: Object, target: Object) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _update_decision(old: Object, new: Object) -> None:
    """The `approval` subresource: conditions of the status, but no certificate."""
    conditions = (new.get("status") or {}).get("conditions")
    status = {key: value for key, value in (old.get("status") or {}).items() if key != "conditions"}
    _update_only("status")(old, new)
    new["status"] = {**status, **({"conditions": conditions} if conditions else {})}


SUBRESOURCE_UPDATES: Mapping[str, SubresourceUpdate] = {
    "approval": _update_decision,
    "status": _update_only("status"),
    "finalize": _update_only("spec"),
    "resize": _update_resources,
    "ephemeralcontainers": _update_ephemeral_containers,
}
