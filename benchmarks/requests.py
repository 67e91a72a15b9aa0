"""The cost of requests over HTTPS: durable writes, reads and lists, by 1, 8 and 64 clients.

Clients are connections of this process with one request at a time each; the server is another
process that runs the API alone. Its CPU time per request includes all its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvloop

from benchmarks import api_calls as calls
from benchmarks.api_calls import PODS
from benchmarks.costs import CpuUsage, measure_cpu
from benchmarks.environment import (
    MEMORY,
    WITHOUT_COMPONENTS,
    BenchmarkEnvironment,
    Result,
    percentile,
)
from benchmarks.http_client import Call, open_connections, send_over
from tools.control_plane import ControlPlane

CLIENTS = (1, 8, 64)


@dataclass(frozen=True, slots=True)
class RequestCase:
    """One kind of request, its number per number of clients, and its targets.

    `call` builds a request. Targets are for the largest number of clients: requests per second, and
    milliseconds for 99 % of them.
    """

    name: str
    counts: tuple[int, int, int]
    call: Callable[[int, int], Call]
    rate: float | None = None
    limit_ms: float | None = None


def _name(number: int, pods: int) -> str:
    return f"{PODS}/pod-{number % pods}"


#: In this order: later cases use the pods that the first one creates.
REQUEST_CASES = (
    RequestCase("create", (500, 1_500, 3_000), lambda n, _: calls.pod(f"pod-{n}"), 1_500, 50),
    RequestCase(
        "patch", (500, 1_500, 3_000), lambda n, m: calls.relabel(_name(n, m), n), 1_500, 50
    ),
    RequestCase("get", (1_000, 4_000, 8_000), lambda n, m: calls.get(_name(n, m))),
    RequestCase("list 500", (50, 100, 200), lambda *_: calls.get(f"{PODS}?limit=500")),
    RequestCase("list all", (10, 20, 60), lambda *_: calls.get(PODS)),
)


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure every kind of request, and the flush time of the disk."""
    if setting.data != MEMORY:
        yield Result("flush of 4 KiB to disk", setting.flush_milliseconds(), "ms")
    with setting.plane(*WITHOUT_COMPONENTS) as plane:
        pods = sum(setting.size(count) for count in REQUEST_CASES[0].counts)
        for work in REQUEST_CASES:
            number = 0
            for clients, count in zip(CLIENTS, work.counts, strict=True):
                size = setting.size(count)
                asked = [work.call(n, pods) for n in range(number, number + size)]
                number += size
                seconds, spent = _send_requests(plane, asked, clients)
                yield from _results(setting, work, clients, seconds=seconds, spent=spent)


def _send_requests(
    plane: ControlPlane, asked: list[Call], clients: int
) -> tuple[list[float], CpuUsage]:
    """Return the seconds of each request, and the usage of all together."""

    async def run() -> tuple[list[float], CpuUsage]:
        wires = await open_connections(plane.access, clients)
        with measure_cpu(plane.pid) as spent:
            seconds = await send_over(wires, asked)
        for wire in wires:
            wire.close()
        return seconds, spent

    return uvloop.run(run())


def _results(
    setting: BenchmarkEnvironment,
    work: RequestCase,
    clients: int,
    *,
    seconds: list[float],
    spent: CpuUsage,
) -> Iterator[Result]:
    is_most = clients == CLIENTS[-1]
    name = f"{work.name}, {clients} client{'s' * (clients > 1)}"
    p99 = percentile(seconds, 99) * 1000
    beside = {
        "p50 ms": percentile(seconds, 50) * 1000,
        "p99 ms": p99,
        "server us": spent.server / len(seconds) * 1e6,
        "server %": spent.server / spent.wall * 100,
        "driver %": spent.driver_share,
    }
    rate = setting.target(work.rate) if is_most else None
    yield Result(name, len(seconds) / spent.wall, "/s", rate, at_least=True, beside=beside)
    if is_most and work.limit_ms:
        yield Result(f"{name}, 99 % within", p99, "ms", setting.target(work.limit_ms))
