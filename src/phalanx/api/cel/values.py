"""Values of expressions: Python's own, and the types that Python lacks.

    bool, int, double, string     bool, int, float, str         uint         Uint
    bytes, list, map, null        bytes, list, dict, None       timestamp    Timestamp   …

An evaluation without a result raises EvaluationError, one beyond its budget CostLimitExceeded.
Equality follows CEL: numbers of all types compare by value, and true does not equal 1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from math import isnan
from typing import Any

#: The first integers that are out of range.
INT_LIMIT, UINT_LIMIT = 2**63, 2**64


class EvaluationError(Exception):
    """An evaluation without a result: `no such key: x`, `division by zero`."""


class CostLimitExceeded(Exception):
    """An evaluation that spent its cost budget."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


class Uint(int):
    """An unsigned integer."""


@dataclass(frozen=True, order=True, slots=True)
class Timestamp:
    """A point in time, in nanoseconds since 1970."""

    nanos: int


@dataclass(frozen=True, order=True, slots=True)
class Duration:
    """A duration in nanoseconds."""

    nanos: int


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """A value that may be absent."""

    has: bool
    value: Any = None


EMPTY_OPTIONAL = OptionalValue(False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: `type(x)`, `int`."""

    name: str


class UnorderedList(list[Any]):
    """A list whose order is irrelevant: a set, or a list with map keys."""

    __slots__ = ("keys",)

    def __init__(self, items: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        #: The fields that identify an item; none: the item itself.
        self.keys = keys


class DefaultMap(dict[Any, Any]):
    """A map of maps whose missing entries read as empty maps, such as the attributes of a device.

    `key in map` is still false for a missing entry.
    """


_TYPE_NAMES: dict[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes",
    list: "list", UnorderedList: "list", dict: "map", DefaultMap: "map", type(None): "null_type",
    TypeValue: "type", Timestamp: "google.protobuf.Timestamp", Duration: "google.protobuf.Duration",
    OptionalValue: "optional_type",
}  # fmt: skip
_NUMERIC_TYPES = (int, float, Uint)


def type_name(value: Any) -> str:
    """Return CEL's name of the type of a value."""
    return _TYPE_NAMES.get(value.__class__) or str(value.type_name)


def values_equal(a: Any, b: Any) -> bool:
    """Whether two values are equal."""
    kind, other = a.__class__, b.__class__
    if kind in _NUMERIC_TYPES:
        return other in _NUMERIC_TYPES and bool(a == b)
    if isinstance(a, list):
        return isinstance(b, list) and _equal_lists(a, b)
    if kind is not other:
        return False
    if kind is dict:
        return len(a) == len(b) and all(k in b and values_equal(v, b[k]) for k, v in a.items())
    if kind is OptionalValue:
        return a.has == b.has and (not a.has or values_equal(a.value, b.value))
    return bool(a == b)


def _equal_lists(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    if isinstance(a, UnorderedList):
        return _equal_unordered(a, b)
    return all(values_equal(x, y) for x, y in zip(a, b, strict=True))


def _equal_unordered(a: UnorderedList, b: list[Any]) -> bool:
    there = {identity_key(item, a.keys): item for item in b}
    return all(
        (key := identity_key(item, a.keys)) in there and values_equal(item, there[key])
        for item in a
    )


def identity_key(item: Any, keys: tuple[str, ...] = ()) -> Hashable:
    """Return a hashable key that equal items share."""
    if keys and isinstance(item, dict):
        return tuple(identity_key(item.get(key)) for key in keys)
    if isinstance(item, dict):
        return (dict, frozenset((key, identity_key(value)) for key, value in item.items()))
    if isinstance(item, list):
        return (list, tuple(identity_key(one) for one in item))
    if item.__class__ is OptionalValue:
        return (OptionalValue, item.has, identity_key(item.value))
    if item.__class__ in _NUMERIC_TYPES:
        return (float, item)
    return (item.__class__, item)


def has_key(entries: dict[Any, Any], key: Any) -> bool:
    """Whether a map has a key; numbers of all types are one key, and true is none of them."""
    return (key.__class__ is str or key.__class__ in _NUMERIC_TYPES) and key in entries


def compare_values(a: Any, b: Any) -> int:
    """Return -1, 0 or 1. Raises EvaluationError for values that have no order."""
    kind, other = a.__class__, b.__class__
    if kind in _NUMERIC_TYPES and other in _NUMERIC_TYPES:
        if (kind is float and isnan(a)) or (other is float and isnan(b)):
            raise EvaluationError("NaN values cannot be ordered")
    elif kind is not other or kind in (
        list,
        dict,
        type(None),
        TypeValue,
        OptionalValue,
        UnorderedList,
    ):
        raise no_such_overload()
    return int(a > b) - int(a < b)


def no_such_overload() -> EvaluationError:
    """Return the error of a call whose argument types fit no overload."""
    return EvaluationError("no such overload")


def checked_int(value: int) -> int:
    """Return an int. Raises EvaluationError if it is out of range."""
    if not -INT_LIMIT <= value < INT_LIMIT:
        raise EvaluationError("integer overflow")
    return value


def checked_uint(value: int) -> Uint:
    """Return a uint. Raises EvaluationError if it is out of range."""
    if not 0 <= value < UINT_LIMIT:
        raise EvaluationError("unsigned integer overflow")
    return Uint(value)


def make_duration(nanos: int) -> Duration:
    """Return a duration. Raises EvaluationError if it is out of range."""
    if not -INT_LIMIT <= nanos < INT_LIMIT:
        raise EvaluationError("integer overflow")
    return Duration(nanos)


#: The years 1 to 9999 in seconds since 1970; the maximum is excluded.
_MIN_TIMESTAMP, _MAX_TIMESTAMP = -62_135_596_800, 253_402_300_800


def make_timestamp(nanos: int) -> Timestamp:
    """Return a timestamp. Raises EvaluationError if it is out of range."""
    if not _MIN_TIMESTAMP * 10**9 <= nanos < _MAX_TIMESTAMP * 10**9:
        raise EvaluationError("timestamp overflow")
    return Timestamp(nanos)


def format_fraction(value: Fraction, digits: int) -> str:
    """Format a number with a fixed number of decimals."""
    scaled = round(value * 10**digits)
    sign, scaled = ("-" if scaled < 0 else ""), abs(scaled)
    text = str(scaled).rjust(digits + 1, "0")
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"
