"""The last of the bad inputs: groups that no scheduler can place, and what it does with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from phalanx.api.kinds import POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED
from phalanx.api.wire import Object
from tests.builders import gang, in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.server.test_edge_cases import CASES, ROWS

Scenario = Callable[[Cluster], Awaitable[None]]


def priority_class(name: str, value: int) -> Object:
    return {
        "apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.name,
        "metadata": {"name": name}, "value": value,
    }  # fmt: skip


async def row_40_pods_wait_for_a_missing_group(c: Cluster) -> None:
    group, *members = gang("a", 2, cpu="1")
    await c.create(*members)
    await asyncio.sleep(60)
    assert await c.node_by_pod() == {}
    assert {pod.status.phase for pod in (await c.pods()).values()} == {"Pending"}
    await c.create(group)
    await c.until_placed("a-0", "a-1", seconds=5)


async def row_40_a_group_waits_for_missing_members(c: Cluster) -> None:
    group, *members = gang("a", 3, cpu="1")
    await c.create(group, *members[:2])
    await asyncio.sleep(60)
    assert await c.node_by_pod() == {}
    said = await c.pod_condition("a-0")
    assert said is not None
    assert said.message == "waiting for 3 members, 2 are there"
    await c.create(members[2])
    await c.until_placed("a-0", "a-1", "a-2", seconds=5)


async def assert_pending(c: Cluster, reason: str) -> None:
    """The gang `a` stays pending with a reason, and no pod was evicted."""
    await asyncio.sleep(60)
    assert set(await c.node_by_pod()) <= {"there"}
    said = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
    assert said is not None
    assert (said.status, said.reason) == ("False", reason)
    assert all(not one.metadata.deletion_timestamp for one in (await c.pods()).values())
    assert await c.events("Preempted") == []


async def row_40_a_group_with_two_schedulers_is_refused(c: Cluster) -> None:
    group, one, two = gang("a", 2, cpu="1")
    two["spec"]["schedulerName"] = "another"
    await c.create(group, one, two)
    await assert_pending(c, "SchedulerError")


async def row_40_a_group_with_two_priorities_is_refused(c: Cluster) -> None:
    await c.create(priority_class("high", 7))
    group, one, two = gang("a", 2, cpu="1")
    two["spec"]["priorityClassName"] = "high"
    await c.create(group, one, two)
    await assert_pending(c, "SchedulerError")


async def row_40_a_gang_larger_than_the_cluster_evicts_no_pod(c: Cluster) -> None:
    await c.create(priority_class("high", 7), pod("there", cpu="1"))
    await c.until_placed("there")
    group, *members = gang("a", 9, cpu="1")
    for one in (group, *members):
        one["spec"]["priorityClassName"] = "high"
    await c.create(group, *members)
    await assert_pending(c, "Unschedulable")


async def row_40_a_deleted_group_stays_until_its_pods_are_gone(c: Cluster) -> None:
    await c.create(*gang("a", 2, cpu="1"))
    await c.delete(POD_GROUP, "a")
    await asyncio.sleep(60)
    assert (await c.client.get(POD_GROUP, Key("default", "a")))["metadata"]["deletionTimestamp"]
    for name in ("a-0", "a-1"):
        await c.delete(POD, name)

    async def is_gone() -> bool:
        return not (await c.client.list(POD_GROUP)).items

    await c.until(is_gone)


GROUPS = {name: row for name, row in sorted(globals().items()) if name.startswith("row_40_")}


@pytest.mark.parametrize("row", GROUPS.values(), ids=GROUPS)
@in_virtual_time
async def test_a_scheduler_refuses_a_bad_group(row: Scenario) -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await row(c)


def test_every_row_of_the_list_has_its_test() -> None:
    rows = {int(name.split("_")[1]) for name in (*ROWS, *GROUPS)} | {case.row for case in CASES}
    assert rows == set(range(1, 41))
