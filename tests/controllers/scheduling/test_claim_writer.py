"""ClaimWriter: an attempt writes all of its claims or none, and leaves claims in use alone."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.errors import Conflict
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ClaimConsumer, DeviceClaim
from phalanx.controllers.scheduling.claim_writer import ClaimWriter
from phalanx.randomness import SeededRandom
from phalanx.scheduler.decision import ClaimReservation
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.test_device_claims import DRIVER, claim

ALLOCATION = {
    "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}]}
}
OF_GROUP = ClaimConsumer(POD_GROUP.plural, "g", "uid-g", POD_GROUP.group)


async def get(c: Cluster, name: str) -> DeviceClaim:
    return await c.client.get(RESOURCE_CLAIM, Key("default", name), DeviceClaim)


async def reservation(
    c: Cluster, name: str, consumer: ClaimConsumer, *, allocates: bool
) -> ClaimReservation:
    found = await get(c, name)
    allocation = ALLOCATION if allocates else None
    return ClaimReservation(
        found.metadata.key, found.metadata.uid, consumer, "uid-m0", allocation=allocation
    )


@in_virtual_time
async def test_claim_that_the_group_uses_already_stays_when_another_one_cannot_be_written() -> None:
    async with cluster(without=("scheduler", "controllers")) as c:
        await c.create(claim("shared"), claim("own"))
        writer = ClaimWriter(c.client, SeededRandom(0))
        await writer.reserve([await reservation(c, "shared", OF_GROUP, allocates=True)])
        own = ClaimConsumer(POD.plural, "m0", "uid-m0")
        attempt = [
            await reservation(c, "shared", OF_GROUP, allocates=False),
            # It has no allocation, although the decision counts on one.
            await reservation(c, "own", own, allocates=False),
        ]
        with pytest.raises(Conflict):
            await writer.reserve(attempt)
        status = (await get(c, "shared")).status
        assert status.allocation == ALLOCATION
        assert status.reserved_for == (OF_GROUP,)


@in_virtual_time
async def test_claim_is_written_after_a_write_of_another_client_is_committed() -> None:
    async with cluster(without=("scheduler", "controllers")) as c:
        await c.create(claim("one"))
        attempt = [await reservation(c, "one", OF_GROUP, allocates=True)]
        # Until it is committed, the claim is read without the label and cannot be written.
        change = {"metadata": {"labels": {"written": "meanwhile"}}}
        other = asyncio.create_task(c.client.patch(RESOURCE_CLAIM, Key("default", "one"), change))
        await asyncio.sleep(0)
        await ClaimWriter(c.client, SeededRandom(0)).reserve(attempt)
        assert (await other)["metadata"]["labels"] == {"written": "meanwhile"}
        assert (await get(c, "one")).status.reserved_for == (OF_GROUP,)


@pytest.mark.parametrize("keeps_groups", [True, False])
@in_virtual_time
async def test_claim_of_the_group_is_kept_if_some_member_has_a_node(keeps_groups: bool) -> None:
    async with cluster(without=("scheduler", "controllers")) as c:
        await c.create(claim("shared"))
        writer = ClaimWriter(c.client, SeededRandom(0))
        attempt = [await reservation(c, "shared", OF_GROUP, allocates=True)]
        await writer.reserve(attempt)
        # The member for which the claim was written is not bound.
        await writer.settle(attempt, {"uid-m0"}, keeps_groups=keeps_groups)
        status = (await get(c, "shared")).status
        assert status.reserved_for == ((OF_GROUP,) if keeps_groups else ())
        assert (status.allocation is not None) is keeps_groups
