"""A shadow sees exactly as far as the informers that it follows."""

from __future__ import annotations

import asyncio

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tools.faults.model import ExpectedView, StoreLogReader

LAG = 3.0


async def followed(c: Cluster) -> tuple[ExpectedView, Informers, asyncio.Task[None]]:
    """The shadow of somebody who hears of pods late."""
    tail = StoreLogReader(c.store)
    client, _ = lagging_client(c, LAG)
    informers = Informers(client, SeededRandom(1))
    informers.of(POD, Pod)
    running = asyncio.create_task(informers.run())
    await informers.wait_for_sync()
    return ExpectedView(tail, informers), informers, running


def names(shadow: ExpectedView) -> list[str]:
    shadow.catch_up()
    return sorted(key.name for key in shadow.pods)


@in_virtual_time
async def test_a_shadow_is_as_late_as_whom_it_follows() -> None:
    async with cluster(without=("scheduler", "nodes")) as c:
        shadow, informers, running = await followed(c)
        await c.create(pod("a"))
        assert names(shadow) == []
        await asyncio.sleep(LAG + 0.1)
        assert names(shadow) == ["a"]
        await c.client.delete(POD, Key("default", "a"), grace=0)
        assert names(shadow) == ["a"]
        await asyncio.sleep(LAG + 0.1)
        assert names(shadow) == []
        assert dict(shadow.pods) == dict(informers.of(POD, Pod).cache)
        running.cancel()


@in_virtual_time
async def test_what_is_assumed_is_as_good_as_bound() -> None:
    async with cluster(without=("scheduler", "nodes")) as c:
        shadow, _, running = await followed(c)
        await c.add_node(node("n"))
        await c.create(pod("a"), pod("b"))
        await asyncio.sleep(LAG + 0.1)
        shadow.catch_up()
        pods = shadow.cluster({Key("default", "a"): "n"}).pods
        assert {one.metadata.name: one.occupied_node for one in pods} == {"a": "n", "b": ""}
        assert shadow.pods[Key("default", "a")].occupied_node == ""
        running.cancel()
