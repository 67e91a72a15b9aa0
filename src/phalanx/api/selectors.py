"""Label and field selectors: from text to requirements, from requirements to yes or no.

Used by the server for lists and watches. The texts of errors are those that clients know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.api.fields import label_key_faults, label_value_faults
from phalanx.api.wire import Object

_TOKEN = re.compile(r"\s*(==|!=|=|<|>|!|\(|\)|,|[^\s=!<>(),]+)")
_OPERATORS = "in, notin, =, ==, !=, gt, lt"
#: Longer selectors than this are not read at all.
MAX_LENGTH = 10 * 1024


class BadSelector(ValueError):
    """The text is no selector."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label: `in`, `notin`, `exists`, `absent`, `gt` or `lt`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it."""
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
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        if value is None or not re.fullmatch(r"-?\d{1,18}", value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator == "gt" else int(value) < int(bound)


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One condition on one field of an object."""

    field: str
    equal: bool
    value: str


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The requirements of a label selector such as `a=b,c in (d,e),!f`."""
    if len(text) > MAX_LENGTH:
        raise BadSelector(f"selector is longer than {MAX_LENGTH} characters")
    return tuple(_Labels(text).requirements())


def parse_fields(text: str) -> tuple[FieldRequirement, ...]:
    """The requirements of a field selector such as `metadata.name=a,status.phase!=Failed`."""
    if len(text) > MAX_LENGTH:
        raise BadSelector(f"selector is longer than {MAX_LENGTH} characters")
    return tuple(_field_requirement(text, term) for term in text.split(",") if term)


def _field_requirement(text: str, term: str) -> FieldRequirement:
    match = re.fullmatch(r"(.*?)(!=|==|=)(.*)", term)
    if match is None:
        raise BadSelector(f"invalid selector: '{text}'; can't understand '{term}'")
    return FieldRequirement(match[1], match[2] != "!=", match[3])


def fields_match(
    requirements: Iterable[FieldRequirement],
    obj: Object,
    absent: Mapping[str, str],
    paths: Mapping[str, str],
) -> bool:
    """Whether an object meets the requirements.

    `absent` gives the value of a missing field, `paths` where a field stands under another name.
    """
    return all(
        (_field(obj, need.field, absent, paths) == need.value) == need.equal
        for need in requirements
    )


def _field(obj: Object, name: str, absent: Mapping[str, str], paths: Mapping[str, str]) -> str:
    return field_value(obj, paths.get(name, name), absent.get(name, ""))


def field_value(obj: Object, path: str, absent: str = "") -> str:
    """A field as the text that a field selector compares with."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return absent if value is None or isinstance(value, (dict, list)) else str(value)


class _Labels:
    """A recursive-descent reader of label selectors."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def requirements(self) -> Iterable[Requirement]:
        while self._peek():
            yield self._requirement()
            separator = self._take()
            if separator not in (",", ""):
                raise _bad(f"found '{separator}', expected: ',' or 'end of string'")
            if separator and not self._peek():
                raise _bad("found '', expected: identifier after ','")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._take()
            return Requirement(self._key(), "absent")
        key = self._key()
        if self._peek() in (",", ""):
            return Requirement(key, "exists")
        return self._comparison(key, self._take())

    def _comparison(self, key: str, operator: str) -> Requirement:
        if operator in ("in", "notin"):
            return Requirement(key, operator, self._set(key))
        if operator in ("=", "==", "!="):
            return Requirement(key, "notin" if operator == "!=" else "in", self._one(key))
        if operator in ("<", ">", "lt", "gt"):
            return Requirement(key, "lt" if operator in ("<", "lt") else "gt", self._number())
        raise _bad(f"found '{operator}', expected: {_OPERATORS}")

    def _key(self) -> str:
        key = self._take()
        if faults := label_key_faults(key):
            raise _bad(f'<nil>: Invalid value: "{key}": {faults[0]}')
        return key

    def _one(self, key: str) -> frozenset[str]:
        value = self._take() if self._peek() not in (",", "") else ""
        return frozenset({_checked(key, value)})

    def _number(self) -> frozenset[str]:
        value = self._take()
        if not re.fullmatch(r"-?\d{1,18}", value):
            detail = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _bad(f'<nil>: Invalid value: "{value}": {detail}')
        return frozenset({value})

    def _set(self, key: str) -> frozenset[str]:
        if (opening := self._take()) != "(":
            raise _bad(f"found '{opening}' expected: '('")
        values = [_checked(key, self._value())]
        while (token := self._take()) == ",":
            values.append(_checked(key, self._value()))
        if token != ")":
            raise _bad(f"found '{token}', expected: ',' or ')'")
        return frozenset(values)

    def _value(self) -> str:
        return "" if self._peek() in (",", ")", "") else self._take()


def _checked(key: str, value: str) -> str:
    if faults := label_value_faults(value):
        raise _bad(f'values[0][{key}]: Invalid value: "{value}": {faults[0]}')
    return value


def _bad(detail: str) -> BadSelector:
    return BadSelector(f"unable to parse requirement: {detail}")
