"""Strict reading: what a parsed file holds as a struct, or what is wrong with it, as causes.

A field that the struct does not have, or a value of another type, is a cause at its path; a null is
as good as nothing. What values mean is for rules to say, which may show what they are given.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from phalanx.api.errors import Cause

T = TypeVar("T")
#: A whole number that others can hold too.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]

_MSGSPEC_ERROR = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL
)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_TYPE_NAMES = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "names with values", "null": "nothing",
}  # fmt: skip


def decode_strictly(found: object, wanted: type[T]) -> T | list[Cause]:
    """A value of that type, or the first thing that keeps it from being one."""
    try:
        return msgspec.convert(found, wanted)
    except msgspec.ValidationError as error:
        return [_to_cause(str(error))]


def drop_nulls(found: Any) -> Any:
    """The same without fields that say nothing, and without signs that are none."""
    if isinstance(found, dict):
        return {key: drop_nulls(value) for key, value in found.items() if value is not None}
    if isinstance(found, list):
        return [drop_nulls(item) for item in found]
    return found.encode(errors="replace").decode() if isinstance(found, str) else found


def unknown_field(field: str) -> Cause:
    """A field that there is not."""
    return Cause(field, "FieldValueForbidden", "there is no such field")


def _to_cause(error: str) -> Cause:
    parts = _MSGSPEC_ERROR.fullmatch(error)
    assert parts is not None
    what, path = parts["what"], parts["path"] or ""
    if parts["key"]:
        return Cause(path, "FieldValueTypeInvalid", "every name must be text")
    if unknown := _UNKNOWN.fullmatch(what):
        return unknown_field(f"{path}.{unknown[1]}".removeprefix("."))
    told = re.sub(r"`(.*?)`", _type_name, what)
    return Cause(path, "FieldValueTypeInvalid", told[0].lower() + told[1:])


def _type_name(names: re.Match[str]) -> str:
    """A type in plain words; that nothing would do as well goes without saying."""
    plain = names[1].removesuffix(" | null")
    return _TYPE_NAMES.get(plain, plain)
