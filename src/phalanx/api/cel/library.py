"""The standard library: operators, comparison, size, conversions, lists, sets, optionals.

`FUNCTIONS` and `METHODS` at the end collect the overloads of all libraries by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key
from itertools import pairwise
from math import isfinite, isinf, isnan, trunc
from typing import Any

from phalanx.api.cel.authorizer import AUTHORIZER_FUNCTIONS
from phalanx.api.cel.declarations import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INTEGER,
    STRING,
    TIMESTAMP,
    TYPE,
    UNSIGNED,
    A,
    B,
    CelType,
    FunctionOverload,
    function,
    function_and_method,
    list_of,
    map_of,
    method,
    no_extra_cost,
    optional_of,
    size_cost,
)
from phalanx.api.cel.kubernetes_library import (
    NETWORK_FUNCTIONS,
    PATCH_FUNCTIONS,
    QUANTITY_FUNCTIONS,
    VERSION_FUNCTIONS,
)
from phalanx.api.cel.strings import STRING_FUNCTIONS
from phalanx.api.cel.timestamps import (
    TIME_FUNCTIONS,
    format_duration,
    format_timestamp,
    parse_duration,
    parse_timestamp,
)
from phalanx.api.cel.values import (
    EMPTY_OPTIONAL,
    INT_LIMIT,
    UINT_LIMIT,
    Duration,
    EvaluationError,
    OptionalValue,
    TypeValue,
    Uint,
    UnorderedList,
    checked_int,
    checked_uint,
    compare_values,
    has_key,
    identity_key,
    make_duration,
    make_timestamp,
    no_such_overload,
    type_name,
    values_equal,
)

# --------------------------------------------------------------------------------------- arithmetic


def _divide(a: int, b: int) -> int:
    """Divide and truncate toward zero, as CEL does."""
    if b == 0:
        raise EvaluationError("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("modulus by zero")
    return a - b * _divide(a, b)


def _divide_doubles(a: float, b: float) -> float:
    if b == 0:
        return float("nan") if a == 0 or isnan(a) else float("inf") * a
    return a / b


def _concatenate(a: list[Any], b: list[Any]) -> list[Any]:
    """Concatenate lists; a set or keyed list adds new items and replaces items of equal key."""
    if not isinstance(a, UnorderedList):
        return [*a, *b]
    items = {identity_key(item, a.keys): item for item in a}
    for item in b:
        items[identity_key(item, a.keys)] = item
    return UnorderedList(list(items.values()), a.keys)


_ARITHMETIC = [
    function("_+_", (INTEGER, INTEGER), INTEGER, lambda a, b: checked_int(a + b)),
    function("_+_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: checked_uint(int(a) + int(b))),
    function("_+_", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a + b),
    function("_+_", (STRING, STRING), STRING, lambda a, b: a + b, cost=size_cost),
    function("_+_", (BYTES, BYTES), BYTES, lambda a, b: a + b, cost=size_cost),
    function("_+_", (list_of(A), list_of(A)), list_of(A), _concatenate, cost=size_cost),
    function(
        "_+_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: make_timestamp(a.nanos + b.nanos)
    ),
    function(
        "_+_", (DURATION, TIMESTAMP), TIMESTAMP, lambda a, b: make_timestamp(a.nanos + b.nanos)
    ),
    function("_+_", (DURATION, DURATION), DURATION, lambda a, b: make_duration(a.nanos + b.nanos)),
    function("_-_", (INTEGER, INTEGER), INTEGER, lambda a, b: checked_int(a - b)),
    function("_-_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: checked_uint(int(a) - int(b))),
    function("_-_", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a - b),
    function(
        "_-_", (TIMESTAMP, TIMESTAMP), DURATION, lambda a, b: make_duration(a.nanos - b.nanos)
    ),
    function(
        "_-_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: make_timestamp(a.nanos - b.nanos)
    ),
    function("_-_", (DURATION, DURATION), DURATION, lambda a, b: make_duration(a.nanos - b.nanos)),
    function("_*_", (INTEGER, INTEGER), INTEGER, lambda a, b: checked_int(a * b)),
    function("_*_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: checked_uint(int(a) * int(b))),
    function("_*_", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a * b),
    function("_/_", (INTEGER, INTEGER), INTEGER, lambda a, b: checked_int(_divide(a, b))),
    function("_/_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: Uint(_divide(a, b))),
    function("_/_", (DOUBLE, DOUBLE), DOUBLE, _divide_doubles),
    function("_%_", (INTEGER, INTEGER), INTEGER, _modulo),
    function("_%_", (UNSIGNED, UNSIGNED), UNSIGNED, lambda a, b: Uint(_modulo(a, b))),
    function("-_", (INTEGER,), INTEGER, lambda a: checked_int(-a)),
    function("-_", (DOUBLE,), DOUBLE, lambda a: -a),
    function("!_", (BOOL,), BOOL, lambda a: not a),
]

# --------------------------------------------------------------------------------------- comparison

_ORDER_TESTS: dict[str, Callable[[int], bool]] = {
    "_<_": lambda sign: sign < 0,
    "_<=_": lambda sign: sign <= 0,
    "_>_": lambda sign: sign > 0,
    "_>=_": lambda sign: sign >= 0,
}
_NUMBERS = (INTEGER, UNSIGNED, DOUBLE)
_COMPARABLE_TYPES = [
    *((kind, kind) for kind in (BOOL, STRING, BYTES, TIMESTAMP, DURATION)),
    *((a, b) for a in _NUMBERS for b in _NUMBERS),
]


def _comparison(test: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    def compare(a: Any, b: Any) -> bool:
        numbers = (a.__class__ is float and isnan(a)) or (b.__class__ is float and isnan(b))
        return False if numbers else test(compare_values(a, b))

    return compare


_COMPARISONS = [
    *(
        function(name, pair, BOOL, _comparison(test), cost=size_cost)
        for name, test in _ORDER_TESTS.items()
        for pair in _COMPARABLE_TYPES
    ),
    function("_==_", (A, A), BOOL, values_equal, cost=size_cost),
    function("_!=_", (A, A), BOOL, lambda a, b: not values_equal(a, b), cost=size_cost),
    function(
        "@in",
        (A, list_of(A)),
        BOOL,
        lambda a, b: any(values_equal(a, x) for x in b),
        cost=size_cost,
    ),
    function("@in", (A, map_of(A, B)), BOOL, lambda a, b: has_key(b, a)),
]

# --------------------------------------------------------------------------------------------- size

_SIZED = (STRING, BYTES, list_of(A), map_of(A, B))
_SIZES = function_and_method(function("size", (kind,), INTEGER, len) for kind in _SIZED)

# --------------------------------------------------------------------------------------- conversion


def _to_int(value: float) -> int:
    if not isfinite(value) or not -INT_LIMIT < trunc(value) < INT_LIMIT:
        raise EvaluationError("integer overflow")
    return trunc(value)


def _to_uint(value: float) -> Uint:
    if not isfinite(value) or not value >= 0 or trunc(value) >= UINT_LIMIT:
        raise EvaluationError("unsigned integer overflow")
    return Uint(trunc(value))


def _parse_int(text: str) -> int:
    try:
        if not text.lstrip("+-").isdecimal() or not text.isascii():
            raise ValueError(text)
        return checked_int(int(text))
    except ValueError:
        raise EvaluationError(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _parse_uint(text: str) -> Uint:
    if not (text.isdecimal() and text.isascii()) or len(text) > 20:
        raise EvaluationError(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return checked_uint(int(text))


def _parse_double(text: str) -> float:
    try:
        if text != text.strip() or "_" in text:
            raise ValueError(text)
        return float(text)
    except ValueError:
        raise EvaluationError(f'strconv.ParseFloat: parsing "{text}": invalid syntax') from None


def _parse_bool(text: str) -> bool:
    known = {"1": True, "t": True, "T": True, "true": True, "TRUE": True, "True": True,
             "0": False, "f": False, "F": False, "false": False, "FALSE": False,
             "False": False}  # fmt: skip
    if text not in known:
        raise EvaluationError(f'strconv.ParseBool: parsing "{text}": invalid syntax')
    return known[text]


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def format_double(value: float) -> str:
    """Format a double as CEL does: without a fraction if there is none."""
    if isnan(value) or isinf(value):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(value)]
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


_CONVERSIONS = [
    function("int", (INTEGER,), INTEGER, lambda a: a),
    function("int", (UNSIGNED,), INTEGER, lambda a: checked_int(int(a))),
    function("int", (DOUBLE,), INTEGER, _to_int),
    function("int", (STRING,), INTEGER, _parse_int),
    function("int", (TIMESTAMP,), INTEGER, lambda a: a.nanos // 10**9),
    function("int", (DURATION,), INTEGER, lambda a: a.nanos),
    function("uint", (UNSIGNED,), UNSIGNED, lambda a: a),
    function("uint", (INTEGER,), UNSIGNED, checked_uint),
    function("uint", (DOUBLE,), UNSIGNED, _to_uint),
    function("uint", (STRING,), UNSIGNED, _parse_uint),
    function("double", (DOUBLE,), DOUBLE, lambda a: a),
    function("double", (INTEGER,), DOUBLE, float),
    function("double", (UNSIGNED,), DOUBLE, float),
    function("double", (STRING,), DOUBLE, _parse_double),
    function("bool", (BOOL,), BOOL, lambda a: a),
    function("bool", (STRING,), BOOL, _parse_bool),
    function("bytes", (BYTES,), BYTES, lambda a: a),
    function("bytes", (STRING,), BYTES, str.encode, cost=size_cost),
    function("string", (STRING,), STRING, lambda a: a),
    function("string", (BOOL,), STRING, lambda a: "true" if a else "false"),
    function("string", (INTEGER,), STRING, str),
    function("string", (UNSIGNED,), STRING, lambda a: str(int(a))),
    function("string", (DOUBLE,), STRING, format_double),
    function("string", (BYTES,), STRING, _decode, cost=size_cost),
    function("string", (TIMESTAMP,), STRING, format_timestamp),
    function("string", (DURATION,), STRING, format_duration),
    function("timestamp", (TIMESTAMP,), TIMESTAMP, lambda a: a),
    function("timestamp", (STRING,), TIMESTAMP, parse_timestamp),
    function("timestamp", (INTEGER,), TIMESTAMP, lambda a: make_timestamp(a * 10**9)),
    function("duration", (DURATION,), DURATION, lambda a: a),
    function("duration", (STRING,), DURATION, parse_duration),
    function("duration", (INTEGER,), DURATION, make_duration),
    function("dyn", (DYN,), DYN, lambda a: a),
    function("type", (DYN,), TYPE, lambda a: TypeValue(type_name(a))),
]

#: Types that expressions can name.
_TYPE_IDENTIFIERS = (
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
)
TYPE_IDENTIFIERS: dict[str, CelType] = dict.fromkeys(_TYPE_IDENTIFIERS, TYPE)

STANDARD_FUNCTIONS: list[FunctionOverload] = [*_ARITHMETIC, *_COMPARISONS, *_SIZES, *_CONVERSIONS]


_SORT_KEY = cmp_to_key(compare_values)
_ORDERED_TYPES = (INTEGER, UNSIGNED, DOUBLE, STRING, BOOL, TIMESTAMP, DURATION, DYN)


def _is_sorted(items: list[Any]) -> bool:
    return all(compare_values(a, b) <= 0 for a, b in pairwise(items))


def _min(items: list[Any]) -> Any:
    if not items:
        raise EvaluationError("min called on empty list")
    return min(items, key=_SORT_KEY)


def _max(items: list[Any]) -> Any:
    if not items:
        raise EvaluationError("max called on empty list")
    return max(items, key=_SORT_KEY)


def _sum(items: list[Any]) -> Any:
    """Sum up numbers or durations."""
    kinds = {item.__class__ for item in items}
    if not items:
        return 0
    if len(kinds) > 1 or not kinds <= {int, Uint, float, Duration}:
        raise no_such_overload()
    if Duration in kinds:
        return make_duration(sum(item.nanos for item in items))
    if Uint in kinds:
        return checked_uint(sum(map(int, items)))
    return sum(items) if float in kinds else checked_int(sum(items))


def _index_of(items: list[Any], item: Any) -> int:
    return next((at for at, one in enumerate(items) if values_equal(one, item)), -1)


def _last_index_of(items: list[Any], item: Any) -> int:
    return max((at for at, one in enumerate(items) if values_equal(one, item)), default=-1)


def _contains(items: list[Any], wanted: list[Any]) -> bool:
    there = {identity_key(item) for item in items}
    return all(identity_key(item) in there for item in wanted)


def _intersects(items: list[Any], others: list[Any]) -> bool:
    there = {identity_key(item) for item in items}
    return any(identity_key(item) in there for item in others)


def _equivalent(items: list[Any], others: list[Any]) -> bool:
    return _contains(items, others) and _contains(others, items)


_TWO_LISTS = (list_of(A), list_of(A))

LIST_FUNCTIONS: list[FunctionOverload] = [
    *(method("isSorted", (list_of(kind),), BOOL, _is_sorted) for kind in _ORDERED_TYPES),
    *(method("min", (list_of(kind),), kind, _min) for kind in _ORDERED_TYPES),
    *(method("max", (list_of(kind),), kind, _max) for kind in _ORDERED_TYPES),
    *(
        method("sum", (list_of(kind),), kind, _sum)
        for kind in (INTEGER, UNSIGNED, DOUBLE, DURATION, DYN)
    ),
    method("indexOf", (list_of(A), A), INTEGER, _index_of),
    method("lastIndexOf", (list_of(A), A), INTEGER, _last_index_of),
    function("sets.contains", _TWO_LISTS, BOOL, _contains, cost=size_cost),
    function("sets.intersects", _TWO_LISTS, BOOL, _intersects, cost=size_cost),
    function(
        "sets.equivalent", _TWO_LISTS, BOOL, _equivalent, cost=lambda values: 2 * size_cost(values)
    ),
]


_ZERO_VALUES: tuple[Any, ...] = (False, 0, 0.0, "", b"", None)


def _of_non_zero(value: Any) -> OptionalValue:
    is_zero = value in _ZERO_VALUES if not isinstance(value, list | dict) else not value
    return EMPTY_OPTIONAL if is_zero else OptionalValue(True, value)


def _dereference(a: OptionalValue) -> Any:
    if not a.has:
        raise EvaluationError("optional.none() dereference")
    return a.value


_OPTIONAL_A = optional_of(A)

OPTIONAL_FUNCTIONS: list[FunctionOverload] = [
    function("optional.of", (A,), _OPTIONAL_A, lambda a: OptionalValue(True, a)),
    function("optional.ofNonZeroValue", (A,), _OPTIONAL_A, _of_non_zero),
    function("optional.none", (), _OPTIONAL_A, lambda: EMPTY_OPTIONAL),
    method("hasValue", (_OPTIONAL_A,), BOOL, lambda a: a.has, cost=no_extra_cost),
    method("value", (_OPTIONAL_A,), A, _dereference, cost=no_extra_cost),
]


_ALL_FUNCTIONS = [
    *STANDARD_FUNCTIONS,
    *STRING_FUNCTIONS,
    *TIME_FUNCTIONS,
    *LIST_FUNCTIONS,
    *QUANTITY_FUNCTIONS,
    *NETWORK_FUNCTIONS,
    *VERSION_FUNCTIONS,
    *OPTIONAL_FUNCTIONS,
    *AUTHORIZER_FUNCTIONS,
    *PATCH_FUNCTIONS,
]


def _group_by_name(*, is_method: bool) -> Mapping[str, Sequence[FunctionOverload]]:
    found: dict[str, list[FunctionOverload]] = {}
    for overload in _ALL_FUNCTIONS:
        if overload.is_method == is_method:
            found.setdefault(overload.name, []).append(overload)
    return found


#: Overloads of methods by name.
METHODS = _group_by_name(is_method=True)
#: Overloads of global functions by name.
FUNCTIONS = _group_by_name(is_method=False)
