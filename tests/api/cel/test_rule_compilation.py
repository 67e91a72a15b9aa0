from __future__ import annotations

import pytest

from phalanx.api.validation.structural_schema import check_schema
from phalanx.api.wire import Object
from tests.api.cel.test_validation_rules import NUMBER, TEXT, list_schema, map_schema, with_rules
from tests.api.custom_resource_definitions import object_schema, resource_schema

RULE = "x.properties[spec].x-kubernetes-validations[0]"


def schema_errors(spec: Object) -> list[str]:
    schema = {**resource_schema(), "properties": {"spec": spec}}
    return [f"{cause.field}: {cause.message}" for cause in check_schema(schema, "x")]


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "self.a > 1", "message": "x", "reason": "FieldValueInvalid", "fieldPath": ".a"},
        {"rule": "self.a > 1", "messageExpression": "'a is ' + string(self.a)"},
        {"rule": "self.a >= oldSelf.a"},
        {"rule": "oldSelf.hasValue() || self.a == 1", "optionalOldSelf": True},
        {"rule": "self.a >\n 1", "message": "more"},
    ],
)
def test_a_good_rule_is_accepted(rule: Object) -> None:
    assert schema_errors(with_rules(object_schema(a=NUMBER), rule)) == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"rule": " "}, ".rule: Required value: rule is not specified"),
        ({"message": " "}, '.message: Invalid value: " ": message must be non-empty if specified'),
        ({"message": "a\nb"},
         '.message: Invalid value: "a\\nb": message must not contain line breaks'),
        ({"message": "x" * 2049}, '.message: Invalid value: "xxxxxxxxxx...": message must have a'
         " maximum length of 2048 characters"),
        ({"rule": "self.a\n > 1"},
         ".message: Required value: message must be specified if rule contains line breaks"),
        ({"messageExpression": " "},
         ".messageExpression: Required value: messageExpression must be non-empty if specified"),
        ({"reason": "Nope"}, '.reason: Unsupported value: "Nope": supported values:'
         ' "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid",'
         ' "FieldValueRequired"'),
        ({"fieldPath": " "},
         '.fieldPath: Invalid value: " ": fieldPath must be non-empty if specified'),
        ({"fieldPath": ".a\n"},
         '.fieldPath: Invalid value: ".a\\n": fieldPath must not contain line breaks'),
        ({"fieldPath": ".b"}, '.fieldPath: Invalid value: ".b": does not refer to a valid field'),
        ({"fieldPath": "a"}, '.fieldPath: Invalid value: "a": expected [ or . but got: a'),
        ({"fieldPath": "."}, '.fieldPath: Invalid value: ".": unexpected end of JSON path'),
        ({"fieldPath": "[a]"},
         '.fieldPath: Invalid value: "[a]": expected single quoted string but got a'),
        ({"fieldPath": "['a'"}, '.fieldPath: Invalid value: "[\'a\'": unexpected end of JSON path'),
        ({"fieldPath": "['a'."}, '.fieldPath: Invalid value: "[\'a\'.": expected ] but got .'),
        ({"fieldPath": "['\\q']"}, '.fieldPath: Invalid value: "[\'\\\\q\']": invalid string'
         " literal: invalid escape char \\q"),
        ({"optionalOldSelf": True},
         ".optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"),
    ],
)  # fmt: skip
def test_a_rule_of_a_wrong_form_is_refused(rule: Object, said: str) -> None:
    schema = with_rules(object_schema(a=NUMBER), {"rule": "self.a > 1", **rule})
    assert schema_errors(schema) == [f"{RULE}{said}"]


@pytest.mark.parametrize(
    ("rule", "field", "detail"),
    [
        ("self.b", "rule", "compilation failed: ERROR: <input>:1:5: undefined field 'b'\n"
         " | self.b\n | ....^"),
        ("self.a == 'x'", "rule", "compilation failed: ERROR: <input>:1:8: found no matching"
         " overload for '_==_' applied to '(int, string)'\n | self.a == 'x'\n | .......^"),
        ("self.a", "rule", "cel expression must evaluate to a bool"),
        ("self.keeps.x == 1", "rule", "compilation failed: ERROR: <input>:1:5: undefined field"
         " 'keeps'\n | self.keeps.x == 1\n | ....^"),
    ],
)  # fmt: skip
def test_a_rule_must_make_sense(rule: str, field: str, detail: str) -> None:
    keeps = {"x-kubernetes-preserve-unknown-fields": True}
    (said,) = schema_errors(with_rules(object_schema(a=NUMBER, keeps=keeps), rule))
    assert said.startswith(f'{RULE}.{field}: Invalid value: {{"Rule":"{rule}","Message":"",')
    assert said.endswith(f'"OptionalOldSelf":null}}: {detail}')


@pytest.mark.parametrize(
    ("expression", "detail"),
    [
        ("self.b", "messageExpression compilation failed: ERROR: <input>:1:5: undefined field 'b'"),
        ("self.a", "messageExpression must evaluate to a string"),
    ],
)
def test_the_expression_of_a_message_must_make_sense(expression: str, detail: str) -> None:
    rule = {"rule": "self.a > 1", "messageExpression": expression}
    (said,) = schema_errors(with_rules(object_schema(a=NUMBER), rule))
    assert said.startswith(f"{RULE}.messageExpression: Invalid value: ")
    assert detail in said


def test_old_self_is_refused_below_lists_without_keys() -> None:
    change = with_rules(NUMBER, "self >= oldSelf")
    (said,) = schema_errors(object_schema(list=list_schema(change)))
    assert said == (
        "x.properties[spec].properties[list].items.x-kubernetes-validations[0].rule: Invalid value:"
        ' "self >= oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema'
        " within x.properties[spec].properties[list]"
    )
    item = {**object_schema(name=TEXT, size=change), "required": ["name"]}
    assert (
        schema_errors(object_schema(list=list_schema(item, "map", "name"), map=map_schema(change)))
        == []
    )


def test_a_default_must_keep_to_the_rules() -> None:
    assert schema_errors(object_schema(a={**with_rules(NUMBER, "self > 1"), "default": 2})) == []
    (said,) = schema_errors(object_schema(a={**with_rules(NUMBER, "self > 1"), "default": 1}))
    place = "x.properties[spec].properties[a].default"
    assert said == f'{place}: Invalid value: "integer": failed rule: self > 1'
