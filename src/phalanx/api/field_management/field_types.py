"""Shapes: how the values of a definition fall into fields that are owned one by one.

    struct, map                     Struct, Map     f:name
    list of type map or set         Items           k:{"name":"a"}, v:"a"
    scalar, opaque, atomic          no shape        owned and replaced as a whole

Made once per definition from the facts in `definitions.py`. `comparison.py` and `configuration.py`
walk objects along them and need to know nothing else about a schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, ClassVar, Final

from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.field_management.field_set import encode_scalar
from phalanx.api.schema import Schema
from phalanx.api.wire import Object


class _Absent:
    """Where one of two values has nothing."""


ABSENT: Final = _Absent()


class StructType:
    """A value whose fields its definition names. What holds fields is not owned for that."""

    __slots__ = ("_nodes", "_shapes")

    owns_itself: ClassVar = False

    def __init__(self, nodes: dict[str, SchemaNode]) -> None:
        self._nodes = nodes
        self._shapes: dict[str, FieldType] = {}

    def field_type(self, name: str) -> FieldType | None:
        """The shape of a field. All are made at the first use: definitions may be recursive."""
        if self._nodes:
            made = {key: _node_type(node) for key, node in self._nodes.items()}
            self._shapes = {key: one for key, one in made.items() if one is not None}
            self._nodes = {}
        return self._shapes.get(name)


class MapType:
    """A value whose keys are free. Each is owned, whatever is below it."""

    __slots__ = ("_value",)

    owns_itself: ClassVar = True

    def __init__(self, value: FieldType | None) -> None:
        self._value = value

    def field_type(self, name: str) -> FieldType | None:
        """The shape of a value."""
        return self._value


class AssociativeList:
    """A list whose items are known by some of their fields or, without `keys`, by themselves."""

    __slots__ = ("_labels", "defaults", "item", "keys")

    def __init__(self, keys: tuple[str, ...], defaults: Object, item: FieldType | None) -> None:
        self.keys, self.defaults, self.item = tuple(sorted(keys)), defaults, item
        self._labels = [(key, f"{encode_scalar(key)}:") for key in self.keys]

    def item_element(self, item: Any) -> str:
        """The path element of an item. A key that nobody and no default tells is left out."""
        if not self.keys:
            return f"v:{encode_scalar(item)}"
        told = []
        for key, label in self._labels:
            value = item.get(key, self.defaults.get(key))
            if value is not None:
                told.append(label + encode_scalar(value))
        return f"k:{{{','.join(told)}}}"

    def group_by_element(self, items: list[Any]) -> dict[str, list[Any]]:
        """Items by their elements, in order: one each, if the list is as it should be."""
        groups: dict[str, list[Any]] = {}
        for item in items:
            groups.setdefault(self.item_element(item), []).append(item)
        return groups


FieldType = StructType | MapType | AssociativeList


def schema_type(schema: Schema) -> StructType:
    """The shape of a struct, atomic or not."""
    return _definition_type(schema.name) if schema.name else _custom_type(schema)


@cache
def _definition_type(name: str) -> StructType:
    node = definition(name)
    assert isinstance(node, dict)
    return StructType(node["p"])


@lru_cache(maxsize=256)
def _custom_type(schema: Schema) -> StructType:
    """The shape of a kind that users define, which no definition names."""
    return StructType(schema.field_nodes)


def empty_object(schema: Schema) -> Object:
    """An object before anybody said anything; of a kind that users define it has metadata alone."""
    return empty_object_of_definition(schema.name) if schema.name else {"metadata": {}}


@cache
def empty_object_of_definition(name: str) -> Object:
    """An object of a definition before anybody said anything, not to be changed.

    What it holds already, a creation does not add: structs that cannot be absent, zeros that are
    always written, and null for whatever else is required.
    """
    node = definition(name)
    assert isinstance(node, dict)
    return dict(_zero_fields(node["p"], node.get("r", ())))


def _zero_fields(
    fields: dict[str, SchemaNode], required: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    for key, node in fields.items():
        default = node.get("d") if isinstance(node, dict) else None
        if default == {} and isinstance(node, dict):
            yield key, empty_object_of_definition(node["t"])
        elif default is None and key in required:
            yield key, None
        elif default == 0 or (default == "" and key in required):
            yield key, default


def _node_type(node: SchemaNode) -> FieldType | None:
    facts: dict[str, Any] = {"t": node} if isinstance(node, str) else node
    if facts.get("mt") == "atomic" or facts.get("lt", "atomic" if "l" in facts else "") == "atomic":
        return None
    if "l" in facts:
        return _list_type(facts)
    if "m" in facts:
        return MapType(_node_type(facts["m"]))
    if "p" in facts:
        return StructType(facts["p"])
    target = definition(facts["t"]) if is_reference(facts["t"]) else ""
    return (
        None
        if isinstance(target, str) or target.get("mt") == "atomic"
        else _definition_type(facts["t"])
    )


def _list_type(facts: dict[str, Any]) -> AssociativeList:
    """A list. What an item's missing key means, its definition tells."""
    item = _node_type(facts["l"])
    struct = facts["l"]
    if isinstance(struct, str):
        struct = definition(struct) if facts["lt"] == "map" else ""
    fields = struct.get("p", {}) if isinstance(struct, dict) else {}
    defaults = {
        key: fields[key]["d"]
        for key in facts.get("k", ())
        if isinstance(fields.get(key), dict) and "d" in fields[key]
    }
    return AssociativeList(tuple(facts.get("k", ())), defaults, item)
