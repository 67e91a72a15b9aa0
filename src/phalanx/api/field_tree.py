"""Sites: where, in the objects of a kind, structs of certain definitions stand.

Rows that are about a struct (its other names, its gated fields) hold wherever that struct is
embedded: in a Pod and in every template of pods. `sites` finds the ways there once, from the
schema; whoever walks an object afterwards goes only those ways:

    sites("core.v1.Pod", {"core.v1.PodSpec": …})        spec ─▶ the rows
    sites("batch.v1.CronJob", {"core.v1.PodSpec": …})   spec.jobTemplate.spec.template.spec ─▶ …

Says nothing about objects themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.openapi import references

R = TypeVar("R")
#: Fields, and ITEM for whatever a list holds, that lead on from a struct.
FieldPath = tuple[str, ...]
ITEM = "[]"


@dataclass(slots=True, eq=False)
class FieldTree(Generic[R]):
    """A place in an object: the rows for what stands there, and the ways further down.

    A struct leads on by its fields, a list or a map by whatever it holds.
    """

    rows: tuple[R, ...] = ()
    fields: dict[str, FieldTree[R]] = field(default_factory=dict)
    item: FieldTree[R] | None = None

    def child(self, step: str) -> FieldTree[R] | None:
        """The place that a field, or a position in a list, leads to."""
        return self.item if self.item is not None else self.fields.get(step)


def build_field_tree(
    root: str, rows: Mapping[str, Sequence[tuple[FieldPath, R]]]
) -> FieldTree[R] | None:
    """The places below a definition that have rows; None if there are none.

    Rows are given by the struct that they are about, each with the way that leads on from there.
    """
    leading = _definitions_leading_to(root, rows)
    known: dict[str, FieldTree[R]] = {}

    def struct(name: str) -> FieldTree[R] | None:
        if name not in leading:
            return None
        if name not in known:
            site = known[name] = FieldTree()
            found = {key: below(inner) for key, inner in _field_nodes(name).items()}
            site.fields.update((key, inner) for key, inner in found.items() if inner is not None)
            for way, row in rows.get(name, ()):
                _add_row(site, way, row)
        return known[name]

    def below(node: SchemaNode) -> FieldTree[R] | None:
        if isinstance(node, str):
            return struct(node)
        if "t" in node:
            return struct(node["t"])
        item = below(node["l"] if "l" in node else node["m"])
        return None if item is None else FieldTree(item=item)

    return struct(root)


def _add_row(site: FieldTree[R], way: FieldPath, row: R) -> None:
    """Add a row further down; what is on the way is made for it."""
    for step in way:
        if step == ITEM:
            site.item = site.item or FieldTree()
            site = site.item
        else:
            site = site.fields.setdefault(step, FieldTree())
    site.rows += (row,)


def _definitions_leading_to(root: str, rows: Collection[str]) -> frozenset[str]:
    """The definitions from which one with rows can be reached, itself among them."""
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
    """The definition that a field is of, or a list or a map of; "" if it is of none."""
    while not isinstance(node, str):
        node = next(node[key] for key in ("t", "l", "m") if key in node)
    return node if is_reference(node) else ""
