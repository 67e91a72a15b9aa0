"""Functions of lists, and of lists as sets."""

from __future__ import annotations

from functools import cmp_to_key
from itertools import pairwise
from typing import Any

from phalanx.api.cel.functions import Function, called, heavy, method
from phalanx.api.cel.types import (
    BOOL,
    DOUBLE,
    DURATION,
    DYN,
    NUMBER,
    STRING,
    TIMESTAMP,
    UNSIGNED,
    A,
    list_of,
)
from phalanx.api.cel.values import (
    Duration,
    Fault,
    Uint,
    distinct,
    equal,
    integer,
    ordered,
    overload,
    span,
    unsigned,
)

_BY_ORDER = cmp_to_key(ordered)
_SORTED = (NUMBER, UNSIGNED, DOUBLE, STRING, BOOL, TIMESTAMP, DURATION, DYN)


def _is_sorted(items: list[Any]) -> bool:
    return all(ordered(a, b) <= 0 for a, b in pairwise(items))


def _min(items: list[Any]) -> Any:
    if not items:
        raise Fault("min called on empty list")
    return min(items, key=_BY_ORDER)


def _max(items: list[Any]) -> Any:
    if not items:
        raise Fault("max called on empty list")
    return max(items, key=_BY_ORDER)


def _sum(items: list[Any]) -> Any:
    """The sum of numbers, or of durations."""
    kinds = {item.__class__ for item in items}
    if not items:
        return 0
    if len(kinds) > 1 or not kinds <= {int, Uint, float, Duration}:
        raise overload()
    if Duration in kinds:
        return span(sum(item.nanos for item in items))
    if Uint in kinds:
        return unsigned(sum(map(int, items)))
    return sum(items) if float in kinds else integer(sum(items))


def _index_of(items: list[Any], item: Any) -> int:
    return next((at for at, one in enumerate(items) if equal(one, item)), -1)


def _last_index_of(items: list[Any], item: Any) -> int:
    return max((at for at, one in enumerate(items) if equal(one, item)), default=-1)


def _contains(items: list[Any], wanted: list[Any]) -> bool:
    there = {distinct(item) for item in items}
    return all(distinct(item) in there for item in wanted)


def _intersects(items: list[Any], others: list[Any]) -> bool:
    there = {distinct(item) for item in items}
    return any(distinct(item) in there for item in others)


def _equivalent(items: list[Any], others: list[Any]) -> bool:
    return _contains(items, others) and _contains(others, items)


_EITHER = (list_of(A), list_of(A))

COLLECTIONS: list[Function] = [
    *(method("isSorted", (list_of(kind),), BOOL, _is_sorted) for kind in _SORTED),
    *(method("min", (list_of(kind),), kind, _min) for kind in _SORTED),
    *(method("max", (list_of(kind),), kind, _max) for kind in _SORTED),
    *(
        method("sum", (list_of(kind),), kind, _sum)
        for kind in (NUMBER, UNSIGNED, DOUBLE, DURATION, DYN)
    ),
    method("indexOf", (list_of(A), A), NUMBER, _index_of),
    method("lastIndexOf", (list_of(A), A), NUMBER, _last_index_of),
    called("sets.contains", _EITHER, BOOL, _contains, heavy),
    called("sets.intersects", _EITHER, BOOL, _intersects, heavy),
    called("sets.equivalent", _EITHER, BOOL, _equivalent, heavy),
]
