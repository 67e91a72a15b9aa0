"""Backup and restore of a store.

A backup is one self-contained file, taken while the store runs, from any process. A restore skips
more revisions than the lost store can have used since the backup, so that no revision ever has two
meanings and every client that watched before lists again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from phalanx.store.database_file import (
    DATABASE_FILE,
    check_format,
    connect,
    create_private_file,
    lock_directory,
    prepare_database,
    publish_file,
)
from phalanx.store.errors import StoreUnusable, translate_errors
from phalanx.store.revision_log import HistoryReader, RevisionLog

#: The revisions that a restore skips at least: more than a week of writes at full speed.
REVISION_GAP = 1_000_000_000


def backup(folder: Path, target: Path) -> int:
    """Copy the store in a directory, running or not, to a new file; return its revision."""
    source = folder / DATABASE_FILE
    if not source.exists():
        raise StoreUnusable(f"no store in {folder}")
    if target.exists():
        raise StoreUnusable(f"{target} already exists; choose another name")
    check_format(source)
    part = target.with_name(f"{target.name}.part")
    _copy_database(source, part)
    revision = _last_revision(part)
    with translate_errors(target):
        publish_file(part, target)
    return revision


def restore(source: Path, folder: Path, *, replace: bool = False) -> int:
    """Install a backup as the store of a directory; return the revision at which it continues.

    An existing store with content is an error unless `replace` is set.
    """
    if not source.is_file():
        raise StoreUnusable(f"no backup at {source}")
    check_format(source)
    with lock_directory(folder) as file:
        existing_revision = _checkpoint_existing(file, replace)
        part = file.with_name(f"{file.name}.part")
        _copy_database(source, part)
        prepare_database(part)
        with translate_errors(file):
            revision = _skip_revisions(part, existing_revision)
            publish_file(part, file)
    return revision


def _copy_database(source: Path, part: Path) -> None:
    """Copy a consistent state of a store to one file without a WAL, and verify it."""
    with translate_errors(part):
        create_private_file(part)
        with (
            contextlib.closing(connect(source, readonly=True)) as db,
            contextlib.closing(connect(part)) as copy,
        ):
            db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            found = copy.execute("PRAGMA integrity_check").fetchall()
    if found != [("ok",)]:
        part.unlink()
        raise StoreUnusable(f"{source} is corrupted; use an older backup")


def _checkpoint_existing(file: Path, replace: bool) -> int:
    """Return the last revision of the existing store and empty its WAL; 0 if there is none."""
    try:
        revision = _last_revision(file) if file.exists() else 0
    except StoreUnusable:
        if not replace:
            raise
        # The WAL of an unreadable file must not be applied to the restored file.
        create_private_file(file)
        return 0
    if revision and not replace:
        raise StoreUnusable(f"{file} already exists; use --replace to overwrite it")
    if file.exists():
        RevisionLog(file).close()
    return revision


def _skip_revisions(file: Path, existing_revision: int) -> int:
    last = _last_revision(file)
    revision = (max(last, existing_revision) // REVISION_GAP + 2) * REVISION_GAP
    log = RevisionLog(file)
    log.skip_to_revision(last, revision)
    log.close()
    return revision


def _last_revision(file: Path) -> int:
    check_format(file)
    with translate_errors(file), contextlib.closing(HistoryReader(file)) as archive:
        return archive.revision
