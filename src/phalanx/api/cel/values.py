"""What expressions compute with: Python's own values, and the few that Python lacks.

    bool, int, double, string     bool, int, float, str         uint         Uint
    bytes, list, map, null        bytes, list, dict, None       timestamp    Timestamp   …

An evaluation that has no result raises a Fault; one that takes too long, Exhausted. Equality is the
language's: numbers of all types are compared by value, and true is not 1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from math import isnan
from typing import Any

#: The first integers that are too large.
INT, UINT = 2**63, 2**64


class Fault(Exception):
    """An evaluation without a result: `no such key: x`, `division by zero`."""


class Exhausted(Exception):
    """An evaluation that took more steps than it may."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


class Uint(int):
    """An unsigned integer."""


@dataclass(frozen=True, order=True, slots=True)
class Timestamp:
    """A moment, in nanoseconds since 1970."""

    nanos: int


@dataclass(frozen=True, order=True, slots=True)
class Duration:
    """A span of time, in nanoseconds."""

    nanos: int


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be missing."""

    has: bool
    value: Any = None


NONE = Optional(False)


@dataclass(frozen=True, slots=True)
class Type:
    """A type as a value: `type(x)`, `int`."""

    name: str


class Unordered(list[Any]):
    """A list whose order says nothing: a set, or a map by the values of some keys."""

    __slots__ = ("keys",)

    def __init__(self, items: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        #: By which fields items are told apart; none: by themselves.
        self.keys = keys


_NAMES: dict[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes",
    list: "list", Unordered: "list", dict: "map", type(None): "null_type", Type: "type",
    Timestamp: "google.protobuf.Timestamp", Duration: "google.protobuf.Duration",
    Optional: "optional_type",
}  # fmt: skip
_NUMBERS = (int, float, Uint)


def type_name(value: Any) -> str:
    """What the language calls the type of a value."""
    return _NAMES.get(value.__class__) or str(value.type_name)


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same."""
    kind, other = a.__class__, b.__class__
    if kind in _NUMBERS:
        return other in _NUMBERS and bool(a == b)
    if isinstance(a, list):
        return isinstance(b, list) and _equal_lists(a, b)
    if kind is not other:
        return False
    if kind is dict:
        return len(a) == len(b) and all(k in b and equal(v, b[k]) for k, v in a.items())
    if kind is Optional:
        return a.has == b.has and (not a.has or equal(a.value, b.value))
    return bool(a == b)


def _equal_lists(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    if isinstance(a, Unordered):
        return _equal_unordered(a, b)
    return all(equal(x, y) for x, y in zip(a, b, strict=True))


def _equal_unordered(a: Unordered, b: list[Any]) -> bool:
    there = {distinct(item, a.keys): item for item in b}
    return all((key := distinct(item, a.keys)) in there and equal(item, there[key]) for item in a)


def distinct(item: Any, keys: tuple[str, ...] = ()) -> Hashable:
    """What two items have in common if they are the same, or the same in some of their fields."""
    if keys and isinstance(item, dict):
        return tuple(distinct(item.get(key)) for key in keys)
    if isinstance(item, dict):
        return (dict, frozenset((key, distinct(value)) for key, value in item.items()))
    if isinstance(item, list):
        return (list, tuple(distinct(one) for one in item))
    if item.__class__ is Optional:
        return (Optional, item.has, distinct(item.value))
    if item.__class__ in _NUMBERS:
        return (float, item)
    return (item.__class__, item)


def has_key(entries: dict[Any, Any], key: Any) -> bool:
    """Whether a map has an entry; numbers of all types are one key, and true is none."""
    return (key.__class__ is str or key.__class__ in _NUMBERS) and key in entries


def ordered(a: Any, b: Any) -> int:
    """Negative, zero or positive, as the one comes before, with or after the other."""
    kind, other = a.__class__, b.__class__
    if kind in _NUMBERS and other in _NUMBERS:
        if (kind is float and isnan(a)) or (other is float and isnan(b)):
            raise Fault("NaN values cannot be ordered")
    elif kind is not other or kind in (list, dict, type(None), Type, Optional, Unordered):
        raise overload()
    return int(a > b) - int(a < b)


def overload() -> Fault:
    """The fault of a call whose arguments are of types that nobody knows what to do with."""
    return Fault("no such overload")


def integer(value: int) -> int:
    """An integer that fits."""
    if not -INT <= value < INT:
        raise Fault("integer overflow")
    return value


def unsigned(value: int) -> Uint:
    """An unsigned integer that fits."""
    if not 0 <= value < UINT:
        raise Fault("unsigned integer overflow")
    return Uint(value)


def span(nanos: int) -> Duration:
    """A duration that fits."""
    if not -INT <= nanos < INT:
        raise Fault("integer overflow")
    return Duration(nanos)


#: The years 1 to 9999.
_FIRST, _LAST = -62_135_596_800, 253_402_300_800


def moment(nanos: int) -> Timestamp:
    """A moment that a calendar knows."""
    if not _FIRST * 10**9 <= nanos < _LAST * 10**9:
        raise Fault("timestamp overflow")
    return Timestamp(nanos)


def decimal(value: Fraction, digits: int) -> str:
    """A number with so many digits behind its point."""
    scaled = round(value * 10**digits)
    sign, scaled = ("-" if scaled < 0 else ""), abs(scaled)
    text = str(scaled).rjust(digits + 1, "0")
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"
