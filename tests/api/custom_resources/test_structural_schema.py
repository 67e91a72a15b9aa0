from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from phalanx.api.custom_resources.compiled_schemas import share_schema
from phalanx.api.custom_resources.structural_schema import CustomResourceStrategy
from phalanx.api.kinds import Kind
from phalanx.api.normalization import Malformed, NormalizationResult
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import WIDGET, object_schema, resource_schema

KIND = Kind("example.com", "v1", "Widget", "widgets", "com.example.v1.Widget")
TEXT: Object = {"type": "string"}
NUMBER: Object = {"type": "integer"}
KEEPS: Object = {"x-kubernetes-preserve-unknown-fields": True}


def strategy(schema: Object = WIDGET, *, has_status: bool = False) -> CustomResourceStrategy:
    return CustomResourceStrategy(KIND, share_schema(schema), has_status=has_status)


def make_widget(spec: Any = None, **more: Any) -> Object:
    made: Object = {"metadata": {"name": "w", "namespace": "default"}, **more}
    return made if spec is None else {**made, "spec": spec}


def normalize_spec(schema: Object, spec: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a pruned spec, and its unknown fields."""
    obj = make_widget(deepcopy(spec))
    found = strategy(schema).normalize(obj)
    return obj.get("spec"), found.unknown_fields


def find_causes(schema: Object, spec: Any, old: Any = None) -> list[tuple[str, str]]:
    before = None if old is None else make_widget(old)
    return [
        (one.field, one.reason) for one in strategy(schema).validate(make_widget(spec), before, "")
    ]


# ---- what is kept --------------------------------------------------------------------------------


def test_unknown_fields_are_pruned_and_reported() -> None:
    obj = make_widget({"size": 1, "nope": {"a": 1}}, extra=[1], status={"phase": "x", "y": 1})
    obj["metadata"]["strange"] = "z"
    found = strategy().normalize(obj)
    assert obj == make_widget({"size": 1}, status={"phase": "x"})
    assert found.unknown_fields == ("metadata.strange", "extra", "status.y", "spec.nope")


def test_all_keys_are_counted_known_or_not() -> None:
    found = strategy().normalize(make_widget({"size": 1, "nope": [{"a": 1}, {"b": {"c": 1}}]}))
    assert found == NormalizationResult(("spec.nope",))


@pytest.mark.parametrize(
    ("schema", "spec", "left", "unknown"),
    [
        (
            resource_schema(a={"type": "array", "items": object_schema(b=TEXT)}),
            {"a": [{"b": "x"}, {"c": 1}]},
            {"a": [{"b": "x"}, {}]},
            ("spec.a[1].c",),
        ),
        (
            resource_schema(a={"type": "object", "additionalProperties": object_schema(b=TEXT)}),
            {"a": {"k": {"b": "x", "c": 1}}},
            {"a": {"k": {"b": "x"}}},
            ("spec.a.k.c",),
        ),
        (
            resource_schema(a={"type": "object", "additionalProperties": True}),
            {"a": {"k": 1, "l": {"m": 2}}},
            {"a": {"k": 1, "l": {}}},
            ("spec.a.l.m",),
        ),
        (
            resource_schema(a={"type": "object", **KEEPS}),
            {"a": {"k": {"l": [1, {"m": 2}]}}},
            {"a": {"k": {"l": [1, {"m": 2}]}}},
            (),
        ),
        (
            resource_schema(a={**object_schema(b=object_schema(c=TEXT)), **KEEPS}),
            {"a": {"x": 1, "b": {"c": "y", "d": 1}}},
            {"a": {"x": 1, "b": {"c": "y"}}},
            ("spec.a.b.d",),
        ),
        (resource_schema(a=KEEPS), {"a": [{"x": 1}]}, {"a": [{"x": 1}]}, ()),
        (resource_schema(a=TEXT), {"a": {"x": 1}}, {"a": {}}, ("spec.a.x",)),
    ],
    ids=["items", "values", "free values", "kept", "kept beside known", "anything", "no object"],
)
def test_pruning_keeps_the_fields_of_the_schema(
    schema: Object, spec: Object, left: Object, unknown: tuple[str, ...]
) -> None:
    assert normalize_spec(schema, spec) == (left, unknown)


def test_null_is_kept_only_where_nullable() -> None:
    schema = resource_schema(
        a=TEXT, b={**TEXT, "nullable": True}, c={"type": "array", "items": TEXT},
        d={"type": "object", "additionalProperties": TEXT}, e={"type": "object", **KEEPS},
    )  # fmt: skip
    spec = {"a": None, "b": None, "c": [None], "d": {"x": None, "y": "z"}, "e": {"x": None}}
    left = {"b": None, "c": [None], "d": {"y": "z"}, "e": {"x": None}}
    assert normalize_spec(schema, spec) == (left, ())
    assert normalize_spec(resource_schema(a=TEXT), None) == (None, ())


@pytest.mark.parametrize("metadata", ["x", {"labels": {"a": 1}}, {"name": 1}])
def test_metadata_of_a_wrong_type_is_malformed(metadata: object) -> None:
    with pytest.raises(Malformed) as refused:
        strategy().normalize({"metadata": metadata})
    assert refused.value.path.startswith("metadata")


def test_embedded_object_has_its_own_metadata() -> None:
    schema = resource_schema(
        template={"type": "object", "x-kubernetes-embedded-resource": True, **KEEPS}
    )
    inner = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "odd": 1}, "spec": {}}
    left, unknown = normalize_spec(schema, {"template": inner})
    assert left["template"]["metadata"] == {"name": "p"}
    assert unknown == ("spec.template.metadata.odd",)
    assert find_causes(schema, {"template": {"metadata": {}}}) == [
        ("spec.template.apiVersion", "FieldValueRequired"),
        ("spec.template.kind", "FieldValueRequired"),
    ]


# ---- what is added -------------------------------------------------------------------------------


def apply_spec_defaults(schema: Object, spec: Any) -> Any:
    obj = make_widget(deepcopy(spec))
    judge = strategy(schema)
    judge.normalize(obj)
    judge.apply_defaults(obj)
    return obj.get("spec")


def test_defaults_apply_to_fields_items_and_values() -> None:
    deep = object_schema(x={**NUMBER, "default": 1})
    schema = resource_schema(
        a={**deep, "default": {}}, b={"type": "array", "items": deep},
        c={"type": "object", "additionalProperties": deep}, d={**TEXT, "default": ""},
    )  # fmt: skip
    spec = {"b": [{}, {"x": 2}], "c": {"k": {}}}
    assert apply_spec_defaults(schema, spec) == {
        "a": {"x": 1}, "b": [{"x": 1}, {"x": 2}], "c": {"k": {"x": 1}}, "d": "",
    }  # fmt: skip


def test_default_replaces_null() -> None:
    listed = {"type": "array", "items": {**TEXT, "default": "x"}}
    schema = resource_schema(
        a={**TEXT, "default": "x"}, b={**TEXT, "default": "x", "nullable": True}, c=listed
    )
    assert apply_spec_defaults(schema, {"a": None, "b": None, "c": [None, "y"]}) == {
        "a": "x", "b": None, "c": ["x", "y"],
    }  # fmt: skip


def test_defaults_are_not_shared_between_objects() -> None:
    schema = resource_schema(a={"type": "array", "items": NUMBER, "default": [1]})
    judge, first, second = strategy(schema), make_widget({}), make_widget({})
    judge.apply_defaults(first)
    judge.apply_defaults(second)
    first["spec"]["a"].append(2)
    assert second["spec"]["a"] == [1]


@pytest.mark.parametrize("spec", ["text", 7, [1], {"tags": "x"}, {"size": {}}])
def test_defaulting_skips_values_of_another_type(spec: object) -> None:
    obj = make_widget(spec)
    judge = strategy()
    judge.normalize(obj)
    judge.apply_defaults(obj)
    assert judge.validate(obj, None, "")


# ---- how it begins -------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_status", "left"), [(True, None), (False, {"phase": "x"})])
def test_status_subresource_is_cleared_on_create(has_status: bool, left: Object | None) -> None:
    obj = make_widget({"size": 1}, status={"phase": "x"})
    strategy(has_status=has_status).prepare_for_create(obj, "2026-01-01T00:00:00Z")
    assert obj.get("status") == left


def test_status_update_validates_the_status_only() -> None:
    judge = strategy(has_status=True)
    old = make_widget({"size": 99}, status={"phase": "x"})
    assert judge.validate(make_widget({"size": 99}, status={"phase": "y"}), old, "status") == ()
    assert judge.validate(make_widget({"size": 99}), old, "status") == ()
    found = judge.validate(make_widget({"size": 99}, status={"phase": 1}), old, "status")
    assert [(one.field, one.reason) for one in found] == [("status.phase", "FieldValueTypeInvalid")]


# ---- what is wrong -------------------------------------------------------------------------------


def test_errors_have_the_messages_of_kubernetes() -> None:
    found = strategy().validate(
        make_widget({"size": 0, "colour": "green", "tags": ["a", "b", "c"]}), None, ""
    )
    assert [str(one) for one in found] == [
        'spec.colour: Unsupported value: "green": supported values: "red", "blue"',
        "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        "spec.tags: Too many: 3: must have at most 2 items",
    ]
    (mistyped,) = strategy().validate(make_widget({"size": "big"}), None, "")
    assert str(mistyped) == (
        'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"'
    )
    (missing,) = strategy().validate(make_widget(), None, "")
    assert str(missing) == "spec: Required value"


def test_metadata_is_validated_as_everywhere_and_by_the_schema() -> None:
    named = {**TEXT, "maxLength": 3}
    schema = object_schema(metadata=object_schema(name=named))
    obj = {"metadata": {"name": "Long", "namespace": "default"}}
    found = strategy(schema).validate(obj, None, "")
    assert [(one.field, one.reason) for one in found] == [
        ("metadata.name", "FieldValueInvalid"),
        ("metadata.name", "FieldValueTooLong"),
    ]


def test_schema_sees_api_version_and_kind_of_the_root() -> None:
    assert find_causes({"type": "object", "required": ["apiVersion", "kind", "metadata"]}, {}) == []


def test_unchanged_values_are_not_validated_again() -> None:
    schema = resource_schema(
        a={**NUMBER, "minimum": 5}, b={"type": "array", "items": {**NUMBER, "minimum": 5}}
    )
    old = {"a": 1, "b": [1]}
    assert find_causes(schema, {"a": 1, "b": [1]}, old) == []
    assert find_causes(schema, {"a": 2, "b": [1]}, old) == [("spec.a", "FieldValueInvalid")]
    assert find_causes(schema, {"a": 1, "b": [1, 6]}, old) == [("spec.b[0]", "FieldValueInvalid")]
    assert find_causes(schema, {"a": True, "b": [1]}, old) == [("spec.a", "FieldValueTypeInvalid")]


# ---- its shape -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, True),
        (None, True),
        ("x", False),
        ({"list": None, "map": {}}, True),
        ({"list": {}}, False),
        ({"list": [{"a": 1}]}, True),
        ({"list": ["x"]}, False),
        ({"list": [None]}, False),
        ({"map": {"k": []}}, False),
        ({"text": {"not": "judged"}}, True),
    ],
)
def test_object_of_another_structure_does_not_match(spec: object, fits: bool) -> None:
    listed = {"type": "array", "items": object_schema(a=NUMBER), "x-kubernetes-list-type": "map"}
    schema = resource_schema(
        list={**listed, "x-kubernetes-list-map-keys": ["a"]}, text=TEXT,
        map={"type": "object", "additionalProperties": object_schema(a=NUMBER)},
    )  # fmt: skip
    assert strategy(schema).matches_structure(make_widget(spec)) is fits


RULED = {**NUMBER, "x-kubernetes-validations": [{"rule": "self >= oldSelf || self > 5"}]}


def test_cel_rules_are_evaluated_after_the_schema() -> None:
    schema = resource_schema(a=RULED, b=TEXT)
    assert find_causes(schema, {"a": 1}, {"a": 2}) == [("spec.a", "FieldValueInvalid")]
    assert find_causes(schema, {"a": 6}, {"a": 7}) == find_causes(schema, {"a": 1}) == []
    assert find_causes(schema, {"a": 1, "b": 1}, {"a": 2}) == [
        ("spec.b", "FieldValueTypeInvalid"), ("<nil>", "FieldValueInvalid"),
    ]  # fmt: skip


def test_cel_rules_are_evaluated_for_status_updates() -> None:
    schema = {**resource_schema(), "properties": {"status": object_schema(a=RULED)}}
    new, old = make_widget(status={"a": 1}), make_widget(status={"a": 2})
    (cause,) = strategy(schema).validate(new, old, "status")
    assert cause.field == "status.a"
