"""The document in protobuf, read again by a reader that knows nothing but wire types."""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest

from phalanx.api.openapi import encode_v2, openapi_schema, references, v2_document

#: A message as numbers and what stands under them, each as often as it is there.
Message = dict[int, list[Any]]


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def decode_message(data: bytes) -> Message:
    found: Message = {}
    at = 0
    while at < len(data):
        tag, at = decode_varint(data, at)
        if tag & 7 == 0:
            value: Any
            value, at = decode_varint(data, at)
        elif tag & 7 == 1:
            (value,), at = struct.unpack("<d", data[at : at + 8]), at + 8
        else:
            assert tag & 7 == 2
            size, at = decode_varint(data, at)
            value, at = data[at : at + size], at + size
        found.setdefault(tag >> 3, []).append(value)
    assert at == len(data)
    return found


def decode_named(entries: list[bytes]) -> dict[str, bytes]:
    """A map: each entry is a name and a value."""
    pairs = [decode_message(entry) for entry in entries]
    return {pair[1][0].decode(): pair[2][0] for pair in pairs}


def encoded_definitions(**schemas: Any) -> dict[str, Message]:
    whole = decode_message(encode_v2(v2_document("x", schemas, {})))
    return {
        name: decode_message(one)
        for name, one in decode_named(decode_message(whole[9][0])[1]).items()
    }


def text(any_value: bytes) -> Any:
    """What a value says as text, which is JSON here and YAML in general."""
    return orjson.loads(decode_message(any_value)[2][0])


def test_a_document_names_itself() -> None:
    whole = decode_message(encode_v2(v2_document("x", {}, {})))
    assert whole[1] == [b"2.0"]
    assert decode_message(whole[2][0]) == {1: [b"x"], 2: [b"v1"]}


def test_every_definition_is_there_with_its_fields() -> None:
    names = references("core.v1.Pod")
    made = encoded_definitions(**{name: openapi_schema(name) for name in names})
    assert tuple(made) == names
    for name in names:
        fields = openapi_schema(name).get("properties", {})
        there = decode_named(decode_message(made[name][25][0])[1]) if 25 in made[name] else {}
        assert list(there) == list(fields)
        descriptions = [decode_message(one).get(4, [b""])[0].decode() for one in there.values()]
        assert descriptions == [one.get("description", "") for one in fields.values()]


@pytest.mark.parametrize(
    ("schema", "number", "wanted"),
    [
        ({"type": "integer", "maximum": 2.5}, 7, [2.5]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, 10, [1]),
        ({"type": "string", "maxLength": 300}, 11, [300]),
        ({"type": "string", "pattern": "a"}, 13, [b"a"]),
        ({"type": "string", "format": "byte"}, 2, [b"byte"]),
        ({"type": "object", "required": ["a", "b"]}, 19, [b"a", b"b"]),
        ({"$ref": "#/components/schemas/y"}, 1, [b"#/definitions/y"]),
    ],
)
def test_what_a_schema_says_stands_under_its_number(
    schema: Any, number: int, wanted: list[Any]
) -> None:
    assert encoded_definitions(x=schema)["x"][number] == wanted


def test_types_items_values_and_extensions_have_messages_of_their_own() -> None:
    made = encoded_definitions(
        list={"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        map={"type": "object", "additionalProperties": {"type": "integer"}},
        any={"type": "object", "additionalProperties": True},
        one={"type": "string", "enum": ["a", 1], "default": {"a": [1]}},
    )
    assert decode_message(made["list"][22][0]) == {1: [b"array"]}
    (item,) = decode_message(made["list"][23][0])[1]
    assert decode_message(decode_message(item)[22][0]) == {1: [b"string"]}
    assert text(decode_named(made["list"][31])["x-kubernetes-list-type"]) == "set"
    (values,) = decode_message(made["map"][21][0])[1]
    assert decode_message(decode_message(values)[22][0]) == {1: [b"integer"]}
    assert decode_message(made["any"][21][0]) == {2: [1]}
    assert [text(one) for one in made["one"][20]] == ["a", 1]
    assert text(made["one"][5][0]) == {"a": [1]}


def test_paths_tell_which_kinds_can_be_tried_out() -> None:
    identity = {"group": "", "version": "v1", "kind": "Pod"}
    operation = {
        "x-kubernetes-group-version-kind": identity,
        "parameters": [{"name": "dryRun", "in": "query", "schema": {"type": "string"}}],
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": {"description": "OK"}},
    }
    whole = decode_message(encode_v2(v2_document("x", {}, {"/p/{name}": {"patch": operation}})))
    patch = decode_message(
        decode_message(decode_named(decode_message(whole[8][0])[2])["/p/{name}"])[8][0]
    )
    assert text(decode_named(patch[13])["x-kubernetes-group-version-kind"]) == identity
    path, body, query = (decode_message(decode_message(one)[1][0]) for one in patch[8])
    assert decode_message(decode_message(path[2][0])[4][0]) == {
        4: [b"name"],
        2: [b"path"],
        1: [1],
        5: [b"string"],
    }
    assert decode_message(body[1][0])[2] == [b"body"]
    assert decode_message(decode_message(query[2][0])[3][0])[4] == [b"dryRun"]
    assert decode_message(
        decode_message(decode_named(decode_message(patch[9][0])[1])["200"])[1][0]
    ) == {1: [b"OK"]}
