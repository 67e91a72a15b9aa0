"""Schema: typed access to one definition, for patches, field management and the API machinery.

`schema("core.v1.Pod")` is the whole object; `field`, `items` and `values` descend. The facts are
package data (`definitions.py`). A Schema is immutable; it changes objects through `normalize`
(prune, check, canonicalise: `normalization.py`) and `apply_defaults`.

`fill_defaults` adds the defaults that schemas declare. A required field gets its zero value (`""`,
0), a required struct becomes `{}` with its own defaults inside, and declared defaults
(`protocol: TCP`) are filled in. One walk in place, by compiled closures that visit only fields with
something to fill in.

`build_field_tree` finds where structs are embedded in objects of a kind. Rows about a struct
(aliases, gated fields) apply wherever that struct is embedded: in a Pod and in every pod template.
The paths are found once, and a walk through an object then follows only these paths:

    definition           rows for           their position
    core.v1.Pod          core.v1.PodSpec    spec
    batch.v1.CronJob     core.v1.PodSpec    spec.jobTemplate.spec.template.spec
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from phalanx.api import normalization
from phalanx.api.definitions import (
    SchemaNode,
    UnknownDefinition,
    definition,
    full_definition_name,
    is_reference,
)
from phalanx.api.normalization import Malformed, NormalizationResult
from phalanx.api.openapi import openapi_schema, references
from phalanx.api.wire import Object

__all__ = [
    "ITEM",
    "FieldPath",
    "FieldTree",
    "Malformed",
    "NormalizationResult",
    "Schema",
    "UnknownDefinition",
    "build_field_tree",
    "fill_defaults",
    "full_definition_name",
    "openapi_schema",
    "references",
    "schema",
]


R = TypeVar("R")
#: Fields, and ITEM for the items of a list, from a struct downwards.
FieldPath = tuple[str, ...]
ITEM = "[]"
_FillFunction = Callable[[Any], None]


@cache
def schema(name: str) -> Schema:
    """Return the schema of a definition, by its short name."""
    definition(name)
    return Schema(name)


class Schema:
    """One definition, or one field, list item or map value in it.

    `name` is the short name of the definition, "" for scalars, lists and maps.
    """

    __slots__ = ("_facts", "_fields", "_items", "_struct", "_values", "name")

    def __init__(self, node: SchemaNode) -> None:
        kind = node if isinstance(node, str) else node.get("t", "")
        target = definition(kind) if is_reference(kind) else ""
        self._facts: dict[str, Any] = {} if isinstance(node, str) else node
        # A node of a custom resource's schema defines its struct itself.
        inline = self._facts if "p" in self._facts else {}
        self._struct: dict[str, Any] = target if isinstance(target, dict) else inline
        # Created at first use: definitions may be recursive.
        self._fields: dict[str, Schema] = {}
        self._items: Schema | None = None
        self._values: Schema | None = None
        self.name = kind if isinstance(target, dict) else ""

    @property
    def field_nodes(self) -> dict[str, SchemaNode]:
        """The nodes of the fields of a struct."""
        found: dict[str, SchemaNode] = self._struct.get("p", {})
        return found

    def normalize(self, value: Object, *, keep_empty: bool = False) -> NormalizationResult:
        """Prune, check and canonicalise an object in place. Raises Malformed."""
        return normalization.normalize(self.name, value, keep_empty=keep_empty)

    def apply_defaults(self, value: Object) -> None:
        """Add in place the values that an object always has."""
        fill_defaults(self.name, value)

    def field(self, name: str) -> Schema | None:
        """Return the schema of a field of a struct, or of the values of a map, if there is one."""
        found = self._fields.get(name)
        if found is None:
            nodes = self._struct.get("p", {})
            if name not in nodes:
                return self.values
            found = self._fields[name] = Schema(nodes[name])
        return found

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of a struct's fields, sorted."""
        return tuple(self._struct.get("p", ()))

    @property
    def items(self) -> Schema | None:
        """The schema of the items of a list."""
        if self._items is None and "l" in self._facts:
            self._items = Schema(self._facts["l"])
        return self._items

    @property
    def values(self) -> Schema | None:
        """The schema of the values of a map."""
        if self._values is None and "m" in self._facts:
            self._values = Schema(self._facts["m"])
        return self._values

    @property
    def is_map(self) -> bool:
        """Whether it is a map, with arbitrary keys."""
        return "m" in self._facts

    @property
    def required(self) -> tuple[str, ...]:
        """The required fields of a struct."""
        return tuple(self._struct.get("r", ()))

    @property
    def merge_key(self) -> str:
        """The field that identifies list items in a strategic merge patch; "" if none."""
        return str(self._facts.get("mk", ""))

    @property
    def patch_strategy(self) -> str:
        """The strategy of a strategic merge patch: "", `merge`, `replace`, `merge,retainKeys`."""
        return str(self._facts.get("ps", ""))

    @property
    def list_type(self) -> str:
        """`atomic`, `set` or `map`; "" if it is not a list."""
        return str(self._facts.get("lt", "atomic")) if "l" in self._facts else ""

    @property
    def list_keys(self) -> tuple[str, ...]:
        """The fields that identify the items of a list of type `map`."""
        return tuple(self._facts.get("k", ()))

    @property
    def is_atomic(self) -> bool:
        """Whether a struct or map is owned and replaced as a whole."""
        return (self._facts.get("mt") or self._struct.get("mt")) == "atomic"


def fill_defaults(name: str, value: Any) -> None:
    """Fill in the defaults of an object by its definition."""
    if _has_defaults(name):
        _compile_filler(name)(value)


@cache
def _compile_filler(name: str) -> _FillFunction:
    """Compile the filler of a definition; nested definitions are compiled on first use."""
    scalars = [row for row in _defaults(name) if not isinstance(row[1], dict)]
    structs = [row for row in _defaults(name) if isinstance(row[1], dict)]
    inner: dict[str, _FillFunction] = {}
    pending = [True]

    def fill_struct(value: Any) -> None:
        if pending:
            inner.update(_nested_fillers(name))
            pending.clear()
        for key, default in scalars:
            if key not in value:
                value[key] = default
        for key, default in structs:
            if key not in value:
                value[key] = deepcopy(default) if default else {}
        for key in inner.keys() & value.keys():
            inner[key](value[key])

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
            found = {key: below(inner) for key, inner in _definition_fields(name).items()}
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
        for node in _definition_fields(name).values():
            above.setdefault(_referenced_definition(node), []).append(name)
    found = {name: None for name in names if name in rows}
    todo = list(found)
    for name in todo:
        more = [one for one in above.get(name, ()) if one not in found]
        found.update(dict.fromkeys(more))
        todo.extend(more)
    return frozenset(found)


def _definition_fields(name: str) -> dict[str, SchemaNode]:
    node = definition(name)
    return {} if isinstance(node, str) else node["p"]


def _referenced_definition(node: SchemaNode) -> str:
    """Return the definition that a node refers to, through lists and maps; "" if none."""
    while isinstance(node, dict):
        node = node.get("t") or node.get("l") or node.get("m") or ""
    return node if is_reference(node) else ""
