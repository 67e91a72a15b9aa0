"""Copies of a store: taken while it runs, from any process, and put back.

A copy is one file that needs nothing beside it. Putting one back leaps over every revision that
the lost store may have given since, so that no revision ever means two things and everyone who
watched before asks anew.
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

#: Revisions to leap over, at least: more than a week of writing at full speed.
REVISION_GAP = 1_000_000_000


def backup(folder: Path, target: Path) -> int:
    """Copy the store in a folder, running or not, to a new file; gives the copy's revision."""
    source = folder / DATABASE_FILE
    if not source.exists():
        raise StoreUnusable(f"there is no store in {folder}")
    if target.exists():
        raise StoreUnusable(f"{target} exists already; choose another name")
    check_format(source)
    part = target.with_name(f"{target.name}.part")
    _copy_database(source, part)
    revision = _last_revision(part)
    with translate_errors(target):
        publish_file(part, target)
    return revision


def restore(source: Path, folder: Path, *, replace: bool = False) -> int:
    """Make a copy the store of a folder; gives the revision after which it goes on.

    A store that is there already is kept, and the copy refused, unless it is to be replaced.
    """
    if not source.is_file():
        raise StoreUnusable(f"there is no copy at {source}")
    check_format(source)
    with lock_directory(folder) as file:
        there = _checkpoint_existing(file, replace)
        part = file.with_name(f"{file.name}.part")
        _copy_database(source, part)
        prepare_database(part)
        with translate_errors(file):
            revision = _skip_revisions(part, there)
            publish_file(part, file)
    return revision


def _copy_database(source: Path, part: Path) -> None:
    """All of a store as of one moment, checked, as one file without a log beside it."""
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
        raise StoreUnusable(f"{source} is damaged; use an older copy")


def _checkpoint_existing(file: Path, replace: bool) -> int:
    """The last revision of the store that is there, whose own log is emptied; 0: there is none."""
    try:
        revision = _last_revision(file) if file.exists() else 0
    except StoreUnusable:
        if not replace:
            raise
        # What cannot be read cannot be settled; its log must not be taken for that of the copy.
        create_private_file(file)
        return 0
    if revision and not replace:
        raise StoreUnusable(f"{file} holds a store already; --replace puts the copy in its place")
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
