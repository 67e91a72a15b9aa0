"""A cluster on a foreign server, schedulers that crash, and a controller of pods."""

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

#: The kinds of a foreign server.
FOREIGN_KINDS = tuple(kind for kind in KINDS if kind.group != GROUP_BINDING.group)
_OWNER = {
    "apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "1-2-3", "controller": True,
}  # fmt: skip


@asynccontextmanager
async def foreign_cluster(nodes: int, **capacity: str) -> AsyncIterator[Cluster]:
    """A cluster on a foreign server, without scheduler and controllers."""
    without = ("scheduler", "controllers")
    async with cluster(
        nodes=simulated_nodes(nodes, **capacity), without=without, kinds=FOREIGN_KINDS
    ) as c:
        yield c


class ScriptedTransport:
    """A transport that records writes, refuses some, and ends after a given one.

    The write number `last_write` is the last: it arrives or not, gets no answer, and every later
    request hangs. A request for which `refuse` returns an error does not arrive.
    """

    def __init__(
        self,
        c: Cluster,
        *,
        last_write: int | None = None,
        last_arrives: bool = True,
        refuse: Callable[[Request], ApiError | None] = lambda request: None,
    ) -> None:
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
        """Do nothing."""

    @property
    def bound_pods(self) -> list[str]:
        """The pods of the bind requests, in order."""
        return [r.path.split("/")[-2] for r in self.writes if r.path.endswith("/binding")]


@asynccontextmanager
async def running_scheduler(
    c: Cluster, transport: Transport, seed: int = 1
) -> AsyncIterator[Scheduler]:
    """Run a scheduler with this transport; it ends without releasing anything."""
    client, random = Client(transport), SeededRandom(seed)
    informers = Informers(client, random)
    scheduler = Scheduler(client, informers, c.clock, random=random, is_foreign=True)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(scheduler.run())]
    try:
        yield scheduler
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [t.exception() for t in tasks if not t.cancelled()] == []


@asynccontextmanager
async def pod_controller(c: Cluster, *pods: Object) -> AsyncIterator[None]:
    """Create these pods, and each of them again once it is deleted."""

    async def maintain(manifest: Object) -> None:
        key = Key("default", manifest["metadata"]["name"])
        while True:
            try:
                await c.client.get(POD, key)
            except NotFound:
                await c.create(deepcopy(manifest))
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(maintain(manifest)) for manifest in pods]
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
    """The value of an annotation by pod."""
    pods = await c.pods()
    found = {name: pod.metadata.annotations.get(annotation, "") for name, pod in pods.items()}
    return {name: value for name, value in found.items() if value}


def bound_uids(c: Cluster) -> list[str]:
    """The uid of a pod for each time that a pod got a node."""
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
