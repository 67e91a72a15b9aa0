"""A Job's Workload and PodGroup, made before its pods and kept up to date."""

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
async def test_first_comes_the_workload_then_the_group_then_pods() -> None:
    async with running_job_controller() as stage:
        order: list[str] = []
        stage.store.subscribe(lambda changes: order.extend(
            change.key for change in changes if change.before is None
        ))  # fmt: skip
        await stage.create(job(gang=True, parallelism=2, completions=2))
        await stage.wait_until_idle()
    kinds = [k for key in order for k in ("workloads", "podgroups", "pods/") if f"/{k}" in key]
    assert kinds[:2] + sorted({*kinds[2:]}) == ["workloads", "podgroups", "pods/"]


@pytest.mark.parametrize("shape", [
    {}, {"parallelism": 3}, {"parallelism": 2, "completions": 5},
    {"parallelism": 2, "completions": 2, "completionMode": "Indexed"},
    {"scheduling": {}}, {"scheduling": {"schedulingPolicy": {"basic": {}}}}, {"suspend": True},
])  # fmt: skip
@in_virtual_time
async def test_every_root_job_is_represented_as_basic_unless_it_asks_for_a_gang(
    shape: Object,
) -> None:
    async with running_job_controller() as stage:
        await stage.create(job(**shape))
        await stage.wait_until_idle()
        made, of = await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)
        assert made["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == {"basic": {}}
        assert policy(of) == {"basic": {}}
        name = of["metadata"]["name"]
        pods = await stage.list_objects(POD)
        assert groups_of(pods) == [name] * len(pods)


@in_virtual_time
async def test_objects_say_whose_they_are_and_who_made_them() -> None:
    async with running_job_controller() as stage:
        await stage.create(job())
        await stage.wait_until_idle()
        one, made, of = (
            await stage.get_only(JOB),
            await stage.get_only(WORKLOAD),
            await stage.get_only(POD_GROUP),
        )
        uid = one["metadata"]["uid"]
        owners = made["metadata"]["ownerReferences"]
        assert [(o["kind"], o["uid"], o["controller"]) for o in owners] == [("Job", uid, True)]
        assert [o["kind"] for o in of["metadata"]["ownerReferences"]] == ["Job", "Workload"]
        for obj in (made, of):
            assert obj["metadata"]["annotations"] == {MANAGED_BY_ANNOTATION: "job-controller"}
        assert made["metadata"]["name"].startswith("train-")
        assert of["metadata"]["name"].startswith(f"{made['metadata']['name']}-train-pgt-0-")
        for kind, obj in (("Workload", made), ("PodGroup", of)):
            (event,) = await stage.events(f"{kind}Created")
            name = obj["metadata"]["name"]
            assert event["message"] == f"Created {kind} {name} for Job train"


@in_virtual_time
async def test_how_near_the_pods_of_a_job_would_like_to_be_reaches_its_group_alone() -> None:
    async with running_job_controller() as stage:
        one = job()
        one["metadata"].setdefault("annotations", {})[TOPOLOGY_ANNOTATION] = "rack, *"
        await stage.create(one)
        await stage.wait_until_idle()
        made, of = await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)
        assert of["metadata"]["annotations"][TOPOLOGY_ANNOTATION] == "rack, *"
        assert TOPOLOGY_ANNOTATION not in made["metadata"]["annotations"]


@in_virtual_time
async def test_what_a_job_asks_for_reaches_its_group() -> None:
    block = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    }
    async with running_job_controller() as stage:
        await stage.create(job(parallelism=3, completions=3, scheduling=block))
        await stage.wait_until_idle()
        spec = (await stage.get_only(POD_GROUP))["spec"]
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
async def test_who_gets_objects(one: Object, count: int) -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, job_controller(), kubelets):
        await stage.create(one)
        await stage.wait_until_idle()
        assert len(await stage.list_objects(POD)) == 1
        assert (
            len(await stage.list_objects(WORKLOAD))
            == len(await stage.list_objects(POD_GROUP))
            == count
        )


@in_virtual_time
async def test_a_template_that_names_a_group_keeps_it_and_gets_no_objects() -> None:
    one = job(meta=child_metadata())
    one["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mine"}
    async with running_job_controller() as stage:
        await stage.create(workload("parent", 2, about=PARENT_TARGET), one)
        await stage.wait_until_idle()
        assert groups_of(await stage.list_objects(POD)) == ["mine"]
        assert (
            len(await stage.list_objects(WORKLOAD)) + len(await stage.list_objects(POD_GROUP)) == 1
        )


@in_virtual_time
async def test_where_basic_workloads_are_not_wanted_only_gangs_get_objects() -> None:
    async with running_job_controller(JobSchedulingOptions(include_basic=False)) as stage:
        await stage.create(job("plain"), job("gang", gang=True))
        await stage.wait_until_idle()
        (made,) = await stage.list_objects(WORKLOAD)
        assert made["spec"]["controllerRef"]["name"] == "gang"
        assert len(await stage.list_objects(POD)) == 2


@in_virtual_time
async def test_the_size_of_a_gang_follows_the_parallelism_unless_it_is_named() -> None:
    named = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    for one, wanted in (
        (job(gang=True, parallelism=2), 5),
        (job(scheduling=named, parallelism=2), 2),
    ):
        async with running_job_controller() as stage:
            await stage.create(one)
            await stage.wait_until_idle()
            assert await gang_sizes(stage) == (2, 2)
            await stage.patch(JOB, "train", {"spec": {"parallelism": 5}})
            await stage.wait_until_idle()
            assert await gang_sizes(stage) == (wanted, wanted)


@in_virtual_time
async def test_a_named_size_may_change_and_reaches_both() -> None:
    block = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    async with running_job_controller() as stage:
        await stage.create(job(scheduling=block, parallelism=4))
        await stage.wait_until_idle()
        change = {"spec": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}}}}
        await stage.patch(JOB, "train", change)
        await stage.wait_until_idle()
        assert await gang_sizes(stage) == (3, 3)


@in_virtual_time
async def test_a_gang_whose_end_is_near_says_how_many_will_still_run() -> None:
    async with running_job_controller() as stage:
        await stage.create(indexed(3, gang=True))
        await stage.wait_until_idle()
        assert (
            MEMBERS_TO_RUN_ANNOTATION
            not in (await stage.get_only(POD_GROUP))["metadata"]["annotations"]
        )
        await stage.finish("Succeeded", indexes=[0])
        await stage.wait_until_idle()
        assert (await stage.get_only(POD_GROUP))["metadata"]["annotations"][
            MEMBERS_TO_RUN_ANNOTATION
        ] == "2"
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        assert (
            MEMBERS_TO_RUN_ANNOTATION
            not in (await stage.get_only(POD_GROUP))["metadata"]["annotations"]
        )


# --------------------------------------------------------------------------- before and after


@in_virtual_time
async def test_a_job_that_has_pods_is_never_retrofitted() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, job_controller(None), kubelets):
        await stage.create(job(parallelism=1, completions=3))
        await stage.wait_until_idle()
    async with running_parts(stage, job_controller(), kubelets):
        await stage.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await stage.wait_until_idle()
        assert groups_of(await stage.list_objects(POD)) == ["", ""]
        assert await stage.list_objects(WORKLOAD) + await stage.list_objects(POD_GROUP) == []
        assert conditions_of(await stage.get_only(JOB)) == {}


@in_virtual_time
async def test_a_job_without_pods_gets_objects_at_the_next_look() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, job_controller(None)):
        await stage.create(job(suspend=True))
        await stage.wait_until_idle()
        assert await stage.list_objects(WORKLOAD) == []
    async with running_parts(stage, job_controller()):
        await stage.wait_until_idle()
        assert len(await stage.list_objects(WORKLOAD)) == 1


@in_virtual_time
async def test_a_gate_goes_off_and_on_again() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, job_controller(), kubelets):
        await stage.create(job(gang=True, parallelism=2, completions=9))
        await stage.wait_until_idle()
        made, of = await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)
        name = of["metadata"]["name"]
    async with running_parts(stage, job_controller(None), kubelets):
        await stage.patch(JOB, "train", {"spec": {"parallelism": 3}})
        await stage.wait_until_idle()
        assert groups_of(await stage.list_objects(POD)) == ["", name, name]
        assert (await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)) == (made, of)
    async with running_parts(stage, job_controller(), kubelets):
        await stage.patch(JOB, "train", {"spec": {"parallelism": 5}})
        await stage.wait_until_idle()
        assert groups_of(await stage.list_objects(POD)) == ["", name, name, name, name]
        # One of the five runs outside, so the gang will never have more than four members.
        of = await stage.get_only(POD_GROUP)
        assert policy(of)["gang"]["minCount"] == 5
        assert of["metadata"]["annotations"][MEMBERS_TO_RUN_ANNOTATION] == "4"


@in_virtual_time
async def test_lost_objects_are_made_again() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(gang=True, parallelism=2, completions=9))
        await stage.wait_until_idle()
        made, of = await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)
        await stage.delete(WORKLOAD, made["metadata"]["name"])
        await stage.wait_until_idle()
        again = await stage.get_only(WORKLOAD)
        assert again["metadata"]["uid"] != made["metadata"]["uid"]
        assert again["spec"] == made["spec"]
        assert (await stage.get_only(POD_GROUP))["metadata"]["uid"] == of["metadata"]["uid"]
        await stage.delete(POD_GROUP, of["metadata"]["name"])
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        new = await stage.get_only(POD_GROUP)
        assert new["metadata"]["uid"] != of["metadata"]["uid"]
        assert groups_of(await stage.list_objects(POD)) == [new["metadata"]["name"]] * 4


@in_virtual_time
async def test_a_job_says_if_the_workload_of_its_user_is_gone() -> None:
    async with running_job_controller() as stage:
        await stage.create(workload("mine", 1), job(parallelism=1, completions=3))
        await stage.wait_until_idle()
        await stage.delete(WORKLOAD, "mine")
        await stage.wait_until_idle()
        assert await fallback_condition(stage) == ("True", "SchedulingObjectsLost")
        await stage.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await stage.wait_until_idle()
        assert groups_of(await stage.list_objects(POD))[0] == ""


# -------------------------------------------------------------------------------- what goes wrong


@in_virtual_time
async def test_what_makes_no_workload_is_told_and_gets_no_pods() -> None:
    one = job(gangPolicy={"policy": "JobAsGang"}, scheduling={"disruptionMode": {"all": {}}})
    async with running_job_controller(JobSchedulingOptions(use_gang_policy=False)) as stage:
        await stage.create(one)
        await stage.wait(60)
        (event,) = await stage.events("FailedWorkloadCompilation")
        assert event["message"].startswith("Failed to compile Workload for Job train: ")
        assert await stage.list_objects(POD) == []


@in_virtual_time
async def test_a_group_of_a_class_that_never_preempts_says_so_too() -> None:
    quiet = priority_class("quiet", 7, preemptionPolicy="Never")
    one = job(gang=True)
    one["spec"]["template"]["spec"]["priorityClassName"] = "quiet"
    async with running_job_controller() as stage:
        await stage.create(one)
        await stage.wait(60)
        assert "no PriorityClass" in (await stage.events("FailedPodGroupCreate"))[0]["message"]
        await stage.create(quiet)
        await stage.wait(70)
        spec = (await stage.get_only(POD_GROUP))["spec"]
        assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")
        assert len(await stage.list_objects(POD)) == 1


@in_virtual_time
async def test_a_group_says_what_the_class_by_default_says() -> None:
    quiet = priority_class("quiet", 7, preemptionPolicy="Never", globalDefault=True)
    async with running_job_controller() as stage:
        await stage.create(quiet, job(gang=True))
        await stage.wait_until_idle()
        spec = (await stage.get_only(POD_GROUP))["spec"]
        assert (spec["priorityClassName"], spec["preemptionPolicy"]) == ("quiet", "Never")
        assert len(await stage.list_objects(POD)) == 1


@pytest.mark.parametrize("name", ["system-cluster-critical", "system-node-critical"])
@pytest.mark.parametrize("gang", [False, True])
@in_virtual_time
async def test_pods_of_a_class_that_no_group_can_be_of_are_in_none_and_the_job_says_so(
    name: str, gang: bool
) -> None:
    one = job(gang=gang, parallelism=2, completions=2)
    one["spec"]["template"]["spec"]["priorityClassName"] = name
    async with running_job_controller() as stage:
        await stage.create(one)
        await stage.wait_until_idle()
        assert groups_of(await stage.list_objects(POD)) == ["", ""]
        assert await stage.list_objects(WORKLOAD) == await stage.list_objects(POD_GROUP) == []
        assert await fallback_condition(stage) == ("True", "PriorityTooHigh")
        (event,) = await stage.events("PriorityTooHigh")
        assert event["message"] == (
            f"No PodGroup can be of the priority class {name}; its pods are scheduled one by one"
        )
        await stage.wait(600)
        assert await stage.events("FailedPodGroupCreate") == []


@in_virtual_time
async def test_no_pod_is_made_in_a_group_that_is_about_to_go() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(gang=True, suspend=True))
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        held = {"metadata": {"finalizers": [*of["metadata"]["finalizers"], "example.com/hold"]}}
        await stage.patch(POD_GROUP, of["metadata"]["name"], held)
        await stage.delete(POD_GROUP, of["metadata"]["name"])
        await stage.patch(JOB, "train", {"spec": {"suspend": False}})
        await stage.wait(60)
        assert await stage.list_objects(POD) == []
        change = {"metadata": {"finalizers": None}}
        await stage.patch(POD_GROUP, of["metadata"]["name"], change)
        await stage.wait(70)
        again = await stage.get_only(POD_GROUP)
        assert again["metadata"]["uid"] != of["metadata"]["uid"]
        assert groups_of(await stage.list_objects(POD)) == [again["metadata"]["name"]]


@pytest.mark.parametrize(("plural", "kind"), [("workloads", "Workload"), ("podgroups", "PodGroup")])
@in_virtual_time
async def test_without_its_objects_a_job_gets_no_pods_until_they_can_be_made(
    plural: str, kind: str
) -> None:
    name = f"count/{plural}.scheduling.k8s.io"
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "default"}, "spec": {"hard": {name: "0"}},
    }  # fmt: skip
    async with running_job_controller() as stage:
        await stage.create(quota, job())
        await stage.wait(120)
        (event,) = await stage.events(f"Failed{kind}Create")
        assert event["message"].startswith(f"Failed to create {kind} for Job train: ")
        assert 2 <= event["count"] <= 20
        one = await stage.get_only(JOB)
        assert (await stage.list_objects(POD), one.get("status", {}).get("startTime")) == ([], None)
        await stage.delete(RESOURCE_QUOTA, "none")
        await stage.wait_until_idle()
        assert len(await stage.list_objects(POD)) == 1


@in_virtual_time
async def test_a_name_that_is_taken_by_another_is_told_and_waited_for() -> None:
    async with running_job_controller(None) as stage:
        await stage.create(job(suspend=True))
        await stage.wait_until_idle()
        name = workload_name("train", (await stage.get_only(JOB))["metadata"]["uid"])
        await stage.create(workload(name, 1, about=("", "Other", "other")))
        async with running_parts(stage, job_controller()):
            await stage.wait(60)
            (event,) = await stage.events("FailedWorkloadCreate")
            assert "already exists" in event["message"]
            await stage.delete(WORKLOAD, name)
            await stage.wait_until_idle()
            assert (await stage.get_only(WORKLOAD))["spec"]["controllerRef"]["name"] == "train"
