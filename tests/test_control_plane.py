"""The control plane with features switched off, and on again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates, resolve_gates
from phalanx.api.kinds import EVENT, JOB, POD, POD_GROUP, STATEFUL_SET, STORAGE_CLASS, WORKLOAD
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
async def running_plane(
    gates: FeatureGates, store: MemoryStore | None = None, without: tuple[str, ...] = (), *,
    basic_workloads: bool = True,
) -> AsyncIterator[Client]:  # fmt: skip
    """A client of a control plane with one node."""
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    config = ComponentConfig([NODE], without, gates, basic_workloads=basic_workloads)
    plane = ControlPlane(store or MemoryStore(), clock, SeededRandom(1), config)
    async with plane.running():
        yield plane.client("user")


async def wait_until(there: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await there():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come about in time")


async def placed_pods(client: Client) -> list[str]:
    pods = (await client.list(POD, Pod)).items
    return sorted(pod.metadata.name for pod in pods if pod.spec.node_name)


async def wait_until_placed(client: Client, *pods: str) -> None:
    async def are_placed() -> bool:
        return await placed_pods(client) == list(pods)

    await wait_until(are_placed)


@in_virtual_time
async def test_members_of_a_gang_are_placed_one_by_one_without_gang_scheduling() -> None:
    async with running_plane(resolve_gates({"GangScheduling": False})) as client:
        group, first, second = gang("g", 2, minimum=3)
        await client.create(POD_GROUP, group)
        await client.create(POD, first)
        await wait_until_placed(client, "g-0")
        await client.create(POD, second)
        await wait_until_placed(client, "g-0", "g-1")
        group = await client.get(POD_GROUP, GROUP)
        assert not group.get("status", {}).get("conditions")


@in_virtual_time
async def test_pods_are_placed_one_by_one_while_pod_groups_are_off() -> None:
    store = MemoryStore()
    async with running_plane(DEFAULT_GATES, store) as client:
        group, *members = gang("g", 2, minimum=3)
        await client.create(POD_GROUP, group)
        for member in members:
            await client.create(POD, member)
        await asyncio.sleep(10)
        assert await placed_pods(client) == []
    async with running_plane(resolve_gates({"GenericWorkload": False}), store) as client:
        await wait_until_placed(client, "g-0", "g-1")


@in_virtual_time
async def test_a_deleted_group_is_removed_when_pod_groups_are_on_again() -> None:
    store = MemoryStore()
    async with running_plane(DEFAULT_GATES, store, without=("controllers",)) as client:
        await client.create(POD_GROUP, pod_group("g", 2))
        await client.delete(POD_GROUP, GROUP)
        assert (await client.get(POD_GROUP, GROUP))["metadata"]["deletionTimestamp"]
    async with running_plane(resolve_gates({"GenericWorkload": False}), store):
        await asyncio.sleep(10)
    async with running_plane(DEFAULT_GATES, store) as client:

        async def is_gone() -> bool:
            try:
                await client.get(POD_GROUP, GROUP)
            except NotFound:
                return True
            return False

        await wait_until(is_gone)


@in_virtual_time
async def test_dependents_of_a_kind_that_is_off_are_not_garbage() -> None:
    store = MemoryStore()
    async with running_plane(DEFAULT_GATES, store) as client:
        made = await client.create(POD_GROUP, pod_group("g", 2))
        (_, owned) = gang("g", 1)
        owned["metadata"]["ownerReferences"] = [{
            "apiVersion": POD_GROUP.api_version, "kind": "PodGroup", "name": "g",
            "uid": made["metadata"]["uid"],
        }]  # fmt: skip
        await client.create(POD, owned)
    async with running_plane(resolve_gates({"GenericWorkload": False}), store) as client:
        await wait_until_placed(client, "g-0")
        await asyncio.sleep(60)
        assert await placed_pods(client) == ["g-0"]


@pytest.mark.parametrize(("wanted", "names"), [(True, ["gang", "plain"]), (False, ["gang"])])
@in_virtual_time
async def test_basic_workloads_decides_whether_plain_jobs_get_workloads(
    wanted: bool, names: list[str]
) -> None:
    async with running_plane(DEFAULT_GATES, basic_workloads=wanted) as client:

        async def both_run() -> bool:
            return len(await placed_pods(client)) == 2

        await client.create(JOB, job("plain"))
        await client.create(JOB, job("gang", gang=True))
        await wait_until(both_run)
        made = (await client.list(WORKLOAD)).items
        assert sorted(one["spec"]["controllerRef"]["name"] for one in made) == names


@in_virtual_time
async def test_stateful_set_runs_on_simulated_nodes_with_the_class_for_its_claims() -> None:
    async with running_plane(DEFAULT_GATES) as client:
        labels = {"app": "web"}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "web"}]},
        }
        spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
        meta = {"name": "web", "namespace": "default"}
        await client.create(STATEFUL_SET, {"metadata": meta, "spec": spec})
        await wait_until_placed(client, "web-0", "web-1", "web-2")

        async def are_ready() -> bool:
            found = await client.get(STATEFUL_SET, Key("default", "web"))
            return bool(found["status"].get("readyReplicas") == 3)

        await wait_until(are_ready)
        (storage_class,) = (await client.list(STORAGE_CLASS)).items
        assert storage_class["metadata"]["name"] == "simulated"


@in_virtual_time
@pytest.mark.parametrize("is_full", [True, False])
async def test_events_and_managed_fields_can_be_left_out(is_full: bool) -> None:
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    plane = ControlPlane(
        MemoryStore(),
        clock,
        SeededRandom(1),
        config=ComponentConfig([NODE]),
        keep_history=is_full,
    )
    async with plane.running():
        client = plane.client("user")
        await client.create(JOB, job("a"))
        await asyncio.sleep(10)
        (pod,) = (await client.list(POD)).items
        assert pod["status"]["phase"] == "Running"
        assert ("managedFields" in pod["metadata"]) is is_full
        assert bool((await client.list(EVENT)).items) is is_full
