"""The rights that `phalanx install` grants are enough, and nothing else is tried."""

from __future__ import annotations

import asyncio
import logging

import pytest

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.kinds import (
    JOB,
    KINDS,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.wire import UserInfo
from phalanx.api.workload_sources import CUSTOM_POD_GROUP
from phalanx.cli.install import (
    CONTROLLERS,
    SCHEDULER,
    InstallOptions,
    controller_rights,
    scheduler_rights,
)
from phalanx.cli.manifests import find_kind
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaseTimings
from phalanx.client.transports import DenialReportingTransport, InProcessTransport
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER, SchedulerRunner
from phalanx.randomness import SeededRandom
from tests.builders import gang, in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.custom_groups import (
    custom_cluster,
    custom_group,
    get_group,
    labelled_pods,
)
from tests.controllers.foreign_cluster import FOREIGN_KINDS
from tests.controllers.jobs.job_controller_harness import indexed
from tests.recording_log import RecordingLog


async def account_client(
    c: Cluster, account: str, denials: list[str], scheduler: str = FOREIGN_SCHEDULER
) -> Client:
    """A client with exactly the installed permissions; denials are appended to the list."""
    options = InstallOptions(scheduler_names=(scheduler,))
    rights = {SCHEDULER: scheduler_rights, CONTROLLERS: controller_rights}[account]
    for one in rights(options):
        if one["kind"] != "ServiceAccount":
            await c.client.create(find_kind(one["apiVersion"], one["kind"]), one)
    name = f"system:serviceaccount:{options.namespace}:{account}"
    groups = ("system:serviceaccounts", "system:authenticated")
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
        client = await account_client(c, CONTROLLERS, denials)
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
        name = FOREIGN_SCHEDULER if kinds is FOREIGN_KINDS else DEFAULT_SCHEDULER
        client = await account_client(c, SCHEDULER, denials, name)
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


@in_virtual_time
async def test_the_permissions_of_both_suffice_where_groups_are_custom_resources() -> None:
    async with custom_cluster(*workload_definitions()) as c:
        denials, log = list[str](), RecordingLog()
        scheduler = SchedulerRunner(
            await account_client(c, SCHEDULER, denials),
            c.clock,
            SeededRandom(1),
            on_ready=lambda names: None,
            election=ElectionConfig("me", LeaseTimings()),
            log=log,
        )
        manager = ControllerManager(
            await account_client(c, CONTROLLERS, denials),
            c.clock,
            SeededRandom(1),
            on_ready=lambda names: None,
            config=ControllerManagerConfig(ControllerSelection()),
            election=ElectionConfig("me", LeaseTimings()),
            log=log,
        )
        tasks = [asyncio.create_task(one.run()) for one in (scheduler, manager)]
        for name in ("fits", "waits"):
            await c.client.create(CUSTOM_POD_GROUP, custom_group(name, 3))
            await c.create(*labelled_pods(name, 3, cpu="3"))
        await c.until_placed(*(f"fits-{n}" for n in range(3)))
        await asyncio.sleep(30)
        group = await get_group(c, "fits")
        assert group["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
        for task in tasks:
            await stop(task)
        assert (denials, log.messages(logging.WARNING)) == ([], [])
