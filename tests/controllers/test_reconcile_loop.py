from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from phalanx.api.core import Node, Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import CONFIG_MAP, NODE, POD
from phalanx.api.meta import Key, ObjectMeta
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, lagging_client

NOTHING_ELSE = ["scheduler", "controllers", "nodes"]
#: Refused every time: it is another uid.
REFUSED = Delete(CONFIG_MAP, Key("default", "a"), "another")


def made() -> Create:
    return Create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})


@asynccontextmanager
async def working(
    reconcile: Callable[[str], ReconcilePlan], workers: int = 1
) -> AsyncIterator[tuple[Cluster, ReconcileLoop[str]]]:
    async with cluster(without=NOTHING_ELSE) as c:
        loop: ReconcileLoop[str] = ReconcileLoop(c.client, reconcile, workers)
        running = asyncio.create_task(loop.run())
        yield c, loop
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_what_is_planned_is_done() -> None:
    async with working(lambda key: ReconcilePlan([made()])) as (c, loop):
        loop.queue.add("a")
        await asyncio.sleep(1)
        assert len((await c.client.list(CONFIG_MAP)).items) == 1


@in_virtual_time
async def test_what_fails_is_tried_again_later_and_later() -> None:
    times: list[float] = []

    def reconcile(key: str) -> ReconcilePlan:
        times.append(now())
        return ReconcilePlan([made(), REFUSED])

    async with working(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(30)
        pauses = [after - before for before, after in pairwise(times)]
        assert len(pauses) >= 8
        assert all(after > 1.9 * before for before, after in pairwise(pauses))


@in_virtual_time
async def test_after_a_success_the_next_failure_is_the_first() -> None:
    fails = True
    times: list[float] = []

    def reconcile(key: str) -> ReconcilePlan:
        times.append(now())
        return ReconcilePlan([made(), REFUSED]) if fails else ReconcilePlan()

    async with working(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(30)
        fails = False
        await asyncio.sleep(60)
        fails = True
        begin = len(times)
        loop.queue.add("a")
        await asyncio.sleep(0.1)
        assert len(times) - begin >= 3


@in_virtual_time
async def test_a_plan_may_ask_for_another_look_in_a_while() -> None:
    times: list[float] = []

    def reconcile(key: str) -> ReconcilePlan:
        times.append(now())
        return ReconcilePlan(requeue_after=10.0 if len(times) < 3 else None)

    async with working(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(100)
        assert times == [0.0, 10.0, 20.0]


@in_virtual_time
async def test_a_bug_in_a_reconcile_is_not_hidden() -> None:
    def reconcile(key: str) -> ReconcilePlan:
        raise ZeroDivisionError

    async with cluster(without=NOTHING_ELSE) as c:
        loop: ReconcileLoop[str] = ReconcileLoop(c.client, reconcile)
        loop.queue.add("a")
        with pytest.raises(ExceptionGroup) as caught:
            await loop.run()
        assert caught.group_contains(ZeroDivisionError)


@in_virtual_time
async def test_no_two_workers_are_on_one_key() -> None:
    busy: set[str] = set()

    def reconcile(key: str) -> ReconcilePlan:
        assert key not in busy
        busy.add(key)
        asyncio.get_running_loop().call_soon(busy.discard, key)
        return ReconcilePlan([made()])

    async with working(reconcile, workers=8) as (_, loop):
        for _ in range(20):
            for key in "abc":
                loop.queue.add(key)
            await asyncio.sleep(0)
        await asyncio.sleep(1)


@in_virtual_time
async def test_there_is_one_informer_per_kind() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        client, way = lagging_client(c)
        informers = Informers(client, SeededRandom(1))
        assert informers.of(POD, Pod) is informers.of(POD, Pod)
        informers.of(NODE, Node)
        await c.create(pod("a"))
        running = asyncio.create_task(informers.run())
        await informers.wait_for_sync()
        assert list(informers.of(POD, Pod).cache) == [Key("default", "a")]
        await asyncio.sleep(1)
        assert sorted(request.path for request in way.requests) == [
            NODE.url_path(), NODE.url_path(), POD.url_path(), POD.url_path(),
        ]  # fmt: skip
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_what_is_told_is_told_once_what_stands_before_it_is_done() -> None:
    first, second = (
        ObjectEvent(CONFIG_MAP, ObjectMeta(name=n), "Because", "") for n in ("first", "second")
    )
    told: list[ObjectEvent] = []
    refused: list[tuple[str, Action]] = []

    def refuse(key: str, action: Action, error: ApiError) -> None:
        refused.append((key, action))

    plan = ReconcilePlan([made(), RecordEvent(first), REFUSED, RecordEvent(second)])
    async with cluster(without=NOTHING_ELSE) as c:
        loop: ReconcileLoop[str] = ReconcileLoop(
            c.client, lambda key: plan, record=told.append, on_error=refuse
        )
        running = asyncio.create_task(loop.run())
        loop.queue.add("a")
        await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (told, refused) == ([first], [("a", REFUSED)])


@pytest.mark.parametrize("is_so", [True, False])
@in_virtual_time
async def test_what_is_not_so_is_not_acted_upon(is_so: bool) -> None:
    asked: list[str] = []

    async def confirm(key: str) -> bool:
        asked.append(key)
        return is_so

    async with cluster(without=NOTHING_ELSE) as c:
        plans = {"a": ReconcilePlan([made()]), "b": ReconcilePlan()}
        loop: ReconcileLoop[str] = ReconcileLoop(c.client, plans.__getitem__, confirm=confirm)
        running = asyncio.create_task(loop.run())
        for key in plans:
            loop.queue.add(key)
        await asyncio.sleep(1)
        assert len((await c.client.list(CONFIG_MAP)).items) == is_so
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert asked == ["a"]
