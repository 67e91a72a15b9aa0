"""The durable store: one SQLite file; every acknowledged write is on disk.

Current values and the newest history are in memory (`memory.py`), which serves reads. The file
makes writes durable and keeps older history. One process at a time owns the directory.

One writer thread commits: transactions that queue up while a batch is flushed form the next batch,
so that the throughput grows with the load. Compaction and checkpoints run in the same thread, one
step between two batches.

    event loop   write ──▶ orders            on_committed(batch), or once on_failed(error)
                             │                  ▲
    thread                   └─▶ append, flush ─┘─▶ maintenance step

A commit that fails ends the store: nothing unacknowledged becomes visible, pending and later
commits raise StoreFailed, and the owner is notified, so that the process can stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from phalanx.clock import Clock, WallClock
from phalanx.store.database_file import (
    HighWaterMark,
    StoreCorrupted,
    lock_directory,
    prepare_database,
    translate_errors,
)
from phalanx.store.kv import (
    KeyValue,
    RevisionCompacted,
    StoreChange,
    StoreClosed,
    StoreFailed,
    StoreUnusable,
    StoreWrite,
)
from phalanx.store.memory import (
    HISTORY_BYTES,
    CachedStore,
    CommitBatch,
    PendingTransaction,
    VersionedMap,
)
from phalanx.store.revision_log import (
    COMPACTION_STEP,
    HISTORY_PAGE,
    HistoryReader,
    RevisionLog,
    skip_revisions,
)

#: Samples of the revision within the retention period, and within the maximum size.
_SAMPLES = 60


class _RevisionSample(NamedTuple):
    """A revision, and the time or the bytes of history at which it was the last one."""

    position: float
    revision: int


class RetentionPolicy:
    """How much history is kept: `seconds` or `revisions`, whichever is more, up to `max_bytes`."""

    def __init__(
        self, seconds: float = 300, revisions: int = 100_000, max_bytes: int = HISTORY_BYTES
    ) -> None:
        self.seconds, self.revisions, self.max_bytes = seconds, revisions, max_bytes
        self._times: deque[_RevisionSample] = deque()
        self._sizes: deque[_RevisionSample] = deque()

    def compaction_revision(self, revision: int, now: float) -> int:
        """Return the revision up to which history may be discarded."""
        times, old = self._times, now - self.seconds
        if not times or now - times[-1].position >= self.seconds / _SAMPLES:
            times.append(_RevisionSample(now, revision))
        while len(times) > 1 and times[1].position <= old:
            times.popleft()
        aged = times[0].revision if times[0].position <= old else 0
        return min(aged, revision - self.revisions)

    def overflow_revision(self, revision: int, size: int) -> int:
        """Return the revision up to which history must be discarded; `size` counts all of it."""
        sizes = self._sizes
        if not sizes or size - sizes[-1].position >= self.max_bytes / _SAMPLES:
            sizes.append(_RevisionSample(size, revision))
        while size - sizes[0].position > self.max_bytes:
            sizes.popleft()
        return sizes[0].revision


T = TypeVar("T")

OnCommitted: TypeAlias = Callable[[CommitBatch], None]
OnFailed: TypeAlias = Callable[[Exception], None]


class BatchWriter(Protocol):
    """Makes batches durable. Orders are executed in order."""

    def write(self, batch: CommitBatch) -> None:
        """Make a batch durable, then call `on_committed` on the event loop."""
        ...

    def compact(self, revision: int) -> None:
        """Discard the history on disk up to a revision, in small steps."""
        ...

    async def close(self) -> None:
        """Return when all batches are durable and the file is closed."""
        ...


class _CompactOrder(NamedTuple):
    revision: int


class WriterThread:
    """A BatchWriter that is a thread."""

    def __init__(self, log: RevisionLog, on_committed: OnCommitted, on_failed: OnFailed) -> None:
        self._log, self._on_committed, self._on_failed = log, on_committed, on_failed
        self._orders: SimpleQueue[CommitBatch | _CompactOrder | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        # A daemon: a process that ends without closing its store is a crash like any other.
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, batch: CommitBatch) -> None:
        """Make a batch durable, together with all that are queued."""
        self._loop = asyncio.get_running_loop()
        self._orders.put(batch)
        # A thread that failed before the first write had no event loop to report to.
        if self._failure:
            self._loop.call_soon(self._on_failed, self._failure)

    def compact(self, revision: int) -> None:
        """Discard the history on disk up to a revision, in small steps."""
        self._orders.put(_CompactOrder(revision))

    async def close(self) -> None:
        """Return when all batches are durable and the file is closed."""
        self._orders.put(None)
        # Callbacks that the thread scheduled before it ended run before this returns.
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while self._process_orders():
                self._log.run_maintenance_step()
            self._log.close()
        except Exception as error:
            # Any error: a thread that ends without a report would leave every commit waiting.
            self._failure = error
            self._log.abandon()
            self._call_on_loop(self._on_failed, error)

    def _process_orders(self) -> bool:
        """Execute the queued orders; return False after the order to close."""
        orders = self._take_orders()
        batches = [order for order in orders if isinstance(order, list)]
        batch = [transaction for batch in batches for transaction in batch]
        self._log.append([change for transaction in batch for change in transaction.changes])
        if batch:
            self._call_on_loop(self._on_committed, batch)
        for order in orders:
            if isinstance(order, _CompactOrder):
                self._log.compact(order.revision)
        return None not in orders

    def _take_orders(self) -> list[CommitBatch | _CompactOrder | None]:
        """Return all queued orders; wait for one if there is no maintenance to do."""
        orders = []
        with contextlib.suppress(Empty):
            orders.append(self._orders.get(block=self._log.is_maintained))
            while True:
                orders.append(self._orders.get_nowait())
        return orders

    def _call_on_loop(self, callback: Callable[[T], None], argument: T) -> None:
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            # A closed event loop accepts no callbacks, and no commit waits on it.
            if self._loop and not self._loop.is_closed():
                raise


#: Default size of the part of the history that is in memory too, in bytes.
CACHED_HISTORY_BYTES = 16 << 20

#: Creates the writer of a store.
WriterFactory: TypeAlias = Callable[[RevisionLog, OnCommitted, OnFailed], BatchWriter]


class SqliteStore(CachedStore):
    """A Store in a directory; `on_failure` is called once, on the loop, if it stops by itself.

    A store that lost acknowledged writes is not opened, unless `accept_data_loss` is set.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        retention: RetentionPolicy | None = None,
        history_bytes: int = CACHED_HISTORY_BYTES,
        accept_data_loss: bool = False,
        on_failure: Callable[[StoreFailed], None] | None = None,
        create_writer: WriterFactory = WriterThread,
    ) -> None:
        #: The error after which nothing can be written any more.
        self.failure: StoreFailed | None = None
        self._clock, self._retention = clock or WallClock(), retention or RetentionPolicy()
        self._history_bytes, self._on_failure = history_bytes, on_failure
        self._in_flight: list[PendingTransaction] = []
        self._is_closed = False
        with contextlib.ExitStack() as files:
            file = files.enter_context(lock_directory(folder))
            prepare_database(file)
            mark = files.enter_context(contextlib.closing(HighWaterMark(folder)))
            with translate_errors(file):
                _check_lost_revisions(file, mark.read(), accept_data_loss=accept_data_loss)
                self._archive = files.enter_context(contextlib.closing(HistoryReader(file)))
                super().__init__(
                    VersionedMap(self._archive.current_records(), self._archive.revision)
                )
                self._writer = create_writer(RevisionLog(file, mark), self._publish, self._fail)
            self._files = files.pop_all()
        self._compacted_revision = self._archive.compacted_revision
        # Everything in the file but the current values counts as history.
        history = self._archive.used_bytes - sum(len(record.value) for record in self.range(""))
        self._retention.overflow_revision(self._compacted_revision, min(0, -history))
        self._trim_history()

    @property
    def compacted_revision(self) -> int:
        """The revision after which history is known, in memory or on disk."""
        return self._compacted_revision

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """Return the values below a prefix by key, current or at a past revision."""
        if at and self.compacted_revision <= at < self._data.compacted_revision:
            with self._fail_on_read_error():
                return self._archive.range(prefix, at=at, after=after, limit=limit)
        return super().range(prefix, at=at, after=after, limit=limit)

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """Return the number of values below a prefix, now or at a past revision."""
        if at and self.compacted_revision <= at < self._data.compacted_revision:
            with self._fail_on_read_error():
                return self._archive.count(prefix, at, after)
        return super().count(prefix, at=at, after=after)

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """Yield what was committed after a revision, in order; read it before the next commit."""
        if self.compacted_revision <= since < self._data.compacted_revision:
            return self._changes_from_disk(since, prefix)
        return super().changes(since, prefix)

    async def commit(self, writes: Sequence[StoreWrite]) -> Sequence[StoreChange]:
        """Write all or nothing; return when it is on disk and visible."""
        if self.failure:
            raise self.failure
        if self._is_closed:
            raise StoreClosed("the store is closed")
        return await super().commit(writes)

    def compact(self, revision: int) -> None:
        """Discard the history up to a revision: in memory now, on disk in small steps."""
        revision = min(revision, self.revision)
        if revision <= self._compacted_revision:
            return
        self._compacted_revision = revision
        super().compact(revision)
        self._writer.compact(revision)

    async def close(self) -> None:
        """Commit pending transactions, leave one file without a WAL, release the lock."""
        if self._is_closed:
            return
        self._is_closed = True
        self._flush()
        # The last connection to close checkpoints, and that must be the writer's. A writer that
        # failed has closed its connection already, and its unwritten data must not be touched.
        self._archive.close()
        await self._writer.close()
        self._files.close()

    def _schedule_flush(self) -> None:
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if batch := self._take_queued():
            self._in_flight += batch
            self._writer.write(batch)

    def _publish(self, batch: CommitBatch) -> None:
        if self.failure:
            return
        del self._in_flight[: len(batch)]
        super()._publish(batch)

    def _trim_history(self) -> None:
        self._data.trim_history(self._history_bytes)
        overflow = self._retention.overflow_revision(self.revision, self._data.appended_bytes)
        aged = self._retention.compaction_revision(self.revision, self._clock.now())
        if (
            overflow > self._compacted_revision
            or aged - self._compacted_revision >= COMPACTION_STEP
        ):
            self.compact(max(overflow, aged))

    def _fail(self, error: Exception) -> None:
        """Stop for good: pending commits raise, and their writes never become visible."""
        if self.failure:
            return
        self.failure = StoreFailed(f"the store stopped: {error}")
        self._pending.clear()
        for transaction in (*self._in_flight, *self._take_queued()):
            if not transaction.committed.done():
                transaction.committed.set_exception(self.failure)
        if self._on_failure:
            self._on_failure(self.failure)

    def _changes_from_disk(self, since: int, prefix: str) -> Iterator[StoreChange]:
        """Yield the changes that memory lacks; it may compact further ones meanwhile."""
        while since < self._data.compacted_revision:
            if since < self.compacted_revision:
                raise RevisionCompacted(self.compacted_revision)
            until = min(since + HISTORY_PAGE, self._data.compacted_revision)
            with self._fail_on_read_error():
                page = self._archive.changes(since, until, prefix)
            yield from page
            since = until
        yield from self._data.changes(since, prefix)

    @contextlib.contextmanager
    def _fail_on_read_error(self) -> Iterator[None]:
        """Stop the store if its file cannot be read."""
        try:
            yield
        except (sqlite3.Error, StoreCorrupted) as error:
            self._fail(error)
            raise StoreFailed(f"the store stopped: {error}") from error


def _check_lost_revisions(file: Path, acknowledged: int, *, accept_data_loss: bool) -> None:
    """Raise StoreUnusable if the file ends before an acknowledged revision; or skip the gap."""
    with contextlib.closing(HistoryReader(file)) as archive:
        last = archive.revision
    if last >= acknowledged:
        return
    if not accept_data_loss:
        raise StoreUnusable(
            f"{file} ends at revision {last}, but revision {acknowledged} was acknowledged: the "
            "file or its WAL was truncated, removed or replaced; restore a backup with phalanx "
            "restore, or continue without the lost writes with phalanx up --accept-data-loss"
        )
    skip_revisions(file, acknowledged)
