from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.store.kv import (
    KeyValue,
    RevisionCompacted,
    Store,
    StoreChange,
    StoreClosed,
    StoreUnusable,
    StoreWrite,
)
from phalanx.store.memory import MemoryStore
from phalanx.store.revision_log import RevisionLog
from phalanx.store.sqlite import RetentionPolicy, SqliteStore
from tests.store.sqlite_stores import in_real_time, writer_with_log
from tests.store.writes import delete, describe_changes, everything, put, written

#: Keeps so little history in memory that the rest is read from disk.
TINY = 600


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds


async def a_history(store: Store) -> None:
    """The one that the protocol's own description draws."""
    await written(store, [put("/a", "x")], [put("/b", "x")], [put("/b", "y", 2)])
    await written(store, [put("/a", "y", 1)], [delete("/a", 4)])


def rows(folder: Path) -> dict[str, int]:
    """How many rows each table of a closed store has."""
    log = RevisionLog(folder / "store.db")
    counts = {
        table: int(log.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        for table in ("log", "value")
    }
    log.close()
    return counts


# ---- what is remembered --------------------------------------------------------------------------


@in_real_time
async def test_committed_values_survive_reopening(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await a_history(store)
    await store.close()
    store = SqliteStore(tmp_path)
    assert (store.revision, store.compacted_revision, everything(store)) == (5, 0, ["/b y@3"])
    assert store.get("/b") == store.pending("/b") == KeyValue("/b", b"y@3", 3, created=2)
    await store.close()


@in_real_time
async def test_revisions_continue_after_reopening(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await a_history(store)
    await store.close()
    store = SqliteStore(tmp_path)
    assert describe_changes(await store.commit([put("/b", "z", 3)])) == ["6: /b y@3 -> /b z@6"]
    await store.close()


@in_real_time
async def test_revisions_continue_after_compaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await a_history(store)
    store.compact(5)
    await written(store, [])
    await store.close()
    assert rows(tmp_path) == {"log": 1, "value": 1}
    store = SqliteStore(tmp_path)
    assert (store.revision, store.compacted_revision) == (5, 5)
    assert describe_changes(await store.commit([put("/a", "z")])) == ["6: - -> /a z@6"]
    await store.close()


@pytest.mark.parametrize("again", [True, False], ids=["after opening again", "at once"])
@in_real_time
async def test_history_outside_memory_is_read_from_disk(tmp_path: Path, again: bool) -> None:
    store = SqliteStore(tmp_path, history_bytes=TINY)
    await a_history(store)
    if again:
        await store.close()
        store = SqliteStore(tmp_path, history_bytes=TINY)
    assert describe_changes(store.changes(0)) == [
        "1: - -> /a x@1",
        "2: - -> /b x@2",
        "3: /b x@2 -> /b y@3",
        "4: /a x@1 -> /a y@4",
        "5: /a y@4 -> -",
    ]
    assert describe_changes(store.changes(1, "/b")) == ["2: - -> /b x@2", "3: /b x@2 -> /b y@3"]
    states = [everything(store, at) for at in (1, 2, 3, 4, 5)]
    assert states[:3] == [["/a x@1"], ["/a x@1", "/b x@2"], ["/a x@1", "/b y@3"]]
    assert states[3:] == [["/a y@4", "/b y@3"], ["/b y@3"]]
    await store.close()


@in_real_time
async def test_history_is_read_in_pages_without_a_gap(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, history_bytes=TINY)
    await store.commit([put(f"/{n % 7}/{n:04}", "x") for n in range(1234)])
    assert [change.revision for change in store.changes(3)] == list(range(4, 1235))
    keys = [record.key for record in store.range("/3/", at=1000, after="/3/0017", limit=4)]
    assert keys == ["/3/0024", "/3/0031", "/3/0038", "/3/0045"]
    await store.close()


@in_real_time
async def test_compaction_during_a_read_raises_revision_compacted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, history_bytes=TINY)
    await store.commit([put(f"/{n:04}", "x") for n in range(1200)])
    reading = store.changes(0)
    assert next(reading).revision == 1
    store.compact(900)
    with pytest.raises(RevisionCompacted):
        list(reading)
    await store.close()


@in_real_time
async def test_any_key_and_value_can_be_stored(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, history_bytes=0)
    odd = ["\0", "/ä", "/\U0010fffe", "/\ud800", "/" + "x" * 5000]
    values = [b"", bytes(range(256)), b"\xff" * 300_000]
    await store.commit([StoreWrite(key, lambda revision: values[revision % 3], 0) for key in odd])
    there = list(store.range(""))
    await store.close()
    store = SqliteStore(tmp_path)
    assert list(store.range("")) == there
    assert [change.after for change in store.changes(0)] == [store.get(key) for key in odd]
    assert [record.key for record in there] == sorted(odd)
    await store.close()


# ---- group commit --------------------------------------------------------------------------------


@in_real_time
async def test_concurrent_commits_share_a_flush(tmp_path: Path) -> None:
    statements: list[str] = []
    store = SqliteStore(
        tmp_path,
        create_writer=writer_with_log(lambda log: log.db.set_trace_callback(statements.append)),
    )
    await asyncio.gather(*(store.commit([put(f"/{n}", "x")]) for n in range(100)))
    assert statements.count("COMMIT") == 1
    await store.close()
    assert len(everything(store)) == 100


@in_real_time
async def test_batches_are_published_in_order_and_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    heard: list[StoreChange] = []
    store.subscribe(heard.extend)

    async def count(name: str) -> None:
        for _ in range(20):
            there = store.pending(name)
            await store.commit([put(name, "x", there.revision if there else 0)])

    await asyncio.gather(*(count(f"/{n}") for n in range(5)))
    await store.close()
    assert [change.revision for change in heard] == list(range(1, 101))


@in_real_time
async def test_file_uses_full_synchronous_writes(tmp_path: Path) -> None:
    found: dict[str, object] = {}

    def look(log: RevisionLog) -> None:
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "mmap_size"):
            found[name] = log.db.execute(f"PRAGMA {name}").fetchone()[0]

    await SqliteStore(tmp_path, create_writer=writer_with_log(look)).close()
    full = 2
    assert found == {
        "journal_mode": "wal",
        "synchronous": full,
        "wal_autocheckpoint": 0,
        "mmap_size": 0,
    }


@in_real_time
async def test_wal_is_checkpointed_regularly(tmp_path: Path) -> None:
    statements: list[str] = []
    store = SqliteStore(
        tmp_path,
        create_writer=writer_with_log(lambda log: log.db.set_trace_callback(statements.append)),
    )
    for n in range(4):
        await store.commit([StoreWrite(f"/{n}", lambda _: bytes(1 << 20), 0)])
    await store.close()
    assert statements.count("PRAGMA wal_checkpoint(PASSIVE)") >= 1


# ---- closing -------------------------------------------------------------------------------------


@in_real_time
async def test_close_commits_pending_transactions_and_leaves_one_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    writing = asyncio.ensure_future(store.commit([put("/a", "x")]))
    await asyncio.sleep(0)
    await store.close()
    assert describe_changes(await writing) == ["1: - -> /a x@1"]
    assert sorted(os.listdir(tmp_path)) == ["store.db", "store.lock", "store.mark"]
    await store.close()


@in_real_time
async def test_closed_store_refuses_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.close()
    with pytest.raises(StoreClosed, match="closed"):
        await store.commit([put("/a", "x")])


@in_real_time
async def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    store = SqliteStore(folder)
    await store.commit([put("/a", "x")])
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(folder)} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await store.close()


# ---- one process at a time -----------------------------------------------------------------------


def test_second_process_gets_an_error_with_the_pid_of_the_first(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from phalanx.store.sqlite import SqliteStore;"
        "store = SqliteStore(pathlib.Path(sys.argv[1]));"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreUnusable, match=f"in use by process {other.pid};"):
            SqliteStore(tmp_path)
        other.kill()
    asyncio.run(SqliteStore(tmp_path).close())


@in_real_time
async def test_store_cannot_be_opened_twice_in_one_process(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreUnusable, match="in use"):
        SqliteStore(tmp_path)
    await store.commit([put("/a", "x")])
    await store.close()
    store = SqliteStore(tmp_path)
    assert everything(store) == ["/a x@1"]
    await store.close()


# ---- forgetting ----------------------------------------------------------------------------------


@in_real_time
async def test_compaction_on_disk_proceeds_in_steps_and_is_durable(tmp_path: Path) -> None:
    statements: list[str] = []
    store = SqliteStore(
        tmp_path,
        create_writer=writer_with_log(lambda log: log.db.set_trace_callback(statements.append)),
    )
    for n in range(11):
        expect = (n - 1) * 500
        await store.commit([put(f"/{k}", "x", expect + k if n else 0) for k in range(1, 501)])
    store.compact(5200)
    with pytest.raises(RevisionCompacted):
        store.changes(5199)
    # One step after each batch, be it empty.
    await written(store, [], [], [])
    await store.close()
    assert len([s for s in statements if s.startswith("UPDATE meta")]) == 3
    assert rows(tmp_path) == {"log": 800, "value": 800}
    store = SqliteStore(tmp_path)
    assert (store.compacted_revision, store.revision) == (5200, 5500)
    assert len(everything(store, 5200)) == len(everything(store)) == 500
    assert [change.revision for change in store.changes(5200)] == list(range(5201, 5501))
    assert all(change.before for change in store.changes(5200))
    await store.close()


@in_real_time
async def test_retention_discards_history_that_is_old_and_long_enough(tmp_path: Path) -> None:
    clock = SetClock()
    store = SqliteStore(
        tmp_path, clock=clock, retention=RetentionPolicy(seconds=300, revisions=1000)
    )
    clock.seconds += 10
    await store.commit([put(f"/{n}", "x") for n in range(4000)])
    assert store.compacted_revision == 0
    clock.seconds += 200
    await store.commit([put(f"/late/{n}", "x") for n in range(2000)])
    assert store.compacted_revision == 0
    clock.seconds += 101
    await store.commit([put("/last", "x")])
    assert store.compacted_revision == 4000
    await store.close()


# ---- like memory ---------------------------------------------------------------------------------

#: A session is a list of transactions that are written at once; a transaction, of keys to flip.
sessions = st.lists(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(("/a", "/a/x", "/b", "/c")), st.booleans()),
            min_size=1,
            max_size=3,
            unique_by=lambda request: request[0],
        ),
        max_size=12,
    ),
    min_size=1,
    max_size=3,
)


def make_write(store: Store, key: str, is_deletion: bool) -> StoreWrite:
    there = store.pending(key)
    expect = there.revision if there else 0
    return delete(key, expect) if is_deletion and there else put(key, "v", expect)


async def spend(store: Store, transactions: Sequence[Sequence[tuple[str, bool]]]) -> None:
    """Write all transactions of a session at once."""

    async def commit(requests: Sequence[tuple[str, bool]]) -> None:
        await store.commit([make_write(store, *each) for each in requests])

    await asyncio.gather(*(commit(requests) for requests in transactions))


async def spend_and_close(folder: Path, ring: int, *transactions: list[tuple[str, bool]]) -> None:
    store = SqliteStore(folder, history_bytes=ring)
    await spend(store, transactions)
    await store.close()


@settings(max_examples=20)
@given(sessions=sessions, ring=st.sampled_from((0, TINY, 1 << 20)), share=st.floats(0, 1))
def test_reopened_store_equals_a_store_that_stayed_open(
    sessions: list[list[list[tuple[str, bool]]]], ring: int, share: float
) -> None:
    memory = MemoryStore()

    async def compared(folder: Path) -> None:
        store = SqliteStore(folder, history_bytes=ring)
        store.compact(int(share * store.revision))
        memory.compact(int(share * memory.revision))
        for at in range(max(memory.compacted_revision, 1), memory.revision + 1):
            assert list(store.range("/", at=at)) == list(memory.range("/", at=at))
            assert list(store.changes(at, "/a")) == list(memory.changes(at, "/a"))
        assert (store.revision, store.compacted_revision) == (
            memory.revision,
            memory.compacted_revision,
        )
        await store.close()

    with tempfile.TemporaryDirectory() as name:
        for transactions in sessions:
            asyncio.run(spend_and_close(Path(name), ring, *transactions))
            asyncio.run(spend(memory, transactions))
        asyncio.run(compared(Path(name)))


def test_retention_never_keeps_less_than_configured() -> None:
    retention = RetentionPolicy(seconds=300, revisions=100)
    revisions = [retention.compaction_revision(revision=10 * n, now=float(n)) for n in range(1000)]
    assert all(a <= b for a, b in pairwise(revisions))
    assert max(revisions[:300]) <= 0
    assert all(revision <= 10 * (n - 300) for n, revision in enumerate(revisions) if n > 300)
    assert revisions[-1] >= 10 * (1000 - 300 - 300 / 60) - 100
