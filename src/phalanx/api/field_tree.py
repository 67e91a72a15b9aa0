"""Field trees: where structs of certain definitions are embedded in objects of a kind.

Rows about a struct (aliases, gated fields) apply wherever that struct is embedded: in a Pod and in
every pod template. `build_field_tree` finds the paths once, from the schema, and a walk through an
object then follows only these paths:

    definition           rows for           their position
    core.v1.Pod          core.v1.PodSpec    spec
    batch.v1.CronJob     core.v1.PodSpec    spec.jobTemplate.spec.template.spec
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.openapi import references

R = TypeVar("R")
#: Fields, and ITEM for the items of a list, from a struct downwards.
FieldPath = tuple[str, ...]
ITEM = "[]"


@dataclass(slots=True, eq=False)
class FieldTree(Generic[R]):
    """One position in objects: its rows, and the child positions that lead to rows.

    A struct has child positions by field, a list or a map one for all its items.
    """

    rows: tuple[R, ...] = ()
    fields: dict[str, FieldTree[R]] = field(default_factory=dict)
    item: FieldTree[R] | None = None

    def child(self, step: str) -> FieldTree[R] | None:
        """Return the position of a field, or of an item of a list."""
        return self.item if self.item is not None else self.fields.get(step)


def build_field_tree(
    root: str, rows: Mapping[str, Sequence[tuple[FieldPath, R]]]
) -> FieldTree[R] | None:
    """Return the positions below a definition that have rows; None if there are none.

    Rows are given by struct, each with the path from the struct to its position.
    """
    leading = _definitions_leading_to(root, rows)
    known: dict[str, FieldTree[R]] = {}

    def struct(name: str) -> FieldTree[R] | None:
        if name not in leading:
            return None
        if name not in known:
            position = known[name] = FieldTree()
            found = {key: below(inner) for key, inner in _field_nodes(name).items()}
            position.fields.update(
                (key, inner) for key, inner in found.items() if inner is not None
            )
            for path, row in rows.get(name, ()):
                _add_row(position, path, row)
        return known[name]

    def below(node: SchemaNode) -> FieldTree[R] | None:
        if isinstance(node, str):
            return struct(node)
        if "t" in node:
            return struct(node["t"])
        item = below(node["l"] if "l" in node else node["m"])
        return None if item is None else FieldTree(item=item)

    return struct(root)


def _add_row(position: FieldTree[R], path: FieldPath, row: R) -> None:
    """Add a row at the end of a path, creating positions on it."""
    for step in path:
        if step == ITEM:
            position.item = position.item or FieldTree()
            position = position.item
        else:
            position = position.fields.setdefault(step, FieldTree())
    position.rows += (row,)


def _definitions_leading_to(root: str, rows: Collection[str]) -> frozenset[str]:
    """Return the definitions from which one with rows is reachable, including itself."""
    names = references(root)
    above: dict[str, list[str]] = {}
    for name in names:
        for node in _field_nodes(name).values():
            above.setdefault(_target_definition(node), []).append(name)
    found = {name: None for name in names if name in rows}
    todo = list(found)
    for name in todo:
        more = [one for one in above.get(name, ()) if one not in found]
        found.update(dict.fromkeys(more))
        todo.extend(more)
    return frozenset(found)


def _field_nodes(name: str) -> dict[str, SchemaNode]:
    node: Any = definition(name)
    return {} if isinstance(node, str) else node["p"]


def _target_definition(node: SchemaNode) -> str:
    """Return the definition of a field, or of its items; "" for scalars."""
    while not isinstance(node, str):
        node = next(node[key] for key in ("t", "l", "m") if key in node)
    return node if is_reference(node) else ""
