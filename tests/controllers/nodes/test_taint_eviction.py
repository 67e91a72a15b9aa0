"""Pods that leave tainted nodes, each when its patience ends, in virtual time."""

from __future__ import annotations

import asyncio
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
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

BROKEN: Object = {"key": "broken", "value": "yes", "effect": "NoExecute"}
SLOW: Object = {"key": "slow", "effect": "NoExecute"}


def telling(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(client, c.clock, SeededRandom(4), "taint-eviction-controller")
    return [recorder.run, TaintEviction(client, informers, c.clock, recorder.record).run]


def silent(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """The same without events."""
    return [TaintEviction(client, informers, c.clock).run]


def tolerating(key: str, seconds: int | None = None, **more: str) -> Object:
    for_so_long = {} if seconds is None else {"tolerationSeconds": seconds}
    operator = "Equal" if "value" in more else "Exists"
    return {"key": key, "operator": operator, "effect": "NoExecute", **for_so_long, **more}


async def taint(c: Cluster, *taints: Object, name: str = "a") -> None:
    await c.client.patch(NODE, Key("", name), {"spec": {"taints": list(taints)}})


async def place(c: Cluster, name: str, *tolerations: Object, on: str = "a") -> None:
    await c.create(pod(name, spec={"tolerations": list(tolerations)}))
    await c.bind(name, on)


async def leaving(c: Cluster) -> list[str]:
    """The pods that are being deleted: nobody takes them down here."""
    return sorted(n for n, found in (await c.pods()).items() if found.metadata.deletion_timestamp)


@in_virtual_time
async def test_a_pod_that_does_not_tolerate_a_taint_goes_at_once_and_says_why() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await place(c, "p")
        await taint(c, BROKEN)
        await asyncio.sleep(1)
        assert await leaving(c) == ["p"]
        found = await c.client.get(POD, Key("default", "p"))
        (mark,) = (o for o in found["status"]["conditions"] if o["type"] == "DisruptionTarget")
        assert (mark["status"], mark["reason"], mark["message"]) == (
            "True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint",
        )  # fmt: skip
        told = [("p", "Marking for deletion Pod default/p")]
        assert await c.events("TaintManagerEviction") == told


@pytest.mark.parametrize(
    ("tolerations", "stays"),
    [
        ([], 0.0),
        ([tolerating("other")], 0.0),
        ([tolerating("broken", value="no")], 0.0),
        ([tolerating("broken", effect="NoSchedule")], 0.0),
        ([tolerating("broken", 0)], 0.0),
        ([tolerating("broken", -5)], 0.0),
        ([tolerating("broken", 30)], 30.0),
        ([tolerating("broken", 30, value="yes")], 30.0),
        ([tolerating("broken", 30), tolerating("broken", 60)], 30.0),
        ([tolerating("broken", 60), tolerating("broken", 30)], 60.0),
        ([tolerating("broken")], None),
        ([tolerating("")], None),
    ],
)
@in_virtual_time
async def test_a_pod_stays_as_long_as_it_tolerates(
    tolerations: list[Object], stays: float | None
) -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await place(c, "p", *tolerations)
        await taint(c, BROKEN)
        if stays is None:
            await asyncio.sleep(10_000)
            assert await leaving(c) == []
            return
        if stays:
            await asyncio.sleep(stays - 2)
            assert await leaving(c) == []
        await asyncio.sleep(3)
        assert await leaving(c) == ["p"]


@in_virtual_time
async def test_of_several_taints_the_one_that_is_tolerated_for_the_shortest_time_counts() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await place(c, "p", tolerating("broken", 100), tolerating("slow", 50))
        await taint(c, BROKEN)
        await asyncio.sleep(30)
        await taint(c, BROKEN, SLOW)
        await asyncio.sleep(48)
        assert await leaving(c) == []
        await asyncio.sleep(5)
        assert await leaving(c) == ["p"]


@in_virtual_time
async def test_a_taint_that_goes_in_time_spares_the_pod_and_that_is_told() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await place(c, "p", tolerating("broken", 100))
        await taint(c, BROKEN)
        await asyncio.sleep(90)
        await taint(c)
        await asyncio.sleep(200)
        assert await leaving(c) == []
        told = [("p", "Cancelling deletion of Pod default/p")]
        assert await c.events("TaintManagerEviction") == told
        await taint(c, BROKEN)
        await asyncio.sleep(90)
        assert await leaving(c) == []


@in_virtual_time
async def test_the_time_of_a_pod_that_comes_later_begins_later() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await taint(c, BROKEN)
        await asyncio.sleep(500)
        await place(c, "p", tolerating("broken", 100))
        await asyncio.sleep(95)
        assert await leaving(c) == []
        await asyncio.sleep(10)
        assert await leaving(c) == ["p"]


@in_virtual_time
async def test_only_pods_that_run_on_the_node_leave_it() -> None:
    async with bare_cluster(telling) as c:
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
        assert await leaving(c) == ["here"]


@in_virtual_time
async def test_a_pod_is_given_five_minutes_when_its_node_is_lost() -> None:
    async with bare_cluster(telling) as c:
        await c.add_node(node("a"))
        await place(c, "p")
        await taint(c, {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})
        await asyncio.sleep(298)
        assert await leaving(c) == []
        await asyncio.sleep(4)
        assert await leaving(c) == ["p"]


async def an_outage(c: Cluster) -> object:
    await c.add_node(node("a"))
    for name, patience in (("p", 20), ("q", 40), ("r", None)):
        await place(c, name, tolerating("broken", patience))
    await place(c, "s")
    await taint(c, BROKEN)
    await asyncio.sleep(100)
    marked = [
        name
        for name, found in (await c.pods()).items()
        if any(one.type == "DisruptionTarget" for one in found.status.conditions)
    ]
    return await leaving(c), sorted(marked)


def test_whenever_the_controller_ends_another_one_goes_on() -> None:
    assert assert_survives_every_crash(silent, an_outage) >= 6


def test_news_that_come_twice_and_late_change_nothing() -> None:
    assert_survives_bad_watches(silent, an_outage)


@in_virtual_time
async def test_when_all_have_left_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, telling):
            await an_outage(c)
        await assert_quiet(c, telling)
