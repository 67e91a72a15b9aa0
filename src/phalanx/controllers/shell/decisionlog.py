"""The decision log: all that a scheduler saw and decided, written so that it can be replayed.

    desk ─▶ note ─▶ buffer ─▶ run ─▶ write (in a thread) ─▶ FILE, FILE.1, FILE.2 …

Opt-in. Never holds up a decision: records wait in a buffer, and what is too much for it is dropped.
After a gap, and when a file is full, the shell is asked for a new beginning: how everything stands,
from which a reader can start. Does not say what is recorded (`scheduler/queueing/record.py` does),
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

from phalanx.scheduler.queueing.record import Begun, Record, Scribe

_log = logging.getLogger("phalanx.scheduler")

#: Records that may wait to be written, and the seconds that they wait for others to come.
CAPACITY, PACE = 200_000, 0.2
#: Seconds after which a log that broke off begins anew.
PAUSE = 30.0
#: Bytes after which a file is full, and how many full ones are kept.
FULL, KEPT = 64 * 1024 * 1024, 4

#: Writes records somewhere, in order; says whether it is time for a new beginning.
Write = Callable[[Sequence[Record]], Awaitable[bool]]


class DecisionLog:
    """A buffer of records, and whoever writes them."""

    def __init__(self, write: Write, *, capacity: int = CAPACITY) -> None:
        self._write, self._capacity = write, capacity
        self._waiting: list[Record] = []
        #: How many of them were noted one by one.
        self._noted = 0
        self._news = asyncio.Event()
        #: Whether what is noted goes nowhere until there is a new beginning, at this time or later.
        self._gap, self._until = True, -math.inf
        self._full = False

    @property
    def wants_beginning(self) -> bool:
        """Whether the next record had better be a beginning."""
        if self._gap:
            return asyncio.get_running_loop().time() >= self._until
        return self._full

    def begin(self, records: Iterable[Record]) -> None:
        """A beginning, and how everything stands."""
        self._gap = self._full = False
        self._waiting.extend(records)
        self._news.set()

    def note(self, record: Record) -> None:
        """Something happened."""
        if self._gap:
            return
        if self._noted >= self._capacity:
            self._break_off("it cannot keep up")
            return
        self._noted += 1
        self._waiting.append(record)
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled, and then what is left; what follows is another story."""
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(PACE)
                await self._flush()
        finally:
            await self._flush()
            self._gap, self._until = True, -math.inf

    async def _flush(self) -> None:
        batch, self._waiting, self._noted = self._waiting, [], 0
        self._news.clear()
        try:
            self._full = await self._write(batch)
        except OSError as error:
            self._break_off(str(error))

    def _break_off(self, why: str) -> None:
        _log.warning("the decision log has a gap: %s", why)
        self._gap, self._until = True, asyncio.get_running_loop().time() + PAUSE


class LogFile:
    """A file of records. A beginning begins a new file; the old ones are numbered, oldest last."""

    def __init__(self, path: Path, *, full: int = FULL, kept: int = KEPT) -> None:
        self._path, self._limit, self._kept = path, full, kept
        self._scribe = Scribe()
        #: Whether there is nothing in the file that is worth keeping.
        self._is_blank = False

    def write(self, records: Sequence[Record]) -> bool:
        """Append, and say whether the file is full."""
        begun: list[Record] = []
        for record in records:
            if isinstance(record, Begun):
                self._append(begun)
                self._turn_over()
                begun = []
            begun.append(record)
        self._append(begun)
        return self._path.exists() and self._path.stat().st_size >= self._limit

    def _append(self, records: Sequence[Record]) -> None:
        if records:
            with open(self._path, "ab", opener=_private) as file:
                file.writelines(self._scribe.lines(records))
            self._is_blank = False

    def _turn_over(self) -> None:
        if self._is_blank:
            self._path.unlink(missing_ok=True)
            return
        self._is_blank = True
        for number in range(self._kept, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def in_thread(write: Callable[[Sequence[Record]], bool]) -> Write:
    """Write in a thread of its own, so that a slow disk holds up nobody."""
    thread = ThreadPoolExecutor(1, "decision-log")

    async def writing(records: Sequence[Record]) -> bool:
        return await asyncio.get_running_loop().run_in_executor(thread, write, records)

    return writing


def at_once(write: Callable[[Sequence[Record]], bool]) -> Write:
    """Write on the loop itself: for virtual time, in which there are no threads."""

    async def writing(records: Sequence[Record]) -> bool:
        return write(records)

    return writing
