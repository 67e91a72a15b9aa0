"""Garbage collection in virtual time: in the background, in the foreground, leaving orphans."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import cluster, simulated_nodes
from tests.controllers.owned_objects import (
    HELD_FINALIZERS,
    change_metadata,
    create_config,
    delete_object,
    deleted_names,
    is_terminating,
    object_names,
    owner_names,
    owner_reference,
)

# ---- in the background ---------------------------------------------------------------------------


@in_virtual_time
async def test_what_nobody_owns_any_more_follows_its_owner_down_to_the_last() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        second = await create_config(c, "second", owner_reference(first))
        await create_config(c, "third", owner_reference(second))
        await create_config(c, "free")
        since = c.store.revision
        await delete_object(c, "first", "Background")
        await asyncio.sleep(2)
        assert (await object_names(c), deleted_names(c, since)) == (
            ["free"],
            ["first", "second", "third"],
        )


@in_virtual_time
async def test_the_owner_does_not_wait_in_the_background() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "second", owner_reference(first), finalizers=HELD_FINALIZERS)
        await delete_object(c, "first")
        assert "first" not in await object_names(c)
        await asyncio.sleep(2)
        assert await is_terminating(c, "second")


@in_virtual_time
async def test_one_of_two_owners_is_enough_to_stay_and_the_other_is_forgotten() -> None:
    async with cluster() as c:
        one, other = await create_config(c, "one"), await create_config(c, "other")
        await create_config(c, "child", owner_reference(one), owner_reference(other))
        await delete_object(c, "one")
        await asyncio.sleep(2)
        assert (await object_names(c), await owner_names(c, "child")) == (
            ["child", "other"],
            ["other"],
        )
        await delete_object(c, "other")
        await asyncio.sleep(2)
        assert await object_names(c) == []


@in_virtual_time
async def test_a_reference_that_is_kept_is_kept_as_it_was() -> None:
    async with cluster() as c:
        one, other = await create_config(c, "one"), await create_config(c, "other")
        kept: Object = {**owner_reference(other, blocks=True), "controller": True}
        plain = {key: kept[key] for key in ("apiVersion", "kind", "name", "uid")}
        plain["uid"], plain["kind"] = "u", "Dragon"
        await create_config(c, "child", owner_reference(one), kept, plain)
        await delete_object(c, "one")
        await asyncio.sleep(2)
        child = await c.client.get(CONFIG_MAP, Key("default", "child"))
        assert child["metadata"]["ownerReferences"] == [kept, plain]


@in_virtual_time
async def test_who_wishes_to_leave_orphans_does_so_when_collected() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        second = await create_config(c, "second", owner_reference(first), finalizers=["orphan"])
        await create_config(c, "third", owner_reference(second))
        await delete_object(c, "first")
        await asyncio.sleep(2)
        assert (await object_names(c), await owner_names(c, "third")) == (["third"], [])


# ---- in the foreground ---------------------------------------------------------------------------


@in_virtual_time
async def test_in_the_foreground_the_owner_leaves_last() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        second = await create_config(c, "second", owner_reference(first, blocks=True))
        await create_config(
            c, "third", owner_reference(second, blocks=True), finalizers=HELD_FINALIZERS
        )
        since = c.store.revision
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(30)
        assert await object_names(c) == ["first", "second", "third"]
        await change_metadata(c, "third", finalizers=None)
        await asyncio.sleep(2)
        assert deleted_names(c, since) == ["third", "second", "first"]


@in_virtual_time
async def test_who_does_not_block_does_not_hold_the_owner_in_the_foreground() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "second", owner_reference(first), finalizers=HELD_FINALIZERS)
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert await object_names(c) == ["second"]
        assert await is_terminating(c, "second")


@pytest.mark.parametrize("meta", ["unblocked", "forgotten"])
@in_virtual_time
async def test_who_ceases_to_block_lets_the_owner_go(meta: str) -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(
            c, "second", owner_reference(first, blocks=True), finalizers=HELD_FINALIZERS
        )
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        references = [owner_reference(first)] if meta == "unblocked" else None
        await change_metadata(c, "second", ownerReferences=references)
        await asyncio.sleep(2)
        assert await object_names(c) == ["second"]


@in_virtual_time
async def test_who_has_another_owner_survives_the_foreground_and_holds_nobody() -> None:
    async with cluster() as c:
        one, other = await create_config(c, "one"), await create_config(c, "other")
        await create_config(
            c, "child", owner_reference(one, blocks=True), owner_reference(other, blocks=True)
        )
        await delete_object(c, "one", "Foreground")
        await asyncio.sleep(2)
        assert (await object_names(c), await owner_names(c, "child")) == (
            ["child", "other"],
            ["other"],
        )
        assert not await is_terminating(c, "child")


@in_virtual_time
async def test_a_dependent_that_comes_while_its_owner_waits_goes_too() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(
            c, "second", owner_reference(first, blocks=True), finalizers=HELD_FINALIZERS
        )
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        await create_config(c, "late", owner_reference(first, blocks=True))
        await asyncio.sleep(2)
        assert await object_names(c) == ["first", "second"]


@in_virtual_time
async def test_who_has_nobody_below_goes_in_one_write() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        for number in range(5):
            await create_config(c, f"child-{number}", owner_reference(first, blocks=True))
        since = c.store.revision
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert c.store.revision - since == 1 + 5 + 1


@in_virtual_time
async def test_a_pod_that_runs_is_given_its_time_and_its_owner_waits_for_it() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4"), without=["scheduler"]) as c:
        first = await create_config(c, "first")
        references = {"ownerReferences": [owner_reference(first, blocks=True)]}
        await c.create(pod("p", on="n0", meta=references))
        await asyncio.sleep(1)
        since = c.store.revision
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert deleted_names(c, since) == ["p", "first"]
        last = [change.before for change in c.store.changes(since, POD.store_prefix())][-1]
        assert last is not None
        assert b'"deletionGracePeriodSeconds":' in last.value


# ---- orphans -------------------------------------------------------------------------------------


@in_virtual_time
async def test_orphans_stay_and_forget_their_owner() -> None:
    async with cluster() as c:
        first, other = await create_config(c, "first"), await create_config(c, "other")
        second = await create_config(c, "second", owner_reference(first, blocks=True))
        await create_config(c, "shared", owner_reference(first), owner_reference(other))
        await create_config(c, "third", owner_reference(second))
        await delete_object(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert await object_names(c) == ["other", "second", "shared", "third"]
        forgotten = [await owner_names(c, name) for name in ("second", "shared", "third")]
        assert forgotten == [[], ["other"], ["second"]]


@in_virtual_time
async def test_an_orphan_stays_even_if_its_other_owners_go_at_the_same_time() -> None:
    async with cluster() as c:
        ends = [await create_config(c, f"owner-{number}") for number in range(3)]
        await create_config(c, "child", *(owner_reference(end, blocks=True) for end in ends))
        policies = ("Background", "Orphan", "Foreground")
        await asyncio.gather(*(delete_object(c, f"owner-{n}", p) for n, p in enumerate(policies)))
        await asyncio.sleep(2)
        assert (await object_names(c), await owner_names(c, "child")) == (["child"], [])


@in_virtual_time
async def test_who_is_leaving_anyway_does_not_hold_an_owner_that_leaves_orphans() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "second", owner_reference(first), finalizers=HELD_FINALIZERS)
        await delete_object(c, "second")
        await delete_object(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert await object_names(c) == ["second"]
