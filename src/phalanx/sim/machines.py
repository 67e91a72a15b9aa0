"""The nodes of a scenario, which come and go: Node objects and their simulated kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from phalanx.api.core import Node, Pod, Taint
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Delete, perform
from phalanx.controllers.loop import Informers
from phalanx.controllers.nodes.nodes import Nodes, SimulatedNode
from phalanx.sim.events import Machine


class Machines:
    """Registers nodes as they come and runs their kubelets while `run` runs."""

    def __init__(self, client: Client, clock: Clock, chance: Chance) -> None:
        self._client, self._clock = client, clock
        self._informers = Informers(client, chance)
        self._informers.of(POD, Pod)
        self._informers.of(NODE, Node)
        self._arrivals: asyncio.Queue[Nodes] = asyncio.Queue()

    async def run(self) -> None:
        """Be the kubelets of all that came, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            while True:
                arrived = await self._arrivals.get()
                group.create_task(arrived.run())

    async def add(self, machines: Sequence[Machine]) -> None:
        """Have nodes come, ready to be used and with no other taints than their own."""
        nodes = [SimulatedNode(one.name, one.room, one.labels) for one in machines]
        for node, machine in zip(nodes, machines, strict=True):
            await self._client.create(NODE, node.manifest(timestamp(self._clock.now())))
            ready = {"spec": {"taints": _taints(machine.taints) or None}}
            await self._client.patch(NODE, Key("", node.name), ready)
        self._arrivals.put_nowait(Nodes(self._client, self._informers, self._clock, nodes))

    async def remove(self, name: str) -> None:
        """Have a node go, and then what was on it, as a cluster's garbage collection does."""
        await self._client.delete(NODE, Key("", name))
        lost = await self._client.list(POD, Pod, field_selector=f"spec.nodeName={name}")
        for pod in lost.items:
            await perform(self._client, Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0))


def _taints(taints: Iterable[Taint]) -> list[Object]:
    return [{"key": one.key, "value": one.value, "effect": one.effect} for one in taints]
