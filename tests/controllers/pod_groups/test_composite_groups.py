"""Status of CompositePodGroups from the status of their children; and their deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.errors import NotFound
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_PROTECTION_FINALIZER,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.controllers.pod_groups import CompositeGroups
from phalanx.controllers.reconcile_loop import Informers
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, lagging_client, simulated_nodes
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)
from tests.controllers.jobs.job_controller_harness import conditions_of

#: Seconds after which changes have propagated over two levels.
SETTLE_SECONDS = 10.0


def counting_controller(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [CompositeGroups(client, informers, c.clock).run]


def composite(name: str, needs: int = 0, parent: str = "", meta: Object | None = None) -> Object:
    """A composite group that needs this many children; 0: basic."""
    policy: Object = {"gang": {"minGroupCount": needs}} if needs else {"basic": {}}
    spec: Object = {
        "schedulingPolicy": policy, "workloadRef": {"workloadName": "w", "templateName": name},
    }  # fmt: skip
    if parent:
        spec["parentCompositePodGroupName"] = parent
    return {
        "apiVersion": COMPOSITE_POD_GROUP.api_version, "kind": COMPOSITE_POD_GROUP.name,
        "metadata": {"name": name, "namespace": "default", **(meta or {})}, "spec": spec,
    }  # fmt: skip


def leaf(name: str, parent: str) -> Object:
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 2}}, "parentCompositePodGroupName": parent,
        "workloadRef": {"workloadName": "w", "templateName": name},
    }  # fmt: skip
    return {
        "apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.name,
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    }  # fmt: skip


async def patch_conditions(
    c: Cluster, kind: Kind, name: str, *true: str, false: str = "", **counts: int
) -> None:
    """Write conditions of a group as another component."""
    conditions = [
        {
            "type": one, "status": "False" if one == false else "True", "reason": "Test",
            "message": "", "lastTransitionTime": "2027-01-15T08:00:00Z",
        }
        for one in (*true, *([false] if false else []))
    ]  # fmt: skip
    status = {**counts, **({"conditions": conditions} if conditions else {})}
    await c.client.patch(
        kind, Key("default", name), {"status": status}, subresource="status",
        content=STRATEGIC_PATCH,
    )  # fmt: skip


async def status(c: Cluster, name: str) -> Object:
    found = await c.client.get(COMPOSITE_POD_GROUP, Key("default", name))
    return {key: value for key, value in found.get("status", {}).items() if key != "conditions"}


async def degraded(c: Cluster, name: str) -> tuple[str, str] | None:
    found = await c.client.get(COMPOSITE_POD_GROUP, Key("default", name))
    return conditions_of(found).get("Degraded")


async def create_tree(c: Cluster) -> None:
    """Create a root with a leaf and a branch of two leaves."""
    await c.create(composite("root", 2), composite("branch", 1, parent="root"))
    await c.create(leaf("alone", "root"), leaf("left", "branch"), leaf("right", "branch"))
    await asyncio.sleep(SETTLE_SECONDS)


@in_virtual_time
async def test_counts_of_children_propagate_to_the_root() -> None:
    async with bare_cluster(counting_controller) as c:
        await create_tree(c)
        assert await status(c, "root") == {"pendingGroups": 2}
        await patch_conditions(
            c, POD_GROUP, "left", POD_GROUP_INITIALLY_SCHEDULED, scheduledPods=2, pendingPods=1
        )
        await patch_conditions(
            c, POD_GROUP, "right", scheduledPods=1, succeededPods=3, failedPods=4
        )
        await asyncio.sleep(SETTLE_SECONDS)
        sums = {"scheduledPods": 3, "pendingPods": 1, "succeededPods": 3, "failedPods": 4}
        groups = {"scheduledGroups": 1, "pendingGroups": 1}
        assert await status(c, "branch") == {**sums, **groups}
        assert await status(c, "root") == {**sums, **groups}
        await patch_conditions(
            c, POD_GROUP, "alone", POD_GROUP_INITIALLY_SCHEDULED, scheduledPods=2
        )
        await asyncio.sleep(SETTLE_SECONDS)
        assert await status(c, "root") == {
            **sums, "scheduledPods": 5, "scheduledGroups": 2, "pendingGroups": 0,
        }  # fmt: skip
        await assert_quiet(c, counting_controller)


@in_virtual_time
async def test_a_scheduled_composite_group_is_degraded_without_its_quorum() -> None:
    async with bare_cluster(counting_controller) as c:
        await create_tree(c)
        await patch_conditions(c, POD_GROUP, "alone", POD_GROUP_INITIALLY_SCHEDULED)
        await patch_conditions(c, POD_GROUP, "left", POD_GROUP_INITIALLY_SCHEDULED)
        await asyncio.sleep(SETTLE_SECONDS)
        await patch_conditions(c, COMPOSITE_POD_GROUP, "root", COMPOSITE_INITIALLY_SCHEDULED)
        await asyncio.sleep(SETTLE_SECONDS)
        assert await degraded(c, "root") is None
        await patch_conditions(c, POD_GROUP, "left", POD_GROUP_INITIALLY_SCHEDULED, "Degraded")
        await asyncio.sleep(SETTLE_SECONDS)
        assert await degraded(c, "root") == ("True", "GroupsLost")
        found = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "root"))
        (condition,) = [one for one in found["status"]["conditions"] if one["type"] == "Degraded"]
        assert condition["message"] == "1 of 2 required groups have all the members that they need"
        await patch_conditions(
            c, POD_GROUP, "left", POD_GROUP_INITIALLY_SCHEDULED, false="Degraded"
        )
        await asyncio.sleep(SETTLE_SECONDS)
        assert await degraded(c, "root") == ("False", "GroupsBack")
        await assert_quiet(c, counting_controller)


@in_virtual_time
async def test_a_composite_group_that_was_never_scheduled_is_not_degraded() -> None:
    async with bare_cluster(counting_controller) as c:
        await create_tree(c)
        await patch_conditions(c, POD_GROUP, "alone", POD_GROUP_INITIALLY_SCHEDULED, "Degraded")
        await asyncio.sleep(SETTLE_SECONDS)
        assert await degraded(c, "root") is None


@in_virtual_time
async def test_a_deleted_child_is_not_counted() -> None:
    async with bare_cluster(counting_controller) as c:
        await create_tree(c)
        await patch_conditions(c, POD_GROUP, "left", POD_GROUP_INITIALLY_SCHEDULED, scheduledPods=2)
        await asyncio.sleep(SETTLE_SECONDS)
        await c.client.patch(POD_GROUP, Key("default", "left"), {"metadata": {"finalizers": None}})
        await c.delete(POD_GROUP, "left")
        await asyncio.sleep(SETTLE_SECONDS)
        assert await status(c, "branch") == {
            "scheduledGroups": 0, "pendingGroups": 1, "scheduledPods": 0,
        }  # fmt: skip


@in_virtual_time
async def test_a_protected_composite_group_is_removed_after_its_children() -> None:
    async with bare_cluster(counting_controller) as c:
        hold = {"finalizers": [POD_GROUP_PROTECTION_FINALIZER, "example.com/other"]}
        await c.create(
            composite("root", 1, meta=hold), composite("branch", 1, parent="root", meta=hold)
        )
        await c.create(leaf("left", "branch"))
        for name in ("root", "branch"):
            await c.delete(COMPOSITE_POD_GROUP, name)
        await asyncio.sleep(SETTLE_SECONDS)

        async def held(name: str) -> list[str]:
            found = await c.client.get(COMPOSITE_POD_GROUP, Key("default", name))
            names: list[str] = found["metadata"]["finalizers"]
            return names

        async def let_go(kind: Kind, name: str) -> None:
            change = {"metadata": {"finalizers": None}}
            await c.client.patch(kind, Key("default", name), change)

        assert (await held("root"), await held("branch")) == (hold["finalizers"],) * 2
        await let_go(POD_GROUP, "left")
        await c.delete(POD_GROUP, "left")
        await asyncio.sleep(SETTLE_SECONDS)
        assert (await held("root"), await held("branch")) == (
            hold["finalizers"], ["example.com/other"],
        )  # fmt: skip
        await let_go(COMPOSITE_POD_GROUP, "branch")
        await asyncio.sleep(SETTLE_SECONDS)
        assert await held("root") == ["example.com/other"]


@in_virtual_time
async def test_a_composite_group_is_not_removed_because_of_a_stale_cache() -> None:
    """A child is created while the controller has a stale cache."""
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(composite("root", 1, meta={"finalizers": [POD_GROUP_PROTECTION_FINALIZER]}))
        async with running_controller(c, counting_controller, lagging_client(c, 2.0)[1]):
            await asyncio.sleep(SETTLE_SECONDS)
            await c.delete(COMPOSITE_POD_GROUP, "root")
            await asyncio.sleep(1)
            await c.create(leaf("left", "root"))
            await asyncio.sleep(SETTLE_SECONDS)
            found = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "root"))
            assert found["metadata"]["finalizers"] == [POD_GROUP_PROTECTION_FINALIZER]


@in_virtual_time
async def test_with_a_scheduler_a_whole_tree_has_status() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(composite("root", 2), leaf("left", "root"), leaf("right", "root"))
        pods = [f"{group}-{n}" for group in ("left", "right") for n in range(2)]
        await c.create(*(pod(name, name[:-2], cpu="1") for name in pods))
        await c.until_placed(*pods)
        await asyncio.sleep(SETTLE_SECONDS)
        found = await status(c, "root")
        assert (found["scheduledGroups"], found["scheduledPods"]) == (2, 4)


async def run_scenario(c: Cluster) -> object:
    """A tree grows, is scheduled, loses a group, and is deleted from the leaves up."""
    await create_tree(c)
    for name in ("alone", "left", "right"):
        await patch_conditions(c, POD_GROUP, name, POD_GROUP_INITIALLY_SCHEDULED, scheduledPods=2)
    await patch_conditions(c, COMPOSITE_POD_GROUP, "root", COMPOSITE_INITIALLY_SCHEDULED)
    await asyncio.sleep(40)
    await patch_conditions(
        c, POD_GROUP, "alone", POD_GROUP_INITIALLY_SCHEDULED, "Degraded", scheduledPods=1
    )
    await asyncio.sleep(40)
    condition: list[object] = [await status(c, "root"), await degraded(c, "root")]
    hold = {"metadata": {"finalizers": [POD_GROUP_PROTECTION_FINALIZER]}}
    await c.client.patch(COMPOSITE_POD_GROUP, Key("default", "branch"), hold)
    await c.delete(COMPOSITE_POD_GROUP, "branch")
    for name in ("left", "right"):
        await c.client.patch(POD_GROUP, Key("default", name), {"metadata": {"finalizers": None}})
        await c.delete(POD_GROUP, name)
    await asyncio.sleep(40)
    try:
        await c.client.get(COMPOSITE_POD_GROUP, Key("default", "branch"))
        condition.append("still there")
    except NotFound:
        condition.append("gone")
    return condition


def test_after_a_crash_at_any_write_the_result_is_the_same() -> None:
    assert assert_survives_every_crash(counting_controller, run_scenario) > 5


@pytest.mark.slow
def test_late_duplicate_or_missed_events_lead_to_the_same_result() -> None:
    assert_survives_bad_watches(counting_controller, run_scenario)
