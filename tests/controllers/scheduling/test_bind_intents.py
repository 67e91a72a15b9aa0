"""Gangs on a server that binds pods one by one: a partly bound gang is completed or undone."""

from __future__ import annotations

import asyncio
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import POD, PRIORITY_CLASS
from phalanx.api.scheduling import (
    BINDING_INTENT_ANNOTATION,
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
)
from phalanx.api.wire import Object, Request
from phalanx.controllers.scheduling.bind_intents import COMPLETION_TIMEOUT
from tests.builders import gang, in_virtual_time, pod, share_of_examples
from tests.controllers.cluster import Cluster
from tests.controllers.foreign_cluster import (
    ScriptedTransport,
    annotation_values,
    bound_uids,
    foreign_cluster,
    group_of,
    owned_gang,
    pod_controller,
    running_scheduler,
)

#: Seconds in which a gang can be bound, undone, recreated and tried again.
LONG = 4 * COMPLETION_TIMEOUT
SIZE = 3
#: More writes than a gang of this size needs for binds, conditions and events.
WRITES = 12
#: Every crash of a scheduler: at which write, and whether that one still arrives.
every_crash_point = pytest.mark.parametrize(
    ("end", "arrives"), [(end, arrives) for end in range(WRITES) for arrives in (False, True)]
)


def members(name: str, count: int = SIZE) -> list[str]:
    return [f"{name}-{n}" for n in range(count)]


async def run_until_crash(c: Cluster, end: int, *, arrives: bool, seconds: float = 5.0) -> None:
    """Run a scheduler until it crashes at its n-th write, or for some seconds."""
    transport = ScriptedTransport(c, last_write=end, last_arrives=arrives)
    async with running_scheduler(c, transport):
        try:
            async with asyncio.timeout(seconds):
                await transport.ended.wait()
        except TimeoutError:
            return


async def fill_free_node(c: Cluster) -> bool:
    """Bind another pod to a node with free resources; returns whether there was one."""
    taken = (await c.node_by_pod()).values()
    free = [name for name in (f"n{i}" for i in range(SIZE)) if name not in taken]
    if free:
        await c.create(pod("rival", cpu="1", spec={"schedulerName": "other"}))
        await c.bind("rival", free[0])
    return bool(free)


@pytest.mark.mostly_slow(quick_every=3)
@every_crash_point
@in_virtual_time
async def test_a_gang_is_complete_after_a_crash_at_any_write(end: int, arrives: bool) -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        group, *pods = gang("a", SIZE, cpu="1")
        await c.create(group, *pods)
        made = {one.metadata.uid for one in (await c.pods()).values()}
        await run_until_crash(c, end, arrives=arrives)
        async with running_scheduler(c, ScriptedTransport(c), seed=2):
            await asyncio.sleep(LONG)
        assert sorted(await c.node_by_pod()) == members("a")
        assert sorted(bound_uids(c)) == sorted(made)
        found = await group_of(c, "a")
        assert not found.binding_intent
        condition = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
        assert condition is not None
        assert condition.status == "True"


@pytest.mark.mostly_slow(quick_every=3)
@every_crash_point
@in_virtual_time
async def test_a_gang_without_free_resources_after_a_crash_is_bound_wholly_or_not_at_all(
    end: int, arrives: bool
) -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        group, *pods = owned_gang("a", SIZE, cpu="1")
        await c.create(group)
        async with pod_controller(c, *pods):
            await asyncio.sleep(0.1)
            await run_until_crash(c, end, arrives=arrives)
            taken = await fill_free_node(c)
            async with running_scheduler(c, ScriptedTransport(c), seed=2):
                await asyncio.sleep(LONG)
                placed = set(await c.node_by_pod()) - {"rival"}
                assert sorted(placed) == ([] if taken else members("a"))
                assert len(set(bound_uids(c))) == len(bound_uids(c))
                assert not (await group_of(c, "a")).binding_intent
                if taken:
                    await c.delete(POD, "rival")
                await c.until_placed(*members("a"))


@pytest.mark.mostly_slow(quick_every=3)
@every_crash_point
@in_virtual_time
async def test_pods_without_a_controller_are_never_deleted(end: int, arrives: bool) -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        await c.create(*gang("a", SIZE, cpu="1"))
        made = {one.metadata.uid for one in (await c.pods()).values()}
        await run_until_crash(c, end, arrives=arrives)
        taken = await fill_free_node(c)
        async with running_scheduler(c, ScriptedTransport(c), seed=2):
            await asyncio.sleep(LONG)
            left = {name: one for name, one in (await c.pods()).items() if name != "rival"}
            assert {one.metadata.uid for one in left.values()} == made
            if taken:
                await c.delete(POD, "rival")
            await c.until_placed(*members("a"))
        assert len(set(bound_uids(c))) == len(bound_uids(c))


@share_of_examples(0.15)
@given(st.lists(st.tuples(st.integers(0, WRITES), st.booleans()), min_size=1, max_size=5))
@in_virtual_time
async def test_a_gang_is_bound_however_often_the_scheduler_crashes(
    ends: list[tuple[int, bool]],
) -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        await c.create(*gang("a", SIZE, cpu="1"))
        for end, arrives in ends:
            await run_until_crash(c, end, arrives=arrives)
        async with running_scheduler(c, ScriptedTransport(c), seed=2):
            await c.until_placed(*members("a"))
        assert len(set(bound_uids(c))) == len(bound_uids(c)) == SIZE


async def start_gang(c: Cluster, count: int, manifests: list[Object]) -> None:
    """Create a gang whose scheduler crashes after binding this many members."""
    await c.create(*deepcopy(manifests))
    # The first write is the intent.
    await run_until_crash(c, count + 1, arrives=False)
    assert len(await c.node_by_pod()) == count


@pytest.mark.mostly_slow(quick_every=3)
@every_crash_point
@in_virtual_time
async def test_an_undo_is_completed_after_a_crash_at_any_write(end: int, arrives: bool) -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        group, *pods = owned_gang("a", SIZE, cpu="1")
        await start_gang(c, 2, [group, *pods])
        assert await fill_free_node(c)
        async with pod_controller(c, *pods):
            await run_until_crash(c, end, arrives=arrives, seconds=COMPLETION_TIMEOUT + 2)
            async with running_scheduler(c, ScriptedTransport(c), seed=2):
                await asyncio.sleep(LONG)
                assert list(await c.node_by_pod()) == ["rival"]
                assert not (await group_of(c, "a")).binding_intent
        assert len(set(bound_uids(c))) == len(bound_uids(c))


@pytest.mark.parametrize("pause", [0.0, 0.5])
@in_virtual_time
async def test_two_concurrent_schedulers_bind_one_complete_gang(pause: float) -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        async with (
            running_scheduler(c, ScriptedTransport(c), seed=1),
            running_scheduler(c, ScriptedTransport(c), seed=2),
        ):
            for manifest in owned_gang("a", SIZE, cpu="1"):
                await c.create(manifest)
                await asyncio.sleep(pause)
            await asyncio.sleep(LONG)
        assert sorted(await c.node_by_pod()) == members("a")
        assert len(set(bound_uids(c))) == len(bound_uids(c)) == SIZE
        assert not (await group_of(c, "a")).binding_intent


@in_virtual_time
async def test_members_carry_the_intent_under_which_they_were_bound() -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        await start_gang(c, 2, gang("a", SIZE, cpu="1"))
        found = await group_of(c, "a")
        assert found.binding_intent
        condition = await annotation_values(c, BINDING_INTENT_ANNOTATION)
        assert set(condition) == set(await c.node_by_pod())
        assert set(condition.values()) == {found.binding_intent}
        async with running_scheduler(c, ScriptedTransport(c), seed=2):
            await c.until_placed(*members("a"))


@in_virtual_time
async def test_a_partly_bound_gang_is_completed_before_pods_of_higher_priority() -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        await start_gang(c, 2, gang("a", SIZE, cpu="1"))
        patient = {"value": 1000, "preemptionPolicy": "Never"}
        await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, **patient})
        await c.create(pod("urgent", cpu="1", spec={"priorityClassName": "high"}))
        transport = ScriptedTransport(c)
        async with running_scheduler(c, transport, seed=2):
            await asyncio.sleep(5)
            assert sorted(await c.node_by_pod()) == members("a")
            assert "urgent" not in transport.bound_pods


@in_virtual_time
async def test_an_undone_gang_has_events_and_conditions() -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        await start_gang(c, 2, owned_gang("a", SIZE, cpu="1"))
        placed = sorted(await c.node_by_pod())
        assert await fill_free_node(c)
        async with running_scheduler(c, ScriptedTransport(c), seed=2):
            await asyncio.sleep(COMPLETION_TIMEOUT + 1)
            text = (
                "only 2 of 3 required members were bound in time; "
                "the bound members are deleted so that all start together"
            )
            assert await c.events("BindingUndone") == [(name, text) for name in ("a", *placed)]
            condition = await c.group_condition("a", POD_GROUP_INITIALLY_SCHEDULED)
            assert condition is not None
            assert (condition.status, condition.reason, condition.message) == (
                "False",
                "BindingUndone",
                text,
            )
            assert list(await c.node_by_pod()) == ["rival"]
            assert not (await group_of(c, "a")).binding_intent


@in_virtual_time
async def test_a_gang_that_cannot_be_undone_has_an_event_and_is_completed_later() -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        await start_gang(c, 2, gang("a", SIZE, cpu="1"))
        placed = sorted(await c.node_by_pod())
        assert await fill_free_node(c)
        async with running_scheduler(c, ScriptedTransport(c), seed=2):
            await asyncio.sleep(2.5 * COMPLETION_TIMEOUT)
            ((name, text),) = await c.events("BindingIncomplete")
            assert name == "a"
            assert text == (
                "only 2 of 3 required members were bound in time; "
                f"no controller would create {', '.join(placed)} again"
            )
            assert await c.events("BindingUndone") == []
            degraded = await c.group_condition("a", DEGRADED)
            assert degraded is not None
            assert (degraded.status, degraded.reason) == ("True", "BindingIncomplete")
            assert degraded.message == text
            await c.delete(POD, "rival")
            assert await c.until_placed(*members("a")) < COMPLETION_TIMEOUT
            await asyncio.sleep(5)
            degraded = await c.group_condition("a", DEGRADED)
            assert degraded is not None
            assert (degraded.status, degraded.reason) == ("False", "MembersBack")
        assert not (await group_of(c, "a")).binding_intent


@pytest.mark.parametrize("times", [1, 3])
@in_virtual_time
async def test_a_member_whose_bind_fails_is_bound_in_another_cycle(times: int) -> None:
    left = [times]

    def refuse(request: Request) -> ApiError | None:
        if request.path.endswith("a-2/binding") and left[0]:
            left[0] -= 1
            return Forbidden("not now")
        return None

    async with foreign_cluster(SIZE, cpu="1") as c:
        async with running_scheduler(c, ScriptedTransport(c, refuse=refuse)):
            await c.create(*gang("a", SIZE, cpu="1"))
            await c.until_placed(*members("a"))
            await asyncio.sleep(3)
        assert not (await group_of(c, "a")).binding_intent
        assert len(set(bound_uids(c))) == len(bound_uids(c)) == SIZE
        assert ("a-2", "not now") in await c.events("FailedScheduling")


@in_virtual_time
async def test_a_gang_with_a_member_that_cannot_be_bound_is_undone() -> None:
    refused = ["a-2/binding"]

    def refuse(request: Request) -> ApiError | None:
        return Forbidden("never") if request.path.endswith(tuple(refused)) else None

    async with foreign_cluster(SIZE, cpu="1") as c:
        group, *pods = owned_gang("a", SIZE, cpu="1")
        await c.create(group)
        async with (
            pod_controller(c, *pods),
            running_scheduler(c, ScriptedTransport(c, refuse=refuse)),
        ):
            await c.until_placed(*members("a")[:-1])
            await asyncio.sleep(COMPLETION_TIMEOUT + 0.2)
            assert [name for name, _ in await c.events("BindingUndone")] == [
                "a",
                *members("a")[:-1],
            ]
            assert ("a-2", "never") in await c.events("FailedScheduling")
            refused.clear()
            await c.until_placed(*members("a"))


@in_virtual_time
async def test_a_gang_that_loses_a_member_after_it_was_placed_is_not_undone() -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        group, *pods = owned_gang("a", SIZE, cpu="1")
        async with running_scheduler(c, ScriptedTransport(c)):
            await c.create(group, *pods)
            await c.until_placed(*members("a"))
            await asyncio.sleep(3)
            await c.delete(POD, "a-0")
            await asyncio.sleep(LONG)
            assert sorted(await c.node_by_pod()) == members("a")[1:]


@in_virtual_time
async def test_pods_alone_and_late_members_need_no_intent() -> None:
    async with foreign_cluster(2, cpu="4") as c:
        transport = ScriptedTransport(c)
        async with running_scheduler(c, transport):
            await c.create(pod("alone", cpu="1"), *gang("a", 2, cpu="1"))
            await c.until_placed("alone", "a-0", "a-1")
            await asyncio.sleep(3)
            before = len(transport.writes)
            await c.create(pod("a-late", "a", cpu="1"))
            await c.until_placed("a-late")
            await asyncio.sleep(3)
            assert set(await annotation_values(c, BINDING_INTENT_ANNOTATION)) == {"a-0", "a-1"}
            written = [r for r in transport.writes[before:] if r.path.endswith("podgroups/a")]
            assert written == []


@in_virtual_time
async def test_a_gang_of_three_takes_three_writes_per_member() -> None:
    async with foreign_cluster(SIZE, cpu="1") as c:
        transport = ScriptedTransport(c)
        async with running_scheduler(c, transport):
            await c.create(*gang("a", SIZE, cpu="1"))
            await c.until_placed(*members("a"))
            await asyncio.sleep(LONG)
        of_group = [r.path.split("/")[-2:] for r in transport.writes if "podgroups" in r.path]
        assert of_group == [["podgroups", "a"], ["a", "status"], ["podgroups", "a"]]
        assert len(transport.writes) == 3 * SIZE


@in_virtual_time
async def test_a_foreign_server_gets_no_member_counts() -> None:
    async with foreign_cluster(1, cpu="4") as c:
        transport = ScriptedTransport(c)
        async with running_scheduler(c, transport):
            await c.create(*gang("a", 2, cpu="1"))
            await c.until_placed("a-0", "a-1")
            await asyncio.sleep(5)
        bodies = [r.body for r in transport.writes if r.path.endswith("podgroups/a/status")]
        condition = [body["status"] for body in bodies if isinstance(body, dict)]
        assert condition
        assert all(set(status) == {"conditions"} for status in condition)
