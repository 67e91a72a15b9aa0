"""Binding pod by pod with a scheduler on a server without GroupBinding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import NODE, POD
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.controllers.scheduling import binder as podbinder
from phalanx.controllers.scheduling.bind_intents import COMPLETION_TIMEOUT
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import ADMIN
from tests.builders import gang, in_virtual_time, pod, share_of_examples
from tests.controllers.cluster import Cluster
from tests.controllers.foreign_cluster import (
    ScriptedTransport,
    bound_uids,
    foreign_cluster,
    group_of,
    owned_gang,
    pod_controller,
    running_scheduler,
)
from tools.faults.channel import FaultyChannel, RequestFault


class SlowTransport(ScriptedTransport):
    """A transport whose binds take time; counts the maximum of concurrent ones."""

    def __init__(
        self, c: Cluster, seconds: float,
        refuse: Callable[[Request], ApiError | None] = lambda request: None,
    ) -> None:  # fmt: skip
        super().__init__(c, refuse=refuse)
        self._seconds, self._now = seconds, 0
        self.most = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        if not request.path.endswith("/binding"):
            return await super().send(request)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(self._seconds)
            return await super().send(request)
        finally:
            self._now -= 1


@in_virtual_time
async def test_the_number_of_concurrent_binds_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(podbinder, "MAX_REQUESTS", 4)
    async with foreign_cluster(2, cpu="20") as c:
        transport = SlowTransport(c, 1.0)
        async with running_scheduler(c, transport):
            await c.create(*gang("a", 10, cpu="1"), *gang("b", 10, cpu="1"))
            took = await c.until_placed(*(f"{name}-{n}" for name in "ab" for n in range(10)))
        assert transport.most == 4
        assert 5 <= took < 6


@in_virtual_time
async def test_a_recreated_pod_is_not_bound_in_place_of_the_old_one() -> None:
    async with foreign_cluster(1, cpu="4") as c, running_scheduler(c, SlowTransport(c, 1.0)):
        await c.create(pod("a", cpu="1"))
        await asyncio.sleep(0.5)
        await c.delete(POD, "a")
        await c.create(pod("a", cpu="1", gates=["wait"]))
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        ((_, why),) = await c.events("FailedScheduling")
        assert "UID in precondition" in why


@in_virtual_time
async def test_a_bind_without_an_answer_times_out_and_is_retried() -> None:
    silent = [True]

    class Silent(ScriptedTransport):
        async def send(self, request: Request) -> Reply | StreamReply:
            if request.path.endswith("/binding") and silent:
                silent.clear()
                await asyncio.Event().wait()
            return await super().send(request)

    async with foreign_cluster(1, cpu="4") as c:
        async with running_scheduler(c, Silent(c)):
            await c.create(pod("a", cpu="1"))
            took = await c.until_placed("a")
        assert took < podbinder.REQUEST_TIMEOUT + podbinder.SETTLE_SECONDS + 2


@in_virtual_time
async def test_a_bind_whose_answer_is_lost_is_looked_up_and_succeeds() -> None:
    async with foreign_cluster(1, cpu="4") as c:
        channel = FaultyChannel(InProcessTransport(c.plane.server.handle, ADMIN), SeededRandom(1))
        async with running_scheduler(c, channel):
            await asyncio.sleep(1)
            channel.fail_requests(
                asyncio.get_running_loop().time() + 1, 1.0, (RequestFault.UNANSWERED,)
            )
            await c.create(pod("a", cpu="1"))
            await c.until_placed("a")
            await asyncio.sleep(podbinder.SETTLE_SECONDS + 3)
            assert await c.events("FailedScheduling") == []
            assert [name for name, _ in await c.events("Scheduled")] == ["a"]
        await channel.close()


@in_virtual_time
async def test_nothing_is_placed_while_pod_or_node_caches_are_stale() -> None:
    blocked = [NODE.url_path()]

    class Blurred(ScriptedTransport):
        async def send(self, request: Request) -> Reply | StreamReply:
            if "watch" in request.query and request.path in blocked:
                raise Unreachable("the server", "it closed the connection")
            return await super().send(request)

    async with foreign_cluster(1, cpu="4") as c, running_scheduler(c, Blurred(c)):
        await c.create(pod("a", cpu="1"))
        await asyncio.sleep(60)
        assert await c.node_by_pod() == {}
        blocked.clear()
        await c.until_placed("a")


@in_virtual_time
async def test_binding_stops_once_the_quorum_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(podbinder, "MAX_REQUESTS", 1)
    refused = ["/a-1/binding"]

    def refuse(request: Request) -> ApiError | None:
        return Forbidden("never") if request.path.endswith(tuple(refused)) else None

    async with foreign_cluster(1, cpu="8") as c:
        transport = ScriptedTransport(c, refuse=refuse)
        async with running_scheduler(c, transport):
            group, *members = owned_gang("a", 6, cpu="1")
            async with pod_controller(c, *members):
                await c.create(group)
                await asyncio.sleep(0.9)
                assert transport.bound_pods == ["a-0", "a-1"]
                assert list(await c.node_by_pod()) == ["a-0"]
                refused.clear()
                await c.until_placed(*(f"a-{n}" for n in range(6)))


@in_virtual_time
async def test_a_member_beyond_the_quorum_may_fail() -> None:
    def refuse(request: Request) -> ApiError | None:
        return Forbidden("never") if request.path.endswith("/a-2/binding") else None

    async with (
        foreign_cluster(1, cpu="8") as c,
        running_scheduler(c, ScriptedTransport(c, refuse=refuse)),
    ):
        await c.create(*gang("a", 3, minimum=2, cpu="1"))
        await asyncio.sleep(2 * COMPLETION_TIMEOUT)
        assert sorted(await c.node_by_pod()) == ["a-0", "a-1"]
        assert not (await group_of(c, "a")).binding_intent
        condition = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert condition is not None
        assert condition.status == "True"


@in_virtual_time
async def test_a_late_member_does_not_complete_a_gang_that_is_being_bound() -> None:
    refused = ["/a-0/binding", "/a-1/binding"]

    def refuse(request: Request) -> ApiError | None:
        return Forbidden("not now") if request.path.endswith(tuple(refused)) else None

    class Overtaken(SlowTransport):
        async def send(self, request: Request) -> Reply | StreamReply:
            slow = not request.path.endswith("/late/binding")
            return await (super().send(request) if slow else ScriptedTransport.send(self, request))

    async with foreign_cluster(1, cpu="8") as c, running_scheduler(c, Overtaken(c, 1.0, refuse)):
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(0.5)
        await c.create(pod("late", "a", cpu="1"))
        await asyncio.sleep(0.4)
        assert list(await c.node_by_pod()) == ["late"]
        await asyncio.sleep(3)
        assert sorted(await c.node_by_pod()) == ["a-2", "late"]
        assert (await group_of(c, "a")).binding_intent
        condition = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert condition is not None
        assert (condition.status, condition.message) == ("False", "not now")
        refused.clear()
        await c.until_placed("a-0", "a-1")


@share_of_examples(0.15)
@given(
    st.integers(0, 1000),
    st.floats(0.1, 0.9),
    st.lists(st.sampled_from(RequestFault), min_size=1, max_size=3, unique=True),
)
@in_virtual_time
async def test_under_random_faults_every_gang_is_complete_and_no_pod_is_bound_twice(
    seed: int, share: float, troubles: list[RequestFault]
) -> None:
    async with foreign_cluster(3, cpu="2") as c:
        gangs = [owned_gang(name, 3, cpu="1") for name in "ab"]
        await c.create(gangs[0][0], gangs[1][0])
        channel = FaultyChannel(
            InProcessTransport(c.plane.server.handle, ADMIN), SeededRandom(seed)
        )
        loop = asyncio.get_running_loop()
        channel.fail_requests(loop.time() + 20, share, tuple(troubles))
        async with (
            pod_controller(c, *gangs[0][1:], *gangs[1][1:]),
            running_scheduler(c, channel, seed),
        ):
            await asyncio.sleep(90)
            assert len(await c.node_by_pod()) == 6
            assert len(set(bound_uids(c))) == len(bound_uids(c))
            assert not any([(await group_of(c, name)).binding_intent for name in "ab"])
        await channel.close()
