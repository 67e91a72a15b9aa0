"""Strict decoding of parsed YAML into structs.

An unknown field or a value of another type becomes a cause at its path; a null counts as absent.
Whether values make sense is checked by rules afterwards.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from phalanx.api.errors import Cause
from phalanx.scheduler.plugins.arguments import unknown_field

T = TypeVar("T")

_MSGSPEC_ERROR = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL
)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_TYPE_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def decode_strictly(found: object, expected: type[T]) -> T | list[Cause]:
    """Convert a value to a type, or return the first cause why that fails."""
    try:
        return msgspec.convert(found, expected)
    except msgspec.ValidationError as error:
        return [_to_cause(str(error))]


def drop_nulls(found: Any) -> Any:
    """Remove fields that are null, and replace characters that are not valid Unicode."""
    if isinstance(found, dict):
        return {key: drop_nulls(value) for key, value in found.items() if value is not None}
    if isinstance(found, list):
        return [drop_nulls(item) for item in found]
    return found.encode(errors="replace").decode() if isinstance(found, str) else found


def _to_cause(error: str) -> Cause:
    parts = _MSGSPEC_ERROR.fullmatch(error)
    assert parts is not None
    what, path = parts["what"], parts["path"] or ""
    if parts["key"]:
        return Cause(path, "FieldValueTypeInvalid", "every key must be a string")
    if unknown := _UNKNOWN.fullmatch(what):
        return unknown_field(f"{path}.{unknown[1]}".removeprefix("."))
    text = re.sub(r"`(.*?)`", _type_name, what)
    return Cause(path, "FieldValueTypeInvalid", text[0].lower() + text[1:])


def _type_name(names: re.Match[str]) -> str:
    name = names[1].removesuffix(" | null")
    return _TYPE_NAMES.get(name, name)
