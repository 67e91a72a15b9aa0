"""Instants: what happens at one time of a simulation happens in a fixed order.

Components react to each other without time passing. `Instants.settle` waits until all of them are
idle at the present time; among several waits the one of the earliest phase continues first.

    Phase.NODES      lost and repaired nodes     after the jobs that end at this time
    Phase.JOBS       submitted jobs
    Phase.SCHEDULER  the next scheduling cycle

`on_settled` functions are called when nothing is left to do at the present time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count

from phalanx.sim.virtual_time import VirtualLoop


class Phase(IntEnum):
    """The order of what happens at one time."""

    NODES = 0
    JOBS = 1
    SCHEDULER = 2


class Instants:
    """Orders what happens at one time of a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self._numbers = loop, count()
        self._waits: list[tuple[Phase, int, asyncio.Future[None]]] = []
        self.on_settled: list[Callable[[], None]] = []
        loop.on_idle = self._continue_first

    async def settle(self, phase: Phase) -> None:
        """Wait until everything is idle and no wait of an earlier phase is left."""
        future: asyncio.Future[None] = self._loop.create_future()
        heappush(self._waits, (phase, next(self._numbers), future))
        await future

    def _continue_first(self) -> bool:
        while self._waits:
            _, _, future = heappop(self._waits)
            if not future.done():
                future.set_result(None)
                return True
        for call in self.on_settled:
            call()
        return False
