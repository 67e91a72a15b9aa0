"""The committed present in memory, and as much of the past as is kept beside it.

What every store of ours serves its reads from; `front.py` applies each transaction here once it is
durable. Knows nothing of what is still on its way, of disks or of event loops.

A key's older versions are kept as long as a change in the history replaced them:

    revision   1        2        3        4          after compact(2)
    /a         put x             put y    delete     history 3, 4; of /a: x (1), y (3), nothing (4)
    /b                  put x                        of /b: x (2), the present

The half of a store that stands on the event loop: deciding, publishing and serving.

Every store whose present fits in memory is a Front that says where transactions go to become
durable (`memory.py`: nowhere; `sqlite.py`: to a file). Revisions are given and compare-and-swap is
checked here at once, against what is decided but not yet durable too (`_pending`); what is durable
is published in order: first to the image, then to the writers, then to the followers.

    commit ─▶ _waiting ─▶ _send ─▶ (durable) ─▶ _publish ─▶ image, writers, followers

The store that forgets at the end: every other store must behave like this one.

A transaction waits for the next tick (or a given latency) before it is committed, as it would wait
for a disk; then all that waits is committed together.
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

#: Bytes that a change takes in the history beside the value that it replaced.
HISTORY_ENTRY_OVERHEAD = 256

#: Sorts behind every key that begins with the same prefix.
AFTER_ALL_KEYS = "\U0010ffff"


class KeyVersion(NamedTuple):
    """What a key held since a revision; nothing, if it was deleted then."""

    revision: int
    record: KeyValue | None


class VersionedMap:
    """Records in the order of their keys, and the changes after `floor` that led to them."""

    def __init__(self, records: Iterable[KeyValue] = (), revision: int = 0) -> None:
        self.revision = self.floor = revision
        #: Bytes that exist only because of the history.
        self.history_bytes = 0
        self._records = {record.key: record for record in records}
        self._keys = sorted(self._records)
        self._deleted_keys: list[str] = []
        self._old_versions: dict[str, list[KeyVersion]] = {}
        self._history: deque[StoreChange] = deque()

    def get(self, key: str) -> KeyValue | None:
        """The value of a key."""
        return self._records.get(key)

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """The records below a prefix by key, of the present or of a revision not below `floor`."""
        if at and at < self.revision:
            return list(islice(self._records_at(prefix, after, at), limit or None))
        low, high = _key_bounds(self._keys, prefix, after)
        if limit:
            high = min(high, low + limit)
        return [self._records[key] for key in self._keys[low:high]]

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """How many records `range` would give; costs what has changed since then."""
        low, high = _key_bounds(self._keys, prefix, after)
        was_there: dict[str, bool] = {}
        for change in self.changes(at, prefix) if at and at < self.revision else ():
            if change.key > after:
                was_there.setdefault(change.key, change.before is not None)
        return high - low + sum(was - (key in self._records) for key, was in was_there.items())

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """What was applied after a revision not below `floor`, in order."""
        later = islice(self._history, since - self.floor, None)
        return (change for change in later if change.key.startswith(prefix))

    def apply(self, change: StoreChange) -> None:
        """Have the next change come true."""
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
        self.history_bytes += _history_size(change)
        self.revision = change.revision

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision; the present stays."""
        while self._history and self._history[0].revision <= floor:
            self._drop_oldest_change()

    def trim_history(self, max_bytes: int) -> None:
        """Forget the oldest history until it takes no more than so many bytes."""
        while self.history_bytes > max_bytes:
            self._drop_oldest_change()

    def _drop_oldest_change(self) -> None:
        """Drop the oldest change, and what of its key no list at or after it can ask for."""
        change = self._history.popleft()
        self.floor = change.revision
        self.history_bytes -= _history_size(change)
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
    """Where the keys below a prefix and behind one of them begin and end."""
    low = bisect_right(keys, after) if after >= prefix else bisect_left(keys, prefix)
    return low, max(low, bisect_left(keys, prefix + AFTER_ALL_KEYS))


def _version_revision(version: KeyVersion) -> int:
    return version.revision


def _history_size(change: StoreChange) -> int:
    return HISTORY_ENTRY_OVERHEAD + (len(change.before.value) if change.before else 0)


class PendingTransaction(NamedTuple):
    """What was decided together, and whom to tell when it is durable."""

    changes: Sequence[StoreChange]
    committed: asyncio.Future[None]


#: Transactions that become durable together.
CommitBatch: TypeAlias = list[PendingTransaction]


class CachedStore(ABC):
    """A Store over an image. A subclass sends what waits on its way and publishes it."""

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
    def floor(self) -> int:
        """The revision after which history is known."""
        return self._data.floor

    def get(self, key: str) -> KeyValue | None:
        """The committed value of a key."""
        return self._data.get(key)

    def pending(self, key: str) -> KeyValue | None:
        """The value that the next compare-and-swap of this key will meet."""
        version = self._pending.get(key)
        return version.record if version else self._data.get(key)

    def pending_range(self, prefix: str) -> Sequence[KeyValue]:
        """The records below a prefix by key, as the next compare-and-swaps will meet them."""
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
        """The records below a prefix by key, of the present or of a past revision."""
        if at and at < self.floor:
            raise RevisionCompacted(self.floor)
        return self._data.range(prefix, at=at, after=after, limit=limit)

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """How many records there are below a prefix, now or at a past revision."""
        if at and at < self.floor:
            raise RevisionCompacted(self.floor)
        return self._data.count(prefix, at=at, after=after)

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """What was committed after a revision, in order; to be read before the next commit."""
        if since < self.floor:
            raise RevisionCompacted(self.floor)
        return self._data.changes(since, prefix)

    def subscribe(self, deliver: Callable[[Sequence[StoreChange]], None]) -> Callable[[], None]:
        """Have each transaction delivered right after its commit."""
        self._subscribers.append(deliver)
        return lambda: self._subscribers.remove(deliver)

    async def commit(self, writes: Sequence[StoreWrite]) -> Sequence[StoreChange]:
        """Write all or nothing; return when it is durable and visible."""
        changes = self._assign_revisions(writes)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._queued:
            self._schedule_flush()
        self._queued.append(PendingTransaction(changes, committed))
        # A caller that is cancelled has still written: the transaction is on its way.
        await committed
        return changes

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision; the present stays."""
        self._data.compact(floor)

    @abstractmethod
    def _schedule_flush(self) -> None:
        """See to it that `_send` is called soon: something begins to wait."""

    @abstractmethod
    def _flush(self) -> None:
        """Take all that waits on its way to `_publish`."""

    @abstractmethod
    def _trim_history(self) -> None:
        """Let go of the past that need not be kept: the present has moved on."""

    def _assign_revisions(self, writes: Sequence[StoreWrite]) -> list[StoreChange]:
        """Give revisions to all writes, or raise and leave no trace."""
        there = [self.pending(write.key) for write in writes]
        for write, found in zip(writes, there, strict=True):
            if (found.revision if found else 0) != write.expect:
                raise RevisionConflict(write.key, write.expect, found.revision if found else 0)
        decided: dict[str, KeyVersion] = {}
        changes = []
        pairs = zip(writes, there, strict=True)
        for revision, (write, found) in enumerate(pairs, self._last_assigned + 1):
            known = decided.get(write.key)
            change = _create_change(write, revision, known.record if known else found)
            decided[write.key] = KeyVersion(revision, change.after)
            changes.append(change)
        self._last_assigned += len(changes)
        self._pending |= decided
        return changes

    def _take_queued(self) -> CommitBatch:
        """All that waits, which then waits no longer."""
        batch, self._queued = self._queued, []
        return batch

    def _publish(self, batch: CommitBatch) -> None:
        """Make what is durable visible, in order, and tell whoever wrote or follows it."""
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
    # Copied: what an encoder returns may keep a buffer of many times its length, and this stays.
    value = bytes(memoryview(write.encode(revision)))
    after = KeyValue(write.key, value, revision, created)
    return StoreChange(revision, write.key, before, after)


#: Revisions of history that are kept unless told otherwise.
HISTORY_REVISIONS = 100_000


class MemoryStore(CachedStore):
    """A Store in memory. `latency` gives the seconds that the next commit takes."""

    def __init__(
        self, latency: Callable[[], float] | None = None, history: int = HISTORY_REVISIONS
    ) -> None:
        super().__init__(VersionedMap())
        self._latency, self._history = latency, history

    async def close(self) -> None:
        """Commit what is under way."""
        self._flush()

    def _schedule_flush(self) -> None:
        seconds = self._latency() if self._latency else 0
        asyncio.get_running_loop().call_later(seconds, self._flush)

    def _flush(self) -> None:
        self._publish(self._take_queued())

    def _trim_history(self) -> None:
        self.compact(self.revision - self._history)
