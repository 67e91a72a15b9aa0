"""Defaults that the schemas declare: zero values of required fields and `default` keywords.

A required field gets its zero value (`""`, 0), a required struct becomes `{}` with its own defaults
inside, and declared defaults (`protocol: TCP`) are filled in. One walk in place, by compiled
closures that visit only fields with something to fill in. Called through
`schema.Schema.apply_defaults`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

from phalanx.api.definitions import SchemaNode, definition, is_reference

_FillFunction = Callable[[Any], None]


def fill_defaults(name: str, value: Any) -> None:
    """Fill in the defaults of an object by its definition."""
    if _has_defaults(name):
        _compile_filler(name)(value)


@cache
def _compile_filler(name: str) -> _FillFunction:
    """Compile the filler of a definition; nested definitions are compiled on first use."""
    scalars = [row for row in _defaults(name) if not isinstance(row[1], dict)]
    structs = [row for row in _defaults(name) if isinstance(row[1], dict)]
    inner: list[tuple[str, _FillFunction]] = []
    pending = [True]

    def fill_struct(value: Any) -> None:
        if pending:
            inner.extend(_nested_fillers(name))
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
    """Return the fields of a struct that are always present, with their default values."""
    node = definition(name)
    if isinstance(node, str):
        return []
    declared = [(k, f["d"]) for k, f in node["p"].items() if isinstance(f, dict) and "d" in f]
    return [
        (key, default) for key, default in declared if default != "" or key in node.get("r", ())
    ]


def _nested_fillers(name: str) -> list[tuple[str, _FillFunction]]:
    fields = (
        (key, _compile_field_filler(field)) for key, field in _definition_fields(name).items()
    )
    return [(key, filler) for key, filler in fields if filler is not None]


def _compile_field_filler(node: SchemaNode) -> _FillFunction | None:
    """Compile the filler of a field; None if there is nothing to fill in below it."""
    kind = node if isinstance(node, str) else node.get("t", "")
    if kind:
        return _compile_filler(kind) if is_reference(kind) and _has_defaults(kind) else None
    assert isinstance(node, dict)
    item = _compile_field_filler(node["l"] if "l" in node else node["m"])
    if item is None:
        return None
    return _list_filler(item) if "l" in node else _map_filler(item)


def _list_filler(fill_item: _FillFunction) -> _FillFunction:
    def fill_list(value: Any) -> None:
        for item in value:
            fill_item(item)

    return fill_list


def _map_filler(fill_item: _FillFunction) -> _FillFunction:
    def fill_map(value: Any) -> None:
        for item in value.values():
            fill_item(item)

    return fill_map


@cache
def _has_defaults(name: str) -> bool:
    """Whether a definition, or one that it refers to, declares defaults."""
    seen, todo = {name}, [name]
    for one in todo:
        if _defaults(one):
            return True
        more = [_referenced_definition(field) for field in _definition_fields(one).values()]
        todo.extend(ref for ref in dict.fromkeys(more) if ref and ref not in seen)
        seen.update(more)
    return False


def _definition_fields(name: str) -> dict[str, SchemaNode]:
    node = definition(name)
    return {} if isinstance(node, str) else node["p"]


def _referenced_definition(node: SchemaNode) -> str:
    """Return the definition that a node refers to, through lists and maps; "" if none."""
    while isinstance(node, dict):
        node = node.get("t") or node.get("l") or node.get("m") or ""
    return node if is_reference(node) else ""
