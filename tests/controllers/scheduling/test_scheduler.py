"""The scheduler end to end, on a control plane in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import EVENT, NODE, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import SeededRandom
from tests.builders import gang, in_virtual_time, node, pod, pod_group, share_of_examples
from tests.controllers.cluster import (
    Cluster,
    audit_transactions,
    cluster,
    lagging_client,
    simulated_nodes,
)
from tests.scheduler.configurations import load_configuration


def members(name: str, count: int) -> list[str]:
    return [f"{name}-{n}" for n in range(count)]


# ---- gangs that fit ------------------------------------------------------------------------------


@in_virtual_time
async def test_a_gang_is_bound_at_once_and_in_one_transaction() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        since = c.store.revision
        await c.create(*gang("a", 6, cpu="1"))
        assert await c.until_placed(*members("a", 6)) < 0.1
        bound = [
            change.revision
            for change in c.store.changes(since, POD.store_prefix())
            if change.before and change.after and b'"nodeName"' in change.after.value
            and b'"nodeName"' not in change.before.value
        ]  # fmt: skip
        assert bound == list(range(bound[0], bound[0] + 6))


@in_virtual_time
async def test_a_placed_gang_has_conditions_and_events() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(5)
        initially = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        scheduled = await c.group_condition("a", POD_GROUP_SCHEDULED)
        assert initially is not None
        assert scheduled is not None
        assert (initially.status, initially.reason) == ("True", "Scheduled")
        assert (scheduled.status, scheduled.reason, scheduled.message) == (
            "True", "MinCountSatisfied", "All required pods (3/3) have been assigned to nodes",
        )  # fmt: skip
        where = await c.node_by_pod()
        assert await c.events("Scheduled") == [
            (name, f"Successfully assigned default/{name} to {where[name]}")
            for name in members("a", 3)
        ]
        assert await c.events("FailedScheduling") == []


@in_virtual_time
async def test_members_beyond_the_quorum_are_placed_when_resources_are_free() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="3")) as c:
        await c.create(*gang("a", 5, minimum=2, cpu="1"))
        await asyncio.sleep(5)
        assert len(await c.node_by_pod()) == 3
        await c.add_node(node("late", cpu="4"))
        await c.until_placed(*members("a", 5))


@in_virtual_time
async def test_a_late_member_joins_its_gang() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8")) as c:
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed(*members("a", 2))
        await c.create(pod("a-late", "a", cpu="1"))
        assert await c.until_placed("a-late") < 0.1


@in_virtual_time
async def test_single_pods_are_placed_and_those_of_other_schedulers_are_not() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8")) as c:
        await c.create(pod("mine"), pod("theirs", spec={"schedulerName": "another"}))
        await asyncio.sleep(30)
        assert await c.node_by_pod() == {"mine": "n0"}
        assert await c.pod_condition("theirs") is None


# ---- gangs that do not fit -----------------------------------------------------------------------


@in_virtual_time
async def test_a_gang_that_does_not_fit_binds_nothing_and_has_the_reason() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("big", 3, cpu="3"))
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        why = "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
        for kind in (POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED):
            condition = await c.group_condition("big", kind)
            assert condition is not None
            assert (condition.status, condition.reason, condition.message) == (
                "False",
                "Unschedulable",
                why,
            )
        conditions = [await c.pod_condition(name) for name in members("big", 3)]
        assert all(
            condition is not None and condition.reason == "Unschedulable"
            for condition in conditions
        )
        messages = [condition.message for condition in conditions if condition]
        assert sorted(messages) == [
            "0/2 nodes are available: 2 Insufficient cpu.",
            *[f"pod group is unschedulable, {why}"] * 2,
        ]
        assert await c.events("FailedScheduling") == [("big", why)]


@in_virtual_time
async def test_an_unschedulable_gang_is_placed_when_it_fits() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="2"))
        await asyncio.sleep(20)
        assert await c.node_by_pod() == {}
        await c.add_node(node("late", cpu="4"))
        await c.until_placed(*members("a", 3))
        await asyncio.sleep(3)
        condition = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert condition is not None
        assert (condition.status, condition.reason) == ("True", "Scheduled")
        for name in members("a", 3):
            of_pod = await c.pod_condition(name)
            assert of_pod is not None
            assert of_pod.status == "True"


@pytest.mark.parametrize("after", [1.5, 17.3, 250.0])
@in_virtual_time
async def test_a_new_node_wakes_a_waiting_gang_at_once(after: float) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="2")) as c:
        await c.create(*gang("a", 3, cpu="2"))
        await asyncio.sleep(after)
        await c.add_node(node("late", cpu="4"))
        assert await c.until_placed(*members("a", 3)) < 0.1


@in_virtual_time
async def test_the_end_of_a_gang_wakes_the_next_at_once() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        first = gang("first", 2, cpu="4")
        for one in first[1:]:
            one["metadata"]["annotations"] = {RUN_SECONDS: "60"}
        await c.create(*first)
        await c.until_placed(*members("first", 2))
        await c.create(*gang("second", 2, cpu="4"))
        took = await c.until_placed(*members("second", 2), seconds=100)
        assert 58 < took < 62


@in_virtual_time
async def test_a_deleted_gang_frees_its_resources_at_once() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("first", 2, cpu="4"), *gang("second", 2, cpu="4"))
        await asyncio.sleep(30)
        assert sorted(await c.node_by_pod()) == members("first", 2)
        for name in members("first", 2):
            await c.delete(POD, name)
        assert await c.until_placed(*members("second", 2)) < 0.5


# ---- incomplete gangs ----------------------------------------------------------------------------


@in_virtual_time
async def test_an_incomplete_gang_waits_and_reports_the_missing_members() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("a", 2, minimum=3, cpu="1"))
        await asyncio.sleep(3)
        of_group = await c.group_condition("a", POD_GROUP_SCHEDULED)
        assert of_group is not None
        assert (of_group.status, of_group.reason, of_group.message) == (
            "False", "NotReadyForScheduling", "waiting for 3 members, 2 are there",
        )  # fmt: skip
        assert await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED) is None
        assert await c.pod_condition("a-0") is None
        await asyncio.sleep(5)
        for name in members("a", 2):
            condition = await c.pod_condition(name)
            assert condition is not None
            assert (condition.status, condition.reason, condition.message) == (
                "False", "NotReadyForScheduling", "waiting for 3 members, 2 are there",
            )  # fmt: skip
        await c.create(pod("a-2", "a", cpu="1"))
        assert await c.until_placed(*members("a", 3)) < 0.1


@in_virtual_time
async def test_pods_wait_for_their_group_and_are_then_placed_at_once() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 2, cpu="1")[1:])
        await asyncio.sleep(8)
        condition = await c.pod_condition("a-0")
        assert condition is not None
        assert (condition.reason, condition.message) == (
            "NotReadyForScheduling", 'waiting for PodGroup "a" to appear',
        )  # fmt: skip
        await c.create(pod_group("a", 2))
        assert await c.until_placed(*members("a", 2)) < 0.1


@in_virtual_time
async def test_a_gate_holds_the_whole_gang_and_its_condition_stays() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 2, minimum=3, cpu="1"), pod("a-2", "a", gates=["x"], cpu="1"))
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        gated, other = await c.pod_condition("a-2"), await c.pod_condition("a-0")
        assert gated is not None
        assert other is not None
        assert (gated.reason, other.reason) == ("SchedulingGated", "NotReadyForScheduling")
        assert other.message == "waiting for scheduling gates x of a-2"
        await c.client.patch(POD, Key("default", "a-2"), {"spec": {"schedulingGates": None}})
        assert await c.until_placed(*members("a", 3)) < 0.1


# ---- two gangs -----------------------------------------------------------------------------------


@share_of_examples(0.3)
@given(
    st.permutations(range(8)),
    st.lists(st.sampled_from((0.0, 0.0, 0.3, 2.0)), min_size=8, max_size=8),
)
@in_virtual_time
async def test_two_gangs_never_interleave_whatever_the_order_of_their_pods(
    order: list[int], pauses: list[float]
) -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="2")) as c, audit_transactions(c):
        objects = [*gang("a", 3, cpu="1"), *gang("b", 3, cpu="1")]
        for at, pause in zip(order, pauses, strict=True):
            await c.create(objects[at])
            await asyncio.sleep(pause)
        await asyncio.sleep(30)
        placed = sorted(await c.node_by_pod())
        assert placed in (members("a", 3), members("b", 3))


@in_virtual_time
async def test_the_second_of_two_exclusive_gangs_is_placed_when_the_first_ends() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"), *gang("b", 3, cpu="1"))
        await asyncio.sleep(30)
        (winner,) = {name[0] for name in await c.node_by_pod()}
        for name in members(winner, 3):
            await c.delete(POD, name)
        loser = {"a": "b", "b": "a"}[winner]
        await c.until_placed(*members(loser, 3))


# ---- several scheduler names ---------------------------------------------------------------------

PACKING = {
    "schedulerName": "packer",
    "pluginConfig": [
        {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
    ],
}


@in_virtual_time
async def test_each_pod_is_placed_by_the_profile_of_its_scheduler_name() -> None:
    profiles = load_configuration({"schedulerName": "default-scheduler"}, PACKING).profiles
    async with cluster(nodes=simulated_nodes(2, cpu="8", memory="8Gi"), profiles=profiles) as c:
        for name in ("a", "b", "c"):
            await c.create(pod(name, cpu="1", memory="1Gi", spec={"schedulerName": "packer"}))
            await c.until_placed(name)
        await c.create(pod("d", cpu="1", memory="1Gi"), pod("e", spec={"schedulerName": "other"}))
        await c.until_placed("d")
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {"a": "n0", "b": "n0", "c": "n0", "d": "n1"}
        found = (await c.client.list(EVENT)).items
        assert {
            event["involvedObject"]["name"]: event["reportingComponent"]
            for event in found
            if event["reason"] == "Scheduled"
        } == {"a": "packer", "b": "packer", "c": "packer", "d": "default-scheduler"}


@in_virtual_time
async def test_without_back_off_an_unschedulable_pod_is_placed_as_soon_as_it_fits() -> None:
    profiles = load_configuration(podMaxBackoffSeconds=0).profiles
    async with cluster(nodes=simulated_nodes(1, cpu="1"), profiles=profiles) as c:
        await c.create(pod("first", cpu="1"))
        await c.until_placed("first")
        await c.create(*gang("a", 1, cpu="1"))
        await asyncio.sleep(30)
        await c.delete(POD, "first")
        assert await c.until_placed("a-0") < 5


# ---- concurrent changes --------------------------------------------------------------------------


@asynccontextmanager
async def schedulers(c: Cluster, *lags: float) -> AsyncIterator[None]:
    """Run schedulers without leader election, each with its own watch delay."""
    tasks: list[asyncio.Task[None]] = []
    for number, lag in enumerate(lags):
        client, _ = lagging_client(c, lag)
        random = SeededRandom(number)
        informers = Informers(client, random)
        shell = Scheduler(client, informers, c.clock, random=random)
        tasks += [asyncio.create_task(informers.run()), asyncio.create_task(shell.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [t.exception() for t in tasks if not t.cancelled()] == []


@asynccontextmanager
async def late_scheduler(count: int, **capacity: str) -> AsyncIterator[Cluster]:
    """A cluster whose only scheduler receives events two seconds late."""
    without = ["scheduler"]
    async with (
        cluster(nodes=simulated_nodes(count, **capacity), without=without) as c,
        schedulers(c, 2.0),
    ):
        yield c


@in_virtual_time
async def test_a_gang_whose_resources_were_taken_fails_as_a_whole_and_is_retried() -> None:
    async with late_scheduler(1, cpu="4") as c:
        await c.create(pod("rival", cpu="2", spec={"schedulerName": "other"}))
        await asyncio.sleep(10)
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(1)
        await c.bind("rival", "n0")
        await asyncio.sleep(1.8)
        assert await c.node_by_pod() == {"rival": "n0"}
        failures = await c.events("FailedScheduling")
        assert [name for name, _ in failures] == members("a", 3)
        assert all("no pod of the group was bound" in text for _, text in failures)
        conditions = [await c.pod_condition(name) for name in members("a", 3)]
        conditions.append(await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED))
        assert {(condition.status, condition.reason) for condition in conditions if condition} == {
            ("False", "SchedulerError")
        }
        assert all(
            condition and "has insufficient cpu" in condition.message for condition in conditions
        )
        await c.delete(POD, "rival")
        await c.until_placed(*members("a", 3))


@in_virtual_time
async def test_a_gang_with_a_manually_bound_member_is_completed() -> None:
    async with late_scheduler(2, cpu="4") as c:
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(1)
        await c.bind("a-1", "n1")
        await c.until_placed(*members("a", 3))
        assert (await c.node_by_pod())["a-1"] == "n1"


@in_virtual_time
async def test_a_gang_bound_by_a_crashed_scheduler_gets_its_condition() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="2"), without=["scheduler"]) as c:
        await c.create(*gang("a", 3, minimum=2, cpu="1"))
        for name in members("a", 2):
            await c.bind(name, "n0")
        async with schedulers(c, 0.0):
            await asyncio.sleep(10)
        condition = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert condition is not None
        assert (condition.status, condition.reason) == ("True", "Scheduled")


@in_virtual_time
async def test_a_deleted_node_is_not_used() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.add_node(node("n1", cpu="4"))
        await c.add_node(node("n2", cpu="4"))
        async with schedulers(c, 2.0):
            await c.create(*gang("a", 2, cpu="3"))
            await asyncio.sleep(1)
            await c.delete(NODE, "n1")
            await asyncio.sleep(20)
            assert await c.node_by_pod() == {}
            await c.add_node(node("n3", cpu="4"))
            await c.until_placed(*members("a", 2))
            assert sorted((await c.node_by_pod()).values()) == ["n2", "n3"]


@in_virtual_time
async def test_a_recreated_pod_is_not_bound_in_place_of_the_old_one() -> None:
    async with late_scheduler(1, cpu="4") as c:
        await c.create(*gang("a", 2, cpu="1"))
        await asyncio.sleep(1)
        await c.delete(POD, "a-0")
        await c.create(pod("a-0", "a", cpu="1", gates=["wait"]))
        await asyncio.sleep(30)
        assert await c.node_by_pod() == {}


sizes = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(("1", "2", "3"))), min_size=1, max_size=5
)


@pytest.mark.slow
@share_of_examples(0.25)
@given(sizes, st.lists(st.sampled_from((0.0, 0.1, 1.0, 3.0)), min_size=2, max_size=3), st.data())
@in_virtual_time
async def test_concurrent_schedulers_keep_all_invariants(
    sizes: list[tuple[int, str]], lags: list[float], data: st.DataObject
) -> None:
    without = ["scheduler"]
    async with (
        cluster(nodes=simulated_nodes(3, cpu="4"), without=without, latency=lambda: 0.05) as c,
        audit_transactions(c),
        schedulers(c, *lags),
    ):
        for number, (count, cpu) in enumerate(sizes):
            await c.create(*gang(f"g{number}", count, cpu=cpu))
            await asyncio.sleep(data.draw(st.sampled_from((0.0, 0.5, 4.0)), "pause"))
        await asyncio.sleep(20)
        await assert_settled(c, sizes)


async def assert_settled(c: Cluster, sizes: Sequence[tuple[int, str]]) -> None:
    """Every gang is bound wholly or not at all, and at least one that fits is bound."""
    placed = await c.node_by_pod()
    whole = 0
    for number, (count, _) in enumerate(sizes):
        found = sum(name.startswith(f"g{number}-") for name in placed)
        assert found in (0, count)
        whole += bool(found)
    assert whole or all(int(cpu) * count > 12 or (cpu == "3" and count > 3) for count, cpu in sizes)


# ---- steady state --------------------------------------------------------------------------------


@in_virtual_time
async def test_a_settled_cluster_writes_nothing() -> None:
    async with cluster(without=["nodes"]) as c:
        await c.add_node(node("n1", cpu="4"))
        await c.create(*gang("fits", 2, cpu="1"), *gang("big", 3, cpu="3"))
        await c.create(*gang("short", 1, minimum=2, cpu="1"))
        await asyncio.sleep(120)
        assert await writes_in_a_minute(c) == 0


async def writes_in_a_minute(c: Cluster) -> int:
    before = c.store.revision
    await asyncio.sleep(60)
    return c.store.revision - before


@in_virtual_time
async def test_conditions_keep_the_time_of_their_last_change() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="2")) as c:
        await c.create(*gang("a", 3, cpu="2"))
        await asyncio.sleep(5)
        first = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        await asyncio.sleep(300)
        assert await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED) == first
        await c.client.delete(POD_GROUP, Key("default", "a"))
