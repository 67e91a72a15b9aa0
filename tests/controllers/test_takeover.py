"""A scheduler that takes over corrects what another left undone or wrote wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key, find_condition
from phalanx.api.scheduling import DEGRADED, PodGroup
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import SeededRandom
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

GROUP = Key("default", "a")


@asynccontextmanager
async def scheduler(c: Cluster) -> AsyncIterator[None]:
    """Run a scheduler."""
    client, random = c.plane.client("scheduler"), SeededRandom(1)
    informers = Informers(client, random)
    shell = Scheduler(client, informers, c.clock, random=random)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(shell.run())]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def counts(c: Cluster) -> tuple[int, int]:
    status = (await c.client.get(POD_GROUP, GROUP, PodGroup)).status
    return status.scheduled_pods, status.pending_pods


@in_virtual_time
async def test_counts_that_a_crashed_scheduler_left_wrong_are_corrected() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(*gang("a", 3, cpu="1"))
        async with scheduler(c):
            await asyncio.sleep(5)
            assert await counts(c) == (0, 3)
        for number in range(3):
            await c.client.delete(POD, Key("default", f"a-{number}"), grace=0)
        async with scheduler(c):
            await asyncio.sleep(5)
            assert await counts(c) == (0, 0)


@in_virtual_time
async def test_a_condition_written_from_a_stale_cache_is_corrected() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4"), without=["scheduler"]) as c, scheduler(c):
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(5)
        lost = {"type": DEGRADED, "status": "True", "reason": "MembersLost", "message": "",
                "lastTransitionTime": "2027-01-15T08:00:00Z"}  # fmt: skip
        group = await c.client.get(POD_GROUP, GROUP)
        condition = {"conditions": [*group["status"]["conditions"], lost], "scheduledPods": 0}
        await c.client.patch(POD_GROUP, GROUP, {"status": condition}, subresource="status")
        await asyncio.sleep(5)
        found = await c.client.get(POD_GROUP, GROUP, PodGroup)
        degraded = find_condition(found.status.conditions, DEGRADED)
        assert degraded is not None
        assert (degraded.status, await counts(c)) == ("False", (3, 0))
