"""The store that remembers: one file, and every acknowledged write is on disk.

The present and the newest history are in memory (`image.py`), where reads are served; the file
makes them durable and keeps the older history. A folder belongs to one process at a time.

    front.py   decides and publishes, on the event loop       folder.py    the folder's lock
    writer.py  the thread that makes batches durable          format.py    the file's tables
    log.py     the write side of the file                     archive.py   its read side

A commit that fails ends the store: what was not acknowledged is shown to nobody, every commit that
waits or comes later raises StoreBroken, and the owner is told, so that the process can stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from phalanx.clock import Clock, WallClock
from phalanx.store.archive import PAGE, Archive
from phalanx.store.errors import Damaged, StoreBroken, refusing
from phalanx.store.folder import claimed
from phalanx.store.format import prepare
from phalanx.store.front import Batch, Front, Transaction
from phalanx.store.image import Image
from phalanx.store.kv import Change, Compacted, Record, Write
from phalanx.store.log import STEP, Log
from phalanx.store.retention import Retention
from phalanx.store.writer import Failed, Landed, Pen, Writer

#: Bytes of history in memory unless told otherwise.
RING = 32 << 20

#: Makes what a store writes with.
Writing: TypeAlias = Callable[[Log, Landed, Failed], Pen]


class SqliteStore(Front):
    """A Store in a folder. `on_broken` is called on the loop, once, if it stops by itself."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        retention: Retention | None = None,
        ring: int = RING,
        on_broken: Callable[[StoreBroken], None] | None = None,
        writing: Writing = Writer,
    ) -> None:
        #: Why nothing can be written any more, if so.
        self.broken: StoreBroken | None = None
        self._clock, self._retention = clock or WallClock(), retention or Retention()
        self._ring, self._on_broken = ring, on_broken
        self._flying: list[Transaction] = []
        self._is_closed = False
        with contextlib.ExitStack() as files:
            file = files.enter_context(claimed(folder))
            prepare(file)
            with refusing(file):
                self._archive = files.enter_context(contextlib.closing(Archive(file)))
                super().__init__(Image(self._archive.present(), self._archive.revision))
                self._pen = writing(Log(file), self._publish, self._break)
            self._files = files.pop_all()
        self._floor = self._archive.floor
        self._trim()

    @property
    def floor(self) -> int:
        """The revision after which history is known, in memory or on disk."""
        return self._floor

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[Record]:
        """The records below a prefix by key, of the present or of a past revision."""
        if at and self.floor <= at < self._image.floor:
            with self._reading():
                return self._archive.range(prefix, at, after, limit)
        return super().range(prefix, at=at, after=after, limit=limit)

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """How many records there are below a prefix, now or at a past revision."""
        if at and self.floor <= at < self._image.floor:
            with self._reading():
                return self._archive.count(prefix, at, after)
        return super().count(prefix, at=at, after=after)

    def changes(self, since: int, prefix: str = "") -> Iterator[Change]:
        """What was committed after a revision, in order; to be read before the next commit."""
        if self.floor <= since < self._image.floor:
            return self._changes(since, prefix)
        return super().changes(since, prefix)

    async def commit(self, writes: Sequence[Write]) -> Sequence[Change]:
        """Write all or nothing; return when it is on disk and visible."""
        if self.broken:
            raise self.broken
        if self._is_closed:
            raise StoreBroken("the store is closed")
        return await super().commit(writes)

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision: in memory now, on disk little by little."""
        floor = min(floor, self.revision)
        if floor <= self._floor:
            return
        self._floor = floor
        super().compact(floor)
        self._pen.forget(floor)

    async def close(self) -> None:
        """Commit what is under way, leave one file that needs nothing else, and let others in."""
        if self._is_closed:
            return
        self._is_closed = True
        self._send()
        # The last connection to close checkpoints, and that must be the writer's. A writer that
        # failed has closed its own already, and what it could not write must not be touched.
        self._archive.close()
        await self._pen.close()
        self._files.close()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if batch := self._take():
            self._flying += batch
            self._pen.write(batch)

    def _publish(self, batch: Batch) -> None:
        if self.broken:
            return
        del self._flying[: len(batch)]
        super()._publish(batch)

    def _trim(self) -> None:
        self._image.shrink(self._ring)
        floor = self._retention.floor(self.revision, self._clock.now())
        if floor - self._floor >= STEP:
            self.compact(floor)

    def _break(self, error: Exception) -> None:
        """Stop for good: whoever waits is told, and what is not durable is as if never decided."""
        if self.broken:
            return
        self.broken = StoreBroken(f"the store stopped: {error}")
        self._pending.clear()
        for transaction in (*self._flying, *self._take()):
            if not transaction.committed.done():
                transaction.committed.set_exception(self.broken)
        if self._on_broken:
            self._on_broken(self.broken)

    def _changes(self, since: int, prefix: str) -> Iterator[Change]:
        """From the file up to where the memory goes on, which may move meanwhile."""
        while since < self._image.floor:
            if since < self.floor:
                raise Compacted(self.floor)
            until = min(since + PAGE, self._image.floor)
            with self._reading():
                page = self._archive.changes(since, until, prefix)
            yield from page
            since = until
        yield from self._image.changes(since, prefix)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A file that cannot be read is as good as one that cannot be written."""
        try:
            yield
        except (sqlite3.Error, Damaged) as error:
            self._break(error)
            raise StoreBroken(f"the store stopped: {error}") from error
