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
async def test_what_is_to_be_made_is_made_once() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        await perform(c.client, Create(CONFIG_MAP, config(by="first")))
        await perform(c.client, Create(CONFIG_MAP, config(by="second")))
        assert await data(c) == {"by": "first"}


@in_virtual_time
async def test_a_patch_changes_what_is_there_and_leaves_what_is_gone() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        change = Patch(CONFIG_MAP, KEY, {"data": {"new": "value"}})
        await perform(c.client, change)
        await c.client.create(CONFIG_MAP, config(old="value"))
        await perform(c.client, change)
        assert await data(c) == {"old": "value", "new": "value"}


@in_virtual_time
async def test_a_patch_may_be_of_another_sort() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        await c.client.create(CONFIG_MAP, config(old="value"))
        with pytest.raises(Exception, match="rejected"):
            await perform(c.client, Patch(CONFIG_MAP, KEY, {"a": 1}, content=JSON_PATCH))


@in_virtual_time
async def test_a_put_replaces_and_needs_something_to_replace() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        with pytest.raises(NotFound):
            await perform(c.client, Update(CONFIG_MAP, config(new="value")))
        await c.client.create(CONFIG_MAP, config(old="value"))
        await perform(c.client, Update(CONFIG_MAP, config(new="value")))
        assert await data(c) == {"new": "value"}


@in_virtual_time
async def test_a_deletion_is_of_that_very_object_and_leaves_what_is_gone() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        uid = (await c.client.create(CONFIG_MAP, config()))["metadata"]["uid"]
        with pytest.raises(Conflict):
            await perform(c.client, Delete(CONFIG_MAP, KEY, "another"))
        await perform(c.client, Delete(CONFIG_MAP, KEY, uid))
        await perform(c.client, Delete(CONFIG_MAP, KEY, uid))
        with pytest.raises(NotFound):
            await data(c)


@in_virtual_time
async def test_what_cannot_be_made_for_want_of_its_namespace_is_told() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        lost = {"metadata": {"name": "a", "namespace": "nowhere"}}
        with pytest.raises(NotFound):
            await perform(c.client, Create(CONFIG_MAP, lost))
        assert not issubclass(NotFound, AlreadyExists)


@in_virtual_time
async def test_a_deletion_may_be_of_one_version_alone_and_wait_for_what_is_below() -> None:
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
async def test_what_is_to_be_told_is_told() -> None:
    note, told = (
        ObjectEvent(CONFIG_MAP, ObjectMeta(name="a"), "Because", "of this"),
        list[ObjectEvent](),
    )
    async with cluster(without=NOTHING_ELSE) as c:
        await perform(c.client, RecordEvent(note), told.append)
        await perform(c.client, RecordEvent(note))
    assert told == [note]
