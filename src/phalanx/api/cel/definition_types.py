"""CEL types of the kinds of Kubernetes, from their schema definitions (`definitions.py`).

Quantities and values without a schema are `dyn`, and so is a definition within itself: expressions
about them are not checked.
"""

from __future__ import annotations

from functools import lru_cache

from phalanx.api.cel.declarations import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INTEGER,
    STRING,
    TIMESTAMP,
    CelType,
    ObjectField,
    list_of,
    map_of,
)
from phalanx.api.cel.schema_types import escape_field_name
from phalanx.api.definitions import SchemaNode, definition, is_reference

_SCALARS = {
    "string": STRING, "bool": BOOL, "int32": INTEGER, "int64": INTEGER, "number": DOUBLE,
    "bytes": BYTES, "time": TIMESTAMP, "microtime": TIMESTAMP, "quantity": DYN,
    "int-or-string": DYN, "opaque": DYN, "any": DYN,
}  # fmt: skip


@lru_cache(maxsize=32)
def definition_type(name: str) -> CelType:
    """Return the type of a definition, by its short name: `apps.v1.Deployment`."""
    return _node_type(name, ())


def _node_type(node: SchemaNode, above: tuple[str, ...]) -> CelType:
    if isinstance(node, str):
        if not is_reference(node):
            return _SCALARS[node]
        return DYN if node in above else _named_type(node, above)
    if "l" in node:
        return list_of(_node_type(node["l"], above))
    if "m" in node:
        return map_of(STRING, _node_type(node["m"], above))
    if "t" in node:
        return _node_type(node["t"], above)
    return _struct_type(node["p"], above)


def _named_type(name: str, above: tuple[str, ...]) -> CelType:
    node = definition(name)
    if isinstance(node, str):
        return _node_type(node, above)
    return _node_type(node, (*above, name))


def _struct_type(fields: dict[str, SchemaNode], above: tuple[str, ...]) -> CelType:
    known = {}
    for name, node in fields.items():
        # Policies select `metadata.namespace` by its own name, which CEL reserves for identifiers.
        field = ObjectField(name, _node_type(node, above))
        known[escape_field_name(name) or name] = known[name] = field
    return CelType("object", (), known, above[-1] if above else ".")
