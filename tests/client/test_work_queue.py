from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.client.work_queue import BASE_DELAY, MAX_DELAY, WorkQueue

from .conftest import run


async def get_ready(queue: WorkQueue[str]) -> list[str]:
    """Get all keys that are ready, in order; each is done at once."""
    keys = []
    while len(queue):
        keys.append(await queue.get())
        queue.done(keys[-1])
    return keys


async def next_key_time(queue: WorkQueue[str]) -> float:
    """Wait for the next key and return the time."""
    queue.done(await queue.get())
    return asyncio.get_running_loop().time()


def test_keys_are_returned_once_in_the_order_of_their_first_add() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for key in "abacb":
            assert queue.add(key)
        assert await get_ready(queue) == ["a", "b", "c"]

    run(scenario())


def test_worker_waits_for_a_key() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(5)
        assert not worker.done()
        queue.add("a")
        assert await worker == "a"

    run(scenario())


def test_key_added_while_in_process_is_returned_once_more_afterwards() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await get_ready(queue) == ["a"]

    run(scenario())


def test_delayed_key_is_returned_after_its_delay() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 10)
        assert await next_key_time(queue) == pytest.approx(10)

    run(scenario())


def test_shortest_of_several_delays_counts_and_an_add_does_not_cancel_it() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 10)
        queue.add_after("a", 3)
        queue.add_after("a", 5)
        queue.add("a")
        assert await next_key_time(queue) == 0
        assert await next_key_time(queue) == pytest.approx(3)
        await asyncio.sleep(100)
        assert len(queue) == 0

    run(scenario())


def test_delayed_key_that_is_in_process_is_returned_again_afterwards() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await queue.get()
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        assert len(queue) == 0
        queue.done("a")
        assert await get_ready(queue) == ["a"]

    run(scenario())


def test_retries_of_a_key_back_off_until_it_is_forgotten() -> None:
    async def scenario() -> list[float]:
        queue: WorkQueue[str] = WorkQueue()
        delays = []
        for _ in range(20):
            start = asyncio.get_running_loop().time()
            queue.add_rate_limited("a")
            delays.append(await next_key_time(queue) - start)
        queue.add_rate_limited("b")
        start = asyncio.get_running_loop().time()
        assert await next_key_time(queue) - start == pytest.approx(BASE_DELAY)
        queue.forget("a")
        queue.add_rate_limited("a")
        start = asyncio.get_running_loop().time()
        assert await next_key_time(queue) - start == pytest.approx(BASE_DELAY)
        return delays

    delays = run(scenario())
    expected = [min(BASE_DELAY * 2**n, MAX_DELAY) for n in range(20)]
    assert delays == pytest.approx(expected)


def test_full_queue_rejects_new_keys_and_keeps_the_present_ones() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(capacity=2)
        assert queue.add("a")
        assert queue.add_after("b", 1)
        assert not queue.add("c")
        assert not queue.add_rate_limited("c")
        assert queue.add("a")
        assert queue.add_after("b", 2)
        assert await get_ready(queue) == ["a"]
        assert queue.add("c")
        await asyncio.sleep(1.5)
        assert await get_ready(queue) == ["c", "b"]

    run(scenario())


def test_key_added_while_in_process_counts_against_the_capacity() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(capacity=1)
        queue.add("a")
        await queue.get()
        assert queue.add("a")
        assert not queue.add("b")
        queue.done("a")
        assert await get_ready(queue) == ["a"]

    run(scenario())


def test_closed_queue_drops_delayed_keys() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 1)
        queue.close()
        await asyncio.sleep(5)
        assert len(queue) == 0

    run(scenario())


def test_key_of_a_worker_that_is_woken_and_cancelled_at_once_goes_to_another() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        queue.add("a")
        first.cancel()
        assert await asyncio.wait_for(second, 1) == "a"
        assert first.cancelled()

    run(scenario())


def test_worker_cancelled_while_waiting_leaves_its_key_in_the_queue() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        worker.cancel()
        await asyncio.sleep(0)
        assert await get_ready(queue) == ["a"]

    run(scenario())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.3, 1.0])), max_size=20),
    st.integers(1, 3),
)
def test_every_add_is_processed_and_no_key_is_processed_concurrently(
    adds: list[tuple[str, float]], workers: int
) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        loop = asyncio.get_running_loop()
        busy: set[str] = set()
        started: dict[str, float] = {}
        added: dict[str, float] = {}

        async def work() -> None:
            while True:
                key = await queue.get()
                assert key not in busy
                busy.add(key)
                started[key] = loop.time()
                await asyncio.sleep(0.5)
                busy.discard(key)
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for key, delay in adds:
            added[key] = max(added.get(key, 0), loop.time())
            assert queue.add_after(key, delay) if delay else queue.add(key)
            await asyncio.sleep(0.2)
        await asyncio.sleep(60)
        assert not any(task.done() for task in tasks)
        assert all(started[key] >= at for key, at in added.items())
        assert len(queue) == 0
        assert not busy

    run(scenario())
