"""Gangs on a server without the workload APIs: PodGroups are custom resources there."""

from __future__ import annotations

import asyncio

from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_POD_GROUP,
    VOLCANO_POD_GROUP,
)
from tests.builders import in_virtual_time, pod
from tests.controllers.custom_groups import (
    COSCHEDULING_DEFINITION,
    VOLCANO_DEFINITION,
    compat_group,
    custom_cluster,
    custom_group,
    get_group,
    labelled_pods,
    running_scheduler,
)


@in_virtual_time
async def test_gang_of_labelled_pods_waits_for_its_last_member_and_is_bound() -> None:
    async with custom_cluster() as c, running_scheduler(c) as log:
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 3))
        first, second, third = labelled_pods("a", 3, cpu="3")
        await c.create(first, second)
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        await c.create(third)
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(5)
        group = await get_group(c, "a")
        assert group["status"]["scheduledPods"] == 3
        reasons = {one["type"]: one["reason"] for one in group["status"]["conditions"]}
        assert reasons["PodGroupScheduled"] == "MinCountSatisfied"
        assert "phalanx.dev/binding-intent" not in group["metadata"].get("annotations", {})
        assert "PodGroups are custom resources" in log.messages()


@in_virtual_time
async def test_gang_that_does_not_fit_has_no_bound_member_and_says_why() -> None:
    async with custom_cluster() as c, running_scheduler(c):
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 4))
        await c.create(*labelled_pods("a", 4, cpu="3"))
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        group = await get_group(c, "a")
        (found,) = [
            one for one in group["status"]["conditions"] if one["type"] == "PodGroupScheduled"
        ]
        assert found["status"] == "False"
        assert found["message"].startswith("minCount (4) cannot be satisfied")
        assert await c.events("FailedScheduling")


# ---- PodGroups of other projects -----------------------------------------------------------------


@in_virtual_time
async def test_gang_of_scheduler_plugins_is_bound_and_its_phase_is_written() -> None:
    async with (
        custom_cluster(COSCHEDULING_DEFINITION) as c,
        running_scheduler(c, compat=["scheduler-plugins"]),
    ):
        group = compat_group(COSCHEDULING_POD_GROUP, "a", minMember=3, scheduleTimeoutSeconds=10)
        await c.client.create(COSCHEDULING_POD_GROUP, group)
        first, *rest = labelled_pods("a", 3, label="scheduling.x-k8s.io/pod-group", cpu="3")
        await c.create(first)
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        assert (await get_group(c, "a", COSCHEDULING_POD_GROUP))["status"]["phase"] == "Pending"
        await c.create(*rest)
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(5)
        status = (await get_group(c, "a", COSCHEDULING_POD_GROUP))["status"]
        assert (status["phase"], status["running"]) == ("Running", 3)


@in_virtual_time
async def test_gang_of_volcano_is_bound_and_its_phase_and_condition_are_written() -> None:
    names = ("volcano",)
    async with (
        custom_cluster(VOLCANO_DEFINITION) as c,
        running_scheduler(c, names=names, compat=["volcano"]),
    ):
        group = compat_group(VOLCANO_POD_GROUP, "a", minMember=2, queue="research")
        await c.client.create(VOLCANO_POD_GROUP, group)
        pods = [
            pod(
                f"a-{number}",
                meta={"annotations": {"scheduling.k8s.io/group-name": "a"}},
                spec={"schedulerName": "volcano"},
                cpu="3",
            )
            for number in range(4)
        ]
        await c.create(pods[0])
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        assert (await get_group(c, "a", VOLCANO_POD_GROUP))["status"]["phase"] == "Inqueue"
        await c.create(*pods[1:])
        await asyncio.sleep(10)
        assert len(await c.node_by_pod()) == 3
        status = (await get_group(c, "a", VOLCANO_POD_GROUP))["status"]
        assert status["phase"] == "Running"
        assert [one["type"] for one in status["conditions"]] == ["Scheduled"]


@in_virtual_time
async def test_groups_of_other_projects_are_left_alone_unless_they_are_asked_for() -> None:
    async with custom_cluster(VOLCANO_DEFINITION) as c, running_scheduler(c):
        await c.client.create(VOLCANO_POD_GROUP, compat_group(VOLCANO_POD_GROUP, "a", minMember=2))
        await asyncio.sleep(5)
        assert "status" not in await get_group(c, "a", VOLCANO_POD_GROUP)
