"""Constructors of field errors, one per reason, with the messages of Kubernetes.

A field path is relative to the struct that a check is about; `prefix_causes` puts it below the
parent's path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from phalanx.api.errors import Cause

Causes = Sequence[Cause]


def required(field: str, detail: str = "") -> Cause:
    """Build the error of a missing value."""
    return Cause(field, "FieldValueRequired", _with_detail("Required value", detail))


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Build the error of a wrong value."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_to_json(value)}: {detail}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """Build the error of a value that is not one of the supported values."""
    known = ", ".join(f'"{one}"' for one in supported)
    text = f"Unsupported value: {_to_json(value)}: supported values: {known}"
    return Cause(field, "FieldValueNotSupported", text)


def duplicate(field: str, value: Any) -> Cause:
    """Build the error of a repeated value."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_to_json(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """Build the error of a value that must be absent or unchanged."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def not_found(field: str, value: Any, detail: str = "") -> Cause:
    """Build the error of a reference to something that does not exist."""
    return Cause(field, "FieldValueNotFound", _with_detail(f"Not found: {_to_json(value)}", detail))


def too_long(field: str, limit: int) -> Cause:
    """Build the error of a value with more bytes than allowed."""
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> Cause:
    """Build the error of a value with more items than allowed."""
    noun = "item" if limit == 1 else "items"
    text = f"Too many: {count}: must have at most {limit} {noun}"
    return Cause(field, "FieldValueTooMany", text)


def prefix_causes(parent: str, causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes with their fields below a parent's path."""
    return [Cause(_join_path(parent, c.field), c.reason, c.message) for c in causes]


def _join_path(parent: str, field: str) -> str:
    if not field or not parent:
        return parent + field
    return f"{parent}{field}" if field.startswith("[") else f"{parent}.{field}"


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()
