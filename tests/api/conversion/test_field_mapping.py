"""Field mappings: renamed, moved, converted and unmapped fields."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.conversion.field_mapping import (
    FieldMapping,
    MappedField,
    UnmappedField,
    fingerprint,
    message_in_version,
    path_in_version,
    to_stored,
    to_version,
)
from phalanx.api.wire import Object

ITEM: FieldMapping = {"size": MappedField("length"), "taste": UnmappedField(depends_on=("colour",))}
FORM: FieldMapping = {
    "old": MappedField("new"),
    "deep": MappedField("outer.inner", {"a": MappedField("b")}),
    "word": MappedField("word", values=(({"yes": {}}, "Yes"),)),
    "items": MappedField("things", ITEM),
    "secret": UnmappedField(depends_on=("old",), default="none"),
}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({"old": 1, "same": [2]}, {"new": 1, "same": [2]}),
        ({"deep": {"a": 1, "c": 2}}, {"outer": {"inner": {"b": 1, "c": 2}}}),
        ({"word": {"yes": {}}}, {"word": "Yes"}),
        ({"word": {"no": {}}}, {"word": {"no": {}}}),
        ({"items": [{"size": 1}, {"size": 2}]}, {"things": [{"length": 1}, {"length": 2}]}),
        ({"items": []}, {"things": []}),
        ({}, {}),
    ],
)
def test_mapped_fields_are_converted_and_back(stored: Object, shown: Object) -> None:
    assert to_version(FORM, stored) == (shown, {})
    assert to_stored(FORM, shown, {}) == stored


def test_unmapped_values_are_returned_by_path() -> None:
    items = [{"name": "x", "colour": "red", "taste": "sweet"}, {"name": "y"}]
    stored = {"old": 1, "secret": "s", "items": items}
    shown, left = to_version(FORM, stored)
    assert shown == {"new": 1, "things": [{"name": "x", "colour": "red"}, {"name": "y"}]}
    assert left == {
        "secret": ("s", fingerprint({"old": 1}, ["old"])),
        "items[x].taste": ("sweet", fingerprint({"colour": "red"}, ["colour"])),
    }
    assert to_stored(FORM, shown, left) == stored


def test_default_of_an_unmapped_field_is_not_kept() -> None:
    assert to_version(FORM, {"secret": "none"}) == ({}, {})


def test_unmapped_value_is_dropped_when_a_field_that_it_depends_on_changes() -> None:
    shown, left = to_version(FORM, {"old": 1, "secret": "s"})
    assert to_stored(FORM, {**shown, "same": 1}, left) == {"old": 1, "secret": "s", "same": 1}
    assert to_stored(FORM, {"new": 2}, left) == {"old": 2}
    assert to_stored(FORM, {}, left) == {}


def test_arguments_are_not_changed() -> None:
    stored: dict[str, Any] = {"deep": {"a": 1}, "items": [{"name": "x", "taste": "sweet"}]}
    shown, left = to_version(FORM, stored)
    assert stored == {"deep": {"a": 1}, "items": [{"name": "x", "taste": "sweet"}]}
    to_stored(FORM, shown, left)
    assert shown == {"outer": {"inner": {"b": 1}}, "things": [{"name": "x"}]}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("old", "new"),
        ("deep.a", "outer.inner.b"),
        ("deep", "outer.inner"),
        ("word.yes", "word"),
        ("items[3].size", "things[3].length"),
        ('.items[name="x"].size.more', '.things[name="x"].length.more'),
        ("items[0].taste", "things[0].taste"),
        ("secret", "secret"),
        ("elsewhere[0].old", "elsewhere[0].old"),
        ("", ""),
        ("[0]", "[0]"),
    ],
)
def test_path_is_converted(stored: str, shown: str) -> None:
    assert path_in_version(FORM, stored) == shown


@pytest.mark.parametrize(
    ("path", "stored", "shown"),
    [
        ("", "one of: `old`, `secret`, `same`", "one of: `new`, `same`"),
        ("", "`secret`, `old` or none", "`new` or none"),
        ("", "old and `no name of one`", "old and `no name of one`"),
        ("items[3]", "`size` or `taste`", "`length` or `taste`"),
        (".deep", "`a`", "`b`"),
        ("deep.a", "`a`", "`a`"),
        ("elsewhere", "`old`", "`old`"),
        ("secret", "`old`", "`old`"),
    ],
)
def test_message_has_the_field_names_of_the_version(path: str, stored: str, shown: str) -> None:
    assert message_in_version(FORM, path, stored) == shown
