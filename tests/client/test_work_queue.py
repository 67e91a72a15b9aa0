from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.client.work_queue import BASE_DELAY, MAX_DELAY, WorkQueue

from .conftest import run


async def ready(queue: WorkQueue[str]) -> list[str]:
    """All keys that can be had without waiting, in order; each is done at once."""
    keys = []
    while len(queue):
        keys.append(await queue.get())
        queue.done(keys[-1])
    return keys


async def moment(queue: WorkQueue[str]) -> float:
    """When the next key comes."""
    queue.done(await queue.get())
    return asyncio.get_running_loop().time()


def test_keys_come_in_the_order_in_which_they_were_added_and_only_once() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for key in "abacb":
            assert queue.add(key)
        assert await ready(queue) == ["a", "b", "c"]

    run(scenario())


def test_a_worker_waits_for_a_key() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(5)
        assert not worker.done()
        queue.add("a")
        assert await worker == "a"

    run(scenario())


def test_a_key_that_is_added_while_it_is_worked_on_comes_again_once_afterwards() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await ready(queue) == ["a"]

    run(scenario())


def test_a_delayed_key_comes_when_its_time_has_come() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 10)
        assert await moment(queue) == pytest.approx(10)

    run(scenario())


def test_of_several_delays_the_soonest_counts_and_an_add_does_not_cancel_it() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 10)
        queue.add_after("a", 3)
        queue.add_after("a", 5)
        queue.add("a")
        assert await moment(queue) == 0
        assert await moment(queue) == pytest.approx(3)
        await asyncio.sleep(100)
        assert len(queue) == 0

    run(scenario())


def test_a_delayed_key_that_is_being_worked_on_comes_again_afterwards() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await queue.get()
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        assert len(queue) == 0
        queue.done("a")
        assert await ready(queue) == ["a"]

    run(scenario())


def test_failures_of_a_key_lengthen_its_pause_until_they_are_forgotten() -> None:
    async def scenario() -> list[float]:
        queue: WorkQueue[str] = WorkQueue()
        pauses = []
        for _ in range(20):
            start = asyncio.get_running_loop().time()
            queue.retry("a")
            pauses.append(await moment(queue) - start)
        queue.retry("b")
        start = asyncio.get_running_loop().time()
        assert await moment(queue) - start == pytest.approx(BASE_DELAY)
        queue.forget("a")
        queue.retry("a")
        start = asyncio.get_running_loop().time()
        assert await moment(queue) - start == pytest.approx(BASE_DELAY)
        return pauses

    pauses = run(scenario())
    expected = [min(BASE_DELAY * 2**n, MAX_DELAY) for n in range(20)]
    assert pauses == pytest.approx(expected)


def test_a_full_queue_refuses_new_keys_and_loses_none_that_it_has() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(capacity=2)
        assert queue.add("a")
        assert queue.add_after("b", 1)
        assert not queue.add("c")
        assert not queue.retry("c")
        assert queue.add("a")
        assert queue.add_after("b", 2)
        assert await ready(queue) == ["a"]
        assert queue.add("c")
        await asyncio.sleep(1.5)
        assert await ready(queue) == ["c", "b"]

    run(scenario())


def test_a_key_to_be_done_again_takes_room_so_that_it_cannot_get_lost() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(capacity=1)
        queue.add("a")
        await queue.get()
        assert queue.add("a")
        assert not queue.add("b")
        queue.done("a")
        assert await ready(queue) == ["a"]

    run(scenario())


def test_a_closed_queue_adds_nothing_by_itself() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 1)
        queue.close()
        await asyncio.sleep(5)
        assert len(queue) == 0

    run(scenario())


def test_a_worker_that_is_stopped_while_it_waits_takes_no_key_with_it() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        worker.cancel()
        await asyncio.sleep(0)
        assert await ready(queue) == ["a"]

    run(scenario())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.3, 1.0])), max_size=20),
    st.integers(1, 3),
)
def test_every_add_is_followed_by_work_and_no_key_is_worked_on_twice_at_a_time(
    adds: list[tuple[str, float]], workers: int
) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        loop = asyncio.get_running_loop()
        busy: set[str] = set()
        begun: dict[str, float] = {}
        wanted: dict[str, float] = {}

        async def work() -> None:
            while True:
                key = await queue.get()
                assert key not in busy
                busy.add(key)
                begun[key] = loop.time()
                await asyncio.sleep(0.5)
                busy.discard(key)
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for key, delay in adds:
            wanted[key] = max(wanted.get(key, 0), loop.time())
            assert queue.add_after(key, delay) if delay else queue.add(key)
            await asyncio.sleep(0.2)
        await asyncio.sleep(60)
        assert not any(task.done() for task in tasks)
        assert all(begun[key] >= at for key, at in wanted.items())
        assert len(queue) == 0
        assert not busy

    run(scenario())
