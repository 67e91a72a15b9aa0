"""Status patches computed from a stale cache."""

from __future__ import annotations

import asyncio

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import WatchEvent
from phalanx.controllers.reconcile_loop import (
    CONFLICT_RETRY_SECONDS,
    OWN_PATCH_SECONDS,
    Patch,
    ReconcilePlan,
    StatusPatchLoop,
)
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster

KEY = Key("default", "a")
NOTHING_ELSE = ["scheduler", "controllers", "nodes"]


class StatusFixture:
    """Patches the status of one pod from a cache and counts the attempts.

    `refresh` updates the cache.
    """

    def __init__(self, c: Cluster) -> None:
        self._cluster, self.pods, self.attempts, self.desired = c, ObjectCache[Pod](), 0, "heard"
        self.loop = StatusPatchLoop(c.client, self._reconcile, self.pods)

    def _reconcile(self, key: Key) -> ReconcilePlan:
        meta = self.pods[key].metadata
        self.attempts += 1
        if self.pods[key].status.nominated_node_name == self.desired:
            return ReconcilePlan()
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"message": self.desired, "nominatedNodeName": self.desired or None},
        }
        return ReconcilePlan([Patch(POD, key, change, "status")])

    async def refresh(self) -> None:
        found = await self._cluster.client.get(POD, KEY, Pod)
        self.pods.apply(WatchEvent("MODIFIED", found, int(found.metadata.resource_version)))

    async def message(self) -> str:
        status = (await self._cluster.client.get(POD, KEY))["status"]
        return str(status.get("message", ""))


async def with_stale_cache(fixture: StatusFixture, c: Cluster) -> asyncio.Task[None]:
    """Change the pod after the cache has it; then request a patch."""
    await c.client.create(POD, pod("a"))
    await fixture.refresh()
    await c.client.patch(POD, KEY, {"metadata": {"labels": {"x": "y"}}})
    running = asyncio.create_task(fixture.loop.run())
    fixture.loop.queue.add(KEY)
    await asyncio.sleep(CONFLICT_RETRY_SECONDS / 3)
    return running


@in_virtual_time
async def test_after_a_conflict_a_patch_waits_for_a_newer_version() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = StatusFixture(c)
        running = await with_stale_cache(speaker, c)
        speaker.loop.queue.add(KEY)
        await asyncio.sleep(CONFLICT_RETRY_SECONDS / 3)
        assert speaker.attempts == 1
        assert await speaker.message() == ""
        running.cancel()


@in_virtual_time
async def test_a_newer_version_in_the_cache_triggers_the_patch() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = StatusFixture(c)
        running = await with_stale_cache(speaker, c)
        await speaker.refresh()
        await asyncio.sleep(0.01)
        assert speaker.attempts == 2
        assert await speaker.message() == "heard"
        running.cancel()


@in_virtual_time
async def test_without_a_newer_version_the_patch_is_repeated_after_a_timeout() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = StatusFixture(c)
        running = await with_stale_cache(speaker, c)
        await asyncio.sleep(2 * CONFLICT_RETRY_SECONDS)
        assert speaker.attempts == 3
        running.cancel()


@in_virtual_time
async def test_a_value_that_changes_back_while_its_patch_is_not_seen_yet_is_patched_again() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = StatusFixture(c)
        await c.client.create(POD, pod("a"))
        await speaker.refresh()
        running = asyncio.create_task(speaker.loop.run())
        speaker.loop.queue.add(KEY)
        await asyncio.sleep(0.01)
        assert await speaker.message() == "heard"
        # The cache still shows the pod without a message.
        speaker.desired = ""
        speaker.loop.queue.add(KEY)
        await asyncio.sleep(0.01)
        assert speaker.attempts == 1
        await speaker.refresh()
        await asyncio.sleep(0.01)
        assert (speaker.attempts, await speaker.message()) == (2, "")
        running.cancel()


@in_virtual_time
async def test_a_patch_that_changed_nothing_delays_the_next_one_for_seconds() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = StatusFixture(c)
        await c.client.create(POD, pod("a"))
        await speaker.refresh()
        running = asyncio.create_task(speaker.loop.run())
        for _ in range(2):
            speaker.loop.queue.add(KEY)
            await asyncio.sleep(0.01)
        assert speaker.attempts == 1
        await asyncio.sleep(OWN_PATCH_SECONDS)
        assert speaker.attempts == 2
        running.cancel()
