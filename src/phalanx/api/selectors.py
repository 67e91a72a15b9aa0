"""Label selectors and field selectors.

Lists and watches send them as text (`a=b,c in (d,e)`), objects hold label selectors as
`matchLabels` and `matchExpressions`; both become LabelRequirements. Error messages are those of
Kubernetes. The structure of a selector in an object is checked by validation
(`validation/metadata.py`).

    parse_label_selector("a=b,!c")                           two requirements
    selector_matches({"matchLabels": {"a": "b"}}, {"a": "b"})   True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.api.formats import validate_label_key, validate_label_value
from phalanx.api.wire import Object

_TOKEN = re.compile(r"\s*(==|!=|=|<|>|!|\(|\)|,|[^\s=!<>(),]+)")
_OPERATORS = "in, notin, =, ==, !=, gt, lt"
#: The length of the longest selector that is parsed.
MAX_LENGTH = 10 * 1024


class BadSelector(ValueError):
    """The text is not a selector."""


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One requirement on one label: `in`, `notin`, `exists`, `absent`, `gt` or `lt`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "absent":
                return value is None
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case _:
                return self._compare(value)

    @property
    def bound(self) -> int:
        """The number that `gt` and `lt` compare with, at most as large as labels can be."""
        (bound,) = self.values
        return max(min(int(bound), _MAX_NUMBER), -_MAX_NUMBER)

    def _compare(self, value: str | None) -> bool:
        number = None if value is None else label_number(value)
        if number is None:
            return False
        return number > self.bound if self.operator == "gt" else number < self.bound


_MAX_NUMBER = 10**18


def label_number(value: str) -> int | None:
    """Return the value of a label as a number that fits 64 bits; None if it is none."""
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One requirement on one field of an object."""

    field: str
    is_equal: bool
    value: str


def parse_label_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Parse a label selector such as `a=b,c in (d,e),!f`. Raises BadSelector."""
    if len(text) > MAX_LENGTH:
        raise BadSelector(f"selector is longer than {MAX_LENGTH} characters")
    return tuple(_LabelSelectorParser(text).parse())


def parse_field_selector(text: str) -> tuple[FieldRequirement, ...]:
    """Parse a field selector such as `metadata.name=a,status.phase!=Failed`."""
    if len(text) > MAX_LENGTH:
        raise BadSelector(f"selector is longer than {MAX_LENGTH} characters")
    terms = _FIELD_TERM.findall(text)
    return tuple(_parse_field_requirement(text, term) for term in terms if term)


#: A term of a field selector, up to a comma without a backslash before it.
_FIELD_TERM = re.compile(r"(?:[^,\\]|\\.|\\$)+", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


def _parse_field_requirement(text: str, term: str) -> FieldRequirement:
    match = re.fullmatch(r"((?:[^\\]|\\.)*?)(!=|==|=)(.*)", term, re.DOTALL)
    if match is None:
        raise BadSelector(f"invalid selector: '{text}'; can't understand '{term}'")
    return FieldRequirement(match[1], match[2] != "!=", _unescape_value(match[3]))


def _unescape_value(value: str) -> str:
    """Return a value without the backslashes before commas, equals signs and backslashes."""
    if "=" in _ESCAPE.sub("", value):
        raise BadSelector("invalid field selector: unescaped character in value: =")
    for escaped in _ESCAPE.findall(value):
        if escaped not in (",", "=", "\\") or not escaped:
            raise BadSelector(f"invalid field selector: invalid escape sequence: \\{escaped}")
    return _ESCAPE.sub(r"\1", value)


def fields_match(
    requirements: Iterable[FieldRequirement],
    obj: Object,
    absent: Mapping[str, str],
    *,
    paths: Mapping[str, str],
) -> bool:
    """Whether an object meets the requirements.

    `absent` maps a selectable field to its value where it is missing, `paths` to its path where the
    selector has another name.
    """
    return all(
        (field_value(obj, paths.get(one.field, one.field), absent.get(one.field, "")) == one.value)
        == one.is_equal
        for one in requirements
    )


def field_value(obj: Object, path: str, absent: str = "") -> str:
    """Return a field as the text that field selectors compare."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return absent if value is None or isinstance(value, (dict, list)) else str(value)


class _LabelSelectorParser:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._position = 0

    def parse(self) -> Iterable[LabelRequirement]:
        while self._peek():
            yield self._parse_requirement()
            separator = self._next()
            if separator not in (",", ""):
                raise _parse_error(f"found '{separator}', expected: ',' or 'end of string'")
            if separator and not self._peek():
                raise _parse_error("found '', expected: identifier after ','")

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _parse_requirement(self) -> LabelRequirement:
        if self._peek() == "!":
            self._next()
            return LabelRequirement(self._parse_key(), "absent")
        key = self._parse_key()
        if self._peek() in (",", ""):
            return LabelRequirement(key, "exists")
        return self._parse_comparison(key, self._next())

    def _parse_comparison(self, key: str, operator: str) -> LabelRequirement:
        if operator in ("in", "notin"):
            return LabelRequirement(key, operator, self._parse_value_set(key))
        if operator in ("=", "==", "!="):
            value = self._next() if self._peek() not in (",", "") else ""
            values = frozenset({_validate_value(key, value)})
            return LabelRequirement(key, "notin" if operator == "!=" else "in", values)
        if operator in ("<", ">", "lt", "gt"):
            return LabelRequirement(
                key, "lt" if operator in ("<", "lt") else "gt", self._parse_number()
            )
        raise _parse_error(f"found '{operator}', expected: {_OPERATORS}")

    def _parse_key(self) -> str:
        key = self._next()
        if faults := validate_label_key(key):
            raise _parse_error(f'<nil>: Invalid value: "{key}": {faults[0]}')
        return key

    def _parse_number(self) -> frozenset[str]:
        value = self._next()
        # A label value never begins with a sign.
        if not re.fullmatch(r"\d{1,18}", value):
            detail = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _parse_error(f'<nil>: Invalid value: "{value}": {detail}')
        return frozenset({value})

    def _parse_value_set(self, key: str) -> frozenset[str]:
        if (opening := self._next()) != "(":
            raise _parse_error(f"found '{opening}' expected: '('")
        values = [_validate_value(key, self._parse_value())]
        while (token := self._next()) == ",":
            values.append(_validate_value(key, self._parse_value()))
        if token != ")":
            raise _parse_error(f"found '{token}', expected: ',' or ')'")
        return frozenset(values)

    def _parse_value(self) -> str:
        return "" if self._peek() in (",", ")", "") else self._next()


def _validate_value(key: str, value: str) -> str:
    if faults := validate_label_value(value):
        raise _parse_error(f'values[0][{key}]: Invalid value: "{value}": {faults[0]}')
    return value


def _parse_error(detail: str) -> BadSelector:
    return BadSelector(f"unable to parse requirement: {detail}")


_EXPRESSION_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def selector_matches(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector selects labels: an empty one selects all, an absent one none."""
    if selector is None:
        return False
    return all(need.matches(labels) for need in selector_requirements(selector))


def selector_requirements(selector: Object) -> tuple[LabelRequirement, ...]:
    """Return the requirements of a selector. Raises BadSelector for an unknown operator."""
    equal = [
        LabelRequirement(key, "in", frozenset({value}))
        for key, value in selector.get("matchLabels", {}).items()
    ]
    return (*equal, *map(_expression_requirement, selector.get("matchExpressions", ())))


def format_selector(selector: Object) -> str:
    """Format a selector as `a=b,c in (d,e),!f`."""
    equal = [f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items())]
    return ",".join([*equal, *map(_format_expression, selector.get("matchExpressions", ()))])


def _format_expression(expression: Object) -> str:
    key, operator = expression.get("key", ""), expression.get("operator", "")
    if operator == "Exists":
        return str(key)
    if operator == "DoesNotExist":
        return f"!{key}"
    return f"{key} {operator.lower()} ({','.join(sorted(expression.get('values', ())))})"


def _expression_requirement(expression: Object) -> LabelRequirement:
    operator = expression.get("operator", "")
    if operator not in _EXPRESSION_OPERATORS:
        raise BadSelector(f'"{operator}" is not a valid label selector operator')
    values = frozenset(expression.get("values", ()))
    return LabelRequirement(expression.get("key", ""), _EXPRESSION_OPERATORS[operator], values)
