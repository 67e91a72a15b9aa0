"""What is written even when nobody said it: the defaults that a definition itself tells.

A required field has its zero (`""`, 0), a struct that cannot be absent is `{}` with its own zeros
inside, and declared defaults (`protocol: TCP`) step in. One walk, in place, by compiled closures
that visit only what can have something to add. Called through `schema.Schema.fill`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

from phalanx.api.definitions import Node, definition, is_reference

_Fill = Callable[[Any], None]


def fill(name: str, value: Any) -> None:
    """Add to an object what its definition tells."""
    if _has_zeros(name):
        _compiled(name)(value)


@cache
def _compiled(name: str) -> _Fill:
    """The filler of a definition. What it descends into is compiled at its first use."""
    scalars = _scalars(name)
    structs = _structs(name)
    inner: list[tuple[str, _Fill]] = []
    pending = [True]

    def fill_struct(value: Any) -> None:
        if pending:
            inner.extend(_inner(name))
            pending.clear()
        for key, default in scalars:
            if key not in value:
                value[key] = default
        for key, default in structs:
            if key not in value:
                value[key] = deepcopy(default) if default else {}
        for key, fill_inner in inner:
            if key in value:
                fill_inner(value[key])

    return fill_struct


def _defaults(name: str) -> list[tuple[str, Any]]:
    """The fields of a struct that are always there, with what they are when nobody said it."""
    node = definition(name)
    if isinstance(node, str):
        return []
    told = [(k, f["d"]) for k, f in node["p"].items() if isinstance(f, dict) and "d" in f]
    return [(key, default) for key, default in told if default != "" or key in node.get("r", ())]


def _scalars(name: str) -> list[tuple[str, Any]]:
    return [row for row in _defaults(name) if not isinstance(row[1], dict)]


def _structs(name: str) -> list[tuple[str, Any]]:
    return [row for row in _defaults(name) if isinstance(row[1], dict)]


def _inner(name: str) -> list[tuple[str, _Fill]]:
    fields = ((key, _filler(field)) for key, field in _fields(name).items())
    return [(key, filler) for key, filler in fields if filler is not None]


def _filler(node: Node) -> _Fill | None:
    """How to fill a field, if there can be anything to fill in it."""
    kind = node if isinstance(node, str) else node.get("t", "")
    if kind:
        return _compiled(kind) if is_reference(kind) and _has_zeros(kind) else None
    assert isinstance(node, dict)
    item = _filler(node["l"] if "l" in node else node["m"])
    if item is None:
        return None
    return _each(item) if "l" in node else _each_value(item)


def _each(fill_item: _Fill) -> _Fill:
    def fill_list(value: Any) -> None:
        for item in value:
            fill_item(item)

    return fill_list


def _each_value(fill_item: _Fill) -> _Fill:
    def fill_map(value: Any) -> None:
        for item in value.values():
            fill_item(item)

    return fill_map


@cache
def _has_zeros(name: str) -> bool:
    """Whether a definition, or one that it refers to, has anything to add."""
    seen, todo = {name}, [name]
    for one in todo:
        if _defaults(one):
            return True
        more = [_reference(field) for field in _fields(one).values()]
        todo.extend(ref for ref in dict.fromkeys(more) if ref and ref not in seen)
        seen.update(more)
    return False


def _fields(name: str) -> dict[str, Node]:
    node = definition(name)
    return {} if isinstance(node, str) else node["p"]


def _reference(node: Node) -> str:
    """The definition that a node leads to, through lists and maps; "" if none."""
    while isinstance(node, dict):
        node = node.get("t") or node.get("l") or node.get("m") or ""
    return node if is_reference(node) else ""
