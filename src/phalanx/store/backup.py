"""Copies of a store: taken while it runs, from any process, and put back.

A copy is one file that needs nothing beside it. Putting one back leaps over every revision that
the lost store may have given since, so that no revision ever means two things and everyone who
watched before asks anew.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from phalanx.store.archive import Archive
from phalanx.store.errors import StoreRefused, refusing
from phalanx.store.folder import FILE, claimed
from phalanx.store.format import connect, examine, placed, prepare, private
from phalanx.store.log import Log

#: Revisions to leap over, at least: more than a week of writing at full speed.
LEAP = 1_000_000_000


def backup(folder: Path, target: Path) -> int:
    """Copy the store in a folder, running or not, to a new file; gives the copy's revision."""
    source = folder / FILE
    if not source.exists():
        raise StoreRefused(f"there is no store in {folder}")
    if target.exists():
        raise StoreRefused(f"{target} exists already; choose another name")
    examine(source)
    part = target.with_name(f"{target.name}.part")
    _copy(source, part)
    revision = _revision(part)
    with refusing(target):
        placed(part, target)
    return revision


def restore(source: Path, folder: Path, *, replace: bool = False) -> int:
    """Make a copy the store of a folder; gives the revision after which it goes on.

    A store that is there already is kept, and the copy refused, unless it is to be replaced.
    """
    if not source.is_file():
        raise StoreRefused(f"there is no copy at {source}")
    examine(source)
    with claimed(folder) as file:
        there = _settled(file, replace)
        part = file.with_name(f"{file.name}.part")
        _copy(source, part)
        prepare(part)
        with refusing(file):
            revision = _leapt(part, there)
            placed(part, file)
    return revision


def _copy(source: Path, part: Path) -> None:
    """All of a store as of one moment, checked, as one file without a log beside it."""
    with refusing(part):
        private(part)
        with (
            contextlib.closing(connect(source, readonly=True)) as db,
            contextlib.closing(connect(part)) as copy,
        ):
            db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            found = copy.execute("PRAGMA integrity_check").fetchall()
    if found != [("ok",)]:
        part.unlink()
        raise StoreRefused(f"{source} is damaged; use an older copy")


def _settled(file: Path, replace: bool) -> int:
    """The last revision of the store that is there, whose own log is emptied; 0: there is none."""
    try:
        revision = _revision(file) if file.exists() else 0
    except StoreRefused:
        if not replace:
            raise
        # What cannot be read cannot be settled; its log must not be taken for that of the copy.
        private(file)
        return 0
    if revision and not replace:
        raise StoreRefused(f"{file} holds a store already; --replace puts the copy in its place")
    if file.exists():
        Log(file).close()
    return revision


def _leapt(file: Path, there: int) -> int:
    last = _revision(file)
    revision = (max(last, there) // LEAP + 2) * LEAP
    log = Log(file)
    log.leap(last, revision)
    log.close()
    return revision


def _revision(file: Path) -> int:
    examine(file)
    with refusing(file), contextlib.closing(Archive(file)) as archive:
        return archive.revision
