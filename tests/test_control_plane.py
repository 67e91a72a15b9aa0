"""The whole control plane with features switched off, and on again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates, resolve_gates
from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.api.meta import Key
from phalanx.client.client import Client
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.randomness import SeededRandom
from phalanx.store.memory import MemoryStore
from tests.builders import gang, in_virtual_time, pod_group
from tests.controllers.jobs.job_controller_harness import job

EPOCH = 1_800_000_000.0
NODE = SimulatedNode("n", {"cpu": "4", "memory": "8Gi", "pods": "110"})
GROUP = Key("default", "g")


@asynccontextmanager
async def running(
    gates: FeatureGates, store: MemoryStore | None = None, without: tuple[str, ...] = (), *,
    basic_workloads: bool = True,
) -> AsyncIterator[Client]:  # fmt: skip
    """A user of a control plane with one node."""
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    staff = ComponentConfig([NODE], without, gates, basic_workloads=basic_workloads)
    plane = ControlPlane(store or MemoryStore(), clock, SeededRandom(1), staff)
    async with plane.running():
        yield plane.client("user")


async def until(there: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await there():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come about in time")


async def placed(client: Client) -> list[str]:
    pods = (await client.list(POD, Pod)).items
    return sorted(pod.metadata.name for pod in pods if pod.spec.node_name)


async def wait_for(client: Client, *pods: str) -> None:
    async def are_placed() -> bool:
        return await placed(client) == list(pods)

    await until(are_placed)


@in_virtual_time
async def test_members_of_a_gang_are_placed_one_by_one_without_gang_scheduling() -> None:
    async with running(resolve_gates({"GangScheduling": False})) as client:
        group, first, second = gang("g", 2, minimum=3)
        await client.create(POD_GROUP, group)
        await client.create(POD, first)
        await wait_for(client, "g-0")
        await client.create(POD, second)
        await wait_for(client, "g-0", "g-1")
        said = await client.get(POD_GROUP, GROUP)
        assert not said.get("status", {}).get("conditions")


@in_virtual_time
async def test_pods_are_placed_one_by_one_while_there_are_no_groups() -> None:
    store = MemoryStore()
    async with running(DEFAULT_GATES, store) as client:
        group, *members = gang("g", 2, minimum=3)
        await client.create(POD_GROUP, group)
        for member in members:
            await client.create(POD, member)
        await asyncio.sleep(10)
        assert await placed(client) == []
    async with running(resolve_gates({"GenericWorkload": False}), store) as client:
        await wait_for(client, "g-0", "g-1")


@in_virtual_time
async def test_a_group_that_was_to_go_goes_when_groups_are_back() -> None:
    store = MemoryStore()
    async with running(DEFAULT_GATES, store, without=("controllers",)) as client:
        await client.create(POD_GROUP, pod_group("g", 2))
        await client.delete(POD_GROUP, GROUP)
        assert (await client.get(POD_GROUP, GROUP))["metadata"]["deletionTimestamp"]
    async with running(resolve_gates({"GenericWorkload": False}), store):
        await asyncio.sleep(10)
    async with running(DEFAULT_GATES, store) as client:

        async def is_gone() -> bool:
            try:
                await client.get(POD_GROUP, GROUP)
            except NotFound:
                return True
            return False

        await until(is_gone)


@in_virtual_time
async def test_what_belongs_to_a_kind_that_is_switched_off_is_not_garbage() -> None:
    store = MemoryStore()
    async with running(DEFAULT_GATES, store) as client:
        made = await client.create(POD_GROUP, pod_group("g", 2))
        (_, owned) = gang("g", 1)
        owned["metadata"]["ownerReferences"] = [{
            "apiVersion": POD_GROUP.api_version, "kind": "PodGroup", "name": "g",
            "uid": made["metadata"]["uid"],
        }]  # fmt: skip
        await client.create(POD, owned)
    async with running(resolve_gates({"GenericWorkload": False}), store) as client:
        await wait_for(client, "g-0")
        await asyncio.sleep(60)
        assert await placed(client) == ["g-0"]


@pytest.mark.parametrize(("wanted", "names"), [(True, ["gang", "plain"]), (False, ["gang"])])
@in_virtual_time
async def test_jobs_that_are_no_gangs_get_workloads_unless_that_is_not_wanted(
    wanted: bool, names: list[str]
) -> None:
    async with running(DEFAULT_GATES, basic_workloads=wanted) as client:

        async def both_run() -> bool:
            return len(await placed(client)) == 2

        await client.create(JOB, job("plain"))
        await client.create(JOB, job("gang", gang=True))
        await until(both_run)
        made = (await client.list(WORKLOAD)).items
        assert sorted(one["spec"]["controllerRef"]["name"] for one in made) == names
