"""Maps structural schemas to CEL types, JSON values to CEL values, and checks `fieldPath`.

Field names that are no identifiers are escaped: `a-b` becomes `a__dash__b`. Fields without a schema
cannot be selected. Values are used as they are in the object, except numbers, timestamps,
durations, bytes and unordered lists, which CEL distinguishes and JSON does not.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from phalanx.api.cel.declarations import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INTEGER,
    STRING,
    TIMESTAMP,
    CelType,
    ObjectField,
    list_of,
    map_of,
)
from phalanx.api.cel.parser import RESERVED_WORDS
from phalanx.api.cel.timestamps import parse_duration, parse_timestamp
from phalanx.api.cel.values import EvaluationError, UnorderedList
from phalanx.api.custom_resources.schema_validation import (
    EMBEDDED_RESOURCE,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
)
from phalanx.api.wire import Object

_PATH_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|[.\[\]]|[^.\[\]]+")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'",
    "\\": "\\",
}  # fmt: skip
_NO_FIELD = "does not refer to a valid field"


class BadFieldPath(ValueError):
    """A `fieldPath` that names no field, with the reason."""


def normalize_field_path(path: str, schema: Object) -> str:
    """Return a `fieldPath` as causes print it: `.labels[a.b]`. Raises BadFieldPath."""
    tokens = _PATH_TOKEN.findall(path)
    shown, at = "", 0
    while at < len(tokens):
        if tokens[at] not in (".", "["):
            raise BadFieldPath(f"expected [ or . but got: {tokens[at]}")
        name = _parse_name(tokens, at)
        shown, schema = _descend(shown, name, schema)
        at += 2 if tokens[at] == "." else 3
    return shown


def _parse_name(tokens: list[str], at: int) -> str:
    """Return the name between an opening sign and its closing sign."""
    if at + 1 >= len(tokens):
        raise BadFieldPath("unexpected end of JSON path")
    name = tokens[at + 1]
    if tokens[at] == ".":
        return name
    if len(name) < 2 or name[0] != "'" or name[-1] != "'":
        raise BadFieldPath(f"expected single quoted string but got {name}")
    if at + 2 >= len(tokens):
        raise BadFieldPath("unexpected end of JSON path")
    if tokens[at + 2] != "]":
        raise BadFieldPath(f"expected ] but got {tokens[at + 2]}")
    return re.sub(r"\\(.)", _unescape, name[1:-1])


def _unescape(match: re.Match[str]) -> str:
    if match[1] not in _ESCAPES:
        raise BadFieldPath(f"invalid string literal: invalid escape char {match[0]}")
    return _ESCAPES[match[1]]


def _descend(shown: str, name: str, schema: Object) -> tuple[str, Object]:
    if "properties" in schema:
        if name not in schema["properties"]:
            raise BadFieldPath(_NO_FIELD)
        return f"{shown}.{name}", schema["properties"][name]
    more = schema.get("additionalProperties")
    if not more:
        raise BadFieldPath(_NO_FIELD)
    return f"{shown}[{name}]", more if isinstance(more, dict) else {}


_SCALAR_TYPES = {"string": STRING, "boolean": BOOL, "integer": INTEGER, "number": DOUBLE}
_FORMAT_TYPES = {
    "byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP,
}  # fmt: skip
_ESCAPED_WORDS = RESERVED_WORDS | {"true", "false", "null", "in"}
_CHARACTER_ESCAPES = {"__": "underscores", ".": "dot", "-": "dash", "/": "slash"}
_ESCAPABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_STRING_SCHEMA: Object = {"type": "string"}
_METADATA_SCHEMA: Object = {
    "type": "object",
    "properties": {"name": _STRING_SCHEMA, "generateName": _STRING_SCHEMA},
}


def escape_field_name(name: str) -> str | None:
    """Return the escaped name of a field; None if the name cannot be escaped."""
    if not _ESCAPABLE.fullmatch(name):
        return None
    if name in _ESCAPED_WORDS:
        return f"__{name}__"
    return re.sub(r"__|[./-]", lambda match: f"__{_CHARACTER_ESCAPES[match[0]]}__", name)


def object_fields(schema: Object, *, root: bool) -> dict[str, Object]:
    """Return the field schemas of an object.

    The root and embedded resources (`root`) always have apiVersion, kind and metadata.
    """
    declared: dict[str, Object] = schema.get("properties", {})
    if not root:
        return declared
    return {
        **declared,
        "apiVersion": _STRING_SCHEMA,
        "kind": _STRING_SCHEMA,
        "metadata": _METADATA_SCHEMA,
    }


def schema_type(schema: Object, place: str = "", *, root: bool = False) -> CelType | None:
    """Return the CEL type of a schema; None if the schema, or its items or values, has no type."""
    if schema.get(INT_OR_STRING):
        return DYN
    kind = schema.get("type", "")
    if kind == "array":
        items = schema_type(schema.get("items") or {}, f"{place}[]")
        return list_of(items) if items else None
    if kind == "object":
        return _object_type(schema, place, root=root or bool(schema.get(EMBEDDED_RESOURCE)))
    found = _SCALAR_TYPES.get(kind)
    return _FORMAT_TYPES.get(schema.get("format", ""), found) if found == STRING else found


def _object_type(schema: Object, place: str, *, root: bool) -> CelType | None:
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        values = schema_type(more, f"{place}{{}}")
        return map_of(STRING, values) if values else None
    known = {}
    for name, one in object_fields(schema, root=root).items():
        alias, kind = escape_field_name(name), schema_type(one, f"{place}.{name}")
        if alias and kind:
            known[alias] = ObjectField(name, kind)
    return CelType("object", (), known, place or ".")


# ------------------------------------------------------------------------------------------- values

#: Converts a JSON value to a CEL value.
Converter: TypeAlias = Callable[[Any], Any]


def compile_converter(schema: Object) -> Converter | None:
    """Return the converter for values of a schema; None if values need no conversion."""
    if schema.get(INT_OR_STRING):
        return None
    match schema.get("type", ""):
        case "array":
            return _list_converter(schema)
        case "object":
            return _map_converter(schema)
        case "number":
            return lambda value: value if value is None else float(value)
        case "string":
            return _STRING_CONVERTERS.get(schema.get("format", ""))
    return None


def _list_converter(schema: Object) -> Converter | None:
    item = compile_converter(schema.get("items") or {})
    keys = tuple(schema.get(LIST_KEYS, ()))
    unordered = schema.get(LIST_TYPE) in ("set", "map")
    if not item and not unordered:
        return None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        made = [item(one) for one in value] if item else value
        return UnorderedList(made, keys) if unordered else made

    return convert


def _map_converter(schema: Object) -> Converter | None:
    more = schema.get("additionalProperties")
    values = compile_converter(more) if isinstance(more, dict) else None
    made = {
        n: one for n, s in schema.get("properties", {}).items() if (one := compile_converter(s))
    }
    if not values and not made:
        return None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        found = dict(value)
        for name in made if values is None else value:
            if name in found:
                found[name] = (made.get(name) or values or _identity)(found[name])
        return found

    return convert


def _identity(value: Any) -> Any:
    return value


def _parse_or_none(parse: Callable[[str], Any]) -> Converter:
    """Parse a value; a malformed one becomes None, which no typed function accepts."""

    def convert(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else None
        except (EvaluationError, ValueError):
            return None

    return convert


_STRING_CONVERTERS: dict[str, Converter] = {
    "byte": _parse_or_none(lambda text: binascii.a2b_base64(text, strict_mode=True)),
    "duration": _parse_or_none(parse_duration),
    "date": _parse_or_none(lambda text: parse_timestamp(f"{text}T00:00:00Z")),
    "date-time": _parse_or_none(parse_timestamp),
}
