from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from phalanx.api.feature_gates import DEFAULT_GATES
from phalanx.api.kinds import EVENT, NODE, POD
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.wire import Object
from phalanx.controllers import event_recorder as module
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.registry import ControllerContext
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster
from tests.recording_log import captured_lines

REGARDING = ObjectMeta(name="a", namespace="default", uid="u", resource_version="7")


def event_of(message: str = "hello", about: ObjectMeta = REGARDING) -> ObjectEvent:
    return ObjectEvent(POD, about, "Testing", message, "Warning")


@asynccontextmanager
async def running_recorder(
    is_busy: Callable[[], bool] = lambda: False,
) -> AsyncIterator[tuple[Cluster, EventRecorder]]:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        client = c.plane.client("recorder")
        recorder = EventRecorder(
            client, c.clock, SeededRandom(1), component="tester", is_busy=is_busy
        )
        running = asyncio.create_task(recorder.run())
        yield c, recorder
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def events(c: Cluster) -> list[Object]:
    return list((await c.client.list(EVENT)).items)


@in_virtual_time
async def test_an_event_has_object_reason_message_and_source() -> None:
    async with running_recorder() as (c, recorder):
        recorder.record(event_of())
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert event["metadata"]["name"].startswith("a.")
        assert event["involvedObject"] == {
            "kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "a", "uid": "u",
            "resourceVersion": "7",
        }  # fmt: skip
        assert (event["type"], event["reason"], event["message"], event["count"]) == (
            "Warning", "Testing", "hello", 1,
        )  # fmt: skip
        assert event["source"] == {"component": "tester"}


@in_virtual_time
async def test_a_repeated_event_increases_the_count() -> None:
    async with running_recorder() as (c, recorder):
        for _ in range(3):
            recorder.record(event_of())
            await asyncio.sleep(10)
        recorder.record(event_of("something else"))
        await asyncio.sleep(1)
        first, second = sorted(await events(c), key=lambda event: event["count"], reverse=True)
        assert (first["count"], second["count"]) == (3, 1)
        assert first["firstTimestamp"] == "2027-01-15T08:00:00Z"
        assert first["lastTimestamp"] == "2027-01-15T08:00:20Z"


@in_virtual_time
async def test_an_event_repeated_before_it_is_written_is_written_once() -> None:
    async with running_recorder() as (c, recorder):
        for _ in range(2):
            recorder.record(event_of())
        await asyncio.sleep(1)
        assert [event["count"] for event in await events(c)] == [2]


@in_virtual_time
async def test_many_events_share_a_commit() -> None:
    async with running_recorder() as (c, recorder):
        for number in range(20):
            recorder.record(event_of(str(number)))
        commits: list[int] = []
        c.store.subscribe(lambda changes: commits.append(len(changes)))
        await asyncio.sleep(1)
        assert commits == [20]


@in_virtual_time
async def test_an_event_has_the_time_at_which_it_was_recorded() -> None:
    busy = True
    async with running_recorder(lambda: busy) as (c, recorder):
        recorder.record(event_of())
        await asyncio.sleep(1.5)
        busy = False
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert event["firstTimestamp"] == "2027-01-15T08:00:00Z"


@in_virtual_time
async def test_events_wait_while_more_are_recorded_up_to_a_limit() -> None:
    async with running_recorder() as (c, recorder):
        for number in range(300):
            recorder.record(event_of(str(number)))
            await asyncio.sleep(0.01)
        written = [int(event["message"]) for event in await events(c)]
        assert max(written) in range(99, 128)
        await asyncio.sleep(1)
        assert len(await events(c)) == 300


@in_virtual_time
async def test_a_busy_component_writes_overdue_events_at_a_limited_rate() -> None:
    is_busy = True
    async with running_recorder(lambda: is_busy) as (c, recorder):
        for number in range(1000):
            recorder.record(event_of(str(number)))
        await asyncio.sleep(3)
        # The first are overdue after two seconds; then there are four batches in a second.
        assert len(await events(c)) in range(128, 170)
        is_busy = False
        await asyncio.sleep(1)
        assert len(await events(c)) == 1000


@in_virtual_time
async def test_events_of_another_uid_are_not_aggregated() -> None:
    async with running_recorder() as (c, recorder):
        recorder.record(event_of())
        recorder.record(event_of(about=ObjectMeta(name="a", namespace="default", uid="another")))
        await asyncio.sleep(1)
        assert [event["count"] for event in await events(c)] == [1, 1]


@in_virtual_time
async def test_a_deleted_event_is_created_again() -> None:
    async with running_recorder() as (c, recorder):
        recorder.record(event_of())
        await asyncio.sleep(1)
        (event,) = await events(c)
        await c.client.delete(EVENT, Key("default", event["metadata"]["name"]))
        for count in (1, 2):
            recorder.record(event_of())
            await asyncio.sleep(1)
            assert [event["count"] for event in await events(c)] == [count]


@in_virtual_time
async def test_an_event_that_repeats_after_it_expired_is_written_again() -> None:
    async with running_recorder() as (c, recorder):
        for _ in range(3):
            recorder.record(event_of())
            await asyncio.sleep(1)
            assert [event["count"] for event in await events(c)] == [1]
            await asyncio.sleep(3602)
            assert await events(c) == []


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
@in_virtual_time
async def test_a_long_message_is_truncated(letter: str) -> None:
    async with running_recorder() as (c, recorder):
        recorder.record(event_of(letter * 5000))
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert event["message"].endswith(f"{letter} ...")
        assert len(event["message"]) <= 1024


@in_virtual_time
async def test_an_event_of_a_cluster_scoped_object_is_in_the_default_namespace() -> None:
    async with running_recorder() as (c, recorder):
        recorder.record(ObjectEvent(NODE, ObjectMeta(name="n1", uid="u"), "Testing", "hello"))
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert (event["metadata"]["namespace"], event["involvedObject"]["kind"]) == (
            "default", "Node",
        )  # fmt: skip


@in_virtual_time
async def test_a_failed_event_is_dropped_and_the_others_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    async with running_recorder() as (c, recorder):
        recorder.record(event_of(about=ObjectMeta(name="a", namespace="nowhere", uid="u")))
        recorder.record(event_of("after"))
        await asyncio.sleep(1)
        assert [event["message"] for event in await events(c)] == ["after"]
    (line,) = captured_lines(caplog, "events")
    assert (line.level, line.message) == ("DEBUG", "event dropped")
    assert (line.fields["key"], line.fields["reason"]) == (
        "nowhere/a",
        'namespaces "nowhere" not found',
    )


@in_virtual_time
async def test_beyond_the_limit_the_oldest_events_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_EVENTS", 10)
    async with running_recorder(lambda: True) as (c, recorder):
        for number in range(1000):
            recorder.record(event_of(str(number)))
        await asyncio.sleep(100)
        messages = sorted(int(event["message"]) for event in await events(c))
        assert messages == list(range(990, 1000))


@in_virtual_time
async def test_events_wait_while_the_component_is_busy_up_to_a_limit() -> None:
    busy = True
    async with running_recorder(lambda: busy) as (c, recorder):
        recorder.record(event_of("patient"))
        await asyncio.sleep(1)
        assert await events(c) == []
        busy = False
        await asyncio.sleep(0.1)
        assert len(await events(c)) == 1
        busy = True
        recorder.record(event_of("impatient"))
        await asyncio.sleep(3)
        assert len(await events(c)) == 2


@in_virtual_time
async def test_events_of_controllers_wait_while_the_scheduler_is_busy() -> None:
    is_busy = True
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        client = c.plane.client("recorder")
        context = ControllerContext(
            client,
            Informers(client, SeededRandom(1)),
            c.clock,
            random=SeededRandom(1),
            gates=DEFAULT_GATES,
            kinds=(),
            is_busy=lambda: is_busy,
        )
        recorder = context.new_recorder("job-controller")
        running = asyncio.create_task(recorder.run())
        recorder.record(event_of())
        await asyncio.sleep(1)
        assert await events(c) == []
        is_busy = False
        await asyncio.sleep(0.1)
        assert len(await events(c)) == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
