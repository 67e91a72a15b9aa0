"""A process that dies while it writes: `python -m tests.store.crash_writer FOLDER WORDS NTH [N]`.

It kills itself when, for the NTH time, a statement that begins with WORDS is about to be executed;
LANDED instead of words: when a batch is on disk and not yet acknowledged. How many transactions
that takes depends on how many of them become one batch. With NTH 0 it does not kill itself, and
ends after N transactions. Each committed transaction is one line on its output.

What it leaves behind depends on nothing but the number of transactions, see `expected`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from phalanx.store import revision_log as store_log
from phalanx.store.kv import Store, StoreReader, StoreUnusable
from phalanx.store.memory import CommitBatch
from phalanx.store.revision_log import RevisionLog
from phalanx.store.sqlite import OnCommitted, OnFailed, SqliteStore, WriterThread
from tests.store.writes import delete, put

LANDED = "LANDED"

#: How many write at once, items that a transaction makes, transactions until they are deleted.
WRITERS, PARTS, LIFETIME = 4, 3, 5

#: A value of several pages; every so many transactions it is written, and a few later deleted.
LARGE, LARGE_EVERY, LARGE_LIFETIME = "x" * 40_000, 16, 5

#: Default number of transactions of one process: a little over 3,000 writes.
DEFAULT_TRANSACTIONS = 436

#: Number of transactions after which a process that should have killed itself ends nevertheless.
MAX_TRANSACTIONS = 20_000

#: What is left of history after each transaction.
HISTORY = 40

#: The exit codes of a process whose store did not open, or broke.
REFUSED, BROKEN = 2, 3


def transaction_count(store: Store) -> int:
    """How many transactions there were, of which some may still be on their way."""
    counter = store.pending("/counter")
    return int(counter.value.decode().split("@")[0]) if counter else 0


def expected(transactions: int) -> dict[str, str]:
    """Every key and what its value says, after so many transactions."""
    items = {
        f"/item/{n}/{part}": str(n)
        for n in range(max(1, transactions - LIFETIME + 1), transactions + 1)
        for part in range(PARTS)
    }
    if transactions >= LARGE_EVERY and transactions % LARGE_EVERY < LARGE_LIFETIME:
        items["/large"] = LARGE
    return {"/counter": str(transactions), **items} if transactions else {}


def stored_values(store: StoreReader) -> dict[str, str]:
    """Every key and what its value says."""
    return {record.key: record.value.decode().split("@")[0] for record in store.range("/")}


async def write_transactions(store: Store, enough: int = DEFAULT_TRANSACTIONS) -> None:
    """One transaction after the other, each of several keys that belong together."""
    for _ in range(enough // WRITERS):
        this, counter = transaction_count(store) + 1, store.pending("/counter")
        writes = [put("/counter", str(this), counter.revision if counter else 0)]
        writes += [put(f"/item/{this}/{part}", str(this)) for part in range(PARTS)]
        old = [store.pending(f"/item/{this - LIFETIME}/{part}") for part in range(PARTS)]
        if this % LARGE_EVERY == 0:
            writes.append(put("/large", LARGE))
        elif this % LARGE_EVERY == LARGE_LIFETIME:
            old.append(store.pending("/large"))
        writes += [delete(record.key, record.revision) for record in old if record]
        changes = await store.commit(writes)
        os.write(sys.stdout.fileno(), b"%d %d\n" % (this, changes[-1].revision))
        store.compact(store.revision - HISTORY)


def killing_writer(
    words: str, nth: int, log: RevisionLog, landed: OnCommitted, failed: OnFailed
) -> WriterThread:
    """A writer that takes its process with it."""
    die = _countdown(nth)

    def before(statement: str) -> None:
        if statement.startswith(words):
            die()

    def after(batch: CommitBatch) -> None:
        die()
        landed(batch)

    log.db.set_trace_callback(before)
    return WriterThread(log, after if words == LANDED else landed, failed)


def _countdown(nth: int) -> Callable[[], None]:
    left = nth

    def tick() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return tick


async def _main(folder: Path, words: str, nth: int, enough: int | None = None) -> None:
    store = SqliteStore(
        folder,
        create_writer=partial(killing_writer, words, nth),
        on_failure=lambda _: os._exit(BROKEN),
    )
    enough = enough or (MAX_TRANSACTIONS if nth else DEFAULT_TRANSACTIONS)
    await asyncio.gather(*(write_transactions(store, enough) for _ in range(WRITERS)))
    await store.close()


if __name__ == "__main__":
    store_log.COMPACTION_STEP, store_log.CHECKPOINT_BYTES = 40, 128 << 10
    store_log.SPARE_PAGES, store_log.SPARE_SHARE, store_log.VACUUM_STEP = 2, 0.0, 3
    try:
        asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])))
    except StoreUnusable:
        sys.exit(REFUSED)
