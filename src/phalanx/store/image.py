"""The committed present in memory, and as much of the past as is kept beside it.

What every store of ours serves its reads from; `front.py` applies each transaction here once it is
durable. Knows nothing of what is still on its way, of disks or of event loops.

A key's older versions are kept as long as a change in the history replaced them:

    revision   1        2        3        4          after compact(2)
    /a         put x             put y    delete     history 3, 4; of /a: x (1), y (3), nothing (4)
    /b                  put x                        of /b: x (2), the present
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from phalanx.store.kv import Change, Record

#: Bytes that a change takes in the history beside the value that it replaced.
OVERHEAD = 256

#: Sorts behind every key that begins with the same prefix.
LAST = "\U0010ffff"


class Version(NamedTuple):
    """What a key held since a revision; nothing, if it was deleted then."""

    revision: int
    record: Record | None


class Image:
    """Records in the order of their keys, and the changes after `floor` that led to them."""

    def __init__(self, records: Iterable[Record] = (), revision: int = 0) -> None:
        self.revision = self.floor = revision
        #: Bytes that exist only because of the history.
        self.weight = 0
        self._records = {record.key: record for record in records}
        self._keys = sorted(self._records)
        self._buried: list[str] = []
        self._older: dict[str, list[Version]] = {}
        self._history: deque[Change] = deque()

    def get(self, key: str) -> Record | None:
        """The value of a key."""
        return self._records.get(key)

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[Record]:
        """The records below a prefix by key, of the present or of a revision not below `floor`."""
        if at and at < self.revision:
            return list(islice(self._past(prefix, after, at), limit or None))
        low, high = _bounds(self._keys, prefix, after)
        if limit:
            high = min(high, low + limit)
        return [self._records[key] for key in self._keys[low:high]]

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """How many records `range` would give; costs what has changed since then."""
        low, high = _bounds(self._keys, prefix, after)
        was_there: dict[str, bool] = {}
        for change in self.changes(at, prefix) if at and at < self.revision else ():
            if change.key > after:
                was_there.setdefault(change.key, change.before is not None)
        return high - low + sum(was - (key in self._records) for key, was in was_there.items())

    def changes(self, since: int, prefix: str = "") -> Iterator[Change]:
        """What was applied after a revision not below `floor`, in order."""
        later = islice(self._history, since - self.floor, None)
        return (change for change in later if change.key.startswith(prefix))

    def apply(self, change: Change) -> None:
        """Have the next change come true."""
        key, before, after = change.key, change.before, change.after
        if before:
            self._older.setdefault(key, []).append(Version(before.revision, before))
        if after:
            self._records[key] = after
            if before is None:
                self._unbury(key)
                insort(self._keys, key)
        elif before:
            del self._records[key]
            self._keys.pop(bisect_left(self._keys, key))
            self._older[key].append(Version(change.revision, None))
            insort(self._buried, key)
        self._history.append(change)
        self.weight += _weight(change)
        self.revision = change.revision

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision; the present stays."""
        while self._history and self._history[0].revision <= floor:
            self._forget()

    def shrink(self, weight: int) -> None:
        """Forget the oldest history until it takes no more than so many bytes."""
        while self.weight > weight:
            self._forget()

    def _forget(self) -> None:
        """Drop the oldest change, and what of its key no list at or after it can ask for."""
        change = self._history.popleft()
        self.floor = change.revision
        self.weight -= _weight(change)
        versions = self._older.get(change.key, [])
        del versions[: bisect_left(versions, change.revision, key=_revision)]
        if change.after is None and versions and versions[0].record is None:
            del versions[0]
        if not versions:
            self._older.pop(change.key, None)
            self._unbury(change.key)

    def _unbury(self, key: str) -> None:
        at = bisect_left(self._buried, key)
        if at < len(self._buried) and self._buried[at] == key:
            self._buried.pop(at)

    def _past(self, prefix: str, after: str, at: int) -> Iterator[Record]:
        alive, dead = _between(self._keys, prefix, after), _between(self._buried, prefix, after)
        versions = (self._version(key, at) for key in merge(alive, dead))
        return (record for record in versions if record)

    def _version(self, key: str, at: int) -> Record | None:
        current = self._records.get(key)
        if current and current.revision <= at:
            return current
        older = self._older.get(key, [])
        newer = bisect_right(older, at, key=_revision)
        return older[newer - 1].record if newer else None


def _between(keys: list[str], prefix: str, after: str) -> list[str]:
    low, high = _bounds(keys, prefix, after)
    return keys[low:high]


def _bounds(keys: list[str], prefix: str, after: str) -> tuple[int, int]:
    """Where the keys below a prefix and behind one of them begin and end."""
    low = bisect_right(keys, after) if after >= prefix else bisect_left(keys, prefix)
    return low, max(low, bisect_left(keys, prefix + LAST))


def _revision(version: Version) -> int:
    return version.revision


def _weight(change: Change) -> int:
    return OVERHEAD + (len(change.before.value) if change.before else 0)
