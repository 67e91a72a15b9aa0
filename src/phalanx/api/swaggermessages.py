"""OpenAPI v2 in protobuf: the document of `swagger.py` as older clients ask for it.

The messages are those of the public description of OpenAPI v2; field numbers are facts. One
generic writer walks them: a row says under which number a key stands and what it holds.

    string, bool, double, int64     a scalar           any       a value, as text
    Name                            a message          *…        each of a list
    {Name}                          a map: name and value in a message each
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import orjson

from phalanx.api.wire import Object

_VARINT, _FIXED64, _LENGTH = 0, 1, 2

#: Message -> key -> number and what stands there. "x-": keys of which only the prefix is known.
MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
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


def _parameter(told: Object) -> Object:
    place = told["in"]
    return {"parameter": {"body": told} if place == "body" else {"other": {place: told}}}


#: What stands in the document in another form than in its message.
_TURNED: Mapping[str, Callable[[Any], Object]] = {
    "AdditionalProperties": lambda told: {"boolean" if told is True else "schema": told},
    "TypeItem": lambda told: {"value": [told]},
    "ItemsItem": lambda told: {"schema": [told]},
    "SchemaItem": lambda told: {"schema": told},
    "ParametersItem": _parameter,
    "ResponseValue": lambda told: {"response": told},
}


def encoded(document: Object) -> bytes:
    """A document of OpenAPI v2 in protobuf."""
    return _message("Document", document)


def _message(name: str, told: Any) -> bytes:
    turn, rows = _TURNED.get(name), MESSAGES[name]
    made = bytearray()
    for key, value in (turn(told) if turn else told).items():
        number, holds = rows.get("x-" if key.startswith("x-") else key) or rows.get("*", (0, ""))
        if holds == "NamedAny":
            made += _field(number, _named(key, "any", value))
        elif holds.startswith("{"):
            made += _field(number, _named(key, holds[1:-1], value))
        elif holds.startswith("*"):
            for one in value:
                made += _field(number, _content(holds[1:], one))
        elif holds:
            made += _record(number, holds, value)
    return bytes(made)


def _named(name: str, holds: str, value: Any) -> bytes:
    return _field(1, name.encode()) + _field(2, _content(holds, value))


def _record(number: int, holds: str, value: Any) -> bytes:
    match holds:
        case "bool" | "int64":
            return _tag(number, _VARINT) + _varint(int(value))
        case "double":
            return _tag(number, _FIXED64) + struct.pack("<d", value)
    return _field(number, _content(holds, value))


def _content(holds: str, value: Any) -> bytes:
    """What stands under a number, without its length."""
    match holds:
        case "string":
            return str(value).encode()
        case "any":
            return _field(2, orjson.dumps(value) + b"\n")
    return _message(holds, value)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, _LENGTH) + _varint(len(content)) + content


@cache
def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(number: int) -> bytes:
    made, number = bytearray(), number & (1 << 64) - 1
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
