"""Pods whose `nodeName` is set directly, on simulated and on process nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import convert

from phalanx.api.core import Node, Pod
from phalanx.api.kinds import EVENT, NODE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.protocol import Listing
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes import pod_admission
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.pod_admission import PodAdmission
from phalanx.controllers.reconcile_loop import Informers, StaleCacheError
from phalanx.randomness import SeededRandom
from phalanx.scheduler.cluster.pod_shape import PodShape, shape_of
from tests.builders import gang, in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

WITHOUT = ("scheduler", "controllers")


async def phases(c: Cluster) -> dict[str, str]:
    """The reason of each failed pod, and the phase of each other one."""
    found = (await c.client.list(POD)).items
    statuses = {one["metadata"]["name"]: one["status"] for one in found}
    return {name: one.get("reason") or one["phase"] for name, one in statuses.items()}


async def reject(c: Cluster, manifest: Object) -> tuple[str, str]:
    """Create a pod; return reason and message of its rejection, which its event repeats."""
    await c.create(manifest)
    await asyncio.sleep(1)
    found = await c.client.get(POD, Key("default", manifest["metadata"]["name"]))
    assert found["status"]["phase"] == "Failed", found["status"]
    reason, message = found["status"]["reason"], found["status"]["message"]
    (event,) = (await c.client.list(EVENT)).items
    assert event["involvedObject"]["uid"] == found["metadata"]["uid"]
    assert (event["type"], event["reason"]) == ("Warning", reason)
    assert (event["source"], event["count"]) == ({"component": "kubelet"}, 1)
    assert message == f"Pod was rejected: {event['message']}"
    return reason, event["message"]


def port(number: int, address: str = "", protocol: str = "TCP") -> Object:
    used = {"containerPort": 80, "hostPort": number, "hostIP": address, "protocol": protocol}
    return {"containers": [{"name": "main", "image": "i", "ports": [used]}]}


@pytest.mark.parametrize(
    ("asks", "reason", "amounts"),
    [
        ({"cpu": "2"}, "OutOfcpu", "cpu, requested: 2000, used: 7500, capacity: 8000"),
        (
            {"memory": "1Gi"},
            "OutOfmemory",
            "memory, requested: 1073741824, used: 17179869184, capacity: 17179869184",
        ),
        (
            {"nvidia.com/gpu": "1"},
            "OutOfnvidia.com/gpu",
            "nvidia.com/gpu, requested: 1, used: 2, capacity: 2",
        ),
        (
            {"hugepages-2Mi": "2Mi", "cpu": "1m"},
            "OutOfhugepages-2Mi",
            "hugepages-2Mi, requested: 2097152, used: 0, capacity: 0",
        ),
    ],
)
@in_virtual_time
async def test_a_pod_beyond_the_resources_of_its_node_is_rejected(
    asks: dict[str, str], reason: str, amounts: str
) -> None:
    shape = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2"}
    async with cluster(nodes=simulated_nodes(1, **shape), without=WITHOUT) as c:
        uses = {"cpu": "7500m", "memory": "16Gi", "nvidia.com/gpu": "2"}
        await c.create(pod("first", on="n0", asks=uses))
        await asyncio.sleep(1)
        assert await phases(c) == {"first": "Running"}
        found = await reject(c, pod("second", on="n0", asks=asks))
        assert found == (reason, f"Node didn't have enough resource: {amounts}")
        assert (await phases(c))["first"] == "Running"


@in_virtual_time
async def test_pods_beyond_the_pod_count_of_their_node_are_rejected() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8", pods="2"), without=WITHOUT) as c:
        await c.create(pod("a", on="n0"), pod("b", on="n0"))
        assert await reject(c, pod("c", on="n0")) == (
            "OutOfpods",
            "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
        )


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        (
            {"nodeSelector": {"disk": "ssd"}},
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
                    {"matchFields": [
                        {"key": "metadata.name", "operator": "NotIn", "values": ["n0"]}
                    ]},
                ]
            }}}},
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ),
        (port(8080), "NodePorts", "node(s) didn't have free ports for the requested pod ports"),
        (
            {"tolerations": [{"key": "other", "operator": "Exists"}]},
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ),
    ],
)  # fmt: skip
@in_virtual_time
async def test_a_pod_that_its_node_does_not_match_is_rejected(
    spec: Object, reason: str, message: str
) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("first", on="n0", spec=port(8080, "10.0.0.1")))
        await asyncio.sleep(1)
        if reason == "TaintToleration":
            taints = [{"key": "broken", "effect": "NoExecute"}]
            await c.client.patch(NODE, Key("", "n0"), {"spec": {"taints": taints}})
        found = await reject(c, pod("second", on="n0", spec=spec))
        assert found == (reason, f"Predicate {reason} failed: {message}")


@in_virtual_time
async def test_a_pod_that_meets_all_checks_is_admitted() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        taints = [
            {"key": "full", "effect": "NoSchedule"},
            {"key": "broken", "effect": "NoExecute"},
        ]
        await c.client.patch(NODE, Key("", "n0"), {"spec": {"taints": taints}})
        tolerated = {"tolerations": [{"key": "broken", "operator": "Exists"}]}
        here = {"nodeSelector": {"kubernetes.io/hostname": "n0"}}
        await c.create(
            pod("a", on="n0", cpu="8", spec=tolerated | here),
            pod("b", on="n0", spec=tolerated | port(8080, "10.0.0.1")),
            pod("c", on="n0", spec=tolerated | port(8080, "10.0.0.2")),
            pod("d", on="n0", spec=tolerated | port(8080, protocol="UDP")),
            pod("e", on="n0", spec=tolerated, asks={"example.com/licence": "1"}),
        )
        await asyncio.sleep(1)
        assert set((await phases(c)).values()) == {"Running"}
        await c.delete(POD, "e")  # The node does not know its resource, which invariants count.
        await asyncio.sleep(1)


@in_virtual_time
async def test_terminated_and_removed_pods_make_room() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        short = {"annotations": {"phalanx.dev/run-seconds": "5"}}
        await c.create(pod("short", on="n0", cpu="4", meta=short), pod("long", on="n0", cpu="4"))
        await asyncio.sleep(1)
        await c.create(pod("early", on="n0", cpu="4"))
        await asyncio.sleep(6)
        await c.create(pod("late", on="n0", cpu="4"))
        await c.delete(POD, "long")
        await asyncio.sleep(1)
        await c.create(pod("last", on="n0", cpu="4"), pod("none", on="n0", cpu="1m"))
        await asyncio.sleep(1)
        assert await phases(c) == {
            "short": "Succeeded", "early": "OutOfcpu", "late": "Running", "last": "Running",
            "none": "OutOfcpu",
        }  # fmt: skip


@in_virtual_time
async def test_a_restarted_kubelet_keeps_its_pods_and_admits_waiting_pods_by_age() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        starting = {"annotations": {"phalanx.dev/stages": "{start: 60}"}}
        await c.create(pod("z", on="n0", cpu="3"), pod("y", on="n0", cpu="3", meta=starting))
        await asyncio.sleep(1)
    await c.create(pod("x", on="n0", cpu="2"))
    await asyncio.sleep(2)
    await c.create(pod("a", on="n0", cpu="2"))
    async with c.plane.running():
        await asyncio.sleep(1)
        assert await phases(c) == {"z": "Running", "y": "Pending", "x": "Running", "a": "OutOfcpu"}


@in_virtual_time
async def test_process_nodes_reject_pods_too() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        nodes = simulated_nodes(1, cpu="8")
        config = ComponentConfig(nodes, WITHOUT, host=ProcessHost(Path("nowhere")))
        async with ControlPlane(c.store, c.clock, SeededRandom(2), config).running():
            assert await reject(c, pod("a", on="n0", cpu="9")) == (
                "OutOfcpu",
                "Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 8000",
            )


@in_virtual_time
async def test_pods_that_the_scheduler_binds_are_admitted_beside_rejected_ones() -> None:
    async with cluster(nodes=simulated_nodes(4, cpu="8")) as c:
        for number in range(6):
            direct = pod(f"direct-{number}", on="n1", cpu="7")
            objects = [*gang(f"g{number}", 16, cpu="2"), direct]
            for one in objects[1:]:
                one["metadata"]["annotations"] = {"phalanx.dev/run-seconds": "3"}
            await c.create(*objects)
        await asyncio.sleep(60)
        found = await phases(c)
        assert {found[name] for name in found if not name.startswith("direct")} == {"Succeeded"}
        assert "OutOfcpu" in {found[name] for name in found if name.startswith("direct")}


def cached_pod(name: str, revision: int, cpu: str, **meta: str) -> Pod:
    metadata = {"resourceVersion": str(revision), **meta}
    return convert(pod(name, on="n0", cpu=cpu, meta=metadata), Pod)


def cached_node(cpu: str, revision: int = 1) -> Node:
    meta = {"name": "n0", "resourceVersion": str(revision)}
    return convert({"metadata": meta, "status": {"allocatable": {"cpu": cpu, "pods": "9"}}}, Node)


@in_virtual_time
async def test_another_pod_of_the_same_name_is_checked_anew() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        informers = Informers(c.client, SeededRandom(1))
        pods, admission = informers.of(Pod).cache, PodAdmission(informers, {"n0"})
        informers.of(Node).cache.replace(Listing([cached_node("4")], 1))
        small, big = cached_pod("a", 1, "1", uid="1"), cached_pod("a", 3, "5", uid="2")
        pods.replace(Listing([small], 1))
        assert admission.check(small) is None
        # The informer lists again: it saw neither the deletion nor the creation.
        pods.replace(Listing([big], 3))
        rejection = admission.check(big)
        assert rejection is not None
        numbers = "requested: 5000, used: 0, capacity: 4000"
        assert rejection.message == f"Node didn't have enough resource: cpu, {numbers}"


@in_virtual_time
async def test_a_pod_whose_check_raises_never_starts_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        informers = Informers(c.client, SeededRandom(1))
        pods, admission = informers.of(Pod).cache, PodAdmission(informers, {"n0"})
        informers.of(Node).cache.replace(Listing([cached_node("4")], 1))
        rows = (("x", 1, "1"), ("y", 2, "5"), ("z", 3, "1"))
        broken, big, small = (cached_pod(*row) for row in rows)
        pods.replace(Listing([broken, big, small], 3))

        def shape_of_others(pod: Pod) -> PodShape:
            if pod is broken:
                raise RecursionError
            return shape_of(pod)

        monkeypatch.setattr(pod_admission, "shape_of", shape_of_others)
        for _ in range(2):
            with pytest.raises(RecursionError):
                admission.check(broken)
            rejection = admission.check(big)
            assert rejection is not None
            assert rejection.reason == "OutOfcpu"
            assert admission.check(small) is None


@in_virtual_time
async def test_a_pod_waits_until_its_node_is_known_and_its_answer_stays() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        informers = Informers(c.client, SeededRandom(1))
        pods, nodes = informers.of(Pod).cache, informers.of(Node).cache
        admission = PodAdmission(informers, {"n0"})
        big = cached_pod("big", 1, "5")
        pods.replace(Listing([big], 1))
        with pytest.raises(StaleCacheError, match="node n0 is not in the cache"):
            admission.check(big)
        for revision, cpu in enumerate(("4", "8"), start=2):
            nodes.replace(Listing([cached_node(cpu, revision)], revision))
            rejection = admission.check(big)
            assert rejection is not None
            assert rejection.reason == "OutOfcpu"
