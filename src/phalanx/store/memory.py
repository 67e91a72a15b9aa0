"""The store that forgets at the end: every other store must behave like this one.

Committed state is one dict with its keys in order; history is the list of changes, bounded; a
key's older versions are kept as long as a change in the history replaced them. A transaction
waits for the next tick (or a given latency) before it is committed, as it would wait for a disk;
what is decided meanwhile is in `_pending`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from phalanx.store.kv import Change, Compacted, Record, Stale, Write

#: Revisions of history that are kept unless told otherwise.
HISTORY = 100_000

#: Sorts behind every key that begins with the same prefix.
_LAST = "\U0010ffff"


class _Version(NamedTuple):
    revision: int
    record: Record | None


class MemoryStore:
    """A Store in memory. `latency` gives the seconds that the next commit takes."""

    def __init__(self, latency: Callable[[], float] | None = None, history: int = HISTORY) -> None:
        self.revision = 0
        self.floor = 0
        self._latency, self._history = latency, history
        self._assigned = 0
        self._records: dict[str, Record] = {}
        self._keys: list[str] = []
        self._buried: list[str] = []
        self._older: dict[str, list[_Version]] = {}
        self._log: deque[Change] = deque()
        self._pending: dict[str, _Version] = {}
        self._waiting: deque[tuple[list[Change], asyncio.Future[None]]] = deque()
        self._followers: list[Callable[[Sequence[Change]], None]] = []

    def get(self, key: str) -> Record | None:
        """The committed value of a key."""
        return self._records.get(key)

    def pending(self, key: str) -> Record | None:
        """The value that the next compare-and-swap of this key will meet."""
        version = self._pending.get(key)
        return version.record if version else self._records.get(key)

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[Record]:
        """The records below a prefix by key, of the present or of a past revision."""
        if at and at < self.floor:
            raise Compacted(self.floor)
        past = at and at < self.revision
        records = self._past(prefix, after, at) if past else self._present(prefix, after)
        return list(islice(records, limit or None))

    def changes(self, since: int, prefix: str = "") -> Iterator[Change]:
        """What was committed after a revision, in order."""
        if since < self.floor:
            raise Compacted(self.floor)
        skipped = since - self.floor
        return (c for c in islice(self._log, skipped, None) if c.key.startswith(prefix))

    def follow(self, deliver: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        """Have each transaction delivered right after its commit."""
        self._followers.append(deliver)
        return lambda: self._followers.remove(deliver)

    async def commit(self, writes: Sequence[Write]) -> Sequence[Change]:
        """Write all or nothing; return when it is visible."""
        for write in writes:
            found = self.pending(write.key)
            if (found.revision if found else 0) != write.expect:
                raise Stale(write.key, write.expect, found.revision if found else 0)
        # All are encoded before any is noted: a value that cannot be encoded leaves no trace.
        changes = [self._change(write, self._assigned + n) for n, write in enumerate(writes, 1)]
        self._assigned += len(changes)
        self._pending |= {c.key: _Version(c.revision, c.after) for c in changes}
        loop = asyncio.get_running_loop()
        committed: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_later(self._latency() if self._latency else 0, self._flush)
        self._waiting.append((changes, committed))
        # A caller that is cancelled has still written: the transaction is on its way.
        await asyncio.shield(committed)
        return changes

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision; the present stays."""
        while self._log and self._log[0].revision <= floor:
            change = self._log.popleft()
            self.floor = change.revision
            self._forget(change)

    async def close(self) -> None:
        """Commit what is under way."""
        self._flush()

    def _change(self, write: Write, revision: int) -> Change:
        before, after = self.pending(write.key), None
        if write.encode is not None:
            created = before.created if before else revision
            after = Record(write.key, write.encode(revision), revision, created)
        return Change(revision, write.key, before, after)

    def _flush(self) -> None:
        """Commit all that waits, in order, and tell whoever follows."""
        waiting, self._waiting = self._waiting, deque()
        changes = [change for transaction, _ in waiting for change in transaction]
        for change in changes:
            self._apply(change)
        self.compact(self.revision - self._history)
        for _, committed in waiting:
            if not committed.done():
                committed.set_result(None)
        for deliver in tuple(self._followers) if changes else ():
            deliver(changes)

    def _apply(self, change: Change) -> None:
        key, before, after = change.key, change.before, change.after
        if before:
            self._older.setdefault(key, []).append(_Version(before.revision, before))
        if after:
            self._records[key] = after
            if before is None:
                self._unbury(key)
                insort(self._keys, key)
        elif before:
            del self._records[key]
            self._keys.pop(bisect_left(self._keys, key))
            self._older[key].append(_Version(change.revision, None))
            insort(self._buried, key)
        if self._pending[key].revision == change.revision:
            del self._pending[key]
        self._log.append(change)
        self.revision = change.revision

    def _unbury(self, key: str) -> None:
        at = bisect_left(self._buried, key)
        if at < len(self._buried) and self._buried[at] == key:
            self._buried.pop(at)

    def _forget(self, change: Change) -> None:
        """Drop the versions of a key that no list at or after this change can ask for."""
        kept = [v for v in self._older.get(change.key, ()) if v.revision >= change.revision]
        if change.after is None and kept and kept[0].record is None:
            kept = kept[1:]
        if kept:
            self._older[change.key] = kept
            return
        self._older.pop(change.key, None)
        self._unbury(change.key)

    def _present(self, prefix: str, after: str) -> Iterator[Record]:
        return (self._records[key] for key in _between(self._keys, prefix, after))

    def _past(self, prefix: str, after: str, at: int) -> Iterator[Record]:
        alive, dead = _between(self._keys, prefix, after), _between(self._buried, prefix, after)
        versions = (self._version(key, at) for key in sorted([*alive, *dead]))
        return (record for record in versions if record)

    def _version(self, key: str, at: int) -> Record | None:
        current = self._records.get(key)
        if current and current.revision <= at:
            return current
        older = [v for v in self._older.get(key, ()) if v.revision <= at]
        return older[-1].record if older else None


def _between(keys: list[str], prefix: str, after: str) -> list[str]:
    low = bisect_right(keys, after) if after >= prefix else bisect_left(keys, prefix)
    return keys[low : bisect_left(keys, prefix + _LAST)]
