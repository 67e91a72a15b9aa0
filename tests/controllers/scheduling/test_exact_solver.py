"""The exact solver: values, proof that there are none, or an honest word that it is too much."""

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
    """Things of these sizes in two halves; rows are sums, columns are in which half each is."""
    terms = tuple(enumerate(sizes))
    return IntegerProgram(
        (1,) * len(sizes), (LinearConstraint(terms, low=sum(sizes) // 2, high=sum(sizes) // 2),)
    )


HARD = split(*(2**20 + 2 * 7919**n % 2**20 for n in range(1, 40)), 3)


def test_values_meet_all_rows() -> None:
    answer = HighsSolver()(EASY)
    assert isinstance(answer, Solved)
    one, other = answer.values
    assert 2 * one + 3 * other <= 7
    assert one + other >= 3


def test_that_there_are_no_values_is_shown() -> None:
    assert HighsSolver()(INFEASIBLE) == Unsolvable()


def test_a_search_that_is_too_much_is_given_up_after_so_many_steps() -> None:
    assert HighsSolver(work_limit=1)(HARD) == SolverGaveUp(
        "the exact search was given up after 1 steps"
    )


def test_the_same_program_has_the_same_answer() -> None:
    program = split(*range(3, 60, 4), *range(5, 50, 3))
    assert HighsSolver()(program) == HighsSolver()(program)


def test_an_answer_is_remembered() -> None:
    solver = HighsSolver()
    first = solver(EASY)
    assert solver(IntegerProgram(EASY.limits, EASY.rows)) is first


def test_without_the_library_the_answer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert HighsSolver()(EASY) == SolverGaveUp(NOT_INSTALLED)
    assert "phalanx[exact]" in NOT_INSTALLED


class SlowSolver(HighsSolver):
    """Answers when it is let."""

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


def test_a_slow_answer_comes_later_and_is_told_when_asked_again() -> None:
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


def test_what_goes_wrong_beside_is_told() -> None:
    class Broken(HighsSolver):
        def _solve(self, program: IntegerProgram) -> SolverAnswer:
            raise ZeroDivisionError

    async def ask() -> SolverAnswer:
        return await ThreadedSolver(Broken(), wait_seconds=60.0)(EASY)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


def test_a_search_does_not_hold_up_the_end() -> None:
    async def ask() -> SlowSolver:
        solver = SlowSolver()
        await ThreadedSolver(solver, wait_seconds=0.0)(EASY)
        return solver

    asyncio.run(ask()).released.set()


@in_virtual_time
async def test_in_virtual_time_there_is_no_thread() -> None:
    before = threading.active_count()
    assert await InlineSolver(HighsSolver())(INFEASIBLE) == Unsolvable()
    assert threading.active_count() == before


# ---- through the whole control plane -------------------------------------------------------------

#: In cpus: what fits into two nodes of ten in one way only, and what does not, by a hair.
TIGHT, TOO_TIGHT = (3, 4, 3, 3, 4, 3), (4, 4, 4, 4, 2)


def mixed_gang(cpus: Sequence[int]) -> list[Object]:
    return [
        pod_group("g", len(cpus)),
        *(pod(f"g-{number}", "g", cpu=str(cpu)) for number, cpu in enumerate(cpus)),
    ]


@in_virtual_time
async def test_a_gang_of_different_members_is_placed_where_there_is_but_one_way() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="10")) as c:
        await c.create(*mixed_gang(TIGHT))
        await c.until_placed(*(f"g-{number}" for number in range(len(TIGHT))))


async def _reason_and_message(c: Cluster) -> tuple[str, str]:
    await asyncio.sleep(5)
    assert await c.node_by_pod() == {}
    said, pods = (
        await c.group_condition("g", POD_GROUP_INITIALLY_SCHEDULED),
        await c.pod_condition("g-0"),
    )
    assert said is not None
    assert pods is not None
    assert pods.reason == said.reason
    return said.reason, said.message


@in_virtual_time
async def test_a_gang_that_fits_in_no_way_is_unschedulable() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="9")) as c:
        await c.create(*mixed_gang(TOO_TIGHT))
        reason, message = await _reason_and_message(c)
        assert reason == "Unschedulable"
        assert message.startswith("minCount (5) cannot be satisfied: ")
        assert ";" not in message


def test_without_the_library_a_gang_is_told_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @in_virtual_time
    async def tell() -> None:
        async with cluster(nodes=simulated_nodes(2, cpu="9")) as c:
            await c.create(*mixed_gang(TOO_TIGHT))
            reason, message = await _reason_and_message(c)
            assert reason == "SchedulingUndecided"
            assert NOT_INSTALLED in message

    monkeypatch.setitem(sys.modules, "highspy", None)
    tell()


class DeferredSolver:
    """Has the answer three seconds after it was asked first, and says `Later` until then."""

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
async def test_a_gang_whose_search_takes_long_is_tried_again_when_it_has_ended() -> None:
    deferred = DeferredSolver()
    async with cluster(nodes=simulated_nodes(2, cpu="9"), solver=deferred) as c:
        await c.create(*mixed_gang(TOO_TIGHT))
        await asyncio.sleep(2)
        said = await c.group_condition("g", POD_GROUP_INITIALLY_SCHEDULED)
        assert said is not None
        assert said.reason == "SchedulingUndecided"
        assert said.message.endswith("an exact search is under way")
        assert (await _reason_and_message(c))[0] == "Unschedulable"
        assert deferred.answered_at == deferred.started_at + 3.0
