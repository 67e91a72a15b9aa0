from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import count, takewhile
from typing import Any

import pytest

from phalanx.sim.virtual_time import (
    UNSUPPORTED_METHODS,
    NoTimerLeft,
    RealWorldAccess,
    SimulationTimeout,
    UnhandledTaskError,
    VirtualLoop,
    run_virtual,
)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_starts_at_zero_and_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        times = [now()]
        for seconds in (0.5, 3600, 0):
            await asyncio.sleep(seconds)
            times.append(now())
        return times

    assert run_virtual(main) == [0.0, 0.5, 3600.5, 3600.5]


def test_sums_that_differ_by_rounding_are_one_time() -> None:
    async def main() -> list[float]:
        times: list[float] = []
        for when in (0.1 + 0.2, 0.3, 0.30000049):
            asyncio.get_running_loop().call_at(when, lambda: times.append(now()))
        await asyncio.sleep(1)
        return times

    assert 0.1 + 0.2 != 0.3
    assert run_virtual(main) == [0.3, 0.3, 0.3]


def test_shortest_wait_takes_time() -> None:
    async def main() -> float:
        await asyncio.sleep(1)
        await asyncio.sleep(1e-9)
        return now()

    assert run_virtual(main) == 1.000001


def test_a_year_of_virtual_time_takes_seconds() -> None:
    begin = time.process_time()
    run_virtual(lambda: asyncio.sleep(365 * 24 * 3600))
    assert time.process_time() - begin < 5


def test_timers_of_one_moment_fire_in_a_fixed_order() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        for number in range(9):
            asyncio.get_running_loop().call_at(1.0, fired.append, number)
        await asyncio.sleep(1)
        return fired

    assert sorted(run_virtual(main)) == list(range(9))
    assert run_virtual(main) == run_virtual(main)


def test_no_timer_fires_early_and_repeated_waits_reach_a_deadline() -> None:
    async def main() -> bool:
        async def wait_until(deadline: float) -> None:
            for _ in takewhile(lambda _: now() < deadline, count()):
                await asyncio.sleep(deadline - now())

        for n in range(1, 2000):
            await wait_until(now() + n / 7)
        return True

    assert run_virtual(main, max_iterations=50_000)


def test_ready_tasks_run_before_time_advances() -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return now()

    assert run_virtual(main) == 0.0


def test_timeouts_use_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return now()

    assert run_virtual(main) == 30.0


def test_deadlock_error_names_the_waiting_tasks() -> None:
    async def main() -> None:
        async def wait_forever() -> None:
            await asyncio.Event().wait()

        await asyncio.sleep(2)
        await asyncio.create_task(wait_forever(), name="waiting-task")

    with pytest.raises(
        NoTimerLeft, match=r"at t=2 no timer is left.*waiting-task \(.*wait_forever\)"
    ):
        run_virtual(main)


def test_virtual_time_is_bounded() -> None:
    async def main() -> None:
        for _ in count():
            await asyncio.sleep(7)

    with pytest.raises(SimulationTimeout, match="no end after 100 virtual seconds"):
        run_virtual(main, max_seconds=100)


def test_loop_iterations_are_bounded() -> None:
    async def main() -> None:
        for _ in count():
            await asyncio.sleep(0)

    with pytest.raises(SimulationTimeout, match="no end after 1000 turns of the loop, at t=0"):
        run_virtual(main, max_iterations=1000)


def test_unhandled_error_ends_the_simulation() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: [][0])
        await asyncio.sleep(10)

    with pytest.raises(UnhandledTaskError) as raised:
        run_virtual(main)
    assert isinstance(raised.value.__cause__, IndexError)


def test_tasks_and_generators_are_closed_at_the_end() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("generator")

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            closed.append("task")

    kept: list[object] = []

    async def main() -> asyncio.AbstractEventLoop:
        generator, task = numbers(), asyncio.create_task(background())
        kept.extend((generator, task))
        await anext(generator)
        await asyncio.sleep(1)
        return asyncio.get_running_loop()

    assert run_virtual(main).is_closed()
    assert closed == ["task", "generator"]


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_METHODS))
def test_loop_methods_for_real_input_and_output_are_rejected(name: str) -> None:
    assert hasattr(asyncio.SelectorEventLoop, name)

    async def main() -> None:
        getattr(asyncio.get_running_loop(), name)(None, None)

    with pytest.raises(RealWorldAccess, match=UNSUPPORTED_METHODS[name]):
        run_virtual(main)


async def run_in_thread() -> None:
    await asyncio.to_thread(time.monotonic)


async def start_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def open_connection() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def start_server() -> None:
    await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)


@pytest.mark.parametrize(
    "use_real_world", [run_in_thread, start_process, open_connection, start_server]
)
def test_threads_processes_and_sockets_are_rejected_with_a_message(
    use_real_world: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(RealWorldAccess, match="in virtual time there are no"):
        run_virtual(use_real_world)


def test_reader_cannot_be_added_through_the_base_class() -> None:
    async def main() -> None:
        loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
        with ours, theirs:
            asyncio.SelectorEventLoop.add_reader(loop, ours, print)  # type: ignore[arg-type]

    with pytest.raises(RealWorldAccess):
        run_virtual(main)


def test_other_threads_cannot_schedule_callbacks() -> None:
    async def main() -> list[Exception]:
        loop = asyncio.get_running_loop()
        errors: list[Exception] = []

        def call_from_thread() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RealWorldAccess as error:
                errors.append(error)

        thread = threading.Thread(target=call_from_thread)
        thread.start()
        thread.join()
        done = asyncio.Event()
        loop.call_soon_threadsafe(done.set)
        await done.wait()
        return errors

    assert len(run_virtual(main)) == 1


def test_virtual_loop_is_the_running_loop() -> None:
    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), VirtualLoop)

    assert run_virtual(main)
