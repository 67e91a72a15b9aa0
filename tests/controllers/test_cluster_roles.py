"""The rights that docs/running-on-a-cluster.md names are enough, and nothing else is tried."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    JOB,
    KINDS,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object, UserInfo
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaseTimings
from phalanx.client.transports import DenialReportingTransport, InProcessTransport
from phalanx.controllers import controller_manager as bureau
from phalanx.controllers import scheduler_runner as office
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import SchedulerRunner
from phalanx.randomness import SeededRandom
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import FOREIGN_KINDS
from tests.controllers.jobs.job_controller_harness import indexed

PAGE = Path(__file__).parents[2] / "docs" / "running-on-a-cluster.md"
BOUND_ONE_BY_ONE = "the API server has no GroupBinding"
NOT_OURS = "the API server has no groupbindings.phalanx.dev"


def manifests(name: str) -> list[Object]:
    """The objects of a block of the page."""
    (text,) = re.findall(rf"```yaml {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return list(yaml.safe_load_all(text))


async def allowed(c: Cluster, account: str, said: list[str]) -> Client:
    """A client that may do what the page says, and nothing else; what is forbidden is told."""
    for one in manifests(f"{account}.yaml"):
        kind = CLUSTER_ROLE if one["kind"] == "ClusterRole" else CLUSTER_ROLE_BINDING
        await c.client.create(kind, one)
    name = f"system:serviceaccount:phalanx:{account}"
    groups = ("system:serviceaccounts", "system:serviceaccounts:phalanx", "system:authenticated")
    return Client(
        DenialReportingTransport(
            InProcessTransport(c.plane.server.handle, UserInfo(name, groups)), said.append
        )
    )


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_the_rights_of_the_controllers_are_enough_to_run_jobs() -> None:
    async with cluster(without=("controllers", "scheduler"), kinds=FOREIGN_KINDS) as c:
        said: list[str] = []
        client = await allowed(c, "controllers", said)
        voice = bureau.ControllerManagerCallbacks(said.append, lambda names: None)
        clerks = ControllerManager(
            client,
            c.clock,
            SeededRandom(1),
            voice,
            ControllerManagerConfig(ControllerSelection()),
            ElectionConfig("me", LeaseTimings()),
        )
        task = asyncio.create_task(clerks.run())
        high = {"metadata": {"name": "high"}, "value": 5}
        await c.client.create(PRIORITY_CLASS, high)
        work = indexed(2, gang=True, managedBy="phalanx.dev/job-controller")
        work["spec"]["template"]["spec"]["priorityClassName"] = "high"
        await c.create(work)
        await asyncio.sleep(30)
        key = Key("default", "train")
        for count in (3, 1):
            change = {"spec": {"parallelism": count, "completions": count}}
            await c.client.patch(JOB, key, change)
            await asyncio.sleep(30)
        found = await c.client.get(JOB, key)
        assert found["status"]["active"] == 1
        assert len((await c.client.list(WORKLOAD)).items) == 1
        await c.client.patch(JOB, key, {"spec": {"suspend": True}})
        await asyncio.sleep(30)
        await ended(task)
        assert [text for text in said if not text.startswith(NOT_OURS)] == []


@pytest.mark.parametrize("kinds", [FOREIGN_KINDS, KINDS], ids=["foreign", "ours"])
@in_virtual_time
async def test_the_rights_of_the_scheduler_are_enough_to_place_gangs(
    kinds: tuple[Kind, ...],
) -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4"), without=("scheduler",), kinds=kinds) as c:
        said: list[str] = []
        client = await allowed(c, "scheduler", said)
        voice = office.SchedulerRunnerCallbacks(said.append, lambda names: None)
        clerk = SchedulerRunner(
            client, c.clock, SeededRandom(1), voice, election=ElectionConfig("me", LeaseTimings())
        )
        task = asyncio.create_task(clerk.run())
        members = gang("fits", 4, cpu="2") + gang("waits", 4, cpu="2")
        for one in members:
            if kinds is FOREIGN_KINDS and one["kind"] == "Pod":
                one["spec"]["schedulerName"] = "phalanx-scheduler"
        await c.create(*members)
        await c.until_placed(*(f"fits-{n}" for n in range(4)))
        await asyncio.sleep(60)
        await ended(task)
        assert [text for text in said if not text.startswith(BOUND_ONE_BY_ONE)] == []
