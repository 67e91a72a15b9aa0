"""Log lines of the scheduler: attempts at debug, state changes of groups at info, once each."""

from __future__ import annotations

import asyncio
import logging

import pytest

from phalanx.api.errors import Conflict
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.wire import Request
from tests.builders import gang, in_virtual_time, node, pod, priority_class
from tests.controllers.cluster import cluster, simulated_nodes
from tests.controllers.test_scheduler_runner import phalanx_cluster, running_scheduler
from tests.recording_log import LogLine, captured_lines

CONTROL_PLANE = ("controllers",)
MIN_COUNT = "minCount (3) cannot be satisfied"


def group_lines(caplog: pytest.LogCaptureFixture, key: str) -> list[LogLine]:
    """The lines at info level and above about one object."""
    lines = captured_lines(caplog, "scheduler")
    return [line for line in lines if line.fields.get("key") == key and line.level != "DEBUG"]


@in_virtual_time
async def test_a_placed_group_is_one_info_line_with_nodes_and_durations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with cluster(nodes=simulated_nodes(2, cpu="2"), without=CONTROL_PLANE) as c:
        await c.create(*gang("a", 3, cpu="1"), pod("alone"))
        await c.until_placed("a-0", "a-1", "a-2", "alone")
    (line,) = group_lines(caplog, "default/a")
    assert (line.level, line.message) == ("INFO", "PodGroup placed")
    assert {name: line.fields[name] for name in ("kind", "pods", "nodes", "attempt")} == {
        "kind": "PodGroup",
        "pods": "3",
        "nodes": "2",
        "attempt": "1",
    }
    assert 0 <= float(line.fields["duration"]) <= float(line.fields["waited"]) < 1
    assert group_lines(caplog, "default/alone") == []


@in_virtual_time
async def test_an_unschedulable_group_is_logged_again_only_with_another_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with cluster(nodes=simulated_nodes(1, cpu="1"), without=CONTROL_PLANE) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(1)
        for number in range(2):
            # A node that is full from the start wakes the group without changing the result.
            await c.add_node(node(f"full-{number}", cpu="0"))
            await asyncio.sleep(30)
        lines = group_lines(caplog, "default/a")
        assert [line.message for line in lines] == ["PodGroup unschedulable"]
        await c.add_node(node("small", cpu="1"))
        await asyncio.sleep(30)
    lines = group_lines(caplog, "default/a")
    assert [(line.message, line.fields["reason"]) for line in lines] == [
        ("PodGroup unschedulable", f"Unschedulable: {MIN_COUNT}: 1 scheduled, 1 remaining"),
        ("PodGroup unschedulable", f"Unschedulable: {MIN_COUNT}: 2 scheduled, 0 remaining"),
    ]
    assert int(lines[1].fields["attempt"]) > 2


@in_virtual_time
async def test_a_preempting_group_is_logged_with_its_victims(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    async with cluster(nodes=simulated_nodes(2, cpu="1"), without=CONTROL_PLANE) as c:
        await c.create(priority_class("high", 100))
        await c.create(*gang("low", 2, cpu="1"))
        await c.until_placed("low-0", "low-1")
        group, *members = gang("high", 2, cpu="1")
        for manifest in (group, *members):
            manifest["spec"]["priorityClassName"] = "high"
        await c.create(group, *members)
        await c.until_placed("high-0", "high-1")
    lines = group_lines(caplog, "default/high")
    assert [line.message for line in lines] == ["PodGroup preempting", "PodGroup placed"]
    assert lines[0].fields == {"kind": "PodGroup", "key": "default/high", "victims": "2"}
    evicted = [x for x in captured_lines(caplog, "scheduler") if x.message == "victims evicted"]
    assert [(line.level, line.fields["victims"]) for line in evicted] == [("DEBUG", "2")]


@in_virtual_time
async def test_every_attempt_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    async with cluster(nodes=simulated_nodes(1, cpu="1"), without=CONTROL_PLANE) as c:
        await c.create(pod("fits", cpu="1"))
        await c.until_placed("fits")
        await c.create(pod("waits", cpu="1"))
        await asyncio.sleep(2)
    attempts = [x for x in captured_lines(caplog, "scheduler") if x.message == "attempt"]
    assert {line.level for line in attempts} == {"DEBUG"}
    decisions = [(line.fields["key"], line.fields["decision"]) for line in attempts]
    assert decisions[:2] == [("default/fits", "Placed"), ("default/waits", "Waiting")]


@in_virtual_time
async def test_a_failed_bind_is_a_warning_with_attempt_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with phalanx_cluster() as c, running_scheduler(c) as scheduler:
        await scheduler.wait_until_leading()
        failures = [Conflict("the node is gone")]

        def refuse_once(request: Request) -> Conflict | None:
            is_bind = request.path.endswith("groupbindings")
            return failures.pop() if is_bind and failures else None

        scheduler.transport.refuse = refuse_once
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed("a-0", "a-1")
    failed, placed = group_lines(caplog, "default/a")
    assert (failed.level, failed.message) == ("WARNING", "PodGroup not bound, retrying")
    assert failed.fields == {
        "kind": "PodGroup",
        "key": "default/a",
        "pods": "2",
        "bound": "0",
        "attempt": "1",
        "reason": "the node is gone",
    }
    assert (placed.message, placed.fields["attempt"]) == ("PodGroup placed", "2")


@in_virtual_time
async def test_a_group_created_again_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        for _ in range(2):
            await c.create(*gang("a", 2, cpu="1"))
            await asyncio.sleep(2)
            for name in ("a-0", "a-1"):
                await c.delete(POD, name)
            await c.delete(POD_GROUP, "a")
            await asyncio.sleep(2)
    messages = [line.message for line in group_lines(caplog, "default/a")]
    assert messages == ["PodGroup unschedulable", "PodGroup unschedulable"]
