"""Volume claims on a running control plane, and on a foreign API server: nothing is half-bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from phalanx.api.storage import SELECTED_NODE
from phalanx.api.wire import Object, Request
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.volumes.binder import VolumeBinder
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.foreign_cluster import FOREIGN_KINDS, ScriptedTransport, running_scheduler

HOST = "kubernetes.io/hostname"


def nodes(count: int) -> list[SimulatedNode]:
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return [SimulatedNode(f"n{n}", capacity, {HOST: f"n{n}"}) for n in range(count)]


def storage_class(provisioner: str = "kubernetes.io/no-provisioner", **parameters: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "disk"},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": parameters,
    }


def volume(name: str, node: str) -> Object:
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "disk",
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": f"/mnt/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


def claim(name: str, storage: str = "disk") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
            "storageClassName": storage,
        },
    }


def uses(name: str) -> Object:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


async def create_gang(c: Cluster, size: int, storage: str = "disk") -> None:
    await c.create(*(claim(f"c{n}", storage) for n in range(size)), pod_group("g", size))
    await c.create(*(pod(f"m{n}", "g", spec=uses(f"c{n}")) for n in range(size)))


async def claims(c: Cluster) -> dict[str, Object]:
    found = (await c.client.list(PERSISTENT_VOLUME_CLAIM)).items
    return {one["metadata"]["name"]: one for one in found}


async def bound_volumes(c: Cluster) -> dict[str, str]:
    """The volume of each bound claim; both sides must agree."""
    volumes = {
        one["metadata"]["name"]: (one["spec"].get("claimRef") or {}).get("name", "")
        for one in (await c.client.list(PERSISTENT_VOLUME)).items
    }
    bound = {
        name: one["spec"]["volumeName"]
        for name, one in (await claims(c)).items()
        if (one.get("status") or {}).get("phase") == "Bound"
    }
    assert len(set(bound.values())) == len(bound), "two claims are bound to one volume"
    assert all(volumes[volume] == name for name, volume in bound.items())
    return bound


def selected(one: Object) -> str:
    return str((one["metadata"].get("annotations") or {}).get(SELECTED_NODE, ""))


@in_virtual_time
async def test_gang_and_its_local_volumes_are_bound_in_one_transaction() -> None:
    async with cluster(nodes=nodes(3)) as c:
        await c.create(storage_class(), *(volume(f"v{n}", f"n{n}") for n in range(2)))
        await create_gang(c, 3)
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        assert await bound_volumes(c) == {}
        await c.create(volume("v2", "n2"))
        await c.until_placed("m0", "m1", "m2")
        found, placed = await bound_volumes(c), await c.node_by_pod()
        assert {found[f"c{n}"].replace("v", "n") for n in range(3)} == set(placed.values())
        assert all(found[f"c{n}"][1:] == placed[f"m{n}"][1:] for n in range(3))


@in_virtual_time
async def test_pods_are_bound_after_their_volumes_are_provisioned_and_block_no_others() -> None:
    async with cluster(nodes=nodes(2)) as c:
        await c.create(storage_class("phalanx.dev/simulated", delaySeconds="30"))
        await create_gang(c, 2)
        await asyncio.sleep(5)
        pods = await c.pods()
        nominated = [pods[f"m{n}"].status.nominated_node_name for n in range(2)]
        assert [selected(one) for one in (await claims(c)).values()] == nominated
        condition = await c.group_condition("g", "PodGroupInitiallyScheduled")
        assert condition is not None
        assert condition.status == "True"
        await c.create(pod("other"))
        assert await c.until_placed("other") < 5
        await c.create(pod("late", "g"))
        await asyncio.sleep(5)
        # A later member counts on the earlier ones, so it waits for them.
        assert await c.node_by_pod() == {"other": (await c.node_by_pod())["other"]}
        await c.until_placed("m0", "m1", "late")
        assert sorted(await bound_volumes(c)) == ["c0", "c1"]
        assert await c.violations() == []


@in_virtual_time
async def test_selected_node_is_removed_after_the_timeout_and_no_claim_is_deleted() -> None:
    async with cluster(nodes=nodes(1)) as c:
        await c.create(storage_class("absent.example"))
        await c.create(claim("c0"), pod("m0", spec=uses("c0")))
        await asyncio.sleep(580)
        assert [selected(one) for one in (await claims(c)).values()] == ["n0"]
        assert await c.events("FailedScheduling") == []

        async def are_returned() -> bool:
            return not any(map(selected, (await claims(c)).values()))

        assert 19 < await c.until(are_returned, 30) < 21
        await asyncio.sleep(10)
        ((name, message),) = await c.events("FailedScheduling")
        assert (name, message) == ("m0", "claim c0 was not bound within 600 s")
        assert sorted(await claims(c)) == ["c0"]
        assert await c.node_by_pod() == {}


@in_virtual_time
async def test_bound_claims_pin_the_next_attempt_after_provisioning_failed() -> None:
    async with cluster(nodes=nodes(2)) as c:
        await c.create(storage_class("phalanx.dev/simulated", failureRate="0.5", topologyKey=HOST))
        await create_gang(c, 4)
        await c.until_placed("m0", "m1", "m2", "m3", seconds=600)
        assert len(await bound_volumes(c)) == 4
        assert await c.violations() == []


@in_virtual_time
async def test_another_node_is_selected_if_the_selected_one_is_gone() -> None:
    async with cluster() as c:
        await c.create(storage_class("absent.example"))
        await c.add_node(node("n0"))
        await c.create(claim("c0"), pod("m0", spec=uses("c0")))
        await asyncio.sleep(5)
        assert [selected(one) for one in (await claims(c)).values()] == ["n0"]
        await c.add_node(node("new"))
        await c.delete(NODE, "n0")
        await asyncio.sleep(10)
        assert [selected(one) for one in (await claims(c)).values()] == ["new"]


@in_virtual_time
async def test_binder_leaves_volumes_to_the_scheduler_while_another_one_is_provisioned() -> None:
    async with cluster(nodes=nodes(1)) as c:
        await c.create(storage_class("phalanx.dev/simulated", delaySeconds="30"))
        await c.create(volume("v0", "n0"))
        await asyncio.sleep(1)
        both = {"volumes": [*uses("c0")["volumes"], {**uses("c1")["volumes"][0], "name": "more"}]}
        await c.create(claim("c0"), claim("c1"), pod("m0", spec=both))
        await c.until_placed("m0")
        assert "v0" in (await bound_volumes(c)).values()
        assert await c.events("FailedScheduling") == []


@in_virtual_time
async def test_claim_that_is_deleted_meanwhile_ends_the_attempt() -> None:
    async with cluster(nodes=nodes(1)) as c:
        await c.create(storage_class("absent.example"))
        await create_gang(c, 1)
        await asyncio.sleep(5)
        await c.delete(PERSISTENT_VOLUME_CLAIM, "c0")

        async def is_refused() -> bool:
            found = await c.pod_condition("m0")
            return found is not None and "c0" in found.message

        await c.until(is_refused)
        assert await c.node_by_pod() == {}


# ---- on a foreign server -------------------------------------------------------------------------


@asynccontextmanager
async def foreign(count: int) -> AsyncIterator[Cluster]:
    """A foreign server with a volume binder of its own."""
    without = ("scheduler", "controllers")
    async with cluster(nodes=nodes(count), without=without, kinds=FOREIGN_KINDS) as c:
        informers = Informers(c.client, SeededRandom(9))
        binder = VolumeBinder(c.client, informers)
        tasks = [asyncio.create_task(informers.run()), asyncio.create_task(binder.run())]
        try:
            yield c
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def create_local_gang(c: Cluster) -> None:
    await c.create(storage_class(), volume("v0", "n0"), volume("v1", "n1"))
    await create_gang(c, 2)


@in_virtual_time
async def test_claims_of_the_quorum_are_bound_before_the_pods() -> None:
    async with foreign(2) as c:
        await create_local_gang(c)
        transport = ScriptedTransport(c)
        async with running_scheduler(c, transport):
            await c.until_placed("m0", "m1")
        paths = [request.path for request in transport.writes]
        binds = [number for number, path in enumerate(paths) if path.endswith("/binding")]
        volumes = [number for number, path in enumerate(paths) if "persistentvolumes" in path]
        assert max(volumes) < min(binds)
        assert len(await bound_volumes(c)) == 2


@in_virtual_time
async def test_no_pod_is_bound_if_a_volume_cannot_be_reserved() -> None:
    async with foreign(2) as c:
        await create_local_gang(c)

        def refuse(request: Request) -> ApiError | None:
            is_refused = request.method == "PATCH" and request.path.endswith("/v1")
            return Forbidden("no") if is_refused else None

        transport = ScriptedTransport(c, refuse=refuse)
        async with running_scheduler(c, transport):
            await asyncio.sleep(5)
        assert transport.bound_pods == []


@pytest.mark.slow
@pytest.mark.parametrize("arrives", [True, False])
@in_virtual_time
async def test_scheduler_that_crashes_at_any_write_is_succeeded(arrives: bool) -> None:
    for last in range(10):
        async with foreign(2) as c:
            await create_local_gang(c)
            crashing = ScriptedTransport(c, last_write=last, last_arrives=arrives)
            async with running_scheduler(c, crashing):
                await asyncio.sleep(2)
            async with running_scheduler(c, ScriptedTransport(c), seed=2):
                await c.until_placed("m0", "m1")
            found, placed = await bound_volumes(c), await c.node_by_pod()
            assert all(found[f"c{n}"][1:] == placed[f"m{n}"][1:] for n in range(2))
