"""Field types: how the values of a definition are divided into separately owned fields.

    struct, map                     StructType, MapType     f:name
    list of type map or set         AssociativeList         k:{"name":"a"}, v:"a"
    scalar, opaque, atomic          None                    owned and replaced as a whole

Built once per definition from `definitions.py`. `merge_diff.py` walks objects along them and needs
nothing else of a schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, ClassVar, Final

from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.field_management.field_set import encode_scalar
from phalanx.api.schema import Schema
from phalanx.api.wire import Object


class _Absent:
    """The type of ABSENT, which stands for a missing value."""


ABSENT: Final = _Absent()


class StructType:
    """A struct. It is not owned itself, only its fields are.

    `written` are the fields that Kubernetes writes even when they are empty.
    """

    __slots__ = ("_nodes", "_types", "written")

    owns_itself: ClassVar = False

    def __init__(self, nodes: dict[str, SchemaNode], written: tuple[str, ...] = ()) -> None:
        self._nodes, self.written = nodes, written
        self._types: dict[str, FieldType] = {}

    def field_type(self, name: str) -> FieldType | None:
        """Return the type of a field. Built at first use: definitions may be recursive."""
        if self._nodes:
            types = {key: _node_type(node) for key, node in self._nodes.items()}
            self._types = {key: one for key, one in types.items() if one is not None}
            self._nodes = {}
        return self._types.get(name)


class MapType:
    """A map. Each key is owned, whatever its value."""

    __slots__ = ("_value",)

    owns_itself: ClassVar = True

    def __init__(self, value: FieldType | None) -> None:
        self._value = value

    def field_type(self, name: str) -> FieldType | None:
        """Return the type of the values."""
        return self._value


class AssociativeList:
    """A list whose items are identified by `keys`, or by their value where there are none."""

    __slots__ = ("_labels", "defaults", "item", "keys")

    def __init__(self, keys: tuple[str, ...], defaults: Object, item: FieldType | None) -> None:
        self.keys, self.defaults, self.item = tuple(sorted(keys)), defaults, item
        self._labels = [(key, f"{encode_scalar(key)}:") for key in self.keys]

    def item_element(self, item: Any) -> str:
        """Return the path element of an item; a missing key without a default is omitted."""
        if not self.keys:
            return f"v:{encode_scalar(item)}"
        parts = []
        for key, label in self._labels:
            value = item.get(key, self.defaults.get(key))
            if value is not None:
                parts.append(label + encode_scalar(value))
        return f"k:{{{','.join(parts)}}}"

    def group_by_element(self, items: list[Any]) -> dict[str, list[Any]]:
        """Group items by element, in order; each group of a valid list has one item."""
        groups: dict[str, list[Any]] = {}
        for item in items:
            groups.setdefault(self.item_element(item), []).append(item)
        return groups


FieldType = StructType | MapType | AssociativeList


#: Optional fields that Kubernetes writes even when they are empty: the manager that adds the struct
#: owns them.
_WRITTEN_WHEN_EMPTY: Mapping[str, tuple[str, ...]] = {
    "core.v1.HostPathVolumeSource": ("type",),
    "scheduling.v1alpha3.PodGroupTemplate": ("schedulingConstraints",),
    "scheduling.v1alpha3.WorkloadSpec": ("podGroupTemplates",),
    "scheduling.v1beta1.PodGroupTemplate": ("schedulingConstraints",),
    "scheduling.v1beta1.WorkloadSpec": ("podGroupTemplates",),
}


def schema_type(schema: Schema) -> StructType:
    """Return the type of a struct, even of an atomic one."""
    return _definition_type(schema.name) if schema.name else _custom_type(schema)


@cache
def _definition_type(name: str) -> StructType:
    node = definition(name)
    assert isinstance(node, dict)
    return StructType(node["p"], _WRITTEN_WHEN_EMPTY.get(name, ()))


@lru_cache(maxsize=256)
def _custom_type(schema: Schema) -> StructType:
    return StructType(schema.field_nodes)


def empty_object(schema: Schema) -> Object:
    """Return an object without any stated field; that of a custom resource has only metadata."""
    return empty_object_of_definition(schema.name) if schema.name else {"metadata": {}}


@cache
def empty_object_of_definition(name: str) -> Object:
    """Return an object of a definition without any stated field; callers must not change it.

    A creation does not own what this object has: structs that are always present, zeros that are
    always written, and null for other required fields.
    """
    node = definition(name)
    assert isinstance(node, dict)
    required = (*node.get("r", ()), *_WRITTEN_WHEN_EMPTY.get(name, ()))
    return dict(_zero_fields(node["p"], required))


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
    """Return the type of a list, with the defaults of its keys."""
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
