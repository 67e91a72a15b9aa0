"""The exact solver: values, proof that there are none, or an honest word that it is too much."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from phalanx.api.scheduling import INITIALLY_SCHEDULED
from phalanx.api.wire import Object
from phalanx.controllers.shell.exact import MISSING, AtOnce, Beside, Solver
from phalanx.scheduler.rescue.program import Answer, GaveUp, Later, Program, Row, Solved, Unsolvable
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, machines

pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")

EASY = Program((3, 3), (Row(((0, 2), (1, 3)), high=7), Row(((0, 1), (1, 1)), low=3)))
NO_WAY = Program((3, 3), (Row(((0, 2), (1, 3)), high=7), Row(((0, 1), (1, 1)), low=4)))


def split(*sizes: int) -> Program:
    """Things of these sizes in two halves; rows are sums, columns are in which half each is."""
    terms = tuple(enumerate(sizes))
    return Program((1,) * len(sizes), (Row(terms, low=sum(sizes) // 2, high=sum(sizes) // 2),))


HARD = split(*(2**20 + 2 * 7919**n % 2**20 for n in range(1, 40)), 3)


def test_values_meet_all_rows() -> None:
    answer = Solver()(EASY)
    assert isinstance(answer, Solved)
    one, other = answer.values
    assert 2 * one + 3 * other <= 7
    assert one + other >= 3


def test_that_there_are_no_values_is_shown() -> None:
    assert Solver()(NO_WAY) == Unsolvable()


def test_a_search_that_is_too_much_is_given_up_after_so_many_steps() -> None:
    assert Solver(work=1)(HARD) == GaveUp("the exact search was given up after 1 steps")


def test_the_same_program_has_the_same_answer() -> None:
    program = split(*range(3, 60, 4), *range(5, 50, 3))
    assert Solver()(program) == Solver()(program)


def test_an_answer_is_remembered() -> None:
    solver = Solver()
    first = solver(EASY)
    assert solver(Program(EASY.limits, EASY.rows)) is first


def test_without_the_library_the_answer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert Solver()(EASY) == GaveUp(MISSING)
    assert "phalanx[exact]" in MISSING


class Slow(Solver):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()

    def _solved(self, program: Program) -> Answer:
        self.let.wait()
        return super()._solved(program)


def test_a_quick_answer_is_waited_for() -> None:
    async def ask() -> Answer:
        return await Beside(Solver(), moment=60.0)(NO_WAY)

    assert asyncio.run(ask()) == Unsolvable()


def test_a_slow_answer_comes_later_and_is_told_when_asked_again() -> None:
    async def ask() -> list[Answer]:
        solver, ended = Slow(), asyncio.Event()
        beside = Beside(solver, moment=0.0)
        beside.ended = ended.set
        first = await beside(NO_WAY)
        other = await beside(EASY)
        solver.let.set()
        await ended.wait()
        return [first, other, await beside(NO_WAY)]

    assert asyncio.run(ask()) == [Later(), Later(), Unsolvable()]


def test_what_goes_wrong_beside_is_told() -> None:
    class Broken(Solver):
        def _solved(self, program: Program) -> Answer:
            raise ZeroDivisionError

    async def ask() -> Answer:
        return await Beside(Broken(), moment=60.0)(EASY)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


def test_a_search_does_not_hold_up_the_end() -> None:
    async def ask() -> Slow:
        solver = Slow()
        await Beside(solver, moment=0.0)(EASY)
        return solver

    asyncio.run(ask()).let.set()


@in_virtual_time
async def test_in_virtual_time_there_is_no_thread() -> None:
    before = threading.active_count()
    assert await AtOnce(Solver())(NO_WAY) == Unsolvable()
    assert threading.active_count() == before


# ---- through the whole control plane -------------------------------------------------------------

#: In cpus: what fits into two nodes of ten in one way only, and what does not, by a hair.
TIGHT, TOO_TIGHT = (3, 4, 3, 3, 4, 3), (4, 4, 4, 4, 2)


def mixed(cpus: Sequence[int]) -> list[Object]:
    return [
        pod_group("g", len(cpus)),
        *(pod(f"g-{number}", "g", cpu=str(cpu)) for number, cpu in enumerate(cpus)),
    ]


@in_virtual_time
async def test_a_gang_of_different_members_is_placed_where_there_is_but_one_way() -> None:
    async with cluster(nodes=machines(2, cpu="10")) as c:
        await c.create(*mixed(TIGHT))
        await c.until_placed(*(f"g-{number}" for number in range(len(TIGHT))))


async def _said(c: Cluster) -> tuple[str, str]:
    await asyncio.sleep(5)
    assert await c.placed() == {}
    said, pods = await c.said_of_group("g", INITIALLY_SCHEDULED), await c.said_of_pod("g-0")
    assert said is not None
    assert pods is not None
    assert pods.reason == said.reason
    return said.reason, said.message


@in_virtual_time
async def test_a_gang_that_fits_in_no_way_is_unschedulable() -> None:
    async with cluster(nodes=machines(2, cpu="9")) as c:
        await c.create(*mixed(TOO_TIGHT))
        reason, message = await _said(c)
        assert reason == "Unschedulable"
        assert message.startswith("minCount (5) cannot be satisfied: ")
        assert ";" not in message


def test_without_the_library_a_gang_is_told_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @in_virtual_time
    async def tell() -> None:
        async with cluster(nodes=machines(2, cpu="9")) as c:
            await c.create(*mixed(TOO_TIGHT))
            reason, message = await _said(c)
            assert reason == "SchedulingUndecided"
            assert MISSING in message

    monkeypatch.setitem(sys.modules, "highspy", None)
    tell()


class Deferred:
    """Has the answer three seconds after it was asked first, and says `Later` until then."""

    def __init__(self) -> None:
        self.ended: Callable[[], None] = lambda: None
        self.began, self.answered = -1.0, -1.0

    async def __call__(self, program: Program) -> Answer:
        loop = asyncio.get_running_loop()
        if self.began < 0:
            self.began = loop.time()
            loop.call_later(3.0, lambda: self.ended())
        if loop.time() < self.began + 3.0:
            return Later()
        self.answered = loop.time()
        return Solver()(program)


@in_virtual_time
async def test_a_gang_whose_search_takes_long_is_tried_again_when_it_has_ended() -> None:
    deferred = Deferred()
    async with cluster(nodes=machines(2, cpu="9"), solving=deferred) as c:
        await c.create(*mixed(TOO_TIGHT))
        await asyncio.sleep(2)
        said = await c.said_of_group("g", INITIALLY_SCHEDULED)
        assert said is not None
        assert said.reason == "SchedulingUndecided"
        assert said.message.endswith("an exact search is under way")
        assert (await _said(c))[0] == "Unschedulable"
        assert deferred.answered == deferred.began + 3.0
