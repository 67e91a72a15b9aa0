"""The scheduler's shell when the world moves on while a cycle runs."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cycle import run_cycle
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.search.solver import Steps
from tests.builders import gang, in_virtual_time, pod_group
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

#: Turns of the loop for which a decision lies about before anybody acts on it.
PAUSES = 2000


def slow(entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> Steps[Decision]:
    """A cycle that decides as ever and then takes its time."""
    decision = yield from run_cycle(entity, snapshot, policy)
    yield from range(PAUSES)
    return decision


@pytest.fixture
def slow_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.scheduler.queue.scheduler_state.run_cycle", slow)


def members(name: str, count: int) -> list[str]:
    return [f"{name}-{n}" for n in range(count)]


async def drop(c: Cluster, group: str) -> None:
    """Take a group away from its members, against its protection."""
    await c.delete(POD_GROUP, group)
    await c.client.patch(POD_GROUP, Key("default", group), {"metadata": {"finalizers": None}})


async def in_mid_cycle() -> None:
    """Wait until a cycle has decided and before it is acted upon."""
    for _ in range(PAUSES // 4):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_slow_cycle_places_a_gang_as_a_quick_one_does() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await in_mid_cycle()
        assert await c.node_by_pod() == {}
        await c.until_placed(*members("a", 3))


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_group_made_again_with_another_policy_in_mid_cycle_is_placed_by_its_new_one() -> (
    None
):
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await in_mid_cycle()
        await drop(c, "a")
        await c.create(pod_group("a", 5))
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        said = await c.group_condition("a", POD_GROUP_SCHEDULED)
        assert said is not None
        assert said.message == "waiting for 5 members, 3 are there"
        assert await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED) is None


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_minimum_that_is_raised_in_mid_cycle_counts() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 5, minimum=3, cpu="1"))
        await in_mid_cycle()
        policy = {"schedulingPolicy": {"gang": {"minCount": 5}}}
        await c.client.patch(POD_GROUP, Key("default", "a"), {"spec": policy})
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_member_that_goes_in_mid_cycle_costs_the_others_no_time() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 4, minimum=3, cpu="1"))
        await in_mid_cycle()
        await c.delete(POD, "a-0")
        assert await c.until_placed("a-1", "a-2", "a-3") < 0.1
        await asyncio.sleep(3)
        assert await c.events("FailedScheduling") == []
