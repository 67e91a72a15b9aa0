"""The decision log: writes everything that a scheduler observes and decides, for replay.

    SchedulerState ─▶ record ─▶ buffer ─▶ write (in a thread) ─▶ FILE, FILE.1, FILE.2 …

Opt-in. It never delays a decision: records wait in a buffer, and are dropped if it is full. After a
gap, and when a file is full, the scheduler writes a checkpoint of its whole state, from which a
reader can start. `scheduler/queue/decision_log.py` defines the records. The scheduler never reads
the log.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phalanx import logs
from phalanx.scheduler.queue.decision_log import DecisionLogRecord, LogStarted, RecordEncoder

LOG = logs.component("scheduler")

#: Maximum records in the buffer, and seconds between two writes.
MAX_BUFFERED_RECORDS, FLUSH_INTERVAL = 200_000, 0.2
#: Seconds after a gap until the next checkpoint.
RESTART_DELAY = 30.0

#: Writes records in order; returns whether a checkpoint should follow.
WriteRecords = Callable[[Sequence[DecisionLogRecord]], Awaitable[bool]]


class DecisionLog:
    """A buffer of records that are written in the background."""

    def __init__(self, write: WriteRecords, *, capacity: int = MAX_BUFFERED_RECORDS) -> None:
        self._write, self._capacity = write, capacity
        self._buffer: list[DecisionLogRecord] = []
        #: Buffered records without those of a checkpoint.
        self._buffered_count = 0
        self._wakeup = asyncio.Event()
        #: Whether records are dropped until the next checkpoint, and the earliest time of that.
        self._gap, self._gap_until = True, -math.inf
        self._is_full = False

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the scheduler should call `begin` now."""
        if self._gap:
            return asyncio.get_running_loop().time() >= self._gap_until
        return self._is_full

    def begin(self, records: Iterable[DecisionLogRecord]) -> None:
        """Write a checkpoint: the records of the whole state."""
        self._gap = self._is_full = False
        self._buffer.extend(records)
        self._wakeup.set()

    def record(self, record: DecisionLogRecord) -> None:
        """Append a record."""
        if self._gap:
            return
        if self._buffered_count >= self._capacity:
            self._start_gap("the buffer is full")
            return
        self._buffered_count += 1
        self._buffer.append(record)
        self._wakeup.set()

    async def run(self) -> None:
        """Write records until cancelled, then write the rest; later records need a checkpoint."""
        try:
            while True:
                await self._wakeup.wait()
                await asyncio.sleep(FLUSH_INTERVAL)
                await self._flush()
        finally:
            await self._flush()
            self._gap, self._gap_until = True, -math.inf

    async def _flush(self) -> None:
        batch, self._buffer, self._buffered_count = self._buffer, [], 0
        self._wakeup.clear()
        try:
            self._is_full = await self._write(batch)
        except OSError as error:
            self._start_gap(str(error))

    def _start_gap(self, reason: str) -> None:
        LOG.warning("decision log has a gap", reason=reason, backoff=RESTART_DELAY)
        self._gap, self._gap_until = True, asyncio.get_running_loop().time() + RESTART_DELAY


class DecisionLogFile:
    """A file of records. A checkpoint starts a new file; old files get numbers, oldest highest."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = logs.MAX_FILE_BYTES,
        max_backups: int = logs.MAX_ROTATED_FILES,
    ) -> None:
        self._path, self._max_bytes, self._max_backups = path, max_bytes, max_backups
        self._encoder = RecordEncoder()
        #: Whether the file was just rotated and has no records yet.
        self._is_empty = False

    def write(self, records: Sequence[DecisionLogRecord]) -> bool:
        """Append records; returns whether the file is full."""
        chunk: list[DecisionLogRecord] = []
        for record in records:
            if isinstance(record, LogStarted):
                self._append(chunk)
                self._rotate()
                chunk = []
            chunk.append(record)
        self._append(chunk)
        return self._path.exists() and self._path.stat().st_size >= self._max_bytes

    def _append(self, records: Sequence[DecisionLogRecord]) -> None:
        if records:
            with open(self._path, "ab", opener=logs.open_private) as file:
                file.writelines(self._encoder.encode(records))
            self._is_empty = False

    def _rotate(self) -> None:
        if self._is_empty:
            self._path.unlink(missing_ok=True)
            return
        self._is_empty = True
        logs.rotate_files(self._path, self._max_backups)


def write_in_thread(write: Callable[[Sequence[DecisionLogRecord]], bool]) -> WriteRecords:
    """Write in a thread, so that a slow disk does not block the event loop."""
    executor = ThreadPoolExecutor(1, "decision-log")

    async def write_records(records: Sequence[DecisionLogRecord]) -> bool:
        return await asyncio.get_running_loop().run_in_executor(executor, write, records)

    return write_records


def write_inline(write: Callable[[Sequence[DecisionLogRecord]], bool]) -> WriteRecords:
    """Write on the event loop: for virtual time, which has no threads."""

    async def write_records(records: Sequence[DecisionLogRecord]) -> bool:
        return write(records)

    return write_records
