"""A cluster whose server is not one of ours, schedulers that die, and a controller of pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy

import msgspec

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import GROUP_BINDING, KINDS, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object, Reply, Request, Stream
from phalanx.chance import SeededChance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess, Transport
from phalanx.controllers.loop import Informers
from phalanx.controllers.shell.scheduling import Scheduling
from phalanx.server.access import ADMIN
from phalanx.server.app import refusal
from tests.builders import gang
from tests.controllers.cluster import Cluster, cluster, machines

#: What a server knows that is not one of ours.
KNOWN = tuple(kind for kind in KINDS if kind.group != GROUP_BINDING.group)
_OWNER = {
    "apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "1-2-3", "controller": True,
}  # fmt: skip


@asynccontextmanager
async def foreign(nodes: int, **room: str) -> AsyncIterator[Cluster]:
    """Such a cluster, without any scheduler or controller."""
    without = ("scheduler", "controllers")
    async with cluster(nodes=machines(nodes, **room), without=without, kinds=KNOWN) as c:
        yield c


class Way:
    """A way to the server on which things happen: to writes, in the order they come.

    The one with the number `end` is the last: it arrives or not, no answer comes to it, and nothing
    goes either way afterwards. What `refuse` has an answer to does not arrive either.
    """

    def __init__(
        self, c: Cluster, *, end: int | None = None, arrives: bool = True,
        refuse: Callable[[Request], ApiError | None] = lambda request: None,
    ) -> None:  # fmt: skip
        self._inner = InProcess(c.plane.server.handle, ADMIN)
        self._end, self._arrives, self._refuse = end, arrives, refuse
        self.writes: list[Request] = []
        self.ended = asyncio.Event()

    async def send(self, request: Request) -> Reply | Stream:
        if self.ended.is_set():
            await asyncio.Event().wait()
        if request.method != "GET":
            await self._write(request)
        if error := self._refuse(request):
            return refusal(error)
        return await self._inner.send(request)

    async def _write(self, request: Request) -> None:
        self.writes.append(request)
        if len(self.writes) - 1 == self._end:
            self.ended.set()
            if self._arrives:
                await self._inner.send(request)
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""

    @property
    def bound(self) -> list[str]:
        """The pods of the binds that were asked for, in that order."""
        return [r.path.split("/")[-2] for r in self.writes if r.path.endswith("/binding")]


@asynccontextmanager
async def scheduler(c: Cluster, way: Transport, seed: int = 1) -> AsyncIterator[Scheduling]:
    """A scheduler that asks this way and is gone without a farewell at the end."""
    client, chance = Client(way), SeededChance(seed)
    informers = Informers(client, chance)
    shell = Scheduling(client, informers, c.clock, chance, foreign=True)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(shell.run())]
    try:
        yield shell
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [t.exception() for t in tasks if not t.cancelled()] == []


@asynccontextmanager
async def controller(c: Cluster, *pods: Object) -> AsyncIterator[None]:
    """Makes these pods, and each of them again once it is gone."""

    async def make(manifest: Object) -> None:
        key = Key("default", manifest["metadata"]["name"])
        while True:
            try:
                await c.client.get(POD, key)
            except NotFound:
                await c.create(deepcopy(manifest))
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(make(manifest)) for manifest in pods]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [t.exception() for t in tasks if not t.cancelled()] == []


def owned_gang(name: str, pods: int, cpu: str) -> list[Object]:
    """A gang whose members have a controller."""
    group, *members = gang(name, pods, cpu=cpu)
    for member in members:
        member["metadata"]["ownerReferences"] = [_OWNER]
    return [group, *members]


async def group_of(c: Cluster, name: str) -> PodGroup:
    return await c.client.get(POD_GROUP, Key("default", name), PodGroup)


async def marks(c: Cluster, annotation: str) -> dict[str, str]:
    """What an annotation says on each pod that has it."""
    pods = await c.pods()
    found = {name: pod.metadata.annotations.get(annotation, "") for name, pod in pods.items()}
    return {name: value for name, value in found.items() if value}


def binds(c: Cluster) -> list[str]:
    """The uids of the pods that got a node, once for each time that one did."""
    found = []
    for change in c.store.changes(0, POD.prefix()):
        before, after = (
            _node(side.value if side else b"") for side in (change.before, change.after)
        )
        if after[1] and before[1] != after[1]:
            found.append(after[0])
    return found


def _node(value: bytes) -> tuple[str, str]:
    pod = msgspec.json.decode(value, type=Pod) if value else None
    return (pod.metadata.uid, pod.spec.node_name) if pod else ("", "")
