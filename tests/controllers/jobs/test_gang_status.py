"""The status of gangs of Jobs that are preempted, lose members, restart and end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from phalanx.api.kinds import JOB, NODE, POD, POD_GROUP
from phalanx.api.meta import Condition, Key, find_condition
from phalanx.api.scheduling import DEGRADED, PodGroup
from phalanx.api.wire import Object
from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.why import explain_pending
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.scheduler.diagnosis.queue_order import WorkloadState, list_workloads
from tests.builders import in_virtual_time, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.jobs.job_controller_harness import conditions_of, job

RACK = "example.com/rack"


def gang_job(
    name: str, count: int = 2, *, cpu: str = "1", meta: Object | None = None, **more: str
) -> Object:
    """A gang of pods with these annotations `phalanx.dev/…`, and a priority class."""
    made = job(name, gang=True, meta=meta, parallelism=count, completions=count, backoffLimit=0)
    template = made["spec"]["template"]
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    if "importance" in more:
        template["spec"]["priorityClassName"] = more.pop("importance")
    annotations = {f"phalanx.dev/{key.replace('_', '-')}": value for key, value in more.items()}
    template["metadata"] = {"annotations": annotations}
    return made


def in_one_rack(made: Object) -> Object:
    made["spec"]["scheduling"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    return made


def racks(count: int, nodes: int, cpu: str = "1") -> list[SimulatedNode]:
    return [
        SimulatedNode(f"r{rack}-n{n}", {"pods": "110", "cpu": cpu}, labels={RACK: f"r{rack}"})
        for rack, n in itertools.product(range(count), range(nodes))
    ]


async def group_of(c: Cluster, name: str) -> PodGroup:
    """The PodGroup of a Job."""
    groups = (await c.client.list(POD_GROUP, PodGroup)).items
    (found,) = [
        one for one in groups if any(ref.name == name for ref in one.metadata.owner_references)
    ]
    return found


async def degraded(c: Cluster, name: str) -> Condition | None:
    return find_condition((await group_of(c, name)).status.conditions, DEGRADED)


def is_ready(c: Cluster, name: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        found = await c.client.get(JOB, Key("default", name))
        return bool(found.get("status", {}).get("ready") == count)

    return check


@in_virtual_time
async def test_preempted_gang_names_its_preemptor_until_it_runs_again() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="1")) as c:
        await c.create(priority_class("high", 100), gang_job("low", run_seconds="100"))
        await c.until(is_ready(c, "low", 2))
        await c.create(gang_job("urgent", importance="high", run_seconds="20"))
        await c.until(is_ready(c, "urgent", 2), 120)
        await asyncio.sleep(2)
        urgent, low = await group_of(c, "urgent"), await group_of(c, "low")
        by = f"preempted by PodGroup default/{urgent.metadata.name} at 2027-01-15T08:"
        (row,) = [
            one for one in list_workloads(await read_cluster(c.client)) if one.owner == "Job/low"
        ]
        assert row.state is WorkloadState.WAITING
        assert row.preempted.startswith(by)
        assert "history: preempted by job/urgent at 2027-01-15T08:" in await explain_pending(
            c.client, "job/low", "default"
        )
        status = low.status
        assert (status.desired_pods, status.scheduled_pods, status.ready_pods) == (2, 0, 0)
        preempted = find_condition(status.conditions, "Preempted")
        assert preempted is not None
        assert preempted.observed_generation == low.metadata.generation
        assert (status.preemptions, row.preemptions) == (1, 1)
        await c.until(is_ready(c, "low", 2), 300)
        await asyncio.sleep(5)
        low = await group_of(c, "low")
        assert find_condition(low.status.conditions, "Preempted") is None
        assert (low.status.scheduled_pods, low.status.ready_pods) == (2, 2)
        (row,) = [
            one for one in list_workloads(await read_cluster(c.client)) if one.owner == "Job/low"
        ]
        assert (row.state, row.preempted) == (WorkloadState.RUNNING, "")
        # Another preemption counts again, and the history of the ended gang contains both.
        await c.create(gang_job("second", importance="high", run_seconds="20"))
        await c.until(is_ready(c, "second", 2), 120)
        await asyncio.sleep(400)
        (row,) = [
            one
            for one in list_workloads(await read_cluster(c.client), include_all=True)
            if one.owner == "Job/low"
        ]
        assert (row.state, row.preemptions) == (WorkloadState.ENDED, 2)
        assert row.started_at is not None
        assert row.ended_at is not None
        assert row.ended_at - row.started_at == pytest.approx(100, abs=2)
        assert row.started_at - row.created > 40


@in_virtual_time
async def test_group_of_a_finished_job_is_never_waiting() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        late = gang_job("late", 3)
        late["spec"]["activeDeadlineSeconds"] = 30
        await c.create(late, gang_job("done", 1, run_seconds="5"))
        await asyncio.sleep(60)
        rows = list_workloads(await read_cluster(c.client), include_all=True)
        assert {row.state for row in rows} == {WorkloadState.ENDED}
        assert list_workloads(await read_cluster(c.client)) == []
        (done,) = [row for row in rows if row.owner == "Job/done"]
        assert (done.reason, done.message) == ("Complete", "its Job has ended: Complete")
        group = await group_of(c, "late")
        assert group.metadata.annotations["phalanx.dev/finished"] == "Failed: DeadlineExceeded"
        assert (group.status.desired_pods, group.status.shortfall) == (0, None)
        why = await explain_pending(c.client, "job/late", "default")
        first, second = why.splitlines()
        assert first == (
            "Job default/late has failed: DeadlineExceeded: "
            "Job was active longer than specified deadline"
        )
        assert second.startswith("  it never started: minCount (3) cannot be satisfied: ")
        name = group.metadata.name
        assert await explain_pending(c.client, f"podgroup/{name}", "default") == why
        assert await explain_pending(c.client, "job/done", "default") == (
            "Job default/done has completed: CompletionsReached: "
            "Reached expected number of succeeded pods"
        )


@in_virtual_time
async def test_waiting_gang_has_a_shortfall_until_it_is_placed() -> None:
    async with cluster(nodes=racks(2, 2, cpu="3")) as c:
        await c.create(in_one_rack(gang_job("big", 4, cpu="2")))
        await asyncio.sleep(20)
        found = (await group_of(c, "big")).status
        assert found.shortfall == {
            "missingMembers": 2,
            "requests": [{"members": 2, "resources": {"cpu": "2"}}],
            "topologyKey": RACK,
        }
        assert (found.desired_pods, found.pending_pods) == (4, 4)
        for name in ("r0-x", "r0-y"):
            node = {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {RACK: "r0"}},
                "status": {
                    "allocatable": {"cpu": "2", "pods": "9"}, "capacity": {"cpu": "2", "pods": "9"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }  # fmt: skip
            await c.add_node(node)

        async def is_placed() -> bool:
            return (await group_of(c, "big")).status.scheduled_pods == 4

        await c.until(is_placed)
        assert (await group_of(c, "big")).status.shortfall is None


@in_virtual_time
async def test_gang_that_grows_is_not_degraded_and_one_that_loses_a_member_is() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="1")) as c:
        elastic = gang_job("elastic", 2)
        elastic["spec"]["completionMode"] = "Indexed"
        await c.create(elastic)
        await c.until(is_ready(c, "elastic", 2))
        grown = {"spec": {"parallelism": 4, "completions": 4}}
        await c.client.patch(JOB, Key("default", "elastic"), grown)
        await asyncio.sleep(10)
        group = await group_of(c, "elastic")
        assert (group.min_count, group.status.scheduled_pods) == (4, 2)
        assert await degraded(c, "elastic") is None
        await evict(c, min(await c.node_by_pod()))
        await asyncio.sleep(3)
        found = await degraded(c, "elastic")
        assert found is not None
        assert (found.status, found.observed_generation) == ("True", group.metadata.generation)


async def evict(c: Cluster, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    await c.client.post(POD.url_path("default", pod, "eviction"), body)


async def lose_a_member(c: Cluster) -> str:
    """Cordon the node of a member and evict it: the rack has no other free node."""
    name, node = min((await c.node_by_pod()).items())
    await c.client.patch(NODE, Key("", node), {"spec": {"unschedulable": True}})
    await evict(c, name)
    return node


@in_virtual_time
async def test_gang_that_cannot_replace_a_member_says_what_would_help() -> None:
    async with cluster(nodes=racks(2, 2)) as c:
        await c.create(in_one_rack(gang_job("train")))
        await c.until(is_ready(c, "train", 2))
        node = await lose_a_member(c)
        await asyncio.sleep(60)
        found = await degraded(c, "train")
        assert found is not None
        assert (found.status, found.reason) == ("True", "ReplacementUnschedulable")
        rack = node.partition("-")[0]
        assert found.message.startswith(
            "1 of 2 required members have a node or have succeeded; "
            f"no node in rack {rack} takes another member"
        )
        assert "Would help: " in found.message
        assert found.message.endswith("restart the gang in another domain")
        assert (await group_of(c, "train")).status.shortfall == {
            "missingMembers": 1,
            "requests": [{"members": 1, "resources": {"cpu": "1"}}],
            "topologyKey": RACK,
            "domain": rack,
        }
        await c.client.patch(NODE, Key("", node), {"spec": {"unschedulable": None}})
        await c.until(is_ready(c, "train", 2), 120)
        await asyncio.sleep(5)
        found = await degraded(c, "train")
        assert found is not None
        assert (found.status, found.reason) == ("False", "MembersBack")
        assert (await group_of(c, "train")).status.shortfall is None


@in_virtual_time
async def test_gang_restarts_in_another_rack_if_the_job_asks_for_it() -> None:
    async with cluster(nodes=racks(2, 2)) as c:
        meta = {"annotations": {"phalanx.dev/on-degraded": "Restart"}}
        await c.create(in_one_rack(gang_job("train", meta=meta)))
        await c.until(is_ready(c, "train", 2))
        before = set(await c.node_by_pod())
        lost = (await lose_a_member(c)).partition("-")[0]

        async def is_elsewhere() -> bool:
            nodes = (await c.node_by_pod()).values()
            return len(nodes) == 2 and all(not node.startswith(lost) for node in nodes)

        await c.until(is_elsewhere, 120)
        await c.until(is_ready(c, "train", 2), 60)
        assert before.isdisjoint(await c.node_by_pod())
        found = await c.client.get(JOB, Key("default", "train"))
        assert (found["status"].get("failed", 0), conditions_of(found)) == (0, {})
        group = await group_of(c, "train")
        assert group.metadata.annotations["phalanx.dev/restarts"] == "1"
        assert group.metadata.annotations["phalanx.dev/on-degraded"] == "Restart"
        ((name, message),) = await c.events("GangRestarted")
        assert (name, message.startswith("Restarting: 1 of 2 required members")) == ("train", True)
        await asyncio.sleep(5)
        state = await degraded(c, "train")
        assert state is not None
        assert state.status == "False"


@in_virtual_time
async def test_second_restart_waits_for_its_back_off() -> None:
    async with cluster(nodes=racks(3, 2)) as c:
        meta = {"annotations": {"phalanx.dev/on-degraded": "Restart"}}
        await c.create(in_one_rack(gang_job("train", meta=meta)))
        await c.until(is_ready(c, "train", 2))

        async def restarts() -> str:
            annotations = (await group_of(c, "train")).metadata.annotations
            return annotations.get("phalanx.dev/restarts", "")

        await lose_a_member(c)
        await c.until(lambda: _equals(restarts, "1"), 30)
        first = c.clock.now()
        await c.until(is_ready(c, "train", 2), 60)
        await asyncio.sleep(3)
        await lose_a_member(c)
        await c.until(lambda: _equals(restarts, "2"), 120)
        assert c.clock.now() - first >= 59
        await c.until(is_ready(c, "train", 2), 60)


async def _equals(value: Callable[[], Awaitable[str]], expected: str) -> bool:
    return await value() == expected
