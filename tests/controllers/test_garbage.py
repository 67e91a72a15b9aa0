"""Garbage collection in virtual time, with caches that may lag behind and collectors that end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.errors import NotFound
from phalanx.api.kinds import CONFIG_MAP, NODE, POD, PRIORITY_CLASS, SECRET, WORKLOAD, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, Stream
from phalanx.chance import SeededChance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess, Transport
from phalanx.controllers.garbage import Garbage
from phalanx.controllers.loop import Informers
from phalanx.controllers.recorder import Note
from phalanx.server.access import ADMIN
from phalanx.sim.loop import run
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, lagging, machines

STAY = ("example.com/stay",)
#: Nothing but the server: for tests that bring a collector of their own.
BARE = ("scheduler", "controllers", "nodes")


def owner(found: Object, *, blocks: bool = False, **changes: str) -> Object:
    """A reference to an object that was read."""
    meta = found["metadata"]
    return {
        "apiVersion": found["apiVersion"], "kind": found["kind"], "name": meta["name"],
        "uid": meta["uid"], "blockOwnerDeletion": blocks, **changes,
    }  # fmt: skip


async def config(
    c: Cluster,
    name: str,
    *owners: Object,
    kind: Kind = CONFIG_MAP,
    namespace: str = "default",
    finalizers: Sequence[str] = (),
) -> Object:
    meta = {
        "name": name, "namespace": namespace, "ownerReferences": list(owners),
        "finalizers": list(finalizers),
    }  # fmt: skip
    return await c.client.create(kind, {"metadata": meta})


async def there(c: Cluster, kind: Kind = CONFIG_MAP) -> list[str]:
    found = (await c.client.list(kind, namespace="default" if kind.namespaced else "")).items
    return sorted(item["metadata"]["name"] for item in found)


async def delete(c: Cluster, name: str, how: str = "", *, kind: Kind = CONFIG_MAP) -> None:
    await c.client.delete(kind, Key("default", name), propagation=how)


async def change(c: Cluster, name: str, kind: Kind = CONFIG_MAP, **meta: object) -> None:
    await c.client.patch(kind, Key("default", name), {"metadata": meta})


async def owners(c: Cluster, name: str, kind: Kind = CONFIG_MAP) -> list[str]:
    meta = (await c.client.get(kind, Key("default", name)))["metadata"]
    return [one["name"] for one in meta.get("ownerReferences", [])]


async def is_leaving(c: Cluster, name: str) -> bool:
    meta = (await c.client.get(CONFIG_MAP, Key("default", name)))["metadata"]
    return "deletionTimestamp" in meta


def left(c: Cluster, since: int = 0) -> list[str]:
    """Which pods and config maps have left for good, in that order."""
    gone = [change.key for change in c.store.changes(since) if change.after is None]
    kinds = (CONFIG_MAP.prefix(), POD.prefix())
    return [key.rpartition("/")[2] for key in gone if key.startswith(kinds)]


@asynccontextmanager
async def collecting(
    c: Cluster,
    way: Transport | None = None,
    tell: Callable[[Note], None] = lambda note: None,
) -> AsyncIterator[None]:
    """Another collector, with caches of its own, on a way of its own to the server."""
    client = Client(way) if way else c.plane.client("collector")
    informers = Informers(client, SeededChance(2))
    garbage = Garbage(client, informers, tell)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(garbage.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


class Held:
    """A way to the server on which all news of one kind can be held up."""

    def __init__(self, c: Cluster, kind: Kind) -> None:
        self._inner, self._path = InProcess(c.plane.server.handle, ADMIN), kind.path()
        self.flows = asyncio.Event()
        self.flows.set()

    async def send(self, request: Request) -> Reply | Stream:
        answer = await self._inner.send(request)
        if request.path != self._path:
            return answer
        if isinstance(answer, Stream):
            return Stream(answer.code, self._late(answer.chunks))
        await self.flows.wait()
        return answer

    async def _late(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks):
            async for chunk in chunks:
                await self.flows.wait()
                yield chunk

    async def close(self) -> None:
        """Nothing is held."""


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


# ---- who is an owner -----------------------------------------------------------------------------


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
        await config(c, "child", owner(first))
        await delete(c, "first")
        await config(c, "first")
        await asyncio.sleep(2)
        await config(c, "late", owner(first))
        await asyncio.sleep(2)
        assert await there(c) == ["first"]


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"])
@in_virtual_time
async def test_an_owner_may_be_named_by_any_version_that_is_served(version: str) -> None:
    async with cluster() as c:
        template = {"name": "t", "schedulingPolicy": {"basic": {}}}
        meta = {"name": "w", "namespace": "default"}
        manifest = {"metadata": meta, "spec": {"podGroupTemplates": [template]}}
        workload = await c.client.create(WORKLOAD, manifest)
        await config(c, "child", owner(workload, apiVersion=f"scheduling.k8s.io/{version}"))
        await asyncio.sleep(2)
        assert await there(c) == ["child"]
        await c.client.delete(WORKLOAD, Key("default", "w"))
        await asyncio.sleep(2)
        assert await there(c) == []


@pytest.mark.parametrize(
    ("version", "kind"),
    [("example.com/v1", "Dragon"), ("v7/v8/v9", "Dragon"), ("batch/v9", "Job"), ("v2", "Pod")],
)
@in_virtual_time
async def test_an_owner_of_a_kind_or_version_that_we_do_not_know_is_left_alone(
    version: str, kind: str
) -> None:
    async with cluster() as c:
        unknown = {"apiVersion": version, "kind": kind, "name": "nobody", "uid": "u"}
        gone = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "v"}
        await config(c, "child", unknown, gone)
        await asyncio.sleep(60)
        assert await there(c) == ["child"]


@in_virtual_time
async def test_what_a_node_owns_goes_with_it() -> None:
    async with cluster(without=["nodes"]) as c:
        node = await c.client.create(NODE, {"metadata": {"name": "n1"}})
        await config(c, "of-a-node", owner(node))
        await asyncio.sleep(1)
        assert await there(c) == ["of-a-node"]
        await c.client.delete(NODE, Key("", "n1"))
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_what_belongs_to_no_namespace_cannot_be_owned_by_what_does() -> None:
    async with cluster(without=BARE) as c:
        _, way = lagging(c)
        async with collecting(c, way):
            await asyncio.sleep(1)
            known = len(way.asked)
            first = await config(c, "first")
            meta = {"name": "high", "ownerReferences": [owner(first)]}
            await c.client.create(PRIORITY_CLASS, {"metadata": meta, "value": 7})
            await delete(c, "first")
            await asyncio.sleep(60)
            assert "high" in await there(c, PRIORITY_CLASS)
            assert [request for request in way.asked[known:] if "watch=" not in request.query] == []


@in_virtual_time
async def test_an_owner_in_another_namespace_counts_as_absent_and_that_is_told() -> None:
    notes: list[Note] = []
    async with cluster(without=BARE) as c, collecting(c, tell=notes.append):
        far = await config(c, "far", namespace="kube-public")
        await config(c, "child", owner(far))
        await asyncio.sleep(2)
        assert await there(c) == []
        uid = far["metadata"]["uid"]
        assert [(note.about.name, note.type, note.reason, note.message) for note in notes] == [(
            "child", "Warning", "OwnerRefInvalidNamespace",
            f"ownerRef [v1/ConfigMap, namespace: default, name: far, uid: {uid}] "
            'does not exist in namespace "default"',
        )]  # fmt: skip


@pytest.mark.parametrize("how", ["Foreground", "Orphan"])
@in_virtual_time
async def test_a_reference_from_another_namespace_cannot_hold_an_owner(how: str) -> None:
    async with cluster() as c:
        first = await config(c, "first")
        far = owner(first, blocks=True)
        await config(c, "far", far, namespace="kube-public", finalizers=STAY)
        await delete(c, "first", how)
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_a_wrong_name_beside_the_right_one_costs_nobody_his_life() -> None:
    async with cluster() as c:
        first = await config(c, "first")
        await config(c, "child", owner(first), owner(first, name="nobody"))
        await asyncio.sleep(2)
        assert await there(c) == ["child", "first"]
        assert await owners(c, "child") == ["first"]


# ---- rings ---------------------------------------------------------------------------------------


async def ring(c: Cluster, size: int) -> list[Object]:
    """r0 owns r1, which owns r2, …, which owns r0."""
    names = [f"r{number}" for number in range(size)]
    members = [await config(c, name) for name in names]
    for name, above in zip(names, [members[-1], *members[:-1]], strict=True):
        await change(c, name, ownerReferences=[owner(above, blocks=True)])
    return members


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("how", ["Background", "Foreground"])
@in_virtual_time
async def test_a_ring_of_owners_is_collected_once_one_of_them_is_deleted(
    how: str, size: int
) -> None:
    async with cluster() as c:
        await ring(c, size)
        await asyncio.sleep(60)
        assert len(await there(c)) == size
        await delete(c, "r0", how)
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_who_owns_himself_can_be_deleted_in_the_foreground() -> None:
    async with cluster() as c:
        await ring(c, 1)
        await delete(c, "r0", "Foreground")
        await asyncio.sleep(2)
        assert await there(c) == []


@in_virtual_time
async def test_a_ring_waits_for_those_outside_it() -> None:
    async with cluster() as c:
        members = await ring(c, 3)
        await config(c, "outside", owner(members[1], blocks=True), finalizers=STAY)
        since = c.store.revision
        await delete(c, "r0", "Foreground")
        await asyncio.sleep(30)
        assert await there(c) == ["outside", "r0", "r1", "r2"]
        await change(c, "outside", finalizers=None)
        await asyncio.sleep(2)
        assert await there(c) == []
        assert left(c, since)[0] == "outside"


@in_virtual_time
async def test_who_owns_a_ring_leaves_after_it() -> None:
    async with cluster() as c:
        top, members = await config(c, "top"), await ring(c, 2)
        above = [owner(found, blocks=True) for found in (members[1], top)]
        await change(c, "r0", ownerReferences=above)
        await asyncio.gather(delete(c, "top", "Foreground"), delete(c, "r1", "Foreground"))
        await asyncio.sleep(2)
        assert left(c)[-1] == "top"
        assert await there(c) == []


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


# ---- whatever is deleted -------------------------------------------------------------------------

POLICIES = ("Background", "Foreground", "Orphan")


class Step(NamedTuple):
    """The deletion of one object, and for how long to wait then."""

    name: str
    how: str
    pause: float


class Plot(NamedTuple):
    """Objects with the names of their owners, all of which came before them; what is deleted."""

    owners: dict[str, list[str]]
    blocks: bool
    steps: list[Step]


@st.composite
def plots(draw: st.DrawFn, pauses: Sequence[float]) -> Plot:
    names = [f"o{number}" for number in range(draw(st.integers(2, 9)))]
    above = {
        name: draw(st.lists(st.sampled_from(names[:at]), max_size=3, unique=True)) if at else []
        for at, name in enumerate(names)
    }
    doomed = draw(st.lists(st.sampled_from(names), max_size=5, unique=True))
    how, pause = st.sampled_from(POLICIES), st.sampled_from(pauses)
    return Plot(above, draw(st.booleans()), [Step(name, draw(how), draw(pause)) for name in doomed])


def kind_of(name: str) -> Kind:
    """Half of them are of another kind, of which one hears at another time."""
    return (CONFIG_MAP, SECRET)[int(name[1:]) % 2]


async def play(c: Cluster, plot: Plot) -> list[Step]:
    """Make everything, delete what is to be deleted; the steps that met somebody."""
    made: dict[str, Object] = {}
    for name, above in plot.owners.items():
        references = [owner(made[one], blocks=plot.blocks) for one in above]
        made[name] = await config(c, name, *references, kind=kind_of(name))
    met = []
    for step in plot.steps:
        try:
            await delete(c, step.name, step.how, kind=kind_of(step.name))
            met.append(step)
        except NotFound:
            pass
        await asyncio.sleep(step.pause)
    return met


async def remaining(c: Cluster) -> dict[str, list[str]]:
    """Everything that is there, with the names of its owners."""
    found = [item for kind in (CONFIG_MAP, SECRET) for item in (await c.client.list(kind)).items]
    metas = [item["metadata"] for item in found]
    return {m["name"]: [o["name"] for o in m.get("ownerReferences", [])] for m in metas}


async def after_quiet(c: Cluster) -> dict[str, list[str]]:
    await asyncio.sleep(90)
    before = c.store.revision
    await asyncio.sleep(600)
    assert c.store.revision == before
    return await remaining(c)


def expected(plot: Plot) -> dict[str, list[str]]:
    """What one deletion after the other must leave."""
    left = {name: list(above) for name, above in plot.owners.items()}
    for step in plot.steps:
        if left.pop(step.name, None) is None:
            continue
        gone = {step.name}
        for name, above in list(left.items()):
            if not gone.intersection(above):
                continue
            left[name] = [one for one in above if one not in gone]
            if not left[name] and not (step.how == "Orphan" and step.name in above):
                gone.add(name)
                del left[name]
    return left


def orphaned(c: Cluster) -> set[str]:
    """Those whose very first word was that their dependents should stay."""
    names = set()
    for change in c.store.changes(0):
        if change.before is not None and change.after is not None:
            was = orjson.loads(change.before.value)["metadata"]
            now = orjson.loads(change.after.value)["metadata"]
            if "deletionTimestamp" not in was and "orphan" in now.get("finalizers", ()):
                names.add(now["name"])
    return names


@settings(max_examples=40)
@given(plots(pauses=(30.0,)))
def test_one_deletion_after_the_other_leaves_what_it_must(plot: Plot) -> None:
    async def story() -> None:
        async with cluster(without=BARE) as c, collecting(c):
            await play(c, plot)
            assert await after_quiet(c) == expected(plot)

    run(story)


@settings(max_examples=60)
@given(plots(pauses=(0.0, 0.0, 0.02, 0.3)), st.sampled_from((0.0, 0.05, 0.5)))
def test_whatever_is_deleted_nobody_is_left_without_an_owner_and_nobody_is_lost(
    plot: Plot, lag: float
) -> None:
    async def story() -> None:
        async with cluster(without=BARE) as c, collecting(c, lagging(c, lag)[1]):
            deleted = {step.name for step in await play(c, plot)}
            there = await after_quiet(c)
            assert {name: above for name, above in there.items() if set(above) - set(there)} == {}
            spared = orphaned(c)
            for name in plot.owners.keys() - there.keys() - deleted:
                above = set(plot.owners[name])
                assert above
                assert not above & there.keys()
                assert not above <= spared

    run(story)
