"""JSON paths, as far as definitions of custom resources use them: columns, scale, fields.

    .spec.size  .metadata.annotations['a.b/c']  .spec.names[0]  .spec.names[-1]  .spec.names[*]
    .spec.names[0:2]  .status.conditions[?(@.type=="Ready")].status

A path is a row of moves, each from one value to those below it. What is not there is no fault: it
gives nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Move = Callable[[Any], Iterable[Any]]
Path = tuple[Move, ...]

_NAME = re.compile(r"\.((?:\\.|[^.\[\]\\])+)")
_QUOTED = re.compile(r"\[(?:'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\")\]")
_PLACE = re.compile(r"\[(-?\d{1,9})\]")
_SLICE = re.compile(r"\[(-?\d{1,9})?:(-?\d{1,9})?\]")
_WHERE = re.compile(
    r"\[\?\(\s*@((?:[^=!<>\"'()]|\['[^']*'\])*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?)\s*)?\)\]"
)
_SIMPLE = re.compile(r"(\.[A-Za-z0-9_-]+)+")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None}


#: Longer paths than this are not read at all.
MAX_LENGTH = 1000


class BadPath(ValueError):
    """The text is no path that we know."""


def parse(text: str) -> Path:
    """The moves of a path."""
    if len(text) > MAX_LENGTH:
        raise BadPath(f"a path may not be longer than {MAX_LENGTH} characters")
    moves: list[Move] = []
    at = 0
    while at < len(text):
        for syntax, make in _MOVES:
            if found := syntax.match(text, at):
                moves.append(make(found))
                at = found.end()
                break
        else:
            raise BadPath(f"cannot read {text[at:]!r} of the path {text!r}")
    return tuple(moves)


def find(path: Path, value: Any) -> Sequence[Any]:
    """All values at a path."""
    values: list[Any] = [value]
    for move in path:
        values = [inner for one in values for inner in move(one)]
    return values


def keys(text: str) -> tuple[str, ...]:
    """The keys of a path that only goes from field to field; () if it does anything else."""
    return tuple(text.split(".")[1:]) if _SIMPLE.fullmatch(text) else ()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _below(key: str) -> Move:
    def move(value: Any) -> Iterable[Any]:
        return (value[key],) if isinstance(value, dict) and key in value else ()

    return move


def _field(found: re.Match[str]) -> Move:
    return _every if found[1] == "*" else _below(_unescaped(found[1]))


def _quoted(found: re.Match[str]) -> Move:
    return _below(_unescaped(found[1] if found[1] is not None else found[2]))


def _every(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _all(found: re.Match[str]) -> Move:
    return _every


def _place(found: re.Match[str]) -> Move:
    at = int(found[1])

    def move(value: Any) -> Iterable[Any]:
        there = isinstance(value, list) and -len(value) <= at < len(value)
        return (value[at],) if there else ()

    return move


def _slice(found: re.Match[str]) -> Move:
    part = slice(*(int(end) if end else None for end in found.groups()))
    return lambda value: value[part] if isinstance(value, list) else ()


def _where(found: re.Match[str]) -> Move:
    """Items of which a path leads to a value, or to one that compares as wanted."""
    path, sign = parse(found[1]), found[2]
    wanted = _literal(found[3]) if sign else None

    def holds(item: Any) -> bool:
        values = find(path, item)
        if not sign or not values:
            return bool(values)
        return _compares(sign, values[0], wanted)

    return lambda value: [item for item in value if holds(item)] if isinstance(value, list) else ()


def _compares(sign: str, value: Any, wanted: Any) -> bool:
    try:
        return bool(_COMPARE[sign](value, wanted))
    except TypeError:
        return False


def _literal(text: str) -> Any:
    if re.fullmatch(r"'[^']*'|\"[^\"]*\"", text):
        return text[1:-1]
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
        return float(text) if "." in text else int(text)
    raise BadPath(f"cannot compare with {text!r}")


_MOVES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Move]], ...] = (
    (_NAME, _field),
    (_QUOTED, _quoted),
    (_PLACE, _place),
    (re.compile(r"\[\*\]"), _all),
    (_SLICE, _slice),
    (_WHERE, _where),
)
