"""What can go wrong with a store on disk, each as one plain sentence.

    StoreError
    ├── StoreUnusable    at the door: it was not opened, copied or restored, and nothing was changed
    └── StoreBroken     while it ran: it stopped, and what was not acknowledged never happened

`refusing` turns what the system and SQLite say at the door into refusals.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


class StoreError(Exception):
    """A store on disk cannot do what it was asked to."""


class StoreUnusable(StoreError):
    """A store was not opened, copied or restored. Nothing was changed."""


class StoreFailed(StoreError):
    """A store stopped: nothing is written any more, and its owner should stop too."""


class StoreCorrupted(Exception):
    """What a file holds is not what was written there."""

    def __init__(self) -> None:
        super().__init__("its file is damaged")


_CORRUPTED = "{path} is damaged; restore a backup"
_UNUSABLE = "cannot use {path}: {error}"

#: What SQLite's primary result codes mean for the one who wants to open the file.
_MESSAGES = {
    sqlite3.SQLITE_NOTADB: "{path} is not a store of phalanx; choose another folder",
    sqlite3.SQLITE_CORRUPT: _CORRUPTED,
    sqlite3.SQLITE_FULL: "cannot write {path}: the disk is full",
}


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Have every failure of the system or of SQLite inside end as a StoreUnusable."""
    try:
        yield
    except StoreCorrupted:
        raise StoreUnusable(_CORRUPTED.format(path=path)) from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        sentence = _MESSAGES.get(code, _UNUSABLE)
        raise StoreUnusable(sentence.format(path=path, error=error)) from error
    except OSError as error:
        raise StoreUnusable(_UNUSABLE.format(path=path, error=error.strerror or error)) from error
