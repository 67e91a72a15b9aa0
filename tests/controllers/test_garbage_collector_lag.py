"""Garbage collection with caches that lag behind and collectors that end."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import POD, SECRET
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.transports import InProcessTransport
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, HeldTransport, cluster, lagging_client
from tests.controllers.crash_stories import SERVER_ONLY
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

# ---- caches that lag -----------------------------------------------------------------------------


@in_virtual_time
async def test_an_owner_that_came_back_while_nobody_heard_of_it_is_found() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, SECRET)
        async with running_collector(c, way):
            await create_config(c, "first", kind=SECRET)
            await asyncio.sleep(1)
            way.is_flowing.clear()
            await delete_object(c, "first", kind=SECRET)
            again = await create_config(c, "first", kind=SECRET)
            await create_config(c, "child", owner_reference(again))
            await asyncio.sleep(5)
            way.is_flowing.set()
            await asyncio.sleep(5)
            assert (await object_names(c), await object_names(c, SECRET)) == (["child"], ["first"])


@in_virtual_time
async def test_who_has_forgotten_the_owner_unheard_is_not_deleted_with_it() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, SECRET)
        async with running_collector(c, way):
            first = await create_config(c, "first")
            await create_config(c, "child", owner_reference(first), kind=SECRET)
            await asyncio.sleep(1)
            way.is_flowing.clear()
            await change_metadata(c, "child", SECRET, ownerReferences=None)
            await delete_object(c, "first")
            await asyncio.sleep(30)
            assert await object_names(c, SECRET) == ["child"]
            way.is_flowing.set()
            await asyncio.sleep(60)
            assert await object_names(c, SECRET) == ["child"]


@in_virtual_time
async def test_a_namesake_of_what_was_to_go_is_not_deleted_in_its_place() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, SECRET)
        async with running_collector(c, way):
            first = await create_config(c, "first")
            await create_config(c, "child", owner_reference(first), kind=SECRET)
            await asyncio.sleep(1)
            way.is_flowing.clear()
            await delete_object(c, "child", kind=SECRET)
            await create_config(c, "child", kind=SECRET)
            await delete_object(c, "first")
            await asyncio.sleep(30)
            way.is_flowing.set()
            await asyncio.sleep(60)
            assert await object_names(c, SECRET) == ["child"]


@in_virtual_time
async def test_an_owner_that_was_added_unheard_is_not_forgotten() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, SECRET)
        async with running_collector(c, way):
            made = [await create_config(c, name) for name in ("one", "other", "new")]
            references = [owner_reference(found) for found in made]
            await create_config(c, "child", *references[:2], kind=SECRET)
            await asyncio.sleep(1)
            way.is_flowing.clear()
            await change_metadata(c, "child", SECRET, ownerReferences=references)
            await delete_object(c, "one")
            await asyncio.sleep(5)
            way.is_flowing.set()
            await asyncio.sleep(60)
            assert await owner_names(c, "child", SECRET) == ["other", "new"]


@in_virtual_time
async def test_an_orphan_of_which_nobody_had_heard_is_spared() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, SECRET)
        async with running_collector(c, way):
            first = await create_config(c, "first")
            await asyncio.sleep(1)
            way.is_flowing.clear()
            await create_config(c, "child", owner_reference(first), kind=SECRET)
            await delete_object(c, "first", "Orphan")
            await asyncio.sleep(5)
            assert await object_names(c) == ["first"]
            way.is_flowing.set()
            await asyncio.sleep(5)
            assert (await object_names(c), await object_names(c, SECRET)) == ([], ["child"])
            assert await owner_names(c, "child", SECRET) == []


@in_virtual_time
async def test_nobody_is_let_go_before_everything_is_known() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        first, second = await create_config(c, "first"), await create_config(c, "second")
        await create_config(c, "of-first", owner_reference(first), kind=SECRET)
        await create_config(
            c,
            "of-second",
            owner_reference(second, blocks=True),
            kind=SECRET,
            finalizers=HELD_FINALIZERS,
        )
        await delete_object(c, "first", "Orphan")
        await delete_object(c, "second", "Foreground")
        way = HeldTransport(c, SECRET)
        way.is_flowing.clear()
        async with running_collector(c, way):
            await asyncio.sleep(5)
            assert await object_names(c) == ["first", "second"]
            way.is_flowing.set()
            await asyncio.sleep(5)
            assert (await object_names(c), await owner_names(c, "of-first", SECRET)) == (
                ["second"],
                [],
            )


# ---- ends and quiet ------------------------------------------------------------------------------


class LimitedWritesTransport:
    """A way to the server on which only so many writes go through."""

    def __init__(self, c: Cluster, writes: int) -> None:
        self._inner, self._left = InProcessTransport(c.plane.server.handle, ADMIN), writes

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method != "GET":
            if not self._left:
                await asyncio.Event().wait()
            self._left -= 1
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("writes", range(12))
@in_virtual_time
async def test_what_one_collector_began_the_next_one_finishes(writes: int) -> None:
    async with cluster(without=SERVER_ONLY) as c:
        tops = {
            how: await create_config(c, how.lower())
            for how in ("Foreground", "Orphan", "Background")
        }
        for how, top in tops.items():
            middle = await create_config(c, f"{how.lower()}-1", owner_reference(top, blocks=True))
            await create_config(
                c, f"{how.lower()}-2", owner_reference(middle, blocks=True), owner_reference(top)
            )
        await create_config(
            c, "shared", *(owner_reference(top, blocks=True) for top in tops.values())
        )
        for how in tops:
            await delete_object(c, how.lower(), how)
        async with running_collector(c, LimitedWritesTransport(c, writes)):
            await asyncio.sleep(5)
        async with running_collector(c):
            await asyncio.sleep(5)
            before = c.store.revision
            await asyncio.sleep(600)
            assert c.store.revision == before
        assert await object_names(c) == ["orphan-1", "orphan-2", "shared"]
        kept = [await owner_names(c, name) for name in ("orphan-1", "orphan-2", "shared")]
        assert kept == [[], ["orphan-1"], []]


@in_virtual_time
async def test_what_neither_owns_nor_is_owned_is_never_looked_at() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        client = c.plane.client("collector")
        informers = Informers(client, SeededRandom(2))
        looked = GarbageCollector(client, informers).queue
        following = asyncio.create_task(informers.run())
        await informers.wait_for_sync()
        running: Object = {"status": {"phase": "Running"}}
        for name in ("p0", "p1", "p2"):
            await c.create(pod(name))
            await c.client.patch(POD, Key("default", name), running, subresource="status")
            await c.delete(POD, name)
        await asyncio.sleep(1)
        assert len(looked) == 0
        following.cancel()


@in_virtual_time
async def test_an_owner_whom_one_knows_is_not_asked_about() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, way = lagging_client(c)
        async with running_collector(c, way):
            first = await create_config(c, "first")
            await asyncio.sleep(1)
            known = len(way.requests)
            for number in range(20):
                await c.create(
                    pod(f"p{number}", meta={"ownerReferences": [owner_reference(first)]})
                )
                await c.delete(POD, f"p{number}")
            await asyncio.sleep(1)
            assert way.requests[known:] == []
