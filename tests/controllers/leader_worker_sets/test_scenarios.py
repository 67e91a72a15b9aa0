"""LeaderWorkerSets as users see them: groups are placed, restarted and updated as wholes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.api.kinds import (
    CONTROLLER_REVISION,
    LEADER_WORKER_SET,
    POD,
    POD_GROUP,
    SERVICE,
    STATEFUL_SET,
    WORKLOAD,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.leader_worker_sets.lws_cluster import (
    LwsUser,
    leader_worker_set,
    template,
)

PREFIX = "leaderworkerset.sigs.k8s.io/"


def environment(pod: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}


async def run(c: Cluster, obj: Object) -> LwsUser:
    await c.create(obj)
    user = LwsUser(c, obj["metadata"]["name"])
    await user.until_available()
    return user


# ---- what is created -----------------------------------------------------------------------------


@in_virtual_time
async def test_pods_know_their_place_in_their_group() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 3, leaderTemplate=template("leader")))
        pods = await user.pods()
        assert sorted(pods) == ["llm-0", "llm-0-1", "llm-0-2", "llm-1", "llm-1-1", "llm-1-2"]
        labels = {
            name: {
                key.removeprefix(PREFIX): value
                for key, value in one["metadata"]["labels"].items()
                if key.startswith(PREFIX)
            }
            for name, one in pods.items()
        }
        assert (labels["llm-1"]["group-index"], labels["llm-1"]["worker-index"]) == ("1", "0")
        assert (labels["llm-1-2"]["group-index"], labels["llm-1-2"]["worker-index"]) == ("1", "2")
        assert labels["llm-1"]["group-key"] == labels["llm-1-1"]["group-key"]
        assert labels["llm-1"]["group-key"] != labels["llm-0"]["group-key"]
        assert len({one["template-revision-hash"] for one in labels.values()}) == 1
        assert pods["llm-0-1"]["metadata"]["annotations"][f"{PREFIX}leader-name"] == "llm-0"
        assert environment(pods["llm-1-2"]) == {
            "LWS_LEADER_ADDRESS": "llm-1.llm.default", "LWS_GROUP_SIZE": "3",
            "LWS_WORKER_INDEX": "2",
        }  # fmt: skip
        assert environment(pods["llm-0"])["LWS_WORKER_INDEX"] == "0"
        images = await user.images()
        assert (images["llm-0"], images["llm-0-1"]) == ("leader", "v1")


@in_virtual_time
async def test_status_reports_the_replicas_and_the_scale_selects_the_leaders() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 2))
        status = await user.status()
        conditions = status.pop("conditions")
        assert status == {
            "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "observedGeneration": 1,
            "hpaPodSelector": f"{PREFIX}name=llm,{PREFIX}worker-index=0",
        }  # fmt: skip
        assert [(one["type"], one["status"], one["reason"]) for one in conditions] == [
            ("Progressing", "False", "GroupsProgressing"), ("Available", "True", "AllGroupsReady"),
        ]  # fmt: skip
        await user.settle(5)
        assert await c.events("AllGroupsReady") == [
            ("llm", "All replicas are ready, with 2 groups ready of total 2 groups")
        ]
        assert ("llm", "Created leader statefulset llm") in await c.events("GroupsProgressing")


@in_virtual_time
async def test_each_replica_is_a_gang_of_one_workload() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 3))
        ((workload, _),) = (await user.objects(WORKLOAD)).items()
        groups = await user.objects(POD_GROUP)
        by_pod = await user.groups_by_pod()
        assert len(groups) == 2
        assert by_pod["llm-0"] == by_pod["llm-0-1"] == by_pod["llm-0-2"] != by_pod["llm-1"]
        for group in groups.values():
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
            assert group["spec"]["workloadRef"]["workloadName"] == workload
            assert group["metadata"]["ownerReferences"][0]["kind"] == "LeaderWorkerSet"


@in_virtual_time
async def test_replicas_share_a_headless_service_or_have_their_own() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 2))
        shared = (await user.objects(SERVICE))["llm"]["spec"]
        assert (shared["clusterIP"], shared["publishNotReadyAddresses"]) == ("None", True)
        assert shared["selector"] == {f"{PREFIX}name": "llm"}
        unique = {"subdomainPolicy": "UniquePerReplica"}
        other = await run(c, leader_worker_set(2, 2, name="own", networkConfig=unique))
        services = await user.objects(SERVICE)
        assert {"own-0", "own-1"} <= set(services)
        assert "own" not in services
        assert services["own-1"]["spec"]["selector"][f"{PREFIX}group-index"] == "1"
        pods = await other.pods()
        assert environment(pods["own-1-1"])["LWS_LEADER_ADDRESS"] == "own-1.own-1.default"
        assert environment(pods["own-1"])["LWS_LEADER_ADDRESS"] == "own-1.own-1.default"


@in_virtual_time
async def test_pods_with_tpus_know_the_other_tpu_workers() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8", **{"google.com/tpu": "32"})) as c:
        worker, resources = template(), {"limits": {"google.com/tpu": "4"}}
        worker["spec"]["containers"][0]["resources"] = resources
        user = await run(c, leader_worker_set(1, 3, workerTemplate=worker))
        pods = await user.pods()
        assert environment(pods["llm-0-2"]) == {
            "LWS_LEADER_ADDRESS": "llm-0.llm.default", "LWS_GROUP_SIZE": "3",
            "LWS_WORKER_INDEX": "2", "TPU_NAME": "llm-0-2", "TPU_WORKER_ID": "2",
            "TPU_WORKER_HOSTNAMES": "llm-0.llm,llm-0-1.llm,llm-0-2.llm",
        }  # fmt: skip
        assert environment(pods["llm-0"])["TPU_WORKER_ID"] == "0"
        other = leader_worker_set(1, 3, name="w", leaderTemplate=template(), workerTemplate=worker)
        pods = await (await run(c, other)).pods()
        assert "TPU_WORKER_ID" not in environment(pods["w-0"])
        assert environment(pods["w-0-1"])["TPU_WORKER_ID"] == "0"
        assert environment(pods["w-0-1"])["TPU_WORKER_HOSTNAMES"] == "w-0-1.w,w-0-2.w"


@in_virtual_time
async def test_a_group_of_one_pod_has_no_workers() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 1))
        assert sorted(await user.pods()) == ["llm-0", "llm-1"]
        assert list(await user.objects(STATEFUL_SET)) == ["llm"]


@in_virtual_time
async def test_everything_goes_with_a_deleted_set() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 2))
        await c.delete(LEADER_WORKER_SET, "llm")
        await user.settle()
        for kind in (POD, STATEFUL_SET, POD_GROUP, WORKLOAD, CONTROLLER_REVISION):
            assert await user.objects(kind) == {}


# ---- placement -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_replica_is_placed_as_a_whole_or_not_at_all() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="5")) as c:
        await c.create(leader_worker_set(2, 3))
        user = LwsUser(c)
        await user.settle()
        placed = await c.node_by_pod()
        assert len(placed) == 3
        assert len({name.split("-")[1] for name in placed}) == 1
        status = await user.status()
        assert (status["readyReplicas"], await user.true_conditions()) == (1, ["Progressing"])
        await c.add_node(node("more", cpu="1"))
        await user.settle()
        assert len(await c.node_by_pod()) == 6


@in_virtual_time
async def test_a_replica_is_ready_once_all_its_workers_are() -> None:
    stages = {"metadata": {"annotations": {"phalanx.dev/stages": "{ready: 10}"}}}
    worker = {**template(), **stages}
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        obj = leader_worker_set(1, 3, leaderTemplate=template(), workerTemplate=worker)
        await c.create(obj)
        user = LwsUser(c)
        await user.settle(5)
        assert len(await user.pods()) == 3
        assert (await user.status())["readyReplicas"] == 0
        assert "Available" not in await user.true_conditions()
        await user.settle(10)
        assert (await user.status())["readyReplicas"] == 1


@in_virtual_time
async def test_workers_of_leader_ready_start_after_their_leader() -> None:
    stages = {"metadata": {"annotations": {"phalanx.dev/stages": "{ready: 10}"}}}
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        leader = {**template(), **stages}
        await c.create(leader_worker_set(1, 3, startupPolicy="LeaderReady", leaderTemplate=leader))
        user = LwsUser(c)
        await user.settle(8)
        assert sorted(await user.pods()) == ["llm-0"]
        (group,) = (await user.objects(POD_GROUP)).values()
        assert group["spec"]["schedulingPolicy"] == {"basic": {}}
        await user.until_available()
        assert sorted(await user.pods()) == ["llm-0", "llm-0-1", "llm-0-2"]


# ---- restarts ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_restarted_container_recreates_its_group_and_no_other() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 3))
        before = await user.uids()
        await user.restart_container("llm-1-2")
        await user.settle()
        after = await user.uids()
        changed = {name for name in before if before[name] != after.get(name)}
        assert changed == {"llm-1", "llm-1-1", "llm-1-2"}
        assert await user.true_conditions() == ["Available"]
        (event,) = await c.events("RecreateGroupOnPodRestart")
        assert event[1] == (
            "Worker pod llm-1-2 failed, deleted leader pod llm-1 to recreate group 1"
        )


@in_virtual_time
async def test_a_deleted_worker_recreates_its_group() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(1, 3))
        before = await user.uids()
        await c.delete(POD, "llm-0-1")
        await user.settle()
        after = await user.uids()
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(before.values())
        assert await user.true_conditions() == ["Available"]


@in_virtual_time
async def test_policy_none_replaces_single_pods() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(1, 3, restartPolicy="None"))
        before = await user.uids()
        await user.restart_container("llm-0-2")
        await c.delete(POD, "llm-0-1")
        await user.settle()
        after = await user.uids()
        assert {name for name in before if before[name] != after[name]} == {"llm-0-1"}


@in_virtual_time
async def test_policy_after_start_ignores_failures_while_pods_are_pending() -> None:
    slow = template()
    slow["metadata"] = {"annotations": {"phalanx.dev/stages": "{start: 20}"}}
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        policy = "RecreateGroupAfterStart"
        obj = leader_worker_set(
            1, 2, restartPolicy=policy, workerTemplate=slow, leaderTemplate=template()
        )
        await c.create(obj)
        user = LwsUser(c)
        await user.settle(5)
        before = await user.uids()
        await user.restart_container("llm-0")
        await user.settle(5)
        assert await user.uids() == before
        await user.settle(60)
        after = await user.uids()
        assert not set(after.values()) & set(before.values())


# ---- updates -------------------------------------------------------------------------------------


async def watch_update(user: LwsUser, size: int, seconds: float = 120.0) -> list[dict[str, str]]:
    """The images of leaders whenever they change; a group must never be placed in part."""
    seen: list[dict[str, str]] = []

    async def is_done() -> bool:
        assert await user.half_groups(size) == []
        images = await user.images()
        leaders = {name: image for name, image in images.items() if name.count("-") == 1}
        if not seen or seen[-1] != leaders:
            seen.append(leaders)
        status, meta = await user.status(), (await user.get())["metadata"]
        is_current = status.get("observedGeneration") == meta["generation"]
        return is_current and await user.true_conditions() == ["Available"]

    await user.cluster.until(is_done, seconds)
    return seen


def slow_set(replicas: int, size: int, **fields: Any) -> Object:
    """A set whose pods need some seconds to start, so that an update takes its steps one by one."""
    obj = leader_worker_set(replicas, size, **fields)
    worker = obj["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    worker["metadata"] = {"annotations": {"phalanx.dev/stages": "{start: 2}"}}
    return obj


@in_virtual_time
async def test_an_update_replaces_one_group_after_the_other_from_the_highest_index() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="8")) as c:
        user = await run(c, slow_set(3, 2))
        await user.set_image("v2")
        await asyncio.sleep(1)
        assert await user.true_conditions() == ["Progressing", "UpdateInProgress"]
        seen = await watch_update(user, 2)
        updated = [[name for name, image in one.items() if image == "v2"] for one in seen]
        order = [sorted(names) for names in updated if names]
        assert order[0] == ["llm-2"]
        assert order[-1] == ["llm-0", "llm-1", "llm-2"]
        assert all(len(one) >= 2 for one in seen)
        assert set((await user.images()).values()) == {"v2"}
        own = [name for name in await user.objects(CONTROLLER_REVISION) if name.count("-") == 2]
        assert len([name for name in own if name.startswith("llm-") and name.endswith("-2")]) == 1
        assert len(await user.objects(POD_GROUP)) == 3


@in_virtual_time
async def test_groups_below_the_partition_keep_their_template_even_when_rebuilt() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="8")) as c:
        user = await run(c, leader_worker_set(3, 2, partition=2))
        await user.set_image("v2")
        await user.settle()
        images = {"llm-0": "v1", "llm-0-1": "v1", "llm-1": "v1", "llm-1-1": "v1",
                  "llm-2": "v2", "llm-2-1": "v2"}  # fmt: skip
        assert await user.images() == images
        assert (await user.status())["updatedReplicas"] == 1
        before = await user.uids()
        await c.delete(POD, "llm-0")
        await user.settle()
        after = await user.uids()
        assert {name for name in before if before[name] != after[name]} == {"llm-0", "llm-0-1"}
        assert await user.images() == images
        assert await user.half_groups(2) == []
        rollout = {"rollingUpdateConfiguration": {"partition": 0}}
        await user.patch(rolloutStrategy=rollout)
        await user.settle()
        assert set((await user.images()).values()) == {"v2"}
        assert await user.true_conditions() == ["Available"]


@pytest.mark.slow
@in_virtual_time
async def test_surge_groups_are_added_for_an_update_and_removed_after_it() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="8")) as c:
        user = await run(c, slow_set(2, 2, maxSurge=1, maxUnavailable=0))
        await user.set_image("v2")
        seen = await watch_update(user, 2)
        assert max(len(one) for one in seen) == 3
        assert {"llm-0", "llm-1", "llm-2"} in [set(one) for one in seen]
        await user.settle()
        assert sorted(await user.pods()) == ["llm-0", "llm-0-1", "llm-1", "llm-1-1"]
        assert set((await user.images()).values()) == {"v2"}
        assert len(await user.objects(POD_GROUP)) == 2
        assert (await c.events("GroupsProgressing"))[-1][1] == "deleting surge replica llm-2"


@in_virtual_time
async def test_a_new_template_repairs_a_set_whose_groups_do_not_fit() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        await c.create(leader_worker_set(2, 2, cpu="9"))
        user = LwsUser(c)
        await user.settle()
        assert await c.node_by_pod() == {}
        await user.set_image("v2", cpu="1")
        await user.until_available()
        assert set((await user.images()).values()) == {"v2"}


@in_virtual_time
async def test_a_new_size_gives_the_groups_new_quorums() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 2))
        await user.patch(leaderWorkerTemplate={"size": 3})
        await user.until_available()
        assert len(await user.pods()) == 6
        await user.settle()
        groups = (await user.objects(POD_GROUP)).values()
        assert [one["spec"]["schedulingPolicy"]["gang"]["minCount"] for one in groups] == [3, 3]
        (workload,) = (await user.objects(WORKLOAD)).values()
        template = workload["spec"]["podGroupTemplates"][0]
        assert template["schedulingPolicy"]["gang"]["minCount"] == 3


# ---- scaling -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_set_is_scaled_by_its_scale_subresource() -> None:
    async with cluster(nodes=simulated_nodes(4, cpu="8")) as c:
        user = await run(c, leader_worker_set(1, 2))
        scale = {"spec": {"replicas": 3}}
        await user.client.patch(LEADER_WORKER_SET, user.key, scale, subresource="scale")
        await user.until_available()
        assert len(await user.pods()) == 6
        found = await user.client.get(LEADER_WORKER_SET, user.key)
        assert found["status"]["replicas"] == 3
        await user.patch(replicas=1)
        await user.settle()
        assert sorted(await user.pods()) == ["llm-0", "llm-0-1"]
        assert len(await user.objects(POD_GROUP)) == 1
        await user.patch(replicas=0)
        await user.settle()
        assert await user.pods() == {}
        assert await user.objects(POD_GROUP) == {}
        assert (await user.status())["replicas"] == 0
        assert Key("default", "llm") == user.key


# ---- events --------------------------------------------------------------------------------------


@in_virtual_time
async def test_scaling_down_deletes_no_surge_replica() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(2, 2))
        await user.patch(replicas=0)
        await user.settle()
        assert not await user.pods()
        texts = [text for _, text in await c.events("GroupsProgressing")]
        assert not any("surge" in text for text in texts)


@in_virtual_time
async def test_event_says_why_a_group_is_recreated() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(1, 2))
        await user.restart_container("llm-0-1")
        await user.settle()
        await user.until_available()
        await c.client.delete(POD, Key("default", "llm-0-1"))
        await user.settle()
        texts = [text for _, text in await c.events("RecreateGroupOnPodRestart")]
        end = "deleted leader pod llm-0 to recreate group 0"
        assert texts == [
            f"Worker pod llm-0-1 failed, {end}",
            f"Worker pod llm-0-1 is being deleted, {end}",
        ]


# ---- adoption ------------------------------------------------------------------------------------


@in_virtual_time
async def test_set_adopts_what_a_former_set_left_behind() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        user = await run(c, leader_worker_set(1, 2))
        await c.client.delete(LEADER_WORKER_SET, user.key, propagation="Orphan")
        await user.settle()
        assert len(await user.pods()) == 2
        await c.create(leader_worker_set(1, 2))
        await user.until_available()
        await user.settle()
        uid = (await user.get())["metadata"]["uid"]
        for kind in (STATEFUL_SET, SERVICE, WORKLOAD, POD_GROUP):
            found = await user.objects(kind)
            owners = {one["metadata"]["ownerReferences"][0]["uid"] for one in found.values()
                      if one["metadata"]["name"] != "llm-0"}  # fmt: skip
            assert owners == {uid}, kind.name
        assert len(await user.objects(POD_GROUP)) == len(await user.objects(WORKLOAD)) == 1
        await c.client.delete(LEADER_WORKER_SET, user.key)
        await user.settle()
        for kind in (POD, STATEFUL_SET, SERVICE, WORKLOAD, POD_GROUP, CONTROLLER_REVISION):
            assert not await user.objects(kind), kind.name


@in_virtual_time
async def test_foreign_stateful_set_of_the_same_name_is_reported() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        labels = {f"{PREFIX}name": "llm"}
        pods = {**template(), "metadata": {"labels": labels}}
        spec = {"serviceName": "x", "replicas": 0, "selector": {"matchLabels": labels}}
        await c.create({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {**spec, "template": pods},
            "metadata": {"name": "llm", "namespace": "default", "labels": labels},
        })  # fmt: skip
        await c.create(leader_worker_set(1, 2))
        user = LwsUser(c)
        await user.settle()
        ((_, text),) = set(await c.events("FailedAdoption"))
        assert text == (
            "The StatefulSet llm cannot be used for the leaders: its selector or "
            "podManagementPolicy differs, and cannot be changed; delete it"
        )
        await c.client.delete(STATEFUL_SET, user.key)
        await user.until_available()
