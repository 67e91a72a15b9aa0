"""String functions: those of the language, the strings extension, and `format`.

'a,b'.split(',')    "%d of %s".format([1, "x"])    'abc'.matches('^a')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import islice
from math import isfinite
from typing import Any

from phalanx.api.cel.declarations import (
    BOOL,
    DYN,
    INTEGER,
    STRING,
    FunctionOverload,
    function,
    list_of,
    method,
    size_cost,
)
from phalanx.api.cel.timestamps import format_duration, format_timestamp
from phalanx.api.cel.values import (
    Duration,
    EvaluationError,
    Timestamp,
    TypeValue,
    Uint,
    format_fraction,
    type_name,
)
from phalanx.api.regex import BadPattern, compile_pattern

_CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d{1,3}))?([a-zA-Z]))|%")
_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def quote_string(text: str) -> str:
    """Return a string as a CEL literal."""
    return f'"{"".join(_ESCAPES.get(char, char) for char in text)}"'


def format_string(text: str, values: list[Any]) -> str:
    """Replace each clause of a format string by a value."""
    rest = iter(values)

    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return "%"
        write = _CLAUSE_FORMATTERS.get(match[3] or "")
        if write is None:
            raise EvaluationError(f'could not parse formatting clause: unrecognized "{match[0]}"')
        try:
            return write(next(rest), None if match[2] is None else int(match[2]))
        except StopIteration:
            raise EvaluationError("index out of range") from None

    return _CLAUSE.sub(replaced, text)


def display_value(value: Any) -> str:
    """Return any value as a string, as `%s` prints it."""
    if isinstance(value, list):
        return f"[{', '.join(map(display_value, value))}]"
    if isinstance(value, dict):
        entries = sorted(
            f"{display_value(key)}: {display_value(one)}" for key, one in value.items()
        )
        return f"{{{', '.join(entries)}}}"
    write = _DISPLAY_FUNCTIONS.get(value.__class__)
    return write(value) if write else type_name(value)


def _display_double(value: float) -> str:
    if not isfinite(value):
        return _NOT_FINITE[str(value)]
    return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)


_DISPLAY_FUNCTIONS: dict[type, Callable[[Any], str]] = {
    str: str,
    bool: lambda value: "true" if value else "false",
    int: str,
    Uint: lambda value: str(int(value)),
    float: _display_double,
    bytes: lambda value: value.decode(errors="replace"),
    type(None): lambda _: "null",
    Timestamp: format_timestamp,
    Duration: format_duration,
    TypeValue: lambda value: str(value.name),
}


def _clause_error(clause: str, wanted: str, value: Any) -> EvaluationError:
    return EvaluationError(
        f"error during formatting: {clause} clause can only be used on {wanted}, was given"
        f" {type_name(value)}"
    )


def _format_integer(value: Any, precision: int | None) -> str:
    if value.__class__ is float and not isfinite(value):
        return _NOT_FINITE[str(value)]
    if value.__class__ not in (int, Uint):
        raise _clause_error("decimal", "integers", value)
    return str(int(value))


def _format_fixed(value: Any, precision: int | None) -> str:
    if value.__class__ not in (int, Uint, float):
        raise _clause_error("fixed-point", "doubles", value)
    if value.__class__ is float and not isfinite(value):
        return _NOT_FINITE[str(value)]
    return format_fraction(Fraction(value), 6 if precision is None else precision)


def _format_scientific(value: Any, precision: int | None) -> str:
    if value.__class__ not in (int, Uint, float):
        raise _clause_error("scientific", "doubles", value)
    if value.__class__ is float and not isfinite(value):
        return _NOT_FINITE[str(value)]
    return f"{float(value):.{6 if precision is None else precision}e}"


def _base_formatter(base: str, wanted: str) -> Callable[[Any, int | None], str]:
    def write(value: Any, precision: int | None) -> str:
        if value.__class__ is bool and base == "b":
            return "1" if value else "0"
        if value.__class__ in (str, bytes) and base in "xX":
            raw = value.encode() if isinstance(value, str) else value
            return str(raw.hex() if base == "x" else raw.hex().upper())
        if value.__class__ not in (int, Uint):
            raise _clause_error(wanted, "integers", value)
        return format(int(value), base)

    return write


_CLAUSE_FORMATTERS: dict[str, Callable[[Any, int | None], str]] = {
    "s": lambda value, precision: display_value(value),
    "d": _format_integer,
    "f": _format_fixed,
    "e": _format_scientific,
    "x": _base_formatter("x", "hex"),
    "X": _base_formatter("X", "hex"),
    "o": _base_formatter("o", "octal"),
    "b": _base_formatter("b", "binary"),
}


#: Maximum length of a string that an expression builds.
MAX_STRING_LENGTH = 10_000_000
_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _regex_cost(values: Sequence[Any]) -> int:
    """Return the cost of a regular expression search, by the length of pattern and string."""
    text, expression, *_ = values
    return 10 + len(text) * len(expression) // 40


def _find_all_cost(values: Sequence[Any]) -> int:
    """Return the cost of a search whose matches may be as many as the characters."""
    return _regex_cost(values) + 10 * len(values[0])


def matches(text: str, expression: str) -> bool:
    """Whether a regular expression matches a part of a string."""
    try:
        return compile_pattern(expression).matches(text)
    except BadPattern as error:
        raise EvaluationError(str(error)) from None


def _find(text: str, expression: str) -> str:
    return next(iter(_find_all(text, expression, 1)), "")


def _find_all(text: str, expression: str, limit: int = -1) -> list[str]:
    """Return the matches of a regular expression, from left to right."""
    try:
        spans = compile_pattern(expression).find_all(text)
    except BadPattern as error:
        raise EvaluationError(str(error)) from None
    return [text[begin:end] for begin, end in islice(spans, limit if limit >= 0 else None)]


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise EvaluationError(f"index out of range: {at}")
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part))


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    if not 0 <= last <= len(text):
        raise EvaluationError(f"index out of range: {last}")
    if start > last:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {last}")
    return text[start:last]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    times = text.count(old) if limit < 0 else min(limit, text.count(old))
    if len(text) + times * len(new) > MAX_STRING_LENGTH:
        raise EvaluationError("text is too long")
    return text.replace(old, new, times)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    parts = text.split(separator) if separator else list(text)
    if limit < 0 or len(parts) <= limit:
        return parts
    return [*parts[: limit - 1], separator.join(parts[limit - 1 :])]


def _join(items: list[Any], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in items):
        raise EvaluationError("no such overload")
    return separator.join(items)


STRING_FUNCTIONS: list[FunctionOverload] = [
    method("contains", (STRING, STRING), BOOL, lambda a, b: b in a),
    method("startsWith", (STRING, STRING), BOOL, str.startswith),
    method("endsWith", (STRING, STRING), BOOL, str.endswith),
    method("matches", (STRING, STRING), BOOL, matches, cost=_regex_cost),
    function("matches", (STRING, STRING), BOOL, matches, cost=_regex_cost),
    method("find", (STRING, STRING), STRING, _find, cost=_regex_cost),
    method("findAll", (STRING, STRING), list_of(STRING), _find_all, cost=_find_all_cost),
    method("findAll", (STRING, STRING, INTEGER), list_of(STRING), _find_all, cost=_find_all_cost),
    method("charAt", (STRING, INTEGER), STRING, _char_at),
    method("indexOf", (STRING, STRING), INTEGER, _index_of),
    method("indexOf", (STRING, STRING, INTEGER), INTEGER, _index_of),
    method("lastIndexOf", (STRING, STRING), INTEGER, _last_index_of),
    method("lastIndexOf", (STRING, STRING, INTEGER), INTEGER, _last_index_of),
    method("lowerAscii", (STRING,), STRING, lambda text: text.translate(_ASCII_LOWER)),
    method("upperAscii", (STRING,), STRING, lambda text: text.translate(_ASCII_UPPER)),
    method("replace", (STRING, STRING, STRING), STRING, _replace),
    method("replace", (STRING, STRING, STRING, INTEGER), STRING, _replace),
    method("split", (STRING, STRING), list_of(STRING), _split),
    method("split", (STRING, STRING, INTEGER), list_of(STRING), _split),
    method("substring", (STRING, INTEGER), STRING, _substring),
    method("substring", (STRING, INTEGER, INTEGER), STRING, _substring),
    method("trim", (STRING,), STRING, str.strip),
    method("reverse", (STRING,), STRING, lambda text: text[::-1]),
    method("join", (list_of(STRING),), STRING, _join),
    method("join", (list_of(STRING), STRING), STRING, _join),
    method("format", (STRING, list_of(DYN)), STRING, format_string),
    function("strings.quote", (STRING,), STRING, quote_string, cost=size_cost),
]
