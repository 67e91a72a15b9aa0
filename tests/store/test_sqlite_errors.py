from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from phalanx.store import database_file as store_format
from phalanx.store.database_file import APPLICATION_ID, FORMAT_VERSION, PAGE_BYTES
from phalanx.store.kv import StoreUnusable, StoreWrite
from phalanx.store.sqlite import SqliteStore
from tests.store.writes import everything, put


async def fill(folder: Path) -> list[str]:
    """Write into a store, and close it; gives what is in it."""
    store = SqliteStore(folder)
    await store.commit(
        [StoreWrite(f"/{n}", lambda revision: bytes([revision] * 900), 0) for n in "abc"]
    )
    await store.commit([put("/a", "x", 1), put("/d", "x")])
    await store.close()
    return everything(store)


async def looked(folder: Path) -> list[str]:
    """What is in a store."""
    store = SqliteStore(folder)
    there = everything(store)
    await store.close()
    return there


def contents(folder: Path) -> dict[str, bytes]:
    """Every file whose content matters: a log that is empty says nothing."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    passing = ("-shm", ".lock") + (("-wal",) if not files.get("store.db-wal") else ())
    return {name: content for name, content in files.items() if not name.endswith(passing)}


def refusal(folder: Path) -> str:
    """The sentence with which a folder is refused, after which nothing in it is different."""
    before = contents(folder) if folder.is_dir() else {}
    with pytest.raises(StoreUnusable) as caught:
        SqliteStore(folder)
    assert (contents(folder) if folder.is_dir() else {}) == before
    return str(caught.value)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Writing beyond so many bytes of any file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- folders -------------------------------------------------------------------------------------


def test_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.write_text("mine")
    assert refusal(place) == f"{place} is a file; a store needs a directory"
    assert place.read_text() == "mine"


def test_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    place = tmp_path / "file" / "data"
    assert refusal(place) == f"cannot use {place}: Not a directory"


def test_unwritable_directory_is_an_error() -> None:
    program = (
        "import os, sys, pathlib; from phalanx.store.sqlite import SqliteStore\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try: SqliteStore(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        command = [sys.executable, "-c", program, name]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == f"StoreUnusable cannot use {name}: Permission denied\n"


def test_new_directory_entry_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []

    def noted(handle: int, flush: Callable[[int], None] = os.fsync) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        flush(handle)

    monkeypatch.setattr(os, "fsync", noted)
    asyncio.run(fill(tmp_path / "a" / "b"))
    assert [str(tmp_path / "a"), str(tmp_path)] == flushed[:2]
    assert str(tmp_path / "a" / "b") in flushed
    flushed.clear()
    asyncio.run(looked(tmp_path / "a" / "b"))
    assert flushed == []


@pytest.mark.parametrize("size", [0, 4096, PAGE_BYTES, 3 * PAGE_BYTES])
def test_full_disk_is_an_error_until_space_is_freed(tmp_path: Path, size: int) -> None:
    with small_files(size), pytest.raises(StoreUnusable, match="cannot use"):
        SqliteStore(tmp_path)
    assert asyncio.run(fill(tmp_path)) == asyncio.run(looked(tmp_path))


# ---- files of others -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"not a database", b"not a database\n" * 1000], ids=["empty", "short", "long"]
)
def test_foreign_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    wanted = f"{tmp_path / 'store.db'} is not a store of phalanx; choose another directory"
    assert refusal(tmp_path) == wanted


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_database_of_another_program_is_an_error(tmp_path: Path, mode: str) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.execute(f"PRAGMA journal_mode={mode}")
        db.execute("CREATE TABLE log(mine)")
    assert "is not a store of phalanx" in refusal(tmp_path)


# ---- formats -------------------------------------------------------------------------------------


def marked(folder: Path, version: int, statement: str = "SELECT 1") -> None:
    """Have a store look as if another version of the program had written it."""
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as db:
        db.execute(statement)
        db.execute(f"PRAGMA user_version={version}")


def test_newer_format_is_an_error(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    marked(tmp_path, FORMAT_VERSION + 1)
    wanted = f"has format {FORMAT_VERSION + 1}; this version of phalanx supports formats up to"
    assert wanted in refusal(tmp_path)


def test_older_format_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = asyncio.run(fill(tmp_path))
    marked(tmp_path, 0, "ALTER TABLE meta RENAME TO settings")
    monkeypatch.setitem(store_format.MIGRATIONS, 0, ["ALTER TABLE settings RENAME TO meta"])
    assert asyncio.run(looked(tmp_path)) == there
    monkeypatch.delitem(store_format.MIGRATIONS, 0)
    assert asyncio.run(looked(tmp_path)) == there


def test_failed_migration_leaves_the_older_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = asyncio.run(fill(tmp_path))
    marked(tmp_path, 0, "ALTER TABLE meta RENAME TO settings")
    steps = ["ALTER TABLE settings RENAME TO meta", "SELECT no FROM where_"]
    monkeypatch.setitem(store_format.MIGRATIONS, 0, steps)
    assert refusal(tmp_path).startswith("cannot use")
    monkeypatch.setitem(store_format.MIGRATIONS, 0, steps[:1])
    assert asyncio.run(looked(tmp_path)) == there


def test_format_without_a_migration_is_an_error(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    marked(tmp_path, 0)
    assert refusal(tmp_path).endswith("has format 0, which this version cannot migrate")


def test_file_has_application_id_and_format_version(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)


# ---- damage --------------------------------------------------------------------------------------


def zeroed(content: bytes, page: int) -> bytes:
    at = page * PAGE_BYTES
    return content[:at] + bytes(PAGE_BYTES) + content[at + PAGE_BYTES :]


def garbled(content: bytes, page: int) -> bytes:
    at = page * PAGE_BYTES
    noise = bytes((7 * n + page) % 251 for n in range(PAGE_BYTES))
    return content[:at] + noise + content[at + PAGE_BYTES :]


def cut(content: bytes, page: int) -> bytes:
    return content[: page * PAGE_BYTES]


@pytest.mark.parametrize("damage", [zeroed, garbled, cut])
def test_any_corrupted_page_is_an_error(
    tmp_path: Path, damage: Callable[[bytes, int], bytes]
) -> None:
    asyncio.run(fill(tmp_path))
    file = tmp_path / "store.db"
    whole = file.read_bytes()
    for page in range(len(whole) // PAGE_BYTES):
        file.write_bytes(damage(whole, page))
        assert refusal(tmp_path).startswith((f"{file} is corrupted", f"{file} is not a store"))


def test_flipped_bit_in_a_value_is_an_error(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    file = tmp_path / "store.db"
    wrong = bytearray(file.read_bytes())
    wrong[wrong.index(bytes([2] * 900)) + 450] ^= 1
    file.write_bytes(wrong)
    assert refusal(tmp_path) == f"{file} is corrupted; restore a backup"


def test_incomplete_new_store_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "store.db.part").write_bytes(b"half of a")
    asyncio.run(fill(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["store.db", "store.lock", "store.mark"]
