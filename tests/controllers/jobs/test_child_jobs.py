"""Child Jobs: their PodGroups belong to the Workload of their parent."""

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
async def test_child_job_gets_a_group_of_its_parents_workload(spelling: str) -> None:
    async with running_job_controller() as cluster:
        meta = child_metadata("workers-1", **{f"scheduling.k8s.io/{spelling}": "root"})
        await cluster.create(workload("parent", 0, 2, target=PARENT_TARGET), job(meta=meta))
        before = await cluster.get_only(WORKLOAD)
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert await cluster.get_only(WORKLOAD) == before
        assert pod_group["spec"]["workloadRef"] == {
            "workloadName": "parent",
            "templateName": "workers-1",
        }
        assert pod_group["spec"]["parentCompositePodGroupName"] == "root"
        assert [one["kind"] for one in pod_group["metadata"]["ownerReferences"]] == ["Job"]
        assert groups_of(await cluster.list_objects(POD)) == [pod_group["metadata"]["name"]]


@in_virtual_time
async def test_child_jobs_of_one_template_have_separate_groups() -> None:
    async with running_job_controller() as cluster:
        children = [job(f"child-{n}", meta=child_metadata("")) for n in range(3)]
        await cluster.create(workload("parent", 1, target=PARENT_TARGET), *children)
        await cluster.wait_until_idle()
        assert (
            len({*groups_of(await cluster.list_objects(POD))})
            == len(await cluster.list_objects(POD_GROUP))
            == 3
        )


@in_virtual_time
async def test_group_of_a_child_job_follows_the_template_of_its_parent() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(
            workload("parent", 4, target=PARENT_TARGET), job(parallelism=7, meta=child_metadata())
        )
        await cluster.wait_until_idle()
        assert await gang_sizes(cluster) == (4, 4)
        gang = {"name": "workers-0", "schedulingPolicy": {"gang": {"minCount": 7}}}
        await cluster.patch(WORKLOAD, "parent", {"spec": {"podGroupTemplates": [gang]}})
        await cluster.wait_until_idle()
        assert await gang_sizes(cluster) == (7, 7)


@in_virtual_time
async def test_child_job_without_a_parent_workload_or_template_reports_a_fallback() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(meta=child_metadata()))
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "ParentWorkloadNotFound")
        assert groups_of(await cluster.list_objects(POD)) == [""]
        assert len(await cluster.events("ParentWorkloadNotFound")) == 1
        await cluster.create(workload("parent", 1, target=PARENT_TARGET))
        await cluster.wait_until_idle()
        # Existing pods stay without a group, but new pods would join one.
        assert await fallback_condition(cluster) == ("False", "SchedulingRestored")
    async with running_job_controller() as cluster:
        await cluster.create(
            workload("parent", 1, target=PARENT_TARGET), job(meta=child_metadata("unknown"))
        )
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "TemplateNotFound")


@in_virtual_time
async def test_workload_of_an_earlier_parent_of_the_same_name_is_not_used() -> None:
    before = {"ownerReferences": [{**PARENT, "uid": "before"}]}
    async with running_job_controller() as cluster:
        await cluster.create(
            workload("parent", 1, target=PARENT_TARGET, meta=before), job(meta=child_metadata())
        )
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "ParentWorkloadNotFound")


@in_virtual_time
async def test_two_workloads_of_a_parent_are_ambiguous() -> None:
    async with running_job_controller() as cluster:
        two = [workload(name, 1, target=PARENT_TARGET) for name in ("one", "two")]
        await cluster.create(*two, job(meta=child_metadata()))
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_child_job_may_use_a_nested_template() -> None:
    parent = workload("parent", 2, target=PARENT_TARGET)
    leaves = parent["spec"].pop("podGroupTemplates")
    root = {"name": "root", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": leaves}
    parent["spec"]["compositePodGroupTemplates"] = [root]
    async with running_job_controller() as cluster:
        await cluster.create(parent, job(parallelism=2, meta=child_metadata()))
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert policy(pod_group) == {"gang": {"minCount": 2}}
        assert pod_group["spec"]["parentCompositePodGroupName"].startswith("parent-root-")
