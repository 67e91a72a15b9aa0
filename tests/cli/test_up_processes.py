"""The server process and the component process at the two ends of a channel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from phalanx.api.wire import Handler, Reply, Request
from phalanx.cli import up_processes
from phalanx.cli.up_processes import ComponentsExited, ComponentSupervisor
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import Unreachable
from tests.client.test_process_channel import run_on_uvloop
from tests.recording_log import captured_lines

METRICS = Request("GET", "/metrics")
#: Seconds after which a condition has not become true.
TIMEOUT = 240.0


async def server(request: Request) -> Reply:
    return Reply(200, b"server\n")


async def components(request: Request) -> Reply:
    return Reply(200, b"components\n")


class FakeProcess:
    """A component process on the same event loop. `starts` are the times of its starts."""

    def __init__(self, answer: Handler = components) -> None:
        self.answer = answer
        self.starts: list[float] = []
        self.has_started = asyncio.Event()
        self.restart()
        self.has_started.clear()

    def restart(self) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        self.has_started.set()
        self.socket, theirs = socket.socketpair()
        self.connecting = asyncio.create_task(ProcessChannel.connect(theirs, self.answer))

    async def crash(self) -> None:
        (await self.connecting).close()

    def end(self) -> int | None:
        self.socket.close()
        return -9


@asynccontextmanager
async def supervised(
    answer: Handler = components,
) -> AsyncIterator[tuple[ComponentSupervisor, FakeProcess]]:
    process = FakeProcess(answer)
    supervisor = ComponentSupervisor(server, process)
    try:
        async with supervisor.running():
            yield supervisor, process
    finally:
        channel = await process.connecting
        channel.close()
        await channel.closed


async def until_outage(supervisor: ComponentSupervisor, outage: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while True:
            if supervisor.outage == outage:
                return
            await asyncio.sleep(0.001)


async def body(handle: Handler, request: Request = METRICS) -> bytes:
    reply = await handle(request)
    assert isinstance(reply, Reply)
    return reply.body


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_processes, "_MIN_RESTART_DELAY", 0.02)
    monkeypatch.setattr(up_processes, "_MAX_RESTART_DELAY", 0.08)


@run_on_uvloop
async def test_metrics_come_from_both_processes_and_all_else_from_the_server() -> None:
    async with supervised() as (supervisor, _):
        assert await body(supervisor.answer) == b"server\ncomponents\n"
        assert await body(supervisor.answer, Request("GET", "/version")) == b"server\n"
        assert supervisor.outage == ""


@run_on_uvloop
async def test_server_serves_its_own_metrics_while_the_components_are_away() -> None:
    async with supervised() as (supervisor, process):
        await process.crash()
        await until_outage(supervisor, "no scheduler is running")
        assert await body(supervisor.answer) == b"server\n"


@run_on_uvloop
async def test_server_serves_its_own_metrics_if_the_components_end_during_the_request() -> None:
    asked = asyncio.Event()

    async def silent(request: Request) -> Reply:
        if request == METRICS:
            asked.set()
            await asyncio.Event().wait()
        return await components(request)

    async with supervised(silent) as (supervisor, process):
        reply = asyncio.create_task(body(supervisor.answer))
        await asked.wait()
        await process.crash()
        assert await reply == b"server\n"


@run_on_uvloop
async def test_server_serves_its_own_metrics_if_the_components_do_not_answer_or_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(up_processes, "_METRICS_TIMEOUT", 0.05)
    hangs = True

    async def answer_ready_only(request: Request) -> Reply:
        if request.path == METRICS.path:
            if hangs:
                await asyncio.Event().wait()
            return Reply(500, b"internal error")
        return Reply(200, b"")

    async with asyncio.timeout(TIMEOUT), supervised(answer_ready_only) as (supervisor, _):
        assert await body(supervisor.answer) == b"server\n"
        hangs = False
        assert await body(supervisor.answer) == b"server\n"


@run_on_uvloop
async def test_components_that_end_before_they_are_ready_are_an_error() -> None:
    async def hanging_up(request: Request) -> Reply:
        await process.crash()
        return await components(request)

    process = FakeProcess(hanging_up)
    with pytest.raises(ComponentsExited, match="scheduler, controllers and nodes have ended"):
        async with ComponentSupervisor(server, process).running():
            raise AssertionError("the components are ready")


@run_on_uvloop
async def test_ended_components_are_started_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "phalanx")
    async with supervised() as (supervisor, process):
        await process.crash()
        await until_outage(supervisor, "no scheduler is running")
        await until_outage(supervisor, "")
        assert await body(supervisor.answer) == b"server\ncomponents\n"
        assert len(process.starts) == 2
    assert [
        (line.message, line.fields.get("status")) for line in captured_lines(caplog, "components")
    ] == [
        ("component process has ended, starting it again", "killed by SIGKILL"),
        ("component process is ready again", None),
    ]


@run_on_uvloop
async def test_components_that_end_again_and_again_are_started_with_growing_back_off() -> None:
    async with supervised() as (supervisor, process):

        async def hanging_up(request: Request) -> Reply:
            await process.crash()
            return await components(request)

        process.answer = hanging_up
        await process.crash()
        async with asyncio.timeout(TIMEOUT):
            for _ in range(5):
                await process.has_started.wait()
                process.has_started.clear()
        process.answer = components
        await until_outage(supervisor, "")
    pauses = [after - before for before, after in pairwise(process.starts[1:6])]
    for pause, least in zip(pauses, [0.04, 0.08, 0.08, 0.08], strict=True):
        assert pause >= 0.9 * least


@run_on_uvloop
async def test_components_that_do_not_answer_are_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(up_processes, "_PING_INTERVAL", 0.01)
    monkeypatch.setattr(up_processes, "_PING_TIMEOUT", 0.05)
    is_stopped = False

    async def answer(request: Request) -> Reply:
        if is_stopped:
            await asyncio.Event().wait()
        return await components(request)

    async with supervised(answer) as (supervisor, _):
        is_stopped = True
        await until_outage(
            supervisor, "no scheduler is running: its process has not answered for 0 s"
        )


@run_on_uvloop
async def test_requests_of_the_components_are_handled_before_the_supervisor_ends() -> None:
    """The store is closed next: a request that was under way would find it closed."""
    received, may_answer, answered = asyncio.Event(), asyncio.Event(), 0

    async def slow(request: Request) -> Reply:
        nonlocal answered
        received.set()
        await may_answer.wait()
        answered += 1
        return Reply(200, b"")

    process = FakeProcess()
    async with ComponentSupervisor(slow, process).running():
        channel = await process.connecting
        asking = asyncio.create_task(channel.request(Request("POST", "/")))
        await received.wait()
        asyncio.get_running_loop().call_later(0.01, may_answer.set)
    assert answered == 1
    with pytest.raises(Unreachable):
        await asking
    channel.close()


@run_on_uvloop
async def test_supervisor_that_ends_during_a_restart_leaves_no_request_under_way() -> None:
    ready = asyncio.Event()

    async def never_ready_again(request: Request) -> Reply:
        ready.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with supervised() as (supervisor, process):
        process.answer = never_ready_again
        await process.crash()
        await ready.wait()
    assert supervisor.outage == "no scheduler is running"
