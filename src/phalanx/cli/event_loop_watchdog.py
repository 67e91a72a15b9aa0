"""Finds what blocks an event loop: logs and counts stalls, with the stack that causes them.

A daemon thread pings the loop ten times a second. While a ping is not answered, the thread looks at
the stack of the loop's thread, and after half a second logs it:

    WARNING watchdog: event loop stalled process=server duration=0.501 stack="app.py:88 handle, …"
    WARNING watchdog: event loop runs again process=server duration=2.310

While the whole process is suspended the thread does not run either: that is no stall.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_stack

from phalanx import logs
from phalanx.telemetry import Counter, Metrics, MetricSpec

LOG = logs.component("watchdog")

EVENT_LOOP_STALLS = MetricSpec(
    Counter,
    "phalanx_event_loop_stalls_total",
    "Times that the event loop of a process did nothing else for 500 ms; the log has the stack.",
    labels=("process",),
)

#: Seconds between two pings, and without an answer that are a stall.
PING_INTERVAL, STALL_SECONDS = 0.1, 0.5
#: Frames of a stack that are logged, the innermost last.
_MAX_FRAMES = 12


@contextmanager
def watch_event_loop(metrics: Metrics, process: str) -> Iterator[None]:
    """Watch the event loop of this thread for the duration of the context."""
    watchdog = EventLoopWatchdog(
        asyncio.get_running_loop(), metrics.series(EVENT_LOOP_STALLS, process), process
    )
    threading.Thread(target=watchdog.run, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        watchdog.stop()


class EventLoopWatchdog:
    """Pings an event loop; created in the thread of the loop, run in another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stalls: Counter, process: str) -> None:
        self._loop, self._stalls, self._process = loop, stalls, process
        self._thread = threading.get_ident()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

    def run(self) -> None:
        """Ping until stopped."""
        while not self._stopped.wait(PING_INTERVAL):
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                # The loop is closed.
                return
            self._wait_for_answer(answered)

    def _wait_for_answer(self, answered: threading.Event) -> None:
        begin = last = time.monotonic()
        last_cpu = time.process_time()
        stalled, is_reported = 0.0, False
        while not answered.wait(PING_INTERVAL) and not self._stopped.is_set():
            now, cpu = time.monotonic(), time.process_time()
            # This thread waits much longer than it asked for if the process is suspended, or if
            # the loop's thread does not release the interpreter lock: only the latter takes CPU.
            stalled += min(now - last, max(2 * PING_INTERVAL, cpu - last_cpu))
            last, last_cpu = now, cpu
            if stalled >= STALL_SECONDS and not is_reported:
                is_reported = True
                self._stalls.add()
                self._log("event loop stalled", begin, stack=self._stack())
        if is_reported:
            self._log("event loop runs again", begin)

    def _log(self, message: str, begin: float, **fields: object) -> None:
        LOG.warning(message, process=self._process, duration=time.monotonic() - begin, **fields)

    def _stack(self) -> list[str]:
        """Return what the loop's thread does now, as "file:line function"."""
        frame = sys._current_frames().get(self._thread)
        frames = extract_stack(frame) if frame is not None else []
        return [
            f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames[-_MAX_FRAMES:]
        ]
