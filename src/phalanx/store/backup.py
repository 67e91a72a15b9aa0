"""Backup and restore of a store.

A backup is one self-contained file, taken while the store runs, from any process. Each copy is
verified row by row before it gets its name. A restore skips more revisions than the lost store can
have used since the backup, so that no revision ever has two meanings and every client that watched
before lists again. It keeps the store that it replaces as `store.db.before`:

    copy ─▶ verify ─▶ skip revisions ─▶ link store.db.before ─▶ rename to store.db
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from phalanx.store.database_file import (
    DATABASE_FILE,
    CorruptedFile,
    HighWaterMark,
    StoreCorrupted,
    check_format,
    connect,
    create_private_file,
    lock_directory,
    prepare_database,
    publish_file,
    sync_directory,
    translate_errors,
)
from phalanx.store.kv import StoreUnusable
from phalanx.store.revision_log import HistoryReader, RevisionLog, skip_revisions


class Restored(NamedTuple):
    """The revision at which a restored store continues; `before` is the store that it replaced."""

    revision: int
    before: Path | None


def backup(folder: Path, target: Path) -> int:
    """Copy the store in a directory, running or not, to a new file; return its revision."""
    source = folder / DATABASE_FILE
    if not source.exists():
        raise StoreUnusable(f"no store in {folder}")
    if target.exists():
        raise StoreUnusable(f"{target} already exists; choose another name")
    part = target.with_name(f"{target.name}.part")
    with _discard_on_error(source, part):
        _copy_database(source, part)
        _verify_rows(part)
        revision = _last_revision(part)
    with translate_errors(target):
        publish_file(part, target)
    return revision


def restore(source: Path, folder: Path, *, replace: bool = False) -> Restored:
    """Install a backup as the store of a directory; nothing changes before it is verified.

    An existing store with content is an error unless `replace` is set.
    """
    if not source.is_file():
        raise StoreUnusable(f"no backup at {source}")
    with lock_directory(folder) as file:
        existing_revision = _existing_revision(file, replace)
        part = file.with_name(f"{file.name}.part")
        with _discard_on_error(source, part):
            _copy_database(source, part)
            prepare_database(part)
            _verify_rows(part)
        with translate_errors(file):
            lost = max(existing_revision or 0, HighWaterMark(folder).read())
            revision = skip_revisions(part, lost)
            before = _keep_existing(file, existing_revision)
            publish_file(part, file)
    return Restored(revision, before)


@contextlib.contextmanager
def _discard_on_error(source: Path, part: Path) -> Iterator[None]:
    """Remove an incomplete copy; a corrupted copy is an error of its source."""
    try:
        yield
    except StoreUnusable as error:
        part.unlink(missing_ok=True)
        if isinstance(error, CorruptedFile):
            raise StoreUnusable(f"{source} is corrupted; use an older backup") from None
        raise


def _copy_database(source: Path, part: Path) -> None:
    """Copy a consistent state of a store to one file without a WAL, and verify its pages."""
    check_format(source)
    with translate_errors(part):
        create_private_file(part)
        with (
            contextlib.closing(connect(source, readonly=True)) as db,
            contextlib.closing(connect(part)) as copy,
        ):
            db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            if copy.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                raise StoreCorrupted


def _verify_rows(part: Path) -> None:
    """Verify the checksum of every row of a copy."""
    with translate_errors(part), contextlib.closing(HistoryReader(part)) as reader:
        reader.verify()


def _existing_revision(file: Path, replace: bool) -> int | None:
    """Return the last revision of the existing store; 0 if there is none, None if unreadable."""
    try:
        revision = _last_revision(file) if file.exists() else 0
    except StoreUnusable:
        if not replace:
            raise
        return None
    if revision and not replace:
        raise StoreUnusable(f"{file} already exists; use --replace to overwrite it")
    return revision


def _keep_existing(file: Path, revision: int | None) -> Path | None:
    """Give the existing store a second name, if it has content, and take its WAL away.

    The WAL of a readable store becomes part of its file. That of an unreadable or missing file is
    kept beside it: it must not be applied to the restored file.
    """
    if file.exists() and revision is not None:
        RevisionLog(file).close()
    wal, before = file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}.before")
    if revision == 0 and not wal.exists():
        return None
    for suffix in ("", "-wal"):
        before.with_name(before.name + suffix).unlink(missing_ok=True)
    # A link and not a rename: at no moment is there no store.
    if file.exists():
        before.hardlink_to(file)
    if wal.exists():
        wal.rename(before.with_name(f"{before.name}-wal"))
    file.with_name(f"{file.name}-shm").unlink(missing_ok=True)
    sync_directory(file.parent)
    return before


def _last_revision(file: Path) -> int:
    check_format(file)
    with translate_errors(file), contextlib.closing(HistoryReader(file)) as archive:
        return archive.revision
