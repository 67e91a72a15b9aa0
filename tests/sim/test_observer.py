from __future__ import annotations

import asyncio
from functools import partial

from phalanx.api.kinds import CONFIG_MAP, NODE
from phalanx.api.meta import Key
from phalanx.chance import SeededChance
from phalanx.clock import LoopClock
from phalanx.control_plane import ControlPlane
from phalanx.crew import Staff
from phalanx.sim import loop
from phalanx.sim.observer import Observer
from phalanx.sim.run import EPOCH
from phalanx.store.memory import MemoryStore

HOUR = 3600


async def heard(data: str) -> tuple[str, list[int], Observer]:
    """What an observer makes of a node that comes and a ConfigMap that comes two hours later."""
    clock, chance = LoopClock(asyncio.get_running_loop(), EPOCH), SeededChance(1)
    plane = ControlPlane(MemoryStore(), clock, chance, Staff(without=("nodes", "scheduler")))
    client, observer = plane.client("user"), Observer(plane.client("observer"))
    revisions: list[int] = []
    observer.settled.append(revisions.append)
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


def test_what_is_heard_is_in_the_caches() -> None:
    _, revisions, observer = loop.run(lambda: heard("x"))
    assert list(observer.nodes) == [Key("", "n")]
    assert len(revisions) == 1


def test_every_kind_counts_and_watches_are_taken_up_again() -> None:
    digests = [loop.run(partial(heard, data))[0] for data in "xxy"]
    assert digests[0] == digests[1] != digests[2]
