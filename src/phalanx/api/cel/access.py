"""Reaching into values: fields, entries, items, and whether they are there."""

from __future__ import annotations

from typing import Any

from phalanx.api.cel.nodes import BadExpression, Index, Select
from phalanx.api.cel.program import Frame, Run, Typed
from phalanx.api.cel.types import BOOL, DYN, NUMBER, UNSIGNED, Kind, optional_of, takes
from phalanx.api.cel.values import NONE, Fault, Optional, Uint, has_key, overload


def selected(node: Select, of: Typed) -> Typed:
    """`of.field`."""
    kind, name = _field(node, of.kind)
    if of.kind.name == "optional_type" or node.optional:
        inner = kind if kind.name == "optional_type" else optional_of(kind)
        return Typed(inner, _optional(of.run, lambda frame: name))
    return Typed(kind, _entry(of.run, name))


def indexed(node: Index, of: Typed, key: Typed) -> Typed:
    """`of[key]`."""
    kind = _element(node, of.kind, key.kind)
    if of.kind.name == "optional_type" or node.optional:
        return Typed(optional_of(kind), _optional(of.run, key.run))
    return Typed(kind, _item(of.run, key.run))


def present(node: Select, of: Typed) -> Typed:
    """`has(of.field)`."""
    _, name = _field(node, of.kind)

    def run(frame: Frame) -> bool:
        value = of.run(frame)
        frame.spend(1)
        if value.__class__ is Optional:
            value = value.value if value.has else {}
        if value.__class__ is not dict:
            raise overload()
        return name in value

    return Typed(BOOL, run)


def _field(node: Select, kind: Kind) -> tuple[Kind, str]:
    """The type of a field, and its name in the value."""
    if kind.name == "optional_type":
        return _field(node, kind.of[0])
    if kind.name == "object":
        known = kind.fields.get(node.field)
        if known is None:
            raise BadExpression(node.at, f"undefined field '{node.field}'")
        return known.kind, known.name
    if kind.name == "map":
        return kind.of[1], node.field
    if kind == DYN:
        return DYN, node.field
    raise BadExpression(node.at, f"type '{kind}' does not support field selection")


def _element(node: Index, kind: Kind, key: Kind) -> Kind:
    if kind.name == "optional_type":
        return _element(node, kind.of[0], key)
    if kind == DYN:
        return DYN
    wanted = (NUMBER, UNSIGNED) if kind.name == "list" else kind.of[:1]
    if kind.name not in ("list", "map") or not any(takes(one, key, {}) for one in wanted):
        what = f"found no matching overload for '_[_]' applied to '({kind}, {key})'"
        raise BadExpression(node.at, what)
    return kind.of[-1]


def _entry(of: Run, name: str) -> Run:
    def run(frame: Frame) -> Any:
        value = of(frame)
        frame.spend(1)
        if value.__class__ is not dict:
            raise overload()
        if name not in value:
            raise Fault(f"no such key: {name}")
        return value[name]

    return run


def _item(of: Run, key: Run) -> Run:
    def run(frame: Frame) -> Any:
        value, at = of(frame), key(frame)
        frame.spend(1)
        found = _found(value, at)
        if found.has:
            return found.value
        if isinstance(value, list):
            raise Fault(f"index out of bounds: {at}")
        raise Fault(f"no such key: {at}")

    return run


def _optional(of: Run, key: Run) -> Run:
    """What is there, as something that may be missing."""

    def run(frame: Frame) -> Optional:
        value, at = of(frame), key(frame)
        frame.spend(1)
        if value.__class__ is Optional:
            return _found(value.value, at) if value.has else NONE
        return _found(value, at)

    return run


def _found(value: Any, at: Any) -> Optional:
    if value.__class__ is dict:
        return Optional(True, value[at]) if has_key(value, at) else NONE
    if not isinstance(value, list) or at.__class__ not in (int, Uint, float):
        raise overload()
    if at.__class__ is float and not at.is_integer():
        raise overload()
    return Optional(True, value[int(at)]) if 0 <= at < len(value) else NONE
