"""Child Jobs: their PodGroups belong to the Workload of their parent."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import COMPOSITE_POD_GROUP, JOB, JOB_SET, POD, POD_GROUP, WORKLOAD
from phalanx.api.wire import Object
from phalanx.builder.ownership import GROUP_TEMPLATE, controller_reference
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
from tests.controllers.trial_cluster import TrialCluster


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


def job_set_between(uid: str = "u") -> Object:
    """A JobSet that the owner of a Workload controls, and that no controller runs."""
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.name,
        "metadata": {
            "name": "between",
            "namespace": "default",
            "ownerReferences": [{**PARENT, "uid": uid}],
        },
        "spec": {"managedBy": "example.com/none", "replicatedJobs": []},
    }


async def job_below(cluster: TrialCluster, between: Object, template: str) -> Object:
    """A Job that a JobSet controls, with a link to a template of the Workload above."""
    await cluster.create(between)
    stored = await cluster.get_only(JOB_SET)
    identity = {"apiVersion": JOB_SET.api_version, "kind": JOB_SET.name}
    reference = controller_reference({**stored, **identity})
    meta = {"ownerReferences": [reference], "annotations": {GROUP_TEMPLATE: template}}
    return job(parallelism=2, meta=meta)


@in_virtual_time
async def test_job_uses_the_workload_of_the_controller_above_its_own() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("parent", 2, target=PARENT_TARGET))
        await cluster.create(await job_below(cluster, job_set_between(), "workers-0"))
        await cluster.wait_until_idle()
        assert await gang_sizes(cluster) == (2, 2)
        gang = {"name": "workers-0", "schedulingPolicy": {"gang": {"minCount": 1}}}
        await cluster.patch(WORKLOAD, "parent", {"spec": {"podGroupTemplates": [gang]}})
        await cluster.wait_until_idle()
        assert await gang_sizes(cluster) == (1, 1)
        await cluster.delete(JOB, "train")
        await cluster.wait_until_idle()


@in_virtual_time
async def test_job_joins_the_workload_above_its_controller_once_that_exists() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(await job_below(cluster, job_set_between(), "workers-0"))
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "ParentWorkloadNotFound")
        await cluster.create(workload("parent", 2, target=PARENT_TARGET))
        await cluster.wait_until_idle()
        # Existing pods stay without a group.
        assert await fallback_condition(cluster) == ("False", "SchedulingRestored")


@in_virtual_time
async def test_job_linked_to_a_composite_template_gets_the_groups_below_it() -> None:
    parent = workload("parent", 2, target=PARENT_TARGET)
    leaves = parent["spec"].pop("podGroupTemplates")
    part = {"name": "part", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": leaves}
    parent["spec"]["compositePodGroupTemplates"] = [part]
    async with running_job_controller() as cluster:
        await cluster.create(parent, job(parallelism=2, meta=child_metadata("part")))
        await cluster.wait_until_idle()
        composite, pod_group = [
            await cluster.get_only(kind) for kind in (COMPOSITE_POD_GROUP, POD_GROUP)
        ]
        above = pod_group["spec"]["parentCompositePodGroupName"]
        assert above == composite["metadata"]["name"]
        assert policy(pod_group) == {"gang": {"minCount": 2}}
        pods = groups_of(await cluster.list_objects(POD))
        assert pods == [pod_group["metadata"]["name"]] * 2


@in_virtual_time
async def test_job_cannot_choose_between_the_templates_below_a_composite_one() -> None:
    parent = workload("parent", 2, 3, target=PARENT_TARGET)
    leaves = parent["spec"].pop("podGroupTemplates")
    part = {"name": "part", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": leaves}
    parent["spec"]["compositePodGroupTemplates"] = [part]
    async with running_job_controller() as cluster:
        await cluster.create(parent, job(meta=child_metadata("part")))
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "AmbiguousTemplate")
