"""JobSets: the time from sending them until all their pods are bound, and the cost of a sync.

The first runs a whole control plane and sends JobSets over TLS. The second measures, in this
process, the CPU time of a sync of a JobSet with many pods and nothing to do.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import uvloop

from benchmarks.environment import BenchmarkEnvironment, BenchmarkFailed, Result
from benchmarks.gangs import BoundPods, wait_until_bound
from benchmarks.http_client import Call, open_connections
from phalanx.api.kinds import JOB_SET
from phalanx.api.meta import Key
from phalanx.api.wire import JSON, Object, UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import WallClock
from phalanx.controllers.job_sets.controller import JobSetController
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import MASTERS
from phalanx.store.memory import MemoryStore
from tools.control_plane import Access

SETS, ROLES, PODS, NODES = 100, 4, 8, 1000
#: Seconds until all pods are bound, and the most that are waited for.
BOUND_LIMIT, LIMIT = 4.0, 120.0
#: Jobs and pods of the JobSet of a steady sync; milliseconds that a sync may take; syncs.
SYNC_JOBS, SYNC_PODS, SYNC_LIMIT, SYNCS = 4, 250, 5.0, 200
CONNECTIONS = 8


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure JobSets from POST to bound, and a steady sync."""
    sets, nodes = setting.size(SETS), setting.size(NODES)
    with setting.plane("--nodes", str(nodes)) as plane:
        seconds = uvloop.run(_measure_bound(plane.access, sets))
    name = f"{sets} JobSets of {ROLES} x {PODS} pods: bound"
    yield Result(name, seconds, "s", setting.target(BOUND_LIMIT))
    milliseconds = asyncio.run(_measure_sync(setting.size(SYNCS))) * 1000
    name = f"sync of a JobSet with {SYNC_JOBS * SYNC_PODS} pods"
    yield Result(name, milliseconds, "ms", setting.target(SYNC_LIMIT))


def _job_set(name: str, roles: int, pods: int) -> Object:
    container = {
        "name": "main", "image": "pause", "resources": {"requests": {"cpu": "100m"}},
    }  # fmt: skip
    job = {
        "parallelism": pods,
        "completions": pods,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    replicated = [{"name": f"r{at}", "template": {"spec": job}} for at in range(roles)]
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.name,
        "metadata": {"name": name},
        "spec": {"replicatedJobs": replicated},
    }


async def _measure_bound(access: Access, sets: int) -> float:
    """Return the seconds from the first POST until every pod is bound."""
    wires = await open_connections(access, CONNECTIONS)
    path = JOB_SET.url_path("default")
    requests: Iterator[Call] = (
        ("POST", path, json.dumps(_job_set(f"set-{at}", ROLES, PODS)).encode(), JSON)
        for at in range(sets)
    )

    async def send(wire: object) -> None:
        for request in requests:
            code, answer = await wire.call(*request)  # type: ignore[attr-defined]
            if code >= 300:
                raise BenchmarkFailed(f"{code} {answer[:300]!r}")

    expected, times = sets * ROLES * PODS, list[float]()
    watching = asyncio.create_task(
        wait_until_bound(access, BoundPods(expected, "set-"), times.append)
    )
    begin = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*map(send, wires))
            await watching
    except TimeoutError:
        raise BenchmarkFailed(f"not all of {expected} pods are bound after {LIMIT:.0f} s") from None
    finally:
        for wire in wires:
            wire.close()
    return times[-1] - begin


async def _measure_sync(syncs: int) -> float:
    """Return the CPU seconds of a sync of a JobSet whose Jobs exist."""
    server = Server(MemoryStore(), WallClock(), SeededRandom(1))
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("benchmark", (MASTERS,))))
    informers = Informers(client, SeededRandom(1))
    controller = JobSetController(client, informers, WallClock())
    tasks = [asyncio.create_task(run()) for run in (informers.run, controller.run)]
    job_set = _job_set("train", SYNC_JOBS, SYNC_PODS)
    job_set["metadata"]["namespace"] = "default"
    await client.create(JOB_SET, job_set)
    await asyncio.sleep(1.0)
    begin, key = time.process_time(), Key("default", "train")
    for _ in range(syncs):
        await controller.reconcile(key)
    seconds = (time.process_time() - begin) / syncs
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seconds
