"""Reservations of resource claims, kept and given back, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.resource_claims.claims import PROTECTION_FINALIZER
from phalanx.controllers.resource_claims.reservations import ClaimReservationController
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)
from tests.controllers.resource_claims.test_controller import (
    DEVICES,
    group_with_claims,
    pod_with_claims,
)

KEY = Key("default", "r")
ALLOCATION: Object = {"devices": {}}
R: Object = {"name": "gpu", "resourceClaimName": "r"}


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [ClaimReservationController(client, informers).run]


def without_groups(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [ClaimReservationController(client, informers, groups=False).run]


async def consumer(c: Cluster, name: str) -> Object:
    """A pod as claims name it."""
    uid = (await c.client.get(POD, Key("default", name)))["metadata"]["uid"]
    return {"resource": "pods", "name": name, "uid": uid}


async def group(c: Cluster, name: str) -> Object:
    """A group as claims name it."""
    uid = (await c.client.get(POD_GROUP, Key("default", name)))["metadata"]["uid"]
    return {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": name, "uid": uid}


async def claim(
    c: Cluster, *users: Object, allocated: bool = True, owner: Object | None = None
) -> None:
    """The claim `r`, as a scheduler leaves it."""
    meta: Object = {"name": "r", "namespace": "default", "finalizers": [PROTECTION_FINALIZER]}
    if owner is not None:
        kind = {"apiVersion": "v1", "kind": "Pod", "controller": True}
        meta["ownerReferences"] = [{**kind, "name": owner["name"], "uid": owner["uid"]}]
    await c.client.create(RESOURCE_CLAIM, {"metadata": meta, "spec": DEVICES})
    if allocated:
        status = {"allocation": ALLOCATION, "reservedFor": list(users)}
        await c.client.patch(RESOURCE_CLAIM, KEY, {"status": status}, subresource="status")


async def users(c: Cluster) -> list[str]:
    status = (await c.client.get(RESOURCE_CLAIM, KEY)).get("status", {})
    return [one["name"] for one in status.get("reservedFor", [])]


async def is_allocated(c: Cluster) -> bool:
    return "allocation" in (await c.client.get(RESOURCE_CLAIM, KEY)).get("status", {})


async def is_there(c: Cluster) -> bool:
    try:
        await c.client.get(RESOURCE_CLAIM, KEY)
    except NotFound:
        return False
    return True


async def ends(c: Cluster, name: str) -> None:
    change = {"status": {"phase": "Succeeded"}}
    await c.client.patch(POD, Key("default", name), change, subresource="status")


@in_virtual_time
async def test_a_claim_stays_reserved_while_its_pods_need_it() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R), pod_with_claims("q", R))
        await claim(c, await consumer(c, "p"), await consumer(c, "q"))
        await asyncio.sleep(100)
        assert await users(c) == ["p", "q"]
        await ends(c, "p")
        await asyncio.sleep(1)
        assert (await users(c), await is_allocated(c)) == (["q"], True)


@pytest.mark.parametrize("how", ["ends", "goes", "is another"])
@in_virtual_time
async def test_when_the_last_pod_needs_it_no_more_its_devices_are_given_back(how: str) -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R))
        await claim(c, await consumer(c, "p"))
        await asyncio.sleep(1)
        if how == "ends":
            await ends(c, "p")
        else:
            await c.delete(POD, "p")
        if how == "is another":
            await c.create(pod_with_claims("p", R))
        await asyncio.sleep(1)
        assert (await users(c), await is_allocated(c), await is_there(c)) == ([], False, True)


@in_virtual_time
async def test_a_claim_that_nobody_has_used_yet_stays_allocated() -> None:
    async with bare_cluster(build) as c:
        await claim(c)
        await asyncio.sleep(100)
        assert await is_allocated(c)


@in_virtual_time
async def test_a_pod_that_was_bound_without_a_scheduler_gets_its_reservation() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("n"))
        await claim(c)
        await c.create(
            pod_with_claims("p", R), pod_with_claims("waiting", R), pod_with_claims("done", R)
        )
        for name in ("p", "done"):
            await c.bind(name, "n")
        await ends(c, "done")
        await asyncio.sleep(1)
        assert await users(c) == ["p"]


@in_virtual_time
async def test_what_is_not_allocated_is_reserved_for_nobody() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("n"))
        await claim(c, allocated=False)
        await c.create(pod_with_claims("p", R))
        await c.bind("p", "n")
        await asyncio.sleep(1)
        assert await users(c) == []


@in_virtual_time
async def test_a_claim_that_a_group_shares_is_reserved_for_the_group() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("n"))
        await c.create(
            group_with_claims("g", R),
            pod_with_claims("p", R, group="g"),
            pod_with_claims("q", R, group="g"),
        )
        await claim(c)
        for name in ("p", "q"):
            await c.bind(name, "n")
        await asyncio.sleep(1)
        assert await users(c) == ["g"]


@in_virtual_time
async def test_a_group_keeps_its_reservation_until_it_goes() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        await claim(c, await group(c, "g"))
        await ends(c, "p")
        await asyncio.sleep(10)
        assert await users(c) == ["g"]
        await c.client.patch(POD_GROUP, Key("default", "g"), {"metadata": {"finalizers": None}})
        await c.delete(POD_GROUP, "g")
        await asyncio.sleep(1)
        assert (await users(c), await is_allocated(c)) == ([], False)


@in_virtual_time
async def test_whom_one_does_not_know_is_left_alone() -> None:
    async with bare_cluster(without_groups) as c:
        lost = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"}
        await claim(c, lost, {"resource": "dragons", "name": "d", "uid": "v"})
        await asyncio.sleep(10)
        assert await users(c) == ["g", "d"]


@in_virtual_time
async def test_a_pod_of_which_one_has_not_heard_is_asked_for_before_it_loses_its_claim() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, late = lagging_client(c, 5.0)
        async with running_controller(c, build, late):
            await asyncio.sleep(10)
            await c.create(pod_with_claims("p", R))
            await claim(c, await consumer(c, "p"))
            since = c.store.revision
            await asyncio.sleep(20)
            assert c.store.revision == since
            assert await users(c) == ["p"]


@pytest.mark.parametrize("how", ["ended", "another"])
@in_virtual_time
async def test_a_claim_that_was_made_for_a_pod_goes_when_the_pod_is_done(how: str) -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R))
        made_for = await consumer(c, "p")
        await claim(c, made_for, owner=made_for)
        await asyncio.sleep(1)
        assert await is_there(c)
        if how == "ended":
            await ends(c, "p")
        else:
            await c.delete(POD, "p")
            await c.create(pod("p"))
        await asyncio.sleep(1)
        assert not await is_there(c)


@in_virtual_time
async def test_a_claim_that_is_deleted_goes_when_nobody_uses_it() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R))
        await claim(c, await consumer(c, "p"))
        await c.delete(RESOURCE_CLAIM, "r")
        await asyncio.sleep(10)
        assert await users(c) == ["p"]
        await ends(c, "p")
        await asyncio.sleep(1)
        assert not await is_there(c)


async def a_while(c: Cluster) -> object:
    """A claim is used by three, left by all of them, and deleted."""
    await c.add_node(node("n"))
    await c.create(pod_with_claims("p", R), pod_with_claims("q", R), pod_with_claims("s", R))
    await claim(c, await consumer(c, "p"), await consumer(c, "q"))
    await c.bind("s", "n")
    await asyncio.sleep(5)
    between = sorted(await users(c))
    for name in ("p", "q", "s"):
        await ends(c, name)
        await asyncio.sleep(3)
    left = await users(c), await is_allocated(c)
    await c.delete(RESOURCE_CLAIM, "r")
    await asyncio.sleep(5)
    return between, left, await is_there(c)


def test_whenever_the_controller_ends_another_one_goes_on() -> None:
    assert assert_survives_every_crash(build, a_while) >= 5


def test_news_that_come_twice_and_late_change_nothing() -> None:
    assert_survives_bad_watches(build, a_while)


@in_virtual_time
async def test_when_all_is_reserved_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("n"))
        await c.create(pod_with_claims("p", R), pod_with_claims("q", R))
        await claim(c, await consumer(c, "p"))
        await c.bind("q", "n")
        async with running_controller(c, build):
            await asyncio.sleep(5)
        await assert_quiet(c, build)
