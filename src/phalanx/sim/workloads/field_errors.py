"""FieldError: which field of a trace is invalid, and why, in plain words.

    Expected `int | null`, got `str` - at `$.jobs[3].res`        as msgspec says it
    jobs[3].res: must be a whole number, not "4"                 as a FieldError says it

msgspec does not name the value; `explain_error` finds it by the path. `find_json_line` finds the
line of a path in a JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec

from phalanx.sim.workloads.workload import shorten
from phalanx.yaml_files import PATH_STEPS

T = TypeVar("T")
#: A step on the way to a value: the name of a field, or the number of an entry.
Step = str | int

#: A longer number is read as Decimal: int refuses to read more than a few thousand digits.
_MAX_DIGITS = 18
_MATCH_MESSAGE = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?"
).fullmatch
_MATCH_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`").fullmatch
_MATCH_TYPE = re.compile(
    r"Expected `(?P<type>.*?)`(?P<length> of length)?"
    r"(?: (?P<relation>[<>]=?))?(?: (?P<bound>[-+.e\d]+))?"
    r"(?: matching regex '(?P<pattern>.*)')?(?:, got .*)?"
).fullmatch
#: A text of a JSON file, or a word that Python reads as a number and JSON does not know.
_FIND_CONSTANTS = re.compile(r'"(?:\\.|[^"\\])*"|(-?Infinity|NaN)').finditer
_TYPES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a map",
    "str": "a text",
}
_RELATIONS = {">=": "of at least", "<=": "of at most", ">": "of more than", "<": "of less than"}


class FieldError(ValueError):
    """A field is invalid, unknown or missing; `steps` lead to it."""

    def __init__(self, steps: tuple[Step, ...], reason: str) -> None:
        parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        #: The steps as messages name them: `jobs[3].res`.
        self.path = "".join(parts).removeprefix(".")
        super().__init__(f"{self.path}: {reason}" if steps else reason)
        self.steps, self.reason = steps, reason

    @property
    def is_unknown(self) -> bool:
        """Whether the field is not part of the format: a reader can do without it."""
        return self.reason == "unknown field"


def format_value(value: Any) -> str:
    """Format a value of a file as JSON, shortened."""
    try:
        return shorten(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError):
        # Long numbers and dates are no JSON, nor are values of YAML that contain themselves.
        return shorten(str(value))


def convert_value(
    found: Any,
    expected: Callable[..., T],
    *steps: Step,
    forms: Mapping[str, str] | None = None,
) -> T:
    """Convert a value to a type. Raises FieldError; `steps` lead to the value.

    `forms` describe the texts that the patterns of the type match.
    """
    try:
        return msgspec.convert(found, expected)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise explain_error(error, found, *steps, forms=forms) from None


def explain_error(
    error: msgspec.ValidationError,
    found: Any,
    *steps: Step,
    forms: Mapping[str, str] | None = None,
) -> FieldError:
    """Say in plain words why msgspec could not convert or decode a value."""
    parts = _MATCH_MESSAGE(str(error))
    assert parts is not None
    # A path does not name the keys of a map whose keys are free.
    what, (path, is_free, _) = parts["what"], (parts["path"] or "").partition("[...]")
    inner = tuple(int(index) if index else name for index, name in PATH_STEPS.findall(path))
    steps += inner
    if field := _MATCH_FIELD(what):
        return FieldError(
            (*steps, field[2]), "is missing" if "missing" in field[1] else "unknown field"
        )
    wanted = _MATCH_TYPE(what)
    if wanted is None:
        return FieldError(steps, what[:1].lower() + what[1:])
    reason = f"must be {_describe_type(wanted, forms or {})}"
    if parts["key"] or is_free:
        return FieldError(steps, f"every {'name' if parts['key'] else 'value'} {reason}")
    for step in inner:
        found = found[step]
    return FieldError(steps, f"{reason}, not {format_value(found)}")


def _describe_type(wanted: re.Match[str], forms: Mapping[str, str]) -> str:
    """Describe the type that a message expects, and its bound."""
    if wanted["pattern"]:
        return forms.get(wanted["pattern"], "a text of another form")
    names = [name for name in wanted["type"].split(" | ") if name != "null"]
    text = " or ".join(_TYPES.get(name, name) for name in names)
    if not wanted["bound"]:
        return text
    relation = _RELATIONS.get(wanted["relation"], "of")
    bound = f"{relation} {wanted['bound'].removesuffix('.0')}"
    return f"{text} with a length {bound}" if wanted["length"] else f"{text} {bound}"


# ---- JSON --------------------------------------------------------------------------------------


class JsonObject(dict[str, Any]):
    """The fields of a JSON object, and the name of one that it has twice; "" if it has none."""

    duplicate = ""


class InvalidJson(ValueError):
    """A text is not JSON; `line` is None if it is unknown."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def load_json(text: str, *, allow_constants: bool = False) -> Any:
    """Load a JSON text; its objects are JsonObjects. Raises InvalidJson."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_build_object,
            parse_int=_parse_integer,
            parse_constant=float if allow_constants else partial(_refuse_constant, text),
        )
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        found = "the JSON ends too early" if is_cut else error.msg.replace("Expecting", "expected")
        reason = f"{found} (column {error.colno})"
        raise InvalidJson(error.lineno, reason) from None
    except RecursionError:
        raise InvalidJson(None, "nested too deeply") from None


def _build_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = JsonObject(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        found.duplicate = next(name for name in names if names.count(name) > 1)
    return found


def _parse_integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _MAX_DIGITS else Decimal(text)


def _refuse_constant(text: str, name: str) -> float:
    place = next(found.start() for found in _FIND_CONSTANTS(text) if found[1])
    raise json.JSONDecodeError(f"JSON has no number {name}", text, place)


#: Reads one value at a place of a text; returns it and where it ends.
_scan_value = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
_match_space = re.compile(r"[ \t\r\n]*").match


def find_json_line(text: str, steps: tuple[Step, ...]) -> int:
    """Return the line of a value in a valid JSON text, or of its nearest parent."""
    line_at = value_at = _skip_space(text, 0)
    for wanted in steps:
        found = None
        for step, begin, value in _list_children(text, value_at):
            if step == wanted:
                # A field that exists twice is meant by its last place.
                found = begin, value
                if isinstance(step, int):
                    break
        if found is None:
            break
        line_at, value_at = found
    return text.count("\n", 0, line_at) + 1


def _list_children(text: str, at: int) -> Iterator[tuple[Step, int, int]]:
    """Yield the fields or entries of a JSON value: the step, its place and that of its value."""
    is_map, at = text[at] == "{", _skip_space(text, at + 1) if text[at] in "{[" else len(text)
    for number in count():
        if at >= len(text) or text[at] in "}]":
            return
        begin, step = at, number
        if is_map:
            step, at = _scan_value(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        yield step, begin, at
        at = _skip_space(text, _scan_value(text, at)[1])
        at = _skip_space(text, at + 1) if text[at] == "," else at


def _skip_space(text: str, at: int) -> int:
    found = _match_space(text, at)
    assert found is not None
    return found.end()
