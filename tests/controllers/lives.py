"""Controllers on trial: ended after any of their writes, told everything twice and late.

A story has a user do things and wait, and tells what came of it. It must come to the same whenever
the controller ends and another one takes over, and when all is quiet nobody writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager

from phalanx.api.wire import Reply, Request, Stream
from phalanx.chance import SeededChance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess, Transport, Unreachable
from phalanx.controllers.loop import Informers
from phalanx.server.access import ADMIN
from phalanx.sim.loop import run
from tests.controllers.cluster import Cluster, cluster, lagging
from tests.controllers.trials import Tally, Trouble, Way

#: Nothing but the server.
BARE = ("scheduler", "controllers", "nodes")
#: Something that runs until it is cancelled.
Part = Callable[[], Coroutine[None, None, None]]
#: Makes the parts of a controller, ready to run.
Build = Callable[[Client, Informers, Cluster], Sequence[Part]]
Story = Callable[[Cluster], Awaitable[object]]
#: Seconds that late news take, and how many events in turn are not heard.
_LAG, _GAPS = 0.7, 12


class Mortal:
    """A way to the server that ends when so many writes have been made; `died` is set then."""

    def __init__(self, c: Cluster, writes: int) -> None:
        self._inner, self.left = InProcess(c.plane.server.handle, ADMIN), writes
        self.died = asyncio.Event()

    async def send(self, request: Request) -> Reply | Stream:
        if request.method != "GET" and self.left == 0:
            self.died.set()
        if self.died.is_set():
            raise Unreachable("the server", "it is over")
        self.left -= request.method != "GET"
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing is held."""


@asynccontextmanager
async def living(c: Cluster, build: Build, way: Transport | None = None) -> AsyncIterator[None]:
    """One life of a controller, with caches of its own and maybe a way of its own."""
    client = Client(way) if way else c.plane.client("controller")
    informers = Informers(client, SeededChance(2))
    parts = [*build(client, informers, c), informers.run]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part()) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def bare(build: Build) -> AsyncIterator[Cluster]:
    """A server and this controller, nothing else."""
    async with cluster(without=BARE) as c, living(c, build):
        yield c


async def _lives(c: Cluster, build: Build, way: Mortal) -> None:
    """One life after the other: the first ends with its way, the second does not."""
    async with living(c, build, way):
        await way.died.wait()
    async with living(c, build):
        await asyncio.Event().wait()


def act(build: Build, story: Story, writes: int) -> tuple[object, int]:
    """What comes of a story whose first controller ends after so many writes, if it makes more."""

    async def acted() -> tuple[object, int]:
        async with cluster(without=BARE) as c:
            way = Mortal(c, writes)
            lives = asyncio.create_task(_lives(c, build, way))
            outcome = await story(c)
            lives.cancel()
            await asyncio.gather(lives, return_exceptions=True)
            return outcome, writes - way.left

    return run(acted)


def survives_every_end(build: Build, story: Story) -> int:
    """Have the controller end after each of its writes in turn; how many there are."""
    expected, writes = act(build, story, 1_000_000)
    for number in range(writes):
        assert act(build, story, number)[0] == expected, f"ended after write {number}"
    return writes


def survives_bad_news(build: Build, story: Story) -> None:
    """Have everything heard late; or twice, out of order; or not at all for a while, and anew."""
    calm = Tally()
    expected = _hear(build, story, Trouble(), calm)
    assert _hear(build, story, None, calm) == expected, "heard late"
    step = max(calm.events // _GAPS, 1)
    gaps = [Trouble(gap=number) for number in range(1, calm.events + 1, step)]
    for trouble in (Trouble(babbles=True), *gaps):
        assert _hear(build, story, trouble, Tally()) == expected, trouble


def _hear(build: Build, story: Story, trouble: Trouble | None, tally: Tally) -> object:
    """What comes of a story whose controller has this trouble; None: everything comes late."""

    async def acted() -> object:
        async with cluster(without=BARE) as c:
            inner = InProcess(c.plane.server.handle, ADMIN)
            way = Way(inner, trouble, tally) if trouble else lagging(c, _LAG)[1]
            async with living(c, build, way):
                return await story(c)

    return run(acted)


async def assert_quiet(c: Cluster, build: Build, seconds: float = 30.0) -> None:
    """Ten times somebody comes, hears of everything there is, and writes nothing."""
    before = c.store.revision
    for _ in range(10):
        async with living(c, build):
            await asyncio.sleep(seconds)
    assert c.store.revision == before
