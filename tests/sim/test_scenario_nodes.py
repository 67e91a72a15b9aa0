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


def observed_states(scenario_node: ScenarioNode) -> list[dict[str, Any]]:
    """Return every watched state of a node from its creation to its deletion."""

    async def main() -> list[dict[str, Any]]:
        clock, random = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(1)
        plane = ControlPlane(MemoryStore(), clock, random, ComponentConfig(without=("nodes",)))
        client, observed = plane.client("test"), []
        scenario_nodes = ScenarioNodes(client, clock, random)
        async with plane.running():
            await scenario_nodes.add([scenario_node])
            await scenario_nodes.remove(scenario_node.name)
            async with aclosing(client.watch(NODE, since=1)) as events:
                async for event in events:
                    observed.append(event.object)
                    if event.type == "DELETED":
                        break
        return observed

    return loop.run_virtual(main)


def test_node_is_never_ready_without_its_taints() -> None:
    scenario_node = ScenarioNode(
        "fast", {"cpu": "1"}, {"disk": "ssd"}, (Taint("team", "a", "NoSchedule"),)
    )
    states = observed_states(scenario_node)
    assert [[taint["key"] for taint in node["spec"]["taints"]] for node in states] == [
        ["node.kubernetes.io/not-ready"],
        ["team"],
        ["team"],
    ]
    assert all(node["metadata"]["labels"]["disk"] == "ssd" for node in states)


def test_node_without_configured_taints_ends_untainted() -> None:
    last = observed_states(ScenarioNode("plain", {"cpu": "1"}))[-1]
    assert not last["spec"].get("taints")
    assert last["status"]["allocatable"] == {"cpu": "1"}
