"""Nodes of our own, simulated or of processes: their Node objects, their leases, their kubelets.

They register, renew their leases, and say that they are well. What is bound to them is run by
`kubelets`, which executes nothing, or, only where that was asked for, by `processnodes`. A Node
that is there already and does not carry our annotation is somebody else's: it is left alone,
whatever it is called. A real cluster has real kubelets and never runs this.

The nodes of our own beside an API server, wherever that is, as a process of their own.

Above `nodes`, which are them, and `tenure`, which finds the server; below the command line. The
peer of `office` (the scheduler's) and `bureau` (the controllers'). Nobody is elected: whoever says
to have a node renews its lease, and no two should say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.api.annotations import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE
from phalanx.api.core import Node
from phalanx.api.errors import AlreadyExists, ApiError, NotFound, Unauthorized
from phalanx.api.kinds import LEASE_RENEWAL, NODE, Kind
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client, served_kinds
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.leadership import LeaderElectedRunner, LeaderTask, RunnerSpec
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_heartbeats import LeaseRenewer, NodeStatusReporter
from phalanx.controllers.nodes.process_kubelet import ProcessKubelets
from phalanx.controllers.nodes.simulated_kubelet import SimulatedKubelets, StageRule
from phalanx.controllers.reconcile_loop import Informers, NodeClient
from phalanx.randomness import Random

#: What a node has unless told otherwise.
DEFAULT_CAPACITY: Mapping[str, str] = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_MAX_CONCURRENT_REGISTRATIONS = 32


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node that we pretend to have, or have in a manner: `sort` says which."""

    name: str
    capacity: Mapping[str, str] = field(default_factory=lambda: DEFAULT_CAPACITY)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    node_type: str = SIMULATED_NODE_TYPE

    def manifest(self, now: str) -> Object:
        """The Node object that it registers as."""
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", **self.labels}
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": f"{self.node_type} kubelet is posting ready status",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }  # fmt: skip
        status = {
            "capacity": dict(self.capacity),
            "allocatable": dict(self.capacity),
            "conditions": [ready],
            "nodeInfo": {"kubeletVersion": f"phalanx-{self.node_type}", "operatingSystem": "linux"},
        }
        meta = {
            "name": self.name,
            "labels": labels,
            "annotations": {NODE_TYPE_ANNOTATION: self.node_type},
        }
        return {"metadata": meta, "status": status}


class HostedNodePool:
    """All these nodes of a cluster: simulated, or of processes if there is a host to run them.

    Whoever makes the Node objects otherwise only runs it. What concerns one node is asked as this
    node where `of_node` is given; `client` registers them and renews their leases together.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        nodes: Sequence[SimulatedNode],
        rules: Sequence[StageRule] = (),
        host: ProcessHost | None = None,
        node_client: NodeClient | None = None,
    ) -> None:
        self._client, self._clock, self._node_client = client, clock, node_client
        self._nodes = {node.name: node for node in nodes}
        self._kubelet: SimulatedKubelets | ProcessKubelets
        if host is None:
            self._kubelet = SimulatedKubelets(
                client, informers, clock, self._nodes, rules, node_client
            )
        else:
            self._kubelet = ProcessKubelets(
                client, informers, clock, self._nodes, host, node_client
            )
        self._status_reporter = NodeStatusReporter(
            client, informers, clock, self._nodes, node_client
        )

    async def run(self) -> None:
        """Be their kubelets until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kubelet.run())
            leases = LeaseRenewer(self._client, self._clock, self._nodes, self._node_client)
            group.create_task(leases.run())
            group.create_task(self._status_reporter.run())

    async def register(self) -> list[str]:
        """Make the Node objects, ready to be used; which names are other people's nodes."""
        foreign = await register_nodes(self._client, self._clock, list(self._nodes.values()))
        for name in foreign:
            del self._nodes[name]
        return foreign


async def register_nodes(client: Client, clock: Clock, nodes: Sequence[SimulatedNode]) -> list[str]:
    """Make the Node objects, ready to be used; which names belong to nodes that are not ours."""
    turn = asyncio.Semaphore(_MAX_CONCURRENT_REGISTRATIONS)

    async def one(node: SimulatedNode) -> bool:
        async with turn:
            return await _register_node(client, clock, node)

    ours = await asyncio.gather(*map(one, nodes))
    return [node.name for node, is_ours in zip(nodes, ours, strict=True) if not is_ours]


async def _register_node(client: Client, clock: Clock, node: SimulatedNode) -> bool:
    """Whether there is such a node of ours now."""
    try:
        await client.create(NODE, node.manifest(timestamp(clock.now())))
    except AlreadyExists:
        return await _is_ours(client, node)
    # A new node is tainted until it says that it is ready, which ours is at once.
    taints = [dict(taint) for taint in node.taints]
    await client.patch(NODE, Key("", node.name), {"spec": {"taints": taints or None}})
    return True


async def _is_ours(client: Client, node: SimulatedNode) -> bool:
    try:
        found = await client.get(NODE, Key("", node.name), Node)
    except NotFound:
        return False
    return found.metadata.annotations.get(NODE_TYPE_ANNOTATION) == node.node_type


#: Seconds between two tries to register.
_REGISTER_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class NodePoolCallbacks:
    """How it is told what is going on, and, once, that the nodes are there."""

    report: Callable[[str], None]
    on_ready: Callable[[Sequence[str]], None]


class NodePoolRunner:
    """Nodes that are there, beside a server, until they are cancelled."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        callbacks: NodePoolCallbacks,
        nodes: Sequence[SimulatedNode],
        rules: Sequence[StageRule] = (),
        host: ProcessHost | None = None,
    ) -> None:
        self._client, self._clock, self._callbacks = client, clock, callbacks
        self._nodes, self._rules, self._host = nodes, rules, host
        place = RunnerSpec(self._discover, self._build_task, {})
        self._runner = LeaderElectedRunner(client, clock, random, callbacks.report, place)

    @property
    def not_ready_reason(self) -> str:
        """Why it is not ready, if it is not."""
        return self._runner.not_ready_reason

    async def run(self) -> None:
        """Be the nodes, beside one server after another if need be."""
        await self._runner.run()

    async def drain(self) -> None:
        """Nothing is under way that could not be left where it is."""

    async def _discover(self) -> tuple[Kind, ...]:
        return tuple(await served_kinds(self._client, (LEASE_RENEWAL,)))

    def _build_task(self, capabilities: tuple[Kind, ...], informers: Informers) -> LeaderTask:
        nodes = HostedNodePool(
            self._client, informers, self._clock, self._nodes, self._rules, self._host
        )  # fmt: skip

        async def be() -> None:
            foreign = await self._register(nodes)
            for name in foreign:
                self._callbacks.report(f"node {name} is not ours: it is left alone")
            self._callbacks.on_ready([str(len(self._nodes) - len(foreign))])
            await nodes.run()

        return LeaderTask("phalanx-nodes", be)

    async def _register(self, nodes: HostedNodePool) -> list[str]:
        """Register, however often it takes; which names are other people's nodes."""
        said = ""
        while True:
            try:
                return await nodes.register()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                if str(error) != said:
                    said = str(error)
                    self._callbacks.report(f"cannot register nodes: {said}")
            await asyncio.sleep(_REGISTER_RETRY_SECONDS)
