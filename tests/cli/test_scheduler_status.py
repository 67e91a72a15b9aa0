"""Whether a scheduler runs: by the readiness of the server, else by its Lease."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import LEASE
from phalanx.api.meta import micro_timestamp
from phalanx.api.wire import UserInfo
from phalanx.cli.scheduler_status import find_scheduler_outage
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

WITHOUT = ("scheduler", "controllers", "nodes")
DEFAULT = ["default-scheduler"]
NONE_RUNS = 'no scheduler is running for the schedulerName "default-scheduler": '


async def create_lease(c: Cluster, name: str, *, age: float, holder: str = "host_1") -> None:
    renewed = micro_timestamp(c.clock.now() - age)
    spec = {"leaseDurationSeconds": 15, "renewTime": renewed, "acquireTime": renewed}
    await c.client.create(LEASE, {
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": spec | ({"holderIdentity": holder} if holder else {}),
    })  # fmt: skip


@in_virtual_time
async def test_a_server_with_a_scheduler_says_that_it_runs() -> None:
    async with cluster(without=("controllers", "nodes")) as c:
        assert await find_scheduler_outage(c.client, DEFAULT, c.clock.now()) == ""
        plane = c.plane
    # The scheduler has ended; the server still answers.
    outage = await find_scheduler_outage(plane.client("user"), DEFAULT, 0.0)
    assert outage == "no scheduler is running"


@pytest.mark.parametrize("name", ["default-scheduler", "kube-scheduler"])
@in_virtual_time
async def test_a_renewed_lease_means_that_a_scheduler_runs(name: str) -> None:
    async with cluster(without=WITHOUT) as c:
        await create_lease(c, name, age=3)
        assert await find_scheduler_outage(c.client, DEFAULT, c.clock.now()) == ""


@pytest.mark.parametrize(
    ("age", "holder", "outage"),
    [
        (100.0, "host_1", "host_1 has not renewed the Lease {} for 100s"),
        (1.0, "", "nothing holds the Lease {}"),
    ],
    ids=["expired", "released"],
)
@in_virtual_time
async def test_a_lease_that_expired_or_was_released_means_that_none_runs(
    age: float, holder: str, outage: str
) -> None:
    async with cluster(without=WITHOUT) as c:
        await create_lease(c, "default-scheduler", age=age, holder=holder)
        text = NONE_RUNS + outage.format("kube-system/default-scheduler")
        assert await find_scheduler_outage(c.client, DEFAULT, c.clock.now()) == text


@in_virtual_time
async def test_without_a_lease_only_well_known_schedulers_are_reported() -> None:
    async with cluster(without=WITHOUT) as c:
        outage = await find_scheduler_outage(c.client, DEFAULT, c.clock.now())
        assert outage == (
            f"{NONE_RUNS}there is no Lease kube-system/default-scheduler or "
            "kube-system/kube-scheduler (a scheduler with --no-leader-elect has none)"
        )
        assert await find_scheduler_outage(c.client, ["another"], c.clock.now()) == ""


@in_virtual_time
async def test_nothing_is_said_to_a_user_that_may_not_read_the_lease() -> None:
    async with cluster(without=WITHOUT) as c:
        await create_lease(c, "default-scheduler", age=100)
        user = UserInfo("someone", ("system:authenticated",))
        client = Client(InProcessTransport(c.plane.server.handle, user))
        assert await find_scheduler_outage(client, DEFAULT, c.clock.now()) == ""


@in_virtual_time
async def test_every_user_learns_that_the_scheduler_of_the_server_does_not_run() -> None:
    async with cluster(without=WITHOUT) as c:
        c.plane.server.health.add_readiness_check("scheduler", lambda: "no scheduler is running")
        user = UserInfo("someone", ("system:authenticated",))
        client = Client(InProcessTransport(c.plane.server.handle, user))
        outage = await find_scheduler_outage(client, DEFAULT, c.clock.now())
        assert outage == "no scheduler is running"
