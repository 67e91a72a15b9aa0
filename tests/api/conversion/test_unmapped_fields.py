"""Leftovers: what travels in an annotation, and what becomes of one that nobody can read."""

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
def test_leftovers_come_off_as_they_were_put_on(annotations: Object) -> None:
    obj: Object = {"metadata": {"name": "n", **annotations}, "spec": {}}
    carrying = attach_unmapped(obj, LEFT)
    assert list(carrying["metadata"]["annotations"])[-1] == UNMAPPED_ANNOTATION
    assert detach_unmapped(carrying) == (obj, LEFT)
    assert UNMAPPED_ANNOTATION not in obj["metadata"].get("annotations", {})


def test_nothing_is_put_on_where_nothing_is_left_over() -> None:
    obj: Object = {"metadata": {"name": "n"}}
    assert attach_unmapped(obj, {}) is obj
    assert detach_unmapped(obj) == (obj, {})
    assert detach_unmapped({}) == ({}, {})


def test_leftovers_are_handed_on_to_a_replacement_that_brings_none() -> None:
    old: Object = {"metadata": {"name": "n"}}
    served = attach_unmapped(old, LEFT)
    for new in ({"metadata": {"name": "m"}}, {"metadata": {"annotations": {"a": "b"}}}):
        assert detach_unmapped(carry_over_unmapped(served, new)) == (new, LEFT)


def test_whoever_brings_leftovers_or_leaves_none_is_taken_at_his_word() -> None:
    old: Object = {"metadata": {"name": "n"}}
    own: Object = {"metadata": {"annotations": {UNMAPPED_ANNOTATION: "{}"}}}
    assert carry_over_unmapped(attach_unmapped(old, LEFT), own) is own
    assert carry_over_unmapped(old, {"metadata": {"name": "m"}}) == {"metadata": {"name": "m"}}


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "7", "null", '{"spec.a":"b"}', '{"spec.a":["b"]}', "[" * 2000]
)
def test_an_annotation_that_cannot_be_read_says_nothing(text: str) -> None:
    assert detach_unmapped({"metadata": {"annotations": {UNMAPPED_ANNOTATION: text}}}) == (
        {"metadata": {}},
        {},
    )


def test_a_fingerprint_is_of_what_is_said_and_not_of_how() -> None:
    one = fingerprint({"a": {"x": 1, "y": 2}, "b": 3}, ("a", "b"))
    assert one == fingerprint({"b": 3, "a": {"y": 2, "x": 1}, "c": 4}, ("a", "b"))
    assert one != fingerprint({"a": {"x": 1, "y": 2}}, ("a", "b"))
    assert fingerprint({}, ("a",)) == fingerprint({"a": None}, ("a",))
