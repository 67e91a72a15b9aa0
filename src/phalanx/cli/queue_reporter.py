"""The queue for the page: asks a child process for it while a page is open.

    page ─▶ GET /phalanx/v1/queue ─▶ QueueReporter.latest ─▶ report of some seconds ago
                                       │ when due
                                       └─▶ child process (queue_report_process.py) ─▶ next report

Reading a large cluster and planning starts takes seconds of CPU time, which must not delay requests
or scheduling cycles: a child process of low priority does it, and only while a page asks. The time
between two reports is a multiple of the CPU time of the last one. The child ends when nothing has
asked for a minute, and with the server process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson

from phalanx import logs
from phalanx.api.wire import Object

LOG = logs.component("page")
#: Not imported here: the server process needs none of what it imports.
_CHILD_MODULE = "phalanx.cli.queue_report_process"
_FAILED = "the queue cannot be computed, see the log of the server"
#: Seconds between two reports, at least, and as a multiple of the CPU time of the last one.
_MIN_INTERVAL, _DURATION_FACTOR = 2.0, 5.0
#: Seconds without a request after which the child process ends, and that one report may take.
_IDLE_TIMEOUT, _REPORT_TIMEOUT = 60.0, 300.0
#: Bytes of the longest report: one line.
_MAX_REPORT = 256 * 1024 * 1024


class QueueReporter:
    """Keeps the latest report, and has the child process make the next one when it is due."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._report: Object | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def latest(self) -> Object | None:
        """Return the latest report, None before the first one; begin the next one if it is due."""
        loop = asyncio.get_running_loop()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = loop.call_later(_IDLE_TIMEOUT, self._end_process)
        if self._task is None and loop.time() >= self._due_at:
            self._task = loop.create_task(self._renew())
        return self._report

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """End the child process with the context."""
        try:
            yield
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
            process = self._process
            self._end_process()
            if process is not None:
                await process.wait()

    async def _renew(self) -> None:
        seconds = 0.0
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT):
                self._report = await self._request_report()
            seconds = self._report.get("seconds", 0.0)
        except (OSError, TimeoutError, ValueError) as error:
            LOG.warning("the queue for the page cannot be computed", error=error)
            self._report = self._report or {"error": f"{_FAILED}: {error}", "items": []}
            self._end_process()
        finally:
            pause = max(_MIN_INTERVAL, _DURATION_FACTOR * seconds)
            self._due_at = asyncio.get_running_loop().time() + pause
            self._task = None

    async def _request_report(self) -> Object:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                # -P: modules in the working directory are not imported.
                sys.executable, "-P", "-m", _CHILD_MODULE, str(self._config),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_MAX_REPORT,
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise OSError(f"its process has ended with exit code {await process.wait()}")
        report: Object = orjson.loads(line)
        return report

    def _end_process(self) -> None:
        """End the child process; the next request starts another one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._process = None
