"""The scheduler when the cluster changes during a cycle."""

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
from phalanx.scheduler.reservation.reservation import ReservationHolds
from phalanx.scheduler.search.solver import Steps
from tests.builders import gang, in_virtual_time, pod_group
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

#: Iterations of the loop between a decision and its execution.
PAUSES = 2000


def slow(
    entity: Entity,
    snapshot: Snapshot,
    policy: SchedulerPolicy,
    *,
    holds: ReservationHolds | None = None,
) -> Steps[Decision]:
    """A cycle that waits after its decision."""
    decision = yield from run_cycle(entity, snapshot, policy, holds=holds)
    yield from range(PAUSES)
    return decision


@pytest.fixture
def slow_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.scheduler.queue.scheduler_state.run_cycle", slow)


def members(name: str, count: int) -> list[str]:
    return [f"{name}-{n}" for n in range(count)]


async def drop(c: Cluster, group: str) -> None:
    """Delete a group although it has members."""
    await c.delete(POD_GROUP, group)
    await c.client.patch(POD_GROUP, Key("default", group), {"metadata": {"finalizers": None}})


async def wait_for_decision() -> None:
    """Wait until a cycle has decided and its decision is not carried out yet."""
    for _ in range(PAUSES // 4):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_slow_cycle_places_a_gang() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await wait_for_decision()
        assert await c.node_by_pod() == {}
        await c.until_placed(*members("a", 3))


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_group_recreated_during_a_cycle_is_placed_by_its_new_policy() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await wait_for_decision()
        await drop(c, "a")
        await c.create(pod_group("a", 5))
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        condition = await c.group_condition("a", POD_GROUP_SCHEDULED)
        assert condition is not None
        assert condition.message == "waiting for 5 members, 3 are there"
        assert await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED) is None


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_min_count_raised_during_a_cycle_applies() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 5, minimum=3, cpu="1"))
        await wait_for_decision()
        policy = {"schedulingPolicy": {"gang": {"minCount": 5}}}
        await c.client.patch(POD_GROUP, Key("default", "a"), {"spec": policy})
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}


@pytest.mark.usefixtures("slow_cycles")
@in_virtual_time
async def test_a_member_deleted_during_a_cycle_does_not_delay_the_others() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 4, minimum=3, cpu="1"))
        await wait_for_decision()
        await c.delete(POD, "a-0")
        assert await c.until_placed("a-1", "a-2", "a-3") < 0.1
        await asyncio.sleep(3)
        assert await c.events("FailedScheduling") == []
