"""What is remembered: keys, bytes and revisions. The protocol that every store speaks.

Below `server/`, above nothing. A store never knows a Pod: values are bytes, keys are paths. One
global revision counts every write; the writes of one transaction have consecutive revisions and
become visible together. Revisions are given and compare-and-swap is checked at once, on the event
loop, against what is on its way to disk too; `commit` returns only when the transaction is durable,
and only then is it seen by `get`, `range`, `changes` and followers.

    revision   1        2        3        4          5
    /a         put x                      put y      delete
    /b                  put x    put y

    range("/", at=3)  ->  /a x (1), /b y (3)        changes(since=3)  ->  4 put /a y, 5 delete /a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

#: Given the revision that a write gets, the bytes to remember (they may carry it).
ValueEncoder = Callable[[int], bytes]


class KeyValue(NamedTuple):
    """One key's value, since `revision`; `created` is the revision of the key's first write."""

    key: str
    value: bytes
    revision: int
    created: int


class StoreChange(NamedTuple):
    """One write of the past: `after` is None for a deletion, `before` is None for a creation."""

    revision: int
    key: str
    before: KeyValue | None
    after: KeyValue | None


class StoreWrite(NamedTuple):
    """One wish: `encode` None deletes; `expect` is the revision that must be there (0: no key)."""

    key: str
    encode: ValueEncoder | None
    expect: int


@dataclass
class RevisionConflict(Exception):
    """A compare-and-swap did not hold: nothing of the transaction was written."""

    key: str
    expected: int
    found: int


@dataclass
class RevisionCompacted(Exception):
    """The history that was asked for begins later, at `floor`."""

    floor: int


class StoreReader(Protocol):
    """What may be asked of the committed past and present."""

    @property
    def revision(self) -> int:
        """The newest committed revision."""
        ...

    def get(self, key: str) -> KeyValue | None:
        """The committed value of a key."""
        ...

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """The records below a prefix by key, of the present or `at` a revision, `after` a key."""
        ...

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """How many records `range` would give, without a look at each of them."""
        ...

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """What was committed after a revision, in order. Raises Compacted when that is gone."""
        ...

    def subscribe(self, deliver: Callable[[Sequence[StoreChange]], None]) -> Callable[[], None]:
        """Have each transaction delivered right after its commit; call the result to stop."""
        ...


class Store(StoreReader, Protocol):
    """A Reader that also writes."""

    def pending(self, key: str) -> KeyValue | None:
        """The value that the next compare-and-swap of this key will meet, committed or not yet."""
        ...

    def pending_range(self, prefix: str) -> Sequence[KeyValue]:
        """The records below a prefix by key, as the next compare-and-swaps will meet them."""
        ...

    async def commit(self, writes: Sequence[StoreWrite]) -> Sequence[StoreChange]:
        """Write all or, raising Stale, nothing; return when durable, with what was changed.

        A commit of nothing waits for all that was written before it.
        """
        ...

    def compact(self, floor: int) -> None:
        """Forget the history up to a revision; the present stays."""
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of files."""
        ...
