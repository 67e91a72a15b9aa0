"""What time it is: the one place that reads the wall clock.

Waiting is not done here but by the event loop, so that under the simulator's loop, whose time
jumps, nothing ever sleeps. Does not format dates (`api.meta` does).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch."""

    def now(self) -> float:
        """The present moment."""
        ...


class WallClock:
    """The clock of the machine."""

    def now(self) -> float:
        """The present moment, as the machine tells it."""
        return time.time()


class LoopClock:
    """A clock that follows an event loop's own time, from a chosen epoch: the simulator's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float) -> None:
        self._loop, self._epoch = loop, epoch

    def now(self) -> float:
        """The epoch plus what the loop has lived through."""
        return self._epoch + self._loop.time()
