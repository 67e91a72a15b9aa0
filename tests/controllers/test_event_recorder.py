from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from phalanx.api.kinds import EVENT, NODE, POD
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.wire import Object
from phalanx.controllers import event_recorder as module
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

ABOUT = ObjectMeta(name="a", namespace="default", uid="u", resource_version="7")


def note(message: str = "hello", about: ObjectMeta = ABOUT) -> ObjectEvent:
    return ObjectEvent(POD, about, "Testing", message, "Warning")


@asynccontextmanager
async def recording(
    is_busy: Callable[[], bool] = lambda: False,
) -> AsyncIterator[tuple[Cluster, EventRecorder]]:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        client = c.plane.client("recorder")
        recorder = EventRecorder(client, c.clock, SeededRandom(1), "tester", is_busy)
        running = asyncio.create_task(recorder.run())
        yield c, recorder
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def events(c: Cluster) -> list[Object]:
    return list((await c.client.list(EVENT)).items)


@in_virtual_time
async def test_an_event_says_what_happened_to_whom_and_who_says_so() -> None:
    async with recording() as (c, recorder):
        recorder.record(note())
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
async def test_what_happens_again_is_counted_and_not_written_again() -> None:
    async with recording() as (c, recorder):
        for _ in range(3):
            recorder.record(note())
            await asyncio.sleep(10)
        recorder.record(note("something else"))
        await asyncio.sleep(1)
        first, second = sorted(await events(c), key=lambda event: event["count"], reverse=True)
        assert (first["count"], second["count"]) == (3, 1)
        assert first["firstTimestamp"] == "2027-01-15T08:00:00Z"
        assert first["lastTimestamp"] == "2027-01-15T08:00:20Z"


@in_virtual_time
async def test_what_happens_twice_before_it_is_written_is_written_once() -> None:
    async with recording() as (c, recorder):
        for _ in range(2):
            recorder.record(note())
        await asyncio.sleep(1)
        assert [event["count"] for event in await events(c)] == [2]


@in_virtual_time
async def test_many_events_share_a_commit() -> None:
    async with recording() as (c, recorder):
        for number in range(20):
            recorder.record(note(str(number)))
        commits: list[int] = []
        c.store.subscribe(lambda changes: commits.append(len(changes)))
        await asyncio.sleep(1)
        assert commits == [20]


@in_virtual_time
async def test_events_are_dated_when_it_happened_however_late_they_are_written() -> None:
    busy = True
    async with recording(lambda: busy) as (c, recorder):
        recorder.record(note())
        await asyncio.sleep(1.5)
        busy = False
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert event["firstTimestamp"] == "2027-01-15T08:00:00Z"


@in_virtual_time
async def test_as_long_as_more_comes_events_wait_but_each_not_longer_than_others() -> None:
    async with recording() as (c, recorder):
        for number in range(300):
            recorder.record(note(str(number)))
            await asyncio.sleep(0.01)
        written = [int(event["message"]) for event in await events(c)]
        assert max(written) in range(99, 128)
        await asyncio.sleep(1)
        assert len(await events(c)) == 300


@in_virtual_time
async def test_the_same_news_of_a_namesake_is_other_news() -> None:
    async with recording() as (c, recorder):
        recorder.record(note())
        recorder.record(note(about=ObjectMeta(name="a", namespace="default", uid="another")))
        await asyncio.sleep(1)
        assert [event["count"] for event in await events(c)] == [1, 1]


@in_virtual_time
async def test_an_event_that_was_deleted_is_written_anew() -> None:
    async with recording() as (c, recorder):
        recorder.record(note())
        await asyncio.sleep(1)
        (event,) = await events(c)
        await c.client.delete(EVENT, Key("default", event["metadata"]["name"]))
        for _ in range(2):
            recorder.record(note())
            await asyncio.sleep(1)
        assert [event["count"] for event in await events(c)] == [1]


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
@in_virtual_time
async def test_a_long_message_is_cut(letter: str) -> None:
    async with recording() as (c, recorder):
        recorder.record(note(letter * 5000))
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert event["message"].endswith(f"{letter} ...")
        assert len(event["message"]) <= 1024


@in_virtual_time
async def test_an_event_about_what_has_no_namespace_goes_to_the_default_one() -> None:
    async with recording() as (c, recorder):
        recorder.record(ObjectEvent(NODE, ObjectMeta(name="n1", uid="u"), "Testing", "hello"))
        await asyncio.sleep(1)
        (event,) = await events(c)
        assert (event["metadata"]["namespace"], event["involvedObject"]["kind"]) == (
            "default", "Node",
        )  # fmt: skip


@in_virtual_time
async def test_what_cannot_be_written_is_dropped_and_the_rest_goes_on() -> None:
    async with recording() as (c, recorder):
        recorder.record(note(about=ObjectMeta(name="a", namespace="nowhere", uid="u")))
        recorder.record(note("after"))
        await asyncio.sleep(1)
        assert [event["message"] for event in await events(c)] == ["after"]


@in_virtual_time
async def test_no_more_events_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_EVENTS", 10)
    async with recording(lambda: True) as (c, recorder):
        for number in range(1000):
            recorder.record(note(str(number)))
        await asyncio.sleep(100)
        messages = sorted(int(event["message"]) for event in await events(c))
        assert messages == list(range(990, 1000))


@in_virtual_time
async def test_events_wait_for_a_quiet_moment_but_not_for_ever() -> None:
    busy = True
    async with recording(lambda: busy) as (c, recorder):
        recorder.record(note("patient"))
        await asyncio.sleep(1)
        assert await events(c) == []
        busy = False
        await asyncio.sleep(0.1)
        assert len(await events(c)) == 1
        busy = True
        recorder.record(note("impatient"))
        await asyncio.sleep(3)
        assert len(await events(c)) == 2
