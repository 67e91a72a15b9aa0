"""Nodes of our own, simulated or of processes: their Node objects, their leases, their kubelets.

They register, renew their leases, and say that they are well. What is bound to them is run by
`kubelets`, which executes nothing, or, only where that was asked for, by `processnodes`. A Node
that is there already and does not carry our annotation is somebody else's: it is left alone,
whatever it is called. A real cluster has real kubelets and never runs this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.api.core import Node
from phalanx.api.errors import AlreadyExists, NotFound
from phalanx.api.kinds import NODE
from phalanx.api.meta import Key, timestamp
from phalanx.api.nodesorts import NODE_SORT, SIMULATED
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers, NodeClient
from phalanx.controllers.nodes.kubelets import Kubelets
from phalanx.controllers.nodes.leases import Leases
from phalanx.controllers.nodes.processes import Host
from phalanx.controllers.nodes.processnodes import ProcessNodes
from phalanx.controllers.nodes.recovery import Recovery
from phalanx.controllers.nodes.stages import Rule

#: What a node has unless told otherwise.
SHAPE: Mapping[str, str] = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_REGISTERING = 32


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node that we pretend to have, or have in a manner: `sort` says which."""

    name: str
    room: Mapping[str, str] = field(default_factory=lambda: SHAPE)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    sort: str = SIMULATED

    def manifest(self, now: str) -> Object:
        """The Node object that it registers as."""
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", **self.labels}
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": f"{self.sort} kubelet is posting ready status",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }  # fmt: skip
        status = {
            "capacity": dict(self.room), "allocatable": dict(self.room), "conditions": [ready],
            "nodeInfo": {"kubeletVersion": f"phalanx-{self.sort}", "operatingSystem": "linux"},
        }  # fmt: skip
        meta = {"name": self.name, "labels": labels, "annotations": {NODE_SORT: self.sort}}
        return {"metadata": meta, "status": status}


class Nodes:
    """All these nodes of a cluster: simulated, or of processes if there is a host to run them.

    Whoever makes the Node objects otherwise only runs it. What concerns one node is asked as this
    node where `of_node` is given; `client` registers them and renews their leases together.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, nodes: Sequence[SimulatedNode],
        rules: Sequence[Rule] = (), host: Host | None = None, of_node: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._of_node = client, clock, of_node
        self._nodes = {node.name: node for node in nodes}
        self._kubelets: Kubelets | ProcessNodes
        if host is None:
            self._kubelets = Kubelets(client, informers, clock, self._nodes, rules, of_node)
        else:
            self._kubelets = ProcessNodes(client, informers, clock, self._nodes, host, of_node)
        self._recovery = Recovery(client, informers, clock, self._nodes, of_node)

    async def run(self) -> None:
        """Be their kubelets until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kubelets.run())
            leases = Leases(self._client, self._clock, self._nodes, self._of_node)
            group.create_task(leases.run())
            group.create_task(self._recovery.run())

    async def register(self) -> list[str]:
        """Make the Node objects, ready to be used; which names are other people's nodes."""
        foreign = await register(self._client, self._clock, list(self._nodes.values()))
        for name in foreign:
            del self._nodes[name]
        return foreign


async def register(client: Client, clock: Clock, nodes: Sequence[SimulatedNode]) -> list[str]:
    """Make the Node objects, ready to be used; which names belong to nodes that are not ours."""
    turn = asyncio.Semaphore(_REGISTERING)

    async def one(node: SimulatedNode) -> bool:
        async with turn:
            return await _registered(client, clock, node)

    ours = await asyncio.gather(*map(one, nodes))
    return [node.name for node, is_ours in zip(nodes, ours, strict=True) if not is_ours]


async def _registered(client: Client, clock: Clock, node: SimulatedNode) -> bool:
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
    return found.metadata.annotations.get(NODE_SORT) == node.sort
