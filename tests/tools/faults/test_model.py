"""The expected view is exactly as current as the informers that it follows."""

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


async def create_view(cluster_: Cluster) -> tuple[ExpectedView, Informers, asyncio.Task[None]]:
    """Return the expected view of a client whose watches lag."""
    store_log = StoreLogReader(cluster_.store)
    client, _ = lagging_client(cluster_, LAG)
    informers = Informers(client, SeededRandom(1))
    informers.of(Pod)
    running = asyncio.create_task(informers.run())
    await informers.wait_for_sync()
    return ExpectedView(store_log, informers), informers, running


def pod_names(view: ExpectedView) -> list[str]:
    view.catch_up()
    return sorted(key.name for key in view.pods)


@in_virtual_time
async def test_expected_view_is_as_late_as_its_informers() -> None:
    async with cluster(without=("scheduler", "nodes")) as cluster_:
        view, informers, running = await create_view(cluster_)
        await cluster_.create(pod("a"))
        assert pod_names(view) == []
        await asyncio.sleep(LAG + 0.1)
        assert pod_names(view) == ["a"]
        await cluster_.client.delete(POD, Key("default", "a"), grace=0)
        assert pod_names(view) == ["a"]
        await asyncio.sleep(LAG + 0.1)
        assert pod_names(view) == []
        assert dict(view.pods) == dict(informers.of(Pod).cache)
        running.cancel()


@in_virtual_time
async def test_assumed_pods_count_as_bound() -> None:
    async with cluster(without=("scheduler", "nodes")) as cluster_:
        view, _, running = await create_view(cluster_)
        await cluster_.add_node(node("n"))
        await cluster_.create(pod("a"), pod("b"))
        await asyncio.sleep(LAG + 0.1)
        view.catch_up()
        pods = view.cluster({Key("default", "a"): "n"}).pods
        assert {pod_.metadata.name: pod_.occupied_node for pod_ in pods} == {"a": "n", "b": ""}
        assert view.pods[Key("default", "a")].occupied_node == ""
        running.cancel()
