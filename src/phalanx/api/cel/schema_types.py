"""Where a rule tells of a breach: `.spec.size` or `.labels['a.b']`, below the rule's own value.

What a structural schema means to expressions: the type of its values, and the values themselves.

Fields whose names are no names in expressions are escaped: `a-b` is `a__dash__b`. Fields of which
nothing is known cannot be asked for. Values are taken as they are in the object, but for numbers,
moments, spans, bytes and lists without an order, which expressions know and JSON does not.
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
    """A path that leads nowhere, and why."""


def normalize_field_path(path: str, schema: Object) -> str:
    """The path as causes tell it: `.spec.size`, `.labels[a.b]`. Raises BadFieldPath."""
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
    """What follows an opening sign, if it is closed as it should be."""
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
    """The name of a field in expressions, if it can have one."""
    if not _ESCAPABLE.fullmatch(name):
        return None
    if name in _ESCAPED_WORDS:
        return f"__{name}__"
    return re.sub(r"__|[./-]", lambda match: f"__{_CHARACTER_ESCAPES[match[0]]}__", name)


def object_fields(schema: Object, *, root: bool) -> dict[str, Object]:
    """The schemas of an object's fields; an object of its own has a name and a kind."""
    told: dict[str, Object] = schema.get("properties", {})
    if not root:
        return told
    return {
        **told,
        "apiVersion": _STRING_SCHEMA,
        "kind": _STRING_SCHEMA,
        "metadata": _METADATA_SCHEMA,
    }


def schema_type(schema: Object, place: str = "", *, root: bool = False) -> CelType | None:
    """The type of the values of a schema; None if too little is known of them."""
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

#: Makes a value that expressions know of one that JSON knows.
Converter: TypeAlias = Callable[[Any], Any]


def compile_converter(schema: Object) -> Converter | None:
    """How the values of a schema become values of expressions; None: they are already."""
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
    """What cannot be read is nothing that a function of its type would take."""

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
