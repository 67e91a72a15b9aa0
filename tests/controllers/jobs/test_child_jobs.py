"""A Job that is a part of something: its PodGroup is one of its parent's Workload."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD, POD_GROUP, WORKLOAD
from tests.builders import in_virtual_time
from tests.controllers.jobs.job_controller_harness import (
    PARENT,
    PARENT_TARGET,
    child_metadata,
    fallback_condition,
    gang_sizes,
    groups_of,
    job,
    policy,
    running_job_controller,
    workload,
)


@pytest.mark.parametrize("spelling", ["parent-composite-podgroup", "parent-compositepodgroup"])
@in_virtual_time
async def test_a_part_gets_a_group_of_its_parents_workload(spelling: str) -> None:
    async with running_job_controller() as stage:
        meta = child_metadata("workers-1", **{f"scheduling.k8s.io/{spelling}": "root"})
        await stage.create(workload("parent", 0, 2, about=PARENT_TARGET), job(meta=meta))
        before = await stage.get_only(WORKLOAD)
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert await stage.get_only(WORKLOAD) == before
        assert of["spec"]["workloadRef"] == {"workloadName": "parent", "templateName": "workers-1"}
        assert of["spec"]["parentCompositePodGroupName"] == "root"
        assert [one["kind"] for one in of["metadata"]["ownerReferences"]] == ["Job"]
        assert groups_of(await stage.list_objects(POD)) == [of["metadata"]["name"]]


@in_virtual_time
async def test_parts_of_one_template_have_groups_of_their_own() -> None:
    async with running_job_controller() as stage:
        parts = [job(f"part-{n}", meta=child_metadata("")) for n in range(3)]
        await stage.create(workload("parent", 1, about=PARENT_TARGET), *parts)
        await stage.wait_until_idle()
        assert (
            len({*groups_of(await stage.list_objects(POD))})
            == len(await stage.list_objects(POD_GROUP))
            == 3
        )


@in_virtual_time
async def test_the_group_of_a_part_follows_the_template_of_its_parent() -> None:
    async with running_job_controller() as stage:
        await stage.create(
            workload("parent", 4, about=PARENT_TARGET), job(parallelism=7, meta=child_metadata())
        )
        await stage.wait_until_idle()
        assert await gang_sizes(stage) == (4, 4)
        gang = {"name": "workers-0", "schedulingPolicy": {"gang": {"minCount": 7}}}
        await stage.patch(WORKLOAD, "parent", {"spec": {"podGroupTemplates": [gang]}})
        await stage.wait_until_idle()
        assert await gang_sizes(stage) == (7, 7)


@in_virtual_time
async def test_a_part_without_a_parent_or_a_template_says_so() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(meta=child_metadata()))
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "ParentWorkloadNotFound")
        assert groups_of(await stage.list_objects(POD)) == [""]
        assert len(await stage.events("ParentWorkloadNotFound")) == 1
        await stage.create(workload("parent", 1, about=PARENT_TARGET))
        await stage.wait_until_idle()
        # Its pods are not retrofitted, but that is no mistake any more.
        assert await fallback_condition(stage) == ("False", "SchedulingRestored")
    async with running_job_controller() as stage:
        await stage.create(
            workload("parent", 1, about=PARENT_TARGET), job(meta=child_metadata("nobody"))
        )
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "TemplateNotFound")


@in_virtual_time
async def test_the_workload_of_an_earlier_parent_of_that_name_is_not_used() -> None:
    before = {"ownerReferences": [{**PARENT, "uid": "before"}]}
    async with running_job_controller() as stage:
        await stage.create(
            workload("parent", 1, about=PARENT_TARGET, meta=before), job(meta=child_metadata())
        )
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "ParentWorkloadNotFound")


@in_virtual_time
async def test_of_two_workloads_of_a_parent_none_is_used() -> None:
    async with running_job_controller() as stage:
        two = [workload(name, 1, about=PARENT_TARGET) for name in ("one", "two")]
        await stage.create(*two, job(meta=child_metadata()))
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_a_part_may_be_of_a_template_below_another() -> None:
    parent = workload("parent", 2, about=PARENT_TARGET)
    leaves = parent["spec"].pop("podGroupTemplates")
    root = {"name": "root", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": leaves}
    parent["spec"]["compositePodGroupTemplates"] = [root]
    async with running_job_controller() as stage:
        await stage.create(parent, job(parallelism=2, meta=child_metadata()))
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert policy(of) == {"gang": {"minCount": 2}}
        assert of["spec"]["parentCompositePodGroupName"].startswith("parent-root-")
