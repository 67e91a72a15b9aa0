"""The store that forgets at the end: every other store must behave like this one.

A transaction waits for the next tick (or a given latency) before it is committed, as it would wait
for a disk; then all that waits is committed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phalanx.store.front import Front
from phalanx.store.image import Image

#: Revisions of history that are kept unless told otherwise.
HISTORY = 100_000


class MemoryStore(Front):
    """A Store in memory. `latency` gives the seconds that the next commit takes."""

    def __init__(self, latency: Callable[[], float] | None = None, history: int = HISTORY) -> None:
        super().__init__(Image())
        self._latency, self._history = latency, history

    async def close(self) -> None:
        """Commit what is under way."""
        self._send()

    def _schedule(self) -> None:
        seconds = self._latency() if self._latency else 0
        asyncio.get_running_loop().call_later(seconds, self._send)

    def _send(self) -> None:
        self._publish(self._take())

    def _trim(self) -> None:
        self.compact(self.revision - self._history)
