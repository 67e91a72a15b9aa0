"""Program: an integer program as a value. Whole numbers from 0 to a limit, and rows about sums.

What a puzzle becomes for a solver (`formulation.py`), and all that a solver knows. There is nothing
to minimise: any values that meet all rows will do. What comes back is an `Answer`, as a value too,
so that it can be written down and read again.

Search: a problem for the exact solver, and what a search for a placement came to.

The core is pure and holds no solver: a cycle yields a `Search` and is sent an `Answer`, by the
shell in `controllers/`, by a replay from its record, or by nobody, which is an answer too. Whatever
the answer, a placement counts only once the filters have allowed every step of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placement.group_placement import Assignment


class LinearConstraint(NamedTuple):
    """A sum of columns, each times a number, that lies between two limits; None: no such limit."""

    terms: tuple[tuple[int, int], ...]
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """The upper limits of the columns, and the rows."""

    limits: tuple[int, ...]
    rows: tuple[LinearConstraint, ...]


class Solved(Struct, frozen=True, tag_field="is", tag="solved"):
    """Values that meet all rows; what they mean is checked by whoever asked."""

    values: tuple[int, ...]


class Unsolvable(Struct, frozen=True, tag_field="is", tag="unsolvable"):
    """No values meet all rows."""


class SolverGaveUp(Struct, frozen=True, tag_field="is", tag="gave up"):
    """Neither was found out, and why, in the words that people read."""

    why: str


class SolverPending(Struct, frozen=True, tag_field="is", tag="later"):
    """That takes longer than anybody should wait; ask again when a search has come to its end."""


SolverAnswer = Solved | Unsolvable | SolverGaveUp | SolverPending


@dataclass(slots=True)
class IntegerProgramBuilder:
    """A program while it is written. Rows without columns to speak of are left out."""

    limits: list[int] = field(default_factory=list)
    rows: list[LinearConstraint] = field(default_factory=list)

    def add_column(self, limit: int) -> int:
        """A new column, by number."""
        self.limits.append(limit)
        return len(self.limits) - 1

    def add_at_most(self, terms: Mapping[int, int], high: int) -> None:
        """A sum that must not exceed a limit; left out if it never could."""
        if sum(factor * self.limits[c] for c, factor in terms.items() if factor > 0) > high:
            self.rows.append(LinearConstraint(tuple(terms.items()), high=high))

    def add_at_least(self, terms: Mapping[int, int], low: int) -> None:
        """A sum that must reach a limit."""
        self.rows.append(LinearConstraint(tuple(terms.items()), low=low))

    def add_only_if(self, columns: Iterable[int], conditions: Mapping[int, int]) -> None:
        """Columns that are zero unless the conditions add up to something."""
        for column in columns:
            limit = self.limits[column]
            row = {column: 1}
            for condition, factor in conditions.items():
                if condition == column:
                    break
                row[condition] = -limit * factor
            else:
                self.add_at_most(row, 0)

    def build(self) -> IntegerProgram:
        """What has been written."""
        return IntegerProgram(tuple(self.limits), tuple(self.rows))


@dataclass(frozen=True, slots=True)
class SolverRequest:
    """Please find values for this program, or show that there are none."""

    program: IntegerProgram


@dataclass(frozen=True, slots=True)
class PlacementFound:
    """A placement, each member being allowed where it is when those before it are there."""

    assignments: tuple[Assignment, ...]
    #: Members to spare, and why there is no node for them.
    unplaced: tuple[tuple[Member, Refusal], ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """There is no placement."""


@dataclass(frozen=True, slots=True)
class SearchUndecided:
    """None was found, though there may be one: why, in the words that people read."""

    why: str
    #: Whether the answer is being looked for.
    is_pending: bool = False


SearchOutcome = PlacementFound | NoPlacement | SearchUndecided

_Result = TypeVar("_Result")
#: Work in steps: yields how far it is, or a question; is sent the answer to a question.
Steps: TypeAlias = Generator[int | SolverRequest, SolverAnswer | None, _Result]
SolverFunction = Callable[[IntegerProgram], SolverAnswer]

NO_SOLVER_ANSWER = SolverGaveUp("there is no exact solver at hand")


def no_solver(program: IntegerProgram) -> SolverAnswer:
    """The solver of those who have none."""
    return NO_SOLVER_ANSWER
