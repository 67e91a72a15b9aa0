"""Garbage collection with owners and dependents of custom kinds, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from phalanx.api.errors import NotFound
from phalanx.api.kinds import CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, NAMESPACE, POD, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.resource_monitors import OwnershipMetadata
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, HeldTransport, cluster, lagging_client
from tests.controllers.crash_recovery import SERVER_ONLY
from tests.controllers.hidden_kinds import HidingTransport
from tests.controllers.owned_objects import (
    HELD_FINALIZERS,
    change_metadata,
    create_config,
    delete_object,
    object_names,
    owner_names,
    owner_reference,
    running_collector,
)

FREE_FORM: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
WIDGET = Kind("example.com", "v1", "Widget", "widgets", "")
GADGET = Kind("example.com", "v1", "Gadget", "gadgets", "")
CLUSTER_WIDGET = Kind("example.com", "v1", "Widget", "widgets", "", namespaced=False)


def definition(kind: str = "Widget", *versions: str, scope: str = "Namespaced") -> Object:
    """A definition with these versions; the last one is stored."""
    names = versions or ("v1",)
    served = [
        served_version(name, FREE_FORM, storage=number == len(names))
        for number, name in enumerate(names, start=1)
    ]
    return custom_resource_definition(*served, kind=kind, scope=scope)


async def define(c: Cluster, *definitions: Object) -> None:
    await c.create(*(definitions or (definition(),)))


async def delete_definition(c: Cluster, name: str = "widgets.example.com") -> None:
    await c.delete(CUSTOM_RESOURCE_DEFINITION, name)


# ---- propagation policies ------------------------------------------------------------------------


@in_virtual_time
async def test_children_of_a_deleted_custom_resource_are_deleted_in_the_background() -> None:
    async with cluster() as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        await c.create(pod("p", meta={"ownerReferences": [owner_reference(widget)]}))
        await asyncio.sleep(2)
        assert await object_names(c) == ["child"]
        await delete_object(c, "w", "Background", kind=WIDGET)
        await asyncio.sleep(2)
        assert (await object_names(c), await object_names(c, POD)) == ([], [])


@in_virtual_time
async def test_custom_resource_in_foreground_deletion_waits_for_its_blocking_children() -> None:
    async with cluster() as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        blocking = owner_reference(widget, blocks=True)
        await create_config(c, "child", blocking, finalizers=HELD_FINALIZERS)
        await asyncio.sleep(2)
        await delete_object(c, "w", "Foreground", kind=WIDGET)
        await asyncio.sleep(30)
        assert (await object_names(c, WIDGET), await object_names(c)) == (["w"], ["child"])
        await change_metadata(c, "child", finalizers=None)
        await asyncio.sleep(2)
        assert (await object_names(c, WIDGET), await object_names(c)) == ([], [])


@in_virtual_time
async def test_children_of_an_orphaning_custom_resource_lose_their_owner_and_stay() -> None:
    async with cluster() as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        await asyncio.sleep(2)
        await delete_object(c, "w", "Orphan", kind=WIDGET)
        await asyncio.sleep(2)
        assert await object_names(c, WIDGET) == []
        assert (await object_names(c), await owner_names(c, "child")) == (["child"], [])


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
@in_virtual_time
async def test_chain_of_custom_resources_down_to_a_pod_is_deleted(policy: str) -> None:
    async with cluster() as c:
        await define(c, definition(), definition("Gadget"))
        widget = await create_config(c, "w", kind=WIDGET)
        gadget = await create_config(c, "g", owner_reference(widget, blocks=True), kind=GADGET)
        owners = [owner_reference(gadget, blocks=True)]
        await c.create(pod("p", meta={"ownerReferences": owners}))
        await asyncio.sleep(2)
        await delete_object(c, "w", policy, kind=WIDGET)
        await asyncio.sleep(5)
        assert [await object_names(c, kind) for kind in (WIDGET, GADGET, POD)] == [[], [], []]


@in_virtual_time
async def test_custom_resource_with_a_built_in_owner_blocks_and_follows_it() -> None:
    async with cluster() as c:
        await define(c)
        config = await create_config(c, "top")
        blocking = owner_reference(config, blocks=True)
        await create_config(c, "w", blocking, kind=WIDGET, finalizers=HELD_FINALIZERS)
        await asyncio.sleep(2)
        await delete_object(c, "top", "Foreground")
        await asyncio.sleep(5)
        assert await object_names(c) == ["top"]
        await change_metadata(c, "w", WIDGET, finalizers=None)
        await asyncio.sleep(2)
        assert (await object_names(c), await object_names(c, WIDGET)) == ([], [])


@in_virtual_time
async def test_later_custom_resource_of_the_same_name_is_not_the_owner() -> None:
    async with cluster() as c:
        await define(c)
        first = await create_config(c, "w", kind=WIDGET)
        await delete_object(c, "w", kind=WIDGET)
        await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(first))
        await asyncio.sleep(2)
        assert (await object_names(c), await object_names(c, WIDGET)) == ([], ["w"])


# ---- definitions come and go ---------------------------------------------------------------------


@in_virtual_time
async def test_children_are_deleted_when_the_definition_of_their_owner_is_deleted() -> None:
    async with cluster() as c:
        await define(c)
        for number in range(30):
            widget = await create_config(c, f"w{number}", kind=WIDGET)
            await create_config(c, f"child{number}", owner_reference(widget))
        await asyncio.sleep(2)
        await delete_definition(c)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_children_are_deleted_if_the_watch_ends_before_it_shows_the_deleted_owner() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        transport = HeldTransport(c, WIDGET)
        async with running_collector(c, transport):
            await asyncio.sleep(2)
            transport.is_flowing.clear()
            await delete_definition(c)
            await asyncio.sleep(2)
            assert await object_names(c) == []


@in_virtual_time
async def test_definition_that_is_created_again_is_followed_again() -> None:
    async with cluster() as c:
        for _ in range(3):
            await define(c)
            widget = await create_config(c, "w", kind=WIDGET)
            await create_config(c, "child", owner_reference(widget))
            await asyncio.sleep(2)
            assert await object_names(c) == ["child"]
            await delete_definition(c)
            await asyncio.sleep(2)
            assert await object_names(c) == []


@in_virtual_time
async def test_child_of_a_kind_that_was_never_served_is_kept_until_the_kind_is_served() -> None:
    async with cluster() as c:
        unknown = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u"}
        await create_config(c, "child", unknown)
        await define(c, definition("Gadget"))
        await asyncio.sleep(3600)
        assert (await object_names(c), await owner_names(c, "child")) == (["child"], ["w"])
        await define(c)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_owner_in_a_version_that_is_no_longer_served_is_found_in_another() -> None:
    async with cluster() as c:
        await define(c, definition("Widget", "v2", "v1"))
        widget = await create_config(c, "w", kind=WIDGET)
        old = owner_reference(widget, apiVersion="example.com/v2")
        await create_config(c, "old", old)
        await create_config(c, "new", owner_reference(widget))
        await asyncio.sleep(2)
        served = [{**served_version("v2", FREE_FORM), "served": False, "storage": False}]
        served += [served_version("v1", FREE_FORM)]
        change: Object = {"spec": {"versions": served}}
        await c.client.patch(CUSTOM_RESOURCE_DEFINITION, Key("", "widgets.example.com"), change)
        await asyncio.sleep(2)
        assert await object_names(c) == ["new", "old"]
        await delete_object(c, "w", kind=WIDGET)
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_next_collector_deletes_children_whose_custom_owner_went_meanwhile() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        async with running_collector(c):
            await asyncio.sleep(2)
        await delete_object(c, "w", kind=WIDGET)
        async with running_collector(c):
            await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_foreground_deletion_waits_until_a_new_kind_is_listed() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, WIDGET)
        transport.is_flowing.clear()
        async with running_collector(c, transport):
            await asyncio.sleep(2)
            await define(c)
            top = await create_config(c, "top")
            blocking = owner_reference(top, blocks=True)
            await create_config(c, "w", blocking, kind=WIDGET, finalizers=HELD_FINALIZERS)
            await delete_object(c, "top", "Foreground")
            await asyncio.sleep(10)
            assert await object_names(c) == ["top"]
            transport.is_flowing.set()
            await asyncio.sleep(5)
            assert await object_names(c) == ["top"]
            await change_metadata(c, "w", WIDGET, finalizers=None)
            await asyncio.sleep(5)
            assert (await object_names(c), await object_names(c, WIDGET)) == ([], [])


# ---- namespaces ----------------------------------------------------------------------------------


async def collect_events(c: Cluster, seconds: float = 5) -> list[tuple[str, str]]:
    """Run a collector for some time; return reason and object of its events."""
    events: list[ObjectEvent] = []
    async with running_collector(c, record=events.append):
        await asyncio.sleep(seconds)
    return [(event.reason, event.regarding.name) for event in events]


@in_virtual_time
async def test_cluster_scoped_object_with_a_namespaced_owner_is_kept_with_an_event() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c, definition(scope="Cluster"))
        absent = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
        await create_config(c, "w", absent, kind=CLUSTER_WIDGET, namespace="")
        assert await collect_events(c) == [("OwnerRefInvalidNamespace", "w")]
        assert await object_names(c, CLUSTER_WIDGET) == ["w"]


@in_virtual_time
async def test_child_of_a_custom_resource_in_another_namespace_is_deleted_with_an_event() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        await c.create({"kind": "Namespace", "metadata": {"name": "other"}})
        widget = await create_config(c, "w", kind=WIDGET, namespace="other")
        await create_config(c, "child", owner_reference(widget))
        assert await collect_events(c) == [("OwnerRefInvalidNamespace", "child")]
        assert await object_names(c) == []
        assert (await c.client.get(WIDGET, Key("other", "w")))["metadata"]["name"] == "w"


@in_virtual_time
async def test_deleting_a_cluster_scoped_custom_resource_deletes_children_in_namespaces() -> None:
    async with cluster() as c:
        await define(c, definition(scope="Cluster"))
        widget = await create_config(c, "w", kind=CLUSTER_WIDGET, namespace="")
        await create_config(c, "child", owner_reference(widget))
        await asyncio.sleep(2)
        await c.delete(CLUSTER_WIDGET, "w")
        await asyncio.sleep(2)
        assert await object_names(c) == []


# ---- incomplete discovery ------------------------------------------------------------------------


@pytest.mark.parametrize("freshness", ["Current", "Stale"])
@in_virtual_time
async def test_children_are_kept_while_the_kind_of_their_owner_is_hidden(freshness: str) -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        transport = HidingTransport(c, freshness)
        async with running_collector(c, transport, is_foreign=True):
            await asyncio.sleep(2)
            transport.is_hiding = True
            await change_metadata(c, "child", annotations={"a": "b"})
            await create_config(c, "late", owner_reference(widget))
            await asyncio.sleep(600)
            assert await object_names(c) == ["child", "late"]
            transport.is_hiding = False
            await asyncio.sleep(60)
            await delete_object(c, "w", kind=WIDGET)
            await asyncio.sleep(60)
            assert await object_names(c) == []


@in_virtual_time
async def test_children_of_an_owner_that_is_deleted_while_its_kind_is_hidden_are_deleted() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        transport = HidingTransport(c)
        async with running_collector(c, transport, is_foreign=True):
            await asyncio.sleep(2)
            transport.is_hiding = True
            await asyncio.sleep(60)
            await delete_object(c, "w", kind=WIDGET)
            await asyncio.sleep(60)
            assert await object_names(c) == ["child"]
            transport.is_hiding = False
            await asyncio.sleep(60)
            assert await object_names(c) == []


@in_virtual_time
async def test_owner_is_not_absent_if_its_resource_is_not_found_but_discovered() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        transport = HidingTransport(c, hides_discovery=False)
        transport.is_hiding = True
        async with running_collector(c, transport):
            await asyncio.sleep(600)
            assert await object_names(c) == ["child"]


@in_virtual_time
async def test_kind_that_cannot_be_listed_does_not_stop_garbage_collection() -> None:
    class BrokenTransport(HidingTransport):
        async def send(self, request: Request) -> Reply | StreamReply:
            if request.path.startswith("/apis/example.com"):
                return Reply(500, b"", "text/plain")
            return await super().send(request)

    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        tops: Sequence[str] = ("Background", "Foreground", "Orphan")
        for name in tops:
            top = await create_config(c, name.lower())
            await create_config(c, f"{name.lower()}-1", owner_reference(top, blocks=True))
        async with running_collector(c, BrokenTransport(c)):
            await asyncio.sleep(60)
            for name in tops:
                await delete_object(c, name.lower(), name)
            await asyncio.sleep(10)
            assert await object_names(c) == ["orphan-1"]


@in_virtual_time
async def test_custom_child_of_an_orphaning_owner_stays_although_discovery_fails_for_long() -> None:
    class BrokenTransport(HidingTransport):
        async def send(self, request: Request) -> Reply | StreamReply:
            if self.is_hiding and request.path == "/apis":
                return Reply(500, b"", "text/plain")
            return await super().send(request)

    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        top = await create_config(c, "top")
        await create_config(c, "child", owner_reference(top), kind=WIDGET)
        transport = BrokenTransport(c)
        transport.is_hiding = True
        async with running_collector(c, transport):
            await delete_object(c, "top", "Orphan")
            await asyncio.sleep(120)
            transport.is_hiding = False
            await asyncio.sleep(120)
            assert (await object_names(c), await object_names(c, WIDGET)) == ([], ["child"])


# ---- memory --------------------------------------------------------------------------------------


def test_cached_custom_resource_has_neither_annotations_nor_labels_nor_spec() -> None:
    meta = {"name": "w", "uid": "u", "annotations": {"a": "x" * 9999}, "labels": {"b": "c"}}
    body = msgspec.json.encode({"metadata": meta, "spec": {"size": 3}})
    found = msgspec.json.decode(body, type=OwnershipMetadata)
    assert msgspec.to_builtins(found) == {
        "metadata": {
            **msgspec.to_builtins(OwnershipMetadata(type(found.metadata)()))["metadata"],
            "name": "w",
            "uid": "u",
        }
    }


@pytest.mark.parametrize("is_foreign", [True, False])
@in_virtual_time
async def test_only_metadata_is_requested_from_a_foreign_server(is_foreign: bool) -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await define(c)
        widget = await create_config(c, "w", kind=WIDGET)
        await create_config(c, "child", owner_reference(widget))
        _, transport = lagging_client(c)
        async with running_collector(c, transport, is_foreign=is_foreign):
            await asyncio.sleep(2)
            await delete_object(c, "w", kind=WIDGET)
            await asyncio.sleep(2)
            assert await object_names(c) == []
        forms = [
            "PartialObjectMetadata" in request.headers["accept"]
            for request in transport.requests
            if request.path == WIDGET.url_path()
        ]
        assert forms == [is_foreign] * 2


@in_virtual_time
async def test_namespace_with_custom_resources_and_children_is_emptied_and_removed() -> None:
    async with cluster() as c:
        await define(c)
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        widget = await create_config(c, "w", kind=WIDGET, namespace="x")
        await create_config(c, "child", owner_reference(widget), namespace="x")
        await asyncio.sleep(2)
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(10)
        with pytest.raises(NotFound):
            await c.client.get(NAMESPACE, Key("", "x"))
        assert (await c.client.list(WIDGET, namespace="x")).items == []
        assert (await c.client.list(CONFIG_MAP, namespace="x")).items == []
