"""Garbage collection in virtual time: in the background, in the foreground, leaving orphans."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.controllers.belongings import (
    STAY,
    change,
    config,
    delete,
    is_leaving,
    left,
    owner,
    owners,
    there,
)
from tests.controllers.cluster import cluster, machines

# ---- in the background ---------------------------------------------------------------------------


@in_virtual_time
async def test_what_nobody_owns_any_more_follows_its_owner_down_to_the_last() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        second = await config(c, "second", owner(first))
        await config(c, "third", owner(second))
        await config(c, "free")
        since = c.store.revision
        await delete(c, "first", "Background")
        await asyncio.sleep(2)
        assert (await there(c), left(c, since)) == (["free"], ["first", "second", "third"])


@in_virtual_time
async def test_the_owner_does_not_wait_in_the_background() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first), finalizers=STAY)
        await delete(c, "first")
        assert "first" not in await there(c)
        await asyncio.sleep(2)
        assert await is_leaving(c, "second")


@in_virtual_time
async def test_one_of_two_owners_is_enough_to_stay_and_the_other_is_forgotten() -> None:
    async with cluster() as c:
        one, other = await config(c, "one"), await config(c, "other")
        await config(c, "child", owner(one), owner(other))
        await delete(c, "one")
        await asyncio.sleep(2)
        assert (await there(c), await owners(c, "child")) == (["child", "other"], ["other"])
        await delete(c, "other")
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_a_reference_that_is_kept_is_kept_as_it_was() -> None:
    async with cluster() as c:
        one, other = await config(c, "one"), await config(c, "other")
        kept: Object = {**owner(other, blocks=True), "controller": True}
        plain = {key: kept[key] for key in ("apiVersion", "kind", "name", "uid")}
        plain["uid"], plain["kind"] = "u", "Dragon"
        await config(c, "child", owner(one), kept, plain)
        await delete(c, "one")
        await asyncio.sleep(2)
        child = await c.client.get(CONFIG_MAP, Key("default", "child"))
        assert child["metadata"]["ownerReferences"] == [kept, plain]


@in_virtual_time
async def test_who_wishes_to_leave_orphans_does_so_when_collected() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        second = await config(c, "second", owner(first), finalizers=["orphan"])
        await config(c, "third", owner(second))
        await delete(c, "first")
        await asyncio.sleep(2)
        assert (await there(c), await owners(c, "third")) == (["third"], [])


# ---- in the foreground ---------------------------------------------------------------------------


@in_virtual_time
async def test_in_the_foreground_the_owner_leaves_last() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        second = await config(c, "second", owner(first, blocks=True))
        await config(c, "third", owner(second, blocks=True), finalizers=STAY)
        since = c.store.revision
        await delete(c, "first", "Foreground")
        await asyncio.sleep(30)
        assert await there(c) == ["first", "second", "third"]
        await change(c, "third", finalizers=None)
        await asyncio.sleep(2)
        assert left(c, since) == ["third", "second", "first"]


@in_virtual_time
async def test_who_does_not_block_does_not_hold_the_owner_in_the_foreground() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first), finalizers=STAY)
        await delete(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert await there(c) == ["second"]
        assert await is_leaving(c, "second")


@pytest.mark.parametrize("meta", ["unblocked", "forgotten"])
@in_virtual_time
async def test_who_ceases_to_block_lets_the_owner_go(meta: str) -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first, blocks=True), finalizers=STAY)
        await delete(c, "first", "Foreground")
        await asyncio.sleep(2)
        references = [owner(first)] if meta == "unblocked" else None
        await change(c, "second", ownerReferences=references)
        await asyncio.sleep(2)
        assert await there(c) == ["second"]


@in_virtual_time
async def test_who_has_another_owner_survives_the_foreground_and_holds_nobody() -> None:
    async with cluster() as c:
        one, other = await config(c, "one"), await config(c, "other")
        await config(c, "child", owner(one, blocks=True), owner(other, blocks=True))
        await delete(c, "one", "Foreground")
        await asyncio.sleep(2)
        assert (await there(c), await owners(c, "child")) == (["child", "other"], ["other"])
        assert not await is_leaving(c, "child")


@in_virtual_time
async def test_a_dependent_that_comes_while_its_owner_waits_goes_too() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first, blocks=True), finalizers=STAY)
        await delete(c, "first", "Foreground")
        await asyncio.sleep(2)
        await config(c, "late", owner(first, blocks=True))
        await asyncio.sleep(2)
        assert await there(c) == ["first", "second"]


@in_virtual_time
async def test_who_has_nobody_below_goes_in_one_write() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        for number in range(5):
            await config(c, f"child-{number}", owner(first, blocks=True))
        since = c.store.revision
        await delete(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert c.store.revision - since == 1 + 5 + 1


@in_virtual_time
async def test_a_pod_that_runs_is_given_its_time_and_its_owner_waits_for_it() -> None:
    async with cluster(nodes=machines(1, cpu="4"), without=["scheduler"]) as c:
        first = await config(c, "first")
        references = {"ownerReferences": [owner(first, blocks=True)]}
        await c.create(pod("p", on="n0", meta=references))
        await asyncio.sleep(1)
        since = c.store.revision
        await delete(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert left(c, since) == ["p", "first"]
        last = [change.before for change in c.store.changes(since, POD.prefix())][-1]
        assert last is not None
        assert b'"deletionGracePeriodSeconds":' in last.value


# ---- orphans -------------------------------------------------------------------------------------


@in_virtual_time
async def test_orphans_stay_and_forget_their_owner() -> None:
    async with cluster() as c:
        first, other = await config(c, "first"), await config(c, "other")
        second = await config(c, "second", owner(first, blocks=True))
        await config(c, "shared", owner(first), owner(other))
        await config(c, "third", owner(second))
        await delete(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert await there(c) == ["other", "second", "shared", "third"]
        forgotten = [await owners(c, name) for name in ("second", "shared", "third")]
        assert forgotten == [[], ["other"], ["second"]]


@in_virtual_time
async def test_an_orphan_stays_even_if_its_other_owners_go_at_the_same_time() -> None:
    async with cluster() as c:
        ends = [await config(c, f"owner-{number}") for number in range(3)]
        await config(c, "child", *(owner(end, blocks=True) for end in ends))
        policies = ("Background", "Orphan", "Foreground")
        await asyncio.gather(*(delete(c, f"owner-{n}", p) for n, p in enumerate(policies)))
        await asyncio.sleep(2)
        assert (await there(c), await owners(c, "child")) == (["child"], [])


@in_virtual_time
async def test_who_is_leaving_anyway_does_not_hold_an_owner_that_leaves_orphans() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first), finalizers=STAY)
        await delete(c, "second")
        await delete(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert await there(c) == ["second"]
