from __future__ import annotations

import pytest

from phalanx.api.openapi import openapi_schema, references, to_v2_schema, v2_document
from phalanx.api.wire import Object

REFERENCE = {"$ref": "#/components/schemas/io.x.Y"}


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ({"type": "string", "description": "x"}, {"type": "string", "description": "x"}),
        ({"allOf": [REFERENCE], "description": "x", "default": {}},
         {"$ref": "#/definitions/io.x.Y", "description": "x"}),
        (REFERENCE, {"$ref": "#/definitions/io.x.Y"}),
        ({"oneOf": [{"type": "string"}, {"type": "number"}]}, {"type": "string"}),
        ({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
         {"format": "int-or-string", "type": "string"}),
        ({"type": "array", "items": REFERENCE},
         {"type": "array", "items": {"$ref": "#/definitions/io.x.Y"}}),
        ({"type": "object", "additionalProperties": {"allOf": [REFERENCE]}},
         {"type": "object", "additionalProperties": {"$ref": "#/definitions/io.x.Y"}}),
        ({"type": "object", "additionalProperties": True},
         {"type": "object", "additionalProperties": True}),
        ({"type": "string", "nullable": True, "description": "x"}, {"description": "x"}),
        ({"type": "string", "anyOf": [{"pattern": "a"}], "not": {"pattern": "b"}},
         {"type": "string"}),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}]},
         {"x-kubernetes-int-or-string": True}),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {}}},
         {"x-kubernetes-preserve-unknown-fields": True}),
        ({"type": "integer", "deprecated": True, "minimum": 1}, {"type": "integer", "minimum": 1}),
    ],
)  # fmt: skip
def test_a_schema_is_told_as_far_as_the_older_form_can(newer: Object, older: Object) -> None:
    assert to_v2_schema(newer) == older
    whole = to_v2_schema({"type": "object", "properties": {"a": newer}})
    assert whole == {"type": "object", "properties": {"a": older}}


def test_every_reference_leads_to_a_definition() -> None:
    names = references("core.v1.Pod")
    made = v2_document("x", {name: openapi_schema(name) for name in names}, {})
    assert len(made["definitions"]) == len(names) > 50
    text = str(made)
    assert "components" not in text
    assert "allOf" not in text


def test_an_operation_tells_its_parameters() -> None:
    body = {"content": {"application/json": {"schema": REFERENCE}}}
    operation = {
        "x-kubernetes-action": "put",
        "requestBody": body,
        "parameters": [{"name": "dryRun", "in": "query", "schema": {"type": "string"}}],
        "responses": {"200": {"description": "OK", **body}},
    }
    made = v2_document("x", {}, {"/a/{namespace}/b/{name}": {"put": operation}})
    told = made["paths"]["/a/{namespace}/b/{name}"]["put"]
    places = [(one["in"], one["name"]) for one in told["parameters"]]
    assert places == [("path", "namespace"), ("path", "name"), ("body", "body"),
                      ("query", "dryRun")]  # fmt: skip
    assert told["responses"]["200"]["schema"] == {"$ref": "#/definitions/io.x.Y"}
    assert told["consumes"] == ["application/json"]
    assert told["x-kubernetes-action"] == "put"
