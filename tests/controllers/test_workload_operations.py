"""Plans of `ensure`, performed against a server."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.errors import AlreadyExists
from phalanx.api.kinds import COMPOSITE_POD_GROUP, NAMESPACE, POD_GROUP, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.scheduling import MANAGED_BY_ANNOTATION, MEMBERS_TO_RUN_ANNOTATION
from phalanx.api.wire import Object, Reply, Request
from phalanx.builder import (
    EnsurePlan,
    Gang,
    GroupInstance,
    ObservedObjects,
    SchedulingConfig,
    WorkloadBuilder,
    WorkloadItem,
    plan_deletion,
)
from phalanx.builder.ensure_plan import CreateObject
from phalanx.client.client import Client
from phalanx.controllers.workload_operations import ensure_objects, perform_operations
from tests.builder.item_trees import EVERYTHING, OWNER
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster

KINDS = (WORKLOAD, COMPOSITE_POD_GROUP, POD_GROUP)


def builder(workers: int = 4) -> WorkloadBuilder:
    def gang(size: int) -> SchedulingConfig:
        return SchedulingConfig(policy=Gang(size))

    leaves = WorkloadItem("driver", user=gang(1)), WorkloadItem("workers", user=gang(workers))
    return WorkloadBuilder(WorkloadItem("root", user=gang(2), children=leaves), EVERYTHING)


async def observe(client: Client) -> ObservedObjects:
    found: list[Object] = []
    for kind in KINDS:
        found += [{**one, "kind": kind.name} for one in (await client.list(kind)).items]
    return ObservedObjects.from_objects(found)


async def ensure(
    client: Client, workers: int = 4, groups: list[GroupInstance] | None = None
) -> EnsurePlan:
    return await ensure_objects(
        client,
        OWNER,
        await observe(client),
        plan=lambda seen: builder(workers).ensure(OWNER, seen, groups, manager="test"),
    )


@in_virtual_time
async def test_tree_is_created_in_order_resized_and_deleted() -> None:
    async with cluster(without=("controllers", "scheduler")) as running:
        client = running.client
        await client.create(NAMESPACE, {"metadata": {"name": "team"}})
        plan = await ensure(client)
        assert plan.is_ready
        assert not plan.operations
        workers = await client.get(POD_GROUP, Key("team", plan.group_name("workers")))
        assert workers["spec"]["parentCompositePodGroupName"] == plan.group_name("root")
        assert workers["metadata"]["annotations"] == {MANAGED_BY_ANNOTATION: "test"}
        assert [one["kind"] for one in workers["metadata"]["ownerReferences"]] == [
            "Training",
            "Workload",
        ]
        assert (await ensure(client)).operations == ()
        half = GroupInstance("workers", members_to_run=lambda name: 3)
        resized = await ensure(client, workers=8, groups=[GroupInstance("driver"), half])
        assert resized.is_ready
        assert len(resized.operations) == 3
        workers = await client.get(POD_GROUP, Key("team", plan.group_name("workers")))
        assert workers["spec"]["schedulingPolicy"] == {"gang": {"minCount": 8}}
        assert workers["metadata"]["annotations"][MEMBERS_TO_RUN_ANNOTATION] == "3"
        (stored,) = (await client.list(WORKLOAD)).items
        (root,) = stored["spec"]["compositePodGroupTemplates"]
        sizes = [one["schedulingPolicy"]["gang"]["minCount"] for one in root["podGroupTemplates"]]
        assert sizes == [1, 8]
        for operation in plan_deletion(OWNER, await observe(client)):
            await perform_operations(client, [operation], "uid-123")
        for kind in (WORKLOAD, COMPOSITE_POD_GROUP):
            assert not (await client.list(kind)).items


@in_virtual_time
async def test_object_of_another_owner_under_the_same_name_is_an_error() -> None:
    async with cluster(without=("controllers", "scheduler")) as running:
        client = running.client
        await client.create(NAMESPACE, {"metadata": {"name": "team"}})
        other = {**OWNER, "metadata": {**OWNER["metadata"], "uid": "uid-456", "name": "other"}}
        taken = builder().build(other, name=builder().build(OWNER)["metadata"]["name"])
        await client.create(WORKLOAD, taken)
        with pytest.raises(AlreadyExists):
            await ensure(client)


class CountingTransport:
    """Counts the requests that wait for an answer at the same time."""

    def __init__(self) -> None:
        self.waiting = self.highest = self.total = 0

    async def send(self, request: Request) -> Reply:
        self.waiting += 1
        self.highest, self.total = max(self.highest, self.waiting), self.total + 1
        await asyncio.sleep(1)
        self.waiting -= 1
        return Reply(201, b"{}")

    async def close(self) -> None:
        """Do nothing."""


@in_virtual_time
async def test_many_groups_are_created_together_but_not_all_at_once() -> None:
    transport = CountingTransport()
    meta = {"namespace": "default"}
    operations = [
        CreateObject(
            POD_GROUP,
            {"metadata": {**meta, "name": f"g{n}"}, "spec": {"preemptionPolicy": "Never"}},
        )
        for n in range(120)
    ]
    await perform_operations(Client(transport), operations, "uid")
    assert (transport.total, transport.highest) == (120, 50)
