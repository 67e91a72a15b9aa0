"""SQLite stores for tests: on a loop whose time jumps, or on a real one."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import Callable, Coroutine
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, ParamSpec

from phalanx.store.database_file import DATABASE_FILE, prepare_database
from phalanx.store.memory import CommitBatch
from phalanx.store.revision_log import RevisionLog
from phalanx.store.sqlite import OnCommitted, OnFailed, SqliteStore, WriterThread

P = ParamSpec("P")


def in_real_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test as an ordinary one, on a loop that a thread can talk to."""

    @wraps(test)
    def on_the_loop(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return on_the_loop


class InlineWriter:
    """A BatchWriter without a thread: it writes on the loop, after the seconds of `latency`."""

    def __init__(
        self,
        latency: Callable[[], float],
        log: RevisionLog,
        on_committed: OnCommitted,
        on_failed: OnFailed,
    ) -> None:
        self._latency, self._log, self._on_committed, self._on_failed = (
            latency,
            log,
            on_committed,
            on_failed,
        )
        self._batches: list[CommitBatch] = []
        # No power is lost in virtual time.
        log.db.execute("PRAGMA synchronous=OFF")
        weakref.finalize(self, log.db.close)

    def write(self, batch: CommitBatch) -> None:
        if not self._batches:
            asyncio.get_running_loop().call_later(self._latency(), self._flush)
        self._batches.append(batch)

    def compact(self, revision: int) -> None:
        self._log.compact(revision)
        self._maintain()

    async def close(self) -> None:
        self._flush()
        self._log.close()

    def _flush(self) -> None:
        batch = [transaction for batch in self._batches for transaction in batch]
        self._batches.clear()
        self._log.append([change for transaction in batch for change in transaction.changes])
        self._on_committed(batch)
        self._maintain()

    def _maintain(self) -> None:
        while not self._log.is_maintained:
            self._log.run_maintenance_step()


def create_sqlite_store(latency: Callable[[], float]) -> SqliteStore:
    """An empty store whose commits take the seconds that the function says.

    Its history in memory is all but nothing, so that what is asked of the past is read from disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="phalanx-store-"))
    (folder / DATABASE_FILE).write_bytes(_empty_database())
    store = SqliteStore(folder, history_bytes=600, create_writer=partial(InlineWriter, latency))
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
    # Many tests do not close it.
    weakref.finalize(store, store._archive.close)
    return store


@cache
def _empty_database() -> bytes:
    """The file of an empty store, which takes a while to make on a slow disk."""
    with tempfile.TemporaryDirectory() as folder:
        prepare_database(Path(folder) / DATABASE_FILE)
        return (Path(folder) / DATABASE_FILE).read_bytes()


def writer_with_log(
    look: Callable[[RevisionLog], None],
) -> Callable[[RevisionLog, OnCommitted, OnFailed], WriterThread]:
    """A thread that writes, whose log is shown to a test before it begins."""

    def writing(log: RevisionLog, landed: OnCommitted, failed: OnFailed) -> WriterThread:
        look(log)
        return WriterThread(log, landed, failed)

    return writing
