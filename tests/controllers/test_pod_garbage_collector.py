"""Pods that nobody will ever take down, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.core import Pod
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, find_condition
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.pod_garbage_collector import OUT_OF_SERVICE, PodGarbageCollector
from phalanx.controllers.reconcile_loop import Informers
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, HeldTransport, cluster
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    Story,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

STAY: Object = {"finalizers": ["example.com/stay"]}


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [PodGarbageCollector(client, informers, c.clock, threshold=3).run]


async def running(c: Cluster, name: str, on: str = "a", meta: Object | None = None) -> None:
    await c.create(pod(name, meta=meta))
    await c.bind(name, on)
    await becomes(c, name, "Running")


async def becomes(c: Cluster, name: str, phase: str) -> None:
    change = {"status": {"phase": phase}}
    await c.client.patch(POD, Key("default", name), change, subresource="status")


async def there(c: Cluster) -> list[str]:
    return sorted(await c.pods())


async def read(c: Cluster, name: str) -> Pod:
    return await c.client.get(POD, Key("default", name), Pod)


# ---- nodes that are gone -------------------------------------------------------------------------


@in_virtual_time
async def test_pods_are_lost_with_their_node_after_a_while() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        await running(c, "p")
        await running(c, "q", "b")
        await c.delete(NODE, "a")
        await asyncio.sleep(39)
        assert await there(c) == ["p", "q"]
        await asyncio.sleep(2)
        assert await there(c) == ["q"]


@in_virtual_time
async def test_a_pod_that_is_lost_has_failed_through_no_fault_of_its_own() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await running(c, "p", meta=STAY)
        await running(c, "q", meta=STAY)
        await becomes(c, "q", "Succeeded")
        await c.delete(NODE, "a")
        await asyncio.sleep(60)
        lost, done = await read(c, "p"), await read(c, "q")
        mark = find_condition(lost.status.conditions, "DisruptionTarget")
        assert mark is not None
        assert (lost.status.phase, mark.status, mark.reason, mark.message) == (
            "Failed", "True", "DeletionByPodGC", "PodGC: node no longer exists",
        )  # fmt: skip
        assert done.status.phase == "Succeeded"
        assert find_condition(done.status.conditions, "DisruptionTarget") is None
        assert lost.metadata.deletion_timestamp
        assert done.metadata.deletion_timestamp


@in_virtual_time
async def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await running(c, "p")
        await c.delete(NODE, "a")
        await asyncio.sleep(30)
        await c.add_node(node("a"))
        await asyncio.sleep(60)
        await c.delete(NODE, "a")
        await asyncio.sleep(30)
        assert await there(c) == ["p"]
        await asyncio.sleep(15)
        assert await there(c) == []


@in_virtual_time
async def test_a_pod_on_a_node_that_was_never_there_goes_too() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod("p", on="nowhere"))
        await asyncio.sleep(30)
        assert await there(c) == ["p"]
        await asyncio.sleep(12)
        assert await there(c) == []


@in_virtual_time
async def test_a_node_of_which_one_has_not_heard_is_asked_for_before_its_pods_are_given_up() -> (
    None
):
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, NODE)
        async with running_controller(c, build, way):
            await asyncio.sleep(1)
            way.is_flowing.clear()
            await c.add_node(node("a"))
            await running(c, "p")
            await asyncio.sleep(200)
            assert await there(c) == ["p"]
            way.is_flowing.set()


@in_virtual_time
async def test_nobody_is_given_up_before_all_nodes_are_known() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("a"))
        await running(c, "p")
        async with running_controller(c, build):
            await asyncio.sleep(200)
            assert await there(c) == ["p"]


# ---- pods that are being deleted -----------------------------------------------------------------


@in_virtual_time
async def test_a_pod_that_is_deleted_before_it_had_a_node_fails_and_goes_when_let_go() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod("p", meta=STAY))
        await c.delete(POD, "p")
        await asyncio.sleep(10)
        assert (await read(c, "p")).status.phase == "Pending"
        await asyncio.sleep(11)
        assert (await read(c, "p")).status.phase == "Failed"
        await c.client.patch(POD, Key("default", "p"), {"metadata": {"finalizers": None}})
        assert await there(c) == []


@pytest.mark.parametrize(
    ("ready", "taints", "goes"),
    [
        ("False", [OUT_OF_SERVICE], True),
        ("Unknown", [OUT_OF_SERVICE, "x"], True),
        ("True", [OUT_OF_SERVICE], False),
        ("False", ["x"], False),
    ],
)
@in_virtual_time
async def test_a_pod_that_is_deleted_on_a_node_out_of_service_goes(
    ready: str, taints: list[str], goes: bool
) -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await running(c, "p")
        await running(c, "q")
        await c.delete(POD, "p")
        await asyncio.sleep(100)
        said = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
        await c.client.patch(NODE, Key("", "a"), said, subresource="status")
        marks = [{"key": key, "effect": "NoExecute"} for key in taints]
        await c.client.patch(NODE, Key("", "a"), {"spec": {"taints": marks}})
        await asyncio.sleep(30)
        assert await there(c) == (["q"] if goes else ["p", "q"])


# ---- pods that have ended ------------------------------------------------------------------------


@in_virtual_time
async def test_of_the_pods_that_have_ended_the_latest_are_kept() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        for number in range(6):
            await asyncio.sleep(2)
            await running(c, f"p{5 - number}")
            await becomes(c, f"p{5 - number}", "Failed" if number % 2 else "Succeeded")
        await running(c, "alive")
        await asyncio.sleep(25)
        assert await there(c) == ["alive", "p0", "p1", "p2"]
        await c.delete(POD, "p0")
        await becomes(c, "alive", "Succeeded")
        await asyncio.sleep(25)
        assert await there(c) == ["alive", "p1", "p2"]


# ---- through thick and thin ----------------------------------------------------------------------


async def a_loss(c: Cluster) -> object:
    """A node goes with its pods; another pod has never begun."""
    await c.add_node(node("a"))
    await c.add_node(node("b"))
    for name in ("p", "q"):
        await running(c, name)
    await running(c, "held", meta=STAY)
    await c.create(pod("unborn", meta=STAY))
    await c.delete(POD, "unborn")
    await c.delete(NODE, "a")
    await asyncio.sleep(200)
    return {name: found.status.phase for name, found in (await c.pods()).items()}


async def a_surplus(c: Cluster) -> object:
    """More pods end than are kept."""
    await c.add_node(node("a"))
    for number in range(7):
        await running(c, f"old{number}")
        await becomes(c, f"old{number}", "Succeeded")
    await asyncio.sleep(100)
    return await there(c)


@pytest.mark.parametrize(("story", "writes"), [(a_loss, 8), (a_surplus, 4)])
def test_whenever_the_controller_ends_another_one_goes_on(story: Story, writes: int) -> None:
    assert assert_survives_every_crash(build, story) >= writes


@pytest.mark.parametrize("story", [a_loss, a_surplus])
def test_news_that_come_twice_and_late_change_nothing(story: Story) -> None:
    assert_survives_bad_watches(build, story)


@in_virtual_time
async def test_when_all_is_cleared_away_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await a_loss(c)
        await assert_quiet(c, build, seconds=100)
