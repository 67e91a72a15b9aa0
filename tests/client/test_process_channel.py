"""The channel between two processes: both ends in one process, over a real socket pair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import wraps
from typing import ParamSpec

import msgspec
import pytest
import uvloop

from phalanx.api.wire import Handler, Reply, Request, StreamReply, UserInfo
from phalanx.client import process_channel
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import InProcessTransport, Unreachable
from tests.recording_log import captured_lines

P = ParamSpec("P")

USER = UserInfo("system:test", ("a", "b"), "7", (("k", "v"),))


def run_on_uvloop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on uvloop, the event loop of the real processes."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 240))

    return run


async def reply_not_found(request: Request) -> Reply:
    return Reply(404, b"", headers=(("x", request.path),))


@asynccontextmanager
async def connected_channels(
    near_handler: Handler = reply_not_found, far_handler: Handler = reply_not_found
) -> AsyncIterator[tuple[ProcessChannel, ProcessChannel]]:
    """Connect two channels, each with the handler of its end."""
    near, far = socket.socketpair()
    ends = (
        await ProcessChannel.connect(near, near_handler),
        await ProcessChannel.connect(far, far_handler),
    )
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
        for end in ends:
            await end.closed


@run_on_uvloop
async def test_request_and_reply_arrive_unchanged() -> None:
    received: list[Request] = []

    async def answer(request: Request) -> Reply:
        received.append(request)
        return Reply(201, b"done", "text/plain", (("warning", "w"),))

    async with connected_channels(far_handler=answer) as (near, _):
        sent = Request("POST", "/p", "q=1", {"accept": "x"}, b"body", UserInfo("ignored"))
        assert await InProcessTransport(near.request, USER).send(sent) == await answer(sent)
    assert received[0] == Request("POST", "/p", "q=1", {"accept": "x"}, b"body", USER)


@run_on_uvloop
async def test_object_body_arrives_as_json() -> None:
    async def echo(request: Request) -> Reply:
        assert isinstance(request.body, bytes)
        return Reply(200, request.body)

    async with connected_channels(far_handler=echo) as (near, _):
        answer = await near.request(Request("POST", "/", body={"a": [1]}))
        assert isinstance(answer, Reply)
        assert answer.body == b'{"a":[1]}'


@run_on_uvloop
async def test_both_ends_send_requests_and_replies_arrive_in_any_order() -> None:
    late = asyncio.Event()

    async def slow(request: Request) -> Reply:
        if request.path == "/first":
            await late.wait()
        return Reply(200, request.path.encode())

    async with connected_channels(slow, slow) as (near, far):
        first = asyncio.create_task(near.request(Request("GET", "/first")))
        second = await near.request(Request("GET", "/second"))
        back = await far.request(Request("GET", "/third"))
        late.set()
        found = [await first, second, back]
    assert [reply.body for reply in found if isinstance(reply, Reply)] == [
        b"/first", b"/second", b"/third",
    ]  # fmt: skip


@run_on_uvloop
async def test_reply_of_many_megabytes_arrives_complete() -> None:
    big = bytes(range(256)) * 65_536

    async def answer(request: Request) -> Reply:
        return Reply(200, big)

    async with connected_channels(far_handler=answer) as (near, _):
        found = await near.request(Request("GET", "/"))
        assert isinstance(found, Reply)
        assert found.body == big


class ChunkStream:
    """A stream of a given number of chunks that records when it is closed."""

    def __init__(self, pieces: int, size: int = 1) -> None:
        self.closed, self._pieces, self._size = asyncio.Event(), pieces, size

    async def __call__(self, request: Request) -> StreamReply:
        return StreamReply(200, self._chunks(), headers=(("h", "v"),))

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(self._pieces):
                yield b"%d;" % number * self._size
                await asyncio.sleep(0)
            if self._pieces == 1:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


@run_on_uvloop
async def test_stream_arrives_in_chunks_and_ends() -> None:
    async with connected_channels(far_handler=ChunkStream(500)) as (near, _):
        answer = await near.request(Request("GET", "/"))
        assert isinstance(answer, StreamReply)
        assert answer.headers == (("h", "v"),)
        body = b"".join([chunk async for chunk in answer.chunks])
    assert body == b"".join(b"%d;" % number for number in range(500))


@run_on_uvloop
async def test_closing_a_stream_ends_it_at_the_other_end() -> None:
    watch = ChunkStream(1)
    async with connected_channels(far_handler=watch) as (near, _):
        answer = await near.request(Request("GET", "/"))
        assert isinstance(answer, StreamReply)
        async with aclosing(answer.chunks) as chunks:
            assert await anext(chunks) == b"0;"
        await asyncio.wait_for(watch.closed.wait(), 240)


@run_on_uvloop
async def test_stream_that_is_not_read_is_dropped_without_blocking_the_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_channel, "MAX_UNREAD_BYTES", 100_000)
    watch = ChunkStream(2_000, size=100)
    async with connected_channels(far_handler=watch) as (near, _):
        answer = await near.request(Request("GET", "/"))
        assert isinstance(answer, StreamReply)
        await asyncio.wait_for(watch.closed.wait(), 240)
        with pytest.raises(Unreachable, match="not read"):
            _ = [chunk async for chunk in answer.chunks]


@run_on_uvloop
async def test_request_in_progress_completes_although_its_caller_is_cancelled() -> None:
    started, may_finish, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(request: Request) -> Reply:
        started.set()
        await may_finish.wait()
        finished.set()
        return Reply(200, b"")

    async with connected_channels(far_handler=work) as (near, _):
        sent = asyncio.create_task(near.request(Request("POST", "/")))
        await started.wait()
        sent.cancel()
        may_finish.set()
        await asyncio.wait_for(finished.wait(), 240)
        assert sent.cancelled()


@run_on_uvloop
async def test_reply_to_a_call_cancelled_in_the_same_iteration_is_dropped() -> None:
    never = asyncio.Event()
    streams = ChunkStream(1)

    async def wait_or_stream(request: Request) -> Reply | StreamReply:
        if request.path == "/watch":
            return await streams(request)
        await never.wait()
        raise AssertionError

    async with connected_channels(far_handler=wait_or_stream) as (near, _):
        sent = asyncio.create_task(near.request(Request("GET", "/")))
        await asyncio.sleep(0)
        sent.cancel()
        reply = msgspec.msgpack.encode(
            process_channel.ReplyFrame(1, 200, "text/plain", headers=(), body=b"")
        )
        near.data_received(len(reply).to_bytes(4, "big") + reply)
        with pytest.raises(asyncio.CancelledError):
            await sent
        stream = await near.request(Request("GET", "/watch"))
        assert isinstance(stream, StreamReply)
        assert await anext(stream.chunks) == b"0;"


@run_on_uvloop
async def test_channel_that_ends_with_a_cancelled_call_fails_the_other_calls() -> None:
    async def never(request: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with connected_channels(far_handler=never) as (near, _):
        cancelled = asyncio.create_task(near.request(Request("GET", "/")))
        pending = asyncio.create_task(near.request(Request("GET", "/")))
        await asyncio.sleep(0)
        cancelled.cancel()
        near.connection_lost(None)
        with pytest.raises(Unreachable):
            await pending
        with pytest.raises(asyncio.CancelledError):
            await cancelled


@run_on_uvloop
async def test_pending_requests_fail_when_the_other_process_ends() -> None:
    async def never(request: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    watch = ChunkStream(1)

    async def answer(request: Request) -> Reply | StreamReply:
        return await (watch if request.path == "/watch" else never)(request)

    async with connected_channels(far_handler=answer) as (near, far):
        stream = await near.request(Request("GET", "/watch"))
        assert isinstance(stream, StreamReply)
        assert await anext(stream.chunks) == b"0;"
        sent = asyncio.create_task(near.request(Request("GET", "/")))
        await near.request(Request("GET", "/watch"))
        far.close()
        await near.closed
        with pytest.raises(Unreachable):
            await sent
        with pytest.raises(Unreachable):
            await anext(stream.chunks)
        with pytest.raises(Unreachable, match="it has ended"):
            await near.request(Request("GET", "/"))
        await asyncio.wait_for(watch.closed.wait(), 240)


@run_on_uvloop
async def test_finish_cancels_requests_that_take_too_long(caplog: pytest.LogCaptureFixture) -> None:
    cancelled, received = asyncio.Event(), asyncio.Event()

    async def hang(request: Request) -> Reply:
        received.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with connected_channels(near_handler=hang) as (near, far):
        asking = asyncio.create_task(far.request(Request("GET", "/")))
        await received.wait()
        await near.finish(0.01)
        await cancelled.wait()
        with pytest.raises(Unreachable):
            await asking
    assert [line.message for line in captured_lines(caplog, "client")] == [
        "requests of the other process cancelled"
    ]


@run_on_uvloop
async def test_finish_does_not_wait_for_a_process_that_reads_nothing() -> None:
    near, far = socket.socketpair()
    with far:
        channel = await ProcessChannel.connect(near, reply_not_found)
        asking = asyncio.create_task(channel.request(Request("POST", "/", body=bytes(8 << 20))))
        await asyncio.sleep(0)
        await channel.finish(0.01)
        with pytest.raises(Unreachable):
            await asking
