"""The resolution of owner references, and cycles of owners."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import NODE, PRIORITY_CLASS, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.event_recorder import ObjectEvent
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.crash_recovery import SERVER_ONLY
from tests.controllers.owned_objects import (
    HELD_FINALIZERS,
    change_metadata,
    create_config,
    delete_object,
    deleted_names,
    object_names,
    owner_names,
    owner_reference,
    running_collector,
)

# ---- owner references ----------------------------------------------------------------------------


@in_virtual_time
async def test_owner_that_never_existed_is_absent() -> None:
    async with cluster() as c:
        absent = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "u"}
        await create_config(c, "child", absent)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_later_object_of_the_same_name_is_not_the_owner() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "child", owner_reference(first))
        await delete_object(c, "first")
        await create_config(c, "first")
        await asyncio.sleep(2)
        await create_config(c, "late", owner_reference(first))
        await asyncio.sleep(2)
        assert await object_names(c) == ["first"]


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"])
@in_virtual_time
async def test_owner_may_be_referenced_by_any_served_version(version: str) -> None:
    async with cluster() as c:
        template = {"name": "t", "schedulingPolicy": {"basic": {}}}
        meta = {"name": "w", "namespace": "default"}
        manifest = {"metadata": meta, "spec": {"podGroupTemplates": [template]}}
        workload = await c.client.create(WORKLOAD, manifest)
        await create_config(
            c, "child", owner_reference(workload, apiVersion=f"scheduling.k8s.io/{version}")
        )
        await asyncio.sleep(2)
        assert await object_names(c) == ["child"]
        await c.client.delete(WORKLOAD, Key("default", "w"))
        await asyncio.sleep(2)
        assert await object_names(c) == []


@pytest.mark.parametrize(
    ("version", "kind"),
    [("example.com/v1", "Unknown"), ("v7/v8/v9", "Unknown"), ("batch/v9", "Job"), ("v2", "Pod")],
)
@in_virtual_time
async def test_owner_of_an_unknown_kind_or_version_counts_as_present(
    version: str, kind: str
) -> None:
    async with cluster() as c:
        unknown = {"apiVersion": version, "kind": kind, "name": "absent", "uid": "u"}
        absent = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "v"}
        await create_config(c, "child", unknown, absent)
        await asyncio.sleep(60)
        assert await object_names(c) == ["child"]


@in_virtual_time
async def test_dependents_of_a_node_are_deleted_with_it() -> None:
    async with cluster(without=["nodes"]) as c:
        node = await c.client.create(NODE, {"metadata": {"name": "n1"}})
        await create_config(c, "of-a-node", owner_reference(node))
        await asyncio.sleep(1)
        assert await object_names(c) == ["of-a-node"]
        await c.client.delete(NODE, Key("", "n1"))
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_cluster_scoped_object_cannot_have_a_namespaced_owner() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, transport = lagging_client(c)
        async with running_collector(c, transport):
            await asyncio.sleep(1)
            known = len(transport.requests)
            first = await create_config(c, "first")
            meta = {"name": "high", "ownerReferences": [owner_reference(first)]}
            await c.client.create(PRIORITY_CLASS, {"metadata": meta, "value": 7})
            await delete_object(c, "first")
            await asyncio.sleep(60)
            assert "high" in await object_names(c, PRIORITY_CLASS)
            assert [
                request for request in transport.requests[known:] if "watch=" not in request.query
            ] == []


@in_virtual_time
async def test_owner_in_another_namespace_is_absent_and_recorded() -> None:
    events: list[ObjectEvent] = []
    async with cluster(without=SERVER_ONLY) as c, running_collector(c, record=events.append):
        far = await create_config(c, "far", namespace="kube-public")
        await create_config(c, "child", owner_reference(far))
        await asyncio.sleep(2)
        assert await object_names(c) == []
        uid = far["metadata"]["uid"]
        assert [
            (event.regarding.name, event.type, event.reason, event.message) for event in events
        ] == [(
            "child", "Warning", "OwnerRefInvalidNamespace",
            f"ownerRef [v1/ConfigMap, namespace: default, name: far, uid: {uid}] "
            'does not exist in namespace "default"',
        )]  # fmt: skip


@pytest.mark.parametrize("how", ["Foreground", "Orphan"])
@in_virtual_time
async def test_reference_from_another_namespace_does_not_block_an_owner(how: str) -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        far = owner_reference(first, blocks=True)
        await create_config(c, "far", far, namespace="kube-public", finalizers=HELD_FINALIZERS)
        await delete_object(c, "first", how)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_wrong_name_beside_the_right_one_deletes_no_object() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(
            c, "child", owner_reference(first), owner_reference(first, name="absent")
        )
        await asyncio.sleep(2)
        assert await object_names(c) == ["child", "first"]
        assert await owner_names(c, "child") == ["first"]


# ---- cycles --------------------------------------------------------------------------------------


async def create_cycle(c: Cluster, size: int) -> list[Object]:
    """Create objects of which r0 owns r1, which owns r2, …, which owns r0."""
    names = [f"r{number}" for number in range(size)]
    members = [await create_config(c, name) for name in names]
    for name, above in zip(names, [members[-1], *members[:-1]], strict=True):
        await change_metadata(c, name, ownerReferences=[owner_reference(above, blocks=True)])
    return members


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("how", ["Background", "Foreground"])
@in_virtual_time
async def test_cycle_of_owners_is_collected_once_one_of_them_is_deleted(
    how: str, size: int
) -> None:
    async with cluster() as c:
        await create_cycle(c, size)
        await asyncio.sleep(60)
        assert len(await object_names(c)) == size
        await delete_object(c, "r0", how)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_object_that_owns_itself_can_be_deleted_in_the_foreground() -> None:
    async with cluster() as c:
        await create_cycle(c, 1)
        await delete_object(c, "r0", "Foreground")
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_cycle_waits_for_blocking_dependents_outside_it() -> None:
    async with cluster() as c:
        members = await create_cycle(c, 3)
        await create_config(
            c, "outside", owner_reference(members[1], blocks=True), finalizers=HELD_FINALIZERS
        )
        since = c.store.revision
        await delete_object(c, "r0", "Foreground")
        await asyncio.sleep(30)
        assert await object_names(c) == ["outside", "r0", "r1", "r2"]
        await change_metadata(c, "outside", finalizers=None)
        await asyncio.sleep(2)
        assert await object_names(c) == []
        assert deleted_names(c, since)[0] == "outside"


@in_virtual_time
async def test_owner_of_a_cycle_is_removed_after_it() -> None:
    async with cluster() as c:
        top, members = await create_config(c, "top"), await create_cycle(c, 2)
        above = [owner_reference(found, blocks=True) for found in (members[1], top)]
        await change_metadata(c, "r0", ownerReferences=above)
        await asyncio.gather(
            delete_object(c, "top", "Foreground"), delete_object(c, "r1", "Foreground")
        )
        await asyncio.sleep(2)
        assert deleted_names(c)[-1] == "top"
        assert await object_names(c) == []
