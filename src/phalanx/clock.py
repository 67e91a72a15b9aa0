"""The current time: the only module that reads the wall clock.

Waiting is the event loop's task, not this module's: under the simulator's loop, whose time jumps,
nothing ever sleeps. `api.meta` formats timestamps.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Returns seconds since the Unix epoch."""

    def now(self) -> float:
        """Return the current time."""
        ...


class WallClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Return the machine's current time."""
        return time.time()


class LoopClock:
    """A clock that follows an event loop's own time from a chosen epoch: the simulator's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float) -> None:
        self._loop, self._epoch = loop, epoch

    def now(self) -> float:
        """Return the epoch plus the time that has passed on the loop."""
        return self._epoch + self._loop.time()
