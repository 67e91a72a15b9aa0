"""Simulated nodes that were marked as unresponsive become ready again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phalanx.api.core import Node
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, find_condition
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.controllers.nodes.node_heartbeats import NodeStatusReporter
from phalanx.controllers.reconcile_loop import Informers
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    running_controller,
)


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [NodeStatusReporter(client, informers, c.clock, names=("n0", "n1")).run]


async def set_ready(c: Cluster, name: str, status: str) -> None:
    """Set the Ready condition of a node."""
    change: Object = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    await c.client.patch(NODE, Key("", name), change, subresource="status", content=STRATEGIC_PATCH)


async def mark_not_ready(c: Cluster, name: str) -> None:
    """Mark a running pod as not ready."""
    change: Object = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    await c.client.patch(
        POD, Key("default", name), {"status": change}, subresource="status", content=STRATEGIC_PATCH
    )


async def conditions(c: Cluster, name: str) -> dict[str, str]:
    found = await c.client.get(NODE, Key("", name), Node)
    return {one.type: one.status for one in found.status.conditions}


async def ready(c: Cluster, name: str) -> str:
    found = find_condition((await c.pods())[name].status.conditions, "Ready")
    return found.status if found is not None else ""


@in_virtual_time
async def test_a_simulated_node_and_its_pods_become_ready_again() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(pod("p"))
        await c.until_placed("p")
        await asyncio.sleep(20)
        name = (await c.pods())["p"].spec.node_name
        await set_ready(c, name, "Unknown")
        await asyncio.sleep(1)
        assert await ready(c, "p") == "False"
        assert len((await c.client.get(NODE, Key("", name), Node)).spec.taints) == 2
        await asyncio.sleep(11)
        assert await conditions(c, name) == {
            "Ready": "True", "MemoryPressure": "False", "DiskPressure": "False",
            "PIDPressure": "False",
        }  # fmt: skip
        assert (await c.client.get(NODE, Key("", name), Node)).spec.taints == ()
        assert await ready(c, "p") == "True"


@in_virtual_time
async def test_other_nodes_are_not_changed() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("foreign"))
        await set_ready(c, "foreign", "Unknown")
        async with running_controller(c, build):
            await asyncio.sleep(100)
            assert await conditions(c, "foreign") == {"Ready": "Unknown"}


@in_virtual_time
async def test_simulated_nodes_stay_ready_for_an_hour() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="4")) as c:
        await c.create(pod("p"))
        await c.until_placed("p")
        await asyncio.sleep(20)
        before = [await c.client.get(NODE, Key("", f"n{n}")) for n in range(3)]
        await asyncio.sleep(3600)
        assert [await c.client.get(NODE, Key("", f"n{n}")) for n in range(3)] == before
        assert await ready(c, "p") == "True"


async def run_outage(c: Cluster) -> object:
    for name in ("n0", "n1"):
        await c.add_node(node(name))
        await c.create(pod(f"on-{name}", on=name))
        await mark_not_ready(c, f"on-{name}")
        await set_ready(c, name, "Unknown")
    await asyncio.sleep(60)
    return [
        (await conditions(c, name), await ready(c, f"on-{name}")) for name in ("n0", "n1")
    ]  # fmt: skip


def test_after_a_crash_at_any_write_other_kubelets_continue() -> None:
    assert assert_survives_every_crash(build, run_outage) == 4


def test_duplicate_and_late_events_change_nothing() -> None:
    assert_survives_bad_watches(build, run_outage)


@in_virtual_time
async def test_while_all_nodes_are_ready_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await run_outage(c)
        await assert_quiet(c, build)
