"""The groups of a LeaderWorkerSet: subgroups, topology, the user's own objects, fallbacks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from phalanx.api.errors import Forbidden
from phalanx.api.feature_gates import TOPOLOGY_AWARE_SCHEDULING, parse_gates, resolve_gates
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    LEADER_WORKER_SET,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    STATEFUL_SET,
    WORKLOAD,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.leader_worker_sets.controller import LeaderWorkerSetController
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.stateful_sets.controller import StatefulSetController
from phalanx.randomness import Random
from tests.builders import in_virtual_time, pod, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.leader_worker_sets.lws_cluster import (
    LwsUser,
    leader_worker_set,
    template,
)
from tests.controllers.trial_cluster import Runnable, TrialCluster, kubelets, running_parts

PREFIX = "leaderworkerset.sigs.k8s.io/"
RACK = "example.com/rack"


async def run(c: Cluster, obj: Object) -> LwsUser:
    await c.create(obj)
    user = LwsUser(c, obj["metadata"]["name"])
    await user.until_available()
    return user


def racks(*sizes: int, cpu: str = "2") -> list[SimulatedNode]:
    """Nodes in racks of these sizes."""
    return [
        SimulatedNode(f"r{rack}-n{number}", {"pods": "110", "cpu": cpu}, {RACK: f"r{rack}"})
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


async def racks_by_replica(c: Cluster) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, node in (await c.node_by_pod()).items():
        found.setdefault(name.split("-")[1], set()).add(node.split("-")[0])
    return found


# ---- subgroups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "policy", "subgroups", "quorums"),
    [
        (4, {"subGroupSize": 2}, {"llm-0": "0", "llm-0-1": "0", "llm-0-2": "1", "llm-0-3": "1"},
         {"0": 2, "1": 2}),
        (5, {"subGroupSize": 2}, {"llm-0": "0", "llm-0-1": "0", "llm-0-2": "0", "llm-0-3": "1",
                                  "llm-0-4": "1"}, {"0": 3, "1": 2}),
        (5, {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"},
         {"llm-0": "", "llm-0-1": "0", "llm-0-2": "0", "llm-0-3": "1", "llm-0-4": "1"},
         {"leader": 1, "0": 2, "1": 2}),
    ],
)  # fmt: skip
@in_virtual_time
async def test_a_replica_with_subgroups_is_a_tree_of_groups(
    size: int, policy: Object, subgroups: dict[str, str], quorums: dict[str, int]
) -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="4")) as c:
        user = await run(c, leader_worker_set(1, size, subGroupPolicy=policy))
        labels = {
            name: one["metadata"]["labels"].get(f"{PREFIX}subgroup-index", "")
            for name, one in (await user.pods()).items()
        }
        assert labels == subgroups
        ((name, composite),) = (await user.objects(COMPOSITE_POD_GROUP)).items()
        assert composite["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": len(quorums)}}
        groups = (await user.objects(POD_GROUP)).values()
        found = {
            one["metadata"]["labels"][f"{PREFIX}subgroup-index"]:
            one["spec"]["schedulingPolicy"]["gang"]["minCount"] for one in groups
        }  # fmt: skip
        assert found == quorums
        assert {one["spec"]["parentCompositePodGroupName"] for one in groups} == {name}
        members = await user.groups_by_pod()
        assert len(set(members.values())) == len(quorums)


@in_virtual_time
async def test_all_subgroups_of_a_replica_are_placed_or_none() -> None:
    policy = {"subGroupSize": 2}
    async with cluster(nodes=simulated_nodes(1, cpu="3")) as c:
        await c.create(leader_worker_set(1, 4, subGroupPolicy=policy))
        user = LwsUser(c)
        await user.settle()
        assert await c.node_by_pod() == {}


@in_virtual_time
async def test_the_groups_of_subgroups_go_with_a_removed_replica() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="4")) as c:
        user = await run(c, leader_worker_set(2, 4, subGroupPolicy={"subGroupSize": 2}))
        await user.patch(replicas=1)
        await user.settle()
        assert len(await user.objects(COMPOSITE_POD_GROUP)) == 1
        assert len(await user.objects(POD_GROUP)) == 2


# ---- topology ------------------------------------------------------------------------------------


def exclusive(key: str = "exclusive-topology", **fields: Any) -> Object:
    annotations = {f"{PREFIX}{key}": RACK}
    return leader_worker_set(fields.pop("replicas", 2), 3, metadata={"annotations": annotations},
                             **fields)  # fmt: skip


@in_virtual_time
async def test_exclusive_replicas_have_a_domain_of_their_own() -> None:
    async with cluster(nodes=racks(2, 2, 2)) as c:
        user = await run(c, exclusive())
        found = await racks_by_replica(c)
        assert all(len(racks) == 1 for racks in found.values())
        assert found["0"] != found["1"]
        (group, _) = (await user.objects(POD_GROUP)).values()
        constraint = group["spec"]["schedulingConstraints"]
        assert constraint == {"topology": [{"key": RACK}]}


@in_virtual_time
async def test_an_exclusive_replica_without_a_free_domain_waits() -> None:
    async with cluster(nodes=racks(4, 1)) as c:
        await c.create(exclusive())
        await LwsUser(c).settle()
        found = await racks_by_replica(c)
        assert list(found.values()) == [{"r0"}]


@in_virtual_time
async def test_workers_that_start_later_follow_their_leader_into_its_domain() -> None:
    async with cluster(nodes=racks(2, 2)) as c:
        user = await run(c, exclusive(startupPolicy="LeaderReady"))
        found = await racks_by_replica(c)
        assert all(len(racks) == 1 for racks in found.values())
        assert found["0"] != found["1"]
        workers = (await user.objects(STATEFUL_SET))["llm-0"]
        assert list(workers["spec"]["template"]["spec"]["nodeSelector"]) == [RACK]


@in_virtual_time
async def test_exclusive_subgroups_have_a_domain_of_their_own() -> None:
    annotations = {f"{PREFIX}subgroup-exclusive-topology": RACK}
    async with cluster(nodes=racks(1, 1, 1)) as c:
        obj = leader_worker_set(
            1, 4, subGroupPolicy={"subGroupSize": 2}, metadata={"annotations": annotations}
        )
        user = await run(c, obj)
        nodes, members = await c.node_by_pod(), await user.groups_by_pod()
        used = {(group, nodes[name].split("-")[0]) for name, group in members.items()}
        assert len(used) == 2
        assert len({rack for _, rack in used}) == 2


# ---- what users ask for --------------------------------------------------------------------------


@in_virtual_time
async def test_a_user_opts_out_of_gangs() -> None:
    basic: Object = {"schedulingPolicy": {"basic": {}}}
    async with cluster(nodes=simulated_nodes(1, cpu="2")) as c:
        await c.create(leader_worker_set(1, 3, scheduling=basic))
        await LwsUser(c).settle()
        assert len(await c.node_by_pod()) == 2


@in_virtual_time
async def test_a_workload_of_the_user_takes_precedence() -> None:
    workload: Object = {
        "apiVersion": WORKLOAD.api_version, "kind": "Workload",
        "metadata": {"name": "mine", "namespace": "default"},
        "spec": {
            "controllerRef": {"apiGroup": LEADER_WORKER_SET.group, "kind": "LeaderWorkerSet",
                              "name": "llm"},
            "podGroupTemplates": [{"name": "any", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        },
    }  # fmt: skip
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(workload)
        user = await run(c, leader_worker_set(1, 2))
        assert list(await user.objects(WORKLOAD)) == ["mine"]
        (group,) = (await user.objects(POD_GROUP)).values()
        assert group["spec"]["workloadRef"] == {"workloadName": "mine", "templateName": "any"}


@in_virtual_time
async def test_pods_that_cannot_be_one_group_are_scheduled_one_by_one_and_say_why() -> None:
    leader = template(priorityClassName="high")
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(priority_class("high", 100))
        await c.create(leader_worker_set(1, 2, leaderTemplate=leader))
        user = LwsUser(c)
        await user.settle()
        assert set((await user.groups_by_pod()).values()) == {""}
        conditions = {one["type"]: one for one in (await user.status())["conditions"]}
        assert conditions["Available"]["status"] == "True"
        fallback = conditions["SchedulingFallback"]
        assert fallback["reason"] == "InvalidScheduling"
        assert "must equal that of the workers" in fallback["message"]
        assert len(await c.events("InvalidScheduling")) == 1


@in_virtual_time
async def test_groups_have_the_priority_and_preemption_policy_of_their_class() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create({**priority_class("calm", 100), "preemptionPolicy": "Never"})
        user = await run(c, leader_worker_set(1, 2, workerTemplate=template(
            priorityClassName="calm")))  # fmt: skip
        (group,) = (await user.objects(POD_GROUP)).values()
        assert (group["spec"]["priority"], group["spec"]["preemptionPolicy"]) == (100, "Never")


@in_virtual_time
async def test_pods_that_name_a_group_keep_it() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        named = template(schedulingGroup={"podGroupName": "mine"})
        await c.create(leader_worker_set(1, 2, workerTemplate=named))
        user = LwsUser(c)
        await user.settle()
        assert set((await user.groups_by_pod()).values()) == {"mine"}
        assert await user.objects(WORKLOAD) == {}


def without_groups(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    stateful_sets = StatefulSetController(client, informers, clock)
    sets = LeaderWorkerSetController(client, informers, clock, has_groups=False)
    return [stateful_sets.run, sets.run]


@in_virtual_time
async def test_without_pod_groups_the_pods_are_scheduled_one_by_one() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, kubelets, without_groups):
        await stage.create(leader_worker_set(2, 2))
        await stage.wait_until_idle()
        pods = await stage.list_objects(POD)
        assert len(pods) == 4
        assert not any("schedulingGroup" in one["spec"] for one in pods)
        assert await stage.list_objects(WORKLOAD) == []


@in_virtual_time
async def test_claims_of_pods_are_kept_or_deleted_by_their_policy() -> None:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(leader_worker_set(
            2, 2, volumeClaimTemplates=[claim],
            persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Delete"},
        ))  # fmt: skip
        user = LwsUser(c)
        await user.settle(5)
        claims = sorted(await user.objects(PERSISTENT_VOLUME_CLAIM))
        assert claims == ["data-llm-0", "data-llm-0-1", "data-llm-1", "data-llm-1-1"]
        await c.delete(LEADER_WORKER_SET, "llm")
        await user.settle()
        assert await user.objects(PERSISTENT_VOLUME_CLAIM) == {}


@in_virtual_time
async def test_a_pod_with_the_label_of_a_set_needs_its_annotations() -> None:
    async with cluster() as c:
        meta: Object = {"labels": {f"{PREFIX}name": "llm"}}
        with pytest.raises(Forbidden, match="size annotation is unexpectedly missing"):
            await c.create(pod("stray-0", meta=meta))
        meta["annotations"] = {f"{PREFIX}size": "many"}
        with pytest.raises(Forbidden, match="not a number"):
            await c.create(pod("stray-0", meta=meta))
        meta["annotations"] = {f"{PREFIX}size": "2"}
        await c.create(pod("stray-0", meta=meta))
        stored = await c.client.get(POD, Key("default", "stray-0"))
        assert stored["metadata"]["labels"][f"{PREFIX}worker-index"] == "0"


# ---- groups of a parent --------------------------------------------------------------------------


def workload_of(kind: str, name: str, templates: Object) -> Object:
    group = LEADER_WORKER_SET.group if kind == "LeaderWorkerSet" else "example.com"
    return {
        "apiVersion": WORKLOAD.api_version, "kind": "Workload",
        "metadata": {"name": f"of-{name}", "namespace": "default"},
        "spec": {"controllerRef": {"apiGroup": group, "kind": kind, "name": name}, **templates},
    }  # fmt: skip


def child_of(parent: str, template_name: str) -> Object:
    """A set whose controller is another object, which links it to a template of its Workload."""
    owner = {"apiVersion": "example.com/v1", "kind": "Model", "name": parent, "uid": "u-1",
             "controller": True}  # fmt: skip
    annotations = {"scheduling.k8s.io/group-template-name": template_name}
    return leader_worker_set(1, 2, metadata={
        "ownerReferences": [owner], "annotations": annotations,
    })  # fmt: skip


@in_virtual_time
async def test_a_child_creates_its_groups_from_the_template_of_its_parent() -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    templates = {"podGroupTemplates": [{"name": "other", **gang}, {"name": "server", **gang}]}
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, kubelets, with_groups):
        await stage.create(workload_of("Model", "m", templates), child_of("m", "server"))
        await stage.wait_until_idle()
        group = await stage.get_only(POD_GROUP)
        assert group["spec"]["workloadRef"] == {"workloadName": "of-m", "templateName": "server"}
        names = {one["spec"]["schedulingGroup"]["podGroupName"]
                 for one in await stage.list_objects(POD)}  # fmt: skip
        assert names == {group["metadata"]["name"]}


def with_groups(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    stateful_sets = StatefulSetController(client, informers, clock)
    return [stateful_sets.run, LeaderWorkerSetController(client, informers, clock).run]


async def fallback_reason(stage: TrialCluster, *objects: Object) -> str:
    await stage.server.start()
    async with running_parts(stage, kubelets, with_groups):
        await stage.create(*objects)
        await stage.wait_until_idle()
        assert not any("schedulingGroup" in one["spec"] for one in await stage.list_objects(POD))
        lws = await stage.get_only(LEADER_WORKER_SET)
        (found,) = (one for one in lws["status"]["conditions"] if "Fallback" in one["type"])
        reason: str = found["reason"]
        return reason


GANG: Object = {"name": "a", "schedulingPolicy": {"gang": {"minCount": 2}}}
TWO_GANGS: Object = {"podGroupTemplates": [GANG, {**GANG, "name": "b"}]}


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([child_of("m", "server")], "ParentWorkloadNotFound"),
        ([workload_of("LeaderWorkerSet", "llm", TWO_GANGS), leader_worker_set(1, 2)],
         "InvalidScheduling"),
        ([workload_of("LeaderWorkerSet", "llm", {"podGroupTemplates": [GANG]}),
          leader_worker_set(1, 4, subGroupPolicy={"subGroupSize": 2})], "InvalidScheduling"),
        ([leader_worker_set(1, 2, workerTemplate=template(
            priorityClassName="system-node-critical"))], "PriorityTooHigh"),
    ],
)  # fmt: skip
@in_virtual_time
async def test_a_set_without_usable_templates_says_why(objects: list[Object], reason: str) -> None:
    assert await fallback_reason(TrialCluster(), *deepcopy(objects)) == reason


@in_virtual_time
async def test_a_changed_priority_gives_the_set_a_new_workload() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(priority_class("high", 100))
        user = await run(c, leader_worker_set(1, 2))
        (before,) = (await user.objects(WORKLOAD)).values()
        worker = template("v2", priorityClassName="high")
        await user.patch(leaderWorkerTemplate={"workerTemplate": worker})
        await user.until_available()
        (after,) = (await user.objects(WORKLOAD)).values()
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        (group,) = (await user.objects(POD_GROUP)).values()
        assert group["spec"]["priority"] == 100


@in_virtual_time
async def test_set_runs_where_the_server_drops_the_topology_of_its_workload() -> None:
    gates = resolve_gates(parse_gates(f"{TOPOLOGY_AWARE_SCHEDULING}=false"))
    annotations = {f"{PREFIX}exclusive-topology": RACK}
    obj = leader_worker_set(1, 2, metadata={"annotations": annotations})
    async with cluster(nodes=racks(2), gates=gates) as c:
        await run(c, obj)
        (workload,) = (await c.client.list(WORKLOAD)).items
        assert "schedulingConstraints" not in workload["spec"]["podGroupTemplates"][0]
