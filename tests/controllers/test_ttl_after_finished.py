"""Jobs that have ended and are not to be kept, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.ttl_after_finished import TTLAfterFinishedController
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster, lagging_client, simulated_nodes
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

KEY = Key("default", "job")
SAID = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [TTLAfterFinishedController(client, informers, c.clock).run]


def job(name: str = "job", run_seconds: str = "", **spec: object) -> Object:
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}
    meta = {"annotations": {RUN_SECONDS: run_seconds}}
    return {
        "apiVersion": JOB.api_version, "kind": JOB.name,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"metadata": meta, "spec": pod_spec}, **spec},
    }  # fmt: skip


async def finish(c: Cluster, how: str = "Complete", name: str = "job") -> None:
    now = timestamp(c.clock.now())
    said = [{"type": one, "status": "True", "lastTransitionTime": now} for one in (SAID[how], how)]
    ended: Object = {"conditions": said, "startTime": now}
    if how == "Complete":
        ended |= {"completionTime": now, "succeeded": 1}
    await c.client.patch(JOB, Key("default", name), {"status": ended}, subresource="status")


async def leaving(c: Cluster) -> list[str]:
    """The Jobs that are being deleted, and wait for what they own."""
    metas = [found["metadata"] for found in (await c.client.list(JOB)).items]
    assert all(m["finalizers"] == ["foregroundDeletion"] for m in metas if "deletionTimestamp" in m)
    return [meta["name"] for meta in metas if "deletionTimestamp" in meta]


@pytest.mark.parametrize("how", ["Complete", "Failed"])
@in_virtual_time
async def test_a_job_goes_so_many_seconds_after_its_end(how: str) -> None:
    async with bare_cluster(build) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await asyncio.sleep(1000)
        assert await leaving(c) == []
        await finish(c, how)
        await asyncio.sleep(99)
        assert await leaving(c) == []
        await asyncio.sleep(2)
        assert await leaving(c) == ["job"]


@in_virtual_time
async def test_a_job_that_is_to_be_kept_is_kept() -> None:
    async with bare_cluster(build) as c:
        await c.create(job())
        await finish(c)
        await asyncio.sleep(100_000)
        assert await leaving(c) == []


@in_virtual_time
async def test_a_job_without_a_second_to_live_goes_at_once() -> None:
    async with bare_cluster(build) as c:
        await c.create(job(ttlSecondsAfterFinished=0))
        await finish(c)
        await asyncio.sleep(0.1)
        assert await leaving(c) == ["job"]


@pytest.mark.parametrize(("ttl", "goes"), [(None, False), (10_000, False), (20, True)])
@in_virtual_time
async def test_whoever_changes_the_time_afterwards_is_heard(ttl: int | None, goes: bool) -> None:
    async with bare_cluster(build) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await finish(c)
        await asyncio.sleep(50)
        await c.client.patch(JOB, KEY, {"spec": {"ttlSecondsAfterFinished": ttl}})
        await asyncio.sleep(1)
        assert bool(await leaving(c)) == goes
        await asyncio.sleep(100)
        assert bool(await leaving(c)) == goes


@in_virtual_time
async def test_whoever_gives_more_time_at_the_last_moment_is_heard_by_a_late_view() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await finish(c)
        _, late = lagging_client(c, 3.0)
        async with running_controller(c, build, late):
            await asyncio.sleep(99)
            await c.client.patch(JOB, KEY, {"spec": {"ttlSecondsAfterFinished": 10_000}})
            await asyncio.sleep(100)
            assert await leaving(c) == []


@in_virtual_time
async def test_a_namesake_that_came_meanwhile_is_not_meant() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await finish(c)
        _, late = lagging_client(c, 3.0)
        async with running_controller(c, build, late):
            await asyncio.sleep(99)
            await c.client.delete(JOB, KEY, propagation="Background")
            await c.create(job(ttlSecondsAfterFinished=100))
            await asyncio.sleep(500)
            assert await leaving(c) == []


@in_virtual_time
async def test_pods_go_before_their_job() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(job(run_seconds="20", ttlSecondsAfterFinished=10))
        await asyncio.sleep(28)
        assert len(await c.pods()) == 1
        since = c.store.revision
        await asyncio.sleep(10)
        gone = [change.key for change in c.store.changes(since) if change.after is None]
        prefixes = (POD.store_prefix(), JOB.store_prefix())
        assert [key.split("/")[2] for key in gone if key.startswith(prefixes)] == ["pods", "jobs"]


async def a_while(c: Cluster) -> object:
    for number in range(3):
        await c.create(job(f"job-{number}", ttlSecondsAfterFinished=10 * number))
        await finish(c, "Failed" if number else "Complete", f"job-{number}")
    await asyncio.sleep(15)
    return await leaving(c)


def test_whenever_the_controller_ends_another_one_goes_on() -> None:
    assert assert_survives_every_crash(build, a_while) == 2


def test_news_that_come_twice_and_late_change_nothing() -> None:
    assert_survives_bad_watches(build, a_while)


@in_virtual_time
async def test_when_nothing_is_due_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await a_while(c)
            await asyncio.sleep(20)
        await assert_quiet(c, build)
