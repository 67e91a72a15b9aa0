"""The watchdog of an event loop: stalls are counted and logged with their stack."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from phalanx.cli import event_loop_watchdog
from phalanx.cli.event_loop_watchdog import (
    EVENT_LOOP_STALLS,
    EventLoopWatchdog,
    watch_event_loop,
)
from phalanx.telemetry import Metrics
from tests.recording_log import LogLine, captured_lines

#: Seconds that are a stall here.
STALL = 0.1
#: Seconds after which a log line is missing.
TIMEOUT = 240.0


def block_by_sleeping() -> None:
    time.sleep(STALL)


def block_by_computing() -> None:
    # Calls into C that do not release the interpreter lock.
    sum(range(10_000_000))


async def wait_for_line(caplog: pytest.LogCaptureFixture, message: str) -> LogLine:
    async with asyncio.timeout(TIMEOUT):
        while True:
            for line in captured_lines(caplog, "watchdog"):
                if line.message == message:
                    return line
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("block", [block_by_sleeping, block_by_computing])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_stall_is_counted_and_logged_with_the_stack_that_caused_it(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    block: Callable[[], None],
    run: Callable[..., None],
) -> None:
    metrics = Metrics()
    monkeypatch.setattr(event_loop_watchdog, "PING_INTERVAL", STALL / 5)
    monkeypatch.setattr(event_loop_watchdog, "STALL_SECONDS", STALL)

    async def stall() -> None:
        stalls = metrics.series(EVENT_LOOP_STALLS, "server")
        with watch_event_loop(metrics, "server"):
            # The thread of the watchdog may start late on a busy machine.
            end = time.monotonic() + TIMEOUT
            while stalls.value == 0 and time.monotonic() < end:
                block()
            stalled = await wait_for_line(caplog, "event loop stalled")
            again = await wait_for_line(caplog, "event loop runs again")
        assert (stalled.level, stalled.fields["process"]) == ("WARNING", "server")
        assert block.__name__ in stalled.fields["stack"]
        assert STALL <= float(stalled.fields["duration"]) <= float(again.fields["duration"])
        assert float(stalled.fields["cpu"]) <= float(stalled.fields["duration"]) + STALL
        assert stalls.value == 1

    run(stall())


def test_a_loop_that_runs_is_no_stall_and_the_thread_ends_with_the_context(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    monkeypatch.setattr(event_loop_watchdog, "PING_INTERVAL", 0.01)

    async def work() -> None:
        with watch_event_loop(metrics, "server"):
            await asyncio.sleep(0.3)

    uvloop.run(work())
    assert captured_lines(caplog, "watchdog") == []
    assert metrics.series(EVENT_LOOP_STALLS, "server").value == 0
    deadline = time.monotonic() + TIMEOUT
    while any(thread.name == "watchdog" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the states of threads")
def test_a_loop_that_waits_for_a_cpu_is_no_stall(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is ready to run all the time, but gets almost no CPU time."""
    metrics, spent = Metrics(), iter(range(1000))
    monkeypatch.setattr(event_loop_watchdog, "PING_INTERVAL", STALL / 5)
    monkeypatch.setattr(event_loop_watchdog, "STALL_SECONDS", STALL)
    monkeypatch.setattr(
        EventLoopWatchdog, "_cpu_seconds", lambda self: next(spent) * STALL / 1_000_000
    )

    async def compute() -> None:
        with watch_event_loop(metrics, "server"):
            end = time.monotonic() + 3 * STALL
            while time.monotonic() < end:
                sum(range(1000))
            await asyncio.sleep(0)

    uvloop.run(compute())
    assert captured_lines(caplog, "watchdog") == []
    assert metrics.series(EVENT_LOOP_STALLS, "server").value == 0
