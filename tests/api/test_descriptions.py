"""Descriptions for `kubectl explain`: all served fields have one, and no others."""

from __future__ import annotations

from collections import defaultdict
from importlib import resources

import orjson
import pytest

from phalanx.api.definitions import (
    TYPE_META_DESCRIPTIONS,
    definition,
    field_descriptions,
    load_glossary,
)
from phalanx.api.kinds import KINDS
from phalanx.api.openapi import openapi_schema, references

DATA = resources.files("phalanx.api")
GROUPS = sorted(path.name.removesuffix(".txt") for path in (DATA / "glossary").iterdir())
#: The definitions of served kinds, and of the lists of custom resources.
ROOTS = (*(kind.schema for kind in KINDS), "meta.v1.ListMeta")
SERVED = sorted({name for root in ROOTS for name in references(root)})
#: Every description with the type or field that it belongs to.
SENTENCES = [
    (field or own, text)
    for group in GROUPS
    for own, fields in load_glossary(group).items()
    for field, text in fields.items()
] + list(TYPE_META_DESCRIPTIONS.items())


def existing_fields() -> dict[tuple[str, str], set[str]]:
    """Return the fields of each type, by group and name, in any version."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in (DATA / "schemas").iterdir():
        module = path.name.removesuffix(".json")
        for own in orjson.loads(path.read_bytes())["definitions"]:
            node = definition(f"{module}.{own}")
            found[module.partition(".")[0], own] |= set() if isinstance(node, str) else {*node["p"]}
    return found


def test_every_served_type_and_field_has_a_description() -> None:
    missing = []
    for name in SERVED:
        schema = openapi_schema(name)
        parts = {name: schema} | {
            f"{name}.{key}": part for key, part in schema.get("properties", {}).items()
        }
        missing += [part for part, facts in parts.items() if "description" not in facts]
    assert missing == []


def test_every_description_belongs_to_an_existing_field() -> None:
    known = existing_fields()
    assert [
        f"{group}.{own}.{field}"
        for group in GROUPS
        for own, fields in load_glossary(group).items()
        for field in fields
        if (group, own) not in known or (field and field not in known[group, own])
    ] == []


@pytest.mark.parametrize("group", GROUPS)
def test_glossary_is_sorted_without_duplicates(group: str) -> None:
    found = [(own, field) for own, fields in load_glossary(group).items() for field in fields]
    assert found == sorted(found)
    assert len(found) == len((DATA / "glossary" / f"{group}.txt").read_text("utf-8").splitlines())


def test_each_description_is_one_plain_sentence() -> None:
    assert [
        text
        for _, text in SENTENCES
        if not (text[0].isupper() and text.endswith(".") and 4 <= len(text.split()) <= 20)
        or len(text) > 200
    ] == []


def test_fields_of_different_names_have_different_descriptions() -> None:
    names = defaultdict(set)
    for name, text in SENTENCES:
        names[text].add(name)
    assert {text: sorted(used) for text, used in names.items() if len(used) > 1} == {}


def test_versions_of_a_group_share_descriptions() -> None:
    old, new = (f"scheduling.{version}.PodGroupSpec" for version in ("v1alpha3", "v1beta1"))
    assert field_descriptions(old) is field_descriptions(new)


def test_missing_description_is_not_an_error() -> None:
    assert field_descriptions("autoscaling.v1.Scale") == {}
