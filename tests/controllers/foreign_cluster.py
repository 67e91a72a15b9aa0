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
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport, Transport
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import SeededRandom
from phalanx.server.app import error_reply
from phalanx.server.security.authorization import ADMIN
from tests.builders import gang
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

#: What a server knows that is not one of ours.
FOREIGN_KINDS = tuple(kind for kind in KINDS if kind.group != GROUP_BINDING.group)
_OWNER = {
    "apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "1-2-3", "controller": True,
}  # fmt: skip


@asynccontextmanager
async def foreign_cluster(nodes: int, **room: str) -> AsyncIterator[Cluster]:
    """Such a cluster, without any scheduler or controller."""
    without = ("scheduler", "controllers")
    async with cluster(
        nodes=simulated_nodes(nodes, **room), without=without, kinds=FOREIGN_KINDS
    ) as c:
        yield c


class ScriptedTransport:
    """A way to the server on which things happen: to writes, in the order they come.

    The one with the number `end` is the last: it arrives or not, no answer comes to it, and nothing
    goes either way afterwards. What `refuse` has an answer to does not arrive either.
    """

    def __init__(
        self, c: Cluster, *, last_write: int | None = None, last_arrives: bool = True,
        refuse: Callable[[Request], ApiError | None] = lambda request: None,
    ) -> None:  # fmt: skip
        self._inner = InProcessTransport(c.plane.server.handle, ADMIN)
        self._last_write, self._last_arrives, self._refuse = last_write, last_arrives, refuse
        self.writes: list[Request] = []
        self.ended = asyncio.Event()

    async def send(self, request: Request) -> Reply | StreamReply:
        if self.ended.is_set():
            await asyncio.Event().wait()
        if request.method != "GET":
            await self._write(request)
        if error := self._refuse(request):
            return error_reply(error)
        return await self._inner.send(request)

    async def _write(self, request: Request) -> None:
        self.writes.append(request)
        if len(self.writes) - 1 == self._last_write:
            self.ended.set()
            if self._last_arrives:
                await self._inner.send(request)
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""

    @property
    def bound_pods(self) -> list[str]:
        """The pods of the binds that were asked for, in that order."""
        return [r.path.split("/")[-2] for r in self.writes if r.path.endswith("/binding")]


@asynccontextmanager
async def running_scheduler(
    c: Cluster, transport: Transport, seed: int = 1
) -> AsyncIterator[Scheduler]:
    """A scheduler that asks this way and is gone without a farewell at the end."""
    client, chance = Client(transport), SeededRandom(seed)
    informers = Informers(client, chance)
    shell = Scheduler(client, informers, c.clock, chance, is_foreign=True)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(shell.run())]
    try:
        yield shell
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [t.exception() for t in tasks if not t.cancelled()] == []


@asynccontextmanager
async def pod_controller(c: Cluster, *pods: Object) -> AsyncIterator[None]:
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


async def annotation_values(c: Cluster, annotation: str) -> dict[str, str]:
    """What an annotation says on each pod that has it."""
    pods = await c.pods()
    found = {name: pod.metadata.annotations.get(annotation, "") for name, pod in pods.items()}
    return {name: value for name, value in found.items() if value}


def bound_uids(c: Cluster) -> list[str]:
    """The uids of the pods that got a node, once for each time that one did."""
    found = []
    for change in c.store.changes(0, POD.store_prefix()):
        before, after = (
            _uid_and_node(side.value if side else b"") for side in (change.before, change.after)
        )
        if after[1] and before[1] != after[1]:
            found.append(after[0])
    return found


def _uid_and_node(value: bytes) -> tuple[str, str]:
    pod = msgspec.json.decode(value, type=Pod) if value else None
    return (pod.metadata.uid, pod.spec.node_name) if pod else ("", "")
