"""Simulated nodes that were taken to be silent come back, with the whole control plane."""

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
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    running_controller,
)


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [NodeStatusReporter(client, informers, c.clock, ("n0", "n1")).run]


async def says(c: Cluster, name: str, status: str) -> None:
    """What somebody says of a node."""
    said: Object = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    await c.client.patch(NODE, Key("", name), said, subresource="status", content=STRATEGIC_PATCH)


async def doubts(c: Cluster, name: str) -> None:
    """Somebody says of a pod that it is not ready."""
    said: Object = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    await c.client.patch(
        POD, Key("default", name), {"status": said}, subresource="status", content=STRATEGIC_PATCH
    )


async def conditions(c: Cluster, name: str) -> dict[str, str]:
    found = await c.client.get(NODE, Key("", name), Node)
    return {one.type: one.status for one in found.status.conditions}


async def ready(c: Cluster, name: str) -> str:
    found = find_condition((await c.pods())[name].status.conditions, "Ready")
    return found.status if found is not None else ""


@in_virtual_time
async def test_a_simulated_node_that_is_doubted_says_that_it_is_well_and_so_do_its_pods() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(pod("p"))
        await c.until_placed("p")
        await asyncio.sleep(20)
        name = (await c.pods())["p"].spec.node_name
        await says(c, name, "Unknown")
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
async def test_nodes_of_others_are_left_to_them() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("foreign"))
        await says(c, "foreign", "Unknown")
        async with running_controller(c, build):
            await asyncio.sleep(100)
            assert await conditions(c, "foreign") == {"Ready": "Unknown"}


@in_virtual_time
async def test_simulated_nodes_live_on_for_an_hour() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="4")) as c:
        await c.create(pod("p"))
        await c.until_placed("p")
        await asyncio.sleep(20)
        before = [await c.client.get(NODE, Key("", f"n{n}")) for n in range(3)]
        await asyncio.sleep(3600)
        assert [await c.client.get(NODE, Key("", f"n{n}")) for n in range(3)] == before
        assert await ready(c, "p") == "True"


async def an_outage(c: Cluster) -> object:
    for name in ("n0", "n1"):
        await c.add_node(node(name))
        await c.create(pod(f"on-{name}", on=name))
        await doubts(c, f"on-{name}")
        await says(c, name, "Unknown")
    await asyncio.sleep(60)
    return [
        (await conditions(c, name), await ready(c, f"on-{name}")) for name in ("n0", "n1")
    ]  # fmt: skip


def test_whenever_the_kubelets_end_others_go_on() -> None:
    assert assert_survives_every_crash(build, an_outage) == 4


def test_news_that_come_twice_and_late_change_nothing() -> None:
    assert_survives_bad_watches(build, an_outage)


@in_virtual_time
async def test_when_all_are_well_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await an_outage(c)
        await assert_quiet(c, build)
