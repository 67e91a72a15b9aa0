"""What the store's file looks like: tables, format number, and the way from older formats.

    log     rev  key  prev  created       every write after the floor; before it, the present only
    value   rev  bytes  sum               what was put; a deletion has none
    meta    name  value                   `floor`: the revision after which history is whole

A write whose revision no later write names as `prev` is the present of its key. Both tables grow
only at their end, and the log stays narrow, so that opening reads few pages. The file is SQLite's,
in write-ahead mode, marked as ours by its application id; it takes its name only when complete.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from phalanx.store.errors import Damaged, StoreRefused, refusing
from phalanx.store.folder import synced

#: Marks a file as ours: "PHLX".
APPLICATION = 0x50484C58

#: What this version reads and writes.
FORMAT = 1

#: For each older format, the statements that lead to the next one.
MIGRATIONS: dict[int, Sequence[str]] = {}

#: Two values of a Pod's size fit a page.
PAGE_BYTES = 8192

_TABLES = (
    "CREATE TABLE log(rev INTEGER PRIMARY KEY, key BLOB NOT NULL, prev INTEGER NOT NULL,"
    " created INTEGER)",
    "CREATE TABLE value(rev INTEGER PRIMARY KEY, bytes BLOB NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES('floor', 0)",
)

#: Keys are kept as bytes: they sort as the text does, and no text is impossible.
_KEY = ("utf-8", "surrogatepass")


def key_bytes(key: str) -> bytes:
    """A key as it stands in the file."""
    return key.encode(*_KEY)


def key_text(key: bytes) -> str:
    """A key from the file."""
    return key.decode(*_KEY)


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


def prepare(file: Path) -> None:
    """Have a file of today's format there: a new one, or an older one brought up to date."""
    with refusing(file):
        if not file.exists():
            _create(file)
        found = examine(file)
        if found < FORMAT:
            _migrate(file, found)


def examine(file: Path) -> int:
    """The format of a file that is ours, whole and not from the future; else it is refused."""
    with refusing(file), contextlib.closing(connect(file, readonly=True)) as db:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION:
            raise StoreRefused(f"{file} is not a store of phalanx; choose another folder")
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found > FORMAT:
            raise StoreRefused(
                f"{file} has format {found}, and this version of phalanx knows none after {FORMAT};"
                " use a newer one"
            )
        if found == FORMAT and db.execute("PRAGMA quick_check(meta)").fetchall() != [("ok",)]:
            raise Damaged
    return found


def private(file: Path) -> None:
    """Have an empty file there that only its owner may read, in place of a store or its rests."""
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm", f"{file.name}-journal"):
        file.with_name(name).unlink(missing_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def placed(part: Path, file: Path) -> None:
    """Give a complete file its name, in one step that survives a loss of power."""
    handle = os.open(part, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    part.replace(file)
    synced(file.parent)


def _create(file: Path) -> None:
    part = file.with_name(f"{file.name}.part")
    private(part)
    with contextlib.closing(connect(part)) as db:
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute(f"PRAGMA application_id={APPLICATION}")
        with transaction(db):
            for statement in (*_TABLES, f"PRAGMA user_version={FORMAT}"):
                db.execute(statement)
        db.execute("PRAGMA journal_mode=WAL")
    placed(part, file)


def _migrate(file: Path, found: int) -> None:
    """Take a file from format to format, each step whole or not at all."""
    with contextlib.closing(connect(file)) as db:
        for step in range(found, FORMAT):
            if step not in MIGRATIONS:
                raise StoreRefused(f"{file} has format {step}, which is too old to be read")
            with transaction(db):
                for statement in (*MIGRATIONS[step], f"PRAGMA user_version={step + 1}"):
                    db.execute(statement)
