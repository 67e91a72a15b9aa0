"""Workloads and PodGroups that a user creates for a Job: used unchanged, or a fallback."""

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


async def owner_metadata(cluster: TrialCluster) -> Object:
    """Build the metadata of an object that the Job controls."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}
    uid = (await cluster.get_only(JOB))["metadata"]["uid"]
    return {"ownerReferences": [{**reference, "uid": uid}]}


@in_virtual_time
async def test_workload_of_the_user_is_used_unchanged() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("mine", 2))
        before = await cluster.get_only(WORKLOAD)
        await cluster.create(job(parallelism=3, completions=3))
        await cluster.wait_until_idle()
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 4}})
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert await cluster.get_only(WORKLOAD) == before
        assert policy(pod_group) == {"gang": {"minCount": 2}}
        assert pod_group["metadata"]["ownerReferences"][0]["kind"] == "Job"
        assert groups_of(await cluster.list_objects(POD)) == [pod_group["metadata"]["name"]] * 3
        await cluster.delete(JOB, "train", "Background")
        await cluster.wait_until_idle()
        assert (await cluster.get_only(WORKLOAD), await cluster.list_objects(POD_GROUP)) == (
            before,
            [],
        )


@in_virtual_time
async def test_workload_of_the_user_takes_precedence_over_the_job() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("mine", 0), job(gang=True, parallelism=2))
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert (await cluster.get_only(WORKLOAD))["metadata"]["name"] == "mine"
        assert policy(pod_group) == {"basic": {}}
        assert groups_of(await cluster.list_objects(POD)) == [pod_group["metadata"]["name"]] * 2


@in_virtual_time
async def test_group_of_the_user_is_used_unchanged() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("mine", 2), group("own", "mine", 2))
        before = await cluster.get_only(POD_GROUP)
        await cluster.create(indexed(3))
        await cluster.wait_until_idle()
        await cluster.finish("Succeeded", indexes=[0, 1])
        await cluster.wait_until_idle()
        assert await cluster.get_only(POD_GROUP) == before
        assert groups_of(await cluster.list_objects(POD)) == ["own"] * 3


@in_virtual_time
async def test_leftover_workload_of_an_earlier_job_is_ignored() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True))
        await cluster.wait_until_idle()
        await cluster.delete(JOB, "train", "Orphan")
        await cluster.wait_until_idle()
        leftover = await cluster.get_only(WORKLOAD)
        assert "ownerReferences" not in leftover["metadata"]
        await cluster.create(job())
        await cluster.wait_until_idle()
        (first, second) = await cluster.list_objects(WORKLOAD)
        assert first == leftover
        assert second["metadata"]["ownerReferences"][0]["kind"] == "Job"
        assert conditions_of(await cluster.get_only(JOB)) == {}


@in_virtual_time
async def test_two_workloads_are_ambiguous_until_one_is_deleted() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("one", 2), workload("two", 2), job(parallelism=2))
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "AmbiguousWorkload")
        (event,) = await cluster.events("AmbiguousWorkload")
        assert (event["type"], event.get("count", 1)) == ("Warning", 1)
        assert (
            groups_of(await cluster.list_objects(POD)),
            await cluster.list_objects(POD_GROUP),
        ) == (
            ["", ""],
            [],
        )
        await cluster.delete(WORKLOAD, "two")
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("False", "SchedulingRestored")


@in_virtual_time
async def test_malformed_workload_is_not_used() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("mine", 2, 2), job())
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "MalformedWorkload")
        assert groups_of(await cluster.list_objects(POD)) == [""]


@in_virtual_time
async def test_two_groups_are_ambiguous() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(
            workload("mine", 2), group("a", "mine", 2), group("b", "mine", 2), job()
        )
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "AmbiguousPodGroup")
        assert groups_of(await cluster.list_objects(POD)) == [""]


@pytest.mark.parametrize("groups", [(), ("own-0",)])
@in_virtual_time
async def test_unused_own_workload_is_deleted_in_favour_of_the_users(
    groups: tuple[str, ...],
) -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    await cluster.create(job(gang=True))
    own = await owner_metadata(cluster)
    await cluster.create(workload("own", 1, meta=own), workload("mine", 1))
    await cluster.create(*(group(name, "own", 1, meta=own) for name in groups))
    async with running_parts(cluster, job_controller(), kubelets, garbage_collectors):
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert pod_group["spec"]["workloadRef"]["workloadName"] == "mine"
        assert (await cluster.get_only(WORKLOAD))["metadata"]["name"] == "mine"
        assert groups_of(await cluster.list_objects(POD))[0].startswith("mine-workers-0-")
        assert conditions_of(await cluster.get_only(JOB)) == {}


@in_virtual_time
async def test_own_workload_with_a_group_of_the_user_is_not_deleted() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    await cluster.create(job(gang=True))
    own = await owner_metadata(cluster)
    await cluster.create(workload("own", 1, meta=own), workload("mine", 1), group("g", "own", 1))
    async with running_parts(cluster, job_controller(), kubelets, garbage_collectors):
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(WORKLOAD)) == 2
        assert await fallback_condition(cluster) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_own_workload_of_a_started_job_is_not_deleted() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(suspend=True))
        await cluster.wait_until_idle()
        await cluster.create(workload("mine", 2))
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(WORKLOAD)) == 2
        assert await fallback_condition(cluster) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_template_with_a_system_priority_class_is_not_used() -> None:
    mine = workload("mine", 1)
    mine["spec"]["podGroupTemplates"][0]["priorityClassName"] = "system-node-critical"
    async with running_job_controller() as cluster:
        await cluster.create(mine, job())
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "PriorityTooHigh")
        assert groups_of(await cluster.list_objects(POD)) == [""]
        assert await cluster.list_objects(POD_GROUP) == []
