"""The scheduler's shell end to end, in virtual time, on a whole control plane."""

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
from tests.builders import gang, in_virtual_time, node, pod, pod_group, tried
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
async def test_a_gang_that_is_placed_says_so_for_everybody_to_read() -> None:
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
async def test_members_beyond_the_quorum_follow_when_there_is_room() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="3")) as c:
        await c.create(*gang("a", 5, minimum=2, cpu="1"))
        await asyncio.sleep(5)
        assert len(await c.node_by_pod()) == 3
        await c.add_node(node("late", cpu="4"))
        await c.until_placed(*members("a", 5))


@in_virtual_time
async def test_a_member_that_comes_late_joins_its_gang() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8")) as c:
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed(*members("a", 2))
        await c.create(pod("a-late", "a", cpu="1"))
        assert await c.until_placed("a-late") < 0.1


@in_virtual_time
async def test_pods_alone_are_placed_too_and_those_of_others_are_left_alone() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8")) as c:
        await c.create(pod("mine"), pod("theirs", spec={"schedulerName": "another"}))
        await asyncio.sleep(30)
        assert await c.node_by_pod() == {"mine": "n0"}
        assert await c.pod_condition("theirs") is None


# ---- gangs that do not fit -----------------------------------------------------------------------


@in_virtual_time
async def test_a_gang_that_does_not_fit_binds_nothing_and_says_why() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("big", 3, cpu="3"))
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        why = "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
        for kind in (POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED):
            said = await c.group_condition("big", kind)
            assert said is not None
            assert (said.status, said.reason, said.message) == ("False", "Unschedulable", why)
        told = [await c.pod_condition(name) for name in members("big", 3)]
        assert all(said is not None and said.reason == "Unschedulable" for said in told)
        messages = [said.message for said in told if said]
        assert sorted(messages) == [
            "0/2 nodes are available: 2 Insufficient cpu.",
            *[f"pod group is unschedulable, {why}"] * 2,
        ]
        events = dict(await c.events("FailedScheduling"))
        assert events == dict(zip(members("big", 3), messages, strict=True))


@in_virtual_time
async def test_a_gang_that_was_refused_is_placed_when_it_fits_and_says_so() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="2"))
        await asyncio.sleep(20)
        assert await c.node_by_pod() == {}
        await c.add_node(node("late", cpu="4"))
        await c.until_placed(*members("a", 3))
        await asyncio.sleep(3)
        said = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert said is not None
        assert (said.status, said.reason) == ("True", "Scheduled")
        for name in members("a", 3):
            of_pod = await c.pod_condition(name)
            assert of_pod is not None
            assert of_pod.status == "True"


@pytest.mark.parametrize("after", [1.5, 17.3, 250.0])
@in_virtual_time
async def test_a_node_that_comes_wakes_a_waiting_gang_at_once(after: float) -> None:
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
async def test_a_deleted_gang_makes_room_at_once() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("first", 2, cpu="4"), *gang("second", 2, cpu="4"))
        await asyncio.sleep(30)
        assert sorted(await c.node_by_pod()) == members("first", 2)
        for name in members("first", 2):
            await c.delete(POD, name)
        assert await c.until_placed(*members("second", 2)) < 0.5


# ---- gangs that are not complete -----------------------------------------------------------------


@in_virtual_time
async def test_a_gang_without_enough_members_waits_and_says_how_many_are_missing() -> None:
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
            said = await c.pod_condition(name)
            assert said is not None
            assert (said.status, said.reason, said.message) == (
                "False", "NotReadyForScheduling", "waiting for 3 members, 2 are there",
            )  # fmt: skip
        await c.create(pod("a-2", "a", cpu="1"))
        assert await c.until_placed(*members("a", 3)) < 0.1


@in_virtual_time
async def test_pods_wait_for_their_group_to_appear_and_then_go_at_once() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 2, cpu="1")[1:])
        await asyncio.sleep(8)
        said = await c.pod_condition("a-0")
        assert said is not None
        assert (said.reason, said.message) == (
            "NotReadyForScheduling", 'waiting for PodGroup "a" to appear',
        )  # fmt: skip
        await c.create(pod_group("a", 2))
        assert await c.until_placed(*members("a", 2)) < 0.1


@in_virtual_time
async def test_a_gate_holds_the_whole_gang_and_keeps_its_own_word() -> None:
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


@tried(0.3)
@given(
    st.permutations(range(8)),
    st.lists(st.sampled_from((0.0, 0.0, 0.3, 2.0)), min_size=8, max_size=8),
)
@in_virtual_time
async def test_two_gangs_never_interleave_whatever_the_order_of_their_parts(
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
async def test_of_two_gangs_that_exclude_each_other_the_other_goes_when_the_first_ends() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"), *gang("b", 3, cpu="1"))
        await asyncio.sleep(30)
        (winner,) = {name[0] for name in await c.node_by_pod()}
        for name in members(winner, 3):
            await c.delete(POD, name)
        loser = {"a": "b", "b": "a"}[winner]
        await c.until_placed(*members(loser, 3))


# ---- under several names -------------------------------------------------------------------------

PACKING = {
    "schedulerName": "packer",
    "pluginConfig": [
        {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
    ],
}


@in_virtual_time
async def test_each_pod_is_placed_as_the_scheduler_that_it_names_would() -> None:
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
async def test_without_pauses_what_fits_nowhere_waits_for_room_and_takes_it_at_once() -> None:
    profiles = load_configuration(podMaxBackoffSeconds=0).profiles
    async with cluster(nodes=simulated_nodes(1, cpu="1"), profiles=profiles) as c:
        await c.create(pod("first", cpu="1"))
        await c.until_placed("first")
        await c.create(*gang("a", 1, cpu="1"))
        await asyncio.sleep(30)
        await c.delete(POD, "first")
        assert await c.until_placed("a-0") < 5


# ---- somebody else was faster --------------------------------------------------------------------


@asynccontextmanager
async def schedulers(c: Cluster, *lags: float) -> AsyncIterator[None]:
    """Schedulers that all believe to be the only one, each with its own late view of the world."""
    tasks: list[asyncio.Task[None]] = []
    for number, lag in enumerate(lags):
        client, _ = lagging_client(c, lag)
        chance = SeededRandom(number)
        informers = Informers(client, chance)
        shell = Scheduler(client, informers, c.clock, chance)
        tasks += [asyncio.create_task(informers.run()), asyncio.create_task(shell.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [t.exception() for t in tasks if not t.cancelled()] == []


@asynccontextmanager
async def late_scheduler(count: int, **room: str) -> AsyncIterator[Cluster]:
    """A cluster whose only scheduler hears of everything two seconds late."""
    without = ["scheduler"]
    async with (
        cluster(nodes=simulated_nodes(count, **room), without=without) as c,
        schedulers(c, 2.0),
    ):
        yield c


@in_virtual_time
async def test_a_gang_whose_room_was_taken_meanwhile_is_refused_whole_and_tried_again() -> None:
    async with late_scheduler(1, cpu="4") as c:
        await c.create(pod("rival", cpu="2", spec={"schedulerName": "nobody"}))
        await asyncio.sleep(10)
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(1)
        await c.bind("rival", "n0")
        await asyncio.sleep(1.8)
        assert await c.node_by_pod() == {"rival": "n0"}
        failures = await c.events("FailedScheduling")
        assert [name for name, _ in failures] == members("a", 3)
        assert all("no pod of the group was bound" in text for _, text in failures)
        told = [await c.pod_condition(name) for name in members("a", 3)]
        told.append(await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED))
        assert {(said.status, said.reason) for said in told if said} == {
            ("False", "SchedulerError")
        }
        assert all(said and "has not enough cpu left" in said.message for said in told)
        await c.delete(POD, "rival")
        await c.until_placed(*members("a", 3))


@in_virtual_time
async def test_a_gang_of_which_a_member_was_bound_by_hand_meanwhile_goes_on() -> None:
    async with late_scheduler(2, cpu="4") as c:
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(1)
        await c.bind("a-1", "n1")
        await c.until_placed(*members("a", 3))
        assert (await c.node_by_pod())["a-1"] == "n1"


@in_virtual_time
async def test_a_gang_whose_scheduler_did_not_live_to_say_so_is_said_to_be_placed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="2"), without=["scheduler"]) as c:
        await c.create(*gang("a", 3, minimum=2, cpu="1"))
        for name in members("a", 2):
            await c.bind(name, "n0")
        async with schedulers(c, 0.0):
            await asyncio.sleep(10)
        said = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert said is not None
        assert (said.status, said.reason) == ("True", "Scheduled")


@in_virtual_time
async def test_a_node_that_is_gone_when_the_gang_comes_is_not_used() -> None:
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
async def test_a_pod_made_again_under_its_name_is_not_bound_for_the_old_one() -> None:
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


@tried(0.25)
@given(sizes, st.lists(st.sampled_from((0.0, 0.1, 1.0, 3.0)), min_size=2, max_size=3), st.data())
@in_virtual_time
async def test_schedulers_that_all_believe_to_lead_break_nothing(
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
    """Every gang has all or nothing, and at least one that could be placed was."""
    placed = await c.node_by_pod()
    whole = 0
    for number, (count, _) in enumerate(sizes):
        found = sum(name.startswith(f"g{number}-") for name in placed)
        assert found in (0, count)
        whole += bool(found)
    assert whole or all(int(cpu) * count > 12 or (cpu == "3" and count > 3) for count, cpu in sizes)


# ---- quiet ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_settled_cluster_is_quiet() -> None:
    async with cluster(without=["nodes"]) as c:
        await c.add_node(node("n1", cpu="4"))
        await c.create(*gang("fits", 2, cpu="1"), *gang("big", 3, cpu="3"))
        await c.create(*gang("short", 1, minimum=2, cpu="1"))
        await asyncio.sleep(120)
        told = await writes_in_a_minute(c)
        assert told <= 10, "a few repeated events are all that a waiting gang may cost"


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
