"""Where a store lives: a folder that one process at a time may write in.

The lock is the kernel's, on a file of its own, and ends with the process that holds it. Reading a
copy (`backup.py`) needs no claim.

What the store's file looks like: tables, format number, and the way from older formats.

    log     rev  key  prev  created       every write after the floor; before it, the present only
    value   rev  bytes  sum               what was put; a deletion has none
    meta    name  value                   `floor`: the revision after which history is whole

A write whose revision no later write names as `prev` is the present of its key. Both tables grow
only at their end, and the log stays narrow, so that opening reads few pages. The file is SQLite's,
in write-ahead mode, marked as ours by its application id; it takes its name only when complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from phalanx.store.errors import StoreCorrupted, StoreUnusable, translate_errors

#: The names in the folder.
DATABASE_FILE, LOCK_FILE = "store.db", "store.lock"


@contextlib.contextmanager
def lock_directory(folder: Path) -> Iterator[Path]:
    """Keep every other process out of a folder, made if need be; gives the store's file in it."""
    if folder.exists() and not folder.is_dir():
        raise StoreUnusable(f"{folder} is a file; a store needs a folder")
    with translate_errors(folder):
        _create_directory(folder)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire_lock(lock, folder)
        yield folder / DATABASE_FILE
    finally:
        os.close(lock)


def _create_directory(folder: Path) -> None:
    """Have a folder there, and on disk: what is flushed in it is found only by its name."""
    missing = [one for one in (folder, *folder.absolute().parents) if not one.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in missing:
        sync_directory(one.absolute().parent)


def _acquire_lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode() or "unknown"
        raise StoreUnusable(
            f"{folder} is in use by process {owner}; stop it or choose another folder"
        ) from None
    with translate_errors(folder):
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)


def sync_directory(folder: Path) -> None:
    """Have the names in a folder on disk, as `fsync` has a file's bytes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


#: Marks a file as ours: "PHLX".
APPLICATION_ID = 0x50484C58

#: What this version reads and writes.
FORMAT_VERSION = 1

#: For each older format, the statements that lead to the next one.
MIGRATIONS: dict[int, Sequence[str]] = {}

#: Two values of a Pod's size fit a page.
PAGE_BYTES = 8192

_SCHEMA = (
    "CREATE TABLE log(rev INTEGER PRIMARY KEY, key BLOB NOT NULL, prev INTEGER NOT NULL,"
    " created INTEGER)",
    "CREATE TABLE value(rev INTEGER PRIMARY KEY, bytes BLOB NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES('floor', 0)",
)

#: Keys are kept as bytes: they sort as the text does, and no text is impossible.
_KEY_ENCODING = ("utf-8", "surrogatepass")


def encode_key(key: str) -> bytes:
    """A key as it stands in the file."""
    return key.encode(*_KEY_ENCODING)


def decode_key(key: bytes) -> str:
    """A key from the file."""
    return key.decode(*_KEY_ENCODING)


def connect(file: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """A connection to a file that exists. A read-only one never changes it, not even its log."""
    uri = f"{file.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}"
    return sqlite3.connect(uri, uri=True, timeout=1, isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Have all that is executed inside happen together, or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # Some failures have rolled back already; of the two, the first one counts.
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def prepare_database(file: Path) -> None:
    """Have a file of today's format there: a new one, or an older one brought up to date."""
    with translate_errors(file):
        if not file.exists():
            _create(file)
        found = check_format(file)
        if found < FORMAT_VERSION:
            _migrate(file, found)


def check_format(file: Path) -> int:
    """The format of a file that is ours, whole and not from the future; else it is refused."""
    with translate_errors(file), contextlib.closing(connect(file, readonly=True)) as db:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StoreUnusable(f"{file} is not a store of phalanx; choose another folder")
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found > FORMAT_VERSION:
            raise StoreUnusable(
                f"{file} has format {found}, and this version of phalanx knows none after {FORMAT_VERSION};"
                " use a newer one"
            )
        if found == FORMAT_VERSION and db.execute("PRAGMA quick_check(meta)").fetchall() != [
            ("ok",)
        ]:
            raise StoreCorrupted
    return found


def create_private_file(file: Path) -> None:
    """Have an empty file there that only its owner may read, in place of a store or its rests."""
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm", f"{file.name}-journal"):
        file.with_name(name).unlink(missing_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def publish_file(temporary: Path, file: Path) -> None:
    """Give a complete file its name, in one step that survives a loss of power."""
    handle = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    temporary.replace(file)
    sync_directory(file.parent)


def _create(file: Path) -> None:
    part = file.with_name(f"{file.name}.part")
    create_private_file(part)
    with contextlib.closing(connect(part)) as db:
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        with transaction(db):
            for statement in (*_SCHEMA, f"PRAGMA user_version={FORMAT_VERSION}"):
                db.execute(statement)
        db.execute("PRAGMA journal_mode=WAL")
    publish_file(part, file)


def _migrate(file: Path, found: int) -> None:
    """Take a file from format to format, each step whole or not at all."""
    with contextlib.closing(connect(file)) as db:
        for step in range(found, FORMAT_VERSION):
            if step not in MIGRATIONS:
                raise StoreUnusable(f"{file} has format {step}, which is too old to be read")
            with transaction(db):
                for statement in (*MIGRATIONS[step], f"PRAGMA user_version={step + 1}"):
                    db.execute(statement)
