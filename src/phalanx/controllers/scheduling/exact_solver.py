"""The exact solver: integer programs of the scheduler's core, given to HiGHS.

    cycle ─▶ Search ─▶ Beside (or AtOnce, in virtual time) ─▶ Answer ─▶ the same cycle
                        └─▶ Later … ended ─▶ the entity is tried again

HiGHS is the extra `phalanx[exact]` and imported at the first question; without it every answer is
that nobody knows. It works on one thread from a fixed seed and stops after a number of steps, never
after a time, so that the same program has the same answer everywhere. It is not trusted with
placements: the core performs them before the filters.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from phalanx.scheduler.search.solver import (
    IntegerProgram,
    Solved,
    SolverAnswer,
    SolverGaveUp,
    SolverPending,
    Unsolvable,
)

#: After how much it gives up: nodes of the search tree, each as much work as there are columns.
WORK_LIMIT = 150_000
#: How many answers are remembered: a gang that waits is tried again and again.
MAX_CACHED_ANSWERS = 64
#: Seconds that a cycle waits for an answer.
WAIT_SECONDS = 0.25

NOT_INSTALLED = "the exact solver is not installed (pip install 'phalanx[exact]')"
GAVE_UP = "the exact search was given up after {nodes} steps"


class HighsSolver:
    """HiGHS with a memory."""

    def __init__(self, work_limit: int = WORK_LIMIT) -> None:
        self._work_limit = work_limit
        self._answers: dict[IntegerProgram, SolverAnswer] = {}

    def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """Values, that there are none, or that this would take too long."""
        answer = self._answers.pop(program, None) or self._solve(program)
        self._answers[program] = answer
        if len(self._answers) > MAX_CACHED_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return answer

    def cached_answer(self, program: IntegerProgram) -> SolverAnswer | None:
        """The answer, if it is remembered."""
        return self._answers.get(program)

    def _solve(self, program: IntegerProgram) -> SolverAnswer:
        try:
            library = import_module("highspy")
        except ImportError:
            return SolverGaveUp(NOT_INSTALLED)
        return _solve_with_highs(
            library, program, max(self._work_limit // max(len(program.limits), 1), 1)
        )


class AsyncSolver(Protocol):
    """How a shell has programs solved; `ended` is called whenever `Later` has become now."""

    on_finished: Callable[[], None]

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """The answer, or that there will be one later."""
        ...


class InlineSolver:
    """Solves on the loop itself: for virtual time, in which there are no threads."""

    def __init__(self, solver: HighsSolver) -> None:
        self._solver = solver
        self.on_finished: Callable[[], None] = _ignore

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """The answer."""
        return self._solver(program)


class ThreadedSolver:
    """Solves in a thread, one program at a time, so that loop and scheduler go on meanwhile.

    What takes longer than a moment is answered when it is asked again. By then the cluster may have
    moved on and the question be another: an answer that is out of date is never heard.
    """

    def __init__(self, solver: HighsSolver, wait_seconds: float = WAIT_SECONDS) -> None:
        self._solver, self._wait_seconds = solver, wait_seconds
        self._search: asyncio.Future[SolverAnswer] | None = None
        self.on_finished: Callable[[], None] = _ignore

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """The answer, or that there will be one later."""
        if known := self._solver.cached_answer(program):
            return known
        if self._search is not None:
            return SolverPending()
        self._search = search = _solve_in_thread(self._solver, program)
        await asyncio.wait([search], timeout=self._wait_seconds)
        if search.done():
            self._search = None
            return search.result()
        search.add_done_callback(self._on_search_done)
        return SolverPending()

    def _on_search_done(self, search: asyncio.Future[SolverAnswer]) -> None:
        self._search = None
        if not search.cancelled():
            self.on_finished()
            search.result()


def _ignore() -> None:
    """Who hears of the end of a search if nobody wants to."""


def _solve_in_thread(solver: HighsSolver, program: IntegerProgram) -> asyncio.Future[SolverAnswer]:
    """The answer to come. A stop of the process does not wait for it, so this is no executor."""
    answered: Future[SolverAnswer] = Future()
    answered.set_running_or_notify_cancel()

    def work() -> None:
        try:
            answered.set_result(solver(program))
        except Exception as error:
            answered.set_exception(error)

    threading.Thread(target=work, name="exact", daemon=True).start()
    return asyncio.wrap_future(answered)


def _solve_with_highs(library: Any, program: IntegerProgram, nodes: int) -> SolverAnswer:
    highs = library.Highs()
    for name, value in (
        ("output_flag", False), ("threads", 1), ("parallel", "off"), ("random_seed", 1),
        ("mip_max_nodes", nodes),
    ):  # fmt: skip
        highs.setOptionValue(name, value)
    highs.passModel(_highs_model(library, program))

    highs.run()
    status, states = highs.getModelStatus(), library.HighsModelStatus
    if status == states.kOptimal:
        return Solved(tuple(round(value) for value in highs.getSolution().col_value))
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Unsolvable()
    return SolverGaveUp(GAVE_UP.format(nodes=nodes))


def _highs_model(library: Any, program: IntegerProgram) -> Any:
    """The program in the arrays of the library."""
    size, infinite = len(program.limits), library.kHighsInf
    model = library.HighsLp()
    model.num_col_, model.num_row_ = size, len(program.rows)
    model.col_cost_ = np.zeros(size)
    model.col_lower_ = np.zeros(size)
    model.col_upper_ = np.array(program.limits, float)
    model.integrality_ = [library.HighsVarType.kInteger] * size
    lows = [-infinite if row.low is None else row.low for row in program.rows]
    highs = [infinite if row.high is None else row.high for row in program.rows]
    model.row_lower_, model.row_upper_ = np.array(lows, float), np.array(highs, float)
    matrix = model.a_matrix_
    matrix.format_ = library.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(row.terms) for row in program.rows)])
    terms = [term for row in program.rows for term in row.terms]
    matrix.index_ = np.array([column for column, _ in terms], np.int32)
    matrix.value_ = np.array([factor for _, factor in terms], float)
    return model
