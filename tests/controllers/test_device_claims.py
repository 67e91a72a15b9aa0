"""Claims on a running control plane, and on a foreign API server: nothing is left allocated."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import JOB, NODE, POD, POD_GROUP, RESOURCE_CLAIM
from phalanx.api.meta import Key
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object, Request
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_devices import SimulatedDevices
from phalanx.sim.invariants import check_claims
from tests.builders import in_virtual_time, pod, pod_group, priority_class
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.foreign_cluster import FOREIGN_KINDS, ScriptedTransport, running_scheduler

DRIVER = "gpu.example.com"
CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
REQUESTS = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
TEMPLATE: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu", "namespace": "default"},
    "spec": {"spec": REQUESTS},
}
FROM_TEMPLATE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}


def nodes(count: int, devices: int) -> list[SimulatedNode]:
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return [
        SimulatedNode(f"n{n}", capacity, devices=[SimulatedDevices(DRIVER, devices)])
        for n in range(count)
    ]


def claim(name: str) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": deepcopy(REQUESTS),
    }


def named(name: str) -> Object:
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}


def job(name: str, workers: int, **meta: Any) -> Object:
    spec = {
        "restartPolicy": "Never",
        "containers": [
            {"name": "c", "image": "x", "resources": {"claims": [{"name": "gpu"}]}},
        ],
        **deepcopy(FROM_TEMPLATE),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": workers,
            "completions": workers,
            "scheduling": {"schedulingPolicy": {"gang": {}}},
            "template": {"metadata": {"annotations": meta}, "spec": spec},
        },
    }


async def allocations(c: Cluster) -> dict[str, list[str]]:
    """The consumers of each allocated device."""
    found: dict[str, list[str]] = {}
    for one in (await c.client.list(RESOURCE_CLAIM)).items:
        status = one.get("status") or {}
        results = (status.get("allocation") or {}).get("devices", {}).get("results") or ()
        for result in results:
            name = f"{result['pool']}/{result['device']}"
            assert name not in found, f"device {name} is allocated twice"
            found[name] = [consumer["name"] for consumer in status.get("reservedFor") or ()]
    return found


@in_virtual_time
async def test_gangs_take_turns_and_leave_nothing_allocated() -> None:
    async with cluster(nodes=nodes(2, 2)) as c:
        await c.create(deepcopy(CLASS), deepcopy(TEMPLATE))
        await c.create(*(job(f"j{n}", 4, **{"phalanx.dev/run-seconds": "5"}) for n in range(3)))

        async def all_done() -> bool:
            jobs = (await c.client.list(JOB)).items
            return all((one.get("status") or {}).get("succeeded") == 4 for one in jobs)

        async def check() -> None:
            while True:
                held = await allocations(c)
                assert all(held.values())
                assert len(held) <= 4
                await asyncio.sleep(0.5)

        checking = asyncio.create_task(check())
        await c.until(all_done, 120)
        await asyncio.sleep(5)
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        assert await allocations(c) == {}
        assert (await c.client.list(RESOURCE_CLAIM)).items == []


async def leaks(c: Cluster) -> list[str]:
    """The violated invariants of claims."""
    claims = (await c.client.list(RESOURCE_CLAIM, DeviceClaim)).items
    groups = (await c.client.list(POD_GROUP, PodGroup)).items
    return list(check_claims(claims, (await c.pods()).values(), groups))


@pytest.mark.parametrize("seed", range(3))
@in_virtual_time
async def test_gangs_that_come_and_go_leave_nothing_allocated(seed: int) -> None:
    """Users create, delete and end gangs at any moment, also while they are being bound."""
    rng = Random(seed)
    async with cluster(nodes=nodes(2, 2)) as c:
        await c.create(deepcopy(CLASS), deepcopy(TEMPLATE))
        for round_ in range(8):
            name, size = f"g{round_}", rng.randint(1, 4)
            group = pod_group(name, size)
            if rng.random() < 0.3:
                group["spec"] |= deepcopy(FROM_TEMPLATE)
            await c.create(group)
            members = [pod(f"{name}-{n}", name, spec=deepcopy(FROM_TEMPLATE)) for n in range(size)]
            await c.create(*members)
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.05, 0.3, 3.0]))
            for found in list(await c.pods()):
                if rng.random() < 0.4:
                    await c.delete(POD, found)
            if rng.random() < 0.4:
                await c.delete(POD_GROUP, name)
            assert not [one for one in await leaks(c) if one.startswith("device")]
        await asyncio.sleep(40)
        assert await leaks(c) == []
        for found in await c.pods():
            await c.delete(POD, found)
        for group in (await c.client.list(POD_GROUP)).items:
            await c.delete(POD_GROUP, group["metadata"]["name"])
        await asyncio.sleep(40)
        assert await allocations(c) == {}


@in_virtual_time
async def test_allocation_without_a_living_consumer_is_reported() -> None:
    async with cluster(nodes=nodes(1, 1), without=("scheduler", "controllers")) as c:
        await c.create(claim("a"), claim("b"))
        for name in ("a", "b"):
            result = {"request": "gpu", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
            status = {"allocation": {"devices": {"results": [result]}}}
            key = Key("default", name)
            await c.client.patch(RESOURCE_CLAIM, key, {"status": status}, subresource="status")
        assert await leaks(c) == [
            "claim default/a is allocated, but reserved for no living pod or group",
            f"device {DRIVER}/n0/gpu-0 is allocated to claims default/a and default/b",
            "claim default/b is allocated, but reserved for no living pod or group",
        ]


@in_virtual_time
async def test_gang_of_higher_priority_gets_the_devices_of_others() -> None:
    async with cluster(nodes=nodes(1, 4)) as c:
        await c.create(deepcopy(CLASS), deepcopy(TEMPLATE), priority_class("high", 100))
        await c.create(*(pod(f"low{n}", spec=deepcopy(FROM_TEMPLATE)) for n in range(4)))
        await c.until_placed("low0", "low1", "low2", "low3")
        group = pod_group("g", 3)
        group["spec"]["priorityClassName"] = "high"
        await c.create(group)
        important = {**FROM_TEMPLATE, "priorityClassName": "high"}
        await c.create(*(pod(f"m{n}", "g", spec=deepcopy(important)) for n in range(3)))
        await c.until_placed("m0", "m1", "m2")
        assert len([name for name in await c.pods() if name.startswith("low")]) == 1
        assert len(await allocations(c)) == 4


@in_virtual_time
async def test_suspended_job_releases_the_claim_of_its_group() -> None:
    async with cluster(nodes=nodes(1, 1)) as c:
        await c.create(deepcopy(CLASS), deepcopy(TEMPLATE), job("j", 1))

        async def is_running() -> bool:
            return bool(await allocations(c))

        await c.until(is_running)
        await c.client.patch(JOB, Key("default", "j"), {"spec": {"suspend": True}})

        async def is_released() -> bool:
            groups = (await c.client.list(POD_GROUP)).items
            return not groups and not await allocations(c)

        await c.until(is_released)


async def allocate(c: Cluster, name: str, node: str, **status: Any) -> None:
    """Allocate the first device of a node to a claim."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}]
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    change = {"status": {"allocation": allocation, **status}}
    await c.client.patch(RESOURCE_CLAIM, Key("default", name), change, subresource="status")


@in_virtual_time
async def test_idle_claim_that_is_allocated_for_a_cordoned_node_is_allocated_anew() -> None:
    async with cluster(nodes=nodes(2, 1)) as c:
        await c.create(deepcopy(CLASS), claim("idle"))
        await c.client.patch(NODE, Key("", "n0"), {"spec": {"unschedulable": True}})
        await allocate(c, "idle", "n0")
        await c.create(pod("p", spec=named("idle")))
        await c.until_placed("p")
        assert await allocations(c) == {"n1/gpu-0": ["p"]}


@in_virtual_time
async def test_claim_that_another_pod_uses_stays_allocated() -> None:
    async with cluster(nodes=nodes(2, 1)) as c:
        await c.create(deepcopy(CLASS), claim("used"), pod("user", spec=named("used")))
        await c.until_placed("user")
        before = await allocations(c)
        (node,) = (await c.node_by_pod()).values()
        await c.client.patch(NODE, Key("", node), {"spec": {"unschedulable": True}})
        await c.create(pod("late", spec=named("used")))
        await asyncio.sleep(20)
        assert await allocations(c) == before
        assert list(await c.node_by_pod()) == ["user"]


@in_virtual_time
async def test_extended_resource_is_served_by_a_device_of_a_simulated_node() -> None:
    async with cluster(nodes=nodes(1, 1)) as c:
        served = deepcopy(CLASS)
        served["spec"]["extendedResourceName"] = "example.com/gpu"
        await c.create(served)
        await c.create(pod("p", asks={"example.com/gpu": "1"}))
        await c.until_placed("p")
        await asyncio.sleep(2)
        assert (await c.pods())["p"].status.phase == "Running"
        assert await allocations(c) == {"n0/gpu-0": ["p"]}
        await c.delete(POD, "p")

        async def is_free() -> bool:
            return not (await c.client.list(RESOURCE_CLAIM)).items

        await c.until(is_free)


@in_virtual_time
async def test_gang_of_higher_priority_gets_the_devices_of_extended_resources() -> None:
    async with cluster(nodes=nodes(1, 3)) as c:
        served = deepcopy(CLASS)
        served["spec"]["extendedResourceName"] = "example.com/gpu"
        await c.create(served, priority_class("high", 100))
        wanted = {"example.com/gpu": "1"}
        await c.create(*(pod(f"low{n}", asks=wanted) for n in range(3)))
        await c.until_placed("low0", "low1", "low2")
        group = pod_group("g", 2)
        group["spec"]["priorityClassName"] = "high"
        await c.create(group)
        spec = {"priorityClassName": "high"}
        await c.create(*(pod(f"m{n}", "g", spec=spec, asks=wanted) for n in range(2)))
        await c.until_placed("m0", "m1")
        left = [name for name in await c.pods() if name.startswith("low")]
        held = [name for names in (await allocations(c)).values() for name in names]
        assert sorted(held) == sorted([*left, "m0", "m1"])
        assert len(left) == 1


@in_virtual_time
async def test_claim_of_a_group_stays_allocated_until_its_group_is_deleted() -> None:
    async with cluster(nodes=nodes(1, 1)) as c:
        group = pod_group("g", 2)
        group["spec"].update(deepcopy(FROM_TEMPLATE))
        await c.create(deepcopy(CLASS), deepcopy(TEMPLATE), group)
        ending = {"phalanx.dev/run-seconds": "5"}
        for name in ("m0", "m1"):
            member = pod(name, "g", spec=deepcopy(FROM_TEMPLATE))
            member["metadata"]["annotations"] = ending
            await c.create(member)
        await c.until_placed("m0", "m1")
        assert await allocations(c) == {"n0/gpu-0": ["g"]}

        async def all_ended() -> bool:
            return all(one.status.phase == "Succeeded" for one in (await c.pods()).values())

        await c.until(all_ended, 60)
        await asyncio.sleep(60)
        assert await allocations(c) == {"n0/gpu-0": ["g"]}
        await c.delete(POD_GROUP, "g")

        async def is_free() -> bool:
            return not (await c.client.list(RESOURCE_CLAIM)).items

        await c.until(is_free)


def foreign(count: int, devices: int) -> Any:
    without = ("scheduler", "controllers")
    return cluster(nodes=nodes(count, devices), without=without, kinds=FOREIGN_KINDS)


async def create_gang(c: Cluster, size: int) -> None:
    await c.create(deepcopy(CLASS), *(claim(f"c{n}") for n in range(size)), pod_group("g", size))
    await c.create(*(pod(f"m{n}", "g", spec=named(f"c{n}")) for n in range(size)))


@in_virtual_time
async def test_claims_are_written_before_the_pods_are_bound() -> None:
    async with foreign(1, 2) as c:
        await create_gang(c, 2)
        transport = ScriptedTransport(c)
        async with running_scheduler(c, transport):
            await c.until_placed("m0", "m1")
        writes = [r.path.rpartition("/")[2] for r in transport.writes]
        first_bind = writes.index("binding")
        claims = [r.path for r in transport.writes if "resourceclaims" in r.path]
        assert all("resourceclaims" not in r.path for r in transport.writes[first_bind:])
        assert len([path for path in claims if path.endswith("/status")]) == 2
        assert sorted(await allocations(c)) == ["n0/gpu-0", "n0/gpu-1"]


@pytest.mark.slow
@in_virtual_time
async def test_claims_are_released_if_one_of_them_cannot_be_written() -> None:
    async with foreign(1, 2) as c:
        await create_gang(c, 2)
        refused = "/resourceclaims/c1/status"

        def refuse(request: Request) -> ApiError | None:
            is_refused = request.method == "PATCH" and request.path.endswith(refused)
            return Forbidden("no") if is_refused else None

        transport = ScriptedTransport(c, refuse=refuse)
        async with running_scheduler(c, transport):
            await asyncio.sleep(3)
        assert transport.bound_pods == []
        assert await allocations(c) == {}


@pytest.mark.slow
@pytest.mark.parametrize("arrives", [True, False])
@in_virtual_time
async def test_scheduler_that_crashes_at_any_write_is_succeeded(arrives: bool) -> None:
    for last in range(12):
        async with foreign(1, 2) as c:
            await create_gang(c, 2)
            crashing = ScriptedTransport(c, last_write=last, last_arrives=arrives)
            async with running_scheduler(c, crashing):
                await asyncio.sleep(2)
            async with running_scheduler(c, ScriptedTransport(c), seed=2):
                await c.until_placed("m0", "m1")
            held = await allocations(c)
            assert sorted(held) == ["n0/gpu-0", "n0/gpu-1"]
            assert sorted(name for names in held.values() for name in names) == ["m0", "m1"]
