"""Controllers on trial: ended after any of their writes, told everything twice and late.

A story has a user do things and wait, and tells what came of it. It must come to the same whenever
the controller ends and another one takes over, and when all is quiet nobody writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager

from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport, Transport, Unreachable
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import ADMIN
from phalanx.sim.virtual_time import run_virtual
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.fault_trials import Fault, FaultyTransport, RequestTally

#: Nothing but the server.
SERVER_ONLY = ("scheduler", "controllers", "nodes")
#: Something that runs until it is cancelled.
Runnable = Callable[[], Coroutine[None, None, None]]
#: Makes the parts of a controller, ready to run.
Build = Callable[[Client, Informers, Cluster], Sequence[Runnable]]
Story = Callable[[Cluster], Awaitable[object]]
#: Seconds that late news take, and how many events in turn are not heard.
_LAG_SECONDS, _GAPS = 0.7, 12


class CrashingTransport:
    """A way to the server that ends when so many writes have been made; `died` is set then."""

    def __init__(self, c: Cluster, writes: int) -> None:
        self._inner, self.writes_left = InProcessTransport(c.plane.server.handle, ADMIN), writes
        self.crashed = asyncio.Event()

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method != "GET" and self.writes_left == 0:
            self.crashed.set()
        if self.crashed.is_set():
            raise Unreachable("the server", "it is over")
        self.writes_left -= request.method != "GET"
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing is held."""


@asynccontextmanager
async def running_controller(
    c: Cluster, build: Build, transport: Transport | None = None
) -> AsyncIterator[None]:
    """One life of a controller, with caches of its own and maybe a way of its own."""
    client = Client(transport) if transport else c.plane.client("controller")
    informers = Informers(client, SeededRandom(2))
    parts = [*build(client, informers, c), informers.run]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part()) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def bare_cluster(build: Build) -> AsyncIterator[Cluster]:
    """A server and this controller, nothing else."""
    async with cluster(without=SERVER_ONLY) as c, running_controller(c, build):
        yield c


async def _run_two_lives(c: Cluster, build: Build, transport: CrashingTransport) -> None:
    """One life after the other: the first ends with its way, the second does not."""
    async with running_controller(c, build, transport):
        await transport.crashed.wait()
    async with running_controller(c, build):
        await asyncio.Event().wait()


def run_story(build: Build, story: Story, writes: int) -> tuple[object, int]:
    """What comes of a story whose first controller ends after so many writes, if it makes more."""

    async def acted() -> tuple[object, int]:
        async with cluster(without=SERVER_ONLY) as c:
            way = CrashingTransport(c, writes)
            lives = asyncio.create_task(_run_two_lives(c, build, way))
            outcome = await story(c)
            lives.cancel()
            await asyncio.gather(lives, return_exceptions=True)
            return outcome, writes - way.writes_left

    return run_virtual(acted)


def assert_survives_every_crash(build: Build, story: Story) -> int:
    """Have the controller end after each of its writes in turn; how many there are."""
    expected, writes = run_story(build, story, 1_000_000)
    for number in range(writes):
        assert run_story(build, story, number)[0] == expected, f"ended after write {number}"
    return writes


def assert_survives_bad_watches(build: Build, story: Story) -> None:
    """Have everything heard late; or twice, out of order; or not at all for a while, and anew."""
    calm = RequestTally()
    expected = _run_with_fault(build, story, Fault(), calm)
    assert _run_with_fault(build, story, None, calm) == expected, "heard late"
    step = max(calm.events // _GAPS, 1)
    gaps = [Fault(gap=number) for number in range(1, calm.events + 1, step)]
    for trouble in (Fault(repeats_events=True), *gaps):
        assert _run_with_fault(build, story, trouble, RequestTally()) == expected, trouble


def _run_with_fault(build: Build, story: Story, fault: Fault | None, tally: RequestTally) -> object:
    """What comes of a story whose controller has this trouble; None: everything comes late."""

    async def acted() -> object:
        async with cluster(without=SERVER_ONLY) as c:
            inner = InProcessTransport(c.plane.server.handle, ADMIN)
            way = (
                FaultyTransport(inner, fault, tally)
                if fault
                else lagging_client(c, _LAG_SECONDS)[1]
            )
            async with running_controller(c, build, way):
                return await story(c)

    return run_virtual(acted)


async def assert_quiet(c: Cluster, build: Build, seconds: float = 30.0) -> None:
    """Ten times somebody comes, hears of everything there is, and writes nothing."""
    before = c.store.revision
    for _ in range(10):
        async with running_controller(c, build):
            await asyncio.sleep(seconds)
    assert c.store.revision == before
