"""Process nodes without processes; `tests/cli/test_process_nodes.py` runs real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.api.core import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE
from phalanx.api.errors import NotFound
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

HERE = Key("default", "a")


@asynccontextmanager
async def process_nodes(c: Cluster) -> AsyncIterator[None]:
    """Run a process node `n0` while the context lasts."""
    nodes = [replace(node, node_type=PROCESS_NODE_TYPE) for node in simulated_nodes(1, cpu="8")]
    config = ComponentConfig(nodes, ("scheduler", "controllers"), host=ProcessHost(Path("nowhere")))
    plane = ControlPlane(c.store, c.clock, SeededRandom(2), config)
    async with plane.running():
        await asyncio.sleep(1)
        yield


async def status(c: Cluster) -> Object:
    found: Object = (await c.client.get(POD, HERE))["status"]
    return found


@in_virtual_time
async def test_a_process_node_is_labelled_as_such() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c, process_nodes(c):
        node = await c.client.get(NODE, Key("", "n0"))
        assert node["metadata"]["annotations"][NODE_TYPE_ANNOTATION] == PROCESS_NODE_TYPE


@in_virtual_time
async def test_a_service_account_without_permission_runs_nothing() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c, process_nodes(c):
        await c.create(pod("a", on="n0"))
        await asyncio.sleep(1)
        found = await status(c)
        assert (found["phase"], found["reason"]) == ("Failed", "Refused")
        assert "default/default may not run processes" in found["message"]
        await c.delete(POD, "a")
        await asyncio.sleep(1)
        with pytest.raises(NotFound):
            await status(c)


@in_virtual_time
async def test_a_running_pod_without_processes_fails() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        await c.create(pod("a", on="n0"))
        running = {"status": {"phase": "Running"}}
        await c.client.patch(POD, HERE, running, subresource="status")
        async with process_nodes(c):
            assert (await status(c))["reason"] == "NodeRestarted"


@in_virtual_time
async def test_pods_of_other_nodes_are_ignored() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c, process_nodes(c):
        await c.create(pod("a", on="elsewhere"))
        await asyncio.sleep(60)
        assert (await status(c))["phase"] == "Pending"
