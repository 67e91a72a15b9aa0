"""JSON paths, as far as CustomResourceDefinitions use them: columns, scale, selectable fields.

    .spec.size  .metadata.annotations['a.b/c']  .spec.names[0]  .spec.names[-1]  .spec.names[*]
    .spec.names[0:2]  .status.conditions[?(@.type=="Ready")].status

A path is a tuple of steps, each a function from one value to its selected children. A missing field
is not an error: it selects nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

PathStep = Callable[[Any], Iterable[Any]]
JsonPath = tuple[PathStep, ...]

_NAME = re.compile(r"\.((?:\\.|[^.\[\]\\])+)")
_QUOTED = re.compile(r"\[(?:'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\")\]")
_INDEX = re.compile(r"\[(-?\d{1,9})\]")
_SLICE = re.compile(r"\[(-?\d{1,9})?:(-?\d{1,9})?\]")
_FILTER = re.compile(
    r"\[\?\(\s*@((?:[^=!<>\"'()]|\['[^']*'\])*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?)\s*)?\)\]"
)
_SIMPLE = re.compile(r"(\.[A-Za-z0-9_-]+)+")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}


#: The length of the longest path that is parsed.
MAX_LENGTH = 1000


class BadJsonPath(ValueError):
    """The text is not a supported JSON path."""


def parse_json_path(text: str) -> JsonPath:
    """Parse a JSON path. Raises BadJsonPath."""
    if len(text) > MAX_LENGTH:
        raise BadJsonPath(f"a path may not be longer than {MAX_LENGTH} characters")
    steps: list[PathStep] = []
    at = 0
    while at < len(text):
        for syntax, make in _STEP_SYNTAX:
            if found := syntax.match(text, at):
                steps.append(make(found))
                at = found.end()
                break
        else:
            raise BadJsonPath(f"cannot parse {text[at:]!r} in the JSON path {text!r}")
    return tuple(steps)


def find_values(path: JsonPath, value: Any) -> Sequence[Any]:
    """Return all values at a path."""
    values: list[Any] = [value]
    for step in path:
        values = [inner for one in values for inner in step(one)]
    return values


def field_keys(text: str) -> tuple[str, ...]:
    """Return the fields of a path that consists of fields only; else ()."""
    return tuple(text.split(".")[1:]) if _SIMPLE.fullmatch(text) else ()


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _child(key: str) -> PathStep:
    def step(value: Any) -> Iterable[Any]:
        return (value[key],) if isinstance(value, dict) and key in value else ()

    return step


def _field_step(found: re.Match[str]) -> PathStep:
    return _all_children if found[1] == "*" else _child(_unescape(found[1]))


def _quoted_step(found: re.Match[str]) -> PathStep:
    return _child(_unescape(found[1] if found[1] is not None else found[2]))


def _all_children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _wildcard_step(found: re.Match[str]) -> PathStep:
    return _all_children


def _index_step(found: re.Match[str]) -> PathStep:
    at = int(found[1])

    def step(value: Any) -> Iterable[Any]:
        exists = isinstance(value, list) and -len(value) <= at < len(value)
        return (value[at],) if exists else ()

    return step


def _slice_step(found: re.Match[str]) -> PathStep:
    part = slice(*(int(end) if end else None for end in found.groups()))
    return lambda value: value[part] if isinstance(value, list) else ()


def _filter_step(found: re.Match[str]) -> PathStep:
    """Return a step to the items whose path has a value, or one for which the comparison holds."""
    path, sign = parse_json_path(found[1]), found[2]
    wanted = _parse_literal(found[3]) if sign else None

    def holds(item: Any) -> bool:
        values = find_values(path, item)
        if not sign or not values:
            return bool(values)
        return _compare(sign, values[0], wanted)

    return lambda value: [item for item in value if holds(item)] if isinstance(value, list) else ()


def _compare(sign: str, value: Any, wanted: Any) -> bool:
    try:
        return bool(_OPERATORS[sign](value, wanted))
    except TypeError:
        return False


def _parse_literal(text: str) -> Any:
    if re.fullmatch(r"'[^']*'|\"[^\"]*\"", text):
        return text[1:-1]
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
        return float(text) if "." in text else int(text)
    raise BadJsonPath(f"cannot compare with {text!r}")


_STEP_SYNTAX: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], PathStep]], ...] = (
    (_NAME, _field_step),
    (_QUOTED, _quoted_step),
    (_INDEX, _index_step),
    (re.compile(r"\[\*\]"), _wildcard_step),
    (_SLICE, _slice_step),
    (_FILTER, _filter_step),
)
