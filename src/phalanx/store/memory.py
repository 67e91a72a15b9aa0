"""The in-memory half of every store, and the store that is in memory only.

`VersionedMap` holds the committed values and as much history as is kept. A key's older versions are
kept while a change in the history refers to them:

    revision   1        2        3        4          after compact(2)
    /a         put x             put y    delete     history 3, 4; of /a: x (1), y (3), nothing (4)
    /b                  put x                        of /b: x (2), current

`CachedStore` works on the event loop. It assigns revisions and checks compare-and-swap immediately,
also against pending transactions, and publishes what is durable, in order: first to the map, then
to the writers, then to the subscribers.

    commit ─▶ queued ─▶ _flush ─▶ (durable) ─▶ _publish ─▶ map, writers, subscribers

`MemoryStore` is the model that other stores are tested against: a transaction is committed at the
next iteration of the event loop, or after a given latency, together with all that wait.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple, TypeAlias

from phalanx.store.kv import KeyValue, RevisionCompacted, RevisionConflict, StoreChange, StoreWrite

#: Estimated size of a change in the history, without the value that it replaced.
HISTORY_ENTRY_OVERHEAD = 256

#: Sorts after every key that begins with the same prefix.
AFTER_ALL_KEYS = "\U0010ffff"


class KeyVersion(NamedTuple):
    """The value of a key since a revision; None after a deletion."""

    revision: int
    record: KeyValue | None


class VersionedMap:
    """Values ordered by key, and the changes after `compacted_revision` that led to them."""

    def __init__(self, records: Iterable[KeyValue] = (), revision: int = 0) -> None:
        self.revision = self.compacted_revision = revision
        #: Bytes that were ever kept only for the history, and how many of them were discarded.
        self.appended_bytes = self._discarded_bytes = 0
        self._records = {record.key: record for record in records}
        self._keys = sorted(self._records)
        self._deleted_keys: list[str] = []
        self._old_versions: dict[str, list[KeyVersion]] = {}
        self._history: deque[StoreChange] = deque()

    def get(self, key: str) -> KeyValue | None:
        """Return the value of a key."""
        return self._records.get(key)

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """Return the values below a prefix by key, current or at a revision that is readable."""
        if at and at < self.revision:
            return list(islice(self._records_at(prefix, after, at), limit or None))
        low, high = _key_bounds(self._keys, prefix, after)
        if limit:
            high = min(high, low + limit)
        return [self._records[key] for key in self._keys[low:high]]

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """Return the number of values that `range` would return; the cost is the changes since."""
        low, high = _key_bounds(self._keys, prefix, after)
        was_there: dict[str, bool] = {}
        for change in self.changes(at, prefix) if at and at < self.revision else ():
            if change.key > after:
                was_there.setdefault(change.key, change.before is not None)
        return high - low + sum(was - (key in self._records) for key, was in was_there.items())

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """Yield the changes after a revision from `compacted_revision` on, in order."""
        later = islice(self._history, since - self.compacted_revision, None)
        return (change for change in later if change.key.startswith(prefix))

    def apply(self, change: StoreChange) -> None:
        """Apply the next change."""
        key, before, after = change.key, change.before, change.after
        if before:
            self._old_versions.setdefault(key, []).append(KeyVersion(before.revision, before))
        if after:
            self._records[key] = after
            if before is None:
                self._remove_deleted_key(key)
                insort(self._keys, key)
        elif before:
            del self._records[key]
            self._keys.pop(bisect_left(self._keys, key))
            self._old_versions[key].append(KeyVersion(change.revision, None))
            insort(self._deleted_keys, key)
        self._history.append(change)
        self.appended_bytes += _history_size(change)
        self.revision = change.revision

    def compact(self, revision: int) -> None:
        """Discard the history up to a revision; current values stay."""
        while self._history and self._history[0].revision <= revision:
            self._drop_oldest_change()

    def trim_history(self, max_bytes: int) -> None:
        """Discard the oldest history until it fits a size."""
        while self.appended_bytes - self._discarded_bytes > max_bytes:
            self._drop_oldest_change()

    def _drop_oldest_change(self) -> None:
        """Drop the oldest change and the versions that no later revision can read."""
        change = self._history.popleft()
        self.compacted_revision = change.revision
        self._discarded_bytes += _history_size(change)
        versions = self._old_versions.get(change.key, [])
        del versions[: bisect_left(versions, change.revision, key=_version_revision)]
        if change.after is None and versions and versions[0].record is None:
            del versions[0]
        if not versions:
            self._old_versions.pop(change.key, None)
            self._remove_deleted_key(change.key)

    def _remove_deleted_key(self, key: str) -> None:
        at = bisect_left(self._deleted_keys, key)
        if at < len(self._deleted_keys) and self._deleted_keys[at] == key:
            self._deleted_keys.pop(at)

    def _records_at(self, prefix: str, after: str, at: int) -> Iterator[KeyValue]:
        alive, dead = (
            _keys_between(self._keys, prefix, after),
            _keys_between(self._deleted_keys, prefix, after),
        )
        versions = (self._record_at(key, at) for key in merge(alive, dead))
        return (record for record in versions if record)

    def _record_at(self, key: str, at: int) -> KeyValue | None:
        current = self._records.get(key)
        if current and current.revision <= at:
            return current
        older = self._old_versions.get(key, [])
        newer = bisect_right(older, at, key=_version_revision)
        return older[newer - 1].record if newer else None


def _keys_between(keys: list[str], prefix: str, after: str) -> list[str]:
    low, high = _key_bounds(keys, prefix, after)
    return keys[low:high]


def _key_bounds(keys: list[str], prefix: str, after: str) -> tuple[int, int]:
    """Return the index range of the keys below a prefix and after a key."""
    low = bisect_right(keys, after) if after >= prefix else bisect_left(keys, prefix)
    return low, max(low, bisect_left(keys, prefix + AFTER_ALL_KEYS))


def _version_revision(version: KeyVersion) -> int:
    return version.revision


def _history_size(change: StoreChange) -> int:
    return HISTORY_ENTRY_OVERHEAD + (len(change.before.value) if change.before else 0)


class PendingTransaction(NamedTuple):
    """Writes with assigned revisions, and the future to resolve when they are durable."""

    changes: Sequence[StoreChange]
    committed: asyncio.Future[None]


#: Transactions that become durable together.
CommitBatch: TypeAlias = list[PendingTransaction]


class CachedStore(ABC):
    """A Store over a VersionedMap; a subclass makes queued transactions durable."""

    def __init__(self, image: VersionedMap) -> None:
        self._data = image
        self._last_assigned = image.revision
        self._pending: dict[str, KeyVersion] = {}
        self._queued: list[PendingTransaction] = []
        self._subscribers: list[Callable[[Sequence[StoreChange]], None]] = []

    @property
    def revision(self) -> int:
        """The newest committed revision."""
        return self._data.revision

    @property
    def compacted_revision(self) -> int:
        """The revision after which history is known."""
        return self._data.compacted_revision

    def get(self, key: str) -> KeyValue | None:
        """Return the committed value of a key."""
        return self._data.get(key)

    def pending(self, key: str) -> KeyValue | None:
        """Return the value that the next compare-and-swap of this key meets."""
        version = self._pending.get(key)
        return version.record if version else self._data.get(key)

    def pending_range(self, prefix: str) -> Sequence[KeyValue]:
        """Return the values below a prefix that the next compare-and-swaps meet."""
        found = {record.key: record for record in self._data.range(prefix)}
        for key, version in self._pending.items():
            if key.startswith(prefix):
                found.pop(key, None)
                if version.record:
                    found[key] = version.record
        return [found[key] for key in sorted(found)]

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """Return the values below a prefix by key, current or at a past revision."""
        if at and at < self.compacted_revision:
            raise RevisionCompacted(self.compacted_revision)
        return self._data.range(prefix, at=at, after=after, limit=limit)

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """Return the number of values below a prefix, now or at a past revision."""
        if at and at < self.compacted_revision:
            raise RevisionCompacted(self.compacted_revision)
        return self._data.count(prefix, at=at, after=after)

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """Yield what was committed after a revision, in order; read it before the next commit."""
        if since < self.compacted_revision:
            raise RevisionCompacted(self.compacted_revision)
        return self._data.changes(since, prefix)

    def subscribe(self, deliver: Callable[[Sequence[StoreChange]], None]) -> Callable[[], None]:
        """Deliver the changes of each batch right after its commit; call the result to stop."""
        self._subscribers.append(deliver)
        return lambda: self._subscribers.remove(deliver)

    async def commit(self, writes: Sequence[StoreWrite]) -> Sequence[StoreChange]:
        """Write all or nothing; return when it is durable and visible."""
        changes = self._assign_revisions(writes)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._queued:
            self._schedule_flush()
        self._queued.append(PendingTransaction(changes, committed))
        # The transaction proceeds even if the caller is cancelled.
        await committed
        return changes

    def compact(self, revision: int) -> None:
        """Discard the history up to a revision; current values stay."""
        self._data.compact(revision)

    @abstractmethod
    def _schedule_flush(self) -> None:
        """Arrange that `_flush` is called soon: the first transaction was queued."""

    @abstractmethod
    def _flush(self) -> None:
        """Send all queued transactions on their way to `_publish`."""

    @abstractmethod
    def _trim_history(self) -> None:
        """Discard history that need not be kept any more."""

    def _assign_revisions(self, writes: Sequence[StoreWrite]) -> list[StoreChange]:
        """Compare and swap: assign revisions to all writes, or raise RevisionConflict."""
        current = [self.pending(write.key) for write in writes]
        for write, found in zip(writes, current, strict=True):
            if (found.revision if found else 0) != write.expect:
                raise RevisionConflict(write.key, write.expect, found.revision if found else 0)
        decided: dict[str, KeyVersion] = {}
        changes = []
        pairs = zip(writes, current, strict=True)
        for revision, (write, found) in enumerate(pairs, self._last_assigned + 1):
            known = decided.get(write.key)
            change = _create_change(write, revision, known.record if known else found)
            decided[write.key] = KeyVersion(revision, change.after)
            changes.append(change)
        self._last_assigned += len(changes)
        self._pending |= decided
        return changes

    def _take_queued(self) -> CommitBatch:
        """Remove and return all queued transactions."""
        batch, self._queued = self._queued, []
        return batch

    def _publish(self, batch: CommitBatch) -> None:
        """Make durable transactions visible, in order, and notify writers and subscribers."""
        changes = [change for transaction in batch for change in transaction.changes]
        for change in changes:
            self._data.apply(change)
            if self._pending[change.key].revision == change.revision:
                del self._pending[change.key]
        self._trim_history()
        for transaction in batch:
            if not transaction.committed.done():
                transaction.committed.set_result(None)
        for deliver in tuple(self._subscribers) if changes else ():
            deliver(changes)


def _create_change(write: StoreWrite, revision: int, before: KeyValue | None) -> StoreChange:
    if write.encode is None:
        return StoreChange(revision, write.key, before, None)
    created = before.created if before else revision
    # Copied: the encoder's result may hold a much larger buffer, and this value stays.
    value = bytes(memoryview(write.encode(revision)))
    after = KeyValue(write.key, value, revision, created)
    return StoreChange(revision, write.key, before, after)


#: Revisions and bytes of history that are kept by default, whichever is less.
HISTORY_REVISIONS, HISTORY_BYTES = 100_000, 256 << 20


class MemoryStore(CachedStore):
    """A Store in memory; `latency` returns the duration of the next commit in seconds."""

    def __init__(
        self,
        latency: Callable[[], float] | None = None,
        history: int = HISTORY_REVISIONS,
        history_bytes: int = HISTORY_BYTES,
    ) -> None:
        super().__init__(VersionedMap())
        self._latency, self._history, self._history_bytes = latency, history, history_bytes

    async def close(self) -> None:
        """Commit what is queued."""
        self._flush()

    def _schedule_flush(self) -> None:
        loop = asyncio.get_running_loop()
        if self._latency is None:
            loop.call_soon(self._flush)
        else:
            loop.call_later(self._latency(), self._flush)

    def _flush(self) -> None:
        self._publish(self._take_queued())

    def _trim_history(self) -> None:
        self.compact(self.revision - self._history)
        self._data.trim_history(self._history_bytes)
