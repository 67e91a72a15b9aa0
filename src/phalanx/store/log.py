"""The write side of the store's file: the one connection that ever changes it.

Owned by the writer's thread (`writer.py`), which calls everything here. It checkpoints too: in
SQLite before 3.51.3 a second connection that writes or checkpoints may damage the file. Appends,
forgets and tidies; reads nothing but its own floor (`archive.py` reads).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from zlib import crc32

from phalanx.store.format import PAGE_BYTES, connect, key_bytes, transaction
from phalanx.store.kv import Change, Record

#: Revisions that one step of forgetting takes, so that commits need not wait long behind it.
STEP = 2_000

#: Bytes appended before they are moved from SQLite's own log into the tables: commits wait for it.
CHECKPOINT_BYTES = 2 << 20

_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    # Without it a flush on macOS ends in the disk's cache.
    "fullfsync=ON",
    "wal_autocheckpoint=0",
    f"journal_size_limit={8 * CHECKPOINT_BYTES}",
    "mmap_size=0",
    "secure_delete=FAST",
)

#: What no list at or after `:until` can ask for, of the writes after `:floor`: what they replaced.
_REPLACED = "SELECT prev FROM log WHERE rev > :floor AND rev <= :until"
_FORGET = (
    f"DELETE FROM value WHERE rev IN ({_REPLACED})",
    f"DELETE FROM log WHERE rev IN ({_REPLACED})",
    "DELETE FROM log WHERE rev > :floor AND rev <= :until AND created IS NULL",
)
_SET_FLOOR = "UPDATE meta SET value = ? WHERE name = 'floor'"
_GET_FLOOR = "SELECT value FROM meta WHERE name = 'floor'"

#: How many rows a statement inserts: each size is prepared once.
_SIZES = (64, 16, 4, 1)


class Log:
    """Appends what was decided; forgets in small steps what is wanted no longer."""

    def __init__(self, file: Path) -> None:
        self.db = connect(file)
        for pragma in _PRAGMAS:
            self.db.execute(f"PRAGMA {pragma}")
        self._floor = self._wanted = int(self.db.execute(_GET_FLOOR).fetchone()[0])
        self._loose = 0

    def append(self, changes: Sequence[Change]) -> None:
        """Have all changes on disk, or raise and have none of them."""
        if not changes:
            return
        puts = [change.after for change in changes if change.after]
        with transaction(self.db):
            self._insert("log", list(map(_row, changes)))
            self._insert("value", list(map(_value, puts)))
        self._loose += 2 * PAGE_BYTES + sum(len(record.value) for record in puts)

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Many rows per statement: between two of them the event loop may have to be waited for."""
        begin = 0
        for size in _SIZES:
            while len(rows) - begin >= size:
                some = rows[begin : begin + size]
                self.db.execute(_inserting(table, len(some[0]), size), [*chain.from_iterable(some)])
                begin += size

    def forget(self, floor: int) -> None:
        """Want no history up to a revision any more; `tidy` does it."""
        self._wanted = max(self._wanted, floor)

    @property
    def is_tidy(self) -> bool:
        """Whether there is nothing to tidy."""
        return self._floor >= self._wanted and self._loose < CHECKPOINT_BYTES

    def tidy(self) -> None:
        """One step of what is to be done beside appending, if anything is."""
        if self._loose >= CHECKPOINT_BYTES:
            self._checkpoint("PASSIVE")
        elif self._floor < self._wanted:
            until = min(self._wanted, self._floor + STEP)
            self._forget(until, floor=until)

    def leap(self, last: int, revision: int) -> None:
        """Forget all history, which ends at `last`; the next write comes after `revision`."""
        self._forget(last, floor=revision)

    def close(self) -> None:
        """Leave a file that needs no other beside it."""
        self._checkpoint("TRUNCATE")
        self.db.close()

    def abandon(self) -> None:
        """Let go of the file after a failure, as it is."""
        with contextlib.suppress(sqlite3.Error):
            self.db.close()

    def _forget(self, until: int, floor: int) -> None:
        with transaction(self.db):
            for statement in _FORGET:
                self.db.execute(statement, {"floor": self._floor, "until": until})
            self.db.execute(_SET_FLOOR, (floor,))
        self._floor = floor
        self._loose += PAGE_BYTES

    def _checkpoint(self, mode: str) -> None:
        self.db.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._loose = 0


@cache
def _inserting(table: str, width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"


def checksum(key: bytes, value: bytes) -> int:
    """What a key and its value are told from damaged ones by."""
    return crc32(value, crc32(key))


def _row(change: Change) -> tuple[int, bytes, int, int | None]:
    before, after = change.before, change.after
    previous = before.revision if before else 0
    return change.revision, key_bytes(change.key), previous, after.created if after else None


def _value(record: Record) -> tuple[int, bytes, int]:
    return record.revision, record.value, checksum(key_bytes(record.key), record.value)
