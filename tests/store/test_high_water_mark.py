"""Acknowledged writes that are missing at the next start are detected."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.store.backup import backup, restore
from phalanx.store.database_file import MARK_FILE, HighWaterMark
from phalanx.store.kv import StoreUnusable
from phalanx.store.sqlite import SqliteStore
from tests.store.sqlite_stores import in_real_time
from tests.store.test_sqlite_crash import examine, killed
from tests.store.test_sqlite_errors import contents, refusal
from tests.store.writes import everything, put


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, int]:
    """A directory as a process leaves it that is killed after 20 commits, and the mark."""

    async def run() -> None:
        store = SqliteStore(tmp_path / "running")
        for n in range(20):
            await store.commit([put(f"/{n}", "x" * 9000)])
        shutil.copytree(tmp_path / "running", tmp_path / "data")
        await store.close()

    asyncio.run(run())
    return tmp_path / "data", 20


def test_mark_is_exact_after_kill_9(tmp_path: Path) -> None:
    transactions, revision, _ = killed(tmp_path, "COMMIT", 30)
    assert HighWaterMark(tmp_path).read() >= revision
    asyncio.run(examine(tmp_path, transactions, revision))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.95], ids=["all", "most", "a little"])
def test_truncated_wal_is_an_error_with_its_cure(crashed: tuple[Path, int], kept: float) -> None:
    folder, mark = crashed
    wal = folder / "store.db-wal"
    content = wal.read_bytes()
    wal.write_bytes(content[: int(kept * len(content))])
    message = refusal(folder)
    assert message.startswith(f"{folder}/store.db ends at revision ")
    assert f"but revision {mark} was acknowledged" in message
    assert "phalanx restore" in message
    assert "phalanx up --accept-data-loss" in message


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["store.db-wal"], "but revision 20 was acknowledged"),
        (["store.db", "store.db-wal"], "but revision 20 was acknowledged"),
        (["store.db"], "store.db is missing, but its WAL exists"),
    ],
    ids=["WAL", "both", "database"],
)
def test_removed_file_is_an_error(
    crashed: tuple[Path, int], names: Sequence[str], error: str
) -> None:
    folder, _ = crashed
    for name in names:
        (folder / name).unlink()
    with pytest.raises(StoreUnusable, match=error):
        SqliteStore(folder)


@in_real_time
async def test_older_copy_of_the_file_is_an_error(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.commit([put("/a", "x")])
    await store.close()
    shutil.copy(tmp_path / "store.db", tmp_path / "copy")
    store = SqliteStore(tmp_path)
    await store.commit([put("/b", "x")])
    await store.close()
    shutil.copy(tmp_path / "copy", tmp_path / "store.db")
    assert "ends at revision 1, but revision 2 was acknowledged" in refusal(tmp_path)


def test_accepted_loss_reuses_no_revision_and_is_accepted_once(crashed: tuple[Path, int]) -> None:
    folder, mark = crashed
    (folder / "store.db-wal").unlink()

    async def write(key: str, *, accept: bool) -> int:
        store = SqliteStore(folder, accept_data_loss=accept)
        (change,) = await store.commit([put(key, "x")])
        await store.close()
        return change.revision

    first = asyncio.run(write("/first", accept=True))
    assert first > mark
    assert asyncio.run(write("/second", accept=False)) == first + 1


def test_restore_after_a_loss_reuses_no_revision(crashed: tuple[Path, int], tmp_path: Path) -> None:
    folder, mark = crashed
    (folder / "store.db-wal").unlink()
    backup(folder, tmp_path / "copy")
    assert restore(tmp_path / "copy", folder, replace=True).revision > mark
    asyncio.run(SqliteStore(folder).close())


@pytest.mark.parametrize("content", [b"", b"0000000000000000", b"00000000000000000099 00000000\n"])
@in_real_time
async def test_half_written_mark_is_ignored(tmp_path: Path, content: bytes) -> None:
    store = SqliteStore(tmp_path)
    await store.commit([put("/a", "x")])
    await store.close()
    (tmp_path / MARK_FILE).write_bytes(content)
    store = SqliteStore(tmp_path)
    assert everything(store) == ["/a x@1"]
    await store.close()


@in_real_time
async def test_mark_that_cannot_be_written_stops_no_commit(tmp_path: Path) -> None:
    (tmp_path / MARK_FILE).mkdir()
    store = SqliteStore(tmp_path)
    await store.commit([put("/a", "x")])
    await store.close()
    store = SqliteStore(tmp_path)
    assert everything(store) == ["/a x@1"]
    await store.close()


def test_refused_store_is_unchanged(crashed: tuple[Path, int]) -> None:
    folder, _ = crashed
    (folder / "store.db-wal").write_bytes(b"")
    before = contents(folder)
    for _ in range(2):
        refusal(folder)
    assert contents(folder) == before
