from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from phalanx.api.core import Taint
from phalanx.api.kinds import NODE
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SeededRandom
from phalanx.sim import virtual_time as loop
from phalanx.sim.driver import ScenarioNodes
from phalanx.sim.events import ScenarioNode
from phalanx.sim.simulation import EPOCH
from phalanx.store.memory import MemoryStore


def seen_of(machine: ScenarioNode) -> list[dict[str, Any]]:
    """Every state that a node is seen in while it comes and goes."""

    async def main() -> list[dict[str, Any]]:
        clock, chance = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(1)
        plane = ControlPlane(MemoryStore(), clock, chance, ComponentConfig(without=("nodes",)))
        client, seen = plane.client("test"), []
        machines = ScenarioNodes(client, clock, chance)
        async with plane.running():
            await machines.add([machine])
            await machines.remove(machine.name)
            async with aclosing(client.watch(NODE, since=1)) as events:
                async for event in events:
                    seen.append(event.object)
                    if event.type == "DELETED":
                        break
        return seen

    return loop.run_virtual(main)


def test_a_node_is_never_seen_ready_without_its_taints() -> None:
    machine = ScenarioNode(
        "fast", {"cpu": "1"}, {"disk": "ssd"}, (Taint("team", "a", "NoSchedule"),)
    )
    states = seen_of(machine)
    assert [[taint["key"] for taint in node["spec"]["taints"]] for node in states] == [
        ["node.kubernetes.io/not-ready"],
        ["team"],
        ["team"],
    ]
    assert all(node["metadata"]["labels"]["disk"] == "ssd" for node in states)


def test_a_node_without_taints_is_ready_for_everyone() -> None:
    last = seen_of(ScenarioNode("plain", {"cpu": "1"}))[-1]
    assert not last["spec"].get("taints")
    assert last["status"]["allocatable"] == {"cpu": "1"}
