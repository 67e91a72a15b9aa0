r"""Where a rule tells of a breach: `.spec.size` or `.labels['a.b']`, below the rule's own value."""

from __future__ import annotations

import re

from phalanx.api.wire import Object

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|[.\[\]]|[^.\[\]]+")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'",
    "\\": "\\",
}  # fmt: skip
_NO_FIELD = "does not refer to a valid field"


class BadFieldPath(ValueError):
    """A path that leads nowhere, and why."""


def normal(path: str, schema: Object) -> str:
    """The path as causes tell it: `.spec.size`, `.labels[a.b]`. Raises BadFieldPath."""
    tokens = _TOKEN.findall(path)
    shown, at = "", 0
    while at < len(tokens):
        if tokens[at] not in (".", "["):
            raise BadFieldPath(f"expected [ or . but got: {tokens[at]}")
        name = _name(tokens, at)
        shown, schema = _stepped(shown, name, schema)
        at += 2 if tokens[at] == "." else 3
    return shown


def _name(tokens: list[str], at: int) -> str:
    """What follows an opening sign, if it is closed as it should be."""
    if at + 1 >= len(tokens):
        raise BadFieldPath("unexpected end of JSON path")
    name = tokens[at + 1]
    if tokens[at] == ".":
        return name
    if len(name) < 2 or name[0] != "'" or name[-1] != "'":
        raise BadFieldPath(f"expected single quoted string but got {name}")
    if at + 2 >= len(tokens):
        raise BadFieldPath("unexpected end of JSON path")
    if tokens[at + 2] != "]":
        raise BadFieldPath(f"expected ] but got {tokens[at + 2]}")
    return re.sub(r"\\(.)", _unescaped, name[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    if match[1] not in _ESCAPES:
        raise BadFieldPath(f"invalid string literal: invalid escape char {match[0]}")
    return _ESCAPES[match[1]]


def _stepped(shown: str, name: str, schema: Object) -> tuple[str, Object]:
    if "properties" in schema:
        if name not in schema["properties"]:
            raise BadFieldPath(_NO_FIELD)
        return f"{shown}.{name}", schema["properties"][name]
    more = schema.get("additionalProperties")
    if not more:
        raise BadFieldPath(_NO_FIELD)
    return f"{shown}[{name}]", more if isinstance(more, dict) else {}
