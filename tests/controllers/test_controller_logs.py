"""The log lines of the garbage collectors, the namespace controller and ReplicaSets."""

from __future__ import annotations

import asyncio
import logging

import pytest

from phalanx.api.kinds import NAMESPACE, NODE, REPLICA_SET
from phalanx.api.meta import Key
from tests.builders import in_virtual_time, node, pod
from tests.controllers.cluster import cluster
from tests.controllers.owned_objects import create_config, delete_object, owner_reference
from tests.controllers.replica_scenarios import workload_object
from tests.recording_log import captured_lines


@in_virtual_time
async def test_garbage_collector_logs_every_action_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    async with cluster() as c:
        first, other = await create_config(c, "first"), await create_config(c, "other")
        await create_config(c, "child", owner_reference(first, blocks=True))
        await create_config(c, "shared", owner_reference(first), owner_reference(other))
        await delete_object(c, "first", "Foreground")
        await asyncio.sleep(2)
    lines = captured_lines(caplog, "garbage-collector")
    assert {(line.level, line.message, line.fields["key"]) for line in lines} == {
        ("DEBUG", "Dependent deleted", "default/child"),
        ("DEBUG", "Owner references removed", "default/shared"),
        ("DEBUG", "Finalizer removed", "default/first"),
    }
    assert {line.fields["kind"] for line in lines} == {"ConfigMap"}


@in_virtual_time
async def test_namespace_controller_logs_a_finalized_namespace_at_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with cluster() as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(2)
    (line,) = captured_lines(caplog, "namespace-controller")
    assert (line.level, line.message) == ("INFO", "Namespace finalized")
    assert line.fields == {"kind": "Namespace", "key": "x"}


@in_virtual_time
async def test_pod_garbage_collector_logs_a_lost_node_at_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.add_node(node("a"))
        await c.create(pod("p", on="a"))
        await c.delete(NODE, "a")
        await asyncio.sleep(60)
    (line,) = captured_lines(caplog, "pod-garbage-collector")
    assert (line.level, line.message) == ("INFO", "Node is gone, deleting its pods")
    assert line.fields == {"kind": "Node", "key": "a", "pods": "1"}


@in_virtual_time
async def test_pods_of_a_replica_set_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    async with cluster() as c:
        await c.create(workload_object("ReplicaSet", replicas=1))
        await asyncio.sleep(2)
        await c.client.patch(REPLICA_SET, Key("default", "web"), {"spec": {"replicas": 0}})
        await asyncio.sleep(2)
    lines = [
        line
        for line in captured_lines(caplog, "controllers")
        if line.fields.get("key") == "default/web"
    ]
    found = [line.fields["action"] for line in lines if line.fields["kind"] == "ReplicaSet"]
    assert found == ["SuccessfulCreate", "SuccessfulDelete"]
    assert {line.level for line in lines} == {"DEBUG"}
