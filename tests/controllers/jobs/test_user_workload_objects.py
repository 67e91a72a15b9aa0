"""A Workload or PodGroup that somebody has made for a Job: used as it is, or told why not."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.controllers.jobs.job_controller_harness import (
    conditions_of,
    fallback_condition,
    garbage_collectors,
    group,
    groups_of,
    indexed,
    job,
    job_controller,
    policy,
    running_job_controller,
    workload,
)
from tests.controllers.trial_cluster import TrialCluster, kubelets, running_parts


async def owned(stage: TrialCluster) -> Object:
    """What an object says that the Job controls."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}
    uid = (await stage.get_only(JOB))["metadata"]["uid"]
    return {"ownerReferences": [{**reference, "uid": uid}]}


@in_virtual_time
async def test_the_workload_of_a_user_is_used_as_it_is() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("mine", 2))
        before = await stage.get_only(WORKLOAD)
        await stage.create(job(parallelism=3, completions=3))
        await stage.wait_until_idle()
        await stage.patch(JOB, "train", {"spec": {"parallelism": 4}})
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert await stage.get_only(WORKLOAD) == before
        assert policy(of) == {"gang": {"minCount": 2}}
        assert of["metadata"]["ownerReferences"][0]["kind"] == "Job"
        assert groups_of(await stage.list_objects(POD)) == [of["metadata"]["name"]] * 3
        await stage.delete(JOB, "train", "Background")
        await stage.wait_until_idle()
        assert (await stage.get_only(WORKLOAD), await stage.list_objects(POD_GROUP)) == (before, [])


@in_virtual_time
async def test_what_a_user_has_made_counts_more_than_what_the_job_asks_for() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("mine", 0), job(gang=True, parallelism=2))
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert (await stage.get_only(WORKLOAD))["metadata"]["name"] == "mine"
        assert policy(of) == {"basic": {}}
        assert groups_of(await stage.list_objects(POD)) == [of["metadata"]["name"]] * 2


@in_virtual_time
async def test_the_group_of_a_user_is_used_as_it_is() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("mine", 2), group("ours", "mine", 2))
        before = await stage.get_only(POD_GROUP)
        await stage.create(indexed(3))
        await stage.wait_until_idle()
        await stage.finish("Succeeded", indexes=[0, 1])
        await stage.wait_until_idle()
        assert await stage.get_only(POD_GROUP) == before
        assert groups_of(await stage.list_objects(POD)) == ["ours"] * 3


@in_virtual_time
async def test_what_is_left_over_from_a_namesake_is_left_alone() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(gang=True))
        await stage.wait_until_idle()
        await stage.delete(JOB, "train", "Orphan")
        await stage.wait_until_idle()
        leftover = await stage.get_only(WORKLOAD)
        assert "ownerReferences" not in leftover["metadata"]
        await stage.create(job())
        await stage.wait_until_idle()
        (first, second) = await stage.list_objects(WORKLOAD)
        assert first == leftover
        assert second["metadata"]["ownerReferences"][0]["kind"] == "Job"
        assert conditions_of(await stage.get_only(JOB)) == {}


@in_virtual_time
async def test_of_two_workloads_none_is_used_and_the_job_says_so_until_it_is_clear() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("one", 2), workload("two", 2), job(parallelism=2))
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "AmbiguousWorkload")
        (event,) = await stage.events("AmbiguousWorkload")
        assert (event["type"], event.get("count", 1)) == ("Warning", 1)
        assert (groups_of(await stage.list_objects(POD)), await stage.list_objects(POD_GROUP)) == (
            ["", ""],
            [],
        )
        await stage.delete(WORKLOAD, "two")
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("False", "SchedulingRestored")


@in_virtual_time
async def test_a_malformed_workload_is_not_used() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("mine", 2, 2), job())
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "MalformedWorkload")
        assert groups_of(await stage.list_objects(POD)) == [""]


@in_virtual_time
async def test_of_two_groups_none_is_used() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("mine", 2), group("a", "mine", 2), group("b", "mine", 2), job())
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "AmbiguousPodGroup")
        assert groups_of(await stage.list_objects(POD)) == [""]


@pytest.mark.parametrize("groups", [(), ("ours-0",)])
@in_virtual_time
async def test_what_was_made_too_early_gives_way_to_what_the_user_had_made(
    groups: tuple[str, ...],
) -> None:
    stage = TrialCluster()
    await stage.server.start()
    await stage.create(job(gang=True))
    ours = await owned(stage)
    await stage.create(workload("ours", 1, meta=ours), workload("mine", 1))
    await stage.create(*(group(name, "ours", 1, meta=ours) for name in groups))
    async with running_parts(stage, job_controller(), kubelets, garbage_collectors):
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert of["spec"]["workloadRef"]["workloadName"] == "mine"
        assert (await stage.get_only(WORKLOAD))["metadata"]["name"] == "mine"
        assert groups_of(await stage.list_objects(POD))[0].startswith("mine-workers-0-")
        assert conditions_of(await stage.get_only(JOB)) == {}


@in_virtual_time
async def test_a_workload_that_a_user_has_made_a_group_of_does_not_give_way() -> None:
    stage = TrialCluster()
    await stage.server.start()
    await stage.create(job(gang=True))
    ours = await owned(stage)
    await stage.create(workload("ours", 1, meta=ours), workload("mine", 1), group("g", "ours", 1))
    async with running_parts(stage, job_controller(), kubelets, garbage_collectors):
        await stage.wait_until_idle()
        assert len(await stage.list_objects(WORKLOAD)) == 2
        assert await fallback_condition(stage) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_what_something_has_come_of_does_not_give_way() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(suspend=True))
        await stage.wait_until_idle()
        await stage.create(workload("mine", 2))
        await stage.wait_until_idle()
        assert len(await stage.list_objects(WORKLOAD)) == 2
        assert await fallback_condition(stage) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_a_template_of_a_class_that_no_group_can_be_of_is_left_aside() -> None:
    mine = workload("mine", 1)
    mine["spec"]["podGroupTemplates"][0]["priorityClassName"] = "system-node-critical"
    async with running_job_controller() as stage:
        await stage.create(mine, job())
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "PriorityTooHigh")
        assert groups_of(await stage.list_objects(POD)) == [""]
        assert await stage.list_objects(POD_GROUP) == []
