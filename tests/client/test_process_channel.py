"""The line between two processes: both ends in one, over a real pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import wraps
from typing import ParamSpec

import pytest
import uvloop

from phalanx.api.wire import Handler, Reply, Request, StreamReply, UserInfo
from phalanx.client import process_channel as module
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import InProcessTransport, Unreachable

P = ParamSpec("P")

USER = UserInfo("system:somebody", ("a", "b"), "7", (("k", "v"),))


def really(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on the loop that the two processes have."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


async def nobody(request: Request) -> Reply:
    return Reply(404, b"", headers=(("x", request.path),))


@asynccontextmanager
async def lines(
    one: Handler = nobody, other: Handler = nobody
) -> AsyncIterator[tuple[ProcessChannel, ProcessChannel]]:
    """Both ends, each with what answers there."""
    here, there = socket.socketpair()
    ends = await ProcessChannel.connect(here, one), await ProcessChannel.connect(there, other)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
        for end in ends:
            await end.closed


@really
async def test_a_request_arrives_as_it_was_sent_and_so_does_its_answer() -> None:
    heard: list[Request] = []

    async def answer(request: Request) -> Reply:
        heard.append(request)
        return Reply(201, b"done", "text/plain", (("warning", "w"),))

    async with lines(other=answer) as (here, _):
        asked = Request("POST", "/p", "q=1", {"accept": "x"}, b"body", UserInfo("ignored"))
        assert await InProcessTransport(here.request, USER).send(asked) == await answer(asked)
    assert heard[0] == Request("POST", "/p", "q=1", {"accept": "x"}, b"body", USER)


@really
async def test_a_body_that_is_an_object_arrives_as_json() -> None:
    async def echo(request: Request) -> Reply:
        assert isinstance(request.body, bytes)
        return Reply(200, request.body)

    async with lines(other=echo) as (here, _):
        answer = await here.request(Request("POST", "/", body={"a": [1]}))
        assert isinstance(answer, Reply)
        assert answer.body == b'{"a":[1]}'


@really
async def test_both_ends_ask_and_answers_come_in_any_order() -> None:
    late = asyncio.Event()

    async def slow(request: Request) -> Reply:
        if request.path == "/first":
            await late.wait()
        return Reply(200, request.path.encode())

    async with lines(slow, slow) as (here, there):
        first = asyncio.create_task(here.request(Request("GET", "/first")))
        second = await here.request(Request("GET", "/second"))
        back = await there.request(Request("GET", "/third"))
        late.set()
        found = [await first, second, back]
    assert [reply.body for reply in found if isinstance(reply, Reply)] == [
        b"/first", b"/second", b"/third",
    ]  # fmt: skip


@really
async def test_an_answer_of_many_megabytes_arrives_whole() -> None:
    big = bytes(range(256)) * 65_536

    async def answer(request: Request) -> Reply:
        return Reply(200, big)

    async with lines(other=answer) as (here, _):
        found = await here.request(Request("GET", "/"))
        assert isinstance(found, Reply)
        assert found.body == big


class Watch:
    """A stream of as many pieces as are asked for, which notes that it was closed."""

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


@really
async def test_a_stream_comes_in_pieces_and_ends() -> None:
    async with lines(other=Watch(500)) as (here, _):
        answer = await here.request(Request("GET", "/"))
        assert isinstance(answer, StreamReply)
        assert answer.headers == (("h", "v"),)
        said = b"".join([chunk async for chunk in answer.chunks])
    assert said == b"".join(b"%d;" % number for number in range(500))


@really
async def test_a_stream_that_is_left_ends_at_the_other_end() -> None:
    watch = Watch(1)
    async with lines(other=watch) as (here, _):
        answer = await here.request(Request("GET", "/"))
        assert isinstance(answer, StreamReply)
        async with aclosing(answer.chunks) as chunks:
            assert await anext(chunks) == b"0;"
        await asyncio.wait_for(watch.closed.wait(), 5)


@really
async def test_who_does_not_read_a_stream_loses_it_and_nobody_else_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 100_000)
    watch = Watch(2_000, size=100)
    async with lines(other=watch) as (here, _):
        answer = await here.request(Request("GET", "/"))
        assert isinstance(answer, StreamReply)
        await asyncio.wait_for(watch.closed.wait(), 5)
        with pytest.raises(Unreachable, match="not read"):
            _ = [chunk async for chunk in answer.chunks]


@really
async def test_what_is_being_done_is_done_though_nobody_waits_for_it() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(request: Request) -> Reply:
        begun.set()
        await may_end.wait()
        ended.set()
        return Reply(200, b"")

    async with lines(other=work) as (here, _):
        asked = asyncio.create_task(here.request(Request("POST", "/")))
        await begun.wait()
        asked.cancel()
        may_end.set()
        await asyncio.wait_for(ended.wait(), 5)
        assert asked.cancelled()


@really
async def test_whoever_waits_is_told_when_the_other_process_ends() -> None:
    async def never(request: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    watch = Watch(1)

    async def answer(request: Request) -> Reply | StreamReply:
        return await (watch if request.path == "/watch" else never)(request)

    async with lines(other=answer) as (here, there):
        stream = await here.request(Request("GET", "/watch"))
        assert isinstance(stream, StreamReply)
        assert await anext(stream.chunks) == b"0;"
        asked = asyncio.create_task(here.request(Request("GET", "/")))
        await here.request(Request("GET", "/watch"))
        there.close()
        await here.closed
        with pytest.raises(Unreachable):
            await asked
        with pytest.raises(Unreachable):
            await anext(stream.chunks)
        with pytest.raises(Unreachable, match="it has ended"):
            await here.request(Request("GET", "/"))
        await asyncio.wait_for(watch.closed.wait(), 5)
