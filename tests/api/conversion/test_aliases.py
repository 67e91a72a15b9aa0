"""The table of other names."""

from __future__ import annotations

import pytest

from phalanx.api.conversion.aliases import ALIASES, FieldAlias
from phalanx.api.field_tree import ITEM
from phalanx.api.openapi import openapi_schema
from phalanx.api.schema import schema

IDS = [f"{alias.struct} {alias.path}" for alias in ALIASES]


@pytest.mark.parametrize("alias", ALIASES, ids=IDS)
def test_every_other_name_stands_for_a_field_and_is_none_itself(alias: FieldAlias) -> None:
    found = schema(alias.struct)
    for step in alias.parent_path:
        inner = found.items if step == ITEM else found.field(step)
        assert inner is not None, step
        found = inner
    assert alias.stored_name in found.fields
    assert alias.name not in found.fields


def test_no_name_stands_for_two_fields() -> None:
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("alias", ALIASES, ids=IDS)
def test_clients_are_told_of_other_names_and_that_they_are_old(alias: FieldAlias) -> None:
    shown = openapi_schema(alias.struct)
    for step in alias.parent_path:
        shown = shown["items"] if step == ITEM else shown["properties"][step]
    fields = shown["properties"]
    assert fields[alias.name]["deprecated"] is True
    assert alias.stored_name in fields[alias.name]["description"]
    if alias.convert is None:
        own = {"description": "", "deprecated": True}
        assert {**fields[alias.name], **own} == {**fields[alias.stored_name], **own}


@pytest.mark.parametrize("alias", [alias for alias in ALIASES if alias.text_fields])
def test_clients_are_told_what_each_field_of_another_form_says(alias: FieldAlias) -> None:
    fields = openapi_schema(alias.struct)["properties"][alias.name]["properties"]
    assert {key: field["description"] for key, field in fields.items()} == alias.text_fields
    assert all(alias.text_fields.values())


def test_a_name_that_belongs_to_one_list_is_not_told_of_elsewhere() -> None:
    assert "level" not in openapi_schema("scheduling.v1alpha3.TopologyConstraint")["properties"]
