"""Garbage collection with stale caches and crashed collectors."""

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
from tests.controllers.crash_recovery import SERVER_ONLY
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

# ---- stale caches --------------------------------------------------------------------------------


@in_virtual_time
async def test_owner_that_was_recreated_while_the_cache_was_stale_is_found() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, SECRET)
        async with running_collector(c, transport):
            await create_config(c, "first", kind=SECRET)
            await asyncio.sleep(1)
            transport.is_flowing.clear()
            await delete_object(c, "first", kind=SECRET)
            again = await create_config(c, "first", kind=SECRET)
            await create_config(c, "child", owner_reference(again))
            await asyncio.sleep(5)
            transport.is_flowing.set()
            await asyncio.sleep(5)
            assert (await object_names(c), await object_names(c, SECRET)) == (["child"], ["first"])


@in_virtual_time
async def test_dependent_that_lost_its_reference_while_the_cache_was_stale_is_kept() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, SECRET)
        async with running_collector(c, transport):
            first = await create_config(c, "first")
            await create_config(c, "child", owner_reference(first), kind=SECRET)
            await asyncio.sleep(1)
            transport.is_flowing.clear()
            await change_metadata(c, "child", SECRET, ownerReferences=None)
            await delete_object(c, "first")
            await asyncio.sleep(30)
            assert await object_names(c, SECRET) == ["child"]
            transport.is_flowing.set()
            await asyncio.sleep(60)
            assert await object_names(c, SECRET) == ["child"]


@in_virtual_time
async def test_recreated_dependent_of_the_same_name_is_kept() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, SECRET)
        async with running_collector(c, transport):
            first = await create_config(c, "first")
            await create_config(c, "child", owner_reference(first), kind=SECRET)
            await asyncio.sleep(1)
            transport.is_flowing.clear()
            await delete_object(c, "child", kind=SECRET)
            await create_config(c, "child", kind=SECRET)
            await delete_object(c, "first")
            await asyncio.sleep(30)
            transport.is_flowing.set()
            await asyncio.sleep(60)
            assert await object_names(c, SECRET) == ["child"]


@in_virtual_time
async def test_owner_that_was_added_while_the_cache_was_stale_is_kept() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, SECRET)
        async with running_collector(c, transport):
            owners = [await create_config(c, name) for name in ("one", "other", "new")]
            references = [owner_reference(owner) for owner in owners]
            await create_config(c, "child", *references[:2], kind=SECRET)
            await asyncio.sleep(1)
            transport.is_flowing.clear()
            await change_metadata(c, "child", SECRET, ownerReferences=references)
            await delete_object(c, "one")
            await asyncio.sleep(5)
            transport.is_flowing.set()
            await asyncio.sleep(60)
            assert await owner_names(c, "child", SECRET) == ["other", "new"]


@in_virtual_time
async def test_orphan_that_the_cache_lacks_is_kept() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, SECRET)
        async with running_collector(c, transport):
            first = await create_config(c, "first")
            await asyncio.sleep(1)
            transport.is_flowing.clear()
            await create_config(c, "child", owner_reference(first), kind=SECRET)
            await delete_object(c, "first", "Orphan")
            await asyncio.sleep(5)
            assert await object_names(c) == ["first"]
            transport.is_flowing.set()
            await asyncio.sleep(5)
            assert (await object_names(c), await object_names(c, SECRET)) == ([], ["child"])
            assert await owner_names(c, "child", SECRET) == []


@in_virtual_time
async def test_no_owner_is_finalized_before_all_caches_are_synced() -> None:
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
        transport = HeldTransport(c, SECRET)
        transport.is_flowing.clear()
        async with running_collector(c, transport):
            await asyncio.sleep(5)
            assert await object_names(c) == ["first", "second"]
            transport.is_flowing.set()
            await asyncio.sleep(5)
            assert (await object_names(c), await owner_names(c, "of-first", SECRET)) == (
                ["second"],
                [],
            )


# ---- crashes and idle collectors -----------------------------------------------------------------


class LimitedWritesTransport:
    """Forwards a limited number of writes and blocks the others."""

    def __init__(self, c: Cluster, writes: int) -> None:
        self._inner, self._left = InProcessTransport(c.plane.server.handle, ADMIN), writes

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method != "GET":
            if not self._left:
                await asyncio.Event().wait()
            self._left -= 1
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("writes", range(12))
@in_virtual_time
async def test_next_collector_finishes_what_a_crashed_one_started(writes: int) -> None:
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
async def test_object_without_owners_and_dependents_is_never_queued() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        client = c.plane.client("collector")
        informers = Informers(client, SeededRandom(2))
        queue = GarbageCollector(client, informers).queue
        task = asyncio.create_task(informers.run())
        await informers.wait_for_sync()
        running: Object = {"status": {"phase": "Running"}}
        for name in ("p0", "p1", "p2"):
            await c.create(pod(name))
            await c.client.patch(POD, Key("default", name), running, subresource="status")
            await c.delete(POD, name)
        await asyncio.sleep(1)
        assert len(queue) == 0
        task.cancel()


@in_virtual_time
async def test_cached_owner_is_not_read_from_the_api() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, transport = lagging_client(c)
        async with running_collector(c, transport):
            first = await create_config(c, "first")
            await asyncio.sleep(1)
            known = len(transport.requests)
            for number in range(20):
                await c.create(
                    pod(f"p{number}", meta={"ownerReferences": [owner_reference(first)]})
                )
                await c.delete(POD, f"p{number}")
            await asyncio.sleep(1)
            assert transport.requests[known:] == []


@in_virtual_time
async def test_deleted_owner_that_was_cached_is_not_read_from_the_api() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, transport = lagging_client(c)
        async with running_collector(c, transport):
            first = await create_config(c, "first")
            for number in range(20):
                await create_config(c, f"child{number}", owner_reference(first))
            await asyncio.sleep(1)
            known = len(transport.requests)
            await delete_object(c, "first")
            await asyncio.sleep(1)
            assert await object_names(c) == []
            assert {request.method for request in transport.requests[known:]} == {"DELETE"}
