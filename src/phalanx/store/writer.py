"""The one thread that writes: what waits becomes one transaction on disk, then the loop is told.

Between the event loop (`sqlite.py`) and the file (`log.py`). While one batch is being flushed the
next ones gather, so that the more is written, the more is flushed at once. Forgetting and
checkpoints happen here too, one step between two batches.

    event loop   write ──▶ orders            landed(batch) or, once and at the end, failed(error)
                             │                  ▲
    thread                   └─▶ append, flush ─┘─▶ tidy
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from phalanx.store.front import Batch
from phalanx.store.log import Log

T = TypeVar("T")

Landed: TypeAlias = Callable[[Batch], None]
Failed: TypeAlias = Callable[[Exception], None]


class Pen(Protocol):
    """What a store writes with. Orders are carried out as they came."""

    def write(self, batch: Batch) -> None:
        """Have a batch on disk, and `landed` called on the loop with it and those beside it."""
        ...

    def forget(self, floor: int) -> None:
        """Have the history up to a revision go from the disk, little by little."""
        ...

    async def close(self) -> None:
        """Return when every batch has landed and the log is closed."""
        ...


class _Forget(NamedTuple):
    floor: int


class Writer:
    """A Pen that is a thread."""

    def __init__(self, log: Log, landed: Landed, failed: Failed) -> None:
        self._log, self._landed, self._failed = log, landed, failed
        self._orders: SimpleQueue[Batch | _Forget | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        # A process that ends without closing its store is a crash like any other.
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, batch: Batch) -> None:
        """Have a batch on disk, together with all that waits beside it."""
        self._loop = asyncio.get_running_loop()
        self._orders.put(batch)
        # A thread that failed before it knew a loop could tell nobody.
        if self._failure:
            self._loop.call_soon(self._failed, self._failure)

    def forget(self, floor: int) -> None:
        """Have the history up to a revision go from the disk, little by little."""
        self._orders.put(_Forget(floor))

    async def close(self) -> None:
        """Return when every batch has landed and the log is closed."""
        self._orders.put(None)
        # What the thread told the loop before it ended comes before the news of its end.
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while self._turn():
                self._log.tidy()
            self._log.close()
        except Exception as error:
            # Whatever it is: a thread that ends in silence would leave every commit waiting.
            self._failure = error
            self._log.abandon()
            self._tell(self._failed, error)

    def _turn(self) -> bool:
        """Carry out what is ordered; False when that was to close."""
        orders = self._drain()
        batches = [order for order in orders if isinstance(order, list)]
        batch = [transaction for batch in batches for transaction in batch]
        self._log.append([change for transaction in batch for change in transaction.changes])
        if batch:
            self._tell(self._landed, batch)
        for order in orders:
            if isinstance(order, _Forget):
                self._log.forget(order.floor)
        return None not in orders

    def _drain(self) -> list[Batch | _Forget | None]:
        """All that is ordered; waits for something if there is nothing else to do."""
        orders = []
        with contextlib.suppress(Empty):
            orders.append(self._orders.get(block=self._log.is_tidy))
            while True:
                orders.append(self._orders.get_nowait())
        return orders

    def _tell(self, news: Callable[[T], None], what: T) -> None:
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(news, what)
        except RuntimeError:
            # A loop that is closed takes no news, and nobody is waiting for them.
            if self._loop and not self._loop.is_closed():
                raise
