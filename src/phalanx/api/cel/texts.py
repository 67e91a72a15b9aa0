"""Functions of texts: those of the language, and its library of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.cel.formatting import formatted, quoted
from phalanx.api.cel.functions import Function, called, heavy, method
from phalanx.api.cel.types import BOOL, DYN, NUMBER, STRING, list_of
from phalanx.api.cel.values import Fault
from phalanx.api.regex import BadPattern, pattern

#: Texts may grow to so many characters.
MAX_TEXT = 10_000_000
_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _search(values: Sequence[Any]) -> int:
    """What it takes to look for a regular expression: the longer the one or the other, the more."""
    text, expression, *_ = values
    return 1 + len(text) * len(expression) // 40


def matches(text: str, expression: str) -> bool:
    """Whether a regular expression is found in a text."""
    try:
        return pattern(expression).is_in(text)
    except BadPattern as error:
        raise Fault(str(error)) from None


def _find(text: str, expression: str) -> str:
    return next(iter(_find_all(text, expression, 1)), "")


def _find_all(text: str, expression: str, limit: int = -1) -> list[str]:
    """What of a text matches a regular expression, from left to right."""
    try:
        wanted = pattern(expression)
    except BadPattern as error:
        raise Fault(str(error)) from None
    found: list[str] = []
    at, last = 0, -1
    while len(found) != limit and (span := wanted.find(text, at)):
        begin, end = span
        # Nothing right behind a match is no match of its own.
        if end > begin or begin != last:
            found.append(text[begin:end])
        at, last = end + (end == begin), end
    return found


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise Fault(f"index out of range: {at}")
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise Fault(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if not 0 <= start <= len(text):
        raise Fault(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part))


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= len(text):
        raise Fault(f"index out of range: {start}")
    if not 0 <= last <= len(text):
        raise Fault(f"index out of range: {last}")
    if start > last:
        raise Fault(f"invalid substring range. start: {start}, end: {last}")
    return text[start:last]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    times = text.count(old) if limit < 0 else min(limit, text.count(old))
    if len(text) + times * len(new) > MAX_TEXT:
        raise Fault("text is too long")
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
        raise Fault("no such overload")
    return separator.join(items)


TEXTS: list[Function] = [
    method("contains", (STRING, STRING), BOOL, lambda a, b: b in a),
    method("startsWith", (STRING, STRING), BOOL, str.startswith),
    method("endsWith", (STRING, STRING), BOOL, str.endswith),
    method("matches", (STRING, STRING), BOOL, matches, _search),
    called("matches", (STRING, STRING), BOOL, matches, _search),
    method("find", (STRING, STRING), STRING, _find, _search),
    method("findAll", (STRING, STRING), list_of(STRING), _find_all, _search),
    method("findAll", (STRING, STRING, NUMBER), list_of(STRING), _find_all, _search),
    method("charAt", (STRING, NUMBER), STRING, _char_at),
    method("indexOf", (STRING, STRING), NUMBER, _index_of),
    method("indexOf", (STRING, STRING, NUMBER), NUMBER, _index_of),
    method("lastIndexOf", (STRING, STRING), NUMBER, _last_index_of),
    method("lastIndexOf", (STRING, STRING, NUMBER), NUMBER, _last_index_of),
    method("lowerAscii", (STRING,), STRING, lambda text: text.translate(_ASCII_LOWER)),
    method("upperAscii", (STRING,), STRING, lambda text: text.translate(_ASCII_UPPER)),
    method("replace", (STRING, STRING, STRING), STRING, _replace),
    method("replace", (STRING, STRING, STRING, NUMBER), STRING, _replace),
    method("split", (STRING, STRING), list_of(STRING), _split),
    method("split", (STRING, STRING, NUMBER), list_of(STRING), _split),
    method("substring", (STRING, NUMBER), STRING, _substring),
    method("substring", (STRING, NUMBER, NUMBER), STRING, _substring),
    method("trim", (STRING,), STRING, str.strip),
    method("reverse", (STRING,), STRING, lambda text: text[::-1]),
    method("join", (list_of(STRING),), STRING, _join),
    method("join", (list_of(STRING), STRING), STRING, _join),
    method("format", (STRING, list_of(DYN)), STRING, formatted),
    called("strings.quote", (STRING,), STRING, quoted, heavy),
]
