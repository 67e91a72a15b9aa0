"""Crash recovery of controllers: crashes after any write, and late or duplicate events.

A scenario acts as a user, waits, and returns the result. The result must be the same wherever the
controller crashes and another one continues, and in a steady state nothing may be written.
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

#: `without` of a cluster that is only a server.
SERVER_ONLY = ("scheduler", "controllers", "nodes")
#: A coroutine function that runs until it is cancelled.
Runnable = Callable[[], Coroutine[None, None, None]]
#: Builds a controller; returns what to run.
Build = Callable[[Client, Informers, Cluster], Sequence[Runnable]]
#: Acts as a user and returns the result.
CrashScenario = Callable[[Cluster], Awaitable[object]]
#: Seconds by which late events are delayed, and the number of gaps that are tried.
_LAG_SECONDS, _GAPS = 0.7, 12


class CrashingTransport:
    """A transport that fails after this many writes and then sets `crashed`."""

    def __init__(self, c: Cluster, writes: int) -> None:
        self._inner, self.writes_left = InProcessTransport(c.plane.server.handle, ADMIN), writes
        self.crashed = asyncio.Event()

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method != "GET" and self.writes_left == 0:
            self.crashed.set()
        if self.crashed.is_set():
            raise Unreachable("the server", "crashed")
        self.writes_left -= request.method != "GET"
        return await self._inner.send(request)

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def running_controller(
    c: Cluster, build: Build, transport: Transport | None = None
) -> AsyncIterator[None]:
    """Run a controller with its own caches, and with its own transport if one is given."""
    client = Client(transport) if transport else c.plane.client("controller")
    informers = Informers(client, SeededRandom(2))
    runnables = [*build(client, informers, c), informers.run]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in runnables]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def bare_cluster(build: Build) -> AsyncIterator[Cluster]:
    """A server with only this controller."""
    async with cluster(without=SERVER_ONLY) as c, running_controller(c, build):
        yield c


async def _run_with_restart(c: Cluster, build: Build, transport: CrashingTransport) -> None:
    """Run a controller until its transport crashes, then run another one."""
    async with running_controller(c, build, transport):
        await transport.crashed.wait()
    async with running_controller(c, build):
        await asyncio.Event().wait()


def run_scenario(build: Build, scenario: CrashScenario, writes: int) -> tuple[object, int]:
    """Run a scenario with a crash after this many writes; returns its result and the writes."""

    async def run() -> tuple[object, int]:
        async with cluster(without=SERVER_ONLY) as c:
            transport = CrashingTransport(c, writes)
            running = asyncio.create_task(_run_with_restart(c, build, transport))
            result = await scenario(c)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return result, writes - transport.writes_left

    return run_virtual(run)


def assert_survives_every_crash(build: Build, scenario: CrashScenario) -> int:
    """Crash the controller after each of its writes in turn; returns their number."""
    expected, writes = run_scenario(build, scenario, 1_000_000)
    for number in range(writes):
        assert run_scenario(build, scenario, number)[0] == expected, f"crash after write {number}"
    return writes


def assert_survives_bad_watches(build: Build, scenario: CrashScenario) -> None:
    """Delay all events; or duplicate and reorder them; or lose them and list again."""
    calm = RequestTally()
    expected = _run_with_fault(build, scenario, Fault(), calm)
    assert _run_with_fault(build, scenario, None, calm) == expected, "late events"
    step = max(calm.events // _GAPS, 1)
    gaps = [Fault(gap=number) for number in range(1, calm.events + 1, step)]
    for fault in (Fault(repeats_events=True), *gaps):
        assert _run_with_fault(build, scenario, fault, RequestTally()) == expected, fault


def _run_with_fault(
    build: Build, scenario: CrashScenario, fault: Fault | None, tally: RequestTally
) -> object:
    """Run a scenario with this fault and return its result; None: all events are late."""

    async def run() -> object:
        async with cluster(without=SERVER_ONLY) as c:
            inner = InProcessTransport(c.plane.server.handle, ADMIN)
            transport = (
                FaultyTransport(inner, fault, tally)
                if fault
                else lagging_client(c, _LAG_SECONDS)[1]
            )
            async with running_controller(c, build, transport):
                return await scenario(c)

    return run_virtual(run)


async def assert_quiet(c: Cluster, build: Build, seconds: float = 30.0) -> None:
    """Start the controller ten times; it lists everything and must write nothing."""
    before = c.store.revision
    for _ in range(10):
        async with running_controller(c, build):
            await asyncio.sleep(seconds)
    assert c.store.revision == before
