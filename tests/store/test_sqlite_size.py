"""How large a store becomes: history is bounded by bytes, and free pages leave the file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from phalanx.store.database_file import INCREMENTAL_VACUUM, PAGE_BYTES
from phalanx.store.kv import RevisionCompacted, Store, StoreWrite
from phalanx.store.memory import HISTORY_BYTES, MemoryStore
from phalanx.store.revision_log import SPARE_PAGES, VACUUM_STEP, RevisionLog
from phalanx.store.sqlite import RetentionPolicy, SqliteStore
from tests.store.sqlite_stores import in_real_time, writer_with_log
from tests.store.test_sqlite_errors import small_files
from tests.store.writes import delete, everything, put

MIB = 1 << 20
#: Size of a value, and the maximum size of the history, in these tests.
VALUE, MAX_HISTORY = 64 << 10, 2 * MIB


def bounded() -> RetentionPolicy:
    """A policy that nothing but the size limits."""
    return RetentionPolicy(seconds=1e9, revisions=10**9, max_bytes=MAX_HISTORY)


async def replace_often(store: Store, times: int) -> None:
    """Write one key again and again."""
    for _ in range(times):
        found = store.get("/a")
        revision = found.revision if found else 0
        await store.commit([StoreWrite("/a", lambda _: os.urandom(VALUE), revision)])


async def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not is_true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def vacuum_mode(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "store.db")) as db:
        return int(db.execute("PRAGMA auto_vacuum").fetchone()[0])


# ---- history -------------------------------------------------------------------------------------


@in_real_time
async def test_history_of_the_memory_store_is_bounded_by_bytes() -> None:
    store = MemoryStore(history_bytes=MAX_HISTORY)
    await replace_often(store, 100)
    kept = [change.before for change in store.changes(store.compacted_revision)]
    assert 0.9 * MAX_HISTORY < sum(len(old.value) for old in kept if old) <= MAX_HISTORY
    with pytest.raises(RevisionCompacted):
        store.changes(store.compacted_revision - 1)


@in_real_time
async def test_history_in_the_file_is_bounded_by_bytes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, retention=bounded())
    await replace_often(store, 100)
    kept = store.revision - store.compacted_revision
    assert 0.9 * MAX_HISTORY - VALUE < kept * VALUE <= MAX_HISTORY
    await wait_until(lambda: value_count(tmp_path) <= kept + 1)
    await store.close()


def value_count(folder: Path) -> int:
    with closing(sqlite3.connect(f"file:{folder}/store.db?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM value").fetchone()[0])


@in_real_time
async def test_history_of_earlier_processes_counts_too(tmp_path: Path) -> None:
    for _ in range(6):
        store = SqliteStore(tmp_path, retention=bounded())
        await replace_often(store, 25)
        await wait_until(
            lambda: value_count(tmp_path) <= store.revision - store.compacted_revision + 1  # noqa: B023
        )
        await store.close()
        assert (store.revision - store.compacted_revision) * VALUE <= MAX_HISTORY


def test_both_stores_keep_256_mib_of_history_by_default() -> None:
    assert RetentionPolicy().max_bytes == HISTORY_BYTES == 256 * MIB


# ---- the file ------------------------------------------------------------------------------------


@in_real_time
async def test_free_pages_leave_the_file_in_small_steps(tmp_path: Path) -> None:
    steps: list[str] = []

    def trace(log: RevisionLog) -> None:
        log.db.set_trace_callback(lambda text: steps.append(text) if "vacuum(" in text else None)

    store = SqliteStore(tmp_path, create_writer=writer_with_log(trace))
    keys = [f"/{n}" for n in range(300)]
    await store.commit([StoreWrite(key, lambda _: os.urandom(VALUE), 0) for key in keys])
    await store.commit([delete(key, n) for n, key in enumerate(keys, 1)])
    await store.commit([put("/a", "x")])
    file, spare = tmp_path / "store.db", (SPARE_PAGES + 64) * PAGE_BYTES
    store.compact(store.revision)
    await wait_until(lambda: file.stat().st_size > 15 * MIB)
    await wait_until(lambda: store_is_smaller(file, spare))
    assert set(steps) == {f"PRAGMA incremental_vacuum({VACUUM_STEP})"}
    assert len(steps) > 10
    await store.close()
    assert file.stat().st_size <= spare
    store = SqliteStore(tmp_path)
    assert everything(store) == ["/a x@601"]
    await store.close()


def store_is_smaller(file: Path, size: int) -> bool:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return int(db.execute("PRAGMA page_count").fetchone()[0]) * PAGE_BYTES <= size


def without_vacuum(folder: Path) -> list[str]:
    """A store whose file cannot shrink, as earlier versions made them; returns its content."""

    async def fill() -> list[str]:
        store = SqliteStore(folder)
        await store.commit([StoreWrite(f"/{n}", lambda _: bytes(5000), 0) for n in range(100)])
        await store.close()
        return everything(store)

    there = asyncio.run(fill())
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum=NONE")
        db.execute("VACUUM")
    assert vacuum_mode(folder) == 0
    return there


async def reopen(folder: Path) -> list[str]:
    store = SqliteStore(folder)
    await store.commit([put("/new", "x", 0 if store.get("/new") is None else 101)])
    await store.close()
    return [line for line in everything(store) if not line.startswith("/new")]


def test_file_of_an_earlier_version_is_converted_once(tmp_path: Path) -> None:
    there = without_vacuum(tmp_path)
    assert asyncio.run(reopen(tmp_path)) == there
    assert vacuum_mode(tmp_path) == INCREMENTAL_VACUUM


def test_file_that_cannot_be_converted_stays_usable(tmp_path: Path) -> None:
    there = without_vacuum(tmp_path)
    with small_files((tmp_path / "store.db").stat().st_size // 2):
        store = SqliteStore(tmp_path)
        assert everything(store) == there
        asyncio.run(store.close())
    assert vacuum_mode(tmp_path) == 0
    assert asyncio.run(reopen(tmp_path)) == there
    assert vacuum_mode(tmp_path) == INCREMENTAL_VACUUM
