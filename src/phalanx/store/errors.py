"""Errors of a store on disk, each with one plain sentence.

    StoreError
    ├── StoreUnusable   it was not opened, copied or restored; nothing was changed
    └── StoreFailed     it stopped while running; unacknowledged writes did not happen

`translate_errors` converts operating system and SQLite errors to StoreUnusable.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


class StoreError(Exception):
    """The base class of errors of a store on disk."""


class StoreUnusable(StoreError):
    """A store was not opened, copied or restored. Nothing was changed."""


class StoreFailed(StoreError):
    """A store stopped: it writes nothing any more, and its process should stop too."""


class StoreCorrupted(Exception):
    """A file does not contain what was written to it."""

    def __init__(self) -> None:
        super().__init__("the file is corrupted")


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
        raise StoreUnusable(_CORRUPTED.format(path=path)) from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        sentence = _MESSAGES.get(code, _UNUSABLE)
        raise StoreUnusable(sentence.format(path=path, error=error)) from error
    except OSError as error:
        raise StoreUnusable(_UNUSABLE.format(path=path, error=error.strerror or error)) from error
