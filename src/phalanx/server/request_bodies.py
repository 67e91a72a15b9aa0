"""Request bodies: from bytes to an object that conforms to the schema of its kind, or a 4xx.

bytes ─▶ load (JSON, YAML, protobuf) ─▶ resolve field aliases ─▶ conform to the schema
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from phalanx.api.conform import Malformed
from phalanx.api.conversion.alias_resolution import ResolvedRequest, resolve_aliases
from phalanx.api.conversion.hub import to_hub, validate_in_version
from phalanx.api.errors import BadRequest
from phalanx.api.kinds import Kind
from phalanx.api.protobuf import message_name
from phalanx.api.wire import JSON, Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import raise_if_invalid
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import OBJECT_MEDIA_TYPES, PROTOBUF, load_body, media_type

_MAX_WARNINGS = 50
_JSON_TYPES = {list: "array", str: "string", bool: "bool", type(None): "null"}
#: The end of a key in JSON, in the usual form and with spaces.
_KEY_END, _SPACED_KEY_END = b'":', re.compile(rb'"\s+:')


def read_object(context: ServerContext, call: RequestInfo) -> Object:
    """The object of a create or update, conforming and of the right kind."""
    obj = _load_body(call)
    if not isinstance(obj, dict):
        found = _JSON_TYPES.get(type(obj), "number")
        raise BadRequest(
            _unrecognized_message(call.kind, f"cannot unmarshal {found} into an object")
        )
    check_kind(call.kind, obj)
    duplicates = _find_duplicate_keys(call, obj)
    for key in ("apiVersion", "kind"):
        obj.pop(key, None)
    rename_fields(call, JSON, obj)
    conform_object(context, call, obj, duplicates)
    return obj


def rename_fields(call: RequestInfo, content_type: str, body: Any) -> ResolvedRequest:
    """Replace field aliases in a body or patch by the stored names, with a warning for each."""
    if call.kind.is_custom:
        return ResolvedRequest(body)
    resolved = resolve_aliases(call.kind.schema, content_type, body, call.namespace)
    if resolved is None:
        return ResolvedRequest(body)
    raise_if_invalid(call.kind, call.name or _body_name(body), resolved.causes)
    call.warnings.extend(resolved.warnings)
    return resolved


def convert_to_stored(
    call: RequestInfo, obj: Object, convert: Callable[[Kind, Object], Object] = to_hub
) -> Object:
    """Convert a conforming object to the stored version; check rules of its own version."""
    raise_if_invalid(call.kind, call.name or _body_name(obj), validate_in_version(call.kind, obj))
    return convert(call.kind, obj)


def conform_object(
    context: ServerContext,
    call: RequestInfo,
    obj: Object,
    duplicates: Sequence[str] = (),
    *,
    strict: bool = False,
) -> None:
    """Prune and check an object in place; warn of or refuse unknown and duplicate fields."""
    kind, mode = call.kind, "Strict" if strict else call.field_validation()
    try:
        report = context.registry.strategy(kind).conform(obj)
    except Malformed as error:
        raise BadRequest(_cannot_handle_message(kind, str(error))) from error
    found = [f'unknown field "{path}"' for path in report.unknown_fields]
    found += [f'duplicate field "{path}"' for path in duplicates]
    if found and mode == "Strict":
        raise BadRequest(_cannot_handle_message(kind, f"strict decoding error: {', '.join(found)}"))
    if mode == "Warn":
        call.warnings.extend(found[:_MAX_WARNINGS])


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


def _load_body(call: RequestInfo) -> Any:
    accepted: tuple[str, ...] = OBJECT_MEDIA_TYPES
    if not message_name(call.kind.api_version, call.kind.name):
        # Some kinds have no protobuf message.
        accepted = tuple(form for form in OBJECT_MEDIA_TYPES if form != PROTOBUF)
    try:
        return load_body(call.request, accepted)
    except BadRequest as error:
        raw = call.request.body if isinstance(call.request.body, bytes) else b""
        excerpt = raw[:30].decode(errors="replace") + " ..." if raw else "<empty>"
        detail = f"{error.message} ({excerpt})"
        raise BadRequest(_unrecognized_message(call.kind, detail)) from error


def _find_duplicate_keys(call: RequestInfo, obj: Object) -> list[str]:
    """The duplicate keys of a JSON body; encoding the parsed object again shows if any exist."""
    raw = call.request.body
    if not isinstance(raw, bytes) or media_type(call.request) != JSON:
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
