"""The rights that docs/running-on-a-cluster.md names are enough, and nothing else is tried."""

from __future__ import annotations

import asyncio
import logging
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
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import SchedulerRunner
from phalanx.randomness import SeededRandom
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import FOREIGN_KINDS
from tests.controllers.jobs.job_controller_harness import indexed
from tests.recording_log import RecordingLog

PAGE = Path(__file__).parents[2] / "docs" / "running-on-a-cluster.md"


def manifests(name: str) -> list[Object]:
    """The objects of a code block of the page."""
    (text,) = re.findall(rf"```yaml {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return list(yaml.safe_load_all(text))


async def account_client(c: Cluster, account: str, denials: list[str]) -> Client:
    """A client with exactly the permissions of the page; denials are appended to the list."""
    for one in manifests(f"{account}.yaml"):
        kind = CLUSTER_ROLE if one["kind"] == "ClusterRole" else CLUSTER_ROLE_BINDING
        await c.client.create(kind, one)
    name = f"system:serviceaccount:phalanx:{account}"
    groups = ("system:serviceaccounts", "system:serviceaccounts:phalanx", "system:authenticated")
    return Client(
        DenialReportingTransport(
            InProcessTransport(c.plane.server.handle, UserInfo(name, groups)), denials.append
        )
    )


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_the_permissions_of_the_controllers_suffice_to_run_jobs() -> None:
    async with cluster(without=("controllers", "scheduler"), kinds=FOREIGN_KINDS) as c:
        denials, log = list[str](), RecordingLog()
        client = await account_client(c, "controllers", denials)
        manager = ControllerManager(
            client,
            c.clock,
            SeededRandom(1),
            on_ready=lambda names: None,
            config=ControllerManagerConfig(ControllerSelection()),
            election=ElectionConfig("me", LeaseTimings()),
            log=log,
        )
        task = asyncio.create_task(manager.run())
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
        await stop(task)
        assert (denials, log.messages(logging.WARNING)) == ([], [])


@pytest.mark.parametrize("kinds", [FOREIGN_KINDS, KINDS], ids=["foreign", "ours"])
@in_virtual_time
async def test_the_permissions_of_the_scheduler_suffice_to_place_gangs(
    kinds: tuple[Kind, ...],
) -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4"), without=("scheduler",), kinds=kinds) as c:
        denials, log = list[str](), RecordingLog()
        client = await account_client(c, "scheduler", denials)
        runner = SchedulerRunner(
            client,
            c.clock,
            SeededRandom(1),
            on_ready=lambda names: None,
            election=ElectionConfig("me", LeaseTimings()),
            log=log,
        )
        task = asyncio.create_task(runner.run())
        members = gang("fits", 4, cpu="2") + gang("waits", 4, cpu="2")
        for one in members:
            if kinds is FOREIGN_KINDS and one["kind"] == "Pod":
                one["spec"]["schedulerName"] = "phalanx-scheduler"
        await c.create(*members)
        await c.until_placed(*(f"fits-{n}" for n in range(4)))
        await asyncio.sleep(60)
        await stop(task)
        assert (denials, log.messages(logging.WARNING)) == ([], [])
