"""The table of aliases."""

from __future__ import annotations

import pytest

from phalanx.api.conversion.aliases import ALIASES, FieldAlias
from phalanx.api.openapi import openapi_schema
from phalanx.api.schema import ITEM, schema

IDS = [f"{alias.struct} {alias.path}" for alias in ALIASES]


@pytest.mark.parametrize("alias", ALIASES, ids=IDS)
def test_every_alias_names_a_stored_field_and_is_not_one_itself(alias: FieldAlias) -> None:
    found = schema(alias.struct)
    for step in alias.parent_path:
        inner = found.items if step == ITEM else found.field(step)
        assert inner is not None, step
        found = inner
    assert alias.stored_name in found.fields
    assert alias.name not in found.fields


def test_no_alias_is_ambiguous() -> None:
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("alias", ALIASES, ids=IDS)
def test_openapi_lists_aliases_as_deprecated(alias: FieldAlias) -> None:
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
def test_openapi_describes_the_fields_of_converted_aliases(alias: FieldAlias) -> None:
    fields = openapi_schema(alias.struct)["properties"][alias.name]["properties"]
    assert {key: field["description"] for key, field in fields.items()} == alias.text_fields
    assert all(alias.text_fields.values())


def test_alias_in_a_list_is_listed_in_that_list_only() -> None:
    assert "level" not in openapi_schema("scheduling.v1alpha3.TopologyConstraint")["properties"]
