"""SQLite stores for tests: in a folder of their own, and on a loop whose time jumps."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

from phalanx.store.front import Batch
from phalanx.store.log import Log
from phalanx.store.sqlite import SqliteStore
from phalanx.store.writer import Failed, Landed


class Inline:
    """A Pen without a thread: it writes on the loop, after the seconds that `latency` gives."""

    def __init__(
        self, latency: Callable[[], float], log: Log, landed: Landed, failed: Failed
    ) -> None:
        self._latency, self._log, self._landed, self._failed = latency, log, landed, failed
        self._batches: list[Batch] = []
        # No power is lost in virtual time.
        log.db.execute("PRAGMA synchronous=OFF")

    def write(self, batch: Batch) -> None:
        if not self._batches:
            asyncio.get_running_loop().call_later(self._latency(), self._flush)
        self._batches.append(batch)

    def forget(self, floor: int) -> None:
        self._log.forget(floor)
        while not self._log.is_tidy:
            self._log.tidy()

    async def close(self) -> None:
        self._flush()
        self._log.close()

    def _flush(self) -> None:
        batch = [transaction for batch in self._batches for transaction in batch]
        self._batches.clear()
        try:
            self._log.append([change for transaction in batch for change in transaction.changes])
        except Exception as error:
            self._failed(error)
        else:
            self._landed(batch)


def on_disk(latency: Callable[[], float]) -> SqliteStore:
    """An empty store whose commits take the seconds that the function says.

    Its history in memory is all but nothing, so that what is asked of the past is read from disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="phalanx-store-"))
    store = SqliteStore(folder, ring=600, writing=partial(Inline, latency))
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
    return store
