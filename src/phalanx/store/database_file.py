"""The database file of a store: its directory, its lock, its tables and format version.

One process at a time may write in the directory: it holds a kernel lock on a file of its own, which
ends with the process. Reading a copy (`backup.py`) needs no lock.

    log     rev  key  prev  created       all after the compacted revision; else the current ones
    value   rev  bytes  sum               the bytes of a put; a deletion has none
    meta    name  value                   `floor`: the compacted revision; later history is complete

A write is the current one of its key if no later write names its revision as `prev`. Both tables
only grow at their end, and the log is narrow, so that opening reads few pages. The file is SQLite
in WAL mode, marked by its application id; it gets its name only when it is complete. Its free pages
are returned to the file system in small steps (auto_vacuum=INCREMENTAL, `revision_log.py`).
`translate_errors` converts errors of the operating system and of SQLite to StoreUnusable.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

from phalanx.store.kv import StoreUnusable


class StoreCorrupted(Exception):
    """A file does not contain what was written to it."""

    def __init__(self) -> None:
        super().__init__("the file is corrupted")


class CorruptedFile(StoreUnusable):
    """A file was not opened or copied because it is corrupted."""


_CORRUPTED = "{path} is corrupted; restore a backup"
_UNUSABLE = "cannot use {path}: {error}"

#: Messages for SQLite's primary result codes.
_MESSAGES = {
    sqlite3.SQLITE_NOTADB: "{path} is not a store of phalanx; choose another directory",
    sqlite3.SQLITE_CORRUPT: _CORRUPTED,
    sqlite3.SQLITE_FULL: "cannot write {path}: the disk is full",
}


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Convert operating system and SQLite errors inside to StoreUnusable."""
    try:
        yield
    except StoreCorrupted:
        raise CorruptedFile(_CORRUPTED.format(path=path)) from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        sentence = _MESSAGES.get(code, _UNUSABLE)
        kind = CorruptedFile if sentence is _CORRUPTED else StoreUnusable
        raise kind(sentence.format(path=path, error=error)) from error
    except OSError as error:
        raise StoreUnusable(_UNUSABLE.format(path=path, error=error.strerror or error)) from error


#: File names in the directory.
DATABASE_FILE, LOCK_FILE, MARK_FILE = "store.db", "store.lock", "store.mark"


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


class HighWaterMark:
    """The newest acknowledged revision, in a file of its own: detects that writes were lost.

    SQLite takes a WAL that was truncated or removed for a shorter one. Each commit is written here
    before it is acknowledged and after it is durable, so a store with a lower revision has lost
    writes, and a sound store never has. The file is not flushed: after kill -9 the mark is exact,
    after a power loss it may be as old as the kernel's last writeback (on Linux, 30 seconds).
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / MARK_FILE
        self._handle = -1

    def read(self) -> int:
        """Return the mark; 0 if there is none, or if a power loss left half of it."""
        try:
            revision, total = self._path.read_bytes().split()
            return int(revision) if int(total, 16) == crc32(revision) else 0
        except (OSError, ValueError):
            return 0

    def advance(self, revision: int) -> None:
        """Set the mark. A mark that cannot be written stays lower, which is safe."""
        digits = b"%020d" % revision
        with contextlib.suppress(OSError):
            if self._handle < 0:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(self._handle, b"%s %08x\n" % (digits, crc32(digits)), 0)

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)


#: Marks a file as ours: "PHLX".
APPLICATION_ID = 0x50484C58

#: The format that this version reads and writes.
FORMAT_VERSION = 1

#: For each older format, the statements that migrate it to the next one.
MIGRATIONS: dict[int, Sequence[str]] = {}

#: Two values of the size of a Pod fit one page.
PAGE_BYTES = 8192

#: SQLite's number of the vacuum mode in which free pages are returned on request.
INCREMENTAL_VACUUM = 2

#: An entry of a pointer map: the type of a page, 1 to 5, and its parent (SQLite file format, 1.8).
_POINTER = struct.Struct(">BI")
_POINTER_TYPES = range(1, 6)

#: SQLite leaves the page at 1 GiB unused.
_LOCK_PAGE = (1 << 30) // PAGE_BYTES + 1

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
            # SQLite would apply it to the new file.
            if _has_wal(file):
                raise StoreUnusable(
                    f"{file} is missing, but its WAL exists; put the file back, or restore a "
                    "backup with phalanx restore"
                )
            _create(file)
        found = check_format(file)
        if found < FORMAT_VERSION:
            _migrate(file, found)
        _enable_vacuum(file)


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
        if _has_vacuum(db):
            _check_pointer_maps(file)
    return found


def _has_wal(file: Path) -> bool:
    wal = file.with_name(f"{file.name}-wal")
    return wal.exists() and wal.stat().st_size > 0


def _check_pointer_maps(file: Path) -> None:
    """Raise StoreCorrupted if a pointer map is damaged: SQLite reads them only to move pages.

    With a WAL the pages in the file may be outdated or half written, and are not checked.
    """
    if _has_wal(file):
        return
    with file.open("rb") as pages:
        page_count = file.stat().st_size // PAGE_BYTES
        per_map = PAGE_BYTES // _POINTER.size
        for number in range(2, page_count + 1, per_map + 1):
            described = range(number + 1, min(number + per_map, page_count) + 1)
            pages.seek((number - 1) * PAGE_BYTES)
            entries = _POINTER.iter_unpack(pages.read(len(described) * _POINTER.size))
            for page, (kind, parent) in zip(described, entries, strict=True):
                is_valid = kind in _POINTER_TYPES and parent <= page_count
                if not is_valid and page != _LOCK_PAGE:
                    raise StoreCorrupted


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
        db.execute(f"PRAGMA auto_vacuum={INCREMENTAL_VACUUM}")
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


def _has_vacuum(db: sqlite3.Connection) -> bool:
    return bool(db.execute("PRAGMA auto_vacuum").fetchone()[0] == INCREMENTAL_VACUUM)


def _enable_vacuum(file: Path) -> None:
    """Rewrite a file that was created without a pointer map, once and atomically.

    A disk that is too full for a copy leaves the file as it is: it is usable, but never shrinks.
    """
    with contextlib.closing(connect(file, readonly=True)) as db:
        if _has_vacuum(db):
            return
    with contextlib.closing(connect(file)) as db:
        db.execute(f"PRAGMA auto_vacuum={INCREMENTAL_VACUUM}")
        with contextlib.suppress(sqlite3.OperationalError):
            db.execute("VACUUM")
