"""JobSets on a whole control plane: every rule of their life, in virtual time."""

from __future__ import annotations

import hashlib

import pytest

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    JOB,
    JOB_SET,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    RESOURCE_QUOTA,
    SERVICE,
    WORKLOAD,
)
from phalanx.api.meta import Key
from phalanx.api.scheduling import FINISHED_ANNOTATION, MEMBERS_TO_RUN_ANNOTATION
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node, pod
from tests.controllers.job_sets.job_set_harness import job_set, job_set_cluster, role

PREFIX = "jobset.sigs.k8s.io/"
#: Pods that are not ready until a node has the label.
NOT_READY = {"nodeSelector": {"open": "yes"}}


@in_virtual_time
async def test_two_roles_run_as_one_gang_and_complete() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("driver"), role("workers", 2, 3)))
        await cluster.settle()
        assert await cluster.names(JOB) == ["train-driver-0", "train-workers-0", "train-workers-1"]
        assert await cluster.group_sizes() == {"driver": 1, "workers": 6}
        (root,) = await cluster.objects(COMPOSITE_POD_GROUP)
        assert root["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
        assert await cluster.running() == {"driver": 1, "workers": 6}
        status = {one.name: one for one in (await cluster.get()).status.replicated_jobs_status}
        assert (status["workers"].ready, status["workers"].active) == (2, 2)
        await cluster.end("Succeeded", "workers")
        assert (await cluster.get()).status.terminal_state == ""
        await cluster.end("Succeeded", "driver")
        assert await cluster.conditions() == {"Completed": ("True", "AllJobsCompleted")}
        assert (await cluster.get()).status.terminal_state == "Completed"
        assert await cluster.events() == ["AllJobsCompleted"]
        groups = await cluster.objects(POD_GROUP)
        assert {one["metadata"]["annotations"][FINISHED_ANNOTATION] for one in groups} == {
            "Complete"
        }


@in_virtual_time
async def test_gang_larger_than_the_room_binds_nothing_until_room_appears() -> None:
    async with job_set_cluster(1, cpu=4) as cluster:
        await cluster.create(job_set(role("driver"), role("workers", 2, 3)))
        await cluster.settle(30)
        assert await cluster.running() == {}
        assert len(await cluster.objects(POD)) == 7
        await cluster.inner.add_node(node("more"))
        await cluster.settle(60)
        placed = await cluster.inner.node_by_pod()
        assert len(placed) == 7


@in_virtual_time
async def test_number_of_pods_follows_the_template_while_the_job_set_runs() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("driver"), role("workers", 2, 2)))
        await cluster.settle()
        uids = {one["metadata"]["uid"] for one in await cluster.objects(JOB)}
        for pods in (4, 1):
            roles = [role("driver"), role("workers", 2, pods)]
            await cluster.patch({"spec": {"replicatedJobs": roles}})
            await cluster.settle(30)
            assert await cluster.running() == {"driver": 1, "workers": 2 * pods}
            assert await cluster.group_sizes() == {"driver": 1, "workers": 2 * pods}
        assert {one["metadata"]["uid"] for one in await cluster.objects(JOB)} == uids
        for name in ("driver", "workers"):
            await cluster.end("Succeeded", name)
        assert (await cluster.get()).status.terminal_state == "Completed"


@in_virtual_time
async def test_jobs_and_pods_carry_the_labels_and_annotations_of_their_place() -> None:
    async with job_set_cluster() as cluster:
        manifest = job_set(
            role("driver", groupName="first"),
            role("workers", 2, 2, groupName="second", meta={"labels": {"app": "x"}}),
            role("eval", groupName="second"),
            coordinator={"replicatedJob": "driver"},
        )
        await cluster.create(manifest)
        await cluster.settle()
        job = await cluster.job("train-workers-1")
        uid = (await cluster.get()).metadata.uid
        place = {
            "jobset-name": "train",
            "jobset-uid": uid,
            "replicatedjob-name": "workers",
            "replicatedjob-replicas": "2",
            "global-replicas": "4",
            "job-index": "1",
            "job-global-index": "2",
            "restart-attempt": "0",
            "job-restart-attempt": "0",
            "group-name": "second",
            "group-replicas": "3",
            "job-group-index": "1",
            "coordinator": "train-driver-0-0.train",
        }
        labels = {f"{PREFIX}{name}": value for name, value in place.items()}
        key = hashlib.sha1(b"default/train-workers-1", usedforsecurity=False).hexdigest()
        labels[f"{PREFIX}job-key"] = key
        assert labels.items() <= job["metadata"]["labels"].items()
        assert labels.items() <= job["metadata"]["annotations"].items()
        assert job["metadata"]["labels"]["app"] == "x"
        pods = job["spec"]["template"]
        assert labels.items() <= pods["metadata"]["labels"].items()
        assert labels.items() <= pods["metadata"]["annotations"].items()
        assert pods["spec"]["subdomain"] == "train"
        (owner,) = job["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("JobSet", uid, True)
        last = await cluster.job("train-eval-0")
        assert last["metadata"]["labels"][f"{PREFIX}job-group-index"] == "2"


@in_virtual_time
async def test_headless_service_has_the_subdomain_and_selects_the_pods() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("workers"), network={"subdomain": "mesh"}))
        await cluster.create(
            job_set(role("w"), name="plain", network={"enableDNSHostnames": False})
        )
        await cluster.settle()
        service = await cluster.client.get(SERVICE, Key("default", "mesh"))
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == {f"{PREFIX}jobset-name": "train"}
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert await cluster.names(SERVICE) == ["mesh"]
        assert "subdomain" not in (await cluster.job("plain-w-0"))["spec"]["template"]["spec"]


@in_virtual_time
async def test_without_a_failure_policy_a_failed_job_fails_the_set() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("driver"), role("workers", 2)))
        await cluster.settle()
        await cluster.end("Failed", "workers", jobs=[1])
        assert await cluster.conditions() == {"Failed": ("True", "FailedJobs")}
        status = (await cluster.get()).status
        assert status.terminal_state == "Failed"
        assert status.conditions[0].message.endswith("(first failed job: train-workers-1)")
        # The Jobs that still ran are deleted; the failed one stays.
        assert await cluster.names(JOB) == ["train-workers-1"]
        assert await cluster.events() == ["FailedJobs"]


@pytest.mark.parametrize("strategy", ["Recreate", "BlockingRecreate"])
@in_virtual_time
async def test_failed_worker_restarts_the_set_and_its_gang_is_placed_as_one_again(
    strategy: str,
) -> None:
    async with job_set_cluster() as cluster:
        policy = {"maxRestarts": 1, "restartStrategy": strategy}
        await cluster.create(job_set(role("driver"), role("workers", 2, 2), failurePolicy=policy))
        await cluster.settle()
        before = set(await cluster.names(POD_GROUP))
        await cluster.end("Failed", "workers", jobs=[0], pods=1)
        await cluster.settle(60)
        status = (await cluster.get()).status
        assert (status.restarts, status.restarts_count_towards_max) == (1, 1)
        assert await cluster.running() == {"driver": 1, "workers": 4}
        job = await cluster.job("train-driver-0")
        assert job["metadata"]["labels"][f"{PREFIX}restart-attempt"] == "1"
        # The attempt has groups of its own, so that old members never count.
        after = set(await cluster.names(POD_GROUP))
        assert len(after) == 2
        assert not before & after
        await cluster.end("Failed", "driver")
        assert await cluster.conditions() == {"Failed": ("True", "ReachedMaxRestarts")}
        assert await cluster.events() == ["ReachedMaxRestarts", "RestartJobSetFailurePolicyAction"]


@in_virtual_time
async def test_restarted_gang_binds_nothing_while_there_is_no_room_for_all() -> None:
    async with job_set_cluster(2, cpu=4) as cluster:
        await cluster.create(job_set(role("workers", 2, 4), failurePolicy={"maxRestarts": 3}))
        await cluster.settle()
        assert await cluster.running() == {"workers": 8}
        await cluster.client.patch(NODE, Key("", "n1"), {"spec": {"unschedulable": True}})
        await cluster.end("Failed", "workers", jobs=[0], pods=1)
        await cluster.settle(60)
        assert (await cluster.get()).status.restarts == 1
        assert await cluster.running() == {}
        await cluster.client.patch(NODE, Key("", "n1"), {"spec": {"unschedulable": None}})
        await cluster.settle(60)
        assert await cluster.running() == {"workers": 8}


RULES = [
    {"name": "fatal", "action": "FailJobSet", "targetReplicatedJobs": ["driver"]},
    {
        "name": "host",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    },
    {
        "name": "text",
        "action": "RestartJobSet",
        "onJobFailureMessagePatterns": ["^Job has reached"],
    },
]


@in_virtual_time
async def test_first_matching_failure_rule_decides() -> None:
    async with job_set_cluster() as cluster:
        policy = {
            "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]
        }
        roles = [
            role("driver"),
            role("host", job={"podFailurePolicy": policy}),
            role("workers"),
        ]
        await cluster.create(job_set(*roles, failurePolicy={"maxRestarts": 1, "rules": RULES}))
        await cluster.settle()
        await cluster.end("Failed", "host")
        await cluster.settle(60)
        status = (await cluster.get()).status
        assert (status.restarts, status.restarts_count_towards_max) == (1, 0)
        await cluster.end("Failed", "workers")
        await cluster.settle(60)
        status = (await cluster.get()).status
        assert (status.restarts, status.restarts_count_towards_max) == (2, 1)
        await cluster.end("Failed", "driver")
        assert await cluster.conditions() == {"Failed": ("True", "FailJobSetFailurePolicyAction")}


@in_virtual_time
async def test_single_job_restarts_alone() -> None:
    async with job_set_cluster() as cluster:
        rules = [{"name": "one", "action": "RestartJob"}]
        policy = {"maxRestarts": 1, "rules": rules}
        await cluster.create(job_set(role("workers", 3), failurePolicy=policy))
        await cluster.settle()
        kept = (await cluster.job("train-workers-0"))["metadata"]["uid"]
        await cluster.end("Failed", "workers", jobs=[1])
        await cluster.settle(60)
        status = (await cluster.get()).status
        assert status.restarts == 0
        assert status.replicated_jobs_status[0].job_restarts == (0, 1, 0)
        labels = (await cluster.job("train-workers-1"))["metadata"]["labels"]
        assert labels[f"{PREFIX}restart-attempt"] == "0"
        assert labels[f"{PREFIX}job-restart-attempt"] == "1"
        assert await cluster.running() == {"workers": 3}
        assert (await cluster.job("train-workers-0"))["metadata"]["uid"] == kept
        await cluster.end("Failed", "workers", jobs=[1])
        assert await cluster.conditions() == {"Failed": ("True", "ReachedMaxRestarts")}


@in_virtual_time
async def test_any_target_completes_the_set_and_ends_the_other_jobs() -> None:
    async with job_set_cluster() as cluster:
        policy = {"operator": "Any", "targetReplicatedJobs": ["workers"]}
        await cluster.create(job_set(role("driver"), role("workers", 2), successPolicy=policy))
        await cluster.settle()
        await cluster.end("Succeeded", "driver")
        assert await cluster.conditions() == {}
        await cluster.end("Succeeded", "workers", jobs=[1])
        assert await cluster.conditions() == {"Completed": ("True", "AllJobsCompleted")}
        assert await cluster.names(JOB) == ["train-driver-0", "train-workers-1"]


@in_virtual_time
async def test_all_targets_complete_the_set() -> None:
    async with job_set_cluster() as cluster:
        policy = {"operator": "All", "targetReplicatedJobs": ["workers"]}
        await cluster.create(job_set(role("driver"), role("workers", 2), successPolicy=policy))
        await cluster.settle()
        await cluster.end("Succeeded", "workers", jobs=[1])
        assert await cluster.conditions() == {}
        await cluster.end("Succeeded", "workers")
        assert await cluster.conditions() == {"Completed": ("True", "AllJobsCompleted")}


@in_virtual_time
async def test_roles_start_in_order_each_as_its_own_gang() -> None:
    async with job_set_cluster() as cluster:
        order = {"startupPolicyOrder": "InOrder"}
        await cluster.create(
            job_set(role("driver", pod=NOT_READY), role("workers", 2, 2), startupPolicy=order)
        )
        await cluster.settle()
        assert await cluster.names(JOB) == ["train-driver-0"]
        (root,) = await cluster.objects(COMPOSITE_POD_GROUP)
        assert root["spec"]["schedulingPolicy"] == {"basic": {}}
        assert await cluster.group_sizes() == {"driver": 1, "workers": 4}
        assert await cluster.conditions() == {
            "StartupPolicyInProgress": ("True", "InOrderStartupPolicyInProgress")
        }
        await cluster.open_node()
        assert await cluster.running() == {"driver": 1, "workers": 4}
        assert await cluster.conditions() == {
            "StartupPolicyInProgress": ("False", "InOrderStartupPolicyInProgress"),
            "StartupPolicyCompleted": ("True", "InOrderStartupPolicyCompleted"),
        }
        assert await cluster.events() == [
            "InOrderStartupPolicyCompleted",
            "InOrderStartupPolicyInProgress",
        ]


@in_virtual_time
async def test_role_waits_until_its_dependencies_are_ready_or_complete() -> None:
    async with job_set_cluster() as cluster:
        after = [{"name": "prepare", "status": "Complete"}, {"name": "driver", "status": "Ready"}]
        await cluster.create(
            job_set(
                role("prepare"), role("driver", pod=NOT_READY), role("workers", dependsOn=after)
            )
        )
        await cluster.settle()
        assert await cluster.names(JOB) == ["train-driver-0", "train-prepare-0"]
        await cluster.end("Succeeded", "prepare")
        assert await cluster.names(JOB) == ["train-driver-0", "train-prepare-0"]
        await cluster.open_node()
        assert "train-workers-0" in await cluster.names(JOB)
        assert await cluster.running() == {"driver": 1, "workers": 1}


@in_virtual_time
async def test_suspended_set_has_the_jobs_that_depend_on_no_others() -> None:
    async with job_set_cluster() as cluster:
        after = [{"name": "driver", "status": "Ready"}]
        roles = (role("driver"), role("workers", dependsOn=after))
        await cluster.create(job_set(*roles, suspend=True))
        order = {"startupPolicyOrder": "InOrder"}
        roles = (role("driver"), role("workers"))
        await cluster.create(job_set(*roles, name="other", startupPolicy=order, suspend=True))
        await cluster.settle()
        assert await cluster.names(JOB) == ["other-driver-0", "other-workers-0", "train-driver-0"]
        await cluster.patch({"spec": {"suspend": False}})
        await cluster.settle()
        assert await cluster.running() == {"driver": 1, "workers": 1}


@in_virtual_time
async def test_suspended_set_resumes_with_the_changes_of_its_templates() -> None:
    async with job_set_cluster(labels=[{"zone": "a"}]) as cluster:
        manifest = job_set(role("driver"), role("workers", 2, 2), suspend=True)
        await cluster.create(manifest)
        await cluster.settle()
        assert await cluster.conditions() == {"Suspended": ("True", "SuspendedJobs")}
        assert len(await cluster.names(JOB)) == 3
        assert await cluster.objects(POD) == []
        changed = (await cluster.client.get(JOB_SET, Key("default", "train")))["spec"]
        for one in changed["replicatedJobs"]:
            pods = one["template"]["spec"]["template"]
            pods["spec"]["nodeSelector"] = {"zone": "a"}
            pods["spec"]["tolerations"] = [{"key": "cheap", "operator": "Exists"}]
            pods["metadata"] = {"labels": {"queue": "q"}, "annotations": {"note": "n"}}
        await cluster.patch({"spec": {"replicatedJobs": changed["replicatedJobs"]}})
        await cluster.patch({"spec": {"suspend": False}})
        await cluster.settle()
        assert await cluster.conditions() == {"Suspended": ("False", "ResumeJobs")}
        assert await cluster.running() == {"driver": 1, "workers": 4}
        assert set((await cluster.inner.node_by_pod()).values()) == {"n0"}
        pods = (await cluster.objects(POD))[0]
        assert pods["metadata"]["labels"]["queue"] == "q"
        assert pods["spec"]["tolerations"][0]["key"] == "cheap"
        await cluster.patch({"spec": {"suspend": True}})
        await cluster.settle(60)
        assert await cluster.running() == {}
        assert await cluster.conditions() == {"Suspended": ("True", "SuspendedJobs")}
        await cluster.patch({"spec": {"suspend": False}})
        await cluster.settle(60)
        assert await cluster.running() == {"driver": 1, "workers": 4}


@in_virtual_time
async def test_finished_set_is_deleted_after_its_ttl_with_everything_below() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("workers"), ttlSecondsAfterFinished=100))
        await cluster.settle()
        await cluster.end("Succeeded", "workers")
        await cluster.settle(80)
        assert await cluster.names(JOB_SET) == ["train"]
        await cluster.settle(60)
        for kind in (JOB_SET, JOB, POD, POD_GROUP, COMPOSITE_POD_GROUP, WORKLOAD):
            assert await cluster.names(kind) == []
        assert await cluster.names(SERVICE) == []


@in_virtual_time
async def test_set_of_another_manager_is_left_alone() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("workers"), managedBy="kueue.x-k8s.io/multikueue"))
        await cluster.create(
            job_set(role("w"), name="ours", managedBy="jobset.sigs.k8s.io/jobset-controller")
        )
        await cluster.settle()
        assert await cluster.names(JOB) == ["ours-w-0"]


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ([role(f"r{number}", cpu="0.1") for number in range(9)], "NoCommonWorkload"),
        (
            [role("a", pod={"priorityClassName": "high"}), role("b")],
            "NoCommonWorkload",
        ),
        ([role("a", pod={"priorityClassName": "system-node-critical"})], "PriorityTooHigh"),
        ([role("a", job={"gangPolicy": {"policy": "NoGang"}})], "NoGang"),
    ],
)
@in_virtual_time
async def test_set_without_a_possible_tree_runs_plain_jobs_and_says_why(
    roles: list[dict[str, object]], reason: str
) -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "high"},
                "value": 1000,
            }
        )
        await cluster.create(job_set(*roles))
        await cluster.settle()
        assert await cluster.conditions() == {"SchedulingFallback": ("True", reason)}
        assert await cluster.names(POD_GROUP) == []
        assert len(await cluster.running()) == len(roles)


@in_virtual_time
async def test_gang_replaces_a_member_after_another_has_succeeded() -> None:
    async with job_set_cluster() as cluster:
        await cluster.create(job_set(role("workers", 1, 3, job={"backoffLimit": 3})))
        await cluster.settle()
        await cluster.end("Succeeded", "workers", pods=1)
        (group,) = await cluster.objects(POD_GROUP)
        assert group["metadata"]["annotations"][MEMBERS_TO_RUN_ANNOTATION] == "2"
        await cluster.end("Failed", "workers", pods=1)
        await cluster.settle(60)
        assert await cluster.running() == {"workers": 2}
        await cluster.end("Succeeded", "workers")
        assert await cluster.conditions() == {"Completed": ("True", "AllJobsCompleted")}


@in_virtual_time
async def test_basic_policy_of_the_user_is_kept() -> None:
    async with job_set_cluster(1, cpu=2) as cluster:
        scheduling: Object = {"schedulingPolicy": {"basic": {}}}
        await cluster.create(job_set(role("driver"), role("workers", 2), scheduling=scheduling))
        await cluster.settle()
        assert await cluster.group_sizes() == {"driver": None, "workers": None}
        assert sum((await cluster.running()).values()) == 2


@in_virtual_time
async def test_shared_volume_claims_are_created_and_mounted() -> None:
    async with job_set_cluster() as cluster:
        mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        container = {"name": "main", "image": "i", **mount}
        claim = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        policy = {"templates": [{"metadata": {"name": "data"}, "spec": claim}]}
        await cluster.create(
            job_set(role("workers", pod={"containers": [container]}), volumeClaimPolicies=[policy])
        )
        await cluster.settle()
        (found,) = await cluster.objects(PERSISTENT_VOLUME_CLAIM)
        assert found["metadata"]["name"] == "data-train"
        assert found["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
        pods = (await cluster.job("train-workers-0"))["spec"]["template"]["spec"]
        assert pods["volumes"] == [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-train"}}
        ]


@in_virtual_time
async def test_each_job_has_a_topology_domain_to_itself() -> None:
    racks = [{"rack": f"r{number // 2}"} for number in range(6)]
    async with job_set_cluster(6, cpu=2, labels=racks) as cluster:
        meta = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}}
        await cluster.create(job_set(role("workers", 2, 3), meta=meta))
        await cluster.settle()
        assert len(await cluster.names(POD_GROUP)) == 2
        placed = await cluster.inner.node_by_pod()
        rack_of = {f"n{number}": racks[number]["rack"] for number in range(6)}
        domains = {
            index: {rack_of[at] for name, at in placed.items() if f"-workers-{index}-" in name}
            for index in (0, 1)
        }
        assert len(domains[0]) == len(domains[1]) == 1
        assert domains[0] != domains[1]
        await cluster.create(job_set(role("w", 2, 2), name="other", meta=meta))
        await cluster.settle()
        # Only one rack is left: the other set, a gang of two Jobs, binds nothing.
        assert len(await cluster.inner.node_by_pod()) == 6


@in_virtual_time
async def test_a_role_may_name_another_topology_than_its_set() -> None:
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    domains = [{"rack": f"r{number}", "row": "one"} for number in range(4)]
    async with job_set_cluster(4, labels=domains) as cluster:
        workers = role("workers", 2)
        workers["template"]["metadata"] = {"annotations": {key: "rack"}}
        meta = {"annotations": {key: "row"}}
        await cluster.create(job_set(role("driver"), workers, meta=meta))
        await cluster.settle()
        jobs = await cluster.objects(JOB)
        annotated = {one["metadata"]["name"]: one["metadata"]["annotations"][key] for one in jobs}
        assert annotated == {
            "train-driver-0": "row",
            "train-workers-0": "rack",
            "train-workers-1": "rack",
        }
        groups = await cluster.objects(POD_GROUP)
        keys = sorted(one["spec"]["schedulingConstraints"]["topology"][0]["key"] for one in groups)
        assert keys == ["rack", "rack", "row"]


@in_virtual_time
async def test_jobs_wait_while_a_group_cannot_be_created() -> None:
    async with job_set_cluster() as cluster:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none", "namespace": "default"},
            "spec": {"hard": {"count/podgroups.scheduling.k8s.io": "1"}},
        }
        await cluster.create(quota)
        await cluster.create(job_set(role("driver"), role("workers")))
        await cluster.settle()
        assert await cluster.names(JOB) == []
        assert "FailedPodGroupCreate" in await cluster.events()
        await cluster.inner.delete(RESOURCE_QUOTA, "none")
        await cluster.settle(120)
        assert await cluster.running() == {"driver": 1, "workers": 1}


@pytest.mark.parametrize(("mode", "left"), [({}, 3), ({"disruptionMode": {"all": {}}}, 0)])
def test_preemption_evicts_single_pods_or_the_whole_set(mode: Object, left: int) -> None:
    @in_virtual_time
    async def preempt() -> None:
        async with job_set_cluster(1, cpu=4) as cluster:
            head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            await cluster.create({**head, "metadata": {"name": "high"}, "value": 1000})
            fields: Object = {"scheduling": mode} if mode else {}
            await cluster.create(job_set(role("leader"), role("workers", 1, 3), **fields))
            await cluster.settle()
            await cluster.create(pod("urgent", cpu="1", spec={"priorityClassName": "high"}))
            await cluster.settle(20)
            placed = await cluster.inner.node_by_pod()
            assert "urgent" in placed
            assert len([name for name in placed if name.startswith("train-")]) == left
            assert len(await cluster.objects(POD)) == 5
            assert await cluster.conditions() == {}

    preempt()


@in_virtual_time
async def test_preempted_role_runs_again_after_another_role_has_completed() -> None:
    async with job_set_cluster(1, cpu=3) as cluster:
        head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        await cluster.create({**head, "metadata": {"name": "high"}, "value": 1000})
        await cluster.create(job_set(role("leader"), role("workers", 1, 2)))
        await cluster.settle()
        await cluster.end("Succeeded", "leader")
        (root,) = await cluster.objects(COMPOSITE_POD_GROUP)
        assert root["metadata"]["annotations"][MEMBERS_TO_RUN_ANNOTATION] == "1"
        await cluster.create(pod("urgent", cpu="3", spec={"priorityClassName": "high"}))
        await cluster.settle(20)
        # The leader has succeeded on its node.
        leader, urgent = sorted(await cluster.inner.node_by_pod())
        assert (leader.startswith("train-leader-"), urgent) == (True, "urgent")
        await cluster.inner.delete(POD, "urgent")
        await cluster.settle(60)
        assert await cluster.running() == {"workers": 2}
        await cluster.end("Succeeded", "workers")
        assert await cluster.conditions() == {"Completed": ("True", "AllJobsCompleted")}
