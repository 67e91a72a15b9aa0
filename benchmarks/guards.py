"""Regression guards: how many instructions a piece of work takes, beside how many it took.

    python -m benchmarks.guards                     exit code 1 if anything costs a tenth more
    python -m benchmarks.guards --update-guards     take the present counts as what is right

Neither the load of the machine nor its speed changes a count, so this can stand in the test suite
where a stopwatch cannot. Counts are of one version of Python, with caches warm, in virtual time,
and do not see what C code does; for that there is a count of bytes, and the other benchmarks.
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
from benchmarks.instruction_counts import (
    InstructionCounter,
    count_allocated_bytes,
    count_instructions,
)
from benchmarks.decisions import PlacementCase, create_cluster
from benchmarks.result import Result
from benchmarks.environment import BenchmarkEnvironment
from benchmarks.http_client import Call
from phalanx.api.kinds import GROUP_BINDING
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
#: How much more than it took something may take.
TOLERANCE = 1.10
#: How often the same is done; the last time counts, when caches (and the tracing) are warm.
TIMES = 3
SMALL, LARGE, LISTED = 10, 100, 500
#: Seconds after which everything is done that something leads to.
SETTLED = 3.0
EPOCH = 1_800_000_000.0


# ---- what is counted -----------------------------------------------------------------------------


async def counted(
    work: Callable[[int], Awaitable[None]],
    counting: Callable[[], AbstractContextManager[InstructionCounter]] = count_instructions,
) -> int:
    """What a piece of work takes that is done several times."""
    for number in range(TIMES):
        with counting() as tally:
            await work(number)
    return tally.count


def _clock() -> LoopClock:
    return LoopClock(asyncio.get_running_loop(), EPOCH)


class Api:
    """A server in virtual time, with nothing around it unless one is given that has."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server(MemoryStore(), _clock(), SeededRandom(1))

    async def send(self, call: Call) -> bytes:
        """One request that must succeed."""
        method, target, body, kind = call
        path, _, query = target.partition("?")
        asked = Request(method, path, query, {"content-type": kind}, body, ADMIN)
        answer = await self.server.handle(asked)
        assert isinstance(answer, Reply), path
        assert answer.code < 300, answer.body[:300]
        return answer.body

    async def count(self, make: Callable[[int], Call]) -> int:
        """Instructions of a request, after others like it."""

        async def send(number: int) -> None:
            await self.send(make(number))

        return await counted(send)

    async def watch(self, query: str, saw: Callable[[], object]) -> asyncio.Task[None]:
        """Follow pods from now on."""
        asked = Request("GET", PODS, f"watch=1&{query}", {}, b"", ADMIN)
        answer = await self.server.handle(asked)
        assert isinstance(answer, StreamReply), answer

        async def read() -> None:
            async for _ in answer.chunks:
                saw()

        return asyncio.create_task(read())


async def create_pod(api: Api) -> int:
    """A pod is created that nothing is known of, by somebody who says so."""

    def made(number: int) -> Call:
        method, target, body, kind = calls.pod(f"pod-{number}")
        return method, f"{target}?fieldManager=guard", body, kind

    return await api.count(made)


async def create_another(api: Api) -> int:
    """A pod is created that differs in its name alone from one before it."""
    return await api.count(lambda n: calls.pod(f"pod-{n}"))


async def patch_pod(api: Api) -> int:
    """A label of a pod is changed."""
    await api.send(calls.pod("pod"))
    return await api.count(lambda n: calls.relabel(f"{PODS}/pod", n))


async def get_pod(api: Api) -> int:
    """A pod is read."""
    await api.send(calls.pod("pod"))
    return await api.count(lambda _: calls.get(f"{PODS}/pod"))


async def list_pods(api: Api) -> int:
    """A page of pods is read."""
    for number in range(LISTED):
        await api.send(calls.pod(f"pod-{number}"))
    return await api.count(lambda _: calls.get(f"{PODS}?limit={LISTED}"))


async def bind_group(api: Api) -> int:
    """A gang is bound."""
    nodes = [f"node-{n}" for n in range(LARGE)]
    for node in nodes:
        await api.send(calls.node(node))
    groups = []
    for gang in range(TIMES):
        pods = [json.loads(await api.send(calls.pod(f"{gang}-{n}"))) for n in range(LARGE)]
        groups.append(_group_binding(pods, nodes))
    return await api.count(lambda n: groups[n])


async def decide_gang(_: Api) -> int:
    """A gang is placed, and counted as placed: decisions alone, without a server."""
    cache, gangs = create_cluster(PlacementCase(LARGE, TIMES, LARGE, None))

    async def place(number: int) -> None:
        decision = decide(gangs[number], cache.snapshot(), DEFAULT_POLICY)
        assert isinstance(decision, Placed), decision
        cache.assume(decision.bindings)

    return await counted(place)


async def submit_gang(_: Api) -> int:
    """A gang goes all the way: created, seen by every part, decided, bound and told of."""
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
    """A pod is created, and everybody who watches sees it."""
    return await _watched(api, "", LARGE)


async def watch_filtered(api: Api) -> int:
    """A pod is created that nobody who watches wants to see."""
    return await _watched(api, "fieldSelector=spec.nodeName%3Delsewhere", 0)


async def keep_pods(api: Api) -> int:
    """Pods are created: the bytes that stay, history included."""

    async def create(number: int) -> None:
        for pod in range(LARGE):
            await api.send(calls.pod(f"pod-{number}-{pod}"))

    return await counted(create, count_allocated_bytes)


#: In instructions, but for what says otherwise.
GUARDS: Mapping[str, Callable[[Api], Awaitable[int]]] = {
    "create a pod": create_pod,
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
    """Instructions of a create and of all that is done for those who watch."""
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
    """How many instructions a piece of work takes now."""

    async def work() -> int:
        api = Api()
        await api.server.start()
        return await GUARDS[name](api)

    return run_virtual(work)


def limits() -> dict[str, int]:
    """How many each may take with this version of Python; nothing if none were taken with it."""
    known: dict[str, int] = _recorded().get(PYTHON, {})
    return {name: int(taken * TOLERANCE) for name, taken in known.items()}


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Every count beside its limit."""
    allowed = limits()
    for name in GUARDS:
        yield Result(name, count(name), "counted", allowed.get(name))


def _recorded() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def main() -> int:
    """Compare, or take the present counts as what is right."""
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
