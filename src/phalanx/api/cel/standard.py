"""The functions of the language itself: arithmetic, order, membership, size, conversion."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, isinf, isnan, trunc
from typing import Any

from phalanx.api.cel.functions import Function, both, called, heavy
from phalanx.api.cel.times import duration_text, read_duration, read_timestamp, timestamp_text
from phalanx.api.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    NUMBER,
    STRING,
    TIMESTAMP,
    TYPE,
    UNSIGNED,
    A,
    B,
    Kind,
    list_of,
    map_of,
)
from phalanx.api.cel.values import (
    INT,
    UINT,
    Fault,
    Type,
    Uint,
    Unordered,
    distinct,
    equal,
    has_key,
    integer,
    moment,
    ordered,
    span,
    type_name,
    unsigned,
)

# --------------------------------------------------------------------------------------- arithmetic


def _quotient(a: int, b: int) -> int:
    """Towards zero, as the language divides."""
    if b == 0:
        raise Fault("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _rest(a: int, b: int) -> int:
    if b == 0:
        raise Fault("modulus by zero")
    return a - b * _quotient(a, b)


def _double_quotient(a: float, b: float) -> float:
    if b == 0:
        return float("nan") if a == 0 or isnan(a) else float("inf") * a
    return a / b


def _concatenated(a: list[Any], b: list[Any]) -> list[Any]:
    """Two lists; what is unordered takes what is new, and what replaces an item of its own."""
    if not isinstance(a, Unordered):
        return [*a, *b]
    items = {distinct(item, a.keys): item for item in a}
    for item in b:
        items[distinct(item, a.keys)] = item
    return Unordered(list(items.values()), a.keys)


_ARITHMETIC = [
    called("_+_", (NUMBER, NUMBER), NUMBER, lambda a, b: integer(a + b)),
    called("_+_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: unsigned(int(a) + int(b))),
    called("_+_", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a + b),
    called("_+_", (STRING, STRING), STRING, lambda a, b: a + b, heavy),
    called("_+_", (BYTES, BYTES), BYTES, lambda a, b: a + b, heavy),
    called("_+_", (list_of(A), list_of(A)), list_of(A), _concatenated, heavy),
    called("_+_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: moment(a.nanos + b.nanos)),
    called("_+_", (DURATION, TIMESTAMP), TIMESTAMP, lambda a, b: moment(a.nanos + b.nanos)),
    called("_+_", (DURATION, DURATION), DURATION, lambda a, b: span(a.nanos + b.nanos)),
    called("_-_", (NUMBER, NUMBER), NUMBER, lambda a, b: integer(a - b)),
    called("_-_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: unsigned(int(a) - int(b))),
    called("_-_", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a - b),
    called("_-_", (TIMESTAMP, TIMESTAMP), DURATION, lambda a, b: span(a.nanos - b.nanos)),
    called("_-_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: moment(a.nanos - b.nanos)),
    called("_-_", (DURATION, DURATION), DURATION, lambda a, b: span(a.nanos - b.nanos)),
    called("_*_", (NUMBER, NUMBER), NUMBER, lambda a, b: integer(a * b)),
    called("_*_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: unsigned(int(a) * int(b))),
    called("_*_", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a * b),
    called("_/_", (NUMBER, NUMBER), NUMBER, lambda a, b: integer(_quotient(a, b))),
    called("_/_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: Uint(_quotient(a, b))),
    called("_/_", (DOUBLE, DOUBLE), DOUBLE, _double_quotient),
    called("_%_", (NUMBER, NUMBER), NUMBER, _rest),
    called("_%_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: Uint(_rest(a, b))),
    called("-_", (NUMBER,), NUMBER, lambda a: integer(-a)),
    called("-_", (DOUBLE,), DOUBLE, lambda a: -a),
    called("!_", (BOOL,), BOOL, lambda a: not a),
]

# --------------------------------------------------------------------------------------- comparison

_ORDERS: dict[str, Callable[[int], bool]] = {
    "_<_": lambda sign: sign < 0,
    "_<=_": lambda sign: sign <= 0,
    "_>_": lambda sign: sign > 0,
    "_>=_": lambda sign: sign >= 0,
}
_NUMBERS = (NUMBER, UNSIGNED, DOUBLE)
_COMPARED = [
    *((kind, kind) for kind in (BOOL, STRING, BYTES, TIMESTAMP, DURATION)),
    *((a, b) for a in _NUMBERS for b in _NUMBERS),
]


def _order(test: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    def compare(a: Any, b: Any) -> bool:
        numbers = (a.__class__ is float and isnan(a)) or (b.__class__ is float and isnan(b))
        return False if numbers else test(ordered(a, b))

    return compare


_COMPARISONS = [
    *(
        called(name, pair, BOOL, _order(test), heavy)
        for name, test in _ORDERS.items()
        for pair in _COMPARED
    ),
    called("_==_", (A, A), BOOL, equal, heavy),
    called("_!=_", (A, A), BOOL, lambda a, b: not equal(a, b), heavy),
    called("@in", (A, list_of(A)), BOOL, lambda a, b: any(equal(a, x) for x in b), heavy),
    called("@in", (A, map_of(A, B)), BOOL, lambda a, b: has_key(b, a)),
]

# --------------------------------------------------------------------------------------------- size

_SIZED = (STRING, BYTES, list_of(A), map_of(A, B))
_SIZES = both(called("size", (kind,), NUMBER, len) for kind in _SIZED)

# --------------------------------------------------------------------------------------- conversion


def _to_int(value: float) -> int:
    if not isfinite(value) or not -INT < trunc(value) < INT:
        raise Fault("integer overflow")
    return trunc(value)


def _to_uint(value: float) -> Uint:
    if not isfinite(value) or not value >= 0 or trunc(value) >= UINT:
        raise Fault("unsigned integer overflow")
    return Uint(trunc(value))


def _read_int(text: str) -> int:
    try:
        if not text.lstrip("+-").isdecimal() or not text.isascii():
            raise ValueError(text)
        return integer(int(text))
    except ValueError:
        raise Fault(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _read_uint(text: str) -> Uint:
    if not (text.isdecimal() and text.isascii()) or len(text) > 20:
        raise Fault(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return unsigned(int(text))


def _read_double(text: str) -> float:
    try:
        if text != text.strip() or "_" in text:
            raise ValueError(text)
        return float(text)
    except ValueError:
        raise Fault(f'strconv.ParseFloat: parsing "{text}": invalid syntax') from None


def _read_bool(text: str) -> bool:
    known = {"1": True, "t": True, "T": True, "true": True, "TRUE": True, "True": True,
             "0": False, "f": False, "F": False, "false": False, "FALSE": False,
             "False": False}  # fmt: skip
    if text not in known:
        raise Fault(f'strconv.ParseBool: parsing "{text}": invalid syntax')
    return known[text]


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Fault("invalid UTF-8 in bytes, cannot convert to string") from None


def double_text(value: float) -> str:
    """A number as the language writes it: no fraction where there is none."""
    if isnan(value) or isinf(value):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(value)]
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


_CONVERSIONS = [
    called("int", (NUMBER,), NUMBER, lambda a: a),
    called("int", (UNSIGNED,), NUMBER, lambda a: integer(int(a))),
    called("int", (DOUBLE,), NUMBER, _to_int),
    called("int", (STRING,), NUMBER, _read_int),
    called("int", (TIMESTAMP,), NUMBER, lambda a: a.nanos // 10**9),
    called("int", (DURATION,), NUMBER, lambda a: a.nanos),
    called("uint", (UNSIGNED,), UNSIGNED, lambda a: a),
    called("uint", (NUMBER,), UNSIGNED, unsigned),
    called("uint", (DOUBLE,), UNSIGNED, _to_uint),
    called("uint", (STRING,), UNSIGNED, _read_uint),
    called("double", (DOUBLE,), DOUBLE, lambda a: a),
    called("double", (NUMBER,), DOUBLE, float),
    called("double", (UNSIGNED,), DOUBLE, float),
    called("double", (STRING,), DOUBLE, _read_double),
    called("bool", (BOOL,), BOOL, lambda a: a),
    called("bool", (STRING,), BOOL, _read_bool),
    called("bytes", (BYTES,), BYTES, lambda a: a),
    called("bytes", (STRING,), BYTES, str.encode, heavy),
    called("string", (STRING,), STRING, lambda a: a),
    called("string", (BOOL,), STRING, lambda a: "true" if a else "false"),
    called("string", (NUMBER,), STRING, str),
    called("string", (UNSIGNED,), STRING, lambda a: str(int(a))),
    called("string", (DOUBLE,), STRING, double_text),
    called("string", (BYTES,), STRING, _decoded, heavy),
    called("string", (TIMESTAMP,), STRING, timestamp_text),
    called("string", (DURATION,), STRING, duration_text),
    called("timestamp", (TIMESTAMP,), TIMESTAMP, lambda a: a),
    called("timestamp", (STRING,), TIMESTAMP, read_timestamp),
    called("timestamp", (NUMBER,), TIMESTAMP, lambda a: moment(a * 10**9)),
    called("duration", (DURATION,), DURATION, lambda a: a),
    called("duration", (STRING,), DURATION, read_duration),
    called("duration", (NUMBER,), DURATION, span),
    called("dyn", (DYN,), DYN, lambda a: a),
    called("type", (DYN,), TYPE, lambda a: Type(type_name(a))),
]

#: Types that are names in expressions.
_NAMES = ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type")
TYPES: dict[str, Kind] = dict.fromkeys(_NAMES, TYPE)

STANDARD: list[Function] = [*_ARITHMETIC, *_COMPARISONS, *_SIZES, *_CONVERSIONS]
