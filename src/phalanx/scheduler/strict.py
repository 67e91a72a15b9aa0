"""Strict reading: what a parsed file holds as a struct, or what is wrong with it, as causes.

A field that the struct does not have, or a value of another type, is a cause at its path; a null is
as good as nothing. What values mean is for rules to say.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from phalanx.api.errors import Cause

T = TypeVar("T")

_COMPLAINT = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL
)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_TYPES = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "names with values", "null": "nothing",
}  # fmt: skip


def strictly(found: object, wanted: type[T]) -> T | list[Cause]:
    """A value of that type, or the first thing that keeps it from being one."""
    try:
        return msgspec.convert(found, wanted)
    except msgspec.ValidationError as error:
        return [_cause(str(error))]


def without_nulls(found: Any) -> Any:
    """The same, fields left out that say nothing."""
    if isinstance(found, dict):
        return {key: without_nulls(value) for key, value in found.items() if value is not None}
    if isinstance(found, list):
        return [without_nulls(item) for item in found]
    return found


def no_such(field: str) -> Cause:
    """A field that there is not."""
    return Cause(field, "FieldValueForbidden", "there is no such field")


def _cause(complaint: str) -> Cause:
    parts = _COMPLAINT.fullmatch(complaint)
    assert parts is not None
    what, path = parts["what"], parts["path"] or ""
    if parts["key"]:
        return Cause(path, "FieldValueTypeInvalid", "every name must be text")
    if unknown := _UNKNOWN.fullmatch(what):
        return no_such(f"{path}.{unknown[1]}".removeprefix("."))
    told = re.sub(r"`(\w+)`", lambda name: _TYPES.get(name[1], name[1]), what)
    return Cause(path, "FieldValueTypeInvalid", told[0].lower() + told[1:])
