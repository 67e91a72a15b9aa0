"""Strict reading: what is wrong with a file, and where."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from phalanx.scheduler.configuration.strict_decoding import Int32, decode_strictly, drop_nulls


class Leaf(Struct, forbid_unknown_fields=True, rename="camel"):
    how_many: Int32 = 0
    name: str = ""


class Root(Struct, forbid_unknown_fields=True):
    leaves: tuple[Leaf, ...] = ()
    on: bool = False
    load: float = 0.0
    perhaps: int | None = None


def test_what_fits_is_a_struct() -> None:
    assert decode_strictly({"leaves": [{"howMany": 2}], "load": 1}, Root) == Root(
        (Leaf(2),), False, 1.0
    )


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (7, "expected names with values, got a whole number"),
        (None, "expected names with values, got nothing"),
        ({"leafs": []}, "leafs: there is no such field"),
        ({"leaves": [{}, {"how_many": 1}]}, "leaves[1].how_many: there is no such field"),
        ({"leaves": {}}, "leaves: expected a list, got names with values"),
        ({"leaves": [{"howMany": "2"}]}, "leaves[0].howMany: expected a whole number, got text"),
        ({"leaves": [{"howMany": []}]}, "leaves[0].howMany: expected a whole number, got a list"),
        ({"leaves": [{"howMany": 1 << 31}]},
         "leaves[0].howMany: expected a whole number <= 2147483647"),
        ({"perhaps": ""}, "perhaps: expected a whole number, got text"),
        ({"leaves": [{"name": 2.5}]}, "leaves[0].name: expected text, got a number"),
        ({"on": "yes"}, "on: expected true or false, got text"),
        ({"load": "much"}, "load: expected a number, got text"),
        ({1: 2}, "every name must be text"),
        ({"leaves": [{True: 2}]}, "leaves[0]: every name must be text"),
    ],
)  # fmt: skip
def test_what_does_not_is_told_at_its_place(found: object, told: str) -> None:
    causes = decode_strictly(found, Root)
    assert isinstance(causes, list)
    assert [str(cause) for cause in causes] == [told]


def test_a_null_is_as_good_as_nothing() -> None:
    found: Any = {"a": None, "b": [{"c": None, "d": 0}, {}]}
    assert drop_nulls(found) == {"b": [{"d": 0}, {}]}


def test_a_sign_that_is_none_becomes_one() -> None:
    assert drop_nulls(["a\ud800é"]) == ["a?é"]
