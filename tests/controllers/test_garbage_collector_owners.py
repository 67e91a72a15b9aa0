"""Who is an owner of what may be collected, and owners that own each other."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import NODE, PRIORITY_CLASS, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.event_recorder import ObjectEvent
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.crash_stories import SERVER_ONLY
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

# ---- who is an owner -----------------------------------------------------------------------------


@in_virtual_time
async def test_an_owner_that_never_was_is_an_owner_that_is_gone() -> None:
    async with cluster() as c:
        made_up = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "u"}
        await create_config(c, "child", made_up)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_a_namesake_of_the_owner_is_somebody_else() -> None:
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
async def test_an_owner_may_be_named_by_any_version_that_is_served(version: str) -> None:
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
    [("example.com/v1", "Dragon"), ("v7/v8/v9", "Dragon"), ("batch/v9", "Job"), ("v2", "Pod")],
)
@in_virtual_time
async def test_an_owner_of_a_kind_or_version_that_we_do_not_know_is_left_alone(
    version: str, kind: str
) -> None:
    async with cluster() as c:
        unknown = {"apiVersion": version, "kind": kind, "name": "nobody", "uid": "u"}
        gone = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "v"}
        await create_config(c, "child", unknown, gone)
        await asyncio.sleep(60)
        assert await object_names(c) == ["child"]


@in_virtual_time
async def test_what_a_node_owns_goes_with_it() -> None:
    async with cluster(without=["nodes"]) as c:
        node = await c.client.create(NODE, {"metadata": {"name": "n1"}})
        await create_config(c, "of-a-node", owner_reference(node))
        await asyncio.sleep(1)
        assert await object_names(c) == ["of-a-node"]
        await c.client.delete(NODE, Key("", "n1"))
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_what_belongs_to_no_namespace_cannot_be_owned_by_what_does() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, way = lagging_client(c)
        async with running_collector(c, way):
            await asyncio.sleep(1)
            known = len(way.requests)
            first = await create_config(c, "first")
            meta = {"name": "high", "ownerReferences": [owner_reference(first)]}
            await c.client.create(PRIORITY_CLASS, {"metadata": meta, "value": 7})
            await delete_object(c, "first")
            await asyncio.sleep(60)
            assert "high" in await object_names(c, PRIORITY_CLASS)
            assert [
                request for request in way.requests[known:] if "watch=" not in request.query
            ] == []


@in_virtual_time
async def test_an_owner_in_another_namespace_counts_as_absent_and_that_is_told() -> None:
    notes: list[ObjectEvent] = []
    async with cluster(without=SERVER_ONLY) as c, running_collector(c, record=notes.append):
        far = await create_config(c, "far", namespace="kube-public")
        await create_config(c, "child", owner_reference(far))
        await asyncio.sleep(2)
        assert await object_names(c) == []
        uid = far["metadata"]["uid"]
        assert [(note.regarding.name, note.type, note.reason, note.message) for note in notes] == [(
            "child", "Warning", "OwnerRefInvalidNamespace",
            f"ownerRef [v1/ConfigMap, namespace: default, name: far, uid: {uid}] "
            'does not exist in namespace "default"',
        )]  # fmt: skip


@pytest.mark.parametrize("how", ["Foreground", "Orphan"])
@in_virtual_time
async def test_a_reference_from_another_namespace_cannot_hold_an_owner(how: str) -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        far = owner_reference(first, blocks=True)
        await create_config(c, "far", far, namespace="kube-public", finalizers=HELD_FINALIZERS)
        await delete_object(c, "first", how)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_a_wrong_name_beside_the_right_one_costs_nobody_his_life() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(
            c, "child", owner_reference(first), owner_reference(first, name="nobody")
        )
        await asyncio.sleep(2)
        assert await object_names(c) == ["child", "first"]
        assert await owner_names(c, "child") == ["first"]


# ---- rings ---------------------------------------------------------------------------------------


async def ring(c: Cluster, size: int) -> list[Object]:
    """r0 owns r1, which owns r2, …, which owns r0."""
    names = [f"r{number}" for number in range(size)]
    members = [await create_config(c, name) for name in names]
    for name, above in zip(names, [members[-1], *members[:-1]], strict=True):
        await change_metadata(c, name, ownerReferences=[owner_reference(above, blocks=True)])
    return members


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("how", ["Background", "Foreground"])
@in_virtual_time
async def test_a_ring_of_owners_is_collected_once_one_of_them_is_deleted(
    how: str, size: int
) -> None:
    async with cluster() as c:
        await ring(c, size)
        await asyncio.sleep(60)
        assert len(await object_names(c)) == size
        await delete_object(c, "r0", how)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_who_owns_himself_can_be_deleted_in_the_foreground() -> None:
    async with cluster() as c:
        await ring(c, 1)
        await delete_object(c, "r0", "Foreground")
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_a_ring_waits_for_those_outside_it() -> None:
    async with cluster() as c:
        members = await ring(c, 3)
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
async def test_who_owns_a_ring_leaves_after_it() -> None:
    async with cluster() as c:
        top, members = await create_config(c, "top"), await ring(c, 2)
        above = [owner_reference(found, blocks=True) for found in (members[1], top)]
        await change_metadata(c, "r0", ownerReferences=above)
        await asyncio.gather(
            delete_object(c, "top", "Foreground"), delete_object(c, "r1", "Foreground")
        )
        await asyncio.sleep(2)
        assert deleted_names(c)[-1] == "top"
        assert await object_names(c) == []
