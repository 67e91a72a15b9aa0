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
from phalanx.api.errors import BadRequest
from phalanx.api.kinds import Kind
from phalanx.api.messages import message_name
from phalanx.api.versions.conversion import faults, to_hub
from phalanx.api.versions.renaming import Renamed, renamed
from phalanx.api.wire import JSON, Object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.formats import OBJECTS, PROTOBUF, load, media_type
from phalanx.server.objects import refuse

_MAX_WARNINGS = 50
#: How a key ends, in JSON as most write it and as it may be written too.
_KEY, _SPACED_KEY = b'":', re.compile(rb'"\s+:')


def read_object(context: Context, call: Call) -> Object:
    """The object of a create or update, conforming, its kind checked, unknown fields told of."""
    obj = _loaded(call)
    if not isinstance(obj, dict):
        raise BadRequest(_unrecognised(call.kind, f"cannot unmarshal {_type(obj)} into an object"))
    check_kind(call.kind, obj)
    doubled = _doubled(call, obj)
    for key in ("apiVersion", "kind"):
        obj.pop(key, None)
    in_stored_names(call, JSON, obj)
    conformed(context, call, obj, doubled)
    return obj


def in_stored_names(call: Call, form: str, wanted: Any) -> Renamed:
    """A body or patch without other names of fields; who uses one is told what to write instead."""
    if call.kind.is_custom:
        return Renamed(wanted)
    found = renamed(call.kind.schema, form, wanted, call.namespace)
    if found is None:
        return Renamed(wanted)
    refuse(call.kind, call.name or _name(wanted), found.causes)
    call.warnings.extend(found.warnings)
    return found


def in_stored_form(
    call: Call, obj: Object, convert: Callable[[Kind, Object], Object] = to_hub
) -> Object:
    """A conforming object as it is stored; refused is what only its own form can say wrongly."""
    refuse(call.kind, call.name or _name(obj), faults(call.kind, obj))
    return convert(call.kind, obj)


def conformed(
    context: Context,
    call: Call,
    obj: Object,
    doubled: Sequence[str] = (),
    *,
    strict: bool = False,
) -> None:
    """Prune and check an object in place; unknown and doubled fields are told of or refused."""
    kind, mode = call.kind, "Strict" if strict else call.field_validation()
    try:
        report = context.registry.model(kind).conform(obj)
    except Malformed as error:
        raise BadRequest(_unhandled(kind, str(error))) from error
    found = [f'unknown field "{path}"' for path in report.unknown]
    found += [f'duplicate field "{path}"' for path in doubled]
    if found and mode == "Strict":
        raise BadRequest(_unhandled(kind, f"strict decoding error: {', '.join(found)}"))
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


def _name(obj: Any) -> str:
    """The name that a body gives, which may be of any shape yet."""
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""


def _loaded(call: Call) -> Any:
    try:
        return load(call.request, _formats(call.kind))
    except BadRequest as error:
        raw = call.request.body if isinstance(call.request.body, bytes) else b""
        shown = raw[:30].decode(errors="replace") + " ..." if raw else "<empty>"
        raise BadRequest(_unrecognised(call.kind, f"{error.message} ({shown})")) from error


def _formats(kind: Kind) -> tuple[str, ...]:
    """What objects of a kind may be sent in; not of every kind is it known how protobuf has it."""
    if message_name(kind.api_version, kind.name):
        return OBJECTS
    return tuple(form for form in OBJECTS if form != PROTOBUF)


def _doubled(call: Call, obj: Object) -> list[str]:
    """The keys that occur twice in one object of a body in JSON; written anew, it has each once."""
    raw = call.request.body
    if not isinstance(raw, bytes) or media_type(call.request) != JSON:
        return []
    is_plain = raw.count(_KEY) == orjson.dumps(obj).count(_KEY) and not _SPACED_KEY.search(raw)
    return [] if is_plain else _twice(raw)


def _twice(raw: bytes) -> list[str]:
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


def _type(value: Any) -> str:
    return {list: "array", str: "string", bool: "bool", type(None): "null"}.get(
        type(value), "number"
    )


def _unrecognised(kind: Kind, detail: str) -> str:
    return f"the object provided is unrecognized (must be of type {kind.name}): {detail}"


def _unhandled(kind: Kind, detail: str) -> str:
    return f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {detail}'
