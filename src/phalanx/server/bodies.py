"""Request bodies: from bytes to an object that conforms to its kind's schema, or a 4xx.

bytes ─▶ read (JSON or YAML, limits) ─▶ conform (types, unknown fields) ─▶ object
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import yaml

from phalanx.api.conform import Malformed
from phalanx.api.errors import BadRequest, TooLarge, UnsupportedMediaType
from phalanx.api.kinds import Kind
from phalanx.api.wire import JSON, Object, Request
from phalanx.server.call import Call
from phalanx.server.context import Context

#: A body may have so many bytes and be nested so deep.
MAX_BODY = 3 * 1024 * 1024
MAX_DEPTH = 256
_MAX_ALIASES = 100
_MAX_WARNINGS = 50

_YAML = ("application/yaml", "application/x-yaml")
_ACCEPTED = f"accepted media types include: {JSON}, application/yaml"


def media_type(request: Request) -> str:
    """What the body claims to be, without parameters."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower() or JSON


def read_object(context: Context, call: Call) -> Object:
    """The object of a create or update, conforming, its kind checked, unknown fields told of."""
    raw = call.request.body
    obj, duplicates = (raw, 0) if isinstance(raw, dict) else _parsed_object(call, raw)
    if not isinstance(obj, dict):
        raise BadRequest(_unrecognised(call.kind, f"cannot unmarshal {_type(obj)} into an object"))
    check_kind(call.kind, obj)
    obj.pop("apiVersion", None)
    obj.pop("kind", None)
    conformed(context, call, obj, raw if isinstance(raw, bytes) else b"", duplicates)
    return obj


def conformed(
    context: Context, call: Call, obj: Object, raw: bytes = b"", envelope: int = 0
) -> None:
    """Prune and check an object in place; unknown and doubled fields are told of or refused."""
    kind, mode = call.kind, call.field_validation()
    try:
        report = context.registry.model(kind).conform(obj)
    except Malformed as error:
        raise BadRequest(_unhandled(kind, str(error))) from error
    found = [f'unknown field "{path}"' for path in report.unknown]
    if mode != "Ignore" and raw and raw.count(b'":') != report.keys + envelope:
        found += [f'duplicate field "{path}"' for path in _doubled(raw)]
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


def read_any(request: Request, types: tuple[str, ...] = (JSON, *_YAML)) -> Any:
    """A body that is not an object of a served kind: options, a patch, a review."""
    if isinstance(request.body, dict):
        return request.body
    if media_type(request) not in types:
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format - {_ACCEPTED}"
        )
    return _load(request.body, is_yaml=media_type(request) in _YAML or "yaml" in types[0])


def _parsed_object(call: Call, raw: bytes) -> tuple[Any, int]:
    """The body, and how many keys of it are read before the schema sees it."""
    try:
        obj = read_any(call.request)
    except BadRequest as error:
        shown = raw[:30].decode(errors="replace") + " ..." if raw else "<empty>"
        raise BadRequest(_unrecognised(call.kind, f"{error.message} ({shown})")) from error
    keys = sum(key in obj for key in ("apiVersion", "kind")) if isinstance(obj, dict) else 0
    return obj, keys


def _load(raw: bytes, *, is_yaml: bool) -> Any:
    if len(raw) > MAX_BODY:
        raise TooLarge(f"Request entity too large: limit is {MAX_BODY}")
    if is_yaml:
        return _load_yaml(raw)
    if not raw:
        raise BadRequest(
            "couldn't get version/kind; json parse error: unexpected end of JSON input"
        )
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(raw)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        detail = str(error).partition(":")[0]
        raise BadRequest(f"couldn't get version/kind; json parse error: {detail}") from error


def _check_depth(raw: bytes) -> None:
    """Refuse deep nesting before any parser recurses into it; strings are stepped over."""
    depth, quoted, escaped = 0, False, False
    for byte in raw:
        if quoted:
            escaped, quoted = byte == 92 and not escaped, byte != 34 or escaped
        elif byte == 34:
            quoted = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadRequest("couldn't get version/kind; json parse error: exceeded max depth")
        elif byte in b"]}":
            depth -= 1


class _Loader(yaml.SafeLoader):
    """YAML that becomes JSON: no dates, no octal surprises, few aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count aliases: a few bytes of them can stand for gigabytes."""
        if self.check_event(yaml.AliasEvent):
            self.aliases = getattr(self, "aliases", 0) + 1
            if self.aliases > _MAX_ALIASES:
                raise yaml.YAMLError("excessive aliasing")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {}
#: What a bare word means: as Kubernetes reads it, not as YAML 1.1 would (no dates, no base 60).
for _tag, _pattern, _first in (
    ("bool", "y|Y|n|N|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
     "yYnNtTfFoO"),
    ("int", "[-+]?(?:0|[1-9][0-9_]*|0[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?",
     "-+.0123456789"),
    ("null", "~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", "<<", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )
_Loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}


def _load_yaml(raw: bytes) -> Any:
    try:
        value = yaml.load(raw, Loader=_Loader)
        _check_expansion(value)
        # Through JSON and back: what JSON cannot say is refused, and aliases become copies.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"error converting YAML to JSON: yaml: {_first_line(error)}") from error


def _check_expansion(value: Any) -> None:
    """Refuse what aliases make larger than a body may be, before it is spelled out."""
    size, todo = 0, [value]
    while todo:
        item = todo.pop()
        size += 2 + (len(item) if isinstance(item, str) else 0)
        if size > MAX_BODY:
            raise BadRequest("error converting YAML to JSON: yaml: excessive aliasing")
        if isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _doubled(raw: bytes) -> list[str]:
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
