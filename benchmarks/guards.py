"""Regression guards: the number of bytecode instructions of an operation and its limit.

    python -m benchmarks.guards                     exit code 1 if anything costs a tenth more
    python -m benchmarks.guards --update-guards     store the present counts as the limits

Counts do not depend on the load or speed of the machine, so the test suite can check them. They
depend on the Python version, are taken with warm caches in virtual time, and do not include C code;
a count of bytes and the other benchmarks cover that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import api_calls as calls
from benchmarks.api_calls import PODS
from benchmarks.costs import (
    InstructionCounter,
    count_allocated_bytes,
    count_instructions,
)
from benchmarks.decisions import PlacementCase, create_cluster
from benchmarks.environment import BenchmarkEnvironment, Result
from benchmarks.http_client import Call
from phalanx.api.kinds import GROUP_BINDING, SERVICE_ACCOUNT
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.clock import LoopClock
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SeededRandom
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.sim.virtual_time import run_virtual
from phalanx.store.memory import MemoryStore

FILE = Path(__file__).with_suffix(".json")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
#: The factor by which a count may exceed the stored one.
TOLERANCE = 1.10
#: Repetitions; the last one counts, when caches are warm.
TIMES = 3
SMALL, LARGE, LISTED = 10, 100, 500
#: Seconds after which all consequences of an operation are complete.
SETTLED = 3.0
EPOCH = 1_800_000_000.0


# ---- operations ----------------------------------------------------------------------------------


async def counted(
    work: Callable[[int], Awaitable[None]],
    counting: Callable[[], AbstractContextManager[InstructionCounter]] = count_instructions,
) -> int:
    """Return the count of the last of several repetitions."""
    for number in range(TIMES):
        with counting() as tally:
            await work(number)
    return tally.count


def _clock() -> LoopClock:
    return LoopClock(asyncio.get_running_loop(), EPOCH)


class Api:
    """A server in virtual time, alone or in a control plane."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server(MemoryStore(), _clock(), SeededRandom(1))

    async def send(self, call: Call) -> bytes:
        """Send one request that must succeed."""
        method, target, body, kind = call
        path, _, query = target.partition("?")
        asked = Request(method, path, query, {"content-type": kind}, body, ADMIN)
        answer = await self.server.handle(asked)
        assert isinstance(answer, Reply), path
        assert answer.code < 300, answer.body[:300]
        return answer.body

    async def count(self, make: Callable[[int], Call]) -> int:
        """Return the instructions of a request, after similar ones."""

        async def send(number: int) -> None:
            await self.send(make(number))

        return await counted(send)

    async def watch(self, query: str, saw: Callable[[], object]) -> asyncio.Task[None]:
        """Open a watch of pods."""
        asked = Request("GET", PODS, f"watch=1&{query}", {}, b"", ADMIN)
        answer = await self.server.handle(asked)
        assert isinstance(answer, StreamReply), answer

        async def read() -> None:
            async for _ in answer.chunks:
                saw()

        return asyncio.create_task(read())


async def create_pod(api: Api) -> int:
    """Create a pod with a query, so that the server's admission cache is not used."""

    def made(number: int) -> Call:
        method, target, body, kind = calls.pod(f"pod-{number}")
        return method, f"{target}?fieldManager=guard", body, kind

    return await api.count(made)


async def create_another(api: Api) -> int:
    """Create a pod that differs from an earlier one in its name only: from the admission cache."""
    return await api.count(lambda n: calls.pod(f"pod-{n}"))


async def create_pod_with_token(_: Api) -> int:
    """Create a pod as `create_pod` does, on a server that mounts the tokens of service accounts."""
    server = Server(MemoryStore(), _clock(), SeededRandom(1), admit_service_accounts=True)
    await server.start()
    account = json.dumps({"metadata": {"name": "default"}}).encode()
    api = Api(server)
    await api.send(("POST", SERVICE_ACCOUNT.url_path("default"), account, "application/json"))
    return await create_pod(api)


async def patch_pod(api: Api) -> int:
    """Patch a label of a pod."""
    await api.send(calls.pod("pod"))
    return await api.count(lambda n: calls.relabel(f"{PODS}/pod", n))


async def get_pod(api: Api) -> int:
    """Read a pod."""
    await api.send(calls.pod("pod"))
    return await api.count(lambda _: calls.get(f"{PODS}/pod"))


async def list_pods(api: Api) -> int:
    """List a page of pods."""
    for number in range(LISTED):
        await api.send(calls.pod(f"pod-{number}"))
    return await api.count(lambda _: calls.get(f"{PODS}?limit={LISTED}"))


async def bind_group(api: Api) -> int:
    """Bind a gang."""
    nodes = [f"node-{n}" for n in range(LARGE)]
    for node in nodes:
        await api.send(calls.node(node))
    groups = []
    for gang in range(TIMES):
        pods = [json.loads(await api.send(calls.pod(f"{gang}-{n}"))) for n in range(LARGE)]
        groups.append(_group_binding(pods, nodes))
    return await api.count(lambda n: groups[n])


async def decide_gang(_: Api) -> int:
    """Place and assume a gang: the decision alone, without a server."""
    cache, gangs = create_cluster(PlacementCase(LARGE, TIMES, LARGE, None))

    async def place(number: int) -> None:
        decision = decide(gangs[number], cache.snapshot(), DEFAULT_POLICY)
        assert isinstance(decision, Placed), decision
        cache.assume(decision.bindings)

    return await counted(place)


async def submit_gang(_: Api) -> int:
    """Create a gang and wait until it is observed, decided, bound and reported."""
    plane = ControlPlane(MemoryStore(), _clock(), SeededRandom(1))
    api = Api(plane.server)

    async def bring(number: int) -> None:
        group = f"gang-{number}"
        await api.send(calls.pod_group(group, SMALL))
        for pod in range(SMALL):
            await api.send(calls.pod(f"{group}-{pod}", group=group))
        await asyncio.sleep(SETTLED)

    async with plane.running():
        for node in range(LARGE):
            await api.send(calls.node(f"node-{node}"))
            await api.send(calls.remove_taints(f"node-{node}"))
        await asyncio.sleep(SETTLED)
        return await counted(bring)


async def watch_matching(api: Api) -> int:
    """Create a pod that all watchers see."""
    return await _watched(api, "", LARGE)


async def watch_filtered(api: Api) -> int:
    """Create a pod that no watcher selects."""
    return await _watched(api, "fieldSelector=spec.nodeName%3Delsewhere", 0)


async def keep_pods(api: Api) -> int:
    """Create pods; return the bytes that stay allocated, history included."""

    async def create(number: int) -> None:
        for pod in range(LARGE):
            await api.send(calls.pod(f"pod-{number}-{pod}"))

    return await counted(create, count_allocated_bytes)


#: Operations by name; counts are instructions unless the name says otherwise.
GUARDS: Mapping[str, Callable[[Api], Awaitable[int]]] = {
    "create a pod": create_pod,
    "create a pod with a token": create_pod_with_token,
    "create another like it": create_another,
    "patch a pod": patch_pod,
    "get a pod": get_pod,
    f"list {LISTED} pods": list_pods,
    f"bind a gang of {LARGE}": bind_group,
    f"decide a gang of {LARGE}": decide_gang,
    f"bring a gang of {SMALL} to its nodes": submit_gang,
    f"create a pod that {LARGE} watchers see": watch_matching,
    f"create a pod that {LARGE} watchers do not want": watch_filtered,
    f"bytes that {LARGE} pods take": keep_pods,
}


async def _watched(api: Api, query: str, expected: int) -> int:
    """Return the instructions of a create and of its delivery to watchers."""
    seen = asyncio.Semaphore(0)
    watches = [await api.watch(query, seen.release) for _ in range(LARGE)]

    async def create(number: int) -> None:
        await api.send(calls.pod(f"pod-{number}"))
        for _ in range(expected):
            await seen.acquire()

    count = await counted(create)
    for watch in watches:
        watch.cancel()
    return count


def _group_binding(pods: list[Any], nodes: list[str]) -> Call:
    rows = [
        {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "node": node}
        for pod, node in zip(pods, nodes, strict=True)
    ]
    body = {"apiVersion": GROUP_BINDING.api_version, "kind": GROUP_BINDING.name, "bindings": rows}
    return "POST", GROUP_BINDING.url_path("default"), json.dumps(body).encode(), "application/json"


# ---- comparing -----------------------------------------------------------------------------------


def count(name: str) -> int:
    """Return the present count of an operation."""

    async def work() -> int:
        api = Api()
        await api.server.start()
        return await GUARDS[name](api)

    return run_virtual(work)


def limits() -> dict[str, int]:
    """Return the limits for this Python version; empty if none are stored."""
    known: dict[str, int] = _recorded().get(PYTHON, {})
    return {name: int(taken * TOLERANCE) for name, taken in known.items()}


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Compare every count with its limit."""
    allowed = limits()
    for name in GUARDS:
        yield Result(name, count(name), "counted", allowed.get(name))


def _recorded() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def main() -> int:
    """Compare the counts, or store the present ones."""
    parser = argparse.ArgumentParser(prog="benchmarks.guards", description=__doc__.split("\n\n")[0])
    parser.add_argument("--update-guards", action="store_true", help=f"rewrite {FILE.name}")
    counts = {name: count(name) for name in GUARDS}
    if parser.parse_args().update_guards:
        FILE.write_text(json.dumps({**_recorded(), PYTHON: counts}, indent=2) + "\n")
    allowed = limits()
    results = [Result(name, n, "counted", allowed.get(name)) for name, n in counts.items()]
    for result in results:
        print(result.line())
    return 1 if any(result.mark == "slow" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
