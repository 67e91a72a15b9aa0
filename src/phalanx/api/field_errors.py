"""How a field is wrong: one function per reason, with the wording that clients know.

A field is told relative to where the check stands; `under` puts it below its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from phalanx.api.errors import Cause

Causes = Sequence[Cause]


def required(field: str, detail: str = "") -> Cause:
    """It must be there."""
    return Cause(field, "FieldValueRequired", _with_detail("Required value", detail))


def invalid(field: str, value: Any, detail: str) -> Cause:
    """It is there, but wrong."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_to_json(value)}: {detail}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """It is none of the known values."""
    known = ", ".join(f'"{one}"' for one in supported)
    text = f"Unsupported value: {_to_json(value)}: supported values: {known}"
    return Cause(field, "FieldValueNotSupported", text)


def duplicate(field: str, value: Any) -> Cause:
    """It is there already."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_to_json(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """It must not be there, or not change."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def not_found(field: str, value: Any, detail: str = "") -> Cause:
    """It names what is not there."""
    return Cause(field, "FieldValueNotFound", _with_detail(f"Not found: {_to_json(value)}", detail))


def too_long(field: str, limit: int) -> Cause:
    """It has more bytes than allowed."""
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> Cause:
    """It has more items than allowed."""
    noun = "item" if limit == 1 else "items"
    text = f"Too many: {count}: must have at most {limit} {noun}"
    return Cause(field, "FieldValueTooMany", text)


def prefix_causes(parent: str, causes: Iterable[Cause]) -> list[Cause]:
    """The same causes, told from one level higher."""
    return [Cause(_join_path(parent, c.field), c.reason, c.message) for c in causes]


def _join_path(parent: str, field: str) -> str:
    if not field or not parent:
        return parent + field
    return f"{parent}{field}" if field.startswith("[") else f"{parent}.{field}"


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()
