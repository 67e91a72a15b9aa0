"""Solves the integer programs of the scheduler's exact search with HiGHS.

    cycle ─▶ SolverRequest ─▶ ThreadedSolver (InlineSolver in virtual time) ─▶ answer ─▶ same cycle
                               └─▶ SolverPending … `on_finished` ─▶ the entity is tried again

HiGHS is the extra `phalanx[exact]`, imported at the first program; without it every answer is
`SolverGaveUp`. It uses one thread and a fixed seed, and stops after a number of steps instead of a
time, so that the same program has the same answer everywhere. The core never trusts a placement of
the solver: it verifies each one with the filters.
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

#: Work after which the search stops: nodes of the search tree times columns of the program.
WORK_LIMIT = 150_000
#: Cached answers: a gang that waits asks the same program at each attempt.
MAX_CACHED_ANSWERS = 64
#: Seconds that a cycle waits for an answer before it ends as pending.
WAIT_SECONDS = 0.25

NOT_INSTALLED = "the exact solver is not installed (pip install 'phalanx[exact]')"
GAVE_UP = "the exact search stopped after {nodes} steps"


class HighsSolver:
    """HiGHS with a cache of answers."""

    def __init__(self, work_limit: int = WORK_LIMIT) -> None:
        self._work_limit = work_limit
        self._answers: dict[IntegerProgram, SolverAnswer] = {}

    def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """Return a solution, that there is none, or that the work limit was reached."""
        answer = self._answers.pop(program, None) or self._solve(program)
        self._answers[program] = answer
        if len(self._answers) > MAX_CACHED_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return answer

    def cached_answer(self, program: IntegerProgram) -> SolverAnswer | None:
        """Return the cached answer, if there is one."""
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
    """Solves programs; `on_finished` is called when a pending answer has become available."""

    on_finished: Callable[[], None]

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """Return the answer, or `SolverPending`."""
        ...


class InlineSolver:
    """Solves on the event loop: for virtual time, which has no threads."""

    def __init__(self, solver: HighsSolver) -> None:
        self._solver = solver
        self.on_finished: Callable[[], None] = _ignore

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """Return the answer."""
        return self._solver(program)


class ThreadedSolver:
    """Solves in a thread, one program at a time, so that the event loop is not blocked.

    A program that takes longer than `wait_seconds` is answered from the cache at the next attempt.
    If the cluster has changed by then, the attempt asks another program and the answer is not used.
    """

    def __init__(self, solver: HighsSolver, wait_seconds: float = WAIT_SECONDS) -> None:
        self._solver, self._wait_seconds = solver, wait_seconds
        self._search: asyncio.Future[SolverAnswer] | None = None
        self.on_finished: Callable[[], None] = _ignore

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        """Return the answer, or `SolverPending`."""
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
    pass


def _solve_in_thread(solver: HighsSolver, program: IntegerProgram) -> asyncio.Future[SolverAnswer]:
    """Solve in a daemon thread: unlike an executor it does not delay the end of the process."""
    future: Future[SolverAnswer] = Future()
    future.set_running_or_notify_cancel()

    def solve() -> None:
        try:
            future.set_result(solver(program))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=solve, name="exact", daemon=True).start()
    return asyncio.wrap_future(future)


def _solve_with_highs(library: Any, program: IntegerProgram, nodes: int) -> SolverAnswer:
    highs = library.Highs()
    options = {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": 1,
        "mip_max_nodes": nodes,
        # An objective counts whole numbers: the best value, not one within a percentage.
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.5,
    }
    for name, value in options.items():
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
    """Convert a program to the arrays of the library."""
    size, infinite = len(program.limits), library.kHighsInf
    model = library.HighsLp()
    model.num_col_, model.num_row_ = size, len(program.rows)
    costs = np.zeros(size)
    for column, factor in program.objective:
        costs[column] = factor
    model.col_cost_ = costs
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
