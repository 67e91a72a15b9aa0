"""The server process and the component process at the two ends of a channel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from phalanx.api.wire import Handler, Reply, Request
from phalanx.cli.up_processes import ComponentsExited, serve_components
from phalanx.client.process_channel import ProcessChannel
from tests.client.test_process_channel import run_on_uvloop

METRICS = Request("GET", "/metrics")


async def server(request: Request) -> Reply:
    return Reply(200, b"server\n")


async def components(request: Request) -> Reply:
    return Reply(200, b"components\n")


@asynccontextmanager
async def connected(
    answer: Handler = components,
) -> AsyncIterator[tuple[Handler, ProcessChannel, asyncio.Future[ComponentsExited]]]:
    """Yield the combined handler, the components' channel, and the future of their exit."""
    ours, theirs = socket.socketpair()
    channel = await ProcessChannel.connect(theirs, answer)
    exited: asyncio.Future[ComponentsExited] = asyncio.get_running_loop().create_future()
    try:
        async with serve_components(server, ours, exited.set_result) as handle:
            yield handle, channel, exited
    finally:
        channel.close()
        await channel.closed


async def body(handle: Handler, request: Request = METRICS) -> bytes:
    reply = await handle(request)
    assert isinstance(reply, Reply)
    return reply.body


@run_on_uvloop
async def test_metrics_come_from_both_processes_and_all_else_from_the_server() -> None:
    async with connected() as (handle, _, exited):
        assert await body(handle) == b"server\ncomponents\n"
        assert await body(handle, Request("GET", "/version")) == b"server\n"
        assert not exited.done()


@run_on_uvloop
async def test_server_serves_its_own_metrics_after_the_components_have_ended() -> None:
    async with connected() as (handle, channel, exited):
        channel.close()
        await exited
        assert await body(handle) == b"server\n"


@run_on_uvloop
async def test_server_serves_its_own_metrics_if_the_components_end_during_the_request() -> None:
    asked = asyncio.Event()

    async def silent(request: Request) -> Reply:
        if request == METRICS:
            asked.set()
            await exited
        return await components(request)

    async with connected(silent) as (handle, channel, exited):
        reply = asyncio.create_task(body(handle))
        await asked.wait()
        channel.close()
        assert await reply == b"server\n"


@run_on_uvloop
async def test_components_that_end_before_they_are_ready_are_an_error() -> None:
    async def hanging_up(request: Request) -> Reply:
        channel.close()
        return await components(request)

    ours, theirs = socket.socketpair()
    channel = await ProcessChannel.connect(theirs, hanging_up)
    with pytest.raises(ComponentsExited, match="scheduler, controllers and nodes have ended"):
        async with serve_components(server, ours, lambda _: None):
            raise AssertionError("the components are ready")
