"""Which controllers run where, by what is asked for and what a server has."""

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

ALL = [row.name for row in CONTROLLERS]


@pytest.mark.parametrize(
    ("words", "is_foreign", "wanted"),
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
def test_the_usual_ones_run_and_those_that_are_named(
    words: list[str], is_foreign: bool, wanted: list[str]
) -> None:
    assert [row.name for row in ControllerSelection(words).select(is_foreign=is_foreign)] == wanted


@pytest.mark.parametrize("word", ["nonsense", "-nonsense"])
def test_a_controller_that_there_is_not_is_refused_with_those_that_there_are(word: str) -> None:
    with pytest.raises(
        UnknownController, match=r"'nonsense' is no controller; there are .*garbage"
    ):
        ControllerSelection(["*", word])


def test_names_are_of_one_controller_each() -> None:
    names = [name for row in CONTROLLERS for name in (row.name, *row.aliases)]
    assert len(set(names)) == len(names)


def test_what_every_controller_needs_is_served_by_a_server_of_ours() -> None:
    assert [row.name for row in CONTROLLERS if missing_kinds(STORED_KINDS, row)] == []
    without = [kind for kind in STORED_KINDS if kind is not POD_GROUP]
    assert [row.name for row in CONTROLLERS if missing_kinds(without, row)] == [
        "podgroup-protection", "composite-groups", "replica-groups",
    ]  # fmt: skip
