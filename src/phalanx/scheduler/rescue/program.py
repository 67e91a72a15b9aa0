"""Program: an integer program as a value. Whole numbers from 0 to a limit, and rows about sums.

What a puzzle becomes for a solver (`formulation.py`), and all that a solver knows. There is nothing
to minimise: any values that meet all rows will do. What comes back is an `Answer`, as a value too,
so that it can be written down and read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct


class Row(NamedTuple):
    """A sum of columns, each times a number, that lies between two limits; None: no such limit."""

    terms: tuple[tuple[int, int], ...]
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """The upper limits of the columns, and the rows."""

    limits: tuple[int, ...]
    rows: tuple[Row, ...]


class Solved(Struct, frozen=True, tag_field="is", tag="solved"):
    """Values that meet all rows; what they mean is checked by whoever asked."""

    values: tuple[int, ...]


class Unsolvable(Struct, frozen=True, tag_field="is", tag="unsolvable"):
    """No values meet all rows."""


class GaveUp(Struct, frozen=True, tag_field="is", tag="gave up"):
    """Neither was found out, and why, in the words that people read."""

    why: str


class Later(Struct, frozen=True, tag_field="is", tag="later"):
    """That takes longer than anybody should wait; ask again when a search has come to its end."""


Answer = Solved | Unsolvable | GaveUp | Later


@dataclass(slots=True)
class Draft:
    """A program while it is written. Rows without columns to speak of are left out."""

    limits: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def column(self, limit: int) -> int:
        """A new column, by number."""
        self.limits.append(limit)
        return len(self.limits) - 1

    def at_most(self, terms: Mapping[int, int], high: int) -> None:
        """A sum that must not exceed a limit; left out if it never could."""
        if sum(factor * self.limits[c] for c, factor in terms.items() if factor > 0) > high:
            self.rows.append(Row(tuple(terms.items()), high=high))

    def at_least(self, terms: Mapping[int, int], low: int) -> None:
        """A sum that must reach a limit."""
        self.rows.append(Row(tuple(terms.items()), low=low))

    def only_if(self, columns: Iterable[int], conditions: Mapping[int, int]) -> None:
        """Columns that are zero unless the conditions add up to something."""
        for column in columns:
            limit = self.limits[column]
            row = {column: 1}
            for condition, factor in conditions.items():
                if condition == column:
                    break
                row[condition] = -limit * factor
            else:
                self.at_most(row, 0)

    def program(self) -> Program:
        """What has been written."""
        return Program(tuple(self.limits), tuple(self.rows))
