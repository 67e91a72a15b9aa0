"""Which controllers are selected, and which kinds they require."""

from __future__ import annotations

import pytest

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.kinds import POD_GROUP
from phalanx.controllers.registry import (
    CONTROLLERS,
    ControllerSelection,
    UnknownController,
    missing_kinds,
)

ALL = [row.name for row in CONTROLLERS if row.runs_on_phalanx]


@pytest.mark.parametrize(
    ("words", "is_foreign", "selected"),
    [
        (["*"], False, ALL),
        (["*"], True, ["job"]),
        (["*", "-garbage"], False, [name for name in ALL if name != "garbage"]),
        (["job", "cronjob"], False, ["job", "cronjob"]),
        (["*", "garbage"], True, ["job", "garbage"]),
        (["-job", "*", "job"], True, []),
        (["garbage-collector-controller"], True, ["garbage"]),
        (["-garbage"], False, []),
    ],
)
def test_selection_contains_the_defaults_and_the_named_controllers(
    words: list[str], is_foreign: bool, selected: list[str]
) -> None:
    rows = ControllerSelection(words).select(is_foreign=is_foreign)
    assert [row.name for row in rows] == selected


@pytest.mark.parametrize("word", ["nonsense", "-nonsense"])
def test_an_unknown_controller_is_an_error_that_lists_the_available_ones(word: str) -> None:
    with pytest.raises(
        UnknownController, match=r'unknown controller "nonsense"; available: .*garbage'
    ):
        ControllerSelection(["*", word])


def test_names_and_aliases_are_unique() -> None:
    names = [name for row in CONTROLLERS for name in (row.name, *row.aliases)]
    assert len(set(names)) == len(names)


def test_a_phalanx_server_serves_the_kinds_of_every_controller() -> None:
    assert [row.name for row in CONTROLLERS if missing_kinds(STORED_KINDS, row)] == []
    without = [kind for kind in STORED_KINDS if kind is not POD_GROUP]
    assert [row.name for row in CONTROLLERS if missing_kinds(without, row)] == [
        "podgroup-protection", "composite-groups", "job-groups", "replica-groups",
    ]  # fmt: skip
