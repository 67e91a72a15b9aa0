"""Start-up time, memory, and CPU time of an idle control plane."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from benchmarks import api_calls as calls
from benchmarks.api_calls import NODES, PODS
from benchmarks.costs import cpu_seconds, resident_megabytes
from benchmarks.environment import READY_LIMIT, BenchmarkEnvironment, Result
from benchmarks.http_client import Call, HttpConnection, send_all
from phalanx.api.wire import Reply, Request
from phalanx.clock import WallClock
from phalanx.randomness import SystemRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.store.sqlite import SqliteStore
from tools.control_plane import Access, ControlPlane

CLUSTER_NODES, CLUSTER_PODS = 5_000, 50_000
STARTS, QUICK_STARTS = 5, 1
#: Objects that a control plane loads at start.
FOUND_NODES, FOUND_PODS = 5_000, 45_000
#: Seconds to wait until a control plane is idle, and to observe it.
REST_SECONDS, QUICK_REST = 10.0, 1.0
IDLE_SECONDS, QUICK_IDLE = 20.0, 2.0
#: Concurrent requests while a cluster is filled.
CONNECTIONS = 64
#: Seconds between checks whether all pods run.
POLL_INTERVAL = 2.0


# ---- start ---------------------------------------------------------------------------------------


def start(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the time from process start to the ready line, and from SIGTERM to the end."""
    seconds, sizes, stops = [], [], []
    for _ in range(QUICK_STARTS if setting.is_quick else STARTS):
        with setting.plane("--nodes", "0") as plane:
            seconds.append(plane.seconds_to_ready)
            time.sleep(QUICK_REST)
            sizes.append(resident_megabytes(plane.pid))
            plane.stop()
            stops.append(plane.seconds_to_stop)
    yield Result("start to ready", statistics.median(seconds), "s", 1.0, 3.3)
    yield Result("signal to end", max(stops), "s", 2.0)
    yield Result("idle memory", statistics.median(sizes), "MB", 120, 560)
    yield _start_with_objects(setting)


def _start_with_objects(setting: BenchmarkEnvironment) -> Result:
    nodes, pods = setting.size(FOUND_NODES, 50), setting.size(FOUND_PODS, 50)
    made = [calls.node(f"node-{n}") for n in range(nodes)]
    made += [calls.pod(f"pod-{n}", on=f"node-{n % nodes}") for n in range(pods)]
    options = ("--nodes", "0")
    with setting.folder() as folder:
        uvloop.run(fill_store(folder, made))
        with ControlPlane("--data", str(folder), *options, limit=READY_LIMIT) as plane:
            ready = plane.seconds_to_ready
            begin = time.perf_counter()
            uvloop.run(_ask(plane.access, f"{NODES}/node-0"))
            first = time.perf_counter() - begin
            worked = cpu_seconds(plane.pid)
            beside = {
                "server s": worked,
                "s to first answer": first,
                "MB": resident_megabytes(plane.pid),
            }
    return Result(f"start to ready, {nodes + pods:,} objects", ready, "s", beside=beside)


async def fill_store(folder: Path, made: Sequence[Call]) -> None:
    """Fill a store through a server in this process."""
    store = SqliteStore(folder)
    server, turn = Server(store, WallClock(), SystemRandom()), iter(made)
    await server.start()

    async def work() -> None:
        for method, path, body, kind in turn:
            asked = Request(method, path, "", {"content-type": kind}, body, ADMIN)
            reply = await server.handle(asked)
            assert isinstance(reply, Reply), path
            assert reply.code == 201, reply.body

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    await store.close()


# ---- memory --------------------------------------------------------------------------------------


def memory(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the memory of one process with all nodes and running pods."""
    nodes, pods = setting.size(CLUSTER_NODES), setting.size(CLUSTER_PODS, 50)
    with setting.plane("--nodes", str(nodes)) as plane:
        before = resident_megabytes(plane.pid)
        begin = time.perf_counter()
        made = [calls.pod(f"pod-{n}") for n in range(pods)]
        uvloop.run(send_all(plane.access, made, CONNECTIONS))
        while _is_busy(plane.access):
            time.sleep(POLL_INTERVAL)
        seconds = time.perf_counter() - begin
        beside = {"MB with nodes alone": before, "s until all ran": seconds}
        name = f"memory, {nodes:,} nodes and {pods:,} pods"
        yield Result(name, resident_megabytes(plane.pid), "MB", setting.target(600), beside=beside)


def _is_busy(access: Access) -> bool:
    """Whether a pod does not run yet."""
    waiting = f"{PODS}?fieldSelector=status.phase!%3DRunning&limit=1"
    return bool(json.loads(uvloop.run(_ask(access, waiting)))["items"])


async def _ask(access: Access, path: str) -> bytes:
    wire = await HttpConnection.open(access)
    code, answer = await wire.call("GET", path)
    wire.close()
    assert code == 200, answer
    return answer


# ---- idle ----------------------------------------------------------------------------------------


def idle(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the cost of idle simulated nodes, which renew their leases."""
    nodes = setting.size(CLUSTER_NODES)
    rest, seconds = (QUICK_REST, QUICK_IDLE) if setting.is_quick else (REST_SECONDS, IDLE_SECONDS)
    with setting.plane("--nodes", str(nodes)) as plane:
        time.sleep(rest)
        begin, worked = time.perf_counter(), cpu_seconds(plane.pid)
        time.sleep(seconds)
        share = (cpu_seconds(plane.pid) - worked) / (time.perf_counter() - begin) * 100
        beside = {"MB": resident_megabytes(plane.pid), "s to ready": plane.seconds_to_ready}
    name, target = f"idle, {nodes:,} simulated nodes", setting.target(10)
    yield Result(name, share, "% of a core", target, beside=beside)
