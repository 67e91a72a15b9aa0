"""Request bodies: from bytes to an object that conforms to its kind's schema, or a 4xx.

bytes ─▶ read (JSON or YAML, limits) ─▶ stored names ─▶ conform (types, unknown fields) ─▶ object
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
#: How a key ends, in JSON as most write it and as it may be written too.
_KEY_END, _SPACED_KEY_END = b'":', re.compile(rb'"\s+:')


def read_object(context: ServerContext, call: RequestInfo) -> Object:
    """The object of a create or update, conforming, its kind checked, unknown fields told of."""
    obj = _load_body(call)
    if not isinstance(obj, dict):
        raise BadRequest(
            _unrecognized_message(call.kind, f"cannot unmarshal {_json_type(obj)} into an object")
        )
    check_kind(call.kind, obj)
    doubled = _find_duplicate_keys(call, obj)
    for key in ("apiVersion", "kind"):
        obj.pop(key, None)
    rename_fields(call, JSON, obj)
    conform_object(context, call, obj, doubled)
    return obj


def rename_fields(call: RequestInfo, form: str, wanted: Any) -> ResolvedRequest:
    """A body or patch without other names of fields; who uses one is told what to write instead."""
    if call.kind.is_custom:
        return ResolvedRequest(wanted)
    found = resolve_aliases(call.kind.schema, form, wanted, call.namespace)
    if found is None:
        return ResolvedRequest(wanted)
    raise_if_invalid(call.kind, call.name or _body_name(wanted), found.causes)
    call.warnings.extend(found.warnings)
    return found


def convert_to_stored(
    call: RequestInfo, obj: Object, convert: Callable[[Kind, Object], Object] = to_hub
) -> Object:
    """A conforming object as it is stored; refused is what only its own form can say wrongly."""
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
    """Prune and check an object in place; unknown and doubled fields are told of or refused."""
    kind, mode = call.kind, "Strict" if strict else call.field_validation()
    try:
        report = context.registry.model(kind).conform(obj)
    except Malformed as error:
        raise BadRequest(_cannot_handle_message(kind, str(error))) from error
    found = [f'unknown field "{path}"' for path in report.unknown_fields]
    found += [f'duplicate field "{path}"' for path in duplicates]
    if found and mode == "Strict":
        raise BadRequest(_cannot_handle_message(kind, f"strict decoding error: {', '.join(found)}"))
    if mode == "Warn":
        call.warnings.extend(found[:_MAX_WARNINGS])


def check_kind(kind: Kind, obj: Object) -> None:
    """Refuse an object of another kind or version than the path is for."""
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
    """The name that a body gives, which may be of any shape yet."""
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""


def _load_body(call: RequestInfo) -> Any:
    try:
        return load_body(call.request, _accepted_formats(call.kind))
    except BadRequest as error:
        raw = call.request.body if isinstance(call.request.body, bytes) else b""
        shown = raw[:30].decode(errors="replace") + " ..." if raw else "<empty>"
        raise BadRequest(_unrecognized_message(call.kind, f"{error.message} ({shown})")) from error


def _accepted_formats(kind: Kind) -> tuple[str, ...]:
    """What objects of a kind may be sent in; not of every kind is it known how protobuf has it."""
    if message_name(kind.api_version, kind.name):
        return OBJECT_MEDIA_TYPES
    return tuple(form for form in OBJECT_MEDIA_TYPES if form != PROTOBUF)


def _find_duplicate_keys(call: RequestInfo, obj: Object) -> list[str]:
    """The keys that occur twice in one object of a body in JSON; written anew, it has each once."""
    raw = call.request.body
    if not isinstance(raw, bytes) or media_type(call.request) != JSON:
        return []
    is_plain = raw.count(_KEY_END) == orjson.dumps(obj).count(
        _KEY_END
    ) and not _SPACED_KEY_END.search(raw)
    return [] if is_plain else _parse_duplicate_keys(raw)


def _parse_duplicate_keys(raw: bytes) -> list[str]:
    """The names of keys that occur twice in one object of a JSON text."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                found.append(key)
            seen[key] = value
        return seen

    try:
        json.loads(raw, object_pairs_hook=note)
    except ValueError:
        return []
    return found


def _json_type(value: Any) -> str:
    return {list: "array", str: "string", bool: "bool", type(None): "null"}.get(
        type(value), "number"
    )


def _unrecognized_message(kind: Kind, detail: str) -> str:
    return f"the object provided is unrecognized (must be of type {kind.name}): {detail}"


def _cannot_handle_message(kind: Kind, detail: str) -> str:
    return f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {detail}'
