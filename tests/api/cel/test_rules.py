from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.cel.rules import STEPS, judge_of
from phalanx.api.rules.checks import CREATED
from phalanx.api.wire import Object
from tests.api.definitions import fields

TEXT: Object = {"type": "string"}
NUMBER: Object = {"type": "integer"}


def ruled(schema: Object, *rules: str | Object) -> Object:
    """A schema with rules."""
    told = [{"rule": rule} if isinstance(rule, str) else rule for rule in rules]
    return {**schema, "x-kubernetes-validations": told}


def listed(items: Object, kind: str = "atomic", *keys: str) -> Object:
    told: Object = {"type": "array", "items": items, "x-kubernetes-list-type": kind}
    return {**told, "x-kubernetes-list-map-keys": list(keys)} if keys else told


def mapped(values: Object) -> Object:
    return {"type": "object", "additionalProperties": values}


def breaches(schema: Object, value: Any, old: Any = CREATED) -> list[str]:
    judge = judge_of(schema)
    assert judge
    return [f"{cause.field}: {cause.message}" for cause in judge.causes(value, old)]


RANGE = fields(low=NUMBER, high=NUMBER)


def test_a_schema_without_rules_has_no_judge() -> None:
    assert judge_of(RANGE) is None


def test_a_breach_names_the_rule_its_place_and_the_type() -> None:
    schema = fields(range=ruled(RANGE, "self.low <= self.high"))
    assert breaches(schema, {"range": {"low": 1, "high": 2}}) == []
    assert breaches(schema, {"range": {"low": 3, "high": 2}}) == [
        'range: Invalid value: "object": failed rule: self.low <= self.high'
    ]


def test_every_value_is_judged_wherever_it_stands() -> None:
    even = ruled(NUMBER, "self % 2 == 0")
    schema = fields(list=listed(even), map=mapped(even), one=even)
    value = {"list": [2, 3, 5], "map": {"a": 1, "b": 2}, "one": 7}
    places = [said.split(":")[0] for said in breaches(schema, value)]
    assert places == ["list[1]", "list[2]", "map[a]", "one"]


def test_what_is_missing_or_null_is_not_judged() -> None:
    schema = fields(a=ruled({**NUMBER, "nullable": True}, "self > 0"))
    assert breaches(schema, {}) == breaches(schema, {"a": None}) == []


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
)  # fmt: skip
def test_a_breach_says_what_the_rule_wants_it_to_say(rule: Object, said: str | None) -> None:
    schema = fields(range=ruled(RANGE, {"rule": "false", **rule}))
    wanted = f"range: {said}" if said else None
    (found,) = breaches(schema, {"range": {"low": 3}})
    assert found == wanted or (wanted is None and "rule compile error" in found)


def test_a_breach_may_be_told_of_a_field() -> None:
    inner = fields(low=NUMBER, labels=mapped(TEXT), **{"a-b": NUMBER})
    rules = [{"rule": "false", "fieldPath": path} for path in (".low", ".labels['x.y']", "['a-b']")]
    schema = fields(range=ruled(inner, *rules))
    value = {"range": {"low": 1}}
    places = [said.split(":")[0] for said in breaches(schema, value)]
    assert places == ["range.low", "range.labels[x.y]", "range.a-b"]
    at_the_root = ruled(inner, {"rule": "false", "fieldPath": ".low"})
    assert breaches(at_the_root, {"low": 1})[0].startswith("low: ")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("self.low > 1", "no such key: low evaluating rule: self.low > 1"),
        ("1 / 0 == 1", "division by zero evaluating rule: 1 / 0 == 1"),
        ("self.either > 1", "'no such overload': call arguments did not match a supported operator,"
         " function or macro signature for rule: self.either > 1"),
    ],
)  # fmt: skip
def test_a_rule_without_an_answer_is_broken(rule: str, said: str) -> None:
    schema = fields(low=NUMBER, either={"x-kubernetes-int-or-string": True})
    found = breaches(ruled(schema, rule), {"either": "x"})
    assert found == [f': Invalid value: "object": {said}']


def test_a_rule_that_was_kept_before_rules_were_looked_at_is_told_of() -> None:
    (said,) = breaches(ruled(RANGE, "self.nope"), {})
    assert "rule compile error: compilation failed: ERROR: <input>:1:5: undefined field" in said


# ---- changes -------------------------------------------------------------------------------------

FIXED = fields(size=ruled(NUMBER, {"rule": "self == oldSelf", "message": "is immutable"}))


def test_rules_about_changes_need_two_values() -> None:
    assert breaches(FIXED, {"size": 1}) == []
    assert breaches(FIXED, {"size": 1}, {}) == []
    assert breaches(FIXED, {}, {"size": 1}) == []
    assert breaches(FIXED, {"size": 1}, {"size": 1}) == []
    assert breaches(FIXED, {"size": 2}, {"size": 1}) == [
        'size: Invalid value: "integer": is immutable'
    ]


def test_a_rule_may_ask_for_what_need_not_have_been_there() -> None:
    rule = {"rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 1",
            "optionalOldSelf": True}  # fmt: skip
    schema = fields(size=ruled(NUMBER, rule))
    assert breaches(schema, {"size": 1}) == []
    assert len(breaches(schema, {"size": 2})) == 1
    assert breaches(schema, {"size": 2}, {"size": 1}) == []
    assert len(breaches(schema, {"size": 1}, {"size": 2})) == 1
    smaller = fields(size=ruled(NUMBER, {**rule, "rule": "self >= oldSelf.orValue(0)"}))
    assert breaches(smaller, {"size": 2}) == []


def test_items_are_compared_with_those_of_the_same_key() -> None:
    item = fields(name=TEXT, size=ruled(NUMBER, "self >= oldSelf"))
    schema = fields(list=listed(item, "map", "name"))
    old = {"list": [{"name": "a", "size": 5}, {"name": "b", "size": 1}]}
    new = {"list": [{"name": "b", "size": 2}, {"name": "a", "size": 4}, {"name": "c", "size": 0}]}
    (said,) = breaches(schema, new, old)
    assert said.startswith("list[1].size: ")


def test_what_has_not_changed_is_not_judged_again() -> None:
    small = ruled(NUMBER, "self < 10")
    schema = fields(a=small, b=small, list=listed(small))
    old = {"a": 11, "b": 1, "list": [20]}
    assert breaches(schema, {"a": 11, "b": 2, "list": [20]}, old) == []
    assert len(breaches(schema, {"a": 12, "b": 1, "list": [20]}, old)) == 1
    assert len(breaches(schema, {"a": 11, "b": 1, "list": [20, 1]}, old)) == 1


@pytest.mark.parametrize("rule", [
    "self.n + 1 == 1", "self.l.size() == 1", "self.l.all(x, x > 0)", "self.n in self.l",
    "self.o.low == 1", "size(self.m) == 0", "self.t.size() == 0", "self.t.startsWith('a')",
    "self.at.getHours() == 0", "self.d > duration('1s')", "has(self.o.low)", "self.l[0] == 1",
    "self.l.sum() == 0", "-self.n == 1", "self.n > 0", "self.l + self.l == []",
])  # fmt: skip
def test_null_is_nothing_to_compute_with(rule: str) -> None:
    schema = fields(
        n=NUMBER, l=listed(NUMBER), o=RANGE, m=mapped(TEXT), t=TEXT,
        at={**TEXT, "format": "date-time"}, d={**TEXT, "format": "duration"},
    )  # fmt: skip
    nothing = dict.fromkeys(("n", "l", "o", "m", "t", "at"), None)
    (said,) = breaches(ruled(schema, rule), {**nothing, "d": "what"})
    assert "'no such overload': call arguments did not match" in said
    assert breaches(ruled(schema, "self.n == null && self.l == null"), nothing) == []


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "rule", "value"),
    [
        (fields(at={**TEXT, "format": "date-time"}), "self.at > timestamp('2020-01-01T00:00:00Z')",
         {"at": "2021-01-01T00:00:00Z"}),
        (fields(at={**TEXT, "format": "date"}), "self.at.getFullYear() == 2021",
         {"at": "2021-05-06"}),
        (fields(d={**TEXT, "format": "duration"}), "self.d <= duration('1h')", {"d": "30m"}),
        (fields(b={**TEXT, "format": "byte"}), "self.b == b'abc'", {"b": "YWJj"}),
        (fields(n={"type": "number"}), "self.n * 2.0 == 6.0", {"n": 3}),
        (fields(n=listed({"type": "number"})), "self.n.all(x, x < 2.5)", {"n": [1, 2.0]}),
        (fields(m=mapped({"type": "number"})), "self.m.all(k, self.m[k] / 2.0 == 0.5)",
         {"m": {"a": 1}}),
        (fields(s=listed(TEXT, "set")), "self.s == ['b', 'a']", {"s": ["a", "b"]}),
        (fields(s=listed(TEXT, "set")), "(self.s + ['a', 'c']).size() == 3", {"s": ["a", "b"]}),
        (fields(s=listed(TEXT)), "self.s != ['b', 'a']", {"s": ["a", "b"]}),
        (fields(l=listed(fields(k=TEXT, v=NUMBER), "map", "k")),
         "self.l + self.l.filter(x, x.k == 'a') == self.l.filter(x, true)",
         {"l": [{"k": "a", "v": 1}, {"k": "b", "v": 1}]}),
        (fields(e={"x-kubernetes-int-or-string": True}), "type(self.e) == int && self.e > 1",
         {"e": 2}),
        (fields(e={"x-kubernetes-int-or-string": True}), "self.e == '50%'", {"e": "50%"}),
        (fields(**dict.fromkeys(("a-b", "c.d", "namespace", "x__y", "p/q"), NUMBER)),
         "self.a__dash__b + self.c__dot__d + self.__namespace__ + self.x__underscores__y"
         " + self.p__slash__q == 5",
         {"a-b": 1, "c.d": 1, "namespace": 1, "x__y": 1, "p/q": 1}),
        (mapped(fields(n=NUMBER)), "self.all(k, k.startsWith('a') && self[k].n > 0)",
         {"a1": {"n": 1}}),
        (fields(a={**NUMBER, "nullable": True}), "self.a == null", {"a": None}),
        (fields(a=NUMBER), "!has(self.a) && self.?a.orValue(3) == 3", {}),
        (fields(a=RANGE, b=RANGE), "self.a.low == self.b.low || has(self.a.high)",
         {"a": {"low": 1}, "b": {"low": 1}}),
        (fields(t=TEXT), "self.t.matches('^[a-z]+$') && size(self.t) < 5", {"t": "abc"}),
    ],
)  # fmt: skip
def test_values_are_what_their_schema_says(schema: Object, rule: str, value: Any) -> None:
    assert breaches(ruled(schema, rule), value) == []


def test_an_object_has_a_name_and_a_kind() -> None:
    judge = judge_of(ruled(RANGE, "self.metadata.name == 'x' && self.kind == 'K'"), root=True)
    assert judge
    obj = {"metadata": {"name": "x"}, "kind": "K", "apiVersion": "v1"}
    assert judge.causes(obj, CREATED) == []


def test_no_object_takes_more_steps_than_it_may() -> None:
    rule = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    schema = fields(a=ruled(listed(NUMBER), rule, "false"))
    (said,) = breaches(schema, {"a": list(range(200))})
    assert said == (
        "a: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further"
        f" validation rules will be run due to call cost exceeds limit for rule: {rule}"
    )


def test_the_rules_of_an_object_share_their_steps() -> None:
    often = [f"self.all(a, self.all(b, a + b >= {-n}))" for n in range(20)]
    value = list(range(300))
    found = breaches(ruled(listed(NUMBER), *often), value)
    assert STEPS < 20 * 300 * 300 * 4
    assert found == [
        ': Invalid value: "array": validation failed due to running out of cost budget, no further'
        " validation rules will be run"
    ]


def test_rules_that_end_without_an_answer_take_their_steps_too() -> None:
    rule = "self.all(a, self.all(b, a + b >= 0)) && 1 / 0 == 1"
    found = breaches(listed(ruled(listed(NUMBER), rule)), [list(range(200))] * 20)
    assert found[-1].endswith("running out of cost budget, no further validation rules will be run")
    assert len(found) < 20
