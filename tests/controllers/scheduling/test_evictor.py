"""Evictions on a foreign server, where each victim is deleted by a request of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from phalanx.api.kinds import POD
from phalanx.api.meta import Key, find_condition
from phalanx.api.scheduling import PREEMPTED
from phalanx.api.wire import Reply, Request, StreamReply
from tests.builders import gang, in_virtual_time, pod, priority_class
from tests.controllers.cluster import Cluster
from tests.controllers.foreign_cluster import (
    ScriptedTransport,
    foreign_cluster,
    group_of,
    running_scheduler,
)


class SlowEvictions(ScriptedTransport):
    """A transport whose deletions of one pod wait for something, before or after they arrive."""

    def __init__(
        self, c: Cluster, pod_name: str, wait: Callable[[], Awaitable[None]], *, arrives_first: bool
    ) -> None:
        super().__init__(c)
        self._path, self._wait = POD.url_path("default", pod_name), wait
        self._arrives_first = arrives_first

    async def send(self, request: Request) -> Reply | StreamReply:
        is_chosen = request.method == "DELETE" and request.path == self._path
        if is_chosen and not self._arrives_first:
            await self._wait()
        reply = await super().send(request)
        if is_chosen and self._arrives_first:
            await self._wait()
        return reply


async def _fill_node_with_gang(c: Cluster) -> None:
    for name, value in (("low", 10), ("high", 100)):
        await c.create(priority_class(name, value))
    group, *members = gang("old", 2, cpu="1")
    for obj in (group, *members):
        obj["spec"]["priorityClassName"] = "low"
    await c.create(group, *members)
    await c.until_placed("old-0", "old-1")


async def _preempt(c: Cluster) -> None:
    await c.create(pod("vip", cpu="2", spec={"priorityClassName": "high"}))
    await c.until_placed("vip")
    await asyncio.sleep(5)


@in_virtual_time
async def test_victims_that_are_gone_before_the_last_reply_get_their_event() -> None:
    async with foreign_cluster(1, cpu="2") as c:

        async def are_victims_gone() -> bool:
            return not {"old-0", "old-1"} & set(await c.pods())

        async def until_victims_are_gone() -> None:
            await c.until(are_victims_gone)
            await asyncio.sleep(1)

        transport = SlowEvictions(c, "old-1", until_victims_are_gone, arrives_first=True)
        async with running_scheduler(c, transport):
            await _fill_node_with_gang(c)
            await _preempt(c)
        assert [name for name, _ in await c.events("Preempted")] == ["old-0", "old-1"]
        preempted = find_condition((await group_of(c, "old")).status.conditions, PREEMPTED)
        assert preempted is not None
        assert preempted.message == "Preempted by Pod default/vip"


@in_virtual_time
async def test_pod_that_a_user_deletes_before_its_eviction_is_not_preempted() -> None:
    async with foreign_cluster(1, cpu="2") as c:

        async def delete_victim() -> None:
            await c.client.delete(POD, Key("default", "old-1"), grace=0)

        transport = SlowEvictions(c, "old-1", delete_victim, arrives_first=False)
        async with running_scheduler(c, transport):
            await _fill_node_with_gang(c)
            await _preempt(c)
        assert [name for name, _ in await c.events("Preempted")] == ["old-0"]
