"""What the scheduler sees of pods and groups where features are switched off."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.gates import gated
from phalanx.api.kinds import PRIORITY_CLASS
from phalanx.api.scheduling import SCHEDULED
from phalanx.api.wire import Object
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import cluster, machines


def polite() -> Object:
    """The class of pods that evict nobody."""
    return {
        "apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.name,
        "metadata": {"name": "polite"}, "value": 0, "preemptionPolicy": "Never",
    }  # fmt: skip


def of_class(objects: list[Object], name: str) -> list[Object]:
    for one in objects:
        one["spec"]["priorityClassName"] = name
    return objects


@pytest.mark.parametrize(("own", "placed"), [(True, False), (False, True)], ids=["on", "off"])
@in_virtual_time
async def test_a_group_without_a_preemption_policy_of_its_own_leaves_it_to_its_pods(
    own: bool, placed: bool
) -> None:
    gates = gated({"PodGroupPreemptionPolicy": own})
    async with cluster(nodes=machines(1, cpu="4"), gates=gates) as c:
        group, *pods = gang("a", 2, cpu="1")
        await c.create(polite(), group, *of_class(pods, "polite"))
        await asyncio.sleep(3)
        assert bool(await c.placed()) == placed


@in_virtual_time
async def test_pods_that_disagree_about_preemption_are_an_error_whatever_their_group_says() -> None:
    async with cluster(
        nodes=machines(1, cpu="4"), gates=gated({"PodGroupPreemptionPolicy": False})
    ) as c:
        group, first, second = gang("a", 2, cpu="1")
        await c.create(polite(), group, *of_class([first], "polite"), second)
        await asyncio.sleep(3)
        said = await c.said_of_group("a", SCHEDULED)
        assert said is not None
        assert (said.reason, said.message) == (
            "SchedulerError",
            "all pods in a single pod group should have the same preemption policy, "
            "got PreemptLowerPriority and Never",
        )


@in_virtual_time
async def test_without_gang_scheduling_members_are_placed_one_by_one() -> None:
    async with cluster(nodes=machines(1, cpu="2"), gates=gated({"GangScheduling": False})) as c:
        await c.create(*gang("a", 2, minimum=2, cpu="1")[1:])
        await c.until_placed("a-0", "a-1")
