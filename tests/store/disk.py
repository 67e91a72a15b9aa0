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

from phalanx.store.folder import FILE
from phalanx.store.format import prepare
from phalanx.store.front import Batch
from phalanx.store.log import Log
from phalanx.store.sqlite import SqliteStore
from phalanx.store.writer import Failed, Landed, Writer

P = ParamSpec("P")


def in_real_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test as an ordinary one, on a loop that a thread can talk to."""

    @wraps(test)
    def on_the_loop(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return on_the_loop


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
        self._log.append([change for transaction in batch for change in transaction.changes])
        self._landed(batch)


def on_disk(latency: Callable[[], float]) -> SqliteStore:
    """An empty store whose commits take the seconds that the function says.

    Its history in memory is all but nothing, so that what is asked of the past is read from disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="phalanx-store-"))
    (folder / FILE).write_bytes(_empty())
    store = SqliteStore(folder, ring=600, writing=partial(Inline, latency))
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
    return store


@cache
def _empty() -> bytes:
    """The file of an empty store, which takes a while to make on a slow disk."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder) / FILE)
        return (Path(folder) / FILE).read_bytes()


def showing(look: Callable[[Log], None]) -> Callable[[Log, Landed, Failed], Writer]:
    """A thread that writes, whose log is shown to a test before it begins."""

    def writing(log: Log, landed: Landed, failed: Failed) -> Writer:
        look(log)
        return Writer(log, landed, failed)

    return writing
