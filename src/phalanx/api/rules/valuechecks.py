"""What a schema asks of texts and numbers: one part per keyword, in the words that clients know.

Put together with the rest in `custom/checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import isfinite
from typing import Any

import orjson

from phalanx.api.causes import Causes, invalid, too_long, unsupported
from phalanx.api.errors import Cause
from phalanx.api.formats import FORMATS
from phalanx.api.regex import pattern
from phalanx.api.wire import Object

#: (value, what stood there before or CREATED, where that is) -> what is wrong.
Check = Callable[[Any, Any, str], Causes]
#: What one keyword asks: (value, where it is) -> what is wrong.
Part = Callable[[Any, str], Causes]

_INTEGERS = {"int32": 2**31, "int64": 2**63}
#: Quotients of floats are whole up to this.
_CLOSE = 1e-9


def refused(path: str, value: Any, ask: str) -> Causes:
    """A value that is not as it should be."""
    return [invalid(path, value, f"{path} in body {ask}")]


def mistyped(path: str, value: str, wanted: str) -> Causes:
    """A value of another type or format than wanted."""
    shown = orjson.dumps(value).decode()
    text = f"Invalid value: {shown}: {path} in body must be of type {wanted}: {shown}"
    return [Cause(path, "FieldValueTypeInvalid", text)]


def rows(
    schema: Object, makers: Iterable[tuple[str, Callable[[Any, Object], Part | None]]]
) -> list[Part]:
    """The parts that keywords of a schema ask for."""
    made = [make(schema[key], schema) for key, make in makers if key in schema]
    return [part for part in made if part is not None]


def _scalar(kinds: tuple[type, ...], parts: Sequence[Part]) -> Check | None:
    """Parts that are about values of some types."""

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ not in kinds:
            return ()
        found: list[Cause] = []
        for part in parts:
            if causes := part(value, path):
                found += causes
        return found

    return check if parts else None


def _max_length(limit: int, schema: Object) -> Part:
    return lambda value, path: [too_long(path, limit)] if len(value) > limit else ()


def _min_length(limit: int, schema: Object) -> Part:
    def part(value: Any, path: str) -> Causes:
        if len(value) >= limit:
            return ()
        return refused(path, value, f"should be at least {limit} chars long")

    return part


def _pattern(text: str, schema: Object) -> Part:
    wanted = pattern(text)

    def part(value: Any, path: str) -> Causes:
        if wanted.is_in(value):
            return ()
        return refused(path, value, f"should match '{text}'")

    return part


def _format(name: str, schema: Object) -> Part | None:
    test = FORMATS.get(name.replace("-", ""))
    if test is None or schema.get("type", "string") != "string":
        return None
    return lambda value, path: () if test(value) else mistyped(path, value, name)


def text_check(schema: Object) -> Check | None:
    """What a schema asks of texts."""
    makers = (
        ("maxLength", _max_length), ("minLength", _min_length), ("pattern", _pattern),
        ("format", _format),
    )  # fmt: skip
    return _scalar((str,), rows(schema, makers))


def _multiple(factor: float, schema: Object) -> Part:
    def part(value: Any, path: str) -> Causes:
        if factor > 0 and _divides(factor, value):
            return ()
        return refused(path, value, f"should be a multiple of {_number(factor)}")

    return part


def _divides(factor: float, value: float) -> bool:
    if isinstance(factor, int) and isinstance(value, int):
        return value % factor == 0
    times = value / factor
    return isfinite(times) and abs(times - round(times)) < _CLOSE


def _maximum(limit: float, schema: Object) -> Part:
    excluded = schema.get("exclusiveMaximum", False)
    ask = f"should be less than {'' if excluded else 'or equal to '}{_number(limit)}"

    def part(value: Any, path: str) -> Causes:
        fits = value < limit if excluded else value <= limit
        return () if fits else refused(path, value, ask)

    return part


def _minimum(limit: float, schema: Object) -> Part:
    excluded = schema.get("exclusiveMinimum", False)
    ask = f"should be greater than {'' if excluded else 'or equal to '}{_number(limit)}"

    def part(value: Any, path: str) -> Causes:
        fits = value > limit if excluded else value >= limit
        return () if fits else refused(path, value, ask)

    return part


def _range(name: str, schema: Object) -> Part | None:
    limit = _INTEGERS.get(name)
    if limit is None:
        return None

    def part(value: Any, path: str) -> Causes:
        fits = -limit <= value < limit
        return () if fits else refused(path, value, f"must be of type {name}")

    return part


def _number(value: float) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e21)
    return str(int(value)) if whole else repr(value)


def number_check(schema: Object) -> Check | None:
    """What a schema asks of numbers."""
    makers = (
        ("format", _range), ("multipleOf", _multiple), ("maximum", _maximum), ("minimum", _minimum),
    )  # fmt: skip
    return _scalar((int, float), rows(schema, makers))


def enum_check(schema: Object) -> Check | None:
    """Which values a schema allows, if it names them."""
    allowed = schema.get("enum")
    if not allowed:
        return None
    known = frozenset(identity(value) for value in allowed)
    told = [one if isinstance(one, str) else orjson.dumps(one).decode() for one in allowed]
    nullable = schema.get("nullable", False)

    def check(value: Any, old: Any, path: str) -> Causes:
        if (value is None and nullable) or identity(value) in known:
            return ()
        return [unsupported(path, value, told)]

    return check


def identity(value: Any) -> Hashable:
    """What two values have in common if they are the same JSON: 1 is 1.0, but not true."""
    if value.__class__ is str:
        return str(value)
    if value.__class__ is int or value.__class__ is float:
        return (float, value)
    return (bytes, orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
