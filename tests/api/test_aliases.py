"""The table of other names."""

from __future__ import annotations

import pytest

from phalanx.api.aliases import ALIASES, Alias
from phalanx.api.openapi import openapi
from phalanx.api.schema import schema
from phalanx.api.sites import ITEM

IDS = [f"{alias.struct} {alias.path}" for alias in ALIASES]


@pytest.mark.parametrize("alias", ALIASES, ids=IDS)
def test_every_other_name_stands_for_a_field_and_is_none_itself(alias: Alias) -> None:
    found = schema(alias.struct)
    for step in alias.way:
        inner = found.items if step == ITEM else found.field(step)
        assert inner is not None, step
        found = inner
    assert alias.stands_for in found.fields
    assert alias.name not in found.fields


def test_no_name_stands_for_two_fields() -> None:
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize(
    "alias",
    [alias for alias in ALIASES if not alias.way],
    ids=lambda alias: f"{alias.struct} {alias.path}",
)
def test_clients_are_told_of_other_names_and_that_they_are_old(alias: Alias) -> None:
    fields = openapi(alias.struct)["properties"]
    assert fields[alias.name]["deprecated"] is True
    assert alias.stands_for in fields[alias.name]["description"]
    if alias.turn is None:
        own = {"description": "", "deprecated": True}
        assert {**fields[alias.name], **own} == {**fields[alias.stands_for], **own}
