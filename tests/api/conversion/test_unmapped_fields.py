"""Unmapped values in the annotation of served objects."""

from __future__ import annotations

import pytest

from phalanx.api.conversion.field_mapping import (
    UNMAPPED_ANNOTATION,
    attach_unmapped,
    carry_over_unmapped,
    detach_unmapped,
    fingerprint,
)
from phalanx.api.wire import Object

LEFT = {"spec.a": ({"b": [1]}, "f"), "spec.c": ("d", "0")}


@pytest.mark.parametrize("annotations", [{}, {"annotations": {"other": "x"}}])
def test_detaching_reverses_attaching(annotations: Object) -> None:
    obj: Object = {"metadata": {"name": "n", **annotations}, "spec": {}}
    carrying = attach_unmapped(obj, LEFT)
    assert list(carrying["metadata"]["annotations"])[-1] == UNMAPPED_ANNOTATION
    assert detach_unmapped(carrying) == (obj, LEFT)
    assert UNMAPPED_ANNOTATION not in obj["metadata"].get("annotations", {})


def test_nothing_is_attached_without_unmapped_values() -> None:
    obj: Object = {"metadata": {"name": "n"}}
    assert attach_unmapped(obj, {}) is obj
    assert detach_unmapped(obj) == (obj, {})
    assert detach_unmapped({}) == ({}, {})


def test_unmapped_values_are_carried_over_to_a_replacement() -> None:
    old: Object = {"metadata": {"name": "n"}}
    served = attach_unmapped(old, LEFT)
    for new in ({"metadata": {"name": "m"}}, {"metadata": {"annotations": {"a": "b"}}}):
        assert detach_unmapped(carry_over_unmapped(served, new)) == (new, LEFT)


def test_replacement_with_own_annotation_keeps_it() -> None:
    old: Object = {"metadata": {"name": "n"}}
    own: Object = {"metadata": {"annotations": {UNMAPPED_ANNOTATION: "{}"}}}
    assert carry_over_unmapped(attach_unmapped(old, LEFT), own) is own
    assert carry_over_unmapped(old, {"metadata": {"name": "m"}}) == {"metadata": {"name": "m"}}


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "7", "null", '{"spec.a":"b"}', '{"spec.a":["b"]}', "[" * 2000]
)
def test_malformed_annotation_is_ignored(text: str) -> None:
    assert detach_unmapped({"metadata": {"annotations": {UNMAPPED_ANNOTATION: text}}}) == (
        {"metadata": {}},
        {},
    )


def test_fingerprint_depends_on_values_and_not_on_key_order() -> None:
    one = fingerprint({"a": {"x": 1, "y": 2}, "b": 3}, ("a", "b"))
    assert one == fingerprint({"b": 3, "a": {"y": 2, "x": 1}, "c": 4}, ("a", "b"))
    assert one != fingerprint({"a": {"x": 1, "y": 2}}, ("a", "b"))
    assert fingerprint({}, ("a",)) == fingerprint({"a": None}, ("a",))
