"""The exact solver: a solution, a proof that there is none, or the work limit."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED
from phalanx.api.wire import Object
from phalanx.controllers.scheduling.exact_solver import (
    NOT_INSTALLED,
    HighsSolver,
    InlineSolver,
    ThreadedSolver,
)
from phalanx.scheduler.search.solver import (
    IntegerProgram,
    LinearConstraint,
    Solved,
    SolverAnswer,
    SolverGaveUp,
    SolverPending,
    Unsolvable,
)
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")

EASY = IntegerProgram(
    (3, 3), (LinearConstraint(((0, 2), (1, 3)), high=7), LinearConstraint(((0, 1), (1, 1)), low=3))
)
INFEASIBLE = IntegerProgram(
    (3, 3), (LinearConstraint(((0, 2), (1, 3)), high=7), LinearConstraint(((0, 1), (1, 1)), low=4))
)


def split(*sizes: int) -> IntegerProgram:
    """Split items of these sizes into two equal halves."""
    terms = tuple(enumerate(sizes))
    return IntegerProgram(
        (1,) * len(sizes), (LinearConstraint(terms, low=sum(sizes) // 2, high=sum(sizes) // 2),)
    )


HARD = split(*(2**20 + 2 * 7919**n % 2**20 for n in range(1, 40)), 3)


def test_a_solution_satisfies_all_rows() -> None:
    answer = HighsSolver()(EASY)
    assert isinstance(answer, Solved)
    one, other = answer.values
    assert 2 * one + 3 * other <= 7
    assert one + other >= 3


def test_an_infeasible_program_is_unsolvable() -> None:
    assert HighsSolver()(INFEASIBLE) == Unsolvable()


def test_the_search_stops_at_the_work_limit() -> None:
    assert HighsSolver(work_limit=1)(HARD) == SolverGaveUp("the exact search stopped after 1 steps")


def test_the_same_program_has_the_same_answer() -> None:
    program = split(*range(3, 60, 4), *range(5, 50, 3))
    assert HighsSolver()(program) == HighsSolver()(program)


def test_an_answer_is_cached() -> None:
    solver = HighsSolver()
    first = solver(EASY)
    assert solver(IntegerProgram(EASY.limits, EASY.rows)) is first


def test_without_the_library_the_answer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert HighsSolver()(EASY) == SolverGaveUp(NOT_INSTALLED)
    assert "phalanx[exact]" in NOT_INSTALLED


class SlowSolver(HighsSolver):
    """Answers when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def _solve(self, program: IntegerProgram) -> SolverAnswer:
        self.released.wait()
        return super()._solve(program)


def test_a_quick_answer_is_waited_for() -> None:
    async def ask() -> SolverAnswer:
        return await ThreadedSolver(HighsSolver(), wait_seconds=60.0)(INFEASIBLE)

    assert asyncio.run(ask()) == Unsolvable()


def test_a_slow_answer_is_pending_and_available_at_the_next_request() -> None:
    async def ask() -> list[SolverAnswer]:
        solver, ended = SlowSolver(), asyncio.Event()
        beside = ThreadedSolver(solver, wait_seconds=0.0)
        beside.on_finished = ended.set
        first = await beside(INFEASIBLE)
        other = await beside(EASY)
        solver.released.set()
        await ended.wait()
        return [first, other, await beside(INFEASIBLE)]

    assert asyncio.run(ask()) == [SolverPending(), SolverPending(), Unsolvable()]


def test_an_error_in_the_thread_is_raised() -> None:
    class Broken(HighsSolver):
        def _solve(self, program: IntegerProgram) -> SolverAnswer:
            raise ZeroDivisionError

    async def ask() -> SolverAnswer:
        return await ThreadedSolver(Broken(), wait_seconds=60.0)(EASY)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


def test_a_search_does_not_delay_the_end_of_the_process() -> None:
    async def ask() -> SlowSolver:
        solver = SlowSolver()
        await ThreadedSolver(solver, wait_seconds=0.0)(EASY)
        return solver

    asyncio.run(ask()).released.set()


@in_virtual_time
async def test_in_virtual_time_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    assert await InlineSolver(HighsSolver())(INFEASIBLE) == Unsolvable()
    assert set(threading.enumerate()) <= before


# ---- with a control plane ------------------------------------------------------------------------

#: CPUs of pods that fit on two nodes of ten in one way only, and of pods that just do not fit.
TIGHT, TOO_TIGHT = (3, 4, 3, 3, 4, 3), (4, 4, 4, 4, 2)


def mixed_gang(cpus: Sequence[int]) -> list[Object]:
    return [
        pod_group("g", len(cpus)),
        *(pod(f"g-{number}", "g", cpu=str(cpu)) for number, cpu in enumerate(cpus)),
    ]


@in_virtual_time
async def test_a_gang_of_different_members_is_placed_if_only_one_assignment_exists() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="10")) as c:
        await c.create(*mixed_gang(TIGHT))
        await c.until_placed(*(f"g-{number}" for number in range(len(TIGHT))))


async def _reason_and_message(c: Cluster) -> tuple[str, str]:
    await asyncio.sleep(5)
    assert await c.node_by_pod() == {}
    condition, pods = (
        await c.group_condition("g", POD_GROUP_INITIALLY_SCHEDULED),
        await c.pod_condition("g-0"),
    )
    assert condition is not None
    assert pods is not None
    assert pods.reason == condition.reason
    return condition.reason, condition.message


@in_virtual_time
async def test_a_gang_without_an_assignment_is_unschedulable() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="9")) as c:
        await c.create(*mixed_gang(TOO_TIGHT))
        reason, message = await _reason_and_message(c)
        assert reason == "Unschedulable"
        assert message.startswith("minCount (5) cannot be satisfied: ")
        assert ";" not in message


def test_without_the_library_the_result_is_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @in_virtual_time
    async def check() -> None:
        async with cluster(nodes=simulated_nodes(2, cpu="9")) as c:
            await c.create(*mixed_gang(TOO_TIGHT))
            reason, message = await _reason_and_message(c)
            assert reason == "SchedulingUndecided"
            assert NOT_INSTALLED in message

    monkeypatch.setitem(sys.modules, "highspy", None)
    check()


class DeferredSolver:
    """Has the answer three seconds after the first request; pending until then."""

    def __init__(self) -> None:
        self.on_finished: Callable[[], None] = lambda: None
        self.started_at, self.answered_at = -1.0, -1.0

    async def __call__(self, program: IntegerProgram) -> SolverAnswer:
        loop = asyncio.get_running_loop()
        if self.started_at < 0:
            self.started_at = loop.time()
            loop.call_later(3.0, lambda: self.on_finished())
        if loop.time() < self.started_at + 3.0:
            return SolverPending()
        self.answered_at = loop.time()
        return HighsSolver()(program)


@in_virtual_time
async def test_a_gang_with_a_pending_search_is_tried_again_when_it_finishes() -> None:
    deferred = DeferredSolver()
    async with cluster(nodes=simulated_nodes(2, cpu="9"), solver=deferred) as c:
        await c.create(*mixed_gang(TOO_TIGHT))
        await asyncio.sleep(2)
        condition = await c.group_condition("g", POD_GROUP_INITIALLY_SCHEDULED)
        assert condition is not None
        assert condition.reason == "SchedulingUndecided"
        assert condition.message.endswith("an exact search is running")
        assert (await _reason_and_message(c))[0] == "Unschedulable"
        assert deferred.answered_at == deferred.started_at + 3.0
