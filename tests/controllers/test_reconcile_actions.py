from __future__ import annotations

import pytest

from phalanx.api.errors import AlreadyExists, Conflict, NotFound
from phalanx.api.kinds import CONFIG_MAP
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.wire import JSON_PATCH, Object
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import Create, Delete, Patch, RecordEvent, Update, perform
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

NOTHING_ELSE = ["scheduler", "controllers", "nodes"]
KEY = Key("default", "a")


def config(**data: str) -> Object:
    return {"metadata": {"name": "a", "namespace": "default"}, "data": data}


async def data(c: Cluster) -> object:
    return (await c.client.get(CONFIG_MAP, KEY)).get("data", {})


@in_virtual_time
async def test_create_leaves_an_existing_object_unchanged() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        await perform(c.client, Create(CONFIG_MAP, config(by="first")))
        await perform(c.client, Create(CONFIG_MAP, config(by="second")))
        assert await data(c) == {"by": "first"}


@in_virtual_time
async def test_patch_changes_an_existing_object_and_ignores_a_missing_one() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        change = Patch(CONFIG_MAP, KEY, {"data": {"new": "value"}})
        await perform(c.client, change)
        await c.client.create(CONFIG_MAP, config(old="value"))
        await perform(c.client, change)
        assert await data(c) == {"old": "value", "new": "value"}


@in_virtual_time
async def test_patch_sends_its_content_type() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        await c.client.create(CONFIG_MAP, config(old="value"))
        with pytest.raises(Exception, match="a JSON patch must be a list of operations"):
            await perform(c.client, Patch(CONFIG_MAP, KEY, {"a": 1}, content=JSON_PATCH))


@in_virtual_time
async def test_update_replaces_an_object_and_fails_without_one() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        with pytest.raises(NotFound):
            await perform(c.client, Update(CONFIG_MAP, config(new="value")))
        await c.client.create(CONFIG_MAP, config(old="value"))
        await perform(c.client, Update(CONFIG_MAP, config(new="value")))
        assert await data(c) == {"new": "value"}


@in_virtual_time
async def test_delete_checks_the_uid_and_ignores_a_missing_object() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        uid = (await c.client.create(CONFIG_MAP, config()))["metadata"]["uid"]
        with pytest.raises(Conflict):
            await perform(c.client, Delete(CONFIG_MAP, KEY, "another"))
        await perform(c.client, Delete(CONFIG_MAP, KEY, uid))
        await perform(c.client, Delete(CONFIG_MAP, KEY, uid))
        with pytest.raises(NotFound):
            await data(c)


@in_virtual_time
async def test_create_in_a_missing_namespace_fails() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        lost = {"metadata": {"name": "a", "namespace": "nowhere"}}
        with pytest.raises(NotFound):
            await perform(c.client, Create(CONFIG_MAP, lost))
        assert not issubclass(NotFound, AlreadyExists)


@in_virtual_time
async def test_delete_sends_resource_version_and_propagation_policy() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        meta = (await c.client.create(CONFIG_MAP, config()))["metadata"]
        uid, version = meta["uid"], meta["resourceVersion"]
        await c.client.patch(CONFIG_MAP, KEY, {"data": {"new": "value"}})
        with pytest.raises(Conflict):
            await perform(c.client, Delete(CONFIG_MAP, KEY, uid, version=version))
        await perform(c.client, Delete(CONFIG_MAP, KEY, uid, propagation="Foreground"))
        found = (await c.client.get(CONFIG_MAP, KEY))["metadata"]
        assert found["finalizers"] == ["foregroundDeletion"]


@in_virtual_time
async def test_record_event_calls_the_recorder() -> None:
    event, recorded = (
        ObjectEvent(CONFIG_MAP, ObjectMeta(name="a"), "Because", "of this"),
        list[ObjectEvent](),
    )
    async with cluster(without=NOTHING_ELSE) as c:
        await perform(c.client, RecordEvent(event), recorded.append)
        await perform(c.client, RecordEvent(event))
    assert recorded == [event]
