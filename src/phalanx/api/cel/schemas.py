"""What a structural schema means to expressions: the type of its values, and the values themselves.

Fields whose names are no names in expressions are escaped: `a-b` is `a__dash__b`. Fields of which
nothing is known cannot be asked for. Values are taken as they are in the object, but for numbers,
moments, spans, bytes and lists without an order, which expressions know and JSON does not.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from phalanx.api.cel.times import read_duration, read_timestamp
from phalanx.api.cel.tokens import RESERVED
from phalanx.api.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    NUMBER,
    STRING,
    TIMESTAMP,
    Field,
    Kind,
    list_of,
    map_of,
)
from phalanx.api.cel.values import Fault, Unordered
from phalanx.api.custom.checks import EMBEDDED, INT_OR_STRING, LIST_KEYS, LIST_TYPE
from phalanx.api.wire import Object

_SCALARS = {"string": STRING, "boolean": BOOL, "integer": NUMBER, "number": DOUBLE}
_FORMATS = {
    "byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP,
}  # fmt: skip
_WORDS = RESERVED | {"true", "false", "null", "in"}
_SIGNS = {"__": "underscores", ".": "dot", "-": "dash", "/": "slash"}
_ESCAPABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_TEXT: Object = {"type": "string"}
_META: Object = {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}}


def escaped(name: str) -> str | None:
    """The name of a field in expressions, if it can have one."""
    if not _ESCAPABLE.fullmatch(name):
        return None
    if name in _WORDS:
        return f"__{name}__"
    return re.sub(r"__|[./-]", lambda match: f"__{_SIGNS[match[0]]}__", name)


def fields(schema: Object, *, root: bool) -> dict[str, Object]:
    """The schemas of an object's fields; an object of its own has a name and a kind."""
    told: dict[str, Object] = schema.get("properties", {})
    if not root:
        return told
    return {**told, "apiVersion": _TEXT, "kind": _TEXT, "metadata": _META}


def kind_of(schema: Object, place: str = "", *, root: bool = False) -> Kind | None:
    """The type of the values of a schema; None if too little is known of them."""
    if schema.get(INT_OR_STRING):
        return DYN
    kind = schema.get("type", "")
    if kind == "array":
        items = kind_of(schema.get("items") or {}, f"{place}[]")
        return list_of(items) if items else None
    if kind == "object":
        return _object(schema, place, root=root or bool(schema.get(EMBEDDED)))
    found = _SCALARS.get(kind)
    return _FORMATS.get(schema.get("format", ""), found) if found == STRING else found


def _object(schema: Object, place: str, *, root: bool) -> Kind | None:
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        values = kind_of(more, f"{place}{{}}")
        return map_of(STRING, values) if values else None
    known = {}
    for name, one in fields(schema, root=root).items():
        alias, kind = escaped(name), kind_of(one, f"{place}.{name}")
        if alias and kind:
            known[alias] = Field(name, kind)
    return Kind("object", (), known, place or ".")


# ------------------------------------------------------------------------------------------- values

#: Makes a value that expressions know of one that JSON knows.
Convert: TypeAlias = Callable[[Any], Any]


def converter(schema: Object) -> Convert | None:
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
            return _READERS.get(schema.get("format", ""))
    return None


def _list_converter(schema: Object) -> Convert | None:
    item = converter(schema.get("items") or {})
    keys = tuple(schema.get(LIST_KEYS, ()))
    unordered = schema.get(LIST_TYPE) in ("set", "map")
    if not item and not unordered:
        return None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        made = [item(one) for one in value] if item else value
        return Unordered(made, keys) if unordered else made

    return convert


def _map_converter(schema: Object) -> Convert | None:
    more = schema.get("additionalProperties")
    values = converter(more) if isinstance(more, dict) else None
    made = {n: one for n, s in schema.get("properties", {}).items() if (one := converter(s))}
    if not values and not made:
        return None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        found = dict(value)
        for name in made if values is None else value:
            if name in found:
                found[name] = (made.get(name) or values or _same)(found[name])
        return found

    return convert


def _same(value: Any) -> Any:
    return value


def _reader(read: Callable[[str], Any]) -> Convert:
    """What cannot be read is nothing that a function of its type would take."""

    def convert(value: Any) -> Any:
        try:
            return read(value) if isinstance(value, str) else None
        except (Fault, ValueError):
            return None

    return convert


_READERS: dict[str, Convert] = {
    "byte": _reader(lambda text: binascii.a2b_base64(text, strict_mode=True)),
    "duration": _reader(read_duration),
    "date": _reader(lambda text: read_timestamp(f"{text}T00:00:00Z")),
    "date-time": _reader(read_timestamp),
}
