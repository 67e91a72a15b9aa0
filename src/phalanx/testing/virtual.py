"""A cluster in virtual time: nothing sleeps, lots are drawn from a seed, hours cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.sim.simulation import EPOCH, LATENCY
from phalanx.sim.virtual_time import VirtualLoop
from phalanx.store.memory import MemoryStore
from phalanx.testing.blocking import Phalanx
from phalanx.testing.cluster import Cluster, running_cluster, unwrap_exception_group
from phalanx.testing.settings import Settings

T = TypeVar("T")


class Virtual(Phalanx):
    """A cluster on a loop that moves only while something of the test runs there."""

    def sleep(self, seconds: float) -> None:
        """Let time pass for the cluster, none for the test."""
        self.drive(asyncio.sleep(seconds))


@contextmanager
def virtually(settings: Settings) -> Iterator[Virtual]:
    """A cluster that is there while the context lasts."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ready, stopped = asyncio.Event(), asyncio.Event()
        clusters: list[Cluster] = []

        async def host() -> None:
            clock = LoopClock(runner.get_loop(), EPOCH)
            chance = SeededRandom(settings.seed)
            store = MemoryStore(lambda: chance.between(*LATENCY))
            async with running_cluster(settings, store, clock, chance) as found:
                clusters.append(found)
                ready.set()
                await stopped.wait()

        hosting = runner.get_loop().create_task(host(), name="cluster")

        def drive(question: Coroutine[Any, Any, T]) -> T:
            return runner.run(_run_while_hosted(hosting, question))

        drive(ready.wait())
        try:
            yield Virtual(clusters[0], drive)
        finally:
            stopped.set()
            runner.run(_wait_for_end(hosting))


async def _run_while_hosted(hosting: asyncio.Task[None], question: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, or until what it needs breaks: that is raised then."""
    asking = asyncio.ensure_future(question)
    await asyncio.wait([asking, hosting], return_when=asyncio.FIRST_COMPLETED)
    if not asking.done():
        asking.cancel()
        await asyncio.wait([asking])
        await _wait_for_end(hosting)
    return await asking


async def _wait_for_end(hosting: asyncio.Task[None]) -> None:
    with unwrap_exception_group():
        await hosting
