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

from phalanx.api.definitions import Node, definition, is_reference
from phalanx.api.owning.fieldset import json_text
from phalanx.api.schema import Schema
from phalanx.api.wire import Object


class _Absent:
    """Where one of two values has nothing."""


ABSENT: Final = _Absent()


class Struct:
    """A value whose fields its definition names. What holds fields is not owned for that."""

    __slots__ = ("_nodes", "_shapes")

    counts: ClassVar = False

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes
        self._shapes: dict[str, Shape] = {}

    def inner(self, name: str) -> Shape | None:
        """The shape of a field. All are made at the first use: definitions may be recursive."""
        if self._nodes:
            made = {key: _shape(node) for key, node in self._nodes.items()}
            self._shapes = {key: one for key, one in made.items() if one is not None}
            self._nodes = {}
        return self._shapes.get(name)


class Map:
    """A value whose keys are free. Each is owned, whatever is below it."""

    __slots__ = ("_value",)

    counts: ClassVar = True

    def __init__(self, value: Shape | None) -> None:
        self._value = value

    def inner(self, name: str) -> Shape | None:
        """The shape of a value."""
        return self._value


class Items:
    """A list whose items are known by some of their fields or, without `keys`, by themselves."""

    __slots__ = ("_labels", "defaults", "item", "keys")

    def __init__(self, keys: tuple[str, ...], defaults: Object, item: Shape | None) -> None:
        self.keys, self.defaults, self.item = tuple(sorted(keys)), defaults, item
        self._labels = [(key, f"{json_text(key)}:") for key in self.keys]

    def element(self, item: Any) -> str:
        """The path element of an item. A key that nobody and no default tells is left out."""
        if not self.keys:
            return f"v:{json_text(item)}"
        told = []
        for key, label in self._labels:
            value = item.get(key, self.defaults.get(key))
            if value is not None:
                told.append(label + json_text(value))
        return f"k:{{{','.join(told)}}}"

    def grouped(self, items: list[Any]) -> dict[str, list[Any]]:
        """Items by their elements, in order: one each, if the list is as it should be."""
        groups: dict[str, list[Any]] = {}
        for item in items:
            groups.setdefault(self.element(item), []).append(item)
        return groups


Shape = Struct | Map | Items


def shape(schema: Schema) -> Struct:
    """The shape of a struct, atomic or not."""
    return _defined(schema.name) if schema.name else _undefined(schema)


@cache
def _defined(name: str) -> Struct:
    node = definition(name)
    assert isinstance(node, dict)
    return Struct(node["p"])


@lru_cache(maxsize=256)
def _undefined(schema: Schema) -> Struct:
    """The shape of a kind that users define, which no definition names."""
    return Struct(schema.fields_facts)


def blank_of(schema: Schema) -> Object:
    """An object before anybody said anything; of a kind that users define it has metadata alone."""
    return blank(schema.name) if schema.name else {"metadata": {}}


@cache
def blank(name: str) -> Object:
    """An object of a definition before anybody said anything, not to be changed.

    What it holds already, a creation does not add: structs that cannot be absent, zeros that are
    always written, and null for whatever else is required.
    """
    node = definition(name)
    assert isinstance(node, dict)
    return dict(_zeros(node["p"], node.get("r", ())))


def _zeros(fields: dict[str, Node], required: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, node in fields.items():
        default = node.get("d") if isinstance(node, dict) else None
        if default == {} and isinstance(node, dict):
            yield key, blank(node["t"])
        elif default is None and key in required:
            yield key, None
        elif default == 0 or (default == "" and key in required):
            yield key, default


def _shape(node: Node) -> Shape | None:
    facts: dict[str, Any] = {"t": node} if isinstance(node, str) else node
    if facts.get("mt") == "atomic" or facts.get("lt", "atomic" if "l" in facts else "") == "atomic":
        return None
    if "l" in facts:
        return _items(facts)
    if "m" in facts:
        return Map(_shape(facts["m"]))
    if "p" in facts:
        return Struct(facts["p"])
    target = definition(facts["t"]) if is_reference(facts["t"]) else ""
    return None if isinstance(target, str) or target.get("mt") == "atomic" else _defined(facts["t"])


def _items(facts: dict[str, Any]) -> Items:
    """A list. What an item's missing key means, its definition tells."""
    item = _shape(facts["l"])
    struct = facts["l"]
    if isinstance(struct, str):
        struct = definition(struct) if facts["lt"] == "map" else ""
    fields = struct.get("p", {}) if isinstance(struct, dict) else {}
    defaults = {
        key: fields[key]["d"]
        for key in facts.get("k", ())
        if isinstance(fields.get(key), dict) and "d" in fields[key]
    }
    return Items(tuple(facts.get("k", ())), defaults, item)
