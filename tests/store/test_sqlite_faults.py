from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from phalanx.store.kv import Store, StoreChange, StoreFailed
from phalanx.store.revision_log import RevisionLog
from phalanx.store.sqlite import SqliteStore, WriterFactory
from tests.store.sqlite_stores import in_real_time, writer_with_log
from tests.store.test_sqlite_errors import small_files
from tests.store.writes import delete, everything, put, written


def failing(event: str) -> str:
    """A statement after which the file fails at an event, such as `INSERT ON log`."""
    return f"CREATE TEMP TRIGGER fault BEFORE {event} BEGIN SELECT RAISE(FAIL, 'on fire'); END"


def after(statement: str) -> WriterFactory:
    """A thread that writes, on a connection that has executed a statement before."""

    def tell(log: RevisionLog) -> None:
        log.db.execute(statement)

    return writer_with_log(tell)


async def commit_forever(store: Store, acknowledged: list[str]) -> None:
    """One record after the other, and note its key when it is committed."""
    for n in count():
        await store.commit([put(f"/{n:06}", "x" * 4000)])
        acknowledged.append(f"/{n:06}")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("PRAGMA max_page_count=1", "database or disk is full"),
        (failing("INSERT ON log WHEN new.rev = 3"), "on fire"),
        (failing("INSERT ON value WHEN new.rev = 5"), "on fire"),
    ],
    ids=["full", "log", "value"],
)
@in_real_time
async def test_failed_commit_ends_the_store_and_publishes_nothing(
    tmp_path: Path, fault: str, said: str
) -> None:
    heard: list[StoreChange] = []
    alarms: list[StoreFailed] = []
    store = SqliteStore(tmp_path)
    await store.commit([put("/a", "x"), put("/b", "x")])
    await store.close()
    store = SqliteStore(tmp_path, on_failure=alarms.append, create_writer=after(fault))
    store.subscribe(heard.extend)
    large = "x" * 20_000
    writes = [[put("/a", large, 1)], [put("/c", "x"), put("/d", "x")], [delete("/b", 2)], []]
    outcomes = await asyncio.gather(*map(store.commit, writes), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreFailed] * 4
    assert [str(outcome) for outcome in outcomes] == [f"the store stopped: {said}"] * 4
    with pytest.raises(StoreFailed):
        await store.commit([put("/e", "x")])
    assert alarms == [store.failure]
    assert (everything(store), store.revision, heard) == (["/a x@1", "/b x@2"], 2, [])
    assert store.pending("/b") == store.get("/b")
    assert [store.pending(key) for key in ("/c", "/d", "/e")] == [None] * 3
    await store.close()
    store = SqliteStore(tmp_path)
    assert everything(store) == ["/a x@1", "/b x@2"]
    assert (await store.commit([put("/c", "x")]))[0].revision == 3
    await store.close()


@in_real_time
async def test_commits_before_a_full_disk_stay(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    acknowledged: list[str] = []
    with small_files(300_000):
        with pytest.raises(StoreFailed, match="disk I/O error"):
            await commit_forever(store, acknowledged)
        assert store.failure
        await store.close()
    assert acknowledged
    store = SqliteStore(tmp_path)
    assert [record.key for record in store.range("/")] == acknowledged
    await store.close()


@in_real_time
async def test_store_failure_ignores_cancelled_commits(tmp_path: Path) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    fault = failing("INSERT ON log")
    store = SqliteStore(tmp_path, create_writer=after(fault))
    left = asyncio.ensure_future(store.commit([put("/a", "x")]))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(StoreFailed):
        await store.commit(())
    await store.close()
    del left
    assert complaints == []


@pytest.mark.parametrize("again", [True, False], ids=["after opening again", "at once"])
@in_real_time
async def test_failed_compaction_ends_the_store(tmp_path: Path, again: bool) -> None:
    fault = failing("DELETE ON log")
    store = SqliteStore(tmp_path, create_writer=after(fault))
    await written(store, [put("/a", "x")], [put("/a", "y", 1)])
    if again:
        await store.close()
        store = SqliteStore(tmp_path, create_writer=after(fault))
    store.compact(2)
    with pytest.raises(StoreFailed, match="on fire"):
        await commit_forever(store, [])
    await store.close()


@in_real_time
async def test_corrupted_history_ends_the_store(tmp_path: Path) -> None:
    alarms: list[StoreFailed] = []
    shown: list[RevisionLog] = []
    store = SqliteStore(
        tmp_path,
        history_bytes=0,
        on_failure=alarms.append,
        create_writer=writer_with_log(shown.append),
    )
    await written(store, [put("/a", "x")], [put("/a", "y", 1)])
    shown[0].db.execute("UPDATE value SET bytes = x'00' WHERE rev = 1")
    with pytest.raises(StoreFailed, match="corrupted"):
        list(store.changes(0))
    assert len(alarms) == 1
    with pytest.raises(StoreFailed):
        store.range("/", at=1)
    assert len(alarms) == 1
    await store.close()
