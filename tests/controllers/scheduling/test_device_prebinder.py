"""Devices with binding conditions: pods are bound once drivers have prepared their devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy

import pytest

from phalanx.api.kinds import EVENT, KINDS, POD, RESOURCE_CLAIM
from phalanx.api.meta import Key, find_condition
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import FOREIGN_KINDS, ScriptedTransport, running_scheduler
from tests.controllers.test_device_claims import CLASS, DRIVER, claim, named


def fabric_slice(names: tuple[str, ...] = ("dev-0",)) -> Object:
    """Devices that every node reaches until they are attached to one."""
    conditions = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "fabric"},
        "spec": {
            "driver": DRIVER,
            "allNodes": True,
            "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name, "bindsToNode": True, **conditions} for name in names],
        },
    }


@asynccontextmanager
async def fabric_cluster(*devices: str, is_foreign: bool = False) -> AsyncIterator[Cluster]:
    without = ("scheduler", "controllers") if is_foreign else ()
    kinds = FOREIGN_KINDS if is_foreign else KINDS
    async with AsyncExitStack() as stack:
        c = await stack.enter_async_context(
            cluster(nodes=simulated_nodes(2), without=without, kinds=kinds)
        )
        if is_foreign:
            await stack.enter_async_context(running_scheduler(c, ScriptedTransport(c)))
        await c.create(deepcopy(CLASS), fabric_slice(devices or ("dev-0",)))
        yield c


async def get_claim(c: Cluster, name: str) -> Object:
    found: Object = await c.client.get(RESOURCE_CLAIM, Key("default", name))
    return found


async def report(c: Cluster, name: str, condition: str) -> None:
    """Set a condition of the device of a claim, as its driver does."""
    status = (await get_claim(c, name))["status"]
    (result,) = status["allocation"]["devices"]["results"]
    device = {key: result[key] for key in ("driver", "pool", "device")}
    entry = {
        "type": condition,
        "status": "True",
        "reason": "Driver",
        "message": "",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    change = {"status": {"devices": [{**device, "conditions": [entry]}]}}
    await c.client.patch(RESOURCE_CLAIM, Key("default", name), change, subresource="status")


async def is_allocated(c: Cluster, name: str) -> bool:
    return bool((await get_claim(c, name)).get("status", {}).get("allocation"))


async def node_of(c: Cluster, name: str) -> str:
    return (await c.pods())[name].spec.node_name


@pytest.mark.parametrize("is_foreign", [False, True])
@in_virtual_time
async def test_pod_is_bound_when_its_device_is_attached(is_foreign: bool) -> None:
    async with fabric_cluster(is_foreign=is_foreign) as c:
        await c.create(claim("one"), pod("p", spec=named("one")))
        await c.until(lambda: is_allocated(c, "one"))
        allocation = (await get_claim(c, "one"))["status"]["allocation"]
        (result,) = allocation["devices"]["results"]
        assert result["bindingConditions"] == ["Attached"]
        assert result["bindingFailureConditions"] == ["Broken"]
        (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
        (by_name,) = term["matchFields"]
        await asyncio.sleep(60)
        assert not await node_of(c, "p")
        reasons = {one["reason"] for one in (await c.client.list(EVENT)).items}
        assert "BindingConditionsPending" in reasons
        await report(c, "one", "Attached")
        await asyncio.sleep(5)
        assert [await node_of(c, "p")] == by_name["values"]


@in_virtual_time
async def test_gang_waits_for_the_devices_of_all_members() -> None:
    async with fabric_cluster("dev-0", "dev-1") as c:
        members = [pod(f"m{n}", "g", spec=named(f"c{n}")) for n in range(2)]
        await c.create(pod_group("g", 2), claim("c0"), claim("c1"), *members)
        await c.until(lambda: is_allocated(c, "c1"))
        await report(c, "c0", "Attached")
        await asyncio.sleep(30)
        assert [await node_of(c, "m0"), await node_of(c, "m1")] == ["", ""]
        await report(c, "c1", "Attached")
        await asyncio.sleep(5)
        assert all([await node_of(c, "m0"), await node_of(c, "m1")])


@pytest.mark.parametrize("is_foreign", [False, True])
@in_virtual_time
async def test_failed_device_is_released_and_tried_again(is_foreign: bool) -> None:
    async with fabric_cluster(is_foreign=is_foreign) as c:
        await c.create(claim("one"), pod("p", spec=named("one")))
        await c.until(lambda: is_allocated(c, "one"))
        await report(c, "one", "Broken")
        await asyncio.sleep(0.5)
        status = (await get_claim(c, "one")).get("status", {})
        assert not status.get("devices")
        await c.until(lambda: is_allocated(c, "one"), 60)
        condition = find_condition((await c.pods())["p"].status.conditions, "PodScheduled")
        assert condition is not None
        assert condition.message.endswith("dev-0 of claim one has failed: Broken")
        await report(c, "one", "Attached")
        await asyncio.sleep(5)
        assert await node_of(c, "p")


@in_virtual_time
async def test_device_that_is_never_attached_is_released_after_the_timeout() -> None:
    async with fabric_cluster() as c:
        await c.create(claim("one"), pod("p", spec=named("one")))
        await c.until(lambda: is_allocated(c, "one"))
        await asyncio.sleep(599)
        assert await is_allocated(c, "one")
        await asyncio.sleep(1.5)
        found = (await c.pods())["p"]
        (condition,) = [one for one in found.status.conditions if one.type == "PodScheduled"]
        assert condition.reason == "SchedulerError"
        assert "were not prepared within 600 s" in condition.message


@in_virtual_time
async def test_device_without_conditions_comes_first() -> None:
    async with fabric_cluster() as c:
        local = fabric_slice()
        local["metadata"]["name"] = local["spec"]["pool"]["name"] = "zz"
        local["spec"]["devices"] = [{"name": "plain"}]
        await c.create(local, claim("one"), pod("p", spec=named("one")))
        await asyncio.sleep(5)
        assert await node_of(c, "p")
        (result,) = (await get_claim(c, "one"))["status"]["allocation"]["devices"]["results"]
        assert result["device"] == "plain"


@in_virtual_time
async def test_devices_of_a_gang_that_cannot_be_bound_are_released() -> None:
    async with fabric_cluster("dev-0", "dev-1") as c:
        members = [pod(f"m{n}", "g", spec=named(f"c{n}")) for n in range(2)]
        await c.create(pod_group("g", 2), claim("c0"), claim("c1"), *members)
        await c.until(lambda: is_allocated(c, "c1"))
        await report(c, "c0", "Attached")
        # A member goes while the devices are prepared: the quorum cannot be bound any more.
        await c.client.delete(POD, Key("default", "m1"))
        await report(c, "c1", "Attached")
        await asyncio.sleep(60)
        assert not await node_of(c, "m0")
        for name in ("c0", "c1"):
            status = (await get_claim(c, name)).get("status", {})
            assert not status.get("allocation"), name
            assert not status.get("reservedFor"), name
