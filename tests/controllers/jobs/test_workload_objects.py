"""The Workload and PodGroup of a Job: created before its pods and kept up to date."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import JOB, POD, POD_GROUP, RESOURCE_QUOTA, WORKLOAD
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    TOPOLOGY_ANNOTATION,
)
from phalanx.api.wire import Object
from phalanx.builder.names import workload_name
from phalanx.controllers.jobs.workload_manager import JobSchedulingOptions
from tests.builders import in_virtual_time, priority_class
from tests.controllers.jobs.job_controller_harness import (
    PARENT,
    PARENT_TARGET,
    child_metadata,
    conditions_of,
    fallback_condition,
    gang_sizes,
    groups_of,
    indexed,
    job,
    job_controller,
    policy,
    running_job_controller,
    workload,
)
from tests.controllers.trial_cluster import TrialCluster, kubelets, running_parts


def owner(api: str, kind: str) -> Object:
    return {"ownerReferences": [{**PARENT, "apiVersion": api, "kind": kind}]}


@in_virtual_time
async def test_workload_is_created_before_the_group_and_the_group_before_pods() -> None:
    async with running_job_controller() as cluster:
        order: list[str] = []
        cluster.store.subscribe(
            lambda changes: order.extend(change.key for change in changes if change.before is None)
        )
        await cluster.create(job(gang=True, parallelism=2, completions=2))
        await cluster.wait_until_idle()
    kinds = [k for key in order for k in ("workloads", "podgroups", "pods/") if f"/{k}" in key]
    assert kinds[:2] + sorted({*kinds[2:]}) == ["workloads", "podgroups", "pods/"]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"parallelism": 3},
        {"parallelism": 2, "completions": 5},
        {"parallelism": 2, "completions": 2, "completionMode": "Indexed"},
        {"scheduling": {}},
        {"scheduling": {"schedulingPolicy": {"basic": {}}}},
        {"suspend": True},
    ],
)
@in_virtual_time
async def test_every_root_job_has_a_basic_workload_unless_it_asks_for_a_gang(
    shape: Object,
) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(**shape))
        await cluster.wait_until_idle()
        made, pod_group = await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)
        assert made["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == {"basic": {}}
        assert policy(pod_group) == {"basic": {}}
        name = pod_group["metadata"]["name"]
        pods = await cluster.list_objects(POD)
        assert groups_of(pods) == [name] * len(pods)


@in_virtual_time
async def test_objects_have_owner_references_and_the_managed_by_annotation() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job())
        await cluster.wait_until_idle()
        one, made, pod_group = (
            await cluster.get_only(JOB),
            await cluster.get_only(WORKLOAD),
            await cluster.get_only(POD_GROUP),
        )
        uid = one["metadata"]["uid"]
        owners = made["metadata"]["ownerReferences"]
        assert [(o["kind"], o["uid"], o["controller"]) for o in owners] == [("Job", uid, True)]
        assert [o["kind"] for o in pod_group["metadata"]["ownerReferences"]] == ["Job", "Workload"]
        for obj in (made, pod_group):
            assert obj["metadata"]["annotations"] == {MANAGED_BY_ANNOTATION: "job-controller"}
        assert made["metadata"]["name"].startswith("train-")
        assert pod_group["metadata"]["name"].startswith(f"{made['metadata']['name']}-train-pgt-0-")
        for kind, obj in (("Workload", made), ("PodGroup", pod_group)):
            (event,) = await cluster.events(f"{kind}Created")
            name = obj["metadata"]["name"]
            assert event["message"] == f"Created {kind} {name} for Job train"


@in_virtual_time
async def test_topology_annotation_is_copied_to_the_group_only() -> None:
    async with running_job_controller() as cluster:
        one = job()
        one["metadata"].setdefault("annotations", {})[TOPOLOGY_ANNOTATION] = "rack, *"
        await cluster.create(one)
        await cluster.wait_until_idle()
        made, pod_group = await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)
        assert pod_group["metadata"]["annotations"][TOPOLOGY_ANNOTATION] == "rack, *"
        assert TOPOLOGY_ANNOTATION not in made["metadata"]["annotations"]


@in_virtual_time
async def test_scheduling_block_of_a_job_is_copied_to_its_group() -> None:
    block = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    }
    async with running_job_controller() as cluster:
        await cluster.create(job(parallelism=3, completions=3, scheduling=block))
        await cluster.wait_until_idle()
        spec = (await cluster.get_only(POD_GROUP))["spec"]
        assert {name: spec[name] for name in block} == block


@pytest.mark.parametrize(
    ("one", "count"),
    [
        (job(), 1),
        (job(meta=owner("batch/v1", "CronJob")), 1),
        (job(meta=owner("example.com/v1", "Unknown")), 1),
        (job(meta=owner("jobset.x-k8s.io/v1alpha2", "JobSet")), 0),
        (job(meta=owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")), 0),
        (job(meta=owner("ray.io/v1", "RayJob")), 0),
        (job(gangPolicy={"policy": "NoGang"}), 0),
        (job(gangPolicy={"policy": "JobAsGang"}), 1),
    ],
)
@in_virtual_time
async def test_management_decides_which_jobs_get_objects(one: Object, count: int) -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.create(one)
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 1
        assert (
            len(await cluster.list_objects(WORKLOAD))
            == len(await cluster.list_objects(POD_GROUP))
            == count
        )


@in_virtual_time
async def test_job_whose_template_names_a_group_gets_no_objects() -> None:
    one = job(meta=child_metadata())
    one["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mine"}
    async with running_job_controller() as cluster:
        await cluster.create(workload("parent", 2, target=PARENT_TARGET), one)
        await cluster.wait_until_idle()
        assert groups_of(await cluster.list_objects(POD)) == ["mine"]
        assert (
            len(await cluster.list_objects(WORKLOAD)) + len(await cluster.list_objects(POD_GROUP))
            == 1
        )


@in_virtual_time
async def test_without_basic_workloads_only_gangs_get_objects() -> None:
    async with running_job_controller(JobSchedulingOptions(include_basic=False)) as cluster:
        await cluster.create(job("plain"), job("gang", gang=True))
        await cluster.wait_until_idle()
        (made,) = await cluster.list_objects(WORKLOAD)
        assert made["spec"]["controllerRef"]["name"] == "gang"
        assert len(await cluster.list_objects(POD)) == 2


@in_virtual_time
async def test_size_of_a_gang_follows_parallelism_unless_it_is_set() -> None:
    explicit = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    for one, expected in (
        (job(gang=True, parallelism=2), 5),
        (job(scheduling=explicit, parallelism=2), 2),
    ):
        async with running_job_controller() as cluster:
            await cluster.create(one)
            await cluster.wait_until_idle()
            assert await gang_sizes(cluster) == (2, 2)
            await cluster.patch(JOB, "train", {"spec": {"parallelism": 5}})
            await cluster.wait_until_idle()
            assert await gang_sizes(cluster) == (expected, expected)


@in_virtual_time
async def test_resized_gang_keeps_its_topology_and_disruption_mode() -> None:
    kept = {
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
    }
    block = {"schedulingPolicy": {"gang": {}}, **kept}
    async with running_job_controller() as cluster:
        await cluster.create(job(scheduling=block, parallelism=2))
        await cluster.wait_until_idle()
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 5}})
        await cluster.wait_until_idle()
        assert await gang_sizes(cluster) == (5, 5)
        ((template,),) = [
            made["spec"]["podGroupTemplates"] for made in await cluster.list_objects(WORKLOAD)
        ]
        assert {field: template[field] for field in kept} == kept


@in_virtual_time
async def test_changed_min_count_is_copied_to_workload_and_group() -> None:
    block = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    async with running_job_controller() as cluster:
        await cluster.create(job(scheduling=block, parallelism=4))
        await cluster.wait_until_idle()
        change = {"spec": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}}}}
        await cluster.patch(JOB, "train", change)
        await cluster.wait_until_idle()
        assert await gang_sizes(cluster) == (3, 3)


@in_virtual_time
async def test_members_to_run_annotation_is_set_once_fewer_than_min_count_remain() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(indexed(3, gang=True))
        await cluster.wait_until_idle()
        assert (
            MEMBERS_TO_RUN_ANNOTATION
            not in (await cluster.get_only(POD_GROUP))["metadata"]["annotations"]
        )
        await cluster.finish("Succeeded", indexes=[0])
        await cluster.wait_until_idle()
        assert (await cluster.get_only(POD_GROUP))["metadata"]["annotations"][
            MEMBERS_TO_RUN_ANNOTATION
        ] == "2"
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert (
            MEMBERS_TO_RUN_ANNOTATION
            not in (await cluster.get_only(POD_GROUP))["metadata"]["annotations"]
        )


# ---------------------------------------------------------------- feature gates and deletions


@in_virtual_time
async def test_job_with_pods_gets_no_objects_later() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(None), kubelets):
        await cluster.create(job(parallelism=1, completions=3))
        await cluster.wait_until_idle()
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await cluster.wait_until_idle()
        assert groups_of(await cluster.list_objects(POD)) == ["", ""]
        assert await cluster.list_objects(WORKLOAD) + await cluster.list_objects(POD_GROUP) == []
        assert conditions_of(await cluster.get_only(JOB)) == {}


@in_virtual_time
async def test_job_without_pods_gets_objects_at_the_next_sync() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(None)):
        await cluster.create(job(suspend=True))
        await cluster.wait_until_idle()
        assert await cluster.list_objects(WORKLOAD) == []
    async with running_parts(cluster, job_controller()):
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(WORKLOAD)) == 1


@in_virtual_time
async def test_feature_gate_is_disabled_and_enabled_again() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.create(job(gang=True, parallelism=2, completions=9))
        await cluster.wait_until_idle()
        made, pod_group = await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)
        name = pod_group["metadata"]["name"]
    async with running_parts(cluster, job_controller(None), kubelets):
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 3}})
        await cluster.wait_until_idle()
        assert groups_of(await cluster.list_objects(POD)) == ["", name, name]
        assert (await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)) == (
            made,
            pod_group,
        )
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 5}})
        await cluster.wait_until_idle()
        assert groups_of(await cluster.list_objects(POD)) == ["", name, name, name, name]
        # One of the five pods is in no group, so the gang never has more than four members.
        pod_group = await cluster.get_only(POD_GROUP)
        assert policy(pod_group)["gang"]["minCount"] == 5
        assert pod_group["metadata"]["annotations"][MEMBERS_TO_RUN_ANNOTATION] == "4"


@in_virtual_time
async def test_deleted_objects_are_created_again() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True, parallelism=2, completions=9))
        await cluster.wait_until_idle()
        made, pod_group = await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)
        await cluster.delete(WORKLOAD, made["metadata"]["name"])
        await cluster.wait_until_idle()
        again = await cluster.get_only(WORKLOAD)
        assert again["metadata"]["uid"] != made["metadata"]["uid"]
        assert again["spec"] == made["spec"]
        assert (await cluster.get_only(POD_GROUP))["metadata"]["uid"] == pod_group["metadata"][
            "uid"
        ]
        await cluster.delete(POD_GROUP, pod_group["metadata"]["name"])
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        new = await cluster.get_only(POD_GROUP)
        assert new["metadata"]["uid"] != pod_group["metadata"]["uid"]
        assert groups_of(await cluster.list_objects(POD)) == [new["metadata"]["name"]] * 4


@in_virtual_time
async def test_deleted_workload_of_the_user_is_reported_as_fallback() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("mine", 1), job(parallelism=1, completions=3))
        await cluster.wait_until_idle()
        await cluster.delete(WORKLOAD, "mine")
        await cluster.wait_until_idle()
        assert await fallback_condition(cluster) == ("True", "SchedulingObjectsLost")
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await cluster.wait_until_idle()
        assert groups_of(await cluster.list_objects(POD))[0] == ""


# ----------------------------------------------------------------------------------- failures


@in_virtual_time
async def test_invalid_scheduling_is_recorded_and_creates_no_pods() -> None:
    one = job(gangPolicy={"policy": "JobAsGang"}, scheduling={"disruptionMode": {"all": {}}})
    async with running_job_controller(JobSchedulingOptions(use_gang_policy=False)) as cluster:
        await cluster.create(one)
        await cluster.wait(60)
        (event,) = await cluster.events("FailedWorkloadCompilation")
        assert event["message"].startswith("Failed to compile Workload for Job train: ")
        assert await cluster.list_objects(POD) == []


@in_virtual_time
async def test_group_inherits_the_preemption_policy_of_its_priority_class() -> None:
    quiet = priority_class("quiet", 7, preemptionPolicy="Never")
    one = job(gang=True)
    one["spec"]["template"]["spec"]["priorityClassName"] = "quiet"
    async with running_job_controller() as cluster:
        await cluster.create(one)
        await cluster.wait(60)
        assert "no PriorityClass" in (await cluster.events("FailedPodGroupCreate"))[0]["message"]
        await cluster.create(quiet)
        await cluster.wait(70)
        spec = (await cluster.get_only(POD_GROUP))["spec"]
        assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")
        assert len(await cluster.list_objects(POD)) == 1


@in_virtual_time
async def test_group_inherits_the_preemption_policy_of_the_global_default_class() -> None:
    quiet = priority_class("quiet", 7, preemptionPolicy="Never", globalDefault=True)
    async with running_job_controller() as cluster:
        await cluster.create(quiet, job(gang=True))
        await cluster.wait_until_idle()
        spec = (await cluster.get_only(POD_GROUP))["spec"]
        assert (spec["priorityClassName"], spec["preemptionPolicy"]) == ("quiet", "Never")
        assert len(await cluster.list_objects(POD)) == 1


@pytest.mark.parametrize("name", ["system-cluster-critical", "system-node-critical"])
@pytest.mark.parametrize("gang", [False, True])
@in_virtual_time
async def test_pods_of_a_system_priority_class_are_in_no_group_and_a_fallback_is_reported(
    name: str, gang: bool
) -> None:
    one = job(gang=gang, parallelism=2, completions=2)
    one["spec"]["template"]["spec"]["priorityClassName"] = name
    async with running_job_controller() as cluster:
        await cluster.create(one)
        await cluster.wait_until_idle()
        assert groups_of(await cluster.list_objects(POD)) == ["", ""]
        assert await cluster.list_objects(WORKLOAD) == await cluster.list_objects(POD_GROUP) == []
        assert await fallback_condition(cluster) == ("True", "PriorityTooHigh")
        (event,) = await cluster.events("PriorityTooHigh")
        assert event["message"] == (
            f"A PodGroup cannot have the priority class {name}; its pods are scheduled one by one"
        )
        await cluster.wait(600)
        assert await cluster.events("FailedPodGroupCreate") == []


@in_virtual_time
async def test_no_pod_is_created_in_a_deleted_group() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True, suspend=True))
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        held = {
            "metadata": {"finalizers": [*pod_group["metadata"]["finalizers"], "example.com/hold"]}
        }
        await cluster.patch(POD_GROUP, pod_group["metadata"]["name"], held)
        await cluster.delete(POD_GROUP, pod_group["metadata"]["name"])
        await cluster.patch(JOB, "train", {"spec": {"suspend": False}})
        await cluster.wait(60)
        assert await cluster.list_objects(POD) == []
        change = {"metadata": {"finalizers": None}}
        await cluster.patch(POD_GROUP, pod_group["metadata"]["name"], change)
        await cluster.wait(70)
        again = await cluster.get_only(POD_GROUP)
        assert again["metadata"]["uid"] != pod_group["metadata"]["uid"]
        assert groups_of(await cluster.list_objects(POD)) == [again["metadata"]["name"]]


@pytest.mark.parametrize(("plural", "kind"), [("workloads", "Workload"), ("podgroups", "PodGroup")])
@in_virtual_time
async def test_job_gets_no_pods_until_its_objects_are_created(plural: str, kind: str) -> None:
    name = f"count/{plural}.scheduling.k8s.io"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "default"},
        "spec": {"hard": {name: "0"}},
    }
    async with running_job_controller() as cluster:
        await cluster.create(quota, job())
        await cluster.wait(120)
        (event,) = await cluster.events(f"Failed{kind}Create")
        assert event["message"].startswith(f"Failed to create {kind} for Job train: ")
        assert 2 <= event["count"] <= 20
        one = await cluster.get_only(JOB)
        assert (await cluster.list_objects(POD), one.get("status", {}).get("startTime")) == (
            [],
            None,
        )
        await cluster.delete(RESOURCE_QUOTA, "none")
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 1


@in_virtual_time
async def test_name_conflict_is_recorded_and_retried() -> None:
    async with running_job_controller(None) as cluster:
        await cluster.create(job(suspend=True))
        await cluster.wait_until_idle()
        name = workload_name("train", (await cluster.get_only(JOB))["metadata"]["uid"])
        await cluster.create(workload(name, 1, target=("", "Other", "other")))
        async with running_parts(cluster, job_controller()):
            await cluster.wait(60)
            (event,) = await cluster.events("FailedWorkloadCreate")
            assert "already exists" in event["message"]
            await cluster.delete(WORKLOAD, name)
            await cluster.wait_until_idle()
            assert (await cluster.get_only(WORKLOAD))["spec"]["controllerRef"]["name"] == "train"
