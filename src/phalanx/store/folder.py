"""Where a store lives: a folder that one process at a time may write in.

The lock is the kernel's, on a file of its own, and ends with the process that holds it. Reading a
copy (`backup.py`) needs no claim.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from phalanx.store.errors import StoreRefused, refusing

#: The names in the folder.
FILE, LOCK = "store.db", "store.lock"


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Keep every other process out of a folder, made if need be; gives the store's file in it."""
    if folder.exists() and not folder.is_dir():
        raise StoreRefused(f"{folder} is a file; a store needs a folder")
    with refusing(folder):
        _make(folder)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(lock, folder)
        yield folder / FILE
    finally:
        os.close(lock)


def _make(folder: Path) -> None:
    """Have a folder there, and on disk: what is flushed in it is found only by its name."""
    missing = [one for one in (folder, *folder.absolute().parents) if not one.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in missing:
        synced(one.absolute().parent)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode() or "unknown"
        raise StoreRefused(
            f"{folder} is in use by process {owner}; stop it or choose another folder"
        ) from None
    with refusing(folder):
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)


def synced(folder: Path) -> None:
    """Have the names in a folder on disk, as `fsync` has a file's bytes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
