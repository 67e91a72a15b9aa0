"""Finds what blocks an event loop: logs and counts stalls, with the stack that causes them.

A daemon thread pings the loop ten times a second. While a ping is not answered, the thread looks at
the stack of the loop's thread, and after half a second logs it:

    WARNING watchdog: event loop stalled process=server duration=0.501 cpu=0.498 stack="app.py:88 …"
    WARNING watchdog: event loop runs again process=server duration=2.310 cpu=2.305

`cpu` is the CPU time of the loop's thread: it computes, if that is close to `duration`; else it is
blocked. Time in which the thread could run but gets no CPU, because the machine is busy or the
process is suspended, is no stall.
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
        self._state_file = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
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
        cpu_begin = last_cpu = self._cpu_seconds()
        stalled, is_reported = 0.0, False

        def log(message: str, **fields: object) -> None:
            LOG.warning(
                message,
                process=self._process,
                duration=time.monotonic() - begin,
                cpu=self._cpu_seconds() - cpu_begin,
                **fields,
            )

        while not answered.wait(PING_INTERVAL) and not self._stopped.is_set():
            now, cpu = time.monotonic(), self._cpu_seconds()
            # While a thread computes, its CPU time counts: the rest it waits for a CPU. While it is
            # blocked, the time counts, except that in which this thread did not run either.
            blocked = 0.0 if self._is_runnable() else min(now - last, 2 * PING_INTERVAL)
            stalled += max(cpu - last_cpu, blocked)
            last, last_cpu = now, cpu
            if stalled >= STALL_SECONDS and not is_reported:
                is_reported = True
                self._stalls.add()
                log("event loop stalled", stack=self._stack())
        if is_reported:
            log("event loop runs again")

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the loop's thread; where it is unknown that of the process."""
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread))
        except (AttributeError, OSError):
            return time.process_time()

    def _is_runnable(self) -> bool:
        """Return whether the loop's thread computes or waits for a CPU; False if not known."""
        try:
            # The state follows the name of the thread, which is in parentheses.
            return self._state_file.read_text().rpartition(")")[2].split()[0] == "R"
        except (OSError, IndexError):
            return False

    def _stack(self) -> list[str]:
        """Return what the loop's thread does now, as "file:line function"."""
        frame = sys._current_frames().get(self._thread)
        frames = extract_stack(frame) if frame is not None else []
        return [
            f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames[-_MAX_FRAMES:]
        ]
