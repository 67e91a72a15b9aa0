"""Reservations of ResourceClaims, and their deallocation, in virtual time."""

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
from phalanx.controllers.resource_claims.reservations import (
    PROTECTION_FINALIZER,
    ClaimReservationController,
)
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.crash_recovery import (
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
    """Return a pod as consumer of a claim."""
    uid = (await c.client.get(POD, Key("default", name)))["metadata"]["uid"]
    return {"resource": "pods", "name": name, "uid": uid}


async def group(c: Cluster, name: str) -> Object:
    """Return a PodGroup as consumer of a claim."""
    uid = (await c.client.get(POD_GROUP, Key("default", name)))["metadata"]["uid"]
    return {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": name, "uid": uid}


async def claim(
    c: Cluster, *consumers: Object, allocated: bool = True, owner: Object | None = None
) -> None:
    """Create the claim `r`, allocated and reserved as by a scheduler."""
    meta: Object = {"name": "r", "namespace": "default", "finalizers": [PROTECTION_FINALIZER]}
    if owner is not None:
        kind = {"apiVersion": "v1", "kind": "Pod", "controller": True}
        meta["ownerReferences"] = [{**kind, "name": owner["name"], "uid": owner["uid"]}]
    await c.client.create(RESOURCE_CLAIM, {"metadata": meta, "spec": DEVICES})
    if allocated:
        status = {"allocation": ALLOCATION, "reservedFor": list(consumers)}
        await c.client.patch(RESOURCE_CLAIM, KEY, {"status": status}, subresource="status")


async def consumers(c: Cluster) -> list[str]:
    status = (await c.client.get(RESOURCE_CLAIM, KEY)).get("status", {})
    return [one["name"] for one in status.get("reservedFor", [])]


async def is_allocated(c: Cluster) -> bool:
    return "allocation" in (await c.client.get(RESOURCE_CLAIM, KEY)).get("status", {})


async def claim_exists(c: Cluster) -> bool:
    try:
        await c.client.get(RESOURCE_CLAIM, KEY)
    except NotFound:
        return False
    return True


async def finish_pod(c: Cluster, name: str) -> None:
    change = {"status": {"phase": "Succeeded"}}
    await c.client.patch(POD, Key("default", name), change, subresource="status")


@in_virtual_time
async def test_claim_stays_reserved_while_its_pods_need_it() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R), pod_with_claims("q", R))
        await claim(c, await consumer(c, "p"), await consumer(c, "q"))
        await asyncio.sleep(100)
        assert await consumers(c) == ["p", "q"]
        await finish_pod(c, "p")
        await asyncio.sleep(1)
        assert (await consumers(c), await is_allocated(c)) == (["q"], True)


@in_virtual_time
async def test_finalizer_stays_while_a_scheduler_is_about_to_allocate_the_claim() -> None:
    async with bare_cluster(build) as c:
        await claim(c, allocated=False)
        version = (await c.client.get(RESOURCE_CLAIM, KEY))["metadata"]["resourceVersion"]
        await asyncio.sleep(1)
        # As a scheduler, which has seen no other version of the claim.
        change = {"metadata": {"resourceVersion": version}, "status": {"allocation": ALLOCATION}}
        await c.client.patch(RESOURCE_CLAIM, KEY, change, subresource="status")
        assert await is_allocated(c)


@pytest.mark.parametrize("how", ["finished", "deleted", "replaced"])
@in_virtual_time
async def test_claim_is_deallocated_with_its_last_reservation(how: str) -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R))
        await claim(c, await consumer(c, "p"))
        await asyncio.sleep(1)
        if how == "finished":
            await finish_pod(c, "p")
        else:
            await c.delete(POD, "p")
        if how == "replaced":
            await c.create(pod_with_claims("p", R))
        await asyncio.sleep(1)
        assert (await consumers(c), await is_allocated(c), await claim_exists(c)) == (
            [],
            False,
            True,
        )


@in_virtual_time
async def test_claim_without_consumers_stays_allocated() -> None:
    async with bare_cluster(build) as c:
        await claim(c)
        await asyncio.sleep(100)
        assert await is_allocated(c)


@in_virtual_time
async def test_pod_that_was_bound_without_reservation_gets_one() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("n"))
        await claim(c)
        await c.create(
            pod_with_claims("p", R), pod_with_claims("waiting", R), pod_with_claims("done", R)
        )
        for name in ("p", "done"):
            await c.bind(name, "n")
        await finish_pod(c, "done")
        await asyncio.sleep(1)
        assert await consumers(c) == ["p"]


@in_virtual_time
async def test_unallocated_claim_is_not_reserved() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("n"))
        await claim(c, allocated=False)
        await c.create(pod_with_claims("p", R))
        await c.bind("p", "n")
        await asyncio.sleep(1)
        assert await consumers(c) == []


@in_virtual_time
async def test_shared_claim_is_reserved_for_the_group() -> None:
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
        assert await consumers(c) == ["g"]


@in_virtual_time
async def test_group_keeps_its_reservation_until_it_is_deleted() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        await claim(c, await group(c, "g"))
        await finish_pod(c, "p")
        await asyncio.sleep(10)
        assert await consumers(c) == ["g"]
        await c.client.patch(POD_GROUP, Key("default", "g"), {"metadata": {"finalizers": None}})
        await c.delete(POD_GROUP, "g")
        await asyncio.sleep(1)
        assert (await consumers(c), await is_allocated(c)) == ([], False)


@in_virtual_time
async def test_reservations_of_unknown_kinds_are_kept() -> None:
    async with bare_cluster(without_groups) as c:
        group_consumer = {
            "apiGroup": "scheduling.k8s.io",
            "resource": "podgroups",
            "name": "g",
            "uid": "u",
        }
        await claim(c, group_consumer, {"resource": "unknowns", "name": "d", "uid": "v"})
        await asyncio.sleep(10)
        assert await consumers(c) == ["g", "d"]


@in_virtual_time
async def test_pod_that_the_cache_lacks_is_read_before_its_reservation_is_removed() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, lagging = lagging_client(c, 5.0)
        async with running_controller(c, build, lagging):
            await asyncio.sleep(10)
            await c.create(pod_with_claims("p", R))
            await claim(c, await consumer(c, "p"))
            since = c.store.revision
            await asyncio.sleep(20)
            assert c.store.revision == since
            assert await consumers(c) == ["p"]


@pytest.mark.parametrize("how", ["finished", "replaced"])
@in_virtual_time
async def test_claim_created_for_a_pod_is_deleted_when_the_pod_finishes(how: str) -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R))
        owner = await consumer(c, "p")
        await claim(c, owner, owner=owner)
        await asyncio.sleep(1)
        assert await claim_exists(c)
        if how == "finished":
            await finish_pod(c, "p")
        else:
            await c.delete(POD, "p")
            await c.create(pod("p"))
        await asyncio.sleep(1)
        assert not await claim_exists(c)


@in_virtual_time
async def test_deleted_claim_is_removed_with_its_last_reservation() -> None:
    async with bare_cluster(build) as c:
        await c.create(pod_with_claims("p", R))
        await claim(c, await consumer(c, "p"))
        await c.delete(RESOURCE_CLAIM, "r")
        await asyncio.sleep(10)
        assert await consumers(c) == ["p"]
        await finish_pod(c, "p")
        await asyncio.sleep(1)
        assert not await claim_exists(c)


async def reserve_and_release(c: Cluster) -> object:
    """Reserve a claim for three pods, finish them, and delete the claim."""
    await c.add_node(node("n"))
    await c.create(pod_with_claims("p", R), pod_with_claims("q", R), pod_with_claims("s", R))
    await claim(c, await consumer(c, "p"), await consumer(c, "q"))
    await c.bind("s", "n")
    await asyncio.sleep(5)
    reserved = sorted(await consumers(c))
    for name in ("p", "q", "s"):
        await finish_pod(c, name)
        await asyncio.sleep(3)
    remaining = await consumers(c), await is_allocated(c)
    await c.delete(RESOURCE_CLAIM, "r")
    await asyncio.sleep(5)
    return reserved, remaining, await claim_exists(c)


def test_crash_after_any_write_leads_to_the_same_end() -> None:
    assert assert_survives_every_crash(build, reserve_and_release) >= 5


def test_repeated_late_and_missed_events_lead_to_the_same_end() -> None:
    assert_survives_bad_watches(build, reserve_and_release)


@in_virtual_time
async def test_nothing_is_written_when_all_reservations_are_right() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.add_node(node("n"))
        await c.create(pod_with_claims("p", R), pod_with_claims("q", R))
        await claim(c, await consumer(c, "p"))
        await c.bind("q", "n")
        async with running_controller(c, build):
            await asyncio.sleep(5)
        await assert_quiet(c, build)
