"""A control plane in virtual time, and a user of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.core import Node, Pod
from phalanx.api.errors import NotFound
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates
from phalanx.api.kinds import EVENT, KINDS, NODE, POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, Key, find_condition
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.builder.ownership import SCHEDULING_PARENTS
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.scheduling.exact_solver import AsyncSolver
from phalanx.randomness import SeededRandom
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.server.security.authorization import ADMIN
from phalanx.sim.invariants import InvariantAuditor, check_cluster
from phalanx.sim.timeline import ApiObserver
from phalanx.store.memory import MemoryStore

#: The start of virtual time: 2027-01-15T08:00:00Z.
EPOCH = 1_800_000_000.0
KIND_OF = {kind.name: kind for kind in STORED_KINDS}


class Cluster:
    """A running control plane and the requests of a user."""

    def __init__(self, plane: ControlPlane, store: MemoryStore, clock: LoopClock) -> None:
        self.plane, self.store, self.clock = plane, store, clock
        self.client = plane.client("user")

    async def create(self, *objects: Object) -> None:
        for obj in objects:
            await self.client.create(KIND_OF[obj["kind"]], obj)

    async def add_node(self, node: Object) -> None:
        """Create a ready node: removes the taint that admission adds."""
        await self.create(node)
        key = Key("", node["metadata"]["name"])
        await self.client.patch(NODE, key, {"spec": {"taints": None}})

    async def bind(self, pod: str, node: str, namespace: str = "default") -> None:
        """Bind a pod without a scheduler."""
        path = POD.url_path(namespace, pod, "binding")
        await self.client.post(path, {"target": {"kind": "Node", "name": node}})

    async def delete(self, kind: Kind, name: str, namespace: str = "default") -> None:
        await self.client.delete(kind, Key(namespace if kind.namespaced else "", name))

    async def pods(self) -> dict[str, Pod]:
        found = (await self.client.list(POD, Pod)).items
        return {pod.metadata.name: pod for pod in found}

    async def node_by_pod(self) -> dict[str, str]:
        """The node of each bound pod."""
        pods = await self.pods()
        return {name: pod.spec.node_name for name, pod in pods.items() if pod.spec.node_name}

    async def pod_condition(self, name: str) -> Condition | None:
        pod = await self.client.get(POD, Key("default", name), Pod)
        return find_condition(pod.status.conditions, "PodScheduled")

    async def group_condition(self, name: str, kind: str) -> Condition | None:
        group = await self.client.get(POD_GROUP, Key("default", name), PodGroup)
        return find_condition(group.status.conditions, kind)

    async def events(self, reason: str) -> list[tuple[str, str]]:
        """Object names and messages of the events with a reason, sorted."""
        found = (await self.client.list(EVENT)).items
        return sorted(
            (event["involvedObject"]["name"], event["message"])
            for event in found
            if event["reason"] == reason
        )

    async def violations(self) -> list[str]:
        """Violated invariants."""
        nodes = (await self.client.list(NODE, Node)).items
        try:
            groups = (await self.client.list(POD_GROUP, PodGroup)).items
        except NotFound:
            groups = ()
        return check_cluster((await self.pods()).values(), nodes, groups)

    async def until(self, is_true: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> float:
        """Wait for a condition; returns the seconds that this took."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while not await is_true():
            assert loop.time() - begin < seconds, "the condition did not become true in time"
            await asyncio.sleep(0.01)
        return loop.time() - begin

    async def until_placed(self, *pods: str, seconds: float = 60.0) -> float:
        async def are_placed() -> bool:
            return set(pods) <= set(await self.node_by_pod())

        return await self.until(are_placed, seconds)


@asynccontextmanager
async def cluster(
    *,
    nodes: Sequence[SimulatedNode] = (),
    without: Collection[str] = (),
    latency: Callable[[], float] | None = None,
    kinds: Sequence[Kind] = KINDS,
    profiles: Profiles = DEFAULT_PROFILES,
    gates: FeatureGates = DEFAULT_GATES,
    solver: AsyncSolver | None = None,
    raise_errors: bool = True,
    workload_parents: frozenset[tuple[str, str]] = SCHEDULING_PARENTS,
) -> AsyncIterator[Cluster]:
    """Run a control plane while the context lasts; at its end all invariants must hold."""
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    store = MemoryStore(latency)
    config = ComponentConfig(
        nodes,
        without,
        gates,
        profiles,
        kinds,
        solver=solver,
        raise_errors=raise_errors,
        workload_parents=workload_parents,
    )
    plane = ControlPlane(store, clock, SeededRandom(1), config)
    async with plane.running():
        found = Cluster(plane, store, clock)
        yield found
        assert await found.violations() == []


@asynccontextmanager
async def audit_transactions(c: Cluster) -> AsyncIterator[None]:
    """Check the invariants after every transaction."""
    observer = ApiObserver(c.plane.client("auditor"))
    auditor = InvariantAuditor(observer.pods, observer.nodes, observer.groups)
    violations: list[str] = []
    observer.on_batch.append(lambda revision: violations.extend(auditor.audit()))
    observing = asyncio.create_task(observer.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        observing.cancel()
        await asyncio.gather(observing, return_exceptions=True)
    assert violations == []
    assert len(observer.pods) == len(await c.pods())


def simulated_nodes(count: int, **capacity: str) -> list[SimulatedNode]:
    """Simulated nodes n0, n1, …"""
    return [SimulatedNode(f"n{n}", {"pods": "110", **capacity}) for n in range(count)]


class LaggingTransport:
    """A transport that delays watch events and records requests."""

    def __init__(self, plane: ControlPlane, lag: float = 0.0) -> None:
        self._inner, self._lag = InProcessTransport(plane.server.handle, ADMIN), lag
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        self.requests.append(request)
        answer = await self._inner.send(request)
        if isinstance(answer, Reply) or not self._lag:
            return answer
        return StreamReply(answer.code, self._delay(answer.chunks))

    async def close(self) -> None:
        """Do nothing."""

    async def _delay(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def receive() -> None:
            async with aclosing(chunks):
                async for chunk in chunks:
                    queue.put_nowait((loop.time() + self._lag, chunk))
            queue.put_nowait((loop.time() + self._lag, b""))

        receiver = asyncio.create_task(receive())
        try:
            while True:
                due, chunk = await queue.get()
                await asyncio.sleep(due - loop.time())
                if not chunk:
                    return
                yield chunk
        finally:
            receiver.cancel()


def lagging_client(cluster: Cluster, lag: float = 0.0) -> tuple[Client, LaggingTransport]:
    """A client with such a transport, and the transport."""
    transport = LaggingTransport(cluster.plane, lag)
    return Client(transport), transport


class HeldTransport:
    """A transport that can hold back the list and watch of one kind."""

    def __init__(self, c: Cluster, kind: Kind) -> None:
        self._inner, self._path = InProcessTransport(c.plane.server.handle, ADMIN), kind.url_path()
        self.is_flowing = asyncio.Event()
        self.is_flowing.set()

    async def send(self, request: Request) -> Reply | StreamReply:
        answer = await self._inner.send(request)
        if request.path != self._path:
            return answer
        if isinstance(answer, StreamReply):
            return StreamReply(answer.code, self._hold(answer.chunks))
        await self.is_flowing.wait()
        return answer

    async def _hold(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks):
            async for chunk in chunks:
                await self.is_flowing.wait()
                yield chunk

    async def close(self) -> None:
        """Do nothing."""
