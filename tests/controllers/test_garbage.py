from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import CONFIG_MAP, NODE, POD, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, machines


def owner(found: Object, *, blocks: bool = False) -> Object:
    """A reference to an object that was read."""
    return {
        "apiVersion": found.get("apiVersion", "v1"), "kind": found["kind"],
        "name": found["metadata"]["name"], "uid": found["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    }  # fmt: skip


async def config(
    c: Cluster, name: str, *owners: Object, finalizers: tuple[str, ...] = ()
) -> Object:
    meta = {
        "name": name, "namespace": "default", "ownerReferences": list(owners),
        "finalizers": list(finalizers),
    }  # fmt: skip
    return await c.client.create(CONFIG_MAP, {"metadata": meta})


async def there(c: Cluster, kind: Kind = CONFIG_MAP) -> list[str]:
    found = (await c.client.list(kind, namespace="default")).items
    return sorted(item["metadata"]["name"] for item in found)


async def delete(c: Cluster, name: str, how: str = "") -> None:
    await c.client.delete(CONFIG_MAP, Key("default", name), propagation=how)


async def owners(c: Cluster, name: str) -> list[str]:
    meta = (await c.client.get(CONFIG_MAP, Key("default", name)))["metadata"]
    return [one["name"] for one in meta.get("ownerReferences", [])]


@in_virtual_time
async def test_what_nobody_owns_any_more_follows_its_owner_down_to_the_last() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        second = await config(c, "second", owner(first))
        await config(c, "third", owner(second))
        await config(c, "free")
        await delete(c, "first", "Background")
        await asyncio.sleep(2)
        assert await there(c) == ["free"]


@in_virtual_time
async def test_the_owner_does_not_wait_in_the_background() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first), finalizers=("example.com/stay",))
        await delete(c, "first")
        assert "first" not in await there(c)
        await asyncio.sleep(2)
        left = await c.client.get(CONFIG_MAP, Key("default", "second"))
        assert left["metadata"]["deletionTimestamp"]


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
async def test_orphans_stay_and_forget_their_owner() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first))
        await delete(c, "first", "Orphan")
        await asyncio.sleep(2)
        assert (await there(c), await owners(c, "second")) == (["second"], [])


@in_virtual_time
async def test_in_the_foreground_the_owner_leaves_last() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first, blocks=True), finalizers=("example.com/stay",))
        await delete(c, "first", "Foreground")
        await asyncio.sleep(30)
        assert await there(c) == ["first", "second"]
        free: Object = {"metadata": {"finalizers": []}}
        await c.client.patch(CONFIG_MAP, Key("default", "second"), free)
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_who_does_not_block_does_not_hold_the_owner_in_the_foreground() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "second", owner(first), finalizers=("example.com/stay",))
        await delete(c, "first", "Foreground")
        await asyncio.sleep(2)
        assert await there(c) == ["second"]


@in_virtual_time
async def test_an_owner_that_never_was_is_an_owner_that_is_gone() -> None:
    async with cluster() as c:
        made_up = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "u"}
        await config(c, "child", made_up)
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_a_namesake_of_the_owner_is_somebody_else() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "child", owner(first), finalizers=("example.com/stay",))
        await delete(c, "first")
        await config(c, "first")
        await asyncio.sleep(2)
        child = await c.client.get(CONFIG_MAP, Key("default", "child"))
        assert child["metadata"]["deletionTimestamp"]
        assert "first" in await there(c)


@pytest.mark.parametrize("version", ["example.com/v1", "v7/v8/v9"])
@in_virtual_time
async def test_an_owner_of_a_kind_that_we_do_not_know_is_left_alone(version: str) -> None:
    async with cluster() as c:
        unknown = {"apiVersion": version, "kind": "Dragon", "name": "nobody", "uid": "u"}
        await config(c, "child", unknown)
        await asyncio.sleep(60)
        assert await there(c) == ["child"]


@in_virtual_time
async def test_an_owner_in_another_namespace_counts_as_absent() -> None:
    async with cluster() as c:
        far = {"metadata": {"name": "far", "namespace": "kube-public"}}
        found = await c.client.create(CONFIG_MAP, far)
        await config(c, "child", owner(found))
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_what_a_node_owns_goes_with_it() -> None:
    async with cluster(nodes=machines(1, cpu="4"), without=["nodes"]) as c:
        node = await c.client.create(NODE, {"metadata": {"name": "n1"}})
        await config(c, "of-a-node", owner(node))
        await asyncio.sleep(1)
        assert await there(c) == ["of-a-node"]
        await c.client.delete(NODE, Key("", "n1"))
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_pods_that_run_are_given_their_time() -> None:
    async with cluster(nodes=machines(1, cpu="4"), without=["scheduler"]) as c:
        first = await config(c, "first")
        await c.create(pod("p", on="n0", meta={"ownerReferences": [owner(first)]}))
        await asyncio.sleep(1)
        since = c.store.revision
        await delete(c, "first")
        await asyncio.sleep(2)
        assert await there(c, POD) == []
        last = [change.before for change in c.store.changes(since, POD.prefix())][-1]
        assert last is not None
        assert b'"deletionGracePeriodSeconds":' in last.value


@in_virtual_time
async def test_when_everything_is_collected_there_is_quiet() -> None:
    async with cluster(without=["nodes"]) as c:
        first = await config(c, "first")
        for number in range(5):
            await config(c, f"child-{number}", owner(first))
        await delete(c, "first")
        await asyncio.sleep(10)
        before = c.store.revision
        await asyncio.sleep(600)
        assert (c.store.revision, await there(c)) == (before, [])
