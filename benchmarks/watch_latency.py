"""Watch latency: the time from the reply of a write to the arrival of its event at 1,000 watchers.

Every write sets a label of one pod to the number of the write, which identifies its events. Each
pod has its own node and namespace, so that a selective watcher sees one pod and a watcher of
everything sees all. Watchers and writers are connections of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import uvloop

from benchmarks import api_calls as calls
from benchmarks.api_calls import NAMESPACES
from benchmarks.costs import CpuUsage, measure_cpu, resident_megabytes
from benchmarks.environment import WITHOUT_COMPONENTS, BenchmarkEnvironment, Result, percentile
from benchmarks.http_client import ChunkHandler, HttpConnection, open_connections, send_all
from tools.control_plane import Access

WATCHERS, SECONDS, QUICK_SECONDS = 1_000, 10, 1
WRITERS = 32
#: Milliseconds by which 99 % of the events may follow the reply of their write.
MAX_LAG_MS = 1000.0
#: Watches that are opened concurrently.
CONCURRENT_OPENS = 16
#: Seconds to wait for the last event, and the share of the intended writes that must be reached.
LIMIT, MIN_RATE_SHARE = 60.0, 0.95
_MARK = b'"turn":"'


@dataclass(frozen=True, slots=True)
class WatcherGroup:
    """A group of watchers: what each watches, writes per second, whether each sees all writes."""

    name: str
    path: Callable[[int], str]
    writes: int
    sees_all: bool = False


WATCHER_GROUPS = (
    WatcherGroup(
        "one node each", lambda n: f"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-{n}&", 500
    ),
    WatcherGroup("one namespace each", lambda n: f"{_pods(n)}?", 500),
    WatcherGroup("everything", lambda _: "/api/v1/pods?", 20, sees_all=True),
)


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure every group, each on its own server."""
    for audience in WATCHER_GROUPS:
        with setting.plane(*WITHOUT_COMPONENTS) as plane:
            count = setting.size(WATCHERS)
            turns = audience.writes * (QUICK_SECONDS if setting.is_quick else SECONDS)
            show = WatchRun(plane.access, audience, count, turns)
            uvloop.run(show.run(plane.pid))
        yield from _results(show, setting.target(MAX_LAG_MS))


def _results(show: WatchRun, target: float | None) -> Iterator[Result]:
    """Yield the rate of writes, and the 99th percentile of the events' delays."""
    who = f"{show.count:,} watch {show.group.name}"
    beside = {
        "answer p50 ms": percentile(show.latencies(), 50) * 1000,
        "answer p99 ms": percentile(show.latencies(), 99) * 1000,
        "server MB": show.megabytes,
        "server %": show.spent.server / show.spent.wall * 100,
        "driver %": show.spent.driver_share,
    }
    came, pace = len(show.seen), show.group.writes * MIN_RATE_SHARE
    note = "" if came == show.expected else f"{came:,} of {show.expected:,} events"
    yield Result(who, show.rate(), "writes/s", pace, at_least=True, beside=beside, note=note)
    for since, delays in (("answer", show.lags()), ("sending", show.waits())):
        p50, p99 = (percentile(delays, percent) * 1000 for percent in (50, 99))
        yield Result(f"{who}: after {since}", p99, "ms", target, beside={"p50 ms": p50})


@dataclass(slots=True)
class WatchRun:
    """One group of watchers, the writes, and the time at which each event arrived."""

    access: Access
    group: WatcherGroup
    count: int
    writes: int
    sent: dict[int, float] = field(default_factory=dict)
    answered: dict[int, float] = field(default_factory=dict)
    seen: list[tuple[int, float]] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    spent: CpuUsage = field(default_factory=CpuUsage)
    megabytes: float = 0.0

    @property
    def expected(self) -> int:
        """The number of expected events."""
        return self.writes * (self.count if self.group.sees_all else 1)

    async def run(self, pid: int) -> None:
        """Open the watches, write at a steady rate, wait for the last event."""
        revision = await _populate(self.access, self.count)
        writers = await open_connections(self.access, WRITERS)
        wires, watches = await self._open_watches(revision)
        with measure_cpu(pid) as self.spent:
            await self._write(writers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIMIT):
                    await self.complete.wait()
        self.megabytes = resident_megabytes(pid)
        for wire in (*wires, *writers):
            wire.close()
        await asyncio.gather(*watches)

    def lags(self) -> list[float]:
        """Return the seconds from the reply of a write to each of its events, at least 0."""
        return [max(0.0, at - self.answered[turn]) for turn, at in self.seen]

    def waits(self) -> list[float]:
        """Return the seconds from sending a write to each of its events."""
        return [at - self.sent[turn] for turn, at in self.seen]

    def rate(self) -> float:
        """Return the number of writes that were sent per second."""
        first, *_, last = sorted(self.sent.values())
        return (self.writes - 1) / (last - first)

    def latencies(self) -> list[float]:
        """Return the seconds from sending each write to its reply."""
        return [at - self.sent[turn] for turn, at in self.answered.items()]

    async def _open_watches(
        self, revision: str
    ) -> tuple[list[HttpConnection], list[asyncio.Task[None]]]:
        """Open all watches and wait until all have started."""
        turn, wires, watches = iter(range(self.count)), [], []

        async def open_watches() -> None:
            for number in turn:
                wire, begun = await HttpConnection.open(self.access), asyncio.Event()
                path = f"{self.group.path(number)}watch=1&resourceVersion={revision}"
                watches.append(
                    asyncio.create_task(wire.stream(path, self._event_recorder(), begun.set))
                )
                wires.append(wire)
                await begun.wait()

        await asyncio.gather(*(open_watches() for _ in range(CONCURRENT_OPENS)))
        return wires, watches

    def _event_recorder(self) -> ChunkHandler:
        """Return a handler that records the number and time of each event."""
        rest = b""

        def take(piece: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + piece).split(b"\n")
            now = time.perf_counter()
            for line in lines:
                begin = line.index(_MARK) + len(_MARK)
                self.seen.append((int(line[begin : line.index(b'"', begin)]), now))
            if len(self.seen) >= self.expected:
                self.complete.set()

        return take

    async def _write(self, writers: Sequence[HttpConnection]) -> None:
        """Send each write when it is due, or as soon as a writer is free."""
        turns, begin = iter(range(self.writes)), time.perf_counter()

        async def work(wire: HttpConnection) -> None:
            for turn in turns:
                due = begin + turn / self.group.writes
                await asyncio.sleep(due - time.perf_counter())
                self.sent[turn] = time.perf_counter()
                write = calls.relabel(f"{_pods(turn % self.count)}/pod", turn)
                code, answer = await wire.call(*write)
                self.answered[turn] = time.perf_counter()
                if code != 200:
                    raise RuntimeError(f"write {turn}: {code} {answer[:300]!r}")

        await asyncio.gather(*(work(wire) for wire in writers))


def _pods(number: int) -> str:
    return f"{NAMESPACES}/space-{number}/pods"


async def _populate(access: Access, count: int) -> str:
    """Create a namespace per watcher and a pod in it, bound to a node name; return the revision."""
    await send_all(access, [calls.namespace(f"space-{n}") for n in range(count)])
    await send_all(access, [calls.pod("pod", on=f"node-{n}", path=_pods(n)) for n in range(count)])
    wire = await HttpConnection.open(access)
    _, listed = await wire.call("GET", "/api/v1/pods?limit=1")
    wire.close()
    revision: str = json.loads(listed)["metadata"]["resourceVersion"]
    return revision
