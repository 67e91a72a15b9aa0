"""PodGroups of old API versions without a priority have the lowest one of their members."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD, POD_GROUP, POD_GROUP_V1ALPHA2, WORKLOAD_V1ALPHA1
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes


def old_group(name: str = "g", **spec: object) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, **spec},
    }  # fmt: skip


def member(name: str, importance: str, **spec: object) -> Object:
    made = pod(name, group="g", cpu="1")
    made["spec"] |= {"priorityClassName": importance, **spec}
    return made


async def classes(c: Cluster) -> None:
    await c.create(priority_class("low", 10), priority_class("high", 100))


async def spec_of(c: Cluster, name: str = "g") -> Object:
    spec: Object = (await c.client.get(POD_GROUP, Key("default", name)))["spec"]
    return spec


@pytest.mark.parametrize("group_first", [True, False])
@in_virtual_time
async def test_group_without_a_priority_runs_with_the_lowest_of_its_members(
    *, group_first: bool
) -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await classes(c)
        members = [member("a", "high"), member("b", "low")]
        if group_first:
            await c.client.create(POD_GROUP_V1ALPHA2, old_group())
        for one in members:
            await c.client.create(POD, one)
        if not group_first:
            await c.client.create(POD_GROUP_V1ALPHA2, old_group())
        await c.until_placed("a", "b")
        spec = await spec_of(c)
        assert (spec["priority"], spec["priorityClassName"]) == (10, "low")


@in_virtual_time
async def test_first_member_raises_the_priority_and_later_ones_only_lower_it() -> None:
    async with cluster(without=("scheduler",)) as c:
        await classes(c)
        await c.client.create(POD_GROUP_V1ALPHA2, old_group())
        assert (await spec_of(c)).get("priority", 0) == 0
        for name, importance, expected in (("a", "high", 100), ("b", "low", 10), ("c", "high", 10)):
            await c.client.create(POD, member(name, importance))
            assert (await spec_of(c))["priority"] == expected


@in_virtual_time
async def test_group_with_a_class_and_a_current_group_keep_their_priority() -> None:
    async with cluster(without=("scheduler",)) as c:
        await classes(c)
        await c.client.create(POD_GROUP_V1ALPHA2, old_group(priorityClassName="high"))
        await c.client.create(POD, member("a", "low"))
        assert (await spec_of(c))["priority"] == 100
        current = {"metadata": {"name": "new", "namespace": "default"}}
        current["spec"] = {"schedulingPolicy": {"gang": {"minCount": 2}}}  # type: ignore[dict-item]
        await c.client.create(POD_GROUP, current)
        one = member("n", "high")
        one["spec"]["schedulingGroup"] = {"podGroupName": "new"}
        await c.client.create(POD, one)
        assert (await spec_of(c, "new")).get("priority", 0) == 0


@in_virtual_time
async def test_system_priority_is_taken_as_the_highest_that_a_group_can_have() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.client.create(POD_GROUP_V1ALPHA2, old_group())
        for name in ("a", "b"):
            await c.client.create(POD, member(name, "system-cluster-critical"))
        await c.until_placed("a", "b")
        spec = await spec_of(c)
        assert (spec["priority"], "priorityClassName" in spec) == (1_000_000_000, False)


@in_virtual_time
async def test_group_made_for_old_workload_references_copies_the_priority_class() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await classes(c)
        workload = {
            "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload",
            "metadata": {"name": "w", "namespace": "default"},
            "spec": {"podGroups": [{"name": "t", "policy": {"gang": {"minCount": 2}}}]},
        }  # fmt: skip
        await c.client.create(WORKLOAD_V1ALPHA1, workload)
        for name in ("a", "b"):
            made = pod(name, cpu="1")
            made["spec"] |= {
                "priorityClassName": "high",
                "workloadRef": {"name": "w", "podGroup": "t"},
            }
            await c.client.create(POD, made)
        await c.until_placed("a", "b")
        (group,) = (await c.client.list(POD_GROUP)).items
        assert (group["spec"]["priority"], group["spec"]["priorityClassName"]) == (100, "high")


@in_virtual_time
async def test_group_with_a_generated_name_is_marked_too() -> None:
    async with cluster(without=("scheduler",)) as c:
        generated = old_group()
        generated["metadata"] = {"generateName": "g-", "namespace": "default", "annotations": None}
        await c.client.create(POD_GROUP_V1ALPHA2, generated)
        (found,) = (await c.client.list(POD_GROUP)).items
        assert found["metadata"]["annotations"]["phalanx.dev/priority-from-members"] == "none"
