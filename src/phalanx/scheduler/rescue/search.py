"""Search: a problem for the exact solver, and what a search for a placement came to.

The core is pure and holds no solver: a cycle yields a `Search` and is sent an `Answer`, by the
shell in `controllers/`, by a replay from its record, or by nobody, which is an answer too. Whatever
the answer, a placement counts only once the filters have allowed every step of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placing.attempt import Seat
from phalanx.scheduler.rescue.program import Answer, GaveUp, Program


@dataclass(frozen=True, slots=True)
class Search:
    """Please find values for this program, or show that there are none."""

    program: Program


@dataclass(frozen=True, slots=True)
class Found:
    """A placement, each member being allowed where it is when those before it are there."""

    seats: tuple[Seat, ...]
    #: Members to spare, and why there is no node for them.
    left: tuple[tuple[Member, Refusal], ...] = ()


@dataclass(frozen=True, slots=True)
class Proven:
    """There is no placement."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """None was found, though there may be one: why, in the words that people read."""

    why: str
    #: Whether the answer is being looked for.
    is_passing: bool = False


Outcome = Found | Proven | Undecided

_Result = TypeVar("_Result")
#: Work in steps: yields how far it is, or a question; is sent the answer to a question.
Steps: TypeAlias = Generator[int | Search, Answer | None, _Result]
Solver = Callable[[Program], Answer]

UNANSWERED = GaveUp("there is no exact solver at hand")


def nobody(program: Program) -> Answer:
    """The solver of those who have none."""
    return UNANSWERED
