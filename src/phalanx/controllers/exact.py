"""The exact solver: integer programs of the scheduler's core, given to HiGHS.

    cycle ─▶ Search ─▶ solve (a thread, or at once in virtual time) ─▶ Answer ─▶ the same cycle

HiGHS is the extra `phalanx[exact]` and imported at the first question; without it every answer is
that nobody knows. It works on one thread from a fixed seed and stops after a number of steps, never
after a time, so that the same program has the same answer everywhere. It is not trusted with
placements: the core performs them before the filters.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

import numpy as np

from phalanx.scheduler.program import Answer, GaveUp, Program, Solved, Unsolvable

#: After how much it gives up: nodes of the search tree, each as much work as there are columns.
WORK = 150_000
#: How many answers are remembered: a gang that waits is tried again and again.
REMEMBERED = 64

MISSING = "the exact solver is not installed (pip install 'phalanx[exact]')"
LIMIT = "the exact search was given up after {nodes} steps"

#: How a shell has programs solved.
Solve = Callable[[Program], Awaitable[Answer]]


class Solver:
    """HiGHS with a memory."""

    def __init__(self, work: int = WORK) -> None:
        self._work = work
        self._answers: dict[Program, Answer] = {}

    def __call__(self, program: Program) -> Answer:
        """Values, that there are none, or that this would take too long."""
        answer = self._answers.pop(program, None) or self._solved(program)
        self._answers[program] = answer
        if len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]
        return answer

    def _solved(self, program: Program) -> Answer:
        try:
            library = import_module("highspy")
        except ImportError:
            return GaveUp(MISSING)
        return _run(library, program, max(self._work // max(len(program.limits), 1), 1))


def in_thread(solver: Callable[[Program], Answer]) -> Solve:
    """Solve in a thread of its own, so that the API stays live. The process does not wait for it.

    A stop must not take as long as a search, so that this is no executor.
    """

    async def solving(program: Program) -> Answer:
        answered: Future[Answer] = Future()
        answered.set_running_or_notify_cancel()

        def work() -> None:
            try:
                answered.set_result(solver(program))
            except Exception as error:
                answered.set_exception(error)

        threading.Thread(target=work, name="exact", daemon=True).start()
        return await asyncio.wrap_future(answered)

    return solving


def at_once(solver: Callable[[Program], Answer]) -> Solve:
    """Solve on the loop itself: for virtual time, in which there are no threads."""

    async def solving(program: Program) -> Answer:
        return solver(program)

    return solving


def _run(library: Any, program: Program, nodes: int) -> Answer:
    highs = library.Highs()
    for name, value in (
        ("output_flag", False), ("threads", 1), ("parallel", "off"), ("random_seed", 1),
        ("mip_max_nodes", nodes),
    ):  # fmt: skip
        highs.setOptionValue(name, value)
    highs.passModel(_model(library, program))

    highs.run()
    status, states = highs.getModelStatus(), library.HighsModelStatus
    if status == states.kOptimal:
        return Solved(tuple(round(value) for value in highs.getSolution().col_value))
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Unsolvable()
    return GaveUp(LIMIT.format(nodes=nodes))


def _model(library: Any, program: Program) -> Any:
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
