"""The server and its crew at the two ends of a line: who answers, and what if the crew is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from phalanx.api.wire import Handler, Reply, Request
from phalanx.cli.up_processes import ComponentsExited, serve_components
from phalanx.client.process_channel import ProcessChannel
from tests.client.test_process_channel import really

METRICS = Request("GET", "/metrics")


async def server(request: Request) -> Reply:
    return Reply(200, b"of the server\n")


async def crew(request: Request) -> Reply:
    return Reply(200, b"of the crew\n")


@asynccontextmanager
async def speaking(
    answers: Handler = crew,
) -> AsyncIterator[tuple[Handler, ProcessChannel, asyncio.Future[ComponentsExited]]]:
    """The handler for both, the crew's end of the line, and the news that the crew has gone."""
    ours, theirs = socket.socketpair()
    line = await ProcessChannel.connect(theirs, answers)
    left: asyncio.Future[ComponentsExited] = asyncio.get_running_loop().create_future()
    try:
        async with serve_components(server, ours, left.set_result) as handle:
            yield handle, line, left
    finally:
        line.close()
        await line.closed


async def body(handle: Handler, request: Request = METRICS) -> bytes:
    reply = await handle(request)
    assert isinstance(reply, Reply)
    return reply.body


@really
async def test_metrics_are_those_of_both_and_all_else_is_the_servers() -> None:
    async with speaking() as (handle, _, left):
        assert await body(handle) == b"of the server\nof the crew\n"
        assert await body(handle, Request("GET", "/version")) == b"of the server\n"
        assert not left.done()


@really
async def test_the_server_tells_its_own_metrics_once_the_crew_has_gone() -> None:
    async with speaking() as (handle, line, left):
        line.close()
        await left
        assert await body(handle) == b"of the server\n"


@really
async def test_the_server_tells_its_own_metrics_if_the_crew_goes_while_it_is_asked() -> None:
    asked = asyncio.Event()

    async def silent(request: Request) -> Reply:
        if request == METRICS:
            asked.set()
            await left
        return await crew(request)

    async with speaking(silent) as (handle, line, left):
        told = asyncio.create_task(body(handle))
        await asked.wait()
        line.close()
        assert await told == b"of the server\n"


@really
async def test_a_crew_that_goes_before_it_is_ready_is_told_of() -> None:
    async def hanging_up(request: Request) -> Reply:
        line.close()
        return await crew(request)

    ours, theirs = socket.socketpair()
    line = await ProcessChannel.connect(theirs, hanging_up)
    with pytest.raises(ComponentsExited, match="scheduler, controllers and nodes have ended"):
        async with serve_components(server, ours, lambda _: None):
            raise AssertionError("it is ready")
