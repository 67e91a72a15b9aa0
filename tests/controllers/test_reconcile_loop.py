"""Reconcile loops: retries, plans, shared informers, and their log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from phalanx.api.core import Node, Pod
from phalanx.api.errors import ApiError, Expired
from phalanx.api.kinds import CONFIG_MAP, NAMESPACE, NODE, POD
from phalanx.api.meta import Key, ObjectMeta, PartialObjectMetadata
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
    StaleCacheError,
)
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.test_scheduler_runner import LOST, BlockableTransport
from tests.recording_log import captured_lines

NOTHING_ELSE = ["scheduler", "controllers", "nodes"]
#: Always fails: the uid differs.
REFUSED = Delete(CONFIG_MAP, Key("default", "a"), "another")


def create_action() -> Create:
    return Create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})


@asynccontextmanager
async def running_loop(
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
async def test_the_actions_of_a_plan_are_performed() -> None:
    async with running_loop(lambda key: ReconcilePlan([create_action()])) as (c, loop):
        loop.queue.add("a")
        await asyncio.sleep(1)
        assert len((await c.client.list(CONFIG_MAP)).items) == 1


@in_virtual_time
async def test_a_failed_key_is_retried_with_growing_back_off() -> None:
    times: list[float] = []

    def reconcile(key: str) -> ReconcilePlan:
        times.append(now())
        return ReconcilePlan([create_action(), REFUSED])

    async with running_loop(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(30)
        pauses = [after - before for before, after in pairwise(times)]
        assert len(pauses) >= 8
        assert all(after > 1.9 * before for before, after in pairwise(pauses))


@in_virtual_time
async def test_a_success_resets_the_back_off() -> None:
    fails = True
    times: list[float] = []

    def reconcile(key: str) -> ReconcilePlan:
        times.append(now())
        return ReconcilePlan([create_action(), REFUSED]) if fails else ReconcilePlan()

    async with running_loop(reconcile) as (_, loop):
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
async def test_requeue_after_reconciles_again_after_that_time() -> None:
    times: list[float] = []

    def reconcile(key: str) -> ReconcilePlan:
        times.append(now())
        return ReconcilePlan(requeue_after=10.0 if len(times) < 3 else None)

    async with running_loop(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(100)
        assert times == [0.0, 10.0, 20.0]


@in_virtual_time
async def test_an_unexpected_exception_ends_the_loop() -> None:
    def reconcile(key: str) -> ReconcilePlan:
        raise ZeroDivisionError

    async with cluster(without=NOTHING_ELSE) as c:
        loop: ReconcileLoop[str] = ReconcileLoop(c.client, reconcile)
        loop.queue.add("a")
        with pytest.raises(ExceptionGroup) as caught:
            await loop.run()
        assert caught.group_contains(ZeroDivisionError)


@in_virtual_time
async def test_two_workers_never_handle_the_same_key() -> None:
    busy: set[str] = set()

    def reconcile(key: str) -> ReconcilePlan:
        assert key not in busy
        busy.add(key)
        asyncio.get_running_loop().call_soon(busy.discard, key)
        return ReconcilePlan([create_action()])

    async with running_loop(reconcile, workers=8) as (_, loop):
        for _ in range(20):
            for key in "abc":
                loop.queue.add(key)
            await asyncio.sleep(0)
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_kind_is_decoded_by_its_reader_whichever_informer_is_asked_for_first() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        informers = Informers(lagging_client(c)[0], SeededRandom(1))
        metadata = informers.metadata_informer(POD)
        assert metadata is informers.of(Pod)
        await c.create(pod("a"))
        running = asyncio.create_task(informers.run())
        await informers.wait_for_sync()
        assert [type(found) for found in metadata.cache.values()] == [Pod]
        with pytest.raises(LookupError):
            informers.of(PartialObjectMetadata)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_there_is_one_informer_per_kind() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        client, transport = lagging_client(c)
        informers = Informers(client, SeededRandom(1))
        assert informers.of(Pod) is informers.of(Pod)
        informers.of(Node)
        await c.create(pod("a"))
        running = asyncio.create_task(informers.run())
        await informers.wait_for_sync()
        assert list(informers.of(Pod).cache) == [Key("default", "a")]
        await asyncio.sleep(1)
        assert sorted(request.path for request in transport.requests) == [
            NODE.url_path(), NODE.url_path(), POD.url_path(), POD.url_path(),
        ]  # fmt: skip
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_an_event_is_recorded_only_after_the_actions_before_it() -> None:
    first, second = (
        ObjectEvent(CONFIG_MAP, ObjectMeta(name=n), "Because", "") for n in ("first", "second")
    )
    recorded: list[ObjectEvent] = []
    refused: list[tuple[str, Action]] = []

    def refuse(key: str, action: Action, error: ApiError) -> None:
        refused.append((key, action))

    plan = ReconcilePlan([create_action(), RecordEvent(first), REFUSED, RecordEvent(second)])
    async with cluster(without=NOTHING_ELSE) as c:
        loop: ReconcileLoop[str] = ReconcileLoop(
            c.client, lambda key: plan, record=recorded.append, on_error=refuse
        )
        running = asyncio.create_task(loop.run())
        loop.queue.add("a")
        await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (recorded, refused) == ([first], [("a", REFUSED)])


@pytest.mark.parametrize("confirmed", [True, False])
@in_virtual_time
async def test_confirm_decides_whether_the_actions_are_performed(confirmed: bool) -> None:
    keys: list[str] = []

    async def confirm(key: str) -> bool:
        keys.append(key)
        return confirmed

    async with cluster(without=NOTHING_ELSE) as c:
        plans = {"a": ReconcilePlan([create_action()]), "b": ReconcilePlan()}
        loop: ReconcileLoop[str] = ReconcileLoop(c.client, plans.__getitem__, confirm=confirm)
        running = asyncio.create_task(loop.run())
        for key in plans:
            loop.queue.add(key)
        await asyncio.sleep(1)
        assert len((await c.client.list(CONFIG_MAP)).items) == confirmed
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert keys == ["a"]


# ---- log lines -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_retry_is_a_warning_with_attempt_and_back_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def reconcile(key: str) -> ReconcilePlan:
        return ReconcilePlan([create_action(), REFUSED])

    async with running_loop(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(0.05)
    lines = captured_lines(caplog, "controllers")
    assert {(line.level, line.message) for line in lines} == {
        ("WARNING", "reconcile failed, retrying")
    }
    attempts = [(line.fields["attempt"], line.fields["backoff"]) for line in lines]
    assert attempts == [("1", "0.01"), ("2", "0.02"), ("3", "0.04")]
    assert lines[0].fields["key"] == "a"
    assert "reconcile" in lines[0].fields["controller"]
    assert "the UID in the precondition (another)" in lines[0].fields["reason"]


@in_virtual_time
async def test_a_stale_cache_is_retried_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")

    def reconcile(key: str) -> ReconcilePlan:
        raise StaleCacheError("not yet")

    async with running_loop(reconcile) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(0.005)
    (line,) = captured_lines(caplog, "controllers")
    assert (line.level, line.fields["reason"]) == ("DEBUG", "not yet")


@in_virtual_time
async def test_a_namespace_that_is_being_deleted_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    failed: list[Action] = []
    create = Create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "x"}})
    async with cluster(without=NOTHING_ELSE) as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        await c.delete(NAMESPACE, "x")
        loop: ReconcileLoop[str] = ReconcileLoop(
            c.client,
            lambda key: ReconcilePlan([create]),
            on_error=lambda key, action, error: failed.append(action),
        )
        running = asyncio.create_task(loop.run())
        loop.queue.add("a")
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    lines = captured_lines(caplog, "controllers")
    retries = [line for line in lines if line.message == "reconcile failed, retrying"]
    assert {line.level for line in retries} == {"DEBUG"}
    assert "is being terminated" in retries[0].fields["reason"]
    assert failed == []


@in_virtual_time
async def test_every_action_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    key = Key("default", "a")
    plan = ReconcilePlan([
        Create(CONFIG_MAP, {"metadata": {"generateName": "b-", "namespace": "default"}}),
        create_action(),
        Patch(CONFIG_MAP, key, {"data": {"x": "y"}}),
        Patch(POD, key, {"status": {"phase": "Running"}}, subresource="status"),
        RecordEvent(ObjectEvent(CONFIG_MAP, ObjectMeta(name="c"), "Because", "")),
    ])  # fmt: skip
    async with running_loop(lambda _: plan) as (_, loop):
        loop.queue.add("a")
        await asyncio.sleep(0.005)
    lines = captured_lines(caplog, "controllers")
    assert {line.fields["controller"] for line in lines} == {loop.queue.name}
    fields = [
        {name: value for name, value in line.fields.items() if name != "controller"}
        for line in lines
    ]
    assert [(line.message, shown) for line, shown in zip(lines, fields, strict=True)] == [
        ("action", {"action": "Create", "kind": "ConfigMap", "key": "default/b-*"}),
        ("action", {"action": "Create", "kind": "ConfigMap", "key": "default/a"}),
        ("action", {"action": "Patch", "kind": "ConfigMap", "key": "default/a"}),
        (
            "action",
            {"action": "Patch", "kind": "Pod", "key": "default/a", "subresource": "status"},
        ),
        ("action", {"action": "RecordEvent", "kind": "ConfigMap", "key": "c"}),
    ]


@in_virtual_time
async def test_a_broken_watch_and_a_new_list_are_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        transport = BlockableTransport(c.plane.server)
        informers = Informers(Client(transport), SeededRandom(1))
        informers.of(Pod)
        running = asyncio.create_task(informers.run())
        await informers.wait_for_sync()
        transport.block()
        await asyncio.sleep(60)
        transport.clear()
        transport.refuse = lambda request: (
            Expired("too old resource version") if "watch" in request.query else None
        )
        await asyncio.sleep(40)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    lines = [(line.message, line.fields) for line in captured_lines(caplog, "informer")]
    assert lines[:3] == [
        ("informer disconnected", {"resource": "pods", "reason": str(LOST)}),
        ("informer disconnected", {"resource": "pods", "reason": "too old resource version"}),
        ("informer lists again", {"resource": "pods"}),
    ]
    assert {line.level for line in captured_lines(caplog, "informer")} == {"WARNING"}
