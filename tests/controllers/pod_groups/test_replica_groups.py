"""PodGroups for pods that name a Workload, a template and a replica."""

from __future__ import annotations

import asyncio

from phalanx.api.conversion.workload_references import TEMPLATE_ANNOTATION, WORKLOAD_ANNOTATION
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.pod_groups import ReplicaGroups
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.server.objects import decode_record, encoder
from phalanx.store.kv import StoreWrite
from tests.builders import in_virtual_time, pod, pod_group, priority_class
from tests.controllers.cluster import Cluster, cluster, lagging_client, simulated_nodes

GANG: Object = {"gang": {"minCount": 2}}


def workload(*templates: str, policy: Object = GANG) -> Object:
    return {
        "apiVersion": WORKLOAD.api_version, "kind": "Workload",
        "metadata": {"name": "w", "namespace": "default"},
        "spec": {"podGroupTemplates": [{"name": n, "schedulingPolicy": policy} for n in templates]},
    }  # fmt: skip


def member(name: str, template: str = "t", key: str = "") -> Object:
    reference = {"name": "w", "podGroup": template}
    if key:
        reference["podGroupReplicaKey"] = key
    return pod(name, spec={"workloadRef": reference})


async def groups(c: Cluster) -> dict[str, Object]:
    found = (await c.client.list(POD_GROUP)).items
    return {group["metadata"]["name"]: group for group in found}


@in_virtual_time
async def test_every_replica_gets_its_own_group() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(workload("t"))
        pods = [f"{key}-{n}" for key in ("a", "b") for n in range(2)]
        for name in pods:
            await c.create(member(name, key=name[0]))
        await c.until_placed(*pods)
        found = await groups(c)
        assert list(found) == ["w-t-a", "w-t-b"]
        made = found["w-t-a"]
        assert made["spec"]["schedulingPolicy"] == GANG
        assert made["spec"]["workloadRef"] == {"workloadName": "w", "templateName": "t"}
        owner = await c.client.get(WORKLOAD, Key("default", "w"))
        assert made["metadata"]["ownerReferences"] == [{
            "apiVersion": WORKLOAD.api_version, "kind": "Workload", "name": "w",
            "uid": owner["metadata"]["uid"],
        }]  # fmt: skip


@in_virtual_time
async def test_pods_wait_for_their_workload_and_for_the_rest_of_their_gang() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(member("a"))
        await asyncio.sleep(10)
        assert await groups(c) == {}
        await c.create(workload("t"))
        await asyncio.sleep(10)
        assert list(await groups(c)) == ["w-t"]
        assert await c.node_by_pod() == {}
        await c.create(member("b"))
        await c.until_placed("a", "b")


@in_virtual_time
async def test_groups_are_created_for_pods_that_arrived_while_the_controller_was_down() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4"), without=["controllers"]) as c:
        await c.create(workload("t"), member("a"), member("b"))
        await asyncio.sleep(10)
        assert await groups(c) == {}
        informers = Informers(c.client, SeededRandom(1))
        made = ReplicaGroups(c.client, informers)
        async with asyncio.TaskGroup() as parts:
            tasks = [parts.create_task(run()) for run in (informers.run, made.run)]
            await c.until_placed("a", "b")
            for task in tasks:
                task.cancel()


@in_virtual_time
async def test_no_group_is_created_for_a_pod_that_a_stale_cache_shows_as_active() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        client, _ = lagging_client(c, 2.0)
        informers = Informers(client, SeededRandom(1))
        made = ReplicaGroups(client, informers)
        await c.create(member("a"))
        async with asyncio.TaskGroup() as parts:
            tasks = [parts.create_task(run()) for run in (informers.run, made.run)]
            await asyncio.sleep(10)
            await c.create(workload("t"))
            await asyncio.sleep(1)
            ended = {"status": {"phase": "Succeeded"}}
            await c.client.patch(POD, Key("default", "a"), ended, subresource="status")
            await asyncio.sleep(10)
            for task in tasks:
                task.cancel()
        assert await groups(c) == {}


@in_virtual_time
async def test_without_the_template_no_group_is_created() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(workload("t"), member("a", "other"))
        await asyncio.sleep(10)
        assert await groups(c) == {}


@in_virtual_time
async def test_a_group_of_a_never_preempting_class_has_that_policy() -> None:
    quiet = priority_class("quiet", 7, preemptionPolicy="Never")
    of_class = workload("t", policy={"basic": {}})
    of_class["spec"]["podGroupTemplates"][0]["priorityClassName"] = "quiet"
    one = member("a")
    one["spec"]["priorityClassName"] = "quiet"
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(quiet, of_class, one)
        await c.until_placed("a")
        spec = (await groups(c))["w-t"]["spec"]
        assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")


@in_virtual_time
async def test_an_existing_group_is_not_changed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        mine = pod_group("w-t", 1)
        mine["spec"] = {"schedulingPolicy": {"basic": {}}}
        await c.create(mine)
        await c.create(workload("t"), member("a"))
        await c.until_placed("a")
        found = (await groups(c))["w-t"]
        assert found["spec"]["schedulingPolicy"] == {"basic": {}}
        assert "ownerReferences" not in found["metadata"]


@in_virtual_time
async def test_pods_that_name_their_group_get_no_replica_group() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        named = pod("a", spec={"workloadRef": {"name": "w", "podGroupName": "w-t"}})
        await c.create(workload("t"), named)
        await asyncio.sleep(10)
        assert await groups(c) == {}


@in_virtual_time
async def test_no_group_is_created_whose_name_does_not_match_the_annotations() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(workload("t"), pod("a", spec={"schedulingGroup": {"podGroupName": "other"}}))
        record = c.store.get(POD.store_key("default", "a"))
        assert record is not None
        # A Phalanx server removes stale annotations; a foreign server does not know them.
        stray = decode_record(record)
        stray["metadata"]["annotations"] = {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}
        await c.store.commit([StoreWrite(record.key, encoder(stray), record.revision)])
        await asyncio.sleep(10)
        assert await groups(c) == {}


@in_virtual_time
async def test_a_group_is_deleted_with_its_workload_once_its_pods_are_gone() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(workload("t", policy={"basic": {}}), member("a"))
        await c.until_placed("a")
        await c.delete(WORKLOAD, "w")
        await asyncio.sleep(10)
        assert (await groups(c))["w-t"]["metadata"]["deletionTimestamp"]
        await c.delete(POD, "a")

        async def is_gone() -> bool:
            try:
                await c.client.get(POD_GROUP, Key("default", "w-t"))
            except NotFound:
                return True
            return False

        await c.until(is_gone)
        await asyncio.sleep(10)
        assert await groups(c) == {}
