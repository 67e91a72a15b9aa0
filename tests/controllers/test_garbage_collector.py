"""Garbage collection in virtual time: background, foreground and orphan deletion."""

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

# ---- background ----------------------------------------------------------------------------------


@in_virtual_time
async def test_background_deletion_deletes_all_levels_of_dependents() -> None:
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
async def test_owner_in_background_deletion_does_not_wait() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "second", owner_reference(first), finalizers=HELD_FINALIZERS)
        await delete_object(c, "first")
        assert "first" not in await object_names(c)
        await asyncio.sleep(2)
        assert await is_terminating(c, "second")


@in_virtual_time
async def test_dependent_with_a_remaining_owner_is_kept_and_the_absent_owner_removed() -> None:
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
async def test_remaining_owner_references_are_not_changed() -> None:
    async with cluster() as c:
        one, other = await create_config(c, "one"), await create_config(c, "other")
        kept: Object = {**owner_reference(other, blocks=True), "controller": True}
        plain = {key: kept[key] for key in ("apiVersion", "kind", "name", "uid")}
        plain["uid"], plain["kind"] = "u", "Unknown"
        await create_config(c, "child", owner_reference(one), kept, plain)
        await delete_object(c, "one")
        await asyncio.sleep(2)
        child = await c.client.get(CONFIG_MAP, Key("default", "child"))
        assert child["metadata"]["ownerReferences"] == [kept, plain]


@in_virtual_time
async def test_collected_object_with_orphan_finalizer_orphans_its_dependents() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        second = await create_config(c, "second", owner_reference(first), finalizers=["orphan"])
        await create_config(c, "third", owner_reference(second))
        await delete_object(c, "first")
        await asyncio.sleep(2)
        assert (await object_names(c), await owner_names(c, "third")) == (["third"], [])


# ---- foreground ----------------------------------------------------------------------------------


@in_virtual_time
async def test_owner_in_foreground_deletion_is_removed_last() -> None:
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
async def test_dependent_without_block_owner_deletion_does_not_block_the_owner() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "second", owner_reference(first), finalizers=HELD_FINALIZERS)
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert await object_names(c) == ["second"]
        assert await is_terminating(c, "second")


@pytest.mark.parametrize("change", ["unblocked", "removed"])
@in_virtual_time
async def test_owner_is_removed_when_its_dependent_stops_blocking(change: str) -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(
            c, "second", owner_reference(first, blocks=True), finalizers=HELD_FINALIZERS
        )
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        references = [owner_reference(first)] if change == "unblocked" else None
        await change_metadata(c, "second", ownerReferences=references)
        await asyncio.sleep(2)
        assert await object_names(c) == ["second"]


@in_virtual_time
async def test_dependent_with_another_owner_survives_and_does_not_block() -> None:
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
async def test_dependent_created_during_foreground_deletion_is_deleted() -> None:
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
async def test_dependent_without_dependents_is_deleted_in_one_write() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        for number in range(5):
            await create_config(c, f"child-{number}", owner_reference(first, blocks=True))
        since = c.store.revision
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert c.store.revision - since == 1 + 5 + 1


@in_virtual_time
async def test_owner_waits_for_the_grace_period_of_a_running_pod() -> None:
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
async def test_orphans_are_kept_without_reference_to_their_owner() -> None:
    async with cluster() as c:
        first, other = await create_config(c, "first"), await create_config(c, "other")
        second = await create_config(c, "second", owner_reference(first, blocks=True))
        await create_config(c, "shared", owner_reference(first), owner_reference(other))
        await create_config(c, "third", owner_reference(second))
        await delete_object(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert await object_names(c) == ["other", "second", "shared", "third"]
        owners = [await owner_names(c, name) for name in ("second", "shared", "third")]
        assert owners == [[], ["other"], ["second"]]


@in_virtual_time
async def test_orphan_is_kept_even_if_its_other_owners_are_deleted_at_the_same_time() -> None:
    async with cluster() as c:
        owners = [await create_config(c, f"owner-{number}") for number in range(3)]
        await create_config(c, "child", *(owner_reference(owner, blocks=True) for owner in owners))
        policies = ("Background", "Orphan", "Foreground")
        await asyncio.gather(*(delete_object(c, f"owner-{n}", p) for n, p in enumerate(policies)))
        await asyncio.sleep(2)
        assert (await object_names(c), await owner_names(c, "child")) == (["child"], [])


@in_virtual_time
async def test_terminating_dependent_does_not_block_an_orphaning_owner() -> None:
    async with cluster() as c:
        first = await create_config(c, "first")
        await create_config(c, "second", owner_reference(first), finalizers=HELD_FINALIZERS)
        await delete_object(c, "second")
        await delete_object(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert await object_names(c) == ["second"]
