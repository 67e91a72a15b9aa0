"""Definitions as OpenAPI v3 schemas, for `/openapi/v3`: the compact facts, spelled out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.definitions import Node, definition, full_name, is_reference
from phalanx.api.descriptions import HEAD, descriptions
from phalanx.api.versions.aliases import BY_STRUCT, Alias
from phalanx.api.wire import Object

_SCALARS: dict[str, Object] = {
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

_FACTS = {
    "e": "enum",
    "d": "default",
    "lt": "x-kubernetes-list-type",
    "k": "x-kubernetes-list-map-keys",
    "mk": "x-kubernetes-patch-merge-key",
    "ps": "x-kubernetes-patch-strategy",
    "mt": "x-kubernetes-map-type",
    "u": "x-kubernetes-unions",
}


def openapi(name: str) -> Object:
    """The OpenAPI v3 schema of a definition, with the descriptions of it and its fields."""
    node, texts = definition(name), descriptions(name)
    if isinstance(node, str):
        return _told(texts, "") | _SCALARS[node]
    schema = _struct(node, {**HEAD, **texts} if "g" in node else texts)
    for alias in BY_STRUCT.get(name, ()):
        owner, place = _owner(name, schema, alias)
        place["properties"][alias.name] = _alias(owner, alias)
    return schema


def references(name: str) -> tuple[str, ...]:
    """A definition and all that it leads to, by short name, sorted."""
    found, todo = {name}, [name]
    for one in todo:
        more = sorted(set(_mentioned(definition(one))) - found)
        found.update(more)
        todo.extend(more)
    return tuple(sorted(found))


def _mentioned(node: Node) -> list[str]:
    if isinstance(node, str):
        return [node] if is_reference(node) else []
    inner = [*node.get("p", {}).values(), *(node[key] for key in ("t", "l", "m") if key in node)]
    return [name for part in inner for name in _mentioned(part)]


def _struct(node: dict[str, Any], texts: Mapping[str, str]) -> Object:
    schema: Object = {**_told(texts, ""), "type": "object"}
    if node["p"]:
        schema["properties"] = {
            key: _told(texts, key) | _node(inner) for key, inner in node["p"].items()
        }
    if "r" in node:
        schema["required"] = node["r"]
    if "g" in node:
        schema["x-kubernetes-group-version-kind"] = [
            {"group": group, "version": version, "kind": kind} for group, version, kind in node["g"]
        ]
    return schema | _facts(node)


def _owner(name: str, schema: Object, alias: Alias) -> tuple[dict[str, Any], Object]:
    """The struct that another name is in, and its schema: a list on the way gets one of its own."""
    struct: Any = definition(name)
    for step in alias.way:
        if "l" in struct:
            schema["items"] = openapi(struct["l"])
            struct, schema = definition(struct["l"]), schema["items"]
        else:
            struct, schema = struct["p"][step], schema["properties"][step]
    return struct, schema


def _alias(struct: dict[str, Any], alias: Alias) -> Object:
    """Another name of a field: clients that compute patches refuse what is not told of."""
    text = f"Another name of {alias.stands_for}, which is what is stored and returned."
    if alias.turn is None:
        shown = _node(struct["p"][alias.stands_for])
    elif alias.texts:
        fields = {key: {"description": said, "type": "string"} for key, said in alias.texts.items()}
        shown = {"type": "object", "properties": fields}
    else:
        shown = dict(_SCALARS["string"])
    return {"description": text, "deprecated": True, **shown}


def _node(node: Node) -> Object:
    if isinstance(node, str):
        return _kind(node)
    if "l" in node:
        schema: Object = {"type": "array", "items": _item(node["l"])}
    elif "m" in node:
        schema = {"type": "object", "additionalProperties": _item(node["m"])}
    else:
        schema = _kind(node["t"])
    return schema | _facts(node)


def _kind(kind: str) -> Object:
    """A scalar, or a reference in the form that bears facts beside it."""
    return {"allOf": [_item(kind)]} if is_reference(kind) else dict(_SCALARS[kind])


def _item(node: Node) -> Object:
    if isinstance(node, str) and is_reference(node):
        return {"$ref": f"#/components/schemas/{full_name(node)}"}
    return _node(node)


def _told(texts: Mapping[str, str], field: str) -> Object:
    return {"description": texts[field]} if field in texts else {}


def _facts(node: dict[str, Any]) -> Object:
    return {theirs: node[ours] for ours, theirs in _FACTS.items() if ours in node}
