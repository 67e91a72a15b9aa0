"""The read side of the store's file: the present at start, and the past that left the memory.

A read-only connection, used on the event loop: each answer is small or asked for once, and is read
to its end at once, so that no checkpoint ever waits for it. Never writes, never checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.store.errors import Damaged
from phalanx.store.format import connect, key_bytes, key_text
from phalanx.store.image import LAST
from phalanx.store.kv import Change, Record
from phalanx.store.log import checksum

#: Revisions that are read at once.
PAGE = 500

_LAST_REVISION = "SELECT coalesce(max(rev), 0) FROM log"
_FLOOR = "SELECT value FROM meta WHERE name = 'floor'"
_PRESENT = """
    SELECT log.rev, key, created, bytes, sum FROM log LEFT JOIN value USING (rev)
    WHERE created IS NOT NULL AND log.rev NOT IN (SELECT prev FROM log)
"""
_WAS_THERE = """
    FROM log
    WHERE rev <= :at AND created IS NOT NULL AND key >= :low AND key < :high AND key > :after
        AND rev NOT IN (SELECT prev FROM log WHERE rev <= :at)
"""
_PAST = f"""
    SELECT thin.rev, key, created, bytes, sum FROM (
        SELECT rev, key, created {_WAS_THERE} ORDER BY key LIMIT :limit
    ) AS thin LEFT JOIN value USING (rev)
"""
_PAST_COUNT = f"SELECT count(*) {_WAS_THERE}"
_CHANGES = """
    SELECT new.rev, new.key, new.created, new_value.bytes, new_value.sum,
        old.rev, old.key, old.created, old_value.bytes, old_value.sum
    FROM log AS new
    LEFT JOIN value AS new_value ON new_value.rev = new.rev
    LEFT JOIN log AS old ON old.rev = new.prev
    LEFT JOIN value AS old_value ON old_value.rev = new.prev
    WHERE new.rev > :since AND new.rev <= :until AND new.key >= :low AND new.key < :high
    ORDER BY new.rev
"""


_NOTHING: Mapping[str, Any] = {}


class Archive:
    """What the file says. Raises Damaged where it says what was never written."""

    def __init__(self, file: Path) -> None:
        self.db = connect(file, readonly=True)
        self.floor = self._number(_FLOOR)
        #: The newest revision; of what it was given to, nothing may be left.
        self.revision = max(self.floor, self._number(_LAST_REVISION))

    def present(self) -> Iterator[Record]:
        """Every record that is there, by revision."""
        return (_record(*row) for row in self.db.execute(_PRESENT))

    def range(self, prefix: str, at: int, after: str, limit: int) -> list[Record]:
        """The records below a prefix by key, as of a revision."""
        wanted = {"at": at, "after": key_bytes(after), "limit": limit or -1, **_below(prefix)}
        records = [_record(*row) for row in self.db.execute(_PAST, wanted).fetchall()]
        return sorted(records)

    def count(self, prefix: str, at: int, after: str) -> int:
        """How many records there were below a prefix, as of a revision."""
        wanted = {"at": at, "after": key_bytes(after), **_below(prefix)}
        return self._number(_PAST_COUNT, wanted)

    def changes(self, since: int, until: int, prefix: str) -> list[Change]:
        """The changes after one revision up to another."""
        wanted = {"since": since, "until": until, **_below(prefix)}
        return [_change(row) for row in self.db.execute(_CHANGES, wanted).fetchall()]

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()

    def _number(self, query: str, wanted: Mapping[str, Any] = _NOTHING) -> int:
        match self.db.execute(query, wanted).fetchone():
            case (int(number),):
                return number
        raise Damaged


def _below(prefix: str) -> dict[str, bytes]:
    return {"low": key_bytes(prefix), "high": key_bytes(prefix + LAST)}


def _record(revision: int, key: bytes, created: int, value: bytes | None, total: int) -> Record:
    if value is None or checksum(key, value) != total:
        raise Damaged
    return Record(key_text(key), value, revision, created)


def _change(row: tuple[Any, ...]) -> Change:
    new, old = row[:5], row[5:]
    before = _record(*old) if old[0] else None
    after = _record(*new) if new[2] is not None else None
    return Change(new[0], key_text(new[1]), before, after)
