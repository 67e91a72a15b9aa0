from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.custom_resources.schema_validation import compile_schema
from phalanx.api.validation.checks import CREATED
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import object_schema

TEXT, NUMBER, REAL = {"type": "string"}, {"type": "integer"}, {"type": "number"}
MISTYPED = "FieldValueTypeInvalid"


def messages(schema: Object, value: Any) -> list[str]:
    return [str(cause) for cause in compile_schema(schema)(value, CREATED, "x")]


def cause_reasons(schema: Object, value: Any) -> list[tuple[str, str]]:
    return [(cause.field, cause.reason) for cause in compile_schema(schema)(value, CREATED, "x")]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (TEXT, ["", "a"], [1, None, True, [], {}]),
        (NUMBER, [0, -1, 3.0], [1.5, "1", True, None]),
        (REAL, [0, 1.5], ["1", False]),
        ({"type": "boolean"}, [True], [0, "true"]),
        ({"type": "array"}, [[], [1]], [{}, "a"]),
        ({"type": "object"}, [{}], [[], None]),
        ({"x-kubernetes-int-or-string": True}, [1, "50%"], [1.5, True, {}]),
        ({**TEXT, "nullable": True}, [None, "a"], [1]),
    ],
)
def test_value_must_have_its_type(schema: Object, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if messages(schema, value)] == []
    assert [cause_reasons(schema, value) for value in bad] == [[("x", MISTYPED)]] * len(bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad", "text"),
    [
        ({**TEXT, "maxLength": 2}, "ää", "abc", "x: Too long: may not be more than 2 bytes"),
        ({**TEXT, "minLength": 2}, "ab", "a",
         'x: Invalid value: "a": x in body should be at least 2 chars long'),
        ({**TEXT, "pattern": "^a+$"}, "aa", "b",
         "x: Invalid value: \"b\": x in body should match '^a+$'"),
        ({**TEXT, "format": "date-time"}, "2026-01-01T00:00:00Z", "now",
         'x: Invalid value: "now": x in body must be of type date-time: "now"'),
        ({**TEXT, "enum": ["a", "b"]}, "a", "c",
         'x: Unsupported value: "c": supported values: "a", "b"'),
        ({**NUMBER, "enum": [1, 2]}, 2, 3, 'x: Unsupported value: 3: supported values: "1", "2"'),
        ({**NUMBER, "minimum": 1}, 1, 0,
         "x: Invalid value: 0: x in body should be greater than or equal to 1"),
        ({**NUMBER, "minimum": 1, "exclusiveMinimum": True}, 2, 1,
         "x: Invalid value: 1: x in body should be greater than 1"),
        ({**REAL, "maximum": 0.5}, 0.5, 0.6,
         "x: Invalid value: 0.6: x in body should be less than or equal to 0.5"),
        ({**REAL, "maximum": 1.0, "exclusiveMaximum": True}, 0.5, 1,
         "x: Invalid value: 1: x in body should be less than 1"),
        ({**NUMBER, "multipleOf": 5}, 10, 11,
         "x: Invalid value: 11: x in body should be a multiple of 5"),
        ({**REAL, "multipleOf": 0.1}, 0.3, 0.35,
         "x: Invalid value: 0.35: x in body should be a multiple of 0.1"),
        ({**NUMBER, "format": "int32"}, 2**31 - 1, 2**31,
         "x: Invalid value: 2147483648: x in body must be of type int32"),
        ({"type": "array", "minItems": 1}, [1], [],
         "x: Invalid value: 0: x in body should have at least 1 items"),
        ({"type": "array", "maxItems": 1}, [1], [1, 2], "x: Too many: 2: must have at most 1 item"),
        ({"type": "object", "minProperties": 1}, {"a": 1}, {},
         "x: Invalid value: 0: x in body should have at least 1 properties"),
        ({"type": "object", "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1},
         "x: Too many: 2: must have at most 1 item"),
        ({"type": "object", "required": ["a"]}, {"a": 1}, {"b": 1}, "x.a: Required value"),
        (object_schema(a=TEXT), {"a": "b"}, {"a": 1},
         'x.a: Invalid value: "integer": x.a in body must be of type string: "integer"'),
        ({"type": "object", "additionalProperties": NUMBER}, {"a": 1}, {"a": "b"},
         'x.a: Invalid value: "string": x.a in body must be of type integer: "string"'),
        ({"type": "array", "items": NUMBER}, [1], [1, "a"],
         'x[1]: Invalid value: "string": x[1] in body must be of type integer: "string"'),
        ({"type": "array", "x-kubernetes-list-type": "set"}, [1, True, "1"], [1, 2, 1.0],
         "x[2]: Duplicate value: 1.0"),
        ({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
         [{"k": 1}, {"k": 2}, {}], [{"k": 1, "v": 1}, {"k": 1, "v": 2}],
         'x[1]: Duplicate value: {"k":1}'),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 1, 3,
         'x: Invalid value: 3: x in body should be less than or equal to 2'),
        ({"not": {"enum": ["a"]}}, "b", "a",
         '<nil>: Invalid value: "": "x" must not validate the schema (not)'),
    ],
)  # fmt: skip
def test_each_keyword_has_its_message(schema: Object, good: Any, bad: Any, text: str) -> None:
    assert messages(schema, good) == []
    assert messages(schema, bad)[0] == text


def test_combinations_report_the_alternative_with_fewest_errors() -> None:
    either = [{"required": ["a", "b"]}, {"required": ["c"]}]
    assert messages({"anyOf": either}, {"c": 1}) == []
    assert messages({"anyOf": either}, {}) == [
        '<nil>: Invalid value: "": "x" must validate at least one schema (anyOf)',
        "x.c: Required value",
    ]
    one = '<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf).'
    assert messages({"oneOf": either}, {}) == [f"{one} Found none valid", "x.c: Required value"]
    assert messages({"oneOf": either}, {"a": 1, "b": 1, "c": 1}) == [
        f"{one} Found 2 valid alternatives"
    ]
    assert messages({"oneOf": either}, {"c": 1}) == []
    every = '<nil>: Invalid value: "": "x" must validate all the schemas (allOf)'
    assert messages({"allOf": either}, {"c": 1}) == [
        "x.a: Required value",
        "x.b: Required value",
        every,
    ]
    assert messages({"allOf": either}, {})[-1] == f"{every}. None validated"


def test_keyword_applies_only_to_values_of_its_type() -> None:
    schema = {"minLength": 3, "minimum": 5, "minItems": 2, "required": ["a"], "pattern": "x"}
    assert [messages(schema, value) for value in (True, None)] == [[], []]


def test_true_is_not_one() -> None:
    assert messages({"enum": [1]}, True) != []
    assert messages({"enum": [1]}, 1.0) == []
    assert messages({"enum": [{"a": 1, "b": 2}]}, {"b": 2, "a": 1}) == []


def test_errors_are_sorted_by_field() -> None:
    schema = object_schema(b=NUMBER, a=NUMBER, c=NUMBER)
    found = [field for field, _ in cause_reasons(schema, {"c": "", "a": "", "b": ""})]
    assert found == ["x.a", "x.b", "x.c"]


def test_of_length_and_pattern_the_first_fault_is_reported() -> None:
    check = compile_schema({**TEXT, "minLength": 2, "pattern": "^b", "format": "uuid"})
    assert [cause.message.partition("body ")[2] for cause in check("a", CREATED, "x")] == [
        "should be at least 2 chars long",
        'must be of type uuid: "a"',
    ]
