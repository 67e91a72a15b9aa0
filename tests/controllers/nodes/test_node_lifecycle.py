"""Node lifecycle: unresponsive nodes, and taints that follow from conditions, in virtual time."""

from __future__ import annotations

import asyncio
import logging
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
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)
from tests.recording_log import captured_lines

TaintSet = set[tuple[str, str]]
UNREACHABLE: TaintSet = {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
NOT_READY: TaintSet = {("not-ready", "NoSchedule"), ("not-ready", "NoExecute")}


def build_with_events(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(client, c.clock, SeededRandom(4), component="node-controller")
    return [recorder.run, NodeLifecycle(client, informers, c.clock, record=recorder.record).run]


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """Without events."""
    return [NodeLifecycle(client, informers, c.clock).run]


async def renew(c: Cluster, *names: str) -> None:
    """Renew the leases of these nodes."""
    spec = {"holderIdentity": "kubelet", "renewTime": micro_timestamp(c.clock.now())}
    for name in names:
        key = Key(LEASE_NAMESPACE, name)
        meta = {"name": name, "namespace": LEASE_NAMESPACE}
        if key.name in [one["metadata"]["name"] for one in (await c.client.list(LEASE)).items]:
            await c.client.patch(LEASE, key, {"spec": spec})
        else:
            await c.client.create(LEASE, {"metadata": meta, "spec": spec})


@asynccontextmanager
async def heartbeats(c: Cluster, *names: str) -> AsyncIterator[None]:
    """Renew the leases of these nodes while the context lasts."""

    async def renew_leases() -> None:
        while True:
            await renew(c, *names)
            await asyncio.sleep(10)

    task = asyncio.create_task(renew_leases())
    await asyncio.sleep(1)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def set_conditions(c: Cluster, name: str, **conditions: str) -> None:
    """Write conditions of a node as its kubelet would."""
    rows = [{"type": kind, "status": status} for kind, status in conditions.items()]
    change = {"status": {"conditions": rows}}
    await c.client.patch(NODE, Key("", name), change, subresource="status", content=STRATEGIC_PATCH)


async def conditions(c: Cluster, name: str) -> dict[str, str]:
    found = (await c.client.get(NODE, Key("", name)))["status"]["conditions"]
    return {one["type"]: one["status"] for one in found}


async def taints(c: Cluster, name: str) -> TaintSet:
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


# ---- unresponsive nodes --------------------------------------------------------------------------


@in_virtual_time
async def test_a_node_with_heartbeats_is_not_changed() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        async with heartbeats(c, "a"):
            await asyncio.sleep(1000)
            assert (await conditions(c, "a"), await taints(c, "a")) == ({"Ready": "True"}, set())


@in_virtual_time
async def test_an_unresponsive_node_becomes_unknown_and_unreachable() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with heartbeats(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(49)
            assert await conditions(c, "a") == {"Ready": "True"}
            await asyncio.sleep(7)
            kinds = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
            assert await conditions(c, "a") == dict.fromkeys(kinds, "Unknown")
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
async def test_pods_on_an_unresponsive_node_become_not_ready_with_an_event() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        await running(c, "lost", "a")
        await running(c, "well", "b")
        async with heartbeats(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(60)
            assert (await ready(c, "lost"), await ready(c, "well")) == ("False", "True")
        assert ("lost", "Node is not ready") in await c.events("NodeNotReady")


@in_virtual_time
async def test_a_node_whose_heartbeats_resume_loses_its_taints() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with heartbeats(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(60)
            assert await taints(c, "a") == UNREACHABLE
        async with heartbeats(c, "a", "b"):
            await asyncio.sleep(30)
            assert await taints(c, "a") == UNREACHABLE
            await set_conditions(c, "a", Ready="True")
            await asyncio.sleep(1)
            assert await taints(c, "a") == set()
            await asyncio.sleep(100)
            assert (await conditions(c, "a"))["Ready"] == "True"


@in_virtual_time
async def test_a_controller_that_starts_while_all_nodes_are_unresponsive_evicts_no_pod() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        for name in ("a", "b"):
            await c.add_node(node(name))
            await renew(c, name)
        async with running_controller(c, build_with_events):
            await asyncio.sleep(100)
            expected = await taints(c, "a")
            assert expected == {("unreachable", "NoSchedule")}
        async with running_controller(c, build_with_events):
            await asyncio.sleep(30)
            assert (await taints(c, "a"), await taints(c, "b")) == (expected, expected)
            async with heartbeats(c, "b"):
                await set_conditions(c, "b", Ready="True")
                await asyncio.sleep(5)
                assert (await taints(c, "a"), await taints(c, "b")) == (UNREACHABLE, set())


@in_virtual_time
async def test_a_node_without_a_lease_is_not_changed() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.create(node("a"))
        before = await c.client.get(NODE, Key("", "a"))
        await asyncio.sleep(1000)
        assert await c.client.get(NODE, Key("", "a")) == before


@in_virtual_time
async def test_the_deletion_of_a_lease_is_not_a_heartrenew_leases() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with heartbeats(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(10)
            await c.delete(LEASE, "a", LEASE_NAMESPACE)
            await asyncio.sleep(60)
            assert await taints(c, "a") == UNREACHABLE


@in_virtual_time
async def test_no_pod_is_evicted_while_all_nodes_are_unresponsive() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with heartbeats(c, "a", "b"):
            await asyncio.sleep(20)
        await asyncio.sleep(70)
        assert await taints(c, "a") == await taints(c, "b") == {("unreachable", "NoSchedule")}
        async with heartbeats(c, "b"):
            await asyncio.sleep(10)
            assert await taints(c, "a") == UNREACHABLE


@in_virtual_time
async def test_no_execute_taints_are_removed_when_the_last_node_becomes_unresponsive() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        async with heartbeats(c, "b"):
            await renew(c, "a")
            await asyncio.sleep(60)
            assert await taints(c, "a") == UNREACHABLE
        await asyncio.sleep(70)
        assert await taints(c, "a") == {("unreachable", "NoSchedule")}


@in_virtual_time
async def test_a_new_controller_waits_for_heartbeats_before_it_marks_nodes() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("a"))
        await renew(c, "a")
        await asyncio.sleep(1000)
        async with running_controller(c, build):
            await asyncio.sleep(45)
            assert await conditions(c, "a") == {"Ready": "True"}
            await asyncio.sleep(15)
            assert (await conditions(c, "a"))["Ready"] == "Unknown"


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
async def test_conditions_become_taints(condition: dict[str, str], expected: TaintSet) -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        async with heartbeats(c, "a"):
            await set_conditions(c, "a", **condition)
            await asyncio.sleep(1)
            assert await taints(c, "a") == expected
            await set_conditions(c, "a", **{**dict.fromkeys(condition, "False"), "Ready": "True"})
            await asyncio.sleep(1)
            assert await taints(c, "a") == set()


@in_virtual_time
async def test_an_unschedulable_node_is_tainted_and_other_taints_stay() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        own: Object = {
            "key": "dedicated", "value": "train", "effect": "NoExecute",
            "timeAdded": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        first = {"key": "a", "effect": "NoSchedule"}
        spec = {"taints": [first, own], "unschedulable": True}
        await c.client.patch(NODE, Key("", "a"), {"spec": spec})
        async with heartbeats(c, "a"):
            await asyncio.sleep(1)
            assert ("unschedulable", "NoSchedule") in await taints(c, "a")
            await c.client.patch(NODE, Key("", "a"), {"spec": {"unschedulable": False}})
            await asyncio.sleep(1)
            found = await c.client.get(NODE, Key("", "a"))
            assert found["spec"]["taints"] == [first, own]


@in_virtual_time
async def test_a_new_node_is_tainted_until_it_is_ready() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.create({**node("a"), "status": {}})
        async with heartbeats(c, "a"):
            await set_conditions(c, "a", Ready="False")
            await asyncio.sleep(1)
            assert await taints(c, "a") == NOT_READY
            await set_conditions(c, "a", Ready="True")
            await asyncio.sleep(1)
            assert await taints(c, "a") == set()


@in_virtual_time
async def test_a_deleted_node_is_forgotten() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        async with heartbeats(c, "a"):
            await asyncio.sleep(20)
        await c.delete(NODE, "a")
        await c.add_node(node("a"))
        await asyncio.sleep(200)
        assert await conditions(c, "a") == {"Ready": "True"}


# ---- crashes and bad watches ---------------------------------------------------------------------


async def run_outage(c: Cluster) -> object:
    """One of two nodes becomes unresponsive; the other has memory pressure and is cordoned."""
    await c.add_node(node("a"))
    await c.add_node(node("b"))
    await running(c, "p", "a")
    await running(c, "q", "a")
    async with heartbeats(c, "a", "b"):
        await asyncio.sleep(20)
    async with heartbeats(c, "b"):
        await set_conditions(c, "b", MemoryPressure="True")
        await c.client.patch(NODE, Key("", "b"), {"spec": {"unschedulable": True}})
        await asyncio.sleep(140)
        return [
            *[(await taints(c, name), await conditions(c, name)) for name in ("a", "b")],
            *[await ready(c, name) for name in ("p", "q")],
        ]


def test_after_a_crash_at_any_write_another_controller_continues() -> None:
    assert assert_survives_every_crash(build, run_outage) >= 5


@pytest.mark.slow
def test_duplicate_and_late_events_change_nothing() -> None:
    assert_survives_bad_watches(build, run_outage)


@in_virtual_time
async def test_in_a_steady_state_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build_with_events):
            await run_outage(c)
        await assert_quiet(c, build_with_events)


# ---- log lines -----------------------------------------------------------------------------------


@in_virtual_time
async def test_nodes_that_stop_and_return_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with bare_cluster(build) as c:
        for name in ("a", "b"):
            await c.add_node(node(name))
        async with heartbeats(c, "a", "b"):
            await asyncio.sleep(5)
        async with heartbeats(c, "b"):
            await asyncio.sleep(80)
        await asyncio.sleep(80)
        async with heartbeats(c, "a", "b"):
            await set_conditions(c, "a", Ready="True")
            await asyncio.sleep(5)
    lines = captured_lines(caplog, "node-lifecycle-controller")
    assert [(line.level, line.message, line.fields.get("key")) for line in lines] == [
        ("INFO", "node heartbeats stopped", "a"),
        ("INFO", "node readiness changed", "a"),
        ("INFO", "node heartbeats stopped", "b"),
        ("WARNING", "all nodes are unresponsive: no pod is evicted", None),
        ("INFO", "node readiness changed", "b"),
        ("INFO", "node heartbeats resumed", "a"),
        ("INFO", "node heartbeats resumed", "b"),
        ("INFO", "node readiness changed", "a"),
    ]
    assert (lines[1].fields["was"], lines[1].fields["ready"]) == ("True", "Unknown")
    assert (lines[-1].fields["was"], lines[-1].fields["ready"]) == ("Unknown", "True")
