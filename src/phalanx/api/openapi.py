"""Definitions as OpenAPI v3 schemas, for `/openapi/v3`: the compact facts, spelled out again.

OpenAPI v2 of OpenAPI v3: schemas and paths for clients that know no newer form.

v2 has no alternatives and no null: what may be one of several types is told as a text or as
nothing at all, which is what those clients make do with. A reference carries its description
beside it. Both documents are made of the same facts (`openapi.py`); `swaggermessages.py` writes
this one in protobuf.

OpenAPI v2 in protobuf: the document of `swagger.py` as older clients ask for it.

The messages are those of the public description of OpenAPI v2; field numbers are facts. One
generic writer walks them: a row says under which number a key stands and what it holds.

    string, bool, double, int64     a scalar           any       a value, as text
    Name                            a message          *…        each of a list
    {Name}                          a map: name and value in a message each
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import orjson

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
    """The OpenAPI v3 schema of a definition, with the descriptions of it and its fields."""
    node, texts = definition(name), field_descriptions(name)
    if isinstance(node, str):
        return _description(texts, "") | _SCALAR_SCHEMAS[node]
    schema = _struct_schema(node, {**TYPE_META_DESCRIPTIONS, **texts} if "g" in node else texts)
    for alias in ALIASES_BY_STRUCT.get(name, ()):
        owner, place = _alias_owner(name, schema, alias)
        place["properties"][alias.name] = _alias_schema(owner, alias)
    return schema


def references(name: str) -> tuple[str, ...]:
    """A definition and all that it leads to, by short name, sorted."""
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
    """The struct that another name is in, and its schema: a list on the way gets one of its own."""
    struct: Any = definition(name)
    for step in alias.parent_path:
        if "l" in struct:
            schema["items"] = openapi_schema(struct["l"])
            struct, schema = definition(struct["l"]), schema["items"]
        else:
            struct, schema = struct["p"][step], schema["properties"][step]
    return struct, schema


def _alias_schema(struct: dict[str, Any], alias: FieldAlias) -> Object:
    """Another name of a field: clients that compute patches refuse what is not told of."""
    text = f"Another name of {alias.stored_name}, which is what is stored and returned."
    if alias.convert is None:
        shown = _node_schema(struct["p"][alias.stored_name])
    elif alias.text_fields:
        fields = {
            key: {"description": said, "type": "string"} for key, said in alias.text_fields.items()
        }
        shown = {"type": "object", "properties": fields}
    else:
        shown = dict(_SCALAR_SCHEMAS["string"])
    return {"description": text, "deprecated": True, **shown}


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
    """A scalar, or a reference in the form that bears facts beside it."""
    return {"allOf": [_item_schema(kind)]} if is_reference(kind) else dict(_SCALAR_SCHEMAS[kind])


def _item_schema(node: SchemaNode) -> Object:
    if isinstance(node, str) and is_reference(node):
        return {"$ref": f"#/components/schemas/{full_definition_name(node)}"}
    return _node_schema(node)


def _description(texts: Mapping[str, str], field: str) -> Object:
    return {"description": texts[field]} if field in texts else {}


def _extensions(node: dict[str, Any]) -> Object:
    return {theirs: node[ours] for ours, theirs in _EXTENSION_KEYS.items() if ours in node}


_V3_PREFIX, _V2_PREFIX = "#/components/schemas/", "#/definitions/"
_INT_OR_STRING, _PRESERVE_UNKNOWN_FIELDS = (
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
)
#: What v2 cannot say.
_UNSUPPORTED_IN_V2 = ("oneOf", "anyOf", "allOf", "not", "nullable", "deprecated")
#: What would make a client refuse a value that is fine.
_STRUCTURE_KEYS = ("type", "properties", "items", "additionalProperties", "required")


def to_v2_schema(told: Object) -> Object:
    """A schema as v2 says it."""
    if reference := _reference_of(told):
        rest = {key: told[key] for key in told if key not in ("allOf", "$ref", "default")}
        return {"$ref": reference.replace(_V3_PREFIX, _V2_PREFIX), **rest}
    kept = {key: value for key, value in told.items() if key not in _UNSUPPORTED_IN_V2}
    if told.get("format") == "int-or-string" or ("oneOf" in told and "type" not in told):
        kept["type"] = "string"
    if told.get("nullable") or told.get(_INT_OR_STRING) or told.get(_PRESERVE_UNKNOWN_FIELDS):
        return {key: value for key, value in kept.items() if key not in _STRUCTURE_KEYS}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = to_v2_schema(kept[key])
    if "properties" in kept:
        kept["properties"] = {name: to_v2_schema(one) for name, one in kept["properties"].items()}
    return kept


def _reference_of(told: Object) -> str:
    parts = told.get("allOf", ())
    if "type" not in told and len(parts) == 1:
        return str(parts[0].get("$ref", ""))
    return str(told.get("$ref", ""))


def v2_document(title: str, schemas: Mapping[str, Object], paths: Mapping[str, Object]) -> Object:
    """The document of some schemas and paths, which are told as in v3."""
    return {
        "swagger": "2.0",
        "info": {"title": title, "version": "v1"},
        "paths": {path: _v2_path(path, item) for path, item in paths.items()},
        "definitions": {name: to_v2_schema(one) for name, one in schemas.items()},
    }


def _v2_path(path: str, item: Object) -> Object:
    inside = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    named = [{"name": n, "in": "path", "required": True, "type": "string"} for n in inside]
    return {method: _v2_operation(told, named) for method, told in item.items()}


def _v2_operation(told: Object, named: Sequence[Object]) -> Object:
    content = told.get("requestBody", {}).get("content", {})
    answers = {code: _v2_response(one) for code, one in told["responses"].items()}
    queries = [
        {"name": one["name"], "in": "query", **one["schema"]} for one in told.get("parameters", ())
    ]
    extra = {key: value for key, value in told.items() if key.startswith("x-")}
    made: Object = {"parameters": [*named, *_v2_body(content), *queries], "responses": answers}
    return {**made, **({"consumes": list(content)} if content else {}), **extra}


def _v2_body(content: Object) -> list[Object]:
    shapes = [to_v2_schema(one["schema"]) for one in content.values()][:1]
    return [{"name": "body", "in": "body", "required": True, "schema": one} for one in shapes]


def _v2_response(told: Object) -> Object:
    shapes: list[Any] = [one["schema"] for one in told.get("content", {}).values()][:1]
    made = {"description": told.get("description", "")}
    return {**made, **({"schema": to_v2_schema(shapes[0])} if shapes else {})}


_VARINT, _FIXED64, _LENGTH = 0, 1, 2

#: Message -> key -> number and what stands there. "x-": keys of which only the prefix is known.
V2_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Document": {
        "swagger": (1, "string"), "info": (2, "Info"), "paths": (8, "Paths"),
        "definitions": (9, "Definitions"), "x-": (16, "NamedAny"),
    },
    "Info": {"title": (1, "string"), "version": (2, "string")},
    "Paths": {"*": (2, "{PathItem}")},
    "Definitions": {"*": (1, "{Schema}")},
    "Properties": {"*": (1, "{Schema}")},
    "PathItem": {
        "get": (2, "Operation"), "put": (3, "Operation"), "post": (4, "Operation"),
        "delete": (5, "Operation"), "patch": (8, "Operation"),
    },
    "Operation": {
        "description": (3, "string"), "produces": (6, "*string"), "consumes": (7, "*string"),
        "parameters": (8, "*ParametersItem"), "responses": (9, "Responses"), "x-": (13, "NamedAny"),
    },
    "Responses": {"*": (1, "{ResponseValue}")},
    "ResponseValue": {"response": (1, "Response")},
    "Response": {"description": (1, "string"), "schema": (2, "SchemaItem")},
    "SchemaItem": {"schema": (1, "Schema")},
    "ParametersItem": {"parameter": (1, "Parameter")},
    "Parameter": {"body": (1, "BodyParameter"), "other": (2, "NonBodyParameter")},
    "NonBodyParameter": {"query": (3, "QueryParameter"), "path": (4, "PathParameter")},
    "BodyParameter": {
        "name": (2, "string"), "in": (3, "string"), "required": (4, "bool"),
        "schema": (5, "Schema"),
    },
    "QueryParameter": {
        "required": (1, "bool"), "in": (2, "string"), "name": (4, "string"), "type": (6, "string"),
        "uniqueItems": (20, "bool"),
    },
    "PathParameter": {
        "required": (1, "bool"), "in": (2, "string"), "name": (4, "string"), "type": (5, "string"),
    },
    "ExternalDocs": {"description": (1, "string"), "url": (2, "string")},
    "AdditionalProperties": {"schema": (1, "Schema"), "boolean": (2, "bool")},
    "TypeItem": {"value": (1, "*string")},
    "ItemsItem": {"schema": (1, "*Schema")},
    "Schema": {
        "$ref": (1, "string"), "format": (2, "string"), "title": (3, "string"),
        "description": (4, "string"), "default": (5, "any"), "multipleOf": (6, "double"),
        "maximum": (7, "double"), "exclusiveMaximum": (8, "bool"), "minimum": (9, "double"),
        "exclusiveMinimum": (10, "bool"), "maxLength": (11, "int64"), "minLength": (12, "int64"),
        "pattern": (13, "string"), "maxItems": (14, "int64"), "minItems": (15, "int64"),
        "uniqueItems": (16, "bool"), "maxProperties": (17, "int64"), "minProperties": (18, "int64"),
        "required": (19, "*string"), "enum": (20, "*any"),
        "additionalProperties": (21, "AdditionalProperties"), "type": (22, "TypeItem"),
        "items": (23, "ItemsItem"), "properties": (25, "Properties"),
        "externalDocs": (29, "ExternalDocs"), "example": (30, "any"), "x-": (31, "NamedAny"),
    },
}  # fmt: skip


def _parameter_message(told: Object) -> Object:
    place = told["in"]
    return {"parameter": {"body": told} if place == "body" else {"other": {place: told}}}


#: What stands in the document in another form than in its message.
_MESSAGE_CONVERTERS: Mapping[str, Callable[[Any], Object]] = {
    "AdditionalProperties": lambda told: {"boolean" if told is True else "schema": told},
    "TypeItem": lambda told: {"value": [told]},
    "ItemsItem": lambda told: {"schema": [told]},
    "SchemaItem": lambda told: {"schema": told},
    "ParametersItem": _parameter_message,
    "ResponseValue": lambda told: {"response": told},
}


def encode_v2(document: Object) -> bytes:
    """A document of OpenAPI v2 in protobuf."""
    return _encode_message("Document", document)


def _encode_message(name: str, told: Any) -> bytes:
    turn, rows = _MESSAGE_CONVERTERS.get(name), V2_MESSAGES[name]
    made = bytearray()
    for key, value in (turn(told) if turn else told).items():
        number, holds = rows.get("x-" if key.startswith("x-") else key) or rows.get("*", (0, ""))
        if holds == "NamedAny":
            made += _encode_field(number, _encode_named(key, "any", value))
        elif holds.startswith("{"):
            made += _encode_field(number, _encode_named(key, holds[1:-1], value))
        elif holds.startswith("*"):
            for one in value:
                made += _encode_field(number, _encode_content(holds[1:], one))
        elif holds:
            made += _encode_record(number, holds, value)
    return bytes(made)


def _encode_named(name: str, holds: str, value: Any) -> bytes:
    return _encode_field(1, name.encode()) + _encode_field(2, _encode_content(holds, value))


def _encode_record(number: int, holds: str, value: Any) -> bytes:
    match holds:
        case "bool" | "int64":
            return _encode_tag(number, _VARINT) + _encode_varint(int(value))
        case "double":
            return _encode_tag(number, _FIXED64) + struct.pack("<d", value)
    return _encode_field(number, _encode_content(holds, value))


def _encode_content(holds: str, value: Any) -> bytes:
    """What stands under a number, without its length."""
    match holds:
        case "string":
            return str(value).encode()
        case "any":
            return _encode_field(2, orjson.dumps(value) + b"\n")
    return _encode_message(holds, value)


def _encode_field(number: int, content: bytes) -> bytes:
    return _encode_tag(number, _LENGTH) + _encode_varint(len(content)) + content


@cache
def _encode_tag(number: int, kind: int) -> bytes:
    return _encode_varint(number << 3 | kind)


def _encode_varint(number: int) -> bytes:
    made, number = bytearray(), number & (1 << 64) - 1
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
