"""A cluster in virtual time: sleeping takes no time, and all randomness comes from a seed."""

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
    """A cluster whose event loop runs only while the test runs a coroutine on it."""

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass; the test does not wait."""
        self.drive(asyncio.sleep(seconds))


@contextmanager
def virtually(settings: Settings) -> Iterator[Virtual]:
    """Run a cluster in virtual time for the duration of the context."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ready, stopped = asyncio.Event(), asyncio.Event()
        clusters: list[Cluster] = []

        async def host() -> None:
            clock = LoopClock(runner.get_loop(), EPOCH)
            random = SeededRandom(settings.seed)
            store = MemoryStore(lambda: random.between(*LATENCY))
            async with running_cluster(settings, store, clock, random=random) as cluster:
                clusters.append(cluster)
                ready.set()
                await stopped.wait()

        hosting = runner.get_loop().create_task(host(), name="cluster")

        def drive(coroutine: Coroutine[Any, Any, T]) -> T:
            return runner.run(_run_while_hosted(hosting, coroutine))

        drive(ready.wait())
        try:
            yield Virtual(clusters[0], drive)
        finally:
            stopped.set()
            runner.run(_wait_for_end(hosting))


async def _run_while_hosted(hosting: asyncio.Task[None], coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. If the cluster fails before, raise the cluster's error."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait([task, hosting], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        await _wait_for_end(hosting)
    return await task


async def _wait_for_end(hosting: asyncio.Task[None]) -> None:
    with unwrap_exception_group():
        await hosting
