"""Whether a scheduler runs: by the readiness of the server, else by its Lease."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import GROUP_BINDING, KINDS, LEASE
from phalanx.api.meta import micro_timestamp
from phalanx.api.wire import UserInfo
from phalanx.cli.scheduler_status import find_other_schedulers, find_scheduler_outage
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

WITHOUT = ("scheduler", "controllers", "nodes")
DEFAULT = ["default-scheduler"]
NONE_RUNS = 'no scheduler is running for the schedulerName "default-scheduler": '


async def create_lease(
    c: Cluster, name: str, *, age: float, holder: str = "host_1", serves: str = ""
) -> None:
    renewed = micro_timestamp(c.clock.now() - age)
    spec = {"leaseDurationSeconds": 15, "renewTime": renewed, "acquireTime": renewed}
    await c.client.create(LEASE, {
        "metadata": {
            "name": name, "namespace": "kube-system",
            "annotations": {"phalanx.dev/scheduler-names": serves} if serves else {},
        },
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


@in_virtual_time
async def test_names_that_the_scheduler_of_the_server_does_not_serve_are_found() -> None:
    async with cluster(without=("controllers", "nodes")) as c:
        found = await find_other_schedulers(c.client, [*DEFAULT, "volcano"], c.clock.now())
    assert list(found) == ["volcano"]
    assert found["volcano"].message == (
        'schedulerName is "volcano", and Phalanx serves "default-scheduler" here'
    )
    first, second = found["volcano"].cures
    assert first.startswith("set schedulerName: default-scheduler in the pod template")
    assert second.startswith("run phalanx scheduler --scheduler-name volcano")


@in_virtual_time
async def test_profiles_of_the_server_are_served() -> None:
    profiles = Profiles(dict.fromkeys(("a", "b"), DEFAULT_POLICY))
    async with cluster(without=("controllers", "nodes"), profiles=profiles) as c:
        found = await find_other_schedulers(c.client, ["a", "b", *DEFAULT], c.clock.now())
        assert await find_scheduler_outage(c.client, ["a"], c.clock.now()) == ""
    assert list(found) == DEFAULT
    assert found["default-scheduler"].message.endswith('Phalanx serves "a" and "b" here')


@in_virtual_time
async def test_scheduler_that_holds_the_lease_of_its_name_serves_it() -> None:
    async with cluster(without=("controllers", "nodes")) as c:
        await create_lease(c, "mine", age=3)
        await create_lease(c, "gone", age=100)
        found = await find_other_schedulers(c.client, ["mine", "gone"], c.clock.now())
    assert list(found) == ["gone"]


@in_virtual_time
async def test_holder_of_a_lease_serves_the_profiles_that_it_names() -> None:
    async with cluster(without=WITHOUT) as c:
        await create_lease(c, "my-lock", age=3, serves="default-scheduler,batch")
        await create_lease(c, "old-lock", age=100, serves="gone")
        names = [*DEFAULT, "batch", "gone"]
        found = await find_other_schedulers(c.client, names, c.clock.now())
        assert await find_scheduler_outage(c.client, [*DEFAULT, "batch"], c.clock.now()) == ""
        outage = await find_scheduler_outage(c.client, ["gone"], c.clock.now())
    assert list(found) == ["gone"]
    assert found["gone"].served == ("default-scheduler", "batch")
    assert "has not renewed the Lease kube-system/old-lock" in outage


@in_virtual_time
async def test_default_scheduler_of_a_foreign_server_is_another_scheduler() -> None:
    kinds = [kind for kind in KINDS if kind is not GROUP_BINDING]
    async with cluster(without=WITHOUT, kinds=kinds) as c:
        await create_lease(c, "kube-scheduler", age=3)
        names = [*DEFAULT, "phalanx-scheduler"]
        found = await find_other_schedulers(c.client, names, c.clock.now())
        assert [(one.name, one.served) for one in found.values()] == [
            ("default-scheduler", ("phalanx-scheduler",))
        ]
        # A second scheduler of that name would place pods that kube-scheduler places, too.
        assert len(found["default-scheduler"].cures) == 1
        user = UserInfo("someone", ("system:authenticated",))
        client = Client(InProcessTransport(c.plane.server.handle, user))
        assert await find_other_schedulers(client, names, c.clock.now()) == {}
