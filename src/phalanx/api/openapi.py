"""OpenAPI v3 schemas of our definitions, for `/openapi/v3` and `kubectl explain`.

`openapi_schema` expands one compact definition (`definitions.py`) to the schema that Kubernetes
publishes; `references` lists the definitions that a document must contain. Pure functions of the
definitions; `server.discovery` assembles and caches the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.conversion.aliases import ALIASES_BY_STRUCT, FieldAlias
from phalanx.api.definitions import (
    TYPE_META_DESCRIPTIONS,
    SchemaNode,
    definition,
    field_descriptions,
    full_definition_name,
    is_reference,
)
from phalanx.api.wire import Object

_SCALAR_SCHEMAS: dict[str, Object] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "int-or-string": {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    "opaque": {"type": "object"},
    "any": {},
}

_EXTENSION_KEYS = {
    "e": "enum",
    "d": "default",
    "lt": "x-kubernetes-list-type",
    "k": "x-kubernetes-list-map-keys",
    "mk": "x-kubernetes-patch-merge-key",
    "ps": "x-kubernetes-patch-strategy",
    "mt": "x-kubernetes-map-type",
    "u": "x-kubernetes-unions",
}


def openapi_schema(name: str) -> Object:
    """The OpenAPI v3 schema of a definition, with its description and those of its fields."""
    node, texts = definition(name), field_descriptions(name)
    if isinstance(node, str):
        return _description(texts, "") | _SCALAR_SCHEMAS[node]
    schema = _struct_schema(node, {**TYPE_META_DESCRIPTIONS, **texts} if "g" in node else texts)
    for alias in ALIASES_BY_STRUCT.get(name, ()):
        owner, place = _alias_owner(name, schema, alias)
        place["properties"][alias.name] = _alias_schema(owner, alias)
    return schema


def references(name: str) -> tuple[str, ...]:
    """The short names of a definition and of all definitions that it refers to, sorted."""
    found, todo = {name}, [name]
    for one in todo:
        more = sorted(set(_direct_references(definition(one))) - found)
        found.update(more)
        todo.extend(more)
    return tuple(sorted(found))


def _direct_references(node: SchemaNode) -> list[str]:
    if isinstance(node, str):
        return [node] if is_reference(node) else []
    inner = [*node.get("p", {}).values(), *(node[key] for key in ("t", "l", "m") if key in node)]
    return [name for part in inner for name in _direct_references(part)]


def _struct_schema(node: dict[str, Any], texts: Mapping[str, str]) -> Object:
    schema: Object = {**_description(texts, ""), "type": "object"}
    if node["p"]:
        schema["properties"] = {
            key: _description(texts, key) | _node_schema(inner) for key, inner in node["p"].items()
        }
    if "r" in node:
        schema["required"] = node["r"]
    if "g" in node:
        schema["x-kubernetes-group-version-kind"] = [
            {"group": group, "version": version, "kind": kind} for group, version, kind in node["g"]
        ]
    return schema | _extensions(node)


def _alias_owner(name: str, schema: Object, alias: FieldAlias) -> tuple[dict[str, Any], Object]:
    """The struct that an alias belongs to, and its schema; list items on the way are inlined."""
    struct: Any = definition(name)
    for step in alias.parent_path:
        if "l" in struct:
            schema["items"] = openapi_schema(struct["l"])
            struct, schema = definition(struct["l"]), schema["items"]
        else:
            struct, schema = struct["p"][step], schema["properties"][step]
    return struct, schema


def _alias_schema(struct: dict[str, Any], alias: FieldAlias) -> Object:
    """The schema of an alias: clients that compute patches refuse fields without a schema."""
    text = f"Another name of {alias.stored_name}, which is what is stored and returned."
    if alias.convert is None:
        schema = _node_schema(struct["p"][alias.stored_name])
    elif alias.text_fields:
        fields = {
            key: {"description": description, "type": "string"}
            for key, description in alias.text_fields.items()
        }
        schema = {"type": "object", "properties": fields}
    else:
        schema = dict(_SCALAR_SCHEMAS["string"])
    return {"description": text, "deprecated": True, **schema}


def _node_schema(node: SchemaNode) -> Object:
    if isinstance(node, str):
        return _type_schema(node)
    if "l" in node:
        schema: Object = {"type": "array", "items": _item_schema(node["l"])}
    elif "m" in node:
        schema = {"type": "object", "additionalProperties": _item_schema(node["m"])}
    else:
        schema = _type_schema(node["t"])
    return schema | _extensions(node)


def _type_schema(kind: str) -> Object:
    """A scalar, or a reference inside `allOf`, which allows extensions next to it."""
    return {"allOf": [_item_schema(kind)]} if is_reference(kind) else dict(_SCALAR_SCHEMAS[kind])


def _item_schema(node: SchemaNode) -> Object:
    if isinstance(node, str) and is_reference(node):
        return {"$ref": f"#/components/schemas/{full_definition_name(node)}"}
    return _node_schema(node)


def _description(texts: Mapping[str, str], field: str) -> Object:
    return {"description": texts[field]} if field in texts else {}


def _extensions(node: dict[str, Any]) -> Object:
    return {theirs: node[ours] for ours, theirs in _EXTENSION_KEYS.items() if ours in node}
