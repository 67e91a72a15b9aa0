"""Reservations of the running scheduler, on a control plane in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.scheduling import RESERVED
from phalanx.api.wire import Object
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.recording_log import captured_lines


def job(
    name: str, seconds: int, *, cpu: str = "4", deadline: int | None = None, expected: str = ""
) -> Object:
    """A Job of one pod that runs for some seconds, with or without a declared limit."""
    template = {
        "metadata": {"annotations": {RUN_SECONDS: str(seconds)}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        },
    }
    spec: Object = {"template": template}
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    annotations = {EXPECTED_RUN_TIME_ANNOTATION: expected} if expected else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": spec,
    }


async def running_jobs(c: Cluster) -> set[str]:
    """The Jobs with a pod that has a node."""
    placed = await c.node_by_pod()
    return {name.rpartition("-")[0] for name in placed if not name.startswith("large")}


@in_virtual_time
async def test_large_gang_is_reserved_and_starts_on_time_beside_small_jobs() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(job("a", 300, deadline=400))
        await asyncio.sleep(2)
        await c.create(*gang("large", 2, cpu="4"))
        await asyncio.sleep(63)
        reserved = await c.group_condition("large", RESERVED)
        assert reserved is not None
        assert (reserved.status, reserved.reason) == ("True", "StartExpected")
        assert reserved.message.startswith("2 nodes reserved; expected start ")
        assert reserved.message.endswith(", when job/a ends")
        await c.create(job("unlimited", 10), job("brief", 10, expected="10s"))
        await asyncio.sleep(60)
        assert await running_jobs(c) == {"a", "brief"}
        await asyncio.sleep(190)
        assert {"large-0", "large-1"} <= set(await c.node_by_pod())
        released = await c.group_condition("large", RESERVED)
        assert released is not None
        assert (released.status, released.reason) == ("False", "Started")


@in_virtual_time
async def test_reservation_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(job("a", 300))
        await asyncio.sleep(2)
        await c.create(*gang("large", 2, cpu="4"))
        await asyncio.sleep(63)
        text = c.plane.server.metrics.render()
        assert 'phalanx_reservations{expected_start="unknown"} 1' in text
        assert 'phalanx_reservations{expected_start="known"} 0' in text
        reserved = await c.group_condition("large", RESERVED)
        assert reserved is not None
        assert (reserved.status, reserved.reason) == ("True", "StartUnknown")
        await asyncio.sleep(260)
        assert 'phalanx_reservations{expected_start="unknown"} 0' in c.plane.server.metrics.render()
    lines = [line for line in captured_lines(caplog, "scheduler") if "reserved" in line.message]
    first, *_, last = lines
    assert (first.level, first.message) == ("INFO", "PodGroup reserved")
    assert (first.fields["nodes"], first.fields["expected_start"]) == ("2", "unknown")
    assert last.message == "PodGroup no longer reserved"


@in_virtual_time
async def test_nodes_are_nominated_only_shortly_before_the_expected_start() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(job("a", 300, deadline=300))
        await asyncio.sleep(2)
        await c.create(*gang("large", 2, cpu="4"))

        async def nominated() -> set[str]:
            pods = [await c.client.get(POD, Key("default", f"large-{n}")) for n in range(2)]
            return {one["status"].get("nominatedNodeName", "") for one in pods}

        await asyncio.sleep(200)
        assert await nominated() == {""}
        await asyncio.sleep(85)
        assert await nominated() == {"n0", "n1"}


@in_virtual_time
async def test_reservation_is_dropped_when_the_gang_becomes_incomplete() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(job("a", 300))
        await asyncio.sleep(2)
        await c.create(*gang("large", 2, cpu="4"))
        await asyncio.sleep(63)
        await c.client.delete(POD, Key("default", "large-1"))
        await asyncio.sleep(3)
        dropped = await c.group_condition("large", RESERVED)
        assert dropped is not None
        assert (dropped.status, dropped.reason) == ("False", "Dropped")


@in_virtual_time
async def test_gang_that_lacks_a_device_class_keeps_nothing_from_others() -> None:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "nope"}}]}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "default"},
        "spec": {"devices": devices},
    }
    group, *pods = gang("never", 2, cpu="4")
    for pod in pods:
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(claim, group, *pods)
        await asyncio.sleep(63)
        assert await c.group_condition("never", RESERVED) is None
        await c.create(*gang("fits", 2, cpu="4"))
        await asyncio.sleep(3)
        assert set(await c.node_by_pod()) == {"fits-0", "fits-1"}
