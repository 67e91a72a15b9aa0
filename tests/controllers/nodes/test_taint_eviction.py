"""Eviction of pods from tainted nodes, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.nodes.taint_eviction import TaintEviction
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)
from tests.recording_log import captured_lines

BROKEN: Object = {"key": "broken", "value": "yes", "effect": "NoExecute"}
SLOW: Object = {"key": "slow", "effect": "NoExecute"}


def build_with_events(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(
        client, c.clock, SeededRandom(4), component="taint-eviction-controller"
    )
    return [recorder.run, TaintEviction(client, informers, c.clock, record=recorder.record).run]


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """Without events."""
    return [TaintEviction(client, informers, c.clock).run]


def toleration(key: str, seconds: int | None = None, **more: str) -> Object:
    for_so_long = {} if seconds is None else {"tolerationSeconds": seconds}
    operator = "Equal" if "value" in more else "Exists"
    return {"key": key, "operator": operator, "effect": "NoExecute", **for_so_long, **more}


async def taint(c: Cluster, *taints: Object, name: str = "a") -> None:
    await c.client.patch(NODE, Key("", name), {"spec": {"taints": list(taints)}})


async def place(c: Cluster, name: str, *tolerations: Object, on: str = "a") -> None:
    await c.create(pod(name, spec={"tolerations": list(tolerations)}))
    await c.bind(name, on)


async def deleted_pods(c: Cluster) -> list[str]:
    """The pods that are being deleted; no kubelet removes them here."""
    return sorted(n for n, found in (await c.pods()).items() if found.metadata.deletion_timestamp)


@in_virtual_time
async def test_a_pod_without_a_toleration_is_evicted_at_once_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await place(c, "p")
        await taint(c, BROKEN)
        await asyncio.sleep(1)
        assert await deleted_pods(c) == ["p"]
        found = await c.client.get(POD, Key("default", "p"))
        (condition,) = (o for o in found["status"]["conditions"] if o["type"] == "DisruptionTarget")
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint",
        )  # fmt: skip
        events = [("p", "Marking for deletion Pod default/p")]
        assert await c.events("TaintManagerEviction") == events
    (line,) = captured_lines(caplog, "taint-eviction-controller")
    assert (line.level, line.message) == ("INFO", "evicting pod from tainted node")
    assert line.fields == {"kind": "Pod", "key": "default/p", "node": "a"}


@pytest.mark.parametrize(
    ("tolerations", "stays"),
    [
        ([], 0.0),
        ([toleration("other")], 0.0),
        ([toleration("broken", value="no")], 0.0),
        ([toleration("broken", effect="NoSchedule")], 0.0),
        ([toleration("broken", 0)], 0.0),
        ([toleration("broken", -5)], 0.0),
        ([toleration("broken", 30)], 30.0),
        ([toleration("broken", 30, value="yes")], 30.0),
        ([toleration("broken", 30), toleration("broken", 60)], 30.0),
        ([toleration("broken", 60), toleration("broken", 30)], 60.0),
        ([toleration("broken")], None),
        ([toleration("")], None),
    ],
)
@in_virtual_time
async def test_a_pod_stays_for_its_toleration_seconds(
    tolerations: list[Object], stays: float | None
) -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await place(c, "p", *tolerations)
        await taint(c, BROKEN)
        if stays is None:
            await asyncio.sleep(10_000)
            assert await deleted_pods(c) == []
            return
        if stays:
            await asyncio.sleep(stays - 2)
            assert await deleted_pods(c) == []
        await asyncio.sleep(3)
        assert await deleted_pods(c) == ["p"]


@in_virtual_time
async def test_the_shortest_toleration_of_several_taints_counts() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await place(c, "p", toleration("broken", 100), toleration("slow", 50))
        await taint(c, BROKEN)
        await asyncio.sleep(30)
        await taint(c, BROKEN, SLOW)
        await asyncio.sleep(48)
        assert await deleted_pods(c) == []
        await asyncio.sleep(5)
        assert await deleted_pods(c) == ["p"]


@in_virtual_time
async def test_a_taint_removed_in_time_cancels_the_eviction_with_an_event() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await place(c, "p", toleration("broken", 100))
        await taint(c, BROKEN)
        await asyncio.sleep(90)
        await taint(c)
        await asyncio.sleep(200)
        assert await deleted_pods(c) == []
        events = [("p", "Cancelling deletion of Pod default/p")]
        assert await c.events("TaintManagerEviction") == events
        await taint(c, BROKEN)
        await asyncio.sleep(90)
        assert await deleted_pods(c) == []


@in_virtual_time
async def test_toleration_seconds_start_when_a_later_pod_is_bound() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await taint(c, BROKEN)
        await asyncio.sleep(500)
        await place(c, "p", toleration("broken", 100))
        await asyncio.sleep(95)
        assert await deleted_pods(c) == []
        await asyncio.sleep(10)
        assert await deleted_pods(c) == ["p"]


@in_virtual_time
async def test_only_pods_of_the_tainted_node_are_evicted() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await c.add_node(node("b"))
        await place(c, "here")
        await place(c, "elsewhere", on="b")
        await place(c, "done")
        await c.create(pod("nowhere"))
        ended = {"status": {"phase": "Succeeded"}}
        await c.client.patch(POD, Key("default", "done"), ended, subresource="status")
        await taint(c, BROKEN, {"key": "x", "effect": "NoSchedule"})
        await taint(c, {"key": "x", "effect": "NoSchedule"}, name="b")
        await asyncio.sleep(100)
        assert await deleted_pods(c) == ["here"]


@in_virtual_time
async def test_a_pod_of_a_lost_node_is_evicted_after_five_minutes() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await place(c, "p")
        await taint(c, {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})
        await asyncio.sleep(298)
        assert await deleted_pods(c) == []
        await asyncio.sleep(4)
        assert await deleted_pods(c) == ["p"]


async def run_outage(c: Cluster) -> object:
    await c.add_node(node("a"))
    for name, patience in (("p", 20), ("q", 40), ("r", None)):
        await place(c, name, toleration("broken", patience))
    await place(c, "s")
    await taint(c, BROKEN)
    await asyncio.sleep(100)
    marked = [
        name
        for name, found in (await c.pods()).items()
        if any(one.type == "DisruptionTarget" for one in found.status.conditions)
    ]
    return await deleted_pods(c), sorted(marked)


def test_after_a_crash_at_any_write_another_controller_continues() -> None:
    assert assert_survives_every_crash(build, run_outage) >= 6


def test_duplicate_and_late_events_change_nothing() -> None:
    assert_survives_bad_watches(build, run_outage)


@in_virtual_time
async def test_after_the_eviction_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build_with_events):
            await run_outage(c)
        await assert_quiet(c, build_with_events)
