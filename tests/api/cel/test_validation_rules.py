from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.cel.validation_rules import MAX_OBJECT_COST, compile_validator
from phalanx.api.validation.checks import CREATED
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import object_schema

TEXT: Object = {"type": "string"}
NUMBER: Object = {"type": "integer"}


def with_rules(schema: Object, *rules: str | Object) -> Object:
    """A schema with rules."""
    validations = [{"rule": rule} if isinstance(rule, str) else rule for rule in rules]
    return {**schema, "x-kubernetes-validations": validations}


def list_schema(items: Object, kind: str = "atomic", *keys: str) -> Object:
    schema: Object = {"type": "array", "items": items, "x-kubernetes-list-type": kind}
    return {**schema, "x-kubernetes-list-map-keys": list(keys)} if keys else schema


def map_schema(values: Object) -> Object:
    return {"type": "object", "additionalProperties": values}


def violations(schema: Object, value: Any, old: Any = CREATED) -> list[str]:
    judge = compile_validator(schema)
    assert judge
    return [f"{cause.field}: {cause.message}" for cause in judge.validate(value, old)]


RANGE = object_schema(low=NUMBER, high=NUMBER)


def test_a_schema_without_rules_has_no_judge() -> None:
    assert compile_validator(RANGE) is None


def test_a_breach_names_the_rule_its_place_and_the_type() -> None:
    schema = object_schema(range=with_rules(RANGE, "self.low <= self.high"))
    assert violations(schema, {"range": {"low": 1, "high": 2}}) == []
    assert violations(schema, {"range": {"low": 3, "high": 2}}) == [
        'range: Invalid value: "object": failed rule: self.low <= self.high'
    ]


def test_every_value_is_judged_wherever_it_stands() -> None:
    even = with_rules(NUMBER, "self % 2 == 0")
    schema = object_schema(list=list_schema(even), map=map_schema(even), one=even)
    value = {"list": [2, 3, 5], "map": {"a": 1, "b": 2}, "one": 7}
    places = [said.split(":")[0] for said in violations(schema, value)]
    assert places == ["list[1]", "list[2]", "map[a]", "one"]


def test_what_is_missing_or_null_is_not_judged() -> None:
    schema = object_schema(a=with_rules({**NUMBER, "nullable": True}, "self > 0"))
    assert violations(schema, {}) == violations(schema, {"a": None}) == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"message": " say this "}, 'Invalid value: "object": say this'),
        ({"messageExpression": "'is ' + string(self.low)"}, 'Invalid value: "object": is 3'),
        ({"messageExpression": "self.nothing == 1 ? 'a' : 'b'", "message": "usual"}, None),
        ({"messageExpression": "' '", "message": "usual"}, 'Invalid value: "object": usual'),
        ({"messageExpression": "'a\\nb'"}, 'Invalid value: "object": failed rule: false'),
        ({"messageExpression": "string(1 / 0)"}, 'Invalid value: "object": failed rule: false'),
        ({"reason": "FieldValueForbidden"}, "Forbidden: failed rule: false"),
        ({"reason": "FieldValueRequired", "message": "give it"}, "Required value: give it"),
        ({"reason": "FieldValueDuplicate"}, 'Duplicate value: "object"'),
        ({"reason": "FieldValueInvalid"}, 'Invalid value: "object": failed rule: false'),
    ],
)
def test_violation_uses_the_message_of_the_rule(rule: Object, said: str | None) -> None:
    schema = object_schema(range=with_rules(RANGE, {"rule": "false", **rule}))
    wanted = f"range: {said}" if said else None
    (found,) = violations(schema, {"range": {"low": 3}})
    assert found == wanted or (wanted is None and "rule compile error" in found)


def test_violation_uses_the_field_path_of_the_rule() -> None:
    inner = object_schema(low=NUMBER, labels=map_schema(TEXT), **{"a-b": NUMBER})
    rules = [{"rule": "false", "fieldPath": path} for path in (".low", ".labels['x.y']", "['a-b']")]
    schema = object_schema(range=with_rules(inner, *rules))
    value = {"range": {"low": 1}}
    places = [said.split(":")[0] for said in violations(schema, value)]
    assert places == ["range.low", "range.labels[x.y]", "range.a-b"]
    at_the_root = with_rules(inner, {"rule": "false", "fieldPath": ".low"})
    assert violations(at_the_root, {"low": 1})[0].startswith("low: ")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("self.low > 1", "no such key: low evaluating rule: self.low > 1"),
        ("1 / 0 == 1", "division by zero evaluating rule: 1 / 0 == 1"),
        (
            "self.either > 1",
            "'no such overload': call arguments did not match a supported operator,"
            " function or macro signature for rule: self.either > 1",
        ),
    ],
)
def test_a_rule_without_an_answer_is_broken(rule: str, said: str) -> None:
    schema = object_schema(low=NUMBER, either={"x-kubernetes-int-or-string": True})
    found = violations(with_rules(schema, rule), {"either": "x"})
    assert found == [f': Invalid value: "object": {said}']


def test_stored_rule_that_does_not_compile_is_reported() -> None:
    (said,) = violations(with_rules(RANGE, "self.nope"), {})
    assert "rule compile error: compilation failed: ERROR: <input>:1:5: undefined field" in said


# ---- changes -------------------------------------------------------------------------------------

FIXED = object_schema(
    size=with_rules(NUMBER, {"rule": "self == oldSelf", "message": "is immutable"})
)


def test_rules_about_changes_need_two_values() -> None:
    assert violations(FIXED, {"size": 1}) == []
    assert violations(FIXED, {"size": 1}, {}) == []
    assert violations(FIXED, {}, {"size": 1}) == []
    assert violations(FIXED, {"size": 1}, {"size": 1}) == []
    assert violations(FIXED, {"size": 2}, {"size": 1}) == [
        'size: Invalid value: "integer": is immutable'
    ]


def test_optional_old_self_may_be_absent() -> None:
    rule = {
        "rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 1",
        "optionalOldSelf": True,
    }
    schema = object_schema(size=with_rules(NUMBER, rule))
    assert violations(schema, {"size": 1}) == []
    assert len(violations(schema, {"size": 2})) == 1
    assert violations(schema, {"size": 2}, {"size": 1}) == []
    assert len(violations(schema, {"size": 1}, {"size": 2})) == 1
    smaller = object_schema(size=with_rules(NUMBER, {**rule, "rule": "self >= oldSelf.orValue(0)"}))
    assert violations(smaller, {"size": 2}) == []


def test_items_are_compared_with_those_of_the_same_key() -> None:
    item = object_schema(name=TEXT, size=with_rules(NUMBER, "self >= oldSelf"))
    schema = object_schema(list=list_schema(item, "map", "name"))
    old = {"list": [{"name": "a", "size": 5}, {"name": "b", "size": 1}]}
    new = {"list": [{"name": "b", "size": 2}, {"name": "a", "size": 4}, {"name": "c", "size": 0}]}
    (said,) = violations(schema, new, old)
    assert said.startswith("list[1].size: ")


def test_what_has_not_changed_is_not_judged_again() -> None:
    small = with_rules(NUMBER, "self < 10")
    schema = object_schema(a=small, b=small, list=list_schema(small))
    old = {"a": 11, "b": 1, "list": [20]}
    assert violations(schema, {"a": 11, "b": 2, "list": [20]}, old) == []
    assert len(violations(schema, {"a": 12, "b": 1, "list": [20]}, old)) == 1
    assert len(violations(schema, {"a": 11, "b": 1, "list": [20, 1]}, old)) == 1


@pytest.mark.parametrize(
    "rule",
    [
        "self.n + 1 == 1",
        "self.l.size() == 1",
        "self.l.all(x, x > 0)",
        "self.n in self.l",
        "self.o.low == 1",
        "size(self.m) == 0",
        "self.t.size() == 0",
        "self.t.startsWith('a')",
        "self.at.getHours() == 0",
        "self.d > duration('1s')",
        "has(self.o.low)",
        "self.l[0] == 1",
        "self.l.sum() == 0",
        "-self.n == 1",
        "self.n > 0",
        "self.l + self.l == []",
    ],
)
def test_null_is_nothing_to_compute_with(rule: str) -> None:
    schema = object_schema(
        n=NUMBER,
        l=list_schema(NUMBER),
        o=RANGE,
        m=map_schema(TEXT),
        t=TEXT,
        at={**TEXT, "format": "date-time"},
        d={**TEXT, "format": "duration"},
    )
    nothing = dict.fromkeys(("n", "l", "o", "m", "t", "at"), None)
    (said,) = violations(with_rules(schema, rule), {**nothing, "d": "what"})
    assert "'no such overload': call arguments did not match" in said
    assert violations(with_rules(schema, "self.n == null && self.l == null"), nothing) == []


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "rule", "value"),
    [
        (
            object_schema(at={**TEXT, "format": "date-time"}),
            "self.at > timestamp('2020-01-01T00:00:00Z')",
            {"at": "2021-01-01T00:00:00Z"},
        ),
        (
            object_schema(at={**TEXT, "format": "date"}),
            "self.at.getFullYear() == 2021",
            {"at": "2021-05-06"},
        ),
        (object_schema(d={**TEXT, "format": "duration"}), "self.d <= duration('1h')", {"d": "30m"}),
        (object_schema(b={**TEXT, "format": "byte"}), "self.b == b'abc'", {"b": "YWJj"}),
        (object_schema(n={"type": "number"}), "self.n * 2.0 == 6.0", {"n": 3}),
        (
            object_schema(n=list_schema({"type": "number"})),
            "self.n.all(x, x < 2.5)",
            {"n": [1, 2.0]},
        ),
        (
            object_schema(m=map_schema({"type": "number"})),
            "self.m.all(k, self.m[k] / 2.0 == 0.5)",
            {"m": {"a": 1}},
        ),
        (object_schema(s=list_schema(TEXT, "set")), "self.s == ['b', 'a']", {"s": ["a", "b"]}),
        (
            object_schema(s=list_schema(TEXT, "set")),
            "(self.s + ['a', 'c']).size() == 3",
            {"s": ["a", "b"]},
        ),
        (object_schema(s=list_schema(TEXT)), "self.s != ['b', 'a']", {"s": ["a", "b"]}),
        (
            object_schema(l=list_schema(object_schema(k=TEXT, v=NUMBER), "map", "k")),
            "self.l + self.l.filter(x, x.k == 'a') == self.l.filter(x, true)",
            {"l": [{"k": "a", "v": 1}, {"k": "b", "v": 1}]},
        ),
        (
            object_schema(e={"x-kubernetes-int-or-string": True}),
            "type(self.e) == int && self.e > 1",
            {"e": 2},
        ),
        (object_schema(e={"x-kubernetes-int-or-string": True}), "self.e == '50%'", {"e": "50%"}),
        (
            object_schema(**dict.fromkeys(("a-b", "c.d", "namespace", "x__y", "p/q"), NUMBER)),
            "self.a__dash__b + self.c__dot__d + self.__namespace__ + self.x__underscores__y"
            " + self.p__slash__q == 5",
            {"a-b": 1, "c.d": 1, "namespace": 1, "x__y": 1, "p/q": 1},
        ),
        (
            map_schema(object_schema(n=NUMBER)),
            "self.all(k, k.startsWith('a') && self[k].n > 0)",
            {"a1": {"n": 1}},
        ),
        (object_schema(a={**NUMBER, "nullable": True}), "self.a == null", {"a": None}),
        (object_schema(a=NUMBER), "!has(self.a) && self.?a.orValue(3) == 3", {}),
        (
            object_schema(a=RANGE, b=RANGE),
            "self.a.low == self.b.low || has(self.a.high)",
            {"a": {"low": 1}, "b": {"low": 1}},
        ),
        (object_schema(t=TEXT), "self.t.matches('^[a-z]+$') && size(self.t) < 5", {"t": "abc"}),
    ],
)
def test_values_have_the_types_of_their_schema(schema: Object, rule: str, value: Any) -> None:
    assert violations(with_rules(schema, rule), value) == []


def test_an_object_has_a_name_and_a_kind() -> None:
    judge = compile_validator(
        with_rules(RANGE, "self.metadata.name == 'x' && self.kind == 'K'"), root=True
    )
    assert judge
    obj = {"metadata": {"name": "x"}, "kind": "K", "apiVersion": "v1"}
    assert judge.validate(obj, CREATED) == []


def test_no_object_takes_more_steps_than_it_may() -> None:
    rule = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    schema = object_schema(a=with_rules(list_schema(NUMBER), rule, "false"))
    (said,) = violations(schema, {"a": list(range(200))})
    assert said == (
        "a: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further"
        f" validation rules will be run due to call cost exceeds limit for rule: {rule}"
    )


def test_the_rules_of_an_object_share_their_steps() -> None:
    often = [f"self.all(a, self.all(b, a + b >= {-n}))" for n in range(20)]
    value = list(range(300))
    found = violations(with_rules(list_schema(NUMBER), *often), value)
    assert MAX_OBJECT_COST < 20 * 300 * 300 * 4
    assert found == [
        ': Invalid value: "array": validation failed due to running out of cost budget, no further'
        " validation rules will be run"
    ]


def test_rules_that_end_without_an_answer_take_their_steps_too() -> None:
    rule = "self.all(a, self.all(b, a + b >= 0)) && 1 / 0 == 1"
    found = violations(list_schema(with_rules(list_schema(NUMBER), rule)), [list(range(200))] * 20)
    assert found[-1].endswith("running out of cost budget, no further validation rules will be run")
    assert len(found) < 20
