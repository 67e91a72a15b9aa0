from __future__ import annotations

from typing import Any

import orjson
import pytest

from phalanx.api.custom_resources.schema_validation import compile_schema
from phalanx.api.validation import structural_schema
from phalanx.api.validation.schema_values import SchemaCheck
from phalanx.api.validation.structural_schema import check_schema
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import WIDGET, object_schema, resource_schema

REQUIRED, INVALID = "FieldValueRequired", "FieldValueInvalid"
FORBIDDEN, UNSUPPORTED = "FieldValueForbidden", "FieldValueNotSupported"
TEXT: Object = {"type": "string"}
KEEPS: Object = {"x-kubernetes-preserve-unknown-fields": True}
EITHER: list[Object] = [{"type": "integer"}, {"type": "string"}]
INT_OR_STRING: Object = {"x-kubernetes-int-or-string": True}
EMBEDDED: Object = {"type": "object", "x-kubernetes-embedded-resource": True}


def schema_causes(schema: Object) -> list[tuple[str, str]]:
    """Return the causes, with paths relative to the spec where possible."""
    prefix = "s.properties[spec].properties"
    return [(cause.field.removeprefix(prefix), cause.reason) for cause in check_schema(schema, "s")]


def list_schema(kind: str, *keys: str, **item: Any) -> Object:
    schema: Object = {"type": "array", "items": item, "x-kubernetes-list-type": kind}
    return {**schema, "x-kubernetes-list-map-keys": list(keys)} if keys else schema


KEYED = object_schema(k=TEXT)


@pytest.mark.parametrize(
    "schema",
    [
        WIDGET,
        {"type": "object"},
        {"type": "object", **KEEPS},
        resource_schema(a={**TEXT, "pattern": "^a$", "default": "a"}, b=KEEPS),
        resource_schema(
            a=INT_OR_STRING,
            b={**INT_OR_STRING, "anyOf": EITHER},
            c={**INT_OR_STRING, "allOf": [{"anyOf": EITHER}, {"pattern": "a"}]},
        ),
        resource_schema(a={**EMBEDDED, **KEEPS}, b={**EMBEDDED, "properties": {"spec": KEEPS}}),
        resource_schema(
            a=list_schema("set", **TEXT), b=list_schema("map", "k", **KEYED, required=["k"])
        ),
        resource_schema(a={"type": "object", "additionalProperties": {**TEXT, "default": "x"}}),
        resource_schema(
            a={
                **object_schema(b=TEXT),
                "anyOf": [{"required": ["b"]}, {"not": {"required": ["b"]}}],
            }
        ),
        {
            "type": "object",
            "properties": {"metadata": object_schema(name={**TEXT, "maxLength": 5})},
        },
    ],
)
def test_a_structural_schema_is_accepted(schema: Object) -> None:
    assert schema_causes(schema) == []


@pytest.mark.parametrize(
    ("field", "cause"),
    [
        ({}, ("[a].type", REQUIRED)),
        ({"type": "file"}, ("[a].type", UNSUPPORTED)),
        ({"type": "null"}, ("[a].type", FORBIDDEN)),
        ({**TEXT, "$ref": "#/x"}, ("[a].$ref", FORBIDDEN)),
        ({**TEXT, "definitions": {"x": TEXT}}, ("[a].definitions", FORBIDDEN)),
        ({**TEXT, "pattern": "("}, ("[a].pattern", INVALID)),
        ({**TEXT, "pattern": "(?=a)"}, ("[a].pattern", INVALID)),
        ({"type": "array"}, ("[a].items", REQUIRED)),
        ({"type": "array", "items": {}}, ("[a].items.type", REQUIRED)),
        ({"type": "array", "items": [TEXT]}, ("[a].items", FORBIDDEN)),
        ({"type": "array", "items": 5}, ("[a].items", REQUIRED)),
        ({"type": "array", "items": []}, ("[a].items", REQUIRED)),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, ("[a].uniqueItems", FORBIDDEN)),
        (
            {"type": "object", "additionalProperties": False},
            ("[a].additionalProperties", FORBIDDEN),
        ),
        (
            {**object_schema(b=TEXT), "additionalProperties": TEXT},
            ("[a].additionalProperties", FORBIDDEN),
        ),
        (
            {**TEXT, "x-kubernetes-preserve-unknown-fields": False},
            ("[a].x-kubernetes-preserve-unknown-fields", INVALID),
        ),
        ({**INT_OR_STRING, **KEEPS}, ("[a].x-kubernetes-preserve-unknown-fields", INVALID)),
        (EMBEDDED, ("[a].properties", REQUIRED)),
        ({**EMBEDDED, **KEEPS, "type": "string"}, ("[a].type", INVALID)),
        (
            {**EMBEDDED, "properties": {"kind": {"type": "integer"}}},
            ("[a].properties[kind].type", INVALID),
        ),
        ({**TEXT, "x-kubernetes-map-type": "atomic"}, ("[a].type", INVALID)),
        (
            {**object_schema(b=TEXT), "x-kubernetes-map-type": "x"},
            ("[a].x-kubernetes-map-type", UNSUPPORTED),
        ),
        ({**TEXT, "x-kubernetes-list-type": "set"}, ("[a].type", INVALID)),
        (
            {**list_schema("set", **TEXT), "x-kubernetes-list-type": "x"},
            ("[a].x-kubernetes-list-type", UNSUPPORTED),
        ),
        (list_schema("map", **KEYED), ("[a].x-kubernetes-list-map-keys", REQUIRED)),
        (list_schema("set", "k", **TEXT), ("[a].x-kubernetes-list-type", INVALID)),
        (list_schema("map", "z", **KEYED), ("[a].x-kubernetes-list-map-keys[0]", INVALID)),
        (list_schema("map", "k", **KEYED), ("[a].items.properties[k].default", REQUIRED)),
        (list_schema("map", "k", **TEXT), ("[a].items.type", INVALID)),
        (list_schema("set", **object_schema(b=TEXT)), ("[a].items.x-kubernetes-map-type", INVALID)),
        (list_schema("set", **TEXT, nullable=True), ("[a].items.nullable", FORBIDDEN)),
        ({**TEXT, "anyOf": [TEXT]}, ("[a].anyOf[0].type", FORBIDDEN)),
        ({**TEXT, "not": {"default": "x"}}, ("[a].not.default", FORBIDDEN)),
        ({**TEXT, "allOf": [{"pattern": "["}]}, ("[a].allOf[0].pattern", INVALID)),
        (
            {**object_schema(b=TEXT), "oneOf": [{"properties": {"c": {"minLength": 1}}}]},
            ("[a].properties[c]", REQUIRED),
        ),
        ({**TEXT, "allOf": [{"items": {"minLength": 1}}]}, ("[a].items", REQUIRED)),
        (
            {**object_schema(b=TEXT), "allOf": [{"properties": {"metadata": {}}}]},
            ("[a].allOf[0].properties[metadata]", FORBIDDEN),
        ),
        ({**TEXT, "default": 1}, ("[a].default", "FieldValueTypeInvalid")),
        ({**TEXT, "default": "b", "enum": ["a"]}, ("[a].default", UNSUPPORTED)),
        ({**object_schema(b=TEXT), "default": {"c": 1}}, ("[a].default", INVALID)),
        (
            {**object_schema(b=TEXT), "default": {"b": 1}},
            ("[a].default.b", "FieldValueTypeInvalid"),
        ),
    ],
)
def test_what_is_not_structural_is_refused(field: Object, cause: tuple[str, str]) -> None:
    assert cause in schema_causes(resource_schema(a=field))


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        ({}, ("s.type", REQUIRED)),
        ({"type": "string"}, ("s.type", INVALID)),
        ({"type": "object", "additionalProperties": TEXT}, ("s.additionalProperties", FORBIDDEN)),
        (
            object_schema(metadata=object_schema(labels={"type": "object"})),
            ("s.properties[metadata]", FORBIDDEN),
        ),
        (object_schema(metadata=TEXT), ("s.properties[metadata].type", INVALID)),
        (object_schema(apiVersion={"type": "integer"}), ("s.properties[apiVersion].type", INVALID)),
    ],
)
def test_the_root_is_an_object_as_every_other(schema: Object, cause: tuple[str, str]) -> None:
    assert cause in schema_causes(schema)


def test_an_unknown_list_type_does_not_hide_a_wrong_default() -> None:
    listed = {**list_schema("set", **TEXT), "x-kubernetes-list-type": "x"}
    small: Object = {"type": "integer", "minimum": 5, "default": 2}
    assert schema_causes(resource_schema(a=listed, b=small)) == [
        ("[a].x-kubernetes-list-type", UNSUPPORTED),
        ("[b].default", INVALID),
    ]


def test_a_list_type_without_a_type_is_reported_twice() -> None:
    untyped: Object = {"items": TEXT, "x-kubernetes-list-type": "set"}
    assert schema_causes(resource_schema(a=untyped)) == [("[a].type", REQUIRED)] * 2


def test_an_unknown_type_at_the_root_is_no_object() -> None:
    assert schema_causes({"type": "x"}) == [("s.type", INVALID), ("s.type", UNSUPPORTED)]


def test_default_is_checked_by_what_it_reaches_at_every_level() -> None:
    item = {**object_schema(k=TEXT, n={"type": "integer", "maximum": 3}), "required": ["k"]}
    schema: Object = {
        **object_schema(
            more={"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
            items={"type": "array", "items": item},
            absent=object_schema(k={**TEXT, "maxLength": 1}),
        ),
        "default": {"more": {"a": 1, "b": 0}, "items": [{"k": "x"}, {"n": 4}]},
    }
    assert schema_causes(resource_schema(a=schema)) == [
        ("[a].default.items[1].k", REQUIRED),
        ("[a].default.items[1].n", INVALID),
        ("[a].default.more.b", INVALID),
    ]


def test_default_is_checked_by_rules_that_name_fields_which_it_lacks() -> None:
    inner = {
        **object_schema(x={"type": "integer"}, y={"type": "integer"}),
        "x-kubernetes-validations": [{"rule": "!has(self.y) && self.x > 5"}],
    }
    schema = {**object_schema(a=inner), "default": {"a": {"x": 2}}}
    assert schema_causes(resource_schema(a=schema)) == [("[a].default.a", INVALID)]
    assert schema_causes(resource_schema(a={**schema, "default": {"a": {"x": 6}}})) == []
    assert schema_causes(resource_schema(a={**schema, "default": {}})) == []


def test_cost_of_defaults_does_not_grow_with_the_levels_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = 0

    def count_fields(schema: Object) -> SchemaCheck:
        nonlocal compiled
        compiled += orjson.dumps(schema).count(b'"type"')
        return compile_schema(schema)

    monkeypatch.setattr(structural_schema, "compile_schema", count_fields)
    levels, schema = 20, object_schema(b=TEXT)
    for _ in range(levels):
        fields = {f"b{at}": {**TEXT, "default": "x"} for at in range(9)}
        schema = object_schema(a={**schema, "default": {}}, **fields)
    assert schema_causes(resource_schema(a=schema)) == []
    assert compiled == levels * (9 + 1)
