"""Unexpected exceptions: raised by default, in production contained, logged and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import count, pairwise

import orjson
import pytest

from phalanx.api.core import Pod
from phalanx.api.errors import Unauthorized
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.error_containment import RECONCILE_ERRORS, ErrorContainment
from phalanx.client.informer import Informer
from phalanx.randomness import SeededRandom
from phalanx.telemetry import Metrics
from tests.builders import in_virtual_time
from tests.recording_log import RecordingLog, captured_lines


def pod_object(name: str, version: int, **spec: object) -> Object:
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": spec}


def bad_pod(name: str, version: int) -> Object:
    """An object that is well-formed but no Pod."""
    return pod_object(name, version, containers=7)


class PodServer:
    """Lists some pods, then sends watch events as the test puts them."""

    def __init__(self, *pods: Object) -> None:
        self.pods, self.events = pods, asyncio.Queue[bytes]()
        self.revision = 10

    async def send(self, request: Request) -> Reply | StreamReply:
        if "watch=true" in request.query:
            return StreamReply(200, self._stream())
        listing = {"metadata": {"resourceVersion": str(self.revision)}, "items": self.pods}
        return Reply(200, orjson.dumps(listing))

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        while True:
            yield await self.events.get()

    def emit(self, event_type: str, obj: Object) -> None:
        self.events.put_nowait(orjson.dumps({"type": event_type, "object": obj}) + b"\n")

    async def close(self) -> None:
        """Do nothing."""


async def run_informer(server: PodServer, informer: Informer[Pod]) -> asyncio.Task[None]:
    running = asyncio.create_task(informer.run())
    await informer.synced.wait()
    await asyncio.sleep(0.1)
    return running


def contained(client: Client, controller: str = "informer") -> float:
    return client.metrics.series(RECONCILE_ERRORS, controller).value


@in_virtual_time
async def test_an_object_that_cannot_be_decoded_does_not_hide_the_others_of_a_list() -> None:
    server = PodServer(pod_object("a", 1), bad_pod("b", 2), pod_object("c", 3))
    client = Client(server, raise_errors=False)
    informer = Informer(client, POD, Pod, random=SeededRandom(1))
    running = await run_informer(server, informer)
    assert [key.name for key in informer.cache] == ["a", "c"]
    assert contained(client) == 1
    running.cancel()


@in_virtual_time
async def test_an_object_that_cannot_be_decoded_does_not_stop_a_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = PodServer(pod_object("a", 1, nodeName="n1"))
    client = Client(server, raise_errors=False)
    informer = Informer(client, POD, Pod, random=SeededRandom(1))
    running = await run_informer(server, informer)
    server.emit("MODIFIED", bad_pod("a", 11))
    server.emit("ADDED", pod_object("b", 12))
    await asyncio.sleep(0.1)
    # The last readable version stays: its resources are still in use.
    assert informer.cache[Key("default", "a")].spec.node_name == "n1"
    assert Key("default", "b") in informer.cache
    server.emit("DELETED", bad_pod("a", 13))
    await asyncio.sleep(0.1)
    assert [key.name for key in informer.cache] == ["b"]
    line = captured_lines(caplog, "informer")[0]
    assert (line.level, line.message) == (
        "ERROR",
        "object cannot be decoded, ignored until it changes",
    )
    assert (line.fields["key"], line.fields["resource"]) == ("default/a", "pods")
    running.cancel()


@in_virtual_time
async def test_a_handler_that_raises_for_one_object_gets_the_events_of_the_others() -> None:
    server = PodServer(pod_object("a", 1), pod_object("b", 2))
    client = Client(server, raise_errors=False)
    informer = Informer(client, POD, Pod, random=SeededRandom(1))
    seen: list[str] = []
    also_seen: list[str] = []

    def on_change(old: Pod | None, new: Pod | None) -> None:
        assert new is not None
        if new.metadata.name == "a":
            raise ZeroDivisionError("planted")
        seen.append(new.metadata.name)

    def on_change_too(old: Pod | None, new: Pod | None) -> None:
        assert new is not None
        also_seen.append(new.metadata.name)

    informer.cache.subscribe(on_change)
    informer.cache.subscribe(on_change_too)
    running = await run_informer(server, informer)
    assert (seen, also_seen) == (["b"], ["a", "b"])
    assert contained(client) == 1
    running.cancel()


@in_virtual_time
async def test_an_informer_whose_batches_fail_backs_off() -> None:
    server = PodServer()
    client = Client(server, raise_errors=False)
    informer = Informer(client, POD, Pod, random=SeededRandom(1))
    calls = count()

    def on_batch() -> None:
        # The list is a batch, and then the event of its watch is another one.
        number = next(calls)
        if number % 2 == 0:
            server.revision += 1
            server.emit("MODIFIED", pod_object("a", server.revision))
        elif number < 1000:
            raise ZeroDivisionError("planted")

    informer.on_batch.append(on_batch)
    running = await run_informer(server, informer)
    await asyncio.sleep(300)
    assert 5 < contained(client) < 60
    running.cancel()


@in_virtual_time
async def test_an_object_whose_index_keys_cannot_be_computed_is_in_no_index_until_it_changes() -> (
    None
):
    server = PodServer(pod_object("a", 1, nodeName="bad"), pod_object("b", 2, nodeName="n1"))
    informer = Informer(Client(server, raise_errors=False), POD, Pod, random=SeededRandom(1))

    def by_node(pod: Pod) -> list[str]:
        if pod.spec.node_name == "bad":
            raise ZeroDivisionError("planted")
        return [pod.spec.node_name]

    index = informer.cache.index(by_node)
    running = await run_informer(server, informer)
    assert [pod.metadata.name for pod in index["n1"]] == ["b"]
    server.emit("MODIFIED", pod_object("a", 11, nodeName="n1"))
    await asyncio.sleep(0.1)
    assert [pod.metadata.name for pod in index["n1"]] == ["b", "a"]
    running.cancel()


@in_virtual_time
async def test_by_default_a_handler_that_raises_ends_the_informer() -> None:
    server = PodServer(pod_object("a", 1))
    informer = Informer(Client(server), POD, Pod, random=SeededRandom(1))

    def on_change(old: Pod | None, new: Pod | None) -> None:
        raise ZeroDivisionError("planted")

    informer.cache.subscribe(on_change)
    with pytest.raises(ZeroDivisionError, match="planted"):
        await informer.run()


@in_virtual_time
async def test_a_task_that_raises_is_started_again_with_growing_back_off() -> None:
    log, times = RecordingLog(), list[float]()
    errors = ErrorContainment(Metrics(), raise_errors=False)

    async def run() -> None:
        times.append(asyncio.get_running_loop().time())
        raise ZeroDivisionError("planted")

    running = asyncio.create_task(errors.keep_running(run, log, controller="test"))
    await asyncio.sleep(300)
    running.cancel()
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert log.messages() == ["task failed, starting again: ZeroDivisionError: planted"] * len(
        times
    )


@in_virtual_time
async def test_a_rejected_credential_ends_a_task() -> None:
    errors = ErrorContainment(Metrics(), raise_errors=False)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reject())

    async def reject() -> None:
        raise Unauthorized("no")

    with pytest.raises(ExceptionGroup):
        await errors.keep_running(run, RecordingLog(), controller="test")
