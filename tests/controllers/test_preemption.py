"""Preemption as users see it, on a Phalanx server and on a foreign one."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.feature_gates import parse_gates, resolve_gates
from phalanx.api.kinds import COMPOSITE_POD_GROUP, EVENT, POD, POD_GROUP
from phalanx.api.meta import Key, find_condition
from phalanx.api.scheduling import CompositePodGroup
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node, pod, pod_group, priority_class
from tests.controllers.cluster import Cluster, audit_transactions, cluster

CLASSES = {"low": 10, "high": 100}


async def classes(c: Cluster) -> None:
    for name, value in CLASSES.items():
        await c.create(priority_class(name, value))


def important(obj: Object, name: str) -> Object:
    obj["spec"]["priorityClassName"] = name
    return obj


def member(name: str, group: str, importance: str) -> Object:
    return important(pod(name, group=group, cpu="1"), importance)


def gang(name: str, minimum: int, importance: str, **spec: object) -> Object:
    made = important(pod_group(name, minimum), importance)
    made["spec"] |= spec
    return made


def composite(name: str, minimum: int, importance: str, **spec: object) -> Object:
    return important({
        "apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulingPolicy": {"gang": {"minGroupCount": minimum}},
            "workloadRef": {"workloadName": "w", "templateName": name}, **spec,
        },
    }, importance)  # fmt: skip


async def filled(c: Cluster, cpu: str = "2") -> None:
    """Fill one node with two pods of lower priority."""
    await classes(c)
    await c.add_node(node("n", cpu=cpu))
    await c.create(*(important(pod(f"low-{i}", cpu="1"), "low") for i in range(2)))
    await c.until_placed("low-0", "low-1")


async def end(c: Cluster, *names: str) -> None:
    """Remove pods that are being deleted."""
    for name in names:
        await c.client.delete(POD, Key("default", name), grace=0)


async def nominated(c: Cluster) -> dict[str, str]:
    pods = await c.pods()
    return {
        n: p.status.nominated_node_name for n, p in pods.items() if p.status.nominated_node_name
    }


@in_virtual_time
async def test_victims_get_a_condition_and_are_deleted_and_then_the_gang_is_bound() -> None:
    async with cluster(without=["nodes"]) as c, audit_transactions(c):
        await filled(c)
        await c.create(gang("g", 2, "high"), *(member(f"g-{i}", "g", "high") for i in range(2)))
        await asyncio.sleep(5)
        pods = await c.pods()
        assert all(pods[f"low-{i}"].metadata.deletion_timestamp for i in range(2))
        condition = find_condition(pods["low-0"].status.conditions, "DisruptionTarget")
        assert condition is not None
        assert (condition.reason, condition.message) == (
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority podgroup",
        )
        assert await nominated(c) == {"g-0": "n", "g-1": "n"}
        condition = await c.group_condition("g", "PodGroupInitiallyScheduled")
        assert condition is not None
        assert "waiting for pods that are leaving" in condition.message
        await end(c, "low-0", "low-1")
        await c.until_placed("g-0", "g-1")
        group = await c.client.get(POD_GROUP, Key("default", "g"))
        text = f"Preempted by podgroup {group['metadata']['uid']} on node cluster"
        assert await c.events("Preempted") == [("low-0", text), ("low-1", text)]
        events = (await c.client.list(EVENT)).items
        related = [event.get("related") for event in events if event["reason"] == "Preempted"]
        assert related == 2 * [{
            "kind": "PodGroup", "apiVersion": POD_GROUP.api_version, "namespace": "default",
            "name": "g", "uid": group["metadata"]["uid"],
        }]  # fmt: skip


@in_virtual_time
async def test_a_preempting_pod_gets_a_nominated_node() -> None:
    async with cluster(without=["nodes"]) as c:
        await filled(c)
        await c.create(important(pod("vip", cpu="1"), "high"))
        await asyncio.sleep(5)
        (event,) = await c.events("Preempted")
        assert event[1].endswith("on node n")
        assert "Preempted by pod " in event[1]
        events = (await c.client.list(EVENT)).items
        (related,) = [one["related"] for one in events if one["reason"] == "Preempted"]
        assert (related["kind"], related["name"]) == ("Pod", "vip")


@in_virtual_time
async def test_a_nominated_node_is_not_given_to_other_pods() -> None:
    async with cluster(without=["nodes"]) as c:
        await filled(c)
        await c.create(gang("g", 2, "high"), *(member(f"g-{i}", "g", "high") for i in range(2)))
        await asyncio.sleep(5)
        await c.create(important(pod("late", cpu="1"), "low"))
        await end(c, "low-0")
        await asyncio.sleep(20)
        assert "late" not in await c.node_by_pod()
        await end(c, "low-1")
        await c.until_placed("g-0", "g-1")
        assert "late" not in await c.node_by_pod()
        assert await nominated(c) == {}


@in_virtual_time
async def test_a_preemptor_deleted_while_victims_leave_frees_its_nominations() -> None:
    async with cluster(without=["nodes"]) as c:
        await filled(c)
        await c.create(gang("g", 2, "high"), *(member(f"g-{i}", "g", "high") for i in range(2)))
        await asyncio.sleep(5)
        await end(c, "g-0", "g-1", "low-0", "low-1")
        await c.create(important(pod("late", cpu="2"), "low"))
        await c.until_placed("late")


@pytest.mark.parametrize("gate", ["DelayedPreemption=false", "WorkloadAwarePreemption=false"])
@in_virtual_time
async def test_with_the_gate_off_only_pods_without_a_group_preempt(gate: str) -> None:
    gates = resolve_gates(parse_gates(gate))
    async with cluster(without=["nodes"], gates=gates) as c:
        await filled(c)
        await c.create(gang("g", 1, "high"), member("g-0", "g", "high"))
        await asyncio.sleep(30)
        assert await c.events("Preempted") == []
        await c.create(important(pod("vip", cpu="1"), "high"))
        await asyncio.sleep(5)
        assert len(await c.events("Preempted")) == 1


@pytest.mark.parametrize("cause", ["deleted", "gated"])
@in_virtual_time
async def test_nominated_nodes_of_a_gang_that_cannot_be_tried_are_removed(cause: str) -> None:
    async with cluster(without=["nodes"]) as c:
        await filled(c)
        await c.create(gang("g", 2, "high"), *(member(f"g-{i}", "g", "high") for i in range(2)))
        await asyncio.sleep(5)
        assert len(await nominated(c)) == 2
        if cause == "deleted":
            await end(c, "g-0")
        else:
            late = member("late", "g", "high")
            late["spec"]["schedulingGates"] = [{"name": "hold"}]
            await c.create(late)
        await asyncio.sleep(2)
        assert await nominated(c) == {}
        await end(c, "low-0", "low-1")
        await c.create(important(pod("other", cpu="2"), "low"))
        await c.until_placed("other")


@in_virtual_time
async def test_a_gang_that_falls_below_its_quorum_is_a_disruption_target() -> None:
    async with cluster(without=["nodes"]) as c:
        await classes(c)
        await c.add_node(node("n", cpu="2"))
        await c.create(gang("g", 2, "low"), *(member(f"g-{i}", "g", "low") for i in range(2)))
        await c.until_placed("g-0", "g-1")
        await c.create(important(pod("vip", cpu="1"), "high"))
        await asyncio.sleep(5)
        pods = await c.pods()
        assert sum(bool(pods[f"g-{i}"].metadata.deletion_timestamp) for i in range(2)) == 1
        condition = await c.group_condition("g", "DisruptionTarget")
        assert condition is not None
        assert (condition.status, condition.reason) == ("True", "PreemptionByScheduler")


@in_virtual_time
async def test_a_preempted_group_is_a_disruption_target_until_it_is_placed_again() -> None:
    async with cluster(without=["nodes"]) as c:
        await classes(c)
        await c.add_node(node("n", cpu="2"))
        await c.create(
            gang("g", 2, "low", disruptionMode={"all": {}}),
            *(member(f"g-{i}", "g", "low") for i in range(2)),
        )
        await c.until_placed("g-0", "g-1")
        await c.create(important(pod("vip", cpu="1"), "high"))
        await asyncio.sleep(5)
        condition = await c.group_condition("g", "DisruptionTarget")
        assert condition is not None
        assert (condition.status, condition.reason) == ("True", "PreemptionByScheduler")
        await end(c, "g-0", "g-1")
        await c.until_placed("vip")
        await end(c, "vip")
        await c.create(*(member(f"again-{i}", "g", "low") for i in range(2)))
        await c.until_placed("again-0", "again-1")
        await asyncio.sleep(5)
        assert await c.group_condition("g", "DisruptionTarget") is None


@in_virtual_time
async def test_a_group_tree_is_evicted_in_one_transaction_with_conditions_on_all_groups() -> None:
    async with cluster(without=["nodes"]) as c:
        await classes(c)
        await c.add_node(node("n", cpu="2"))
        parent = {
            "parentCompositePodGroupName": "t",
            "workloadRef": {"workloadName": "w", "templateName": "g"},
        }
        await c.create(
            composite("t", 2, "low", disruptionMode={"all": {}}),
            gang("g", 1, "low", **parent), gang("h", 1, "low", **parent),
            member("g-0", "g", "low"), member("h-0", "h", "low"),
        )  # fmt: skip
        await c.until_placed("g-0", "h-0")
        await asyncio.sleep(1)
        tree = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "t"), CompositePodGroup)
        placed = find_condition(tree.status.conditions, "CompositePodGroupInitiallyScheduled")
        assert placed is not None
        assert (placed.status, placed.reason) == ("True", "Scheduled")
        await c.create(important(pod("vip", cpu="1"), "high"))
        await asyncio.sleep(5)
        pods = await c.pods()
        versions = sorted(int(pods[name].metadata.resource_version) for name in ("g-0", "h-0"))
        assert versions[1] == versions[0] + 1
        tree = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "t"), CompositePodGroup)
        assert find_condition(tree.status.conditions, "DisruptionTarget") is not None
        for name in ("g", "h"):
            assert await c.group_condition(name, "DisruptionTarget") is not None


@in_virtual_time
async def test_an_unschedulable_tree_has_conditions_on_all_of_its_groups() -> None:
    async with cluster(without=["nodes"]) as c:
        await classes(c)
        await c.add_node(node("n", cpu="1"))
        parent = {
            "parentCompositePodGroupName": "t",
            "workloadRef": {"workloadName": "w", "templateName": "g"},
        }
        await c.create(
            composite("t", 2, "low"), gang("g", 1, "low", **parent), gang("h", 1, "low", **parent),
            member("g-0", "g", "low"),
        )  # fmt: skip
        await asyncio.sleep(8)
        tree = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "t"), CompositePodGroup)
        condition = find_condition(tree.status.conditions, "CompositePodGroupInitiallyScheduled")
        assert condition is not None
        assert condition.message == "waiting for 2 groups with all their members, 1 is there"
        await c.create(member("h-0", "h", "low"))
        await asyncio.sleep(5)
        tree = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "t"), CompositePodGroup)
        condition = find_condition(tree.status.conditions, "CompositePodGroupInitiallyScheduled")
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "Unschedulable")
        for name in ("g", "h"):
            condition = await c.group_condition(name, "PodGroupInitiallyScheduled")
            assert condition is not None
            assert (condition.status, condition.reason) == ("False", "Unschedulable")
        assert await c.node_by_pod() == {}
