"""The TTL of finished Jobs in virtual time."""

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
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

KEY = Key("default", "job")
TARGETS = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}


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


async def finish(c: Cluster, condition: str = "Complete", name: str = "job") -> None:
    now = timestamp(c.clock.now())
    types = (TARGETS[condition], condition)
    conditions = [{"type": one, "status": "True", "lastTransitionTime": now} for one in types]
    status: Object = {"conditions": conditions, "startTime": now}
    if condition == "Complete":
        status |= {"completionTime": now, "succeeded": 1}
    await c.client.patch(JOB, Key("default", name), {"status": status}, subresource="status")


async def terminating_jobs(c: Cluster) -> list[str]:
    """Return the Jobs that are being deleted in the foreground."""
    metas = [found["metadata"] for found in (await c.client.list(JOB)).items]
    assert all(m["finalizers"] == ["foregroundDeletion"] for m in metas if "deletionTimestamp" in m)
    return [meta["name"] for meta in metas if "deletionTimestamp" in meta]


@pytest.mark.parametrize("condition", ["Complete", "Failed"])
@in_virtual_time
async def test_finished_job_is_deleted_after_its_ttl(condition: str) -> None:
    async with bare_cluster(build) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await asyncio.sleep(1000)
        assert await terminating_jobs(c) == []
        await finish(c, condition)
        await asyncio.sleep(99)
        assert await terminating_jobs(c) == []
        await asyncio.sleep(2)
        assert await terminating_jobs(c) == ["job"]


@in_virtual_time
async def test_job_without_ttl_is_kept() -> None:
    async with bare_cluster(build) as c:
        await c.create(job())
        await finish(c)
        await asyncio.sleep(100_000)
        assert await terminating_jobs(c) == []


@in_virtual_time
async def test_job_with_ttl_zero_is_deleted_at_once() -> None:
    async with bare_cluster(build) as c:
        await c.create(job(ttlSecondsAfterFinished=0))
        await finish(c)
        await asyncio.sleep(0.1)
        assert await terminating_jobs(c) == ["job"]


@pytest.mark.parametrize(("ttl", "is_deleted"), [(None, False), (10_000, False), (20, True)])
@in_virtual_time
async def test_ttl_that_is_changed_after_the_end_counts(ttl: int | None, is_deleted: bool) -> None:
    async with bare_cluster(build) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await finish(c)
        await asyncio.sleep(50)
        await c.client.patch(JOB, KEY, {"spec": {"ttlSecondsAfterFinished": ttl}})
        await asyncio.sleep(1)
        assert bool(await terminating_jobs(c)) == is_deleted
        await asyncio.sleep(100)
        assert bool(await terminating_jobs(c)) == is_deleted


@in_virtual_time
async def test_ttl_that_is_extended_while_the_cache_is_stale_counts() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await finish(c)
        _, lagging = lagging_client(c, 3.0)
        async with running_controller(c, build, lagging):
            await asyncio.sleep(99)
            await c.client.patch(JOB, KEY, {"spec": {"ttlSecondsAfterFinished": 10_000}})
            await asyncio.sleep(100)
            assert await terminating_jobs(c) == []


@in_virtual_time
async def test_new_job_of_the_same_name_is_not_deleted() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(job(ttlSecondsAfterFinished=100))
        await finish(c)
        _, lagging = lagging_client(c, 3.0)
        async with running_controller(c, build, lagging):
            await asyncio.sleep(99)
            await c.client.delete(JOB, KEY, propagation="Background")
            await c.create(job(ttlSecondsAfterFinished=100))
            await asyncio.sleep(500)
            assert await terminating_jobs(c) == []


@in_virtual_time
async def test_pods_are_removed_before_their_job() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(job(run_seconds="20", ttlSecondsAfterFinished=10))
        await asyncio.sleep(28)
        assert len(await c.pods()) == 1
        since = c.store.revision
        await asyncio.sleep(10)
        removed = [change.key for change in c.store.changes(since) if change.after is None]
        prefixes = (POD.store_prefix(), JOB.store_prefix())
        assert [key.split("/")[2] for key in removed if key.startswith(prefixes)] == [
            "pods",
            "jobs",
        ]


async def expire_jobs(c: Cluster) -> object:
    for number in range(3):
        await c.create(job(f"job-{number}", ttlSecondsAfterFinished=10 * number))
        await finish(c, "Failed" if number else "Complete", f"job-{number}")
    await asyncio.sleep(15)
    return await terminating_jobs(c)


def test_crash_after_any_write_leads_to_the_same_end() -> None:
    assert assert_survives_every_crash(build, expire_jobs) == 2


def test_repeated_late_and_missed_events_lead_to_the_same_end() -> None:
    assert_survives_bad_watches(build, expire_jobs)


@in_virtual_time
async def test_nothing_is_written_when_no_job_is_expired() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await expire_jobs(c)
            await asyncio.sleep(20)
        await assert_quiet(c, build)
