"""The pod garbage collector in virtual time: lost nodes, stuck pods and terminated pods."""

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
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    CrashScenario,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

HELD: Object = {"finalizers": ["example.com/stay"]}


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [PodGarbageCollector(client, informers, c.clock, threshold=3).run]


async def create_running_pod(
    c: Cluster, name: str, on: str = "a", meta: Object | None = None
) -> None:
    await c.create(pod(name, meta=meta))
    await c.bind(name, on)
    await set_phase(c, name, "Running")


async def set_phase(c: Cluster, name: str, phase: str) -> None:
    change = {"status": {"phase": phase}}
    await c.client.patch(POD, Key("default", name), change, subresource="status")


async def pod_names(c: Cluster) -> list[str]:
    return sorted(await c.pods())


async def read_pod(c: Cluster, name: str) -> Pod:
    return await c.client.get(POD, Key("default", name), Pod)


# ---- lost nodes ----------------------------------------------------------------------------------


@in_virtual_time
async def test_pods_of_a_gone_node_are_deleted_after_the_quarantine() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        await create_running_pod(c, "p")
        await create_running_pod(c, "q", "b")
        await c.delete(NODE, "a")
        await asyncio.sleep(39)
        assert await pod_names(c) == ["p", "q"]
        await asyncio.sleep(2)
        assert await pod_names(c) == ["q"]


@in_virtual_time
async def test_pod_of_a_gone_node_fails_with_disruption_target() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await create_running_pod(c, "p", meta=HELD)
        await create_running_pod(c, "q", meta=HELD)
        await set_phase(c, "q", "Succeeded")
        await c.delete(NODE, "a")
        await asyncio.sleep(60)
        lost, finished = await read_pod(c, "p"), await read_pod(c, "q")
        condition = find_condition(lost.status.conditions, "DisruptionTarget")
        assert condition is not None
        assert (lost.status.phase, condition.status, condition.reason, condition.message) == (
            "Failed", "True", "DeletionByPodGC", "PodGC: node no longer exists",
        )  # fmt: skip
        assert finished.status.phase == "Succeeded"
        assert find_condition(finished.status.conditions, "DisruptionTarget") is None
        assert lost.metadata.deletion_timestamp
        assert finished.metadata.deletion_timestamp


@in_virtual_time
async def test_node_that_returns_in_time_keeps_its_pods() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await create_running_pod(c, "p")
        await c.delete(NODE, "a")
        await asyncio.sleep(30)
        await c.add_node(node("a"))
        await asyncio.sleep(60)
        await c.delete(NODE, "a")
        await asyncio.sleep(30)
        assert await pod_names(c) == ["p"]
        await asyncio.sleep(15)
        assert await pod_names(c) == []


@in_virtual_time
async def test_pod_on_a_node_that_never_existed_is_deleted() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod("p", on="nowhere"))
        await asyncio.sleep(30)
        assert await pod_names(c) == ["p"]
        await asyncio.sleep(12)
        assert await pod_names(c) == []


@in_virtual_time
async def test_node_that_the_cache_lacks_is_read_from_the_api_before_its_pods_are_deleted() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, NODE)
        async with running_controller(c, build, transport):
            await asyncio.sleep(1)
            transport.is_flowing.clear()
            await c.add_node(node("a"))
            await create_running_pod(c, "p")
            await asyncio.sleep(200)
            assert await pod_names(c) == ["p"]
            transport.is_flowing.set()


@in_virtual_time
async def test_no_pod_is_deleted_before_the_node_cache_is_synced() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("a"))
        await create_running_pod(c, "p")
        async with running_controller(c, build):
            await asyncio.sleep(200)
            assert await pod_names(c) == ["p"]


# ---- stuck pods ----------------------------------------------------------------------------------


@in_virtual_time
async def test_deleted_pod_without_a_node_fails_and_is_removed_without_finalizers() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod("p", meta=HELD))
        await c.delete(POD, "p")
        await asyncio.sleep(10)
        assert (await read_pod(c, "p")).status.phase == "Pending"
        await asyncio.sleep(11)
        assert (await read_pod(c, "p")).status.phase == "Failed"
        await c.client.patch(POD, Key("default", "p"), {"metadata": {"finalizers": None}})
        assert await pod_names(c) == []


@pytest.mark.parametrize(
    ("ready", "taints", "is_removed"),
    [
        ("False", [OUT_OF_SERVICE], True),
        ("Unknown", [OUT_OF_SERVICE, "x"], True),
        ("True", [OUT_OF_SERVICE], False),
        ("False", ["x"], False),
    ],
)
@in_virtual_time
async def test_deleted_pod_on_an_out_of_service_node_is_removed(
    ready: str, taints: list[str], is_removed: bool
) -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await create_running_pod(c, "p")
        await create_running_pod(c, "q")
        await c.delete(POD, "p")
        await asyncio.sleep(100)
        change = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
        await c.client.patch(NODE, Key("", "a"), change, subresource="status")
        node_taints = [{"key": key, "effect": "NoExecute"} for key in taints]
        await c.client.patch(NODE, Key("", "a"), {"spec": {"taints": node_taints}})
        await asyncio.sleep(30)
        assert await pod_names(c) == (["q"] if is_removed else ["p", "q"])


# ---- terminated pods -----------------------------------------------------------------------------


@in_virtual_time
async def test_latest_terminated_pods_are_kept() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        for number in range(6):
            await asyncio.sleep(2)
            await create_running_pod(c, f"p{5 - number}")
            await set_phase(c, f"p{5 - number}", "Failed" if number % 2 else "Succeeded")
        await create_running_pod(c, "alive")
        await asyncio.sleep(25)
        assert await pod_names(c) == ["alive", "p0", "p1", "p2"]
        await c.delete(POD, "p0")
        await set_phase(c, "alive", "Succeeded")
        await asyncio.sleep(25)
        assert await pod_names(c) == ["alive", "p1", "p2"]


# ---- crashes and stale caches --------------------------------------------------------------------


async def lose_a_node(c: Cluster) -> object:
    """Delete a node with pods, and a pod that was never bound."""
    await c.add_node(node("a"))
    await c.add_node(node("b"))
    for name in ("p", "q"):
        await create_running_pod(c, name)
    await create_running_pod(c, "held", meta=HELD)
    await c.create(pod("unbound", meta=HELD))
    await c.delete(POD, "unbound")
    await c.delete(NODE, "a")
    await asyncio.sleep(200)
    return {name: found.status.phase for name, found in (await c.pods()).items()}


async def exceed_the_threshold(c: Cluster) -> object:
    """Terminate more pods than are kept."""
    await c.add_node(node("a"))
    for number in range(7):
        await create_running_pod(c, f"old{number}")
        await set_phase(c, f"old{number}", "Succeeded")
    await asyncio.sleep(100)
    return await pod_names(c)


@pytest.mark.parametrize(("story", "writes"), [(lose_a_node, 8), (exceed_the_threshold, 4)])
def test_crash_after_any_write_leads_to_the_same_end(story: CrashScenario, writes: int) -> None:
    assert assert_survives_every_crash(build, story) >= writes


@pytest.mark.parametrize("story", [lose_a_node, exceed_the_threshold])
def test_repeated_late_and_missed_events_lead_to_the_same_end(story: CrashScenario) -> None:
    assert_survives_bad_watches(build, story)


@in_virtual_time
async def test_nothing_is_written_when_all_pods_are_collected() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await lose_a_node(c)
        await assert_quiet(c, build, seconds=100)
