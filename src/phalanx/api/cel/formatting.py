"""Texts with values in them: `"%d of %s".format([1, "x"])`."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from math import isfinite
from typing import Any

from phalanx.api.cel.times import duration_text, timestamp_text
from phalanx.api.cel.values import (
    Duration,
    Fault,
    Timestamp,
    Type,
    Uint,
    decimal,
    type_name,
)

_CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d{1,3}))?([a-zA-Z]))|%")
_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def quoted(text: str) -> str:
    """A text as it could be written in an expression."""
    return f'"{"".join(_ESCAPES.get(char, char) for char in text)}"'


def formatted(text: str, values: list[Any]) -> str:
    """A text in which each clause is replaced by a value."""
    rest = iter(values)

    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return "%"
        write = _CLAUSES.get(match[3] or "")
        if write is None:
            raise Fault(f'could not parse formatting clause: unrecognized "{match[0]}"')
        try:
            return write(next(rest), None if match[2] is None else int(match[2]))
        except StopIteration:
            raise Fault("index out of range") from None

    return _CLAUSE.sub(replaced, text)


def shown(value: Any) -> str:
    """Any value as a text, as `%s` shows it."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        entries = sorted(f"{shown(key)}: {shown(one)}" for key, one in value.items())
        return f"{{{', '.join(entries)}}}"
    write = _SHOWN.get(value.__class__)
    return write(value) if write else type_name(value)


def _number(value: float) -> str:
    if not isfinite(value):
        return _NOT_FINITE[str(value)]
    return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)


_SHOWN: dict[type, Callable[[Any], str]] = {
    str: str,
    bool: lambda value: "true" if value else "false",
    int: str,
    Uint: lambda value: str(int(value)),
    float: _number,
    bytes: lambda value: value.decode(errors="replace"),
    type(None): lambda _: "null",
    Timestamp: timestamp_text,
    Duration: duration_text,
    Type: lambda value: str(value.name),
}


def _wrong(clause: str, wanted: str, value: Any) -> Fault:
    return Fault(f"error during formatting: {clause} clause can only be used on {wanted}, was given"
                 f" {type_name(value)}")  # fmt: skip


def _decimal(value: Any, precision: int | None) -> str:
    if value.__class__ is float and not isfinite(value):
        return _NOT_FINITE[str(value)]
    if value.__class__ not in (int, Uint):
        raise _wrong("decimal", "integers", value)
    return str(int(value))


def _fixed(value: Any, precision: int | None) -> str:
    if value.__class__ not in (int, Uint, float):
        raise _wrong("fixed-point", "doubles", value)
    if value.__class__ is float and not isfinite(value):
        return _NOT_FINITE[str(value)]
    return decimal(Fraction(value), 6 if precision is None else precision)


def _scientific(value: Any, precision: int | None) -> str:
    if value.__class__ not in (int, Uint, float):
        raise _wrong("scientific", "doubles", value)
    if value.__class__ is float and not isfinite(value):
        return _NOT_FINITE[str(value)]
    return f"{float(value):.{6 if precision is None else precision}e}"


def _in_base(base: str, wanted: str) -> Callable[[Any, int | None], str]:
    def write(value: Any, precision: int | None) -> str:
        if value.__class__ is bool and base == "b":
            return "1" if value else "0"
        if value.__class__ in (str, bytes) and base in "xX":
            raw = value.encode() if isinstance(value, str) else value
            return str(raw.hex() if base == "x" else raw.hex().upper())
        if value.__class__ not in (int, Uint):
            raise _wrong(wanted, "integers", value)
        return format(int(value), base)

    return write


_CLAUSES: dict[str, Callable[[Any, int | None], str]] = {
    "s": lambda value, precision: shown(value),
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "x": _in_base("x", "hex"),
    "X": _in_base("X", "hex"),
    "o": _in_base("o", "octal"),
    "b": _in_base("b", "binary"),
}
