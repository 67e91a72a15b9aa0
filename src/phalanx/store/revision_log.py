"""Reads and writes the tables of the database file.

`RevisionLog` has the only connection that writes; the writer thread (`sqlite.py`) owns it. It also
checkpoints: in SQLite before 3.51.3 a second connection that writes or checkpoints may corrupt the
file. `HistoryReader` has a read-only connection and is used on the event loop: each query is small
or runs once, and is read to its end immediately, so that no checkpoint waits for it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

from phalanx.store.database_file import (
    INCREMENTAL_VACUUM,
    PAGE_BYTES,
    HighWaterMark,
    StoreCorrupted,
    connect,
    decode_key,
    encode_key,
    transaction,
)
from phalanx.store.kv import KeyValue, StoreChange
from phalanx.store.memory import AFTER_ALL_KEYS

#: Revisions that one compaction step deletes: commits wait for a step.
COMPACTION_STEP = 2_000

#: Bytes appended between two checkpoints: commits wait for a checkpoint.
CHECKPOINT_BYTES = 2 << 20

#: Free pages that stay in the file for later writes: 8 MiB, or a quarter of the file if that is
#: more; and pages that one step returns to the file system: commits wait for a step.
SPARE_PAGES, SPARE_SHARE, VACUUM_STEP = (8 << 20) // PAGE_BYTES, 0.25, 64

_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    # Without it a flush on macOS ends in the cache of the disk.
    "fullfsync=ON",
    "wal_autocheckpoint=0",
    f"journal_size_limit={8 * CHECKPOINT_BYTES}",
    "mmap_size=0",
    "secure_delete=FAST",
)

#: The revisions that no list at or after `:until` can read: those that a later write replaced.
_REPLACED_REVISIONS = "SELECT prev FROM log WHERE rev > :compacted AND rev <= :until"
_DELETE_COMPACTED = (
    f"DELETE FROM value WHERE rev IN ({_REPLACED_REVISIONS})",
    f"DELETE FROM log WHERE rev IN ({_REPLACED_REVISIONS})",
    "DELETE FROM log WHERE rev > :compacted AND rev <= :until AND created IS NULL",
)
_SET_COMPACTED_REVISION = "UPDATE meta SET value = ? WHERE name = 'floor'"
_GET_COMPACTED_REVISION = "SELECT value FROM meta WHERE name = 'floor'"

#: Numbers of rows per INSERT; each statement is prepared once.
_INSERT_SIZES = (64, 16, 4, 1)


class RevisionLog:
    """Appends changes, compacts old ones and returns free pages, in small steps."""

    def __init__(self, file: Path, mark: HighWaterMark | None = None) -> None:
        self.db, self._mark = connect(file), mark
        for pragma in _PRAGMAS:
            self.db.execute(f"PRAGMA {pragma}")
        self._compacted = int(self.db.execute(_GET_COMPACTED_REVISION).fetchone()[0])
        self._target_revision = self._compacted
        self._uncheckpointed_bytes = 0
        #: Free pages that should be returned to the file system.
        self._excess_pages = self._count_excess_pages()

    def append(self, changes: Sequence[StoreChange]) -> None:
        """Make all changes durable in one transaction, or raise and write none."""
        if not changes:
            return
        puts = [change.after for change in changes if change.after]
        with transaction(self.db):
            self._insert(
                "log",
                [
                    (
                        change.revision,
                        encode_key(change.key),
                        change.before.revision if change.before else 0,
                        change.after.created if change.after else None,
                    )
                    for change in changes
                ],
            )
            self._insert(
                "value",
                [
                    (record.revision, record.value, checksum(encode_key(record.key), record.value))
                    for record in puts
                ],
            )
        if self._mark:
            self._mark.advance(changes[-1].revision)
        self._uncheckpointed_bytes += 2 * PAGE_BYTES + sum(len(record.value) for record in puts)

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Insert many rows per statement: each statement may wait for the GIL."""
        begin = 0
        for size in _INSERT_SIZES:
            while len(rows) - begin >= size:
                some = rows[begin : begin + size]
                self.db.execute(
                    _insert_statement(table, len(some[0]), size), [*chain.from_iterable(some)]
                )
                begin += size

    def compact(self, revision: int) -> None:
        """Request compaction up to a revision; `run_maintenance_step` performs it."""
        self._target_revision = max(self._target_revision, revision)

    @property
    def is_maintained(self) -> bool:
        """Whether there is no maintenance to do."""
        return (
            self._compacted >= self._target_revision
            and self._uncheckpointed_bytes < CHECKPOINT_BYTES
            and self._excess_pages <= 0
        )

    def run_maintenance_step(self) -> None:
        """Perform a checkpoint or one step of compaction or vacuum, if one is due."""
        if self._uncheckpointed_bytes >= CHECKPOINT_BYTES:
            self._checkpoint("PASSIVE")
        elif self._compacted < self._target_revision:
            until = min(self._target_revision, self._compacted + COMPACTION_STEP)
            self._delete_until(until, compacted=until)
        elif self._excess_pages > 0:
            self._vacuum()

    def skip_to_revision(self, last: int, revision: int) -> None:
        """Discard all history, which ends at `last`; the next write comes after `revision`."""
        self._delete_until(last, compacted=revision)

    def close(self) -> None:
        """Checkpoint and close: one file without a WAL remains."""
        self._checkpoint("TRUNCATE")
        self.db.close()

    def abandon(self) -> None:
        """Close after a failure, without a checkpoint."""
        with contextlib.suppress(sqlite3.Error):
            self.db.close()

    def _delete_until(self, until: int, compacted: int) -> None:
        with transaction(self.db):
            for statement in _DELETE_COMPACTED:
                self.db.execute(statement, {"compacted": self._compacted, "until": until})
            self.db.execute(_SET_COMPACTED_REVISION, (compacted,))
        self._compacted = compacted
        # A step changes hundreds of pages: a checkpoint follows after a few, to keep the WAL small.
        self._uncheckpointed_bytes += CHECKPOINT_BYTES // 8
        self._excess_pages = self._count_excess_pages()

    def _vacuum(self) -> None:
        # Only `executescript` runs this statement to its end: it yields rows without columns.
        self.db.executescript(f"PRAGMA incremental_vacuum({VACUUM_STEP})")
        self._uncheckpointed_bytes += PAGE_BYTES * 2 * VACUUM_STEP
        excess = self._count_excess_pages()
        # Without progress there is no further attempt until the next compaction.
        self._excess_pages = excess if excess < self._excess_pages else 0

    def _count_excess_pages(self) -> int:
        (mode,), (free,), (total,) = (
            self.db.execute(f"PRAGMA {name}").fetchone()
            for name in ("auto_vacuum", "freelist_count", "page_count")
        )
        spare = max(SPARE_PAGES, int(total * SPARE_SHARE))
        return free - spare if mode == INCREMENTAL_VACUUM else 0

    def _checkpoint(self, mode: str) -> None:
        self.db.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._uncheckpointed_bytes = 0


#: The revisions that are skipped at least if some were lost: a week of writes at full speed.
REVISION_GAP = 1_000_000_000


def skip_revisions(file: Path, lost: int) -> int:
    """Continue a store far after `lost`, a revision that it may have lost; return the revision.

    So no revision ever has two meanings, and every client that watched before lists again.
    """
    with contextlib.closing(HistoryReader(file)) as archive:
        last = archive.revision
    revision = (max(last, lost) // REVISION_GAP + 2) * REVISION_GAP
    log = RevisionLog(file)
    log.skip_to_revision(last, revision)
    log.close()
    return revision


@cache
def _insert_statement(table: str, width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"


def checksum(key: bytes, value: bytes) -> int:
    """Return the checksum of a key and its value."""
    return crc32(value, crc32(key))


#: Revisions per query of changes.
HISTORY_PAGE = 500

_SELECT_LAST_REVISION = "SELECT coalesce(max(rev), 0) FROM log"
_SELECT_COMPACTED_REVISION = "SELECT value FROM meta WHERE name = 'floor'"
_SELECT_CURRENT = """
    SELECT log.rev, key, created, bytes, sum FROM log LEFT JOIN value USING (rev)
    WHERE created IS NOT NULL AND log.rev NOT IN (SELECT prev FROM log)
"""
_SELECT_ALL = """
    SELECT log.rev, key, created, bytes, sum FROM log LEFT JOIN value USING (rev)
    WHERE created IS NOT NULL
"""
_EXISTED_AT = """
    FROM log
    WHERE rev <= :at AND created IS NOT NULL AND key >= :low AND key < :high AND key > :after
        AND rev NOT IN (SELECT prev FROM log WHERE rev <= :at)
"""
_SELECT_AT_REVISION = f"""
    SELECT thin.rev, key, created, bytes, sum FROM (
        SELECT rev, key, created {_EXISTED_AT} ORDER BY key LIMIT :limit
    ) AS thin LEFT JOIN value USING (rev)
"""
_COUNT_AT_REVISION = f"SELECT count(*) {_EXISTED_AT}"
_SELECT_CHANGES = """
    SELECT new.rev, new.key, new.created, new_value.bytes, new_value.sum,
        old.rev, old.key, old.created, old_value.bytes, old_value.sum
    FROM log AS new
    LEFT JOIN value AS new_value ON new_value.rev = new.rev
    LEFT JOIN log AS old ON old.rev = new.prev
    LEFT JOIN value AS old_value ON old_value.rev = new.prev
    WHERE new.rev > :since AND new.rev <= :until AND new.key >= :low AND new.key < :high
    ORDER BY new.rev
"""


_NO_PARAMETERS: Mapping[str, Any] = {}


class HistoryReader:
    """Reads the file. Raises StoreCorrupted if a value is missing or fails its checksum."""

    def __init__(self, file: Path) -> None:
        self.db = connect(file, readonly=True)
        self.compacted_revision = self._query_int(_SELECT_COMPACTED_REVISION)
        #: The newest revision, even if its write was compacted.
        self.revision = max(self.compacted_revision, self._query_int(_SELECT_LAST_REVISION))

    @property
    def used_bytes(self) -> int:
        """The size of the file without its free pages."""
        pages = self._query_int("PRAGMA page_count") - self._query_int("PRAGMA freelist_count")
        return pages * PAGE_BYTES

    def current_records(self) -> Iterator[KeyValue]:
        """Yield all current values, in no particular order."""
        return map(_decode_record, self.db.execute(_SELECT_CURRENT))

    def verify(self) -> None:
        """Read every value, current or not. Raises StoreCorrupted."""
        for row in self.db.execute(_SELECT_ALL):
            _decode_record(row)

    def range(self, prefix: str, *, at: int, after: str, limit: int) -> list[KeyValue]:
        """Return the values below a prefix by key, at a revision."""
        parameters = {
            "at": at,
            "after": encode_key(after),
            "limit": limit or -1,
            **_prefix_bounds(prefix),
        }
        records = [
            _decode_record(row)
            for row in self.db.execute(_SELECT_AT_REVISION, parameters).fetchall()
        ]
        return sorted(records)

    def count(self, prefix: str, at: int, after: str) -> int:
        """Return the number of values below a prefix, at a revision."""
        parameters = {"at": at, "after": encode_key(after), **_prefix_bounds(prefix)}
        return self._query_int(_COUNT_AT_REVISION, parameters)

    def changes(self, since: int, until: int, prefix: str) -> list[StoreChange]:
        """Return the changes after one revision up to another."""
        parameters = {"since": since, "until": until, **_prefix_bounds(prefix)}
        return [
            _decode_change(row) for row in self.db.execute(_SELECT_CHANGES, parameters).fetchall()
        ]

    def close(self) -> None:
        """Close the connection."""
        self.db.close()

    def _query_int(self, query: str, parameters: Mapping[str, Any] = _NO_PARAMETERS) -> int:
        match self.db.execute(query, parameters).fetchone():
            case (int(number),):
                return number
        raise StoreCorrupted


def _prefix_bounds(prefix: str) -> dict[str, bytes]:
    return {"low": encode_key(prefix), "high": encode_key(prefix + AFTER_ALL_KEYS)}


def _decode_record(row: tuple[Any, ...]) -> KeyValue:
    revision, key, created, value, total = row
    if value is None or checksum(key, value) != total:
        raise StoreCorrupted
    return KeyValue(decode_key(key), value, revision, created)


def _decode_change(row: tuple[Any, ...]) -> StoreChange:
    new, old = row[:5], row[5:]
    before = _decode_record(old) if old[0] else None
    after = _decode_record(new) if new[2] is not None else None
    return StoreChange(new[0], decode_key(new[1]), before, after)
