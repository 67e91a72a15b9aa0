"""The half of a store that stands on the event loop: deciding, publishing and serving.

Every store whose present fits in memory is a Front that says where transactions go to become
durable (`memory.py`: nowhere; `sqlite.py`: to a file). Revisions are given and compare-and-swap is
checked here at once, against what is decided but not yet durable too (`_pending`); what is durable
is published in order: first to the image, then to the writers, then to the followers.

    commit ─▶ _waiting ─▶ _send ─▶ (durable) ─▶ _publish ─▶ image, writers, followers
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from phalanx.store.image import Image, Version
from phalanx.store.kv import Change, Compacted, Record, Stale, Write


class Transaction(NamedTuple):
    """What was decided together, and whom to tell when it is durable."""

    changes: Sequence[Change]
    committed: asyncio.Future[None]


#: Transactions that become durable together.
Batch: TypeAlias = list[Transaction]


class Front(ABC):
    """A Store over an image. A subclass sends what waits on its way and publishes it."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._assigned = image.revision
        self._pending: dict[str, Version] = {}
        self._waiting: list[Transaction] = []
        self._followers: list[Callable[[Sequence[Change]], None]] = []

    @property
    def revision(self) -> int:
        """The newest committed revision."""
        return self._image.revision

    @property
    def floor(self) -> int:
        """The revision after which history is known."""
        return self._image.floor

    def get(self, key: str) -> Record | None:
        """The committed value of a key."""
        return self._image.get(key)

    def pending(self, key: str) -> Record | None:
        """The value that the next compare-and-swap of this key will meet."""
        version = self._pending.get(key)
        return version.record if version else self._image.get(key)

    def pending_range(self, prefix: str) -> Sequence[Record]:
        """The records below a prefix by key, as the next compare-and-swaps will meet them."""
        found = {record.key: record for record in self._image.range(prefix)}
        for key, version in self._pending.items():
            if key.startswith(prefix):
                found.pop(key, None)
                if version.record:
                    found[key] = version.record
        return [found[key] for key in sorted(found)]

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[Record]:
        """The records below a prefix by key, of the present or of a past revision."""
        if at and at < self.floor:
            raise Compacted(self.floor)
        return self._image.range(prefix, at=at, after=after, limit=limit)

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """How many records there are below a prefix, now or at a past revision."""
        if at and at < self.floor:
            raise Compacted(self.floor)
        return self._image.count(prefix, at=at, after=after)

    def changes(self, since: int, prefix: str = "") -> Iterator[Change]:
        """What was committed after a revision, in order; to be read before the next commit."""
        if since < self.floor:
            raise Compacted(self.floor)
        return self._image.changes(since, prefix)

    def follow(self, deliver: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        """Have each transaction delivered right after its commit."""
        self._followers.append(deliver)
        return lambda: self._followers.remove(deliver)

    async def commit(self, writes: Sequence[Write]) -> Sequence[Change]:
        """Write all or nothing; return when it is durable and visible."""
        changes = self._decide(writes)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._schedule()
        self._waiting.append(Transaction(changes, committed))
        # A caller that is cancelled has still written: the transaction is on its way.
        await committed
        return changes

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision; the present stays."""
        self._image.compact(floor)

    @abstractmethod
    def _schedule(self) -> None:
        """See to it that `_send` is called soon: something begins to wait."""

    @abstractmethod
    def _send(self) -> None:
        """Take all that waits on its way to `_publish`."""

    @abstractmethod
    def _trim(self) -> None:
        """Let go of the past that need not be kept: the present has moved on."""

    def _decide(self, writes: Sequence[Write]) -> list[Change]:
        """Give revisions to all writes, or raise and leave no trace."""
        there = [self.pending(write.key) for write in writes]
        for write, found in zip(writes, there, strict=True):
            if (found.revision if found else 0) != write.expect:
                raise Stale(write.key, write.expect, found.revision if found else 0)
        decided: dict[str, Version] = {}
        changes = []
        pairs = zip(writes, there, strict=True)
        for revision, (write, found) in enumerate(pairs, self._assigned + 1):
            known = decided.get(write.key)
            change = _change(write, revision, known.record if known else found)
            decided[write.key] = Version(revision, change.after)
            changes.append(change)
        self._assigned += len(changes)
        self._pending |= decided
        return changes

    def _take(self) -> Batch:
        """All that waits, which then waits no longer."""
        batch, self._waiting = self._waiting, []
        return batch

    def _publish(self, batch: Batch) -> None:
        """Make what is durable visible, in order, and tell whoever wrote or follows it."""
        changes = [change for transaction in batch for change in transaction.changes]
        for change in changes:
            self._image.apply(change)
            if self._pending[change.key].revision == change.revision:
                del self._pending[change.key]
        self._trim()
        for transaction in batch:
            if not transaction.committed.done():
                transaction.committed.set_result(None)
        for deliver in tuple(self._followers) if changes else ():
            deliver(changes)


def _change(write: Write, revision: int, before: Record | None) -> Change:
    if write.encode is None:
        return Change(revision, write.key, before, None)
    created = before.created if before else revision
    # Copied: what an encoder returns may keep a buffer of many times its length, and this stays.
    value = bytes(memoryview(write.encode(revision)))
    after = Record(write.key, value, revision, created)
    return Change(revision, write.key, before, after)
