"""Schema: typed access to one definition, for patches, field management and the API machinery.

`schema("core.v1.Pod")` is the whole object; `field`, `items` and `values` descend. The facts are
package data (`definitions.py`). A Schema is immutable; it changes objects through `conform` (prune,
check, canonicalise: `conform.py`) and `apply_defaults` (zero values:
`defaults/schema_defaults.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from phalanx.api import conform as conforming
from phalanx.api.conform import ConformResult, Malformed
from phalanx.api.defaults import schema_defaults as zeros
from phalanx.api.definitions import (
    SchemaNode,
    UnknownDefinition,
    definition,
    full_definition_name,
    is_reference,
)
from phalanx.api.openapi import openapi_schema, references
from phalanx.api.wire import Object

__all__ = [
    "ConformResult",
    "Malformed",
    "Schema",
    "UnknownDefinition",
    "full_definition_name",
    "openapi_schema",
    "references",
    "schema",
]


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

    def conform(self, value: Object) -> ConformResult:
        """Prune, check and canonicalise an object in place. Raises Malformed."""
        return conforming.conform(self.name, value)

    def apply_defaults(self, value: Object) -> None:
        """Add in place the values that an object always has."""
        zeros.fill_defaults(self.name, value)

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
