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

from phalanx.scheduler.rescue.program import Answer, GaveUp, Later, Program, Solved, Unsolvable

#: After how much it gives up: nodes of the search tree, each as much work as there are columns.
WORK = 150_000
#: How many answers are remembered: a gang that waits is tried again and again.
REMEMBERED = 64
#: Seconds that a cycle waits for an answer.
MOMENT = 0.25

MISSING = "the exact solver is not installed (pip install 'phalanx[exact]')"
LIMIT = "the exact search was given up after {nodes} steps"


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

    def known(self, program: Program) -> Answer | None:
        """The answer, if it is remembered."""
        return self._answers.get(program)

    def _solved(self, program: Program) -> Answer:
        try:
            library = import_module("highspy")
        except ImportError:
            return GaveUp(MISSING)
        return _run(library, program, max(self._work // max(len(program.limits), 1), 1))


class Solving(Protocol):
    """How a shell has programs solved; `ended` is called whenever `Later` has become now."""

    ended: Callable[[], None]

    async def __call__(self, program: Program) -> Answer:
        """The answer, or that there will be one later."""
        ...


class AtOnce:
    """Solves on the loop itself: for virtual time, in which there are no threads."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self.ended: Callable[[], None] = _nobody

    async def __call__(self, program: Program) -> Answer:
        """The answer."""
        return self._solver(program)


class Beside:
    """Solves in a thread, one program at a time, so that loop and scheduler go on meanwhile.

    What takes longer than a moment is answered when it is asked again. By then the cluster may have
    moved on and the question be another: an answer that is out of date is never heard.
    """

    def __init__(self, solver: Solver, moment: float = MOMENT) -> None:
        self._solver, self._moment = solver, moment
        self._search: asyncio.Future[Answer] | None = None
        self.ended: Callable[[], None] = _nobody

    async def __call__(self, program: Program) -> Answer:
        """The answer, or that there will be one later."""
        if known := self._solver.known(program):
            return known
        if self._search is not None:
            return Later()
        self._search = search = _in_thread(self._solver, program)
        await asyncio.wait([search], timeout=self._moment)
        if search.done():
            self._search = None
            return search.result()
        search.add_done_callback(self._end)
        return Later()

    def _end(self, search: asyncio.Future[Answer]) -> None:
        self._search = None
        if not search.cancelled():
            self.ended()
            search.result()


def _nobody() -> None:
    """Who hears of the end of a search if nobody wants to."""


def _in_thread(solver: Solver, program: Program) -> asyncio.Future[Answer]:
    """The answer to come. A stop of the process does not wait for it, so this is no executor."""
    answered: Future[Answer] = Future()
    answered.set_running_or_notify_cancel()

    def work() -> None:
        try:
            answered.set_result(solver(program))
        except Exception as error:
            answered.set_exception(error)

    threading.Thread(target=work, name="exact", daemon=True).start()
    return asyncio.wrap_future(answered)


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
