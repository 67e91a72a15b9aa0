"""Checks of strings and numbers by the keywords of a schema, with Kubernetes' messages.

`custom_resources/schema_validation.py` combines them with the checks of objects and lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import isfinite
from typing import Any

import orjson

from phalanx.api.errors import Cause, Causes, invalid, too_long, unsupported
from phalanx.api.formats import FORMATS
from phalanx.api.regex import compile_pattern
from phalanx.api.wire import Object

#: (value, previous value or CREATED, path) -> causes.
SchemaCheck = Callable[[Any, Any, str], Causes]
#: The check of one keyword: (value, path) -> causes.
KeywordCheck = Callable[[Any, str], Causes]

_INTEGER_LIMITS = {"int32": 2**31, "int64": 2**63}
#: Tolerance for `multipleOf` with floats.
_TOLERANCE = 1e-9


def invalid_value(path: str, value: Any, ask: str) -> Causes:
    """Return the cause of an invalid value."""
    return [invalid(path, value, f"{path} in body {ask}")]


def wrong_type(path: str, value: str, wanted: str) -> Causes:
    """Return the cause of a value of a wrong type or format."""
    shown = orjson.dumps(value).decode()
    text = f"Invalid value: {shown}: {path} in body must be of type {wanted}: {shown}"
    return [Cause(path, "FieldValueTypeInvalid", text)]


def compile_keywords(
    schema: Object, compilers: Iterable[tuple[str, Callable[[Any, Object], KeywordCheck | None]]]
) -> list[KeywordCheck]:
    """Compile the checks of a schema's keywords."""
    made = [make(schema[key], schema) for key, make in compilers if key in schema]
    return [part for part in made if part is not None]


def _scalar_check(kinds: tuple[type, ...], parts: Sequence[KeywordCheck]) -> SchemaCheck | None:
    """Combine checks that apply to values of some types."""

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ not in kinds:
            return ()
        found: list[Cause] = []
        for part in parts:
            if causes := part(value, path):
                found += causes
        return found

    return check if parts else None


def _max_length(limit: int, schema: Object) -> KeywordCheck:
    return lambda value, path: [too_long(path, limit)] if len(value) > limit else ()


def _min_length(limit: int, schema: Object) -> KeywordCheck:
    def part(value: Any, path: str) -> Causes:
        if len(value) >= limit:
            return ()
        return invalid_value(path, value, f"should be at least {limit} chars long")

    return part


def _pattern(text: str, schema: Object) -> KeywordCheck:
    wanted = compile_pattern(text)

    def part(value: Any, path: str) -> Causes:
        if wanted.matches(value):
            return ()
        return invalid_value(path, value, f"should match '{text}'")

    return part


def _format(name: str, schema: Object) -> KeywordCheck | None:
    test = FORMATS.get(name.replace("-", ""))
    if test is None or schema.get("type", "string") != "string":
        return None
    return lambda value, path: () if test(value) else wrong_type(path, value, name)


def compile_string_check(schema: Object) -> SchemaCheck | None:
    """Compile the check of strings: of length and pattern the first fault, and the format."""
    makers = (("maxLength", _max_length), ("minLength", _min_length), ("pattern", _pattern))
    limits = compile_keywords(schema, makers)

    def check_limits(value: Any, path: str) -> Causes:
        return next((causes for limit in limits if (causes := limit(value, path))), ())

    formats = compile_keywords(schema, (("format", _format),))
    return _scalar_check((str,), [*([check_limits] if limits else ()), *formats])


def _multiple_of(factor: float, schema: Object) -> KeywordCheck:
    def part(value: Any, path: str) -> Causes:
        if factor > 0 and _is_multiple(factor, value):
            return ()
        return invalid_value(path, value, f"should be a multiple of {_format_number(factor)}")

    return part


def _is_multiple(factor: float, value: float) -> bool:
    if isinstance(factor, int) and isinstance(value, int):
        return value % factor == 0
    times = value / factor
    return isfinite(times) and abs(times - round(times)) < _TOLERANCE


def _maximum(limit: float, schema: Object) -> KeywordCheck:
    excluded = schema.get("exclusiveMaximum", False)
    ask = f"should be less than {'' if excluded else 'or equal to '}{_format_number(limit)}"

    def part(value: Any, path: str) -> Causes:
        fits = value < limit if excluded else value <= limit
        return () if fits else invalid_value(path, value, ask)

    return part


def _minimum(limit: float, schema: Object) -> KeywordCheck:
    excluded = schema.get("exclusiveMinimum", False)
    ask = f"should be greater than {'' if excluded else 'or equal to '}{_format_number(limit)}"

    def part(value: Any, path: str) -> Causes:
        fits = value > limit if excluded else value >= limit
        return () if fits else invalid_value(path, value, ask)

    return part


def _integer_range(name: str, schema: Object) -> KeywordCheck | None:
    limit = _INTEGER_LIMITS.get(name)
    if limit is None:
        return None

    def part(value: Any, path: str) -> Causes:
        fits = -limit <= value < limit
        return () if fits else invalid_value(path, value, f"must be of type {name}")

    return part


def _format_number(value: float) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e21)
    return str(int(value)) if whole else repr(value)


def compile_number_check(schema: Object) -> SchemaCheck | None:
    """Compile the check of numbers."""
    makers = (
        ("format", _integer_range),
        ("multipleOf", _multiple_of),
        ("maximum", _maximum),
        ("minimum", _minimum),
    )
    return _scalar_check((int, float), compile_keywords(schema, makers))


def compile_enum_check(schema: Object) -> SchemaCheck | None:
    """Compile the check of enumerated values, if the schema lists them."""
    allowed = schema.get("enum")
    if not allowed:
        return None
    known = frozenset(json_identity(value) for value in allowed)
    supported = [one if isinstance(one, str) else orjson.dumps(one).decode() for one in allowed]
    nullable = schema.get("nullable", False)

    def check(value: Any, old: Any, path: str) -> Causes:
        if (value is None and nullable) or json_identity(value) in known:
            return ()
        return [unsupported(path, value, supported)]

    return check


def json_identity(value: Any) -> Hashable:
    """Return a key that equal JSON values share: 1 equals 1.0, but not true."""
    if value.__class__ is str:
        return str(value)
    if value.__class__ is int or value.__class__ is float:
        return (float, value)
    return (bytes, orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
