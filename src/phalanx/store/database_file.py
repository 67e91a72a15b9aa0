"""The database file of a store: its directory, its lock, its tables and format version.

One process at a time may write in the directory: it holds a kernel lock on a file of its own, which
ends with the process. Reading a copy (`backup.py`) needs no lock.

    log     rev  key  prev  created       every write after the floor; before it, current ones only
    value   rev  bytes  sum               the bytes of a put; a deletion has none
    meta    name  value                   `floor`: the revision after which history is complete

A write is the current one of its key if no later write names its revision as `prev`. Both tables
only grow at their end, and the log is narrow, so that opening reads few pages. The file is SQLite
in WAL mode, marked by its application id; it gets its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from phalanx.store.errors import StoreCorrupted, StoreUnusable, translate_errors

#: File names in the directory.
DATABASE_FILE, LOCK_FILE = "store.db", "store.lock"


@contextlib.contextmanager
def lock_directory(folder: Path) -> Iterator[Path]:
    """Lock a directory, created if needed, against other processes; yield its database file."""
    if folder.exists() and not folder.is_dir():
        raise StoreUnusable(f"{folder} is a file; a store needs a directory")
    with translate_errors(folder):
        _create_directory(folder)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire_lock(lock, folder)
        yield folder / DATABASE_FILE
    finally:
        os.close(lock)


def _create_directory(folder: Path) -> None:
    """Create a directory durably: a synced file is lost if the directory entry is not synced."""
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
            f"{folder} is in use by process {owner}; stop it or choose another directory"
        ) from None
    with translate_errors(folder):
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)


def sync_directory(folder: Path) -> None:
    """Flush the entries of a directory to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


#: Marks a file as ours: "PHLX".
APPLICATION_ID = 0x50484C58

#: The format that this version reads and writes.
FORMAT_VERSION = 1

#: For each older format, the statements that migrate it to the next one.
MIGRATIONS: dict[int, Sequence[str]] = {}

#: Two values of the size of a Pod fit one page.
PAGE_BYTES = 8192

_SCHEMA = (
    "CREATE TABLE log(rev INTEGER PRIMARY KEY, key BLOB NOT NULL, prev INTEGER NOT NULL,"
    " created INTEGER)",
    "CREATE TABLE value(rev INTEGER PRIMARY KEY, bytes BLOB NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES('floor', 0)",
)

#: Keys are stored as bytes, which sort like the text and represent any text.
_KEY_ENCODING = ("utf-8", "surrogatepass")


def encode_key(key: str) -> bytes:
    """Return the stored form of a key."""
    return key.encode(*_KEY_ENCODING)


def decode_key(key: bytes) -> str:
    """Return the key of a stored form."""
    return key.decode(*_KEY_ENCODING)


def connect(file: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Connect to an existing file; a read-only connection changes neither file nor WAL."""
    uri = f"{file.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}"
    return sqlite3.connect(uri, uri=True, timeout=1, isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Execute the statements inside as one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back after some errors; the original error counts.
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def prepare_database(file: Path) -> None:
    """Create a file of the present format, or migrate an older one."""
    with translate_errors(file):
        if not file.exists():
            _create(file)
        found = check_format(file)
        if found < FORMAT_VERSION:
            _migrate(file, found)


def check_format(file: Path) -> int:
    """Return the format of a valid file of ours. Raises StoreUnusable for any other file."""
    with translate_errors(file), contextlib.closing(connect(file, readonly=True)) as db:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StoreUnusable(f"{file} is not a store of phalanx; choose another directory")
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found > FORMAT_VERSION:
            raise StoreUnusable(
                f"{file} has format {found}; this version of phalanx supports formats up to "
                f"{FORMAT_VERSION}; use a newer version"
            )
        if found == FORMAT_VERSION and db.execute("PRAGMA quick_check(meta)").fetchall() != [
            ("ok",)
        ]:
            raise StoreCorrupted
    return found


def create_private_file(file: Path) -> None:
    """Create an empty file, readable by its owner alone; remove an older store and its WAL."""
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm", f"{file.name}-journal"):
        file.with_name(name).unlink(missing_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def publish_file(temporary: Path, file: Path) -> None:
    """Rename a complete file to its name, atomically and durably."""
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
    """Migrate a file format by format, each step in one transaction."""
    with contextlib.closing(connect(file)) as db:
        for step in range(found, FORMAT_VERSION):
            if step not in MIGRATIONS:
                raise StoreUnusable(f"{file} has format {step}, which this version cannot migrate")
            with transaction(db):
                for statement in (*MIGRATIONS[step], f"PRAGMA user_version={step + 1}"):
                    db.execute(statement)
