"""Integer programs, the requests and answers of an exact solver, and the outcome of a search.

An integer program has columns (whole numbers from 0 to a limit) and rows (limits of weighted sums).
Without an objective any values that satisfy all rows are a solution; with one, those of the lowest
weighted sum.

    columns  x0 <= 3, x1 <= 2
    rows     2*x0 + 4*x1 <= 8
             x0 + x1 >= 3                 Solved((3, 0))

The scheduler core holds no solver. A cycle yields a SolverRequest and is sent a SolverAnswer by the
solver in `controllers/scheduling/exact_solver.py` or by a replay from the decision log. Without a
solver the answer is NO_SOLVER_ANSWER. Requests and answers are values that the log can store.
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
    """A weighted sum of columns that lies between two limits; None means no limit."""

    terms: tuple[tuple[int, int], ...]
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """An integer program: the upper limit of each column, the rows, and what to minimize."""

    limits: tuple[int, ...]
    rows: tuple[LinearConstraint, ...]
    #: The weighted sum of columns to minimize; empty for none.
    objective: tuple[tuple[int, int], ...] = ()


class Solved(Struct, frozen=True, tag_field="is", tag="solved"):
    """Values that satisfy all rows. The caller verifies the placement that they describe."""

    values: tuple[int, ...]


class Unsolvable(Struct, frozen=True, tag_field="is", tag="unsolvable"):
    """A proof that no values satisfy all rows."""


class SolverGaveUp(Struct, frozen=True, tag_field="is", tag="gave up"):
    """The solver found neither a solution nor a proof; `why` is a sentence for users."""

    why: str


class SolverPending(Struct, frozen=True, tag_field="is", tag="later"):
    """The solver is still working. Ask again after the event SEARCH_ENDED."""


SolverAnswer = Solved | Unsolvable | SolverGaveUp | SolverPending


@dataclass(slots=True)
class IntegerProgramBuilder:
    """Collects columns and rows of an integer program. Leaves out rows that always hold."""

    limits: list[int] = field(default_factory=list)
    rows: list[LinearConstraint] = field(default_factory=list)

    def add_column(self, limit: int) -> int:
        """Add a column and return its number."""
        self.limits.append(limit)
        return len(self.limits) - 1

    def add_at_most(self, terms: Mapping[int, int], high: int) -> None:
        """Require that a sum is at most `high`, unless it always is."""
        if sum(factor * self.limits[c] for c, factor in terms.items() if factor > 0) > high:
            self.rows.append(LinearConstraint(tuple(terms.items()), high=high))

    def add_at_least(self, terms: Mapping[int, int], low: int) -> None:
        """Require that a sum is at least `low`."""
        self.rows.append(LinearConstraint(tuple(terms.items()), low=low))

    def add_only_if(self, columns: Iterable[int], conditions: Mapping[int, int]) -> None:
        """Require that columns are zero unless the weighted conditions have a positive sum."""
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
        """Return the program."""
        return IntegerProgram(tuple(self.limits), tuple(self.rows))


@dataclass(frozen=True, slots=True)
class SolverRequest:
    """A request to solve a program, yielded by a cycle."""

    program: IntegerProgram


@dataclass(frozen=True, slots=True)
class PlacementFound:
    """A placement that the filters accept when its members are placed in this order."""

    assignments: tuple[Assignment, ...]
    #: Members beyond the quorum that no node accepts, each with the refusal.
    unplaced: tuple[tuple[Member, Refusal], ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """A proof that no placement exists."""


@dataclass(frozen=True, slots=True)
class SearchUndecided:
    """No placement was found, and none was proven impossible; `reason` is a sentence for users."""

    reason: str
    #: Whether a solver is still working on it.
    is_pending: bool = False


SearchOutcome = PlacementFound | NoPlacement | SearchUndecided

_Result = TypeVar("_Result")
#: A computation in steps. Yields progress or a SolverRequest; is sent the answer to a request.
Steps: TypeAlias = Generator[int | SolverRequest, SolverAnswer | None, _Result]
SolverFunction = Callable[[IntegerProgram], SolverAnswer]

NO_SOLVER_ANSWER = SolverGaveUp("no exact solver is available")


def no_solver(program: IntegerProgram) -> SolverAnswer:
    """Answer every program with NO_SOLVER_ANSWER."""
    return NO_SOLVER_ANSWER
