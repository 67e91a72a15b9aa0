"""The decision log: all that a scheduler saw and decided, written so that it can be replayed.

    desk ─▶ note ─▶ buffer ─▶ run ─▶ write (in a thread) ─▶ FILE, FILE.1, FILE.2 …

Opt-in. Never holds up a decision: records wait in a buffer, and what is too much for it is dropped.
After a gap, and when a file is full, the shell is asked for a new beginning: how everything stands,
from which a reader can start. Does not say what is recorded (`scheduler/queue/decision_log.py` does),
and is no part of the truth: losing it costs nothing but the story.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phalanx.scheduler.queue.decision_log import DecisionLogRecord, LogStarted, RecordEncoder

_log = logging.getLogger("phalanx.scheduler")

#: Records that may wait to be written, and the seconds that they wait for others to come.
MAX_BUFFERED_RECORDS, FLUSH_INTERVAL = 200_000, 0.2
#: Seconds after which a log that broke off begins anew.
RESTART_DELAY = 30.0
#: Bytes after which a file is full, and how many full ones are kept.
MAX_FILE_BYTES, MAX_BACKUPS = 64 * 1024 * 1024, 4

#: Writes records somewhere, in order; says whether it is time for a new beginning.
WriteRecords = Callable[[Sequence[DecisionLogRecord]], Awaitable[bool]]


class DecisionLog:
    """A buffer of records, and whoever writes them."""

    def __init__(self, write: WriteRecords, *, capacity: int = MAX_BUFFERED_RECORDS) -> None:
        self._write, self._capacity = write, capacity
        self._buffer: list[DecisionLogRecord] = []
        #: How many of them were noted one by one.
        self._buffered_count = 0
        self._wakeup = asyncio.Event()
        #: Whether what is noted goes nowhere until there is a new beginning, at this time or later.
        self._gap, self._gap_until = True, -math.inf
        self._is_full = False

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the next record had better be a beginning."""
        if self._gap:
            return asyncio.get_running_loop().time() >= self._gap_until
        return self._is_full

    def begin(self, records: Iterable[DecisionLogRecord]) -> None:
        """A beginning, and how everything stands."""
        self._gap = self._is_full = False
        self._buffer.extend(records)
        self._wakeup.set()

    def record(self, record: DecisionLogRecord) -> None:
        """Something happened."""
        if self._gap:
            return
        if self._buffered_count >= self._capacity:
            self._start_gap("it cannot keep up")
            return
        self._buffered_count += 1
        self._buffer.append(record)
        self._wakeup.set()

    async def run(self) -> None:
        """Write until cancelled, and then what is left; what follows is another story."""
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
        _log.warning("the decision log has a gap: %s", reason)
        self._gap, self._gap_until = True, asyncio.get_running_loop().time() + RESTART_DELAY


class DecisionLogFile:
    """A file of records. A beginning begins a new file; the old ones are numbered, oldest last."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_FILE_BYTES, max_backups: int = MAX_BACKUPS
    ) -> None:
        self._path, self._max_bytes, self._max_backups = path, max_bytes, max_backups
        self._encoder = RecordEncoder()
        #: Whether there is nothing in the file that is worth keeping.
        self._is_empty = False

    def write(self, records: Sequence[DecisionLogRecord]) -> bool:
        """Append, and say whether the file is full."""
        begun: list[DecisionLogRecord] = []
        for record in records:
            if isinstance(record, LogStarted):
                self._append(begun)
                self._rotate()
                begun = []
            begun.append(record)
        self._append(begun)
        return self._path.exists() and self._path.stat().st_size >= self._max_bytes

    def _append(self, records: Sequence[DecisionLogRecord]) -> None:
        if records:
            with open(self._path, "ab", opener=_open_private) as file:
                file.writelines(self._encoder.encode(records))
            self._is_empty = False

    def _rotate(self) -> None:
        if self._is_empty:
            self._path.unlink(missing_ok=True)
            return
        self._is_empty = True
        for number in range(self._max_backups, 0, -1):
            older = self._backup_path(number - 1)
            if older.exists():
                older.replace(self._backup_path(number))

    def _backup_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_in_thread(write: Callable[[Sequence[DecisionLogRecord]], bool]) -> WriteRecords:
    """Write in a thread of its own, so that a slow disk holds up nobody."""
    thread = ThreadPoolExecutor(1, "decision-log")

    async def writing(records: Sequence[DecisionLogRecord]) -> bool:
        return await asyncio.get_running_loop().run_in_executor(thread, write, records)

    return writing


def write_inline(write: Callable[[Sequence[DecisionLogRecord]], bool]) -> WriteRecords:
    """Write on the loop itself: for virtual time, in which there are no threads."""

    async def writing(records: Sequence[DecisionLogRecord]) -> bool:
        return write(records)

    return writing
