"""Nodes that fall silent and come back, in virtual time, and the taints that nodes have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.meta import Key, micro_timestamp, parse_timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.nodes.node_lifecycle import LEASE_NAMESPACE, NodeLifecycle
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import EPOCH, Cluster, cluster
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

Marks = set[tuple[str, str]]
UNREACHABLE: Marks = {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
NOT_READY: Marks = {("not-ready", "NoSchedule"), ("not-ready", "NoExecute")}


def telling(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(client, c.clock, SeededRandom(4), "node-controller")
    return [recorder.run, NodeLifecycle(client, informers, c.clock, recorder.record).run]


def silent(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """The same without events."""
    return [NodeLifecycle(client, informers, c.clock).run]


async def renew(c: Cluster, *names: str) -> None:
    """A sign of life, by a lease of its own."""
    spec = {"holderIdentity": "kubelet", "renewTime": micro_timestamp(c.clock.now())}
    for name in names:
        key = Key(LEASE_NAMESPACE, name)
        meta = {"name": name, "namespace": LEASE_NAMESPACE}
        if key.name in [one["metadata"]["name"] for one in (await c.client.list(LEASE)).items]:
            await c.client.patch(LEASE, key, {"spec": spec})
        else:
            await c.client.create(LEASE, {"metadata": meta, "spec": spec})


@asynccontextmanager
async def beating(c: Cluster, *names: str) -> AsyncIterator[None]:
    """Kubelets of these nodes, who do nothing but live."""

    async def beat() -> None:
        while True:
            await renew(c, *names)
            await asyncio.sleep(10)

    task = asyncio.create_task(beat())
    await asyncio.sleep(1)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def says(c: Cluster, name: str, **conditions: str) -> None:
    """What a kubelet says of its node."""
    said = [{"type": kind, "status": status} for kind, status in conditions.items()]
    change = {"status": {"conditions": said}}
    await c.client.patch(NODE, Key("", name), change, subresource="status", content=STRATEGIC_PATCH)


async def said(c: Cluster, name: str) -> dict[str, str]:
    found = (await c.client.get(NODE, Key("", name)))["status"]["conditions"]
    return {one["type"]: one["status"] for one in found}


async def taints(c: Cluster, name: str) -> Marks:
    spec = (await c.client.get(NODE, Key("", name))).get("spec", {})
    short = [(one["key"].rpartition("/")[2], one["effect"]) for one in spec.get("taints", [])]
    assert len(short) == len(set(short))
    return set(short)


async def ready(c: Cluster, name: str) -> str:
    found = (await c.client.get(POD, Key("default", name)))["status"]["conditions"]
    return next(str(one["status"]) for one in found if one["type"] == "Ready")


async def running(c: Cluster, name: str, on: str) -> None:
    await c.create(pod(name, on=on))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    change = {"status": status}
    key = Key("default", name)
    await c.client.patch(POD, key, change, subresource="status", content=STRATEGIC_PATCH)


# ---- silence -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_node_that_lives_is_left_alone() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        async with beating(c, "a"):
            await asyncio.sleep(1000)
            assert (await said(c, "a"), await taints(c, "a")) == ({"Ready": "True"}, set())


@in_virtual_time
async def test_a_node_that_falls_silent_is_unknown_and_unreachable() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with beating(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(49)
            assert await said(c, "a") == {"Ready": "True"}
            await asyncio.sleep(7)
            kinds = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
            assert await said(c, "a") == dict.fromkeys(kinds, "Unknown")
            assert (await taints(c, "a"), await taints(c, "b")) == (UNREACHABLE, set())
        found = await c.client.get(NODE, Key("", "a"))
        first, second = found["status"]["conditions"][:2]
        assert (first["reason"], first["message"]) == (
            "NodeStatusUnknown", "Kubelet stopped posting node status.",
        )  # fmt: skip
        assert (second["reason"], second["message"]) == (
            "NodeStatusNeverUpdated", "Kubelet never posted node status.",
        )  # fmt: skip
        assert all(
            parse_timestamp(one["timeAdded"]) > EPOCH + 50 for one in found["spec"]["taints"]
        )
        assert await c.events("NodeNotReady") == [("a", "Node a status is now: NodeNotReady")]


@in_virtual_time
async def test_pods_on_a_silent_node_are_not_ready_and_are_told_so() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        await running(c, "lost", "a")
        await running(c, "well", "b")
        async with beating(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(60)
            assert (await ready(c, "lost"), await ready(c, "well")) == ("False", "True")
        assert ("lost", "Node is not ready") in await c.events("NodeNotReady")


@in_virtual_time
async def test_a_node_that_speaks_again_loses_its_taints() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with beating(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(60)
            assert await taints(c, "a") == UNREACHABLE
        async with beating(c, "a", "b"):
            await asyncio.sleep(30)
            assert await taints(c, "a") == UNREACHABLE
            await says(c, "a", Ready="True")
            await asyncio.sleep(1)
            assert await taints(c, "a") == set()
            await asyncio.sleep(100)
            assert (await said(c, "a"))["Ready"] == "True"


@in_virtual_time
async def test_whoever_takes_over_while_all_are_silent_drives_nobody_out_either() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        for name in ("a", "b"):
            await c.add_node(node(name))
            await renew(c, name)
        async with running_controller(c, telling):
            await asyncio.sleep(100)
            marks = await taints(c, "a")
            assert marks == {("unreachable", "NoSchedule")}
        async with running_controller(c, telling):
            await asyncio.sleep(30)
            assert (await taints(c, "a"), await taints(c, "b")) == (marks, marks)
            async with beating(c, "b"):
                await says(c, "b", Ready="True")
                await asyncio.sleep(5)
                assert (await taints(c, "a"), await taints(c, "b")) == (UNREACHABLE, set())


@in_virtual_time
async def test_a_node_that_never_had_a_lease_is_left_alone() -> None:
    async with bare_cluster(telling) as c:
        await c.create(node("a"))
        before = await c.client.get(NODE, Key("", "a"))
        await asyncio.sleep(1000)
        assert await c.client.get(NODE, Key("", "a")) == before


@in_virtual_time
async def test_a_lease_that_is_deleted_is_no_sign_of_life() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with beating(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(10)
            await c.delete(LEASE, "a", LEASE_NAMESPACE)
            await asyncio.sleep(60)
            assert await taints(c, "a") == UNREACHABLE


@in_virtual_time
async def test_nobody_is_driven_out_while_all_are_silent() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with beating(c, "a", "b"):
            await asyncio.sleep(20)
        await asyncio.sleep(70)
        assert await taints(c, "a") == await taints(c, "b") == {("unreachable", "NoSchedule")}
        async with beating(c, "b"):
            await asyncio.sleep(10)
            assert await taints(c, "a") == UNREACHABLE


@in_virtual_time
async def test_whoever_falls_silent_last_saves_the_others() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with beating(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(60)
            assert await taints(c, "a") == UNREACHABLE
        await asyncio.sleep(70)
        assert await taints(c, "a") == {("unreachable", "NoSchedule")}


@in_virtual_time
async def test_a_new_controller_gives_everybody_time_to_be_heard() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("a"))
        await renew(c, "a")
        await asyncio.sleep(1000)
        async with running_controller(c, silent):
            await asyncio.sleep(45)
            assert await said(c, "a") == {"Ready": "True"}
            await asyncio.sleep(15)
            assert (await said(c, "a"))["Ready"] == "Unknown"


# ---- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"Ready": "False"}, NOT_READY),
        ({"Ready": "Unknown"}, UNREACHABLE),
        ({"MemoryPressure": "True"}, {("memory-pressure", "NoSchedule")}),
        ({"DiskPressure": "True"}, {("disk-pressure", "NoSchedule")}),
        ({"PIDPressure": "True"}, {("pid-pressure", "NoSchedule")}),
        ({"NetworkUnavailable": "True"}, {("network-unavailable", "NoSchedule")}),
        ({"MemoryPressure": "False", "DiskPressure": "Unknown"}, set()),
    ],
)
@in_virtual_time
async def test_a_node_is_tainted_for_how_it_is(condition: dict[str, str], expected: Marks) -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        async with beating(c, "a"):
            await says(c, "a", **condition)
            await asyncio.sleep(1)
            assert await taints(c, "a") == expected
            await says(c, "a", **{**dict.fromkeys(condition, "False"), "Ready": "True"})
            await asyncio.sleep(1)
            assert await taints(c, "a") == set()


@in_virtual_time
async def test_a_node_that_may_not_be_used_is_tainted_and_others_taints_stay_as_they_are() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        own: Object = {
            "key": "dedicated", "value": "train", "effect": "NoExecute",
            "timeAdded": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        first = {"key": "a", "effect": "NoSchedule"}
        spec = {"taints": [first, own], "unschedulable": True}
        await c.client.patch(NODE, Key("", "a"), {"spec": spec})
        async with beating(c, "a"):
            await asyncio.sleep(1)
            assert ("unschedulable", "NoSchedule") in await taints(c, "a")
            await c.client.patch(NODE, Key("", "a"), {"spec": {"unschedulable": False}})
            await asyncio.sleep(1)
            found = await c.client.get(NODE, Key("", "a"))
            assert found["spec"]["taints"] == [first, own]


@in_virtual_time
async def test_a_new_node_is_not_ready_until_it_says_so() -> None:
    async with bare_cluster(telling) as c:
        await c.create({**node("a"), "status": {}})
        async with beating(c, "a"):
            await says(c, "a", Ready="False")
            await asyncio.sleep(1)
            assert await taints(c, "a") == NOT_READY
            await says(c, "a", Ready="True")
            await asyncio.sleep(1)
            assert await taints(c, "a") == set()


@in_virtual_time
async def test_a_node_that_is_deleted_is_not_waited_for() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        async with beating(c, "a"):
            await asyncio.sleep(20)
        await c.delete(NODE, "a")
        await c.add_node(node("a"))
        await asyncio.sleep(200)
        assert await said(c, "a") == {"Ready": "True"}


# ---- through thick and thin ----------------------------------------------------------------------


async def an_outage(c: Cluster) -> object:
    """One of two nodes falls silent; the other is short of memory and taken out of use."""
    await c.add_node(node("a"))
    await c.add_node(node("b"))
    await running(c, "p", "a")
    await running(c, "q", "a")
    async with beating(c, "a", "b"):
        await asyncio.sleep(20)
    async with beating(c, "b"):
        await says(c, "b", MemoryPressure="True")
        await c.client.patch(NODE, Key("", "b"), {"spec": {"unschedulable": True}})
        await asyncio.sleep(140)
        return [
            await taints(c, "a"), await taints(c, "b"), await said(c, "a"), await said(c, "b"),
            await ready(c, "p"), await ready(c, "q"),
        ]  # fmt: skip


def test_whenever_the_controller_ends_another_one_goes_on() -> None:
    assert assert_survives_every_crash(silent, an_outage) >= 5


def test_news_that_come_twice_and_late_change_nothing() -> None:
    assert_survives_bad_watches(silent, an_outage)


@in_virtual_time
async def test_when_all_is_said_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, telling):
            await an_outage(c)
        await assert_quiet(c, telling)
