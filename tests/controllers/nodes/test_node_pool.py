from __future__ import annotations

import asyncio

import pytest

from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE, Node
from phalanx.api.errors import NotFound
from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.meta import Key, parse_timestamp
from phalanx.api.wire import Object
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_heartbeats import LEASE_NAMESPACE
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import EPOCH, Cluster, cluster, simulated_nodes

WITHOUT = ["scheduler", "controllers"]


async def phase(c: Cluster, name: str = "a") -> str:
    found: Object = await c.client.get(POD, Key("default", name))
    status: str = found["status"]["phase"]
    return status


def short(run_seconds: str, name: str = "a") -> Object:
    return pod(name, on="n0", meta={"annotations": {RUN_SECONDS: run_seconds}})


@in_virtual_time
async def test_nodes_register_as_ready() -> None:
    labels = {"zone": "a"}
    nodes = [SimulatedNode("n0", {"cpu": "8", "pods": "5"}, labels)]
    async with cluster(nodes=nodes, without=WITHOUT) as c:
        (node,) = (await c.client.list(NODE, Node)).items
        assert (node.metadata.name, node.spec.taints) == ("n0", ())
        assert node.status.allocatable == {"cpu": "8", "pods": "5"}
        assert node.metadata.labels == {
            "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "n0",
            "kubernetes.io/os": "linux", "zone": "a",
        }  # fmt: skip
        assert [(one.type, one.status) for one in node.status.conditions] == [
            ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"),
            ("Ready", "True"),
        ]  # fmt: skip


@in_virtual_time
async def test_a_bound_pod_runs_until_it_is_deleted() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a"))
        await asyncio.sleep(10)
        assert await phase(c) == "Pending"
        await c.bind("a", "n0")
        await asyncio.sleep(1)
        assert await phase(c) == "Running"
        found = await c.client.get(POD, Key("default", "a"))
        assert {
            one["type"]: one["status"] for one in found["status"]["conditions"]
        } == dict.fromkeys(("PodScheduled", "Initialized", "ContainersReady", "Ready"), "True")
        assert parse_timestamp(found["status"]["startTime"]) == EPOCH + 10
        await asyncio.sleep(5_000)
        assert await phase(c) == "Running"


@pytest.mark.parametrize("seconds", [1, 10, 3600])
@in_virtual_time
async def test_a_pod_with_run_seconds_succeeds_after_that_time(seconds: int) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(short(str(seconds)))
        await asyncio.sleep(seconds - 0.5)
        assert await phase(c) == "Running"
        await asyncio.sleep(1)
        assert await phase(c) == "Succeeded"
        found = await c.client.get(POD, Key("default", "a"))
        ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
        assert parse_timestamp(ended["finishedAt"]) - parse_timestamp(ended["startedAt"]) == seconds


@pytest.mark.parametrize("seconds", ["", "soon", "-5", "1.5", "1e3"])
@in_virtual_time
async def test_run_seconds_that_is_not_a_number_fails_the_pod(seconds: str) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(short(seconds))
        await asyncio.sleep(1)
        assert await phase(c) == "Failed"


@in_virtual_time
async def test_a_pod_with_zero_run_seconds_succeeds_at_once() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(short("0"))
        await asyncio.sleep(1)
        assert await phase(c) == "Succeeded"


@in_virtual_time
async def test_a_deleted_pod_is_terminated_and_removed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a", on="n0"))
        await asyncio.sleep(1)
        since = c.store.revision
        await c.delete(POD, "a")
        await asyncio.sleep(0.5)
        with pytest.raises(NotFound):
            await phase(c)
        last = [change.before for change in c.store.changes(since, POD.store_prefix())][-1]
        assert last is not None
        assert b'"phase":"Failed"' in last.value
        assert b'"exitCode":143' in last.value


@in_virtual_time
async def test_a_finished_pod_keeps_its_phase_when_deleted() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        held = short("1")
        held["metadata"]["finalizers"] = ["example.com/stay"]
        await c.create(held)
        await asyncio.sleep(2)
        await c.delete(POD, "a")
        await asyncio.sleep(1)
        assert await phase(c) == "Succeeded"
        await c.client.patch(POD, Key("default", "a"), {"metadata": {"finalizers": []}})
        await asyncio.sleep(1)
        with pytest.raises(NotFound):
            await phase(c)


@in_virtual_time
async def test_pods_of_other_nodes_are_not_changed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a", on="somewhere-else"))
        await asyncio.sleep(100)
        assert await phase(c) == "Pending"
        await c.delete(POD, "a")
        await asyncio.sleep(100)
        assert await phase(c) == "Pending"


@in_virtual_time
async def test_a_recreated_pod_runs_for_its_own_time() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(short("10"))
        await asyncio.sleep(8)
        await c.client.delete(POD, Key("default", "a"), grace=0)
        await c.create(short("10"))
        await asyncio.sleep(8)
        assert await phase(c) == "Running"
        await asyncio.sleep(4)
        assert await phase(c) == "Succeeded"


@in_virtual_time
async def test_an_existing_node_of_ours_is_not_changed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.client.patch(NODE, Key("", "n0"), {"spec": {"unschedulable": True}})
        before = await c.client.get(NODE, Key("", "n0"))
        async with c.plane.running():
            await asyncio.sleep(20)
        assert await c.client.get(NODE, Key("", "n0")) == before


@in_virtual_time
async def test_a_restarted_kubelet_continues_running_pods() -> None:
    async with cluster(
        nodes=simulated_nodes(1, cpu="8"), without=["scheduler", "controllers"]
    ) as c:
        await c.create(short("100"))
        await asyncio.sleep(50)
    async with c.plane.running():
        await asyncio.sleep(49)
        assert await phase(c) == "Running"
        await asyncio.sleep(2)
        assert await phase(c) == "Succeeded"


# ---- nodes of other owners -----------------------------------------------------------------------


@in_virtual_time
async def test_an_existing_node_of_another_owner_is_not_changed() -> None:
    async with cluster(without=[*WITHOUT, "nodes"]) as c:
        await c.add_node(node("n0"))
        before = await c.client.get(NODE, Key("", "n0"))
        config = ComponentConfig(simulated_nodes(2, cpu="8"), WITHOUT)
        plane = ControlPlane(c.store, c.clock, SeededRandom(2), config)
        async with plane.running():
            await c.create(pod("a", on="n0"), pod("b", on="n1"))
            await asyncio.sleep(60)
            assert await c.client.get(NODE, Key("", "n0")) == before
            assert (await phase(c, "a"), await phase(c, "b")) == ("Pending", "Running")
            leases = (await c.client.list(LEASE, namespace=LEASE_NAMESPACE)).items
            assert [lease["metadata"]["name"] for lease in leases] == ["n1"]


@in_virtual_time
async def test_nodes_keep_their_configured_taints() -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    async with cluster(nodes=[SimulatedNode("n0", taints=[taint])], without=WITHOUT) as c:
        found = await c.client.get(NODE, Key("", "n0"))
        assert found["spec"]["taints"] == [taint]
        assert found["metadata"]["annotations"][NODE_TYPE_ANNOTATION] == SIMULATED_NODE_TYPE
