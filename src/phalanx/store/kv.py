"""The protocol of every store: keys, bytes and revisions.

A store never knows a Pod: values are bytes, keys are paths. One global revision counts every write;
the writes of one transaction have consecutive revisions and become visible together. Revisions are
assigned and compare-and-swap is checked immediately, on the event loop, also against transactions
that are not durable yet. `commit` returns when the transaction is durable; only then do `get`,
`range`, `changes` and subscribers see it.

    revision   1        2        3        4          5
    /a         put x                      put y      delete
    /b                  put x    put y

    range("/", at=3)  ->  /a x (1), /b y (3)        changes(since=3)  ->  4 put /a y, 5 delete /a

Errors of a store on disk are StoreErrors, each with one plain sentence:

    StoreUnusable   it was not opened, copied or restored; nothing was changed
    StoreFailed     it stopped while running; unacknowledged writes did not happen
    StoreClosed     its process is stopping; the write did not happen
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

#: Returns the bytes to store, given the revision of the write, which they may contain.
ValueEncoder = Callable[[int], bytes]


class KeyValue(NamedTuple):
    """The value of a key since `revision`; `created` is the revision of the key's first write."""

    key: str
    value: bytes
    revision: int
    created: int


class StoreChange(NamedTuple):
    """One committed write: `after` is None for a deletion, `before` is None for a creation."""

    revision: int
    key: str
    before: KeyValue | None
    after: KeyValue | None


class StoreWrite(NamedTuple):
    """One requested write: `encode` None deletes; `expect` is the required revision (0: absent)."""

    key: str
    encode: ValueEncoder | None
    expect: int


@dataclass
class RevisionConflict(Exception):
    """A compare-and-swap failed; nothing of the transaction was written."""

    key: str
    expected: int
    found: int


@dataclass
class RevisionCompacted(Exception):
    """The requested history was compacted; only changes after `compacted_revision` are kept."""

    compacted_revision: int


class StoreError(Exception):
    """The base class of errors of a store on disk."""


class StoreUnusable(StoreError):
    """A store was not opened, copied or restored. Nothing was changed."""


class StoreFailed(StoreError):
    """A store stopped: it writes nothing any more, and its process should stop too."""


class StoreClosed(StoreFailed):
    """A store was closed before the write. Its process is stopping; nothing is wrong."""


class StoreReader(Protocol):
    """Reads of committed state and history."""

    @property
    def revision(self) -> int:
        """The newest committed revision."""
        ...

    def get(self, key: str) -> KeyValue | None:
        """Return the committed value of a key."""
        ...

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """Return the values below a prefix by key, current or `at` a revision, `after` a key."""
        ...

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """Return the number of values that `range` would return, without reading them."""
        ...

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """Yield what was committed after a revision, in order. Raises RevisionCompacted."""
        ...

    def subscribe(self, deliver: Callable[[Sequence[StoreChange]], None]) -> Callable[[], None]:
        """Deliver the changes of each batch right after its commit; call the result to stop."""
        ...


class Store(StoreReader, Protocol):
    """A StoreReader that also writes."""

    def pending(self, key: str) -> KeyValue | None:
        """Return the value that the next compare-and-swap of this key meets, durable or not."""
        ...

    def pending_range(self, prefix: str) -> Sequence[KeyValue]:
        """Return the values below a prefix that the next compare-and-swaps meet."""
        ...

    async def commit(self, writes: Sequence[StoreWrite]) -> Sequence[StoreChange]:
        """Write all or, raising RevisionConflict, nothing; return the changes when durable.

        An empty commit waits for all earlier ones.
        """
        ...

    def compact(self, revision: int) -> None:
        """Discard the history up to a revision; current values stay."""
        ...

    async def close(self) -> None:
        """Finish pending commits and close files."""
        ...
