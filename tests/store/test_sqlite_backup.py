from __future__ import annotations

import asyncio
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.store.backup import backup, restore
from phalanx.store.kv import KeyValue, RevisionCompacted, StoreChange, StoreUnusable, StoreWrite
from phalanx.store.revision_log import REVISION_GAP
from phalanx.store.sqlite import SqliteStore
from tests.store.crash_writer import expected, stored_values, transaction_count, write_transactions
from tests.store.test_sqlite_crash import killed
from tests.store.test_sqlite_errors import contents
from tests.store.writes import delete, describe_changes, everything, put


async def commit(folder: Path, *transactions: list[StoreWrite]) -> list[StoreChange]:
    """Open a store, write into it and close it; gives what the last transaction changed."""
    store = SqliteStore(folder)
    changes: list[StoreChange] = []
    for writes in transactions:
        changes = list(await store.commit(writes))
    await store.close()
    return changes


async def looked(folder: Path) -> list[str]:
    store = SqliteStore(folder)
    await store.close()
    return everything(store)


def a_store(folder: Path) -> None:
    """Three writes: /a was x and is y, /b is x."""
    asyncio.run(commit(folder, [put("/a", "x"), put("/b", "x")], [put("/a", "y", 1)]))


# ---- taking a copy -------------------------------------------------------------------------------


def test_backup_is_one_private_file(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    assert backup(tmp_path / "data", tmp_path / "copy") == 3
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


def test_backup_of_a_running_store_is_consistent(tmp_path: Path) -> None:
    async def run() -> list[int]:
        store = SqliteStore(tmp_path / "data")
        writing = [asyncio.ensure_future(write_transactions(store)) for _ in range(4)]
        revisions = [
            await asyncio.to_thread(backup, tmp_path / "data", tmp_path / f"copy-{n}")
            for n in range(5)
        ]
        await asyncio.gather(*writing)
        await store.close()
        return revisions

    revisions = asyncio.run(run())
    assert revisions == sorted(revisions)
    for n in range(5):
        restore(tmp_path / f"copy-{n}", tmp_path / f"data-{n}")
        store = SqliteStore(tmp_path / f"data-{n}")
        assert stored_values(store) == expected(transaction_count(store))
        asyncio.run(store.close())


def test_another_process_can_back_up_a_running_store(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from phalanx.store.backup import backup;"
        "print(backup(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data"), str(tmp_path / "copy")]

    async def run() -> bytes:
        store = SqliteStore(tmp_path / "data")
        await store.commit([put("/a", "x")])
        copying = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        said, _ = await copying.communicate()
        await store.commit([put("/b", "x")])
        await store.close()
        return said

    assert asyncio.run(run()) == b"1\n"
    restore(tmp_path / "copy", tmp_path / "again")
    assert asyncio.run(looked(tmp_path / "again")) == ["/a x@1"]
    assert asyncio.run(looked(tmp_path / "data")) == ["/a x@1", "/b x@2"]


def test_backup_after_a_crash_contains_all_acknowledged_writes(tmp_path: Path) -> None:
    transactions, _, _ = killed(tmp_path / "data", "COMMIT", 9)
    backup(tmp_path / "data", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "again")
    store = SqliteStore(tmp_path / "again")
    assert transaction_count(store) >= transactions
    assert stored_values(store) == expected(transaction_count(store))
    asyncio.run(store.close())


def test_backup_does_not_overwrite_a_file(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(StoreUnusable, match="already exists"):
        backup(tmp_path / "data", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "mine"


def test_backup_without_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no store in"):
        backup(tmp_path, tmp_path / "copy")
    assert os.listdir(tmp_path) == []


def test_backup_to_an_unwritable_directory_is_an_error(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    with pytest.raises(StoreUnusable, match="No such file or directory"):
        backup(tmp_path / "data", tmp_path / "missing" / "copy")


def test_corrupted_store_is_not_backed_up(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    file = tmp_path / "data" / "store.db"
    file.write_bytes(file.read_bytes()[:-1000] + bytes(1000))
    with pytest.raises(StoreUnusable, match=r"store\.db is corrupted"):
        backup(tmp_path / "data", tmp_path / "copy")
    assert sorted(os.listdir(tmp_path)) == ["data"]


# ---- putting it back -----------------------------------------------------------------------------


def test_restore_keeps_values_and_skips_revisions(
    tmp_path: Path,
) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    revision, _ = restore(tmp_path / "copy", tmp_path / "again")
    assert revision >= 3 + REVISION_GAP

    async def look() -> None:
        store = SqliteStore(tmp_path / "again")
        assert (store.revision, store.compacted_revision) == (revision, revision)
        assert store.get("/a") == KeyValue("/a", b"y@3", 3, created=1)
        assert everything(store) == everything(store, revision) == ["/a y@3", "/b x@2"]
        for gone in (1, 3, 1000, revision - 1):
            with pytest.raises(RevisionCompacted):
                store.changes(gone)
        changes = await store.commit([put("/a", "z", 3), delete("/b", 2)])
        after = revision + 1
        assert describe_changes(changes) == [
            f"{after}: /a y@3 -> /a z@{after}",
            f"{after + 1}: /b x@2 -> -",
        ]
        await store.close()

    asyncio.run(look())
    store = SqliteStore(tmp_path / "again")
    assert [change.revision for change in store.changes(revision)] == [revision + 1, revision + 2]
    asyncio.run(store.close())


def test_repeated_restores_never_reuse_revisions(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    given = [3]
    for _ in range(3):
        restore(tmp_path / "copy", tmp_path / "data", replace=True)
        (change,) = asyncio.run(commit(tmp_path / "data", [put("/new", "x")]))
        assert change.revision > given[-1]
        given.append(change.revision)


def test_restore_replaces_a_store_only_with_replace(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    asyncio.run(commit(tmp_path / "data", [put("/c", "x")]))
    before = contents(tmp_path / "data")
    with pytest.raises(StoreUnusable, match="already exists"):
        restore(tmp_path / "copy", tmp_path / "data")
    assert contents(tmp_path / "data") == before
    restore(tmp_path / "copy", tmp_path / "data", replace=True)
    assert asyncio.run(looked(tmp_path / "data")) == ["/a y@3", "/b x@2"]


def test_restore_replaces_an_empty_store(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    asyncio.run(commit(tmp_path / "new"))
    restore(tmp_path / "copy", tmp_path / "new")
    assert asyncio.run(looked(tmp_path / "new")) == ["/a y@3", "/b x@2"]


def test_restore_ignores_the_wal_of_a_crashed_process(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    killed(tmp_path / "dead", "COMMIT", 30)
    assert "store.db-wal" in contents(tmp_path / "dead")
    restore(tmp_path / "copy", tmp_path / "dead", replace=True)
    assert asyncio.run(looked(tmp_path / "dead")) == ["/a y@3", "/b x@2"]


def test_restore_replaces_a_corrupted_store_with_replace(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    (tmp_path / "data" / "store.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreUnusable):
        restore(tmp_path / "copy", tmp_path / "data")
    restore(tmp_path / "copy", tmp_path / "data", replace=True)
    assert asyncio.run(looked(tmp_path / "data")) == ["/a y@3", "/b x@2"]


def test_restore_does_not_replace_a_running_store(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    store = SqliteStore(tmp_path / "data")
    with pytest.raises(StoreUnusable, match="in use"):
        restore(tmp_path / "copy", tmp_path / "data", replace=True)
    asyncio.run(store.close())


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 1000], ids=["no", "empty", "garbage"])
def test_restore_from_a_foreign_file_keeps_the_store(tmp_path: Path, content: bytes | None) -> None:
    a_store(tmp_path / "data")
    if content is not None:
        (tmp_path / "copy").write_bytes(content)
    before = contents(tmp_path / "data")
    with pytest.raises(StoreUnusable):
        restore(tmp_path / "copy", tmp_path / "data", replace=True)
    assert contents(tmp_path / "data") == before


def test_restore_from_a_corrupted_backup_keeps_the_store(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    copy = tmp_path / "copy"
    copy.write_bytes(copy.read_bytes()[:-1000] + bytes(1000))
    with pytest.raises(StoreUnusable, match="is corrupted"):
        restore(copy, tmp_path / "data", replace=True)
    assert asyncio.run(looked(tmp_path / "data")) == ["/a y@3", "/b x@2"]


# ---- what a restore verifies and keeps -----------------------------------------------------------


@pytest.mark.parametrize("value", [b"x@1", b"y@3"], ids=["old", "current"])
def test_restore_verifies_every_row_before_it_replaces_anything(
    tmp_path: Path, value: bytes
) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    copy, before = tmp_path / "copy", contents(tmp_path / "data")
    content = copy.read_bytes()
    assert content.count(value) == 1
    copy.write_bytes(content.replace(value, b"z" + value[1:]))
    with pytest.raises(StoreUnusable, match=r"copy is corrupted; use an older backup"):
        restore(copy, tmp_path / "data", replace=True)
    assert contents(tmp_path / "data") == before


def test_no_damage_of_a_backup_leaves_a_part_or_changes_the_store(tmp_path: Path) -> None:
    """Damage is found in every page, and the error names the backup."""
    writes = [put(f"/{number:03}", "x" * 400) for number in range(40)]
    asyncio.run(commit(tmp_path / "data", writes))
    backup(tmp_path / "data", tmp_path / "copy")
    copy, before = tmp_path / "copy", contents(tmp_path / "data")
    content = copy.read_bytes()
    damaged = [content[: len(content) // 2]]
    (size,) = struct.unpack(">H", content[16:18])
    for begin in range(size, len(content), size):
        page = bytes(byte ^ 0x55 for byte in content[begin : begin + size])
        damaged.append(content[:begin] + page + content[begin + size :])
    assert len(damaged) > 5
    for text in damaged:
        copy.write_bytes(text)
        with pytest.raises(StoreUnusable, match=r"/copy is corrupted; use an older backup"):
            restore(copy, tmp_path / "data", replace=True)
        assert contents(tmp_path / "data") == before


def kept_store(folder: Path, before: Path) -> list[str]:
    """The content of a store that a restore has kept."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        file = before.with_name(before.name + suffix)
        if file.exists():
            (folder / f"store.db{suffix}").write_bytes(file.read_bytes())
    return asyncio.run(looked(folder))


def test_replaced_store_is_kept(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    asyncio.run(commit(tmp_path / "data", [put("/c", "x")]))
    _, before = restore(tmp_path / "copy", tmp_path / "data", replace=True)
    assert before == tmp_path / "data" / "store.db.before"
    assert stat.S_IMODE(before.stat().st_mode) == 0o600
    assert kept_store(tmp_path / "kept", before) == ["/a y@3", "/b x@2", "/c x@4"]
    asyncio.run(commit(tmp_path / "data", [put("/d", "x")]))
    _, before = restore(tmp_path / "copy", tmp_path / "data", replace=True)
    assert before is not None
    assert [line.split()[0] for line in kept_store(tmp_path / "kept again", before)] == [
        "/a",
        "/b",
        "/d",
    ]


def test_store_of_a_killed_process_is_kept_with_its_wal(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    transactions, _, _ = killed(tmp_path / "dead", "COMMIT", 30)
    _, before = restore(tmp_path / "copy", tmp_path / "dead", replace=True)
    assert before is not None
    kept_store(tmp_path / "kept", before)
    store = SqliteStore(tmp_path / "kept")
    assert transaction_count(store) >= transactions
    asyncio.run(store.close())


@pytest.mark.parametrize("damaged", [b"garbage" * 1000, None], ids=["unreadable", "removed"])
def test_unreadable_store_is_kept_and_its_wal_is_not_applied(
    tmp_path: Path, damaged: bytes | None
) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    killed(tmp_path / "dead", "COMMIT", 30)
    file = tmp_path / "dead" / "store.db"
    wal = file.with_name("store.db-wal").read_bytes()
    file.unlink()
    if damaged:
        # SQLite would read the store from a valid WAL that has its first page.
        file.write_bytes(damaged)
        wal = wal[100:]
        file.with_name("store.db-wal").write_bytes(wal)
    _, before = restore(tmp_path / "copy", tmp_path / "dead", replace=True)
    assert before is not None
    assert before.with_name("store.db.before-wal").read_bytes() == wal
    assert damaged is None or before.read_bytes() == damaged
    assert asyncio.run(looked(tmp_path / "dead")) == ["/a y@3", "/b x@2"]


def test_empty_store_is_not_kept(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    asyncio.run(commit(tmp_path / "new"))
    assert restore(tmp_path / "copy", tmp_path / "new").before is None
    assert not (tmp_path / "new" / "store.db.before").exists()


def test_corrupted_backup_leaves_even_an_unreadable_store(tmp_path: Path) -> None:
    a_store(tmp_path / "data")
    backup(tmp_path / "data", tmp_path / "copy")
    copy = tmp_path / "copy"
    copy.write_bytes(copy.read_bytes()[:-1000] + bytes(1000))
    (tmp_path / "data" / "store.db").write_bytes(b"garbage" * 1000)
    before = contents(tmp_path / "data")
    with pytest.raises(StoreUnusable, match="is corrupted"):
        restore(copy, tmp_path / "data", replace=True)
    assert contents(tmp_path / "data") == before
