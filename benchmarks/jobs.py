"""Jobs: the time until they have their Workload and their first pod, and the cost of a reconcile.

This process creates Jobs over TLS and watches the results. There are no nodes and no scheduler: the
Job controller is measured. Steady reconciles are measured in this process, for Jobs with nothing to
do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import uvloop

from benchmarks import api_calls as calls
from benchmarks.environment import BenchmarkEnvironment, BenchmarkFailed, Result, percentile
from benchmarks.http_client import Call, HttpConnection, open_connections
from phalanx.api.meta import Key
from phalanx.api.wire import UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import WallClock
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.jobs.controller import JobController
from phalanx.controllers.jobs.workload_manager import JobSchedulingOptions
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import MASTERS
from phalanx.store.memory import MemoryStore
from tools.control_plane import Access

#: Jobs at once; Jobs per second, and for how many seconds; Jobs one after the other.
BURST_JOBS, JOBS_PER_SECOND, SECONDS, SINGLE_JOBS = 200, 50, 10, 60
#: Milliseconds until 99 % of the Jobs have a Workload; that group objects may add to a first pod.
WORKLOAD_LIMIT, OBJECTS_LIMIT = 1000.0, 10.0
#: Per cent that group objects may add to a reconcile.
STEADY_LIMIT = 10.0
CONNECTIONS, LIMIT = 8, 60.0
RECONCILES, ROUNDS, PODS = 6000, 300, 8
WORKLOADS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads"


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure bursts, a steady stream, single Jobs, and steady reconciles."""
    target = setting.target(WORKLOAD_LIMIT)
    burst, stream = setting.size(BURST_JOBS), setting.size(JOBS_PER_SECOND * SECONDS)
    for name, count, pace in (
        (f"{burst} Jobs at once: Workload", burst, 0.0),
        (f"{JOBS_PER_SECOND} Jobs/s: Workload", stream, JOBS_PER_SECOND),
    ):
        with setting.plane("--nodes", "0", "--without", "scheduler,nodes") as plane:
            delays = uvloop.run(measure_workload_delay(plane.access, count, pace))
        beside = {"p50 ms": percentile(delays, 50) * 1000}
        yield Result(name, percentile(delays, 99) * 1000, "ms", target, beside=beside)
    with setting.plane("--nodes", "0", "--without", "scheduler,nodes") as plane:
        gangs, plain = uvloop.run(measure_pod_delay(plane.access, setting.size(SINGLE_JOBS, 6)))
    beside = {"gang p50 ms": gangs * 1000, "plain p50 ms": plain * 1000}
    limit = setting.target(OBJECTS_LIMIT)
    yield Result("objects before the first pod", (gangs - plain) * 1000, "ms", limit, beside=beside)
    gang, alone = asyncio.run(measure_steady_reconcile(setting.size(RECONCILES)))
    beside = {"gang us": gang * 1e6, "plain us": alone * 1e6}
    extra, limit = (gang / alone - 1) * 100, setting.target(STEADY_LIMIT)
    yield Result(
        "objects in the reconcile of an unchanged Job", extra, "% more", limit, beside=beside
    )


# ---- Workloads and pods of Jobs ------------------------------------------------------------------


class Reference(msgspec.Struct, frozen=True):
    name: str = ""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    owner_references: tuple[Reference, ...] = ()


class OwnedObject(msgspec.Struct, frozen=True):
    metadata: Meta


class Event(msgspec.Struct, frozen=True):
    type: str
    object: OwnedObject


@dataclass(slots=True)
class FirstSeen:
    """The time at which a watch first saw an object of each Job."""

    path: str
    seen: dict[str, float] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _rest: bytes = b""

    async def follow(self, access: Access) -> None:
        """Watch until cancelled."""
        wire = await HttpConnection.open(access)
        await wire.stream(f"{self.path}?watch=1", self._decode)

    async def wait_for(self, jobs: Sequence[str]) -> None:
        """Wait until an object of all these Jobs was seen."""
        async with asyncio.timeout(LIMIT):
            while not all(job in self.seen for job in jobs):
                self.news.clear()
                await self.news.wait()

    def _decode(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        now = time.perf_counter()
        for line in lines:
            event = msgspec.json.decode(line, type=Event)
            for owner in event.object.metadata.owner_references:
                self.seen.setdefault(owner.name, now)
        self.news.set()


async def measure_workload_delay(access: Access, count: int, pace: float) -> list[float]:
    """Return the seconds from sending each Job to seeing its Workload."""
    names = [f"job-{n}" for n in range(count)]
    sightings = FirstSeen(WORKLOADS)
    watching = asyncio.create_task(sightings.follow(access))
    try:
        sent = await _send(access, [calls.job(name, gang=True) for name in names], pace)
        await sightings.wait_for(names)
    except TimeoutError:
        raise BenchmarkFailed(f"{len(sightings.seen)} of {count} Jobs have a Workload") from None
    finally:
        watching.cancel()
    return [sightings.seen[name] - at for name, at in zip(names, sent, strict=True)]


async def measure_pod_delay(access: Access, count: int) -> tuple[float, float]:
    """Return the median seconds from a Job to its first pod, with and without a group."""
    sightings = FirstSeen(calls.PODS)
    watching = asyncio.create_task(sightings.follow(access))
    medians = []
    try:
        for gang in (True, False):
            delays = []
            for n in range(count):
                name = f"{'gang' if gang else 'plain'}-{n}"
                (sent,) = await _send(access, [calls.job(name, gang=gang)], 0.0)
                await sightings.wait_for([name])
                delays.append(sightings.seen[name] - sent)
            medians.append(percentile(delays, 50))
    except TimeoutError:
        raise BenchmarkFailed(f"{len(sightings.seen)} of {2 * count} Jobs have a pod") from None
    finally:
        watching.cancel()
    return medians[0], medians[1]


async def _send(access: Access, requests: Sequence[Call], pace: float) -> list[float]:
    """Send requests, all at once or at a rate; return the time of each."""
    wires, begin = (
        await open_connections(access, min(CONNECTIONS, len(requests))),
        time.perf_counter(),
    )
    sent = [0.0] * len(requests)
    turn = iter(enumerate(requests))

    async def work(wire: HttpConnection) -> None:
        for n, request in turn:
            if pace:
                await asyncio.sleep(begin + n / pace - time.perf_counter())
            sent[n] = time.perf_counter()
            code, answer = await wire.call(*request)
            if code >= 300:
                raise BenchmarkFailed(f"{code} {answer[:300]!r}")

    await asyncio.gather(*map(work, wires))
    for wire in wires:
        wire.close()
    return sent


# ---- reconciles ----------------------------------------------------------------------------------


async def measure_steady_reconcile(reconciles: int) -> tuple[float, float]:
    """Return the CPU seconds of a steady reconcile: of a gang, and of a Job without a group."""
    server = Server(MemoryStore(), WallClock(), SeededRandom(1))
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("benchmark", (MASTERS,))))
    informers = Informers(client, SeededRandom(1))
    recorder = EventRecorder(client, WallClock(), SeededRandom(1), component="job-controller")
    jobs = JobController(
        client, informers, WallClock(), recorder=recorder, options=JobSchedulingOptions()
    )
    tasks = [asyncio.create_task(run()) for run in (informers.run, jobs.run)]
    for name, gang in (("gang", True), ("plain", False)):
        _, path, body, _ = calls.job(name, gang=gang, pods=PODS)
        await client.post(path, msgspec.json.decode(body))
    await asyncio.sleep(1.0)
    # Alternating, so that load of the machine affects both.
    times = reconciles // ROUNDS
    rounds = [[await _measure(jobs.reconcile, name, times) for name in ("gang", "plain")]
              for _ in range(ROUNDS)]  # fmt: skip
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return min(gang for gang, _ in rounds), min(plain for _, plain in rounds)


async def _measure(reconcile: Callable[[Key], Awaitable[object]], name: str, times: int) -> float:
    begin, key = time.process_time(), Key("default", name)
    for _ in range(times):
        await reconcile(key)
    return (time.process_time() - begin) / times
