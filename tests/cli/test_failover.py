"""Leaders of the scheduler that fail while they bind gangs on a foreign server.

The requests of the schedulers are limited, so that binding takes seconds and each fault comes in
the middle of it. After each fault another replica must take over and complete the gangs in time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from itertools import cycle, islice
from pathlib import Path

import pytest
import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, POD
from phalanx.api.meta import Key
from phalanx.api.workload_sources import CUSTOM_POD_GROUP, POD_GROUP_LABEL
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from tests.cli.commands import first_line, start_up
from tests.cli.failover import (
    FAULTS,
    BoundMembers,
    ReplicaSet,
    lease_holder,
    wait_for,
)
from tests.cli.test_foreign_servers import FORMS, NO_WORKLOAD_APIS, gang

LOG = logging.getLogger(__name__)

NODES, CPUS, REPLICAS = 1_000, 4, 3
GANGS, SIZE = 8, 8
#: Seconds after a fault in which every gang must be whole or without any node.
TAKEOVER_LIMIT = 20.0
CONFIGURATION = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaseDuration": "10s", "renewDeadline": "7s", "retryPeriod": "2s"},
    "profiles": [{"schedulerName": "phalanx-scheduler"}],
}
RATE = ("--kube-api-qps", "40", "--kube-api-burst", "10")
FORM = FORMS["custom resources"]


async def create_gangs(client: Client, names: list[str]) -> None:
    """Create gangs in which each node takes four members."""
    for name in names:
        group, *pods = gang(FORM, name, SIZE, "1")
        for kind, one in ((CUSTOM_POD_GROUP, group), *((POD, pod) for pod in pods)):
            one["metadata"]["namespace"] = "default"
            await client.create(kind, one)


async def delete_gangs(client: Client, names: list[str]) -> None:
    """Delete gangs and wait until their pods are gone."""
    for name in names:
        for number in range(SIZE):
            await client.delete(POD, Key("default", f"{name}-{number}"))
        await client.delete(CUSTOM_POD_GROUP, Key("default", name))

    async def is_empty() -> bool:
        return not (await client.list(POD)).items

    await wait_for(is_empty)


async def fail_over(client: Client, schedulers: ReplicaSet, fault: str, names: list[str]) -> float:
    """Let the leader fail while it binds gangs; return after how many seconds all are whole."""
    leader = schedulers.find(old := await lease_holder(client))
    assert leader is not None

    async def read_bound() -> BoundMembers:
        return await BoundMembers.read(client, POD_GROUP_LABEL)

    async def is_binding() -> bool:
        return (await read_bound()).by_gang.total() >= SIZE

    async def has_taken_over() -> bool:
        return await lease_holder(client) not in ("", old)

    async def are_whole() -> bool:
        return not (await read_bound()).partial(SIZE)

    async def are_bound() -> bool:
        return (await read_bound()).by_gang.total() == len(names) * SIZE

    await create_gangs(client, names)
    await wait_for(is_binding)
    begin, (break_leader, restore_leader) = time.monotonic(), FAULTS[fault]
    break_leader(leader)
    assert (await read_bound()).by_gang.total() < len(names) * SIZE, "the fault came too late"
    await wait_for(has_taken_over)
    await wait_for(are_whole)
    seconds = time.monotonic() - begin
    # A leader that comes back still believes to lead, and sends the requests that it had prepared.
    restore_leader(leader)
    await schedulers.replace_ended()
    await wait_for(are_bound)
    assert max((await read_bound()).by_node.values()) <= CPUS
    return seconds


async def run_failovers(rounds: int, config: Path, folder: Path) -> list[tuple[str, float]]:
    """Let the leader fail again and again; return each fault and how long it had effects."""
    (policy := folder / "scheduler.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    found: list[tuple[str, float]] = []
    async with AsyncExitStack() as stack:
        client = kubeconfig.create_client(kubeconfig.load([config]))
        stack.push_async_callback(client.close)
        for definition in workload_definitions():
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        schedulers = ReplicaSet(config, ("--config", str(policy), *RATE), folder, stack)
        for _ in range(REPLICAS):
            await schedulers.start()

        async def is_led() -> bool:
            return schedulers.find(await lease_holder(client)) is not None

        for number, fault in enumerate(islice(cycle(FAULTS), rounds)):
            await wait_for(is_led)
            names = [f"gang-{number}-{one}" for one in range(GANGS)]
            found.append((fault, await fail_over(client, schedulers, fault, names)))
            LOG.info("leader %s: all gangs whole after %.1f s", *found[-1])
            await delete_gangs(client, names)
    return found


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(0)
def test_every_gang_is_whole_after_each_failover(rounds: int, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(
        "--data", ":memory:", "--without", "scheduler,controllers", "--nodes", str(NODES),
        "--shape", f"cpu={CPUS}", "--feature-gates", NO_WORKLOAD_APIS, "--kubeconfig", str(config),
        "--log-file", str(tmp_path / "up.log"),
    ) as up:  # fmt: skip
        assert first_line(up).startswith("ready")
        found = asyncio.run(run_failovers(rounds, config, tmp_path))
    assert [one for one in found if one[1] > TAKEOVER_LIMIT] == []
