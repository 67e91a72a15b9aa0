"""Strict decoding: what is wrong with a file, and where."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from phalanx.scheduler.configuration.scheduler_configuration import decode_strictly, drop_nulls
from phalanx.scheduler.plugins.arguments import Int32


class Leaf(Struct, forbid_unknown_fields=True, rename="camel"):
    how_many: Int32 = 0
    name: str = ""


class Root(Struct, forbid_unknown_fields=True):
    leaves: tuple[Leaf, ...] = ()
    on: bool = False
    load: float = 0.0
    perhaps: int | None = None


def test_matching_value_becomes_a_struct() -> None:
    assert decode_strictly({"leaves": [{"howMany": 2}], "load": 1}, Root) == Root(
        (Leaf(2),), False, 1.0
    )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (7, "expected an object, got an integer"),
        (None, "expected an object, got null"),
        ({"leafs": []}, "leafs: there is no such field"),
        ({"leaves": [{}, {"how_many": 1}]}, "leaves[1].how_many: there is no such field"),
        ({"leaves": {}}, "leaves: expected a list, got an object"),
        ({"leaves": [{"howMany": "2"}]}, "leaves[0].howMany: expected an integer, got a string"),
        ({"leaves": [{"howMany": []}]}, "leaves[0].howMany: expected an integer, got a list"),
        ({"leaves": [{"howMany": 1 << 31}]},
         "leaves[0].howMany: expected an integer <= 2147483647"),
        ({"perhaps": ""}, "perhaps: expected an integer, got a string"),
        ({"leaves": [{"name": 2.5}]}, "leaves[0].name: expected a string, got a number"),
        ({"on": "yes"}, "on: expected a boolean, got a string"),
        ({"load": "much"}, "load: expected a number, got a string"),
        ({1: 2}, "every key must be a string"),
        ({"leaves": [{True: 2}]}, "leaves[0]: every key must be a string"),
    ],
)  # fmt: skip
def test_mismatch_is_reported_at_its_path(found: object, message: str) -> None:
    causes = decode_strictly(found, Root)
    assert isinstance(causes, list)
    assert [str(cause) for cause in causes] == [message]


def test_null_counts_as_absent() -> None:
    found: Any = {"a": None, "b": [{"c": None, "d": 0}, {}]}
    assert drop_nulls(found) == {"b": [{"d": 0}, {}]}


def test_invalid_character_is_replaced() -> None:
    assert drop_nulls(["a\ud800é"]) == ["a?é"]
