"""Bugs of Kubernetes' gang scheduling that must not occur here, end to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from phalanx.api.kinds import POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED
from phalanx.api.wire import Object
from phalanx.randomness import SeededRandom
from tests.builders import gang, in_virtual_time, node, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, simulated_nodes


def members(name: str, count: int) -> list[str]:
    return [f"{name}-{n}" for n in range(count)]


# ---- the scheduled condition stays ---------------------------------------------------------------


def conditions_over_time(c: Cluster, kind: str) -> Iterator[str]:
    """The successive states of a condition of the only group."""
    last = ""
    for change in c.store.changes(0, POD_GROUP.store_prefix()):
        group: Object = json.loads(change.after.value) if change.after else {}
        for found in group.get("status", {}).get("conditions", ()):
            if found["type"] == kind and found["status"] != last:
                last = found["status"]
                yield last


@pytest.mark.parametrize("seed", range(8))
@in_virtual_time
async def test_unschedulable_leftover_members_do_not_reset_the_scheduled_condition(
    seed: int,
) -> None:
    random = SeededRandom(seed)
    nodes, latency = simulated_nodes(1, cpu="3"), lambda: random.between(0.0001, 0.02)
    async with cluster(nodes=nodes, latency=latency) as c:
        await c.create(*gang("a", 6, minimum=2, cpu="1"))
        await asyncio.sleep(30)
        assert len(await c.node_by_pod()) == 3
        for kind in (POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED):
            assert [*conditions_over_time(c, kind)] in (["True"], ["False", "True"])
            condition = await c.group_condition("a", kind)
            assert condition is not None
            assert condition.status == "True"


# ---- without nodes -------------------------------------------------------------------------------


@in_virtual_time
async def test_in_a_cluster_without_nodes_a_gang_is_unschedulable_and_not_an_error() -> None:
    async with cluster() as c:
        await c.create(*gang("a", 2, cpu="1"))
        await asyncio.sleep(3)
        of_group, of_pod = (
            await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED),
            await c.pod_condition("a-0"),
        )
        assert of_group is not None
        assert of_pod is not None
        assert (of_group.status, of_group.reason) == ("False", "Unschedulable")
        assert (of_pod.reason, of_pod.message) == (
            "Unschedulable", "no nodes available to schedule pods",
        )  # fmt: skip


# ---- wake-ups ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_new_node_places_a_gang_with_many_attempts_as_fast_as_a_pod() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        await c.create(*gang("a", 3, cpu="2"), pod("plain", cpu="2"))
        await asyncio.sleep(200)
        await c.add_node(node("late", cpu="8"))
        assert await c.until_placed("plain", *members("a", 3)) < 0.1


# ---- nominations ---------------------------------------------------------------------------------


async def nominate(c: Cluster, name: str, to: str) -> None:
    change = {"status": {"nominatedNodeName": to}}
    await c.client.patch(POD, Key("default", name), change, subresource="status")


async def nominated(c: Cluster, *names: str) -> list[str]:
    pods = await c.pods()
    return [pods[name].status.nominated_node_name for name in names]


@in_virtual_time
async def test_a_bind_of_higher_priority_voids_lower_nominations_of_the_node() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create({
            "apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.name,
            "metadata": {"name": "high"}, "value": 1000,
        })  # fmt: skip
        await c.create(pod_group("low", 2))
        for name, where in (("low-0", "n0"), ("low-1", "elsewhere")):
            await c.create(pod(name, "low", gates=["hold"], cpu="1"))
            await nominate(c, name, where)
        higher = gang("high", 2, cpu="4")
        for one in higher:
            one["spec"]["priorityClassName"] = "high"
        await c.create(*higher)
        await c.until_placed(*members("high", 2))
        await asyncio.sleep(1)
        assert await nominated(c, "low-0", "low-1") == ["", "elsewhere"]


@in_virtual_time
async def test_a_gang_that_fails_keeps_no_nomination() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        await c.create(pod_group("a", 2))
        for name in members("a", 2):
            await c.create(pod(name, "a", gates=["hold"], cpu="1"))
            await nominate(c, name, "n0")
        for name in members("a", 2):
            free = {"spec": {"schedulingGates": None}}
            await c.client.patch(POD, Key("default", name), free)
        await asyncio.sleep(2)
        assert await c.node_by_pod() == {}
        assert await nominated(c, *members("a", 2)) == ["", ""]


# ---- conditions of waiting pods ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([pod("a-0", "a")], 'waiting for PodGroup "a" to appear'),
        (gang("a", 1, minimum=3), "waiting for 3 members, 1 is there"),
        (
            [*gang("a", 1), pod("a-1", "a", gates=["quota"])],
            "waiting for scheduling gates quota of a-1",
        ),
    ],
    ids=["no group", "too few members", "a gate"],
)
@in_virtual_time
async def test_members_that_cannot_be_tried_have_a_condition_with_the_reason(
    objects: list[Object], why: str
) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        # The gated pod comes first: alone, the other one would be placed at once.
        await c.create(*(one for one in objects if one["spec"].get("schedulingGates")))
        await c.create(*(one for one in objects if not one["spec"].get("schedulingGates")))
        await asyncio.sleep(4)
        assert await c.pod_condition("a-0") is None
        await asyncio.sleep(3)
        condition = await c.pod_condition("a-0")
        assert condition is not None
        assert (condition.status, condition.reason, condition.message) == (
            "False",
            "NotReadyForScheduling",
            why,
        )
        assert await c.events("NotReadyForScheduling") == [("a-0", why)]
