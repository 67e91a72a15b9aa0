"""What may be called on what: one row per function and types of its arguments.

Libraries are lists of rows (`standard.py`, `texts.py`, `times.py`, `collections.py`, `numbers.py`,
`networks.py`, `versions.py`, `optionals.py`); `library.py` puts them together. The checker chooses
among the rows of a name by what it knows of the arguments; what is left open is chosen when the
values are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from phalanx.api.cel.types import Kind
from phalanx.api.cel.values import type_name

#: What the language calls a type, where its name as a value is another one.
_NAMED = {
    "timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration",
    "null": "null_type",
}  # fmt: skip


#: How many steps a call takes besides the first, by what it is given.
Cost: TypeAlias = Callable[[Sequence[Any]], int]


def light(values: Sequence[Any]) -> int:
    """Nothing more, whatever it is given."""
    return 0


def heavy(values: Sequence[Any]) -> int:
    """As many as it takes to look at all that it is given."""
    return sum(map(weight, values))


@dataclass(frozen=True, slots=True)
class Function:
    """A function of certain types. `member`: it is called on its first argument, with a dot."""

    name: str
    takes: tuple[Kind, ...]
    gives: Kind
    run: Callable[..., Any]
    cost: Cost
    member: bool = False

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether it can be called with some values."""
        return all(_is(kind, value) for kind, value in zip(self.takes, values, strict=True))


def called(
    name: str, takes: Sequence[Kind], gives: Kind, run: Callable[..., Any], cost: Cost = light
) -> Function:
    """A function that is called by its name: `size(x)`, `sets.contains(x, y)`, `_+_`."""
    return Function(name, tuple(takes), gives, run, cost)


def method(
    name: str, takes: Sequence[Kind], gives: Kind, run: Callable[..., Any], cost: Cost = heavy
) -> Function:
    """A function that is called on its first argument: `x.startsWith(y)`."""
    return Function(name, tuple(takes), gives, run, cost, member=True)


def both(rows: Iterable[Function]) -> list[Function]:
    """Functions that can be called either way."""
    return [
        row
        for one in rows
        for row in (
            one,
            Function(one.name, one.takes, one.gives, one.run, one.cost, not one.member),
        )
    ]


def weight(value: Any) -> int:
    """How many steps it takes to look at all of a value."""
    if value.__class__ is str or value.__class__ is bytes:
        return len(value) // 10
    if isinstance(value, list):
        return len(value) + sum(map(weight, value))
    if value.__class__ is dict:
        return len(value) + sum(map(weight, value.values()))
    return 0


def _is(kind: Kind, value: Any) -> bool:
    if kind.name in ("dyn", "A", "B"):
        return True
    if kind.name == "object":
        return value.__class__ is dict
    return type_name(value) == _NAMED.get(kind.name, kind.name)
