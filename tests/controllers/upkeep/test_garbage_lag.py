"""Garbage collection with caches that lag behind and collectors that end."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import POD, SECRET
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, Stream
from phalanx.chance import SeededChance
from phalanx.client.transports import InProcess
from phalanx.controllers.loop import Informers
from phalanx.controllers.upkeep.garbage import Garbage
from phalanx.server.access import ADMIN
from tests.builders import in_virtual_time, pod
from tests.controllers.belongings import (
    STAY,
    change,
    collecting,
    config,
    delete,
    owner,
    owners,
    there,
)
from tests.controllers.cluster import Cluster, Held, cluster, lagging
from tests.controllers.lives import BARE

# ---- caches that lag -----------------------------------------------------------------------------


@in_virtual_time
async def test_an_owner_that_came_back_while_nobody_heard_of_it_is_found() -> None:
    async with cluster(without=BARE) as c:
        way = Held(c, SECRET)
        async with collecting(c, way):
            await config(c, "first", kind=SECRET)
            await asyncio.sleep(1)
            way.flows.clear()
            await delete(c, "first", kind=SECRET)
            again = await config(c, "first", kind=SECRET)
            await config(c, "child", owner(again))
            await asyncio.sleep(5)
            way.flows.set()
            await asyncio.sleep(5)
            assert (await there(c), await there(c, SECRET)) == (["child"], ["first"])


@in_virtual_time
async def test_who_has_forgotten_the_owner_unheard_is_not_deleted_with_it() -> None:
    async with cluster(without=BARE) as c:
        way = Held(c, SECRET)
        async with collecting(c, way):
            first = await config(c, "first")
            await config(c, "child", owner(first), kind=SECRET)
            await asyncio.sleep(1)
            way.flows.clear()
            await change(c, "child", SECRET, ownerReferences=None)
            await delete(c, "first")
            await asyncio.sleep(30)
            assert await there(c, SECRET) == ["child"]
            way.flows.set()
            await asyncio.sleep(60)
            assert await there(c, SECRET) == ["child"]


@in_virtual_time
async def test_a_namesake_of_what_was_to_go_is_not_deleted_in_its_place() -> None:
    async with cluster(without=BARE) as c:
        way = Held(c, SECRET)
        async with collecting(c, way):
            first = await config(c, "first")
            await config(c, "child", owner(first), kind=SECRET)
            await asyncio.sleep(1)
            way.flows.clear()
            await delete(c, "child", kind=SECRET)
            await config(c, "child", kind=SECRET)
            await delete(c, "first")
            await asyncio.sleep(30)
            way.flows.set()
            await asyncio.sleep(60)
            assert await there(c, SECRET) == ["child"]


@in_virtual_time
async def test_an_owner_that_was_added_unheard_is_not_forgotten() -> None:
    async with cluster(without=BARE) as c:
        way = Held(c, SECRET)
        async with collecting(c, way):
            made = [await config(c, name) for name in ("one", "other", "new")]
            references = [owner(found) for found in made]
            await config(c, "child", *references[:2], kind=SECRET)
            await asyncio.sleep(1)
            way.flows.clear()
            await change(c, "child", SECRET, ownerReferences=references)
            await delete(c, "one")
            await asyncio.sleep(5)
            way.flows.set()
            await asyncio.sleep(60)
            assert await owners(c, "child", SECRET) == ["other", "new"]


@in_virtual_time
async def test_an_orphan_of_which_nobody_had_heard_is_spared() -> None:
    async with cluster(without=BARE) as c:
        way = Held(c, SECRET)
        async with collecting(c, way):
            first = await config(c, "first")
            await asyncio.sleep(1)
            way.flows.clear()
            await config(c, "child", owner(first), kind=SECRET)
            await delete(c, "first", "Orphan")
            await asyncio.sleep(5)
            assert await there(c) == ["first"]
            way.flows.set()
            await asyncio.sleep(5)
            assert (await there(c), await there(c, SECRET)) == ([], ["child"])
            assert await owners(c, "child", SECRET) == []


@in_virtual_time
async def test_nobody_is_let_go_before_everything_is_known() -> None:
    async with cluster(without=BARE) as c:
        first, second = await config(c, "first"), await config(c, "second")
        await config(c, "of-first", owner(first), kind=SECRET)
        await config(c, "of-second", owner(second, blocks=True), kind=SECRET, finalizers=STAY)
        await delete(c, "first", "Orphan")
        await delete(c, "second", "Foreground")
        way = Held(c, SECRET)
        way.flows.clear()
        async with collecting(c, way):
            await asyncio.sleep(5)
            assert await there(c) == ["first", "second"]
            way.flows.set()
            await asyncio.sleep(5)
            assert (await there(c), await owners(c, "of-first", SECRET)) == (["second"], [])


# ---- ends and quiet ------------------------------------------------------------------------------


class Mortal:
    """A way to the server on which only so many writes go through."""

    def __init__(self, c: Cluster, writes: int) -> None:
        self._inner, self._left = InProcess(c.plane.server.handle, ADMIN), writes

    async def send(self, request: Request) -> Reply | Stream:
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
    async with cluster(without=BARE) as c:
        tops = {how: await config(c, how.lower()) for how in ("Foreground", "Orphan", "Background")}
        for how, top in tops.items():
            middle = await config(c, f"{how.lower()}-1", owner(top, blocks=True))
            await config(c, f"{how.lower()}-2", owner(middle, blocks=True), owner(top))
        await config(c, "shared", *(owner(top, blocks=True) for top in tops.values()))
        for how in tops:
            await delete(c, how.lower(), how)
        async with collecting(c, Mortal(c, writes)):
            await asyncio.sleep(5)
        async with collecting(c):
            await asyncio.sleep(5)
            before = c.store.revision
            await asyncio.sleep(600)
            assert c.store.revision == before
        assert await there(c) == ["orphan-1", "orphan-2", "shared"]
        kept = [await owners(c, name) for name in ("orphan-1", "orphan-2", "shared")]
        assert kept == [[], ["orphan-1"], []]


@in_virtual_time
async def test_what_neither_owns_nor_is_owned_is_never_looked_at() -> None:
    async with cluster(without=BARE) as c:
        client = c.plane.client("collector")
        informers = Informers(client, SeededChance(2))
        looked = Garbage(client, informers).queue
        following = asyncio.create_task(informers.run())
        await informers.synced()
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
    async with cluster(without=BARE) as c:
        _, way = lagging(c)
        async with collecting(c, way):
            first = await config(c, "first")
            await asyncio.sleep(1)
            known = len(way.asked)
            for number in range(20):
                await c.create(pod(f"p{number}", meta={"ownerReferences": [owner(first)]}))
                await c.delete(POD, f"p{number}")
            await asyncio.sleep(1)
            assert way.asked[known:] == []
