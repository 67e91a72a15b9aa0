"""What is said of objects by somebody who sees them late."""

from __future__ import annotations

import asyncio

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.client.answers import Event
from phalanx.client.cache import Cache
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.reports import PATIENCE, Reports
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster

KEY = Key("default", "a")
NOTHING_ELSE = ["scheduler", "controllers", "nodes"]


class Speaker:
    """Has one pod say something, in the version that it is told of, and counts how often it tries.

    `show` tells it of the pod as it is.
    """

    def __init__(self, c: Cluster) -> None:
        self._cluster, self.pods, self.tries = c, Cache[Pod](), 0
        self.reports = Reports(c.client, self._reconcile, self.pods)

    def _reconcile(self, key: Key) -> Plan:
        meta = self.pods[key].metadata
        self.tries += 1
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"message": "heard"},
        }
        return Plan([Patch(POD, key, change, "status")])

    async def show(self) -> None:
        found = await self._cluster.client.get(POD, KEY, Pod)
        self.pods.apply(Event("MODIFIED", found, int(found.metadata.resource_version)))

    async def message(self) -> str:
        status = (await self._cluster.client.get(POD, KEY))["status"]
        return str(status.get("message", ""))


async def overtaken(speaker: Speaker, c: Cluster) -> asyncio.Task[None]:
    """Somebody changes the pod after it was shown; then there is something to say of it."""
    await c.client.create(POD, pod("a"))
    await speaker.show()
    await c.client.patch(POD, KEY, {"metadata": {"labels": {"x": "y"}}})
    running = asyncio.create_task(speaker.reports.run())
    speaker.reports.queue.add(KEY)
    await asyncio.sleep(PATIENCE / 3)
    return running


@in_virtual_time
async def test_what_was_said_of_an_old_version_is_not_repeated_before_a_newer_is_seen() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = Speaker(c)
        running = await overtaken(speaker, c)
        speaker.reports.queue.add(KEY)
        await asyncio.sleep(PATIENCE / 3)
        assert speaker.tries == 1
        assert await speaker.message() == ""
        running.cancel()


@in_virtual_time
async def test_it_is_said_as_soon_as_the_newer_version_is_seen() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = Speaker(c)
        running = await overtaken(speaker, c)
        await speaker.show()
        await asyncio.sleep(0.01)
        assert speaker.tries == 2
        assert await speaker.message() == "heard"
        running.cancel()


@in_virtual_time
async def test_who_is_never_shown_a_newer_version_says_it_again_after_a_while() -> None:
    async with cluster(without=NOTHING_ELSE) as c:
        speaker = Speaker(c)
        running = await overtaken(speaker, c)
        await asyncio.sleep(2 * PATIENCE)
        assert speaker.tries == 3
        running.cancel()
