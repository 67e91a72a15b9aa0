from __future__ import annotations

import asyncio
from functools import partial

from phalanx.api.kinds import CONFIG_MAP, NODE
from phalanx.api.meta import Key
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SeededRandom
from phalanx.sim import virtual_time as loop
from phalanx.sim.simulation import EPOCH
from phalanx.sim.timeline import ApiObserver
from phalanx.store.memory import MemoryStore

HOUR = 3600


async def observe_cluster(data: str) -> tuple[str, list[int], ApiObserver]:
    """Run an observer while a node is created and, two hours later, a ConfigMap."""
    clock, random = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(1)
    plane = ControlPlane(
        MemoryStore(), clock, random, ComponentConfig(without=("nodes", "scheduler"))
    )
    client, observer = plane.client("user"), ApiObserver(plane.client("observer"))
    revisions: list[int] = []
    observer.on_batch.append(revisions.append)
    async with plane.running(), asyncio.TaskGroup() as group:
        task = group.create_task(observer.run())
        await asyncio.sleep(1)
        await client.create(NODE, {"metadata": {"name": "n"}})
        await asyncio.sleep(2 * HOUR)
        new = {"metadata": {"name": "c", "namespace": "default"}, "data": {"key": data}}
        await client.create(CONFIG_MAP, new)
        await asyncio.sleep(1)
        task.cancel()
    return observer.digest, revisions, observer


def test_observed_objects_are_in_the_caches() -> None:
    _, revisions, observer = loop.run_virtual(lambda: observe_cluster("x"))
    assert list(observer.nodes) == [Key("", "n")]
    assert len(revisions) == 1


def test_digest_covers_every_kind_and_resumed_watches() -> None:
    digests = [loop.run_virtual(partial(observe_cluster, data))[0] for data in "xxy"]
    assert digests[0] == digests[1] != digests[2]
