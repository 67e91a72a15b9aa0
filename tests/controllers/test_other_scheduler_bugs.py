"""Bugs of other schedulers that must not occur here."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from phalanx.api.errors import Conflict
from phalanx.api.kinds import GROUP_BINDING
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import SeededRandom
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Waiting
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.server.app import error_reply
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import LaggingTransport, cluster, simulated_nodes
from tests.scheduler import builders


class RefusingTransport(LaggingTransport):
    """A transport that refuses the binds of one gang."""

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.path.endswith(GROUP_BINDING.plural) and isinstance(request.body, dict):
            names = [row["name"] for row in request.body["bindings"]]
            if any(name.startswith("bad") for name in names):
                return error_reply(Conflict("refused by the test"))
        return await super().send(request)


@in_virtual_time
async def test_a_gang_whose_bind_always_fails_does_not_starve_others() -> None:
    """KAI 2074."""
    async with cluster(nodes=simulated_nodes(2, cpu="4"), without=["scheduler"]) as c:
        client, random = Client(RefusingTransport(c.plane)), SeededRandom(3)
        informers = Informers(client, random)
        scheduling = Scheduler(client, informers, c.clock, random=random)
        tasks = [asyncio.create_task(run()) for run in (informers.run, scheduling.run)]
        await c.create(*gang("bad", 2, cpu="1"))
        await asyncio.sleep(5)
        await c.create(*gang("good", 2, cpu="1"))
        assert await c.until_placed("good-0", "good-1") < 1.0
        await asyncio.sleep(60)
        assert not {name for name in await c.node_by_pod() if name.startswith("bad")}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_nomination_survives_a_stale_update_of_its_pod() -> None:
    """KAI 1103."""
    waiting = builders.pod("first", cpu="1", priority=10)
    cache = builders.cluster([builders.node("a", cpu="1")], [waiting])
    cache.nominate([Binding(waiting.metadata.key, waiting.metadata.uid, "a")])
    old = replace(waiting, metadata=replace(waiting.metadata, resource_version="1"))
    cache.update_pod(waiting.metadata.key, old)
    second = builders.alone(builders.pod("second", cpu="1"))
    assert isinstance(decide(second, cache.snapshot(), DEFAULT_POLICY), Waiting)
