"""Gang Jobs under ResourceQuotas: all pods are created, or none, and no Job blocks another."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import JOB, POD, RESOURCE_QUOTA
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import JobPods
from phalanx.controllers.jobs.quota_estimator import QuotaEstimator
from phalanx.controllers.jobs.sync import SyncResult, plan_sync
from tests.builders import in_virtual_time
from tests.controllers.jobs import job_builders as decoded
from tests.controllers.jobs.job_builders import NOW
from tests.controllers.jobs.job_controller_harness import (
    conditions_of,
    garbage_collectors,
    job,
    job_controller,
    running_job_controller,
    workload,
)
from tests.controllers.trial_cluster import TrialCluster, running_parts

EXCEEDED = ("True", "QuotaExceeded")


def quota(**hard: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": "default"}, "spec": {"hard": hard},
    }  # fmt: skip


def gang(name: str, count: int, **spec: Any) -> Object:
    return job(name, gang=True, parallelism=count, completions=count, **spec)


async def pods_of(cluster: TrialCluster, name: str) -> list[Object]:
    return [
        pod
        for pod in await cluster.list_objects(POD)
        if pod["metadata"]["labels"]["job-name"] == name
    ]


async def conditions(cluster: TrialCluster) -> dict[str, dict[str, tuple[str, str]]]:
    jobs = await cluster.list_objects(JOB)
    return {one["metadata"]["name"]: conditions_of(one) for one in jobs}


@in_virtual_time
async def test_gang_over_quota_creates_no_pod_and_says_so_until_the_quota_admits_it() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(quota(pods="3"), gang("train", 4))
        await cluster.wait_until_idle()
        assert await cluster.list_objects(POD) == []
        found = await cluster.get_only(JOB)
        (condition,) = [c for c in found["status"]["conditions"] if c["type"] == "QuotaExceeded"]
        assert condition["message"] == (
            "4 pods are needed at once: exceeded quota: few, requested: pods=4, used: pods=0, "
            "limited: pods=3"
        )
        (event,) = await cluster.events("QuotaExceeded")
        assert (event["type"], event["message"]) == ("Warning", condition["message"])
        await cluster.patch(RESOURCE_QUOTA, "few", {"spec": {"hard": {"pods": "4"}}})
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 4
        assert conditions_of(await cluster.get_only(JOB)) == {
            "QuotaExceeded": ("False", "QuotaAvailable")
        }


@in_virtual_time
async def test_two_gangs_under_a_quota_for_one_run_one_after_the_other() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(quota(pods="4"), gang("a", 4), gang("b", 4))
        for _ in range(2):
            await cluster.wait_until_idle()
            assert len(await cluster.list_objects(POD)) % 4 == 0
            await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        found = await conditions(cluster)
        assert [one["Complete"][0] for one in found.values()] == ["True", "True"]


@in_virtual_time
async def test_gangs_that_each_got_a_part_of_the_quota_do_not_block_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the estimate, pods are refused by the server alone: after a race each has a part."""

    async def admit(self: QuotaEstimator, snapshot: JobSnapshot) -> str:
        return ""

    monkeypatch.setattr(QuotaEstimator, "find_excess", admit)
    # No kubelets: the pods get no node, as those of a gang that is not complete.
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), garbage_collectors):
        await cluster.create(quota(pods="5"), *(gang(name, 4) for name in "abc"))
        finished: set[str] = set()
        for _ in range(60):
            await cluster.wait(30)
            for name in sorted(set("abc") - finished):
                if len(await pods_of(cluster, name)) == 4:
                    finished.add(name)
                    await cluster.delete(JOB, name, "Background")
        assert finished == set("abc")


@in_virtual_time
async def test_partly_created_gang_is_removed_after_a_while_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def admit(self: QuotaEstimator, snapshot: JobSnapshot) -> str:
        return ""

    monkeypatch.setattr(QuotaEstimator, "find_excess", admit)
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), garbage_collectors):
        await cluster.create(quota(pods="3"), gang("train", 4, backoffLimit=0))
        await cluster.wait(2)
        assert len(await cluster.list_objects(POD)) == 3
        assert conditions_of(await cluster.get_only(JOB))["QuotaExceeded"] == EXCEEDED
        await cluster.wait(20)
        assert await cluster.list_objects(POD) == []
        status = (await cluster.get_only(JOB))["status"]
        (condition,) = status["conditions"]
        assert condition["message"].endswith("the pods that were created are removed until all fit")
        assert status.get("failed", 0) == 0
        await cluster.patch(RESOURCE_QUOTA, "few", {"spec": {"hard": {"pods": "4"}}})
        await cluster.wait(60)
        assert len(await cluster.list_objects(POD)) == 4


@in_virtual_time
async def test_gang_of_a_workload_of_the_user_gives_its_part_back_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def admit(self: QuotaEstimator, snapshot: JobSnapshot) -> str:
        return ""

    monkeypatch.setattr(QuotaEstimator, "find_excess", admit)
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), garbage_collectors):
        await cluster.create(quota(pods="3"), workload("mine", 4))
        await cluster.create(job(parallelism=4, completions=4))
        await cluster.wait(2)
        assert len(await cluster.list_objects(POD)) == 3
        await cluster.wait(20)
        assert await cluster.list_objects(POD) == []


@in_virtual_time
async def test_running_members_stay_while_the_quota_refuses_a_replacement() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(gang("train", 3))
        await cluster.wait_until_idle()
        for one in await cluster.list_objects(POD):
            await cluster.client.post(
                POD.url_path("default", one["metadata"]["name"], "binding"),
                {"target": {"kind": "Node", "name": "n"}},
            )
        await cluster.create(quota(pods="2"))
        victim = (await cluster.list_objects(POD))[0]
        await cluster.delete(POD, victim["metadata"]["name"])
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 2
        assert conditions_of(await cluster.get_only(JOB))["QuotaExceeded"] == EXCEEDED


@in_virtual_time
async def test_gang_with_a_smaller_min_count_runs_with_what_the_quota_admits() -> None:
    async with running_job_controller() as cluster:
        elastic = job(parallelism=8, completions=8)
        elastic["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        await cluster.create(quota(pods="5"), elastic)
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 5
        assert conditions_of(await cluster.get_only(JOB))["QuotaExceeded"] == EXCEEDED


@in_virtual_time
async def test_quota_is_charged_by_the_requests_of_the_template() -> None:
    async with running_job_controller() as cluster:
        sized = gang("train", 4)
        container = sized["spec"]["template"]["spec"]["containers"][0]
        container["resources"] = {"requests": {"cpu": "500m"}}
        await cluster.create(quota(**{"requests.cpu": "1500m"}), sized)
        await cluster.wait_until_idle()
        assert await cluster.list_objects(POD) == []
        (condition,) = (await cluster.get_only(JOB))["status"]["conditions"]
        assert "requested: requests.cpu=2, used: requests.cpu=0" in condition["message"]


def refused(first: float, released: float) -> Object:
    return {
        "conditions": [
            {
                "type": "QuotaExceeded",
                "status": "True",
                "reason": "QuotaExceeded",
                "message": "exceeded quota: few",
                "lastTransitionTime": timestamp(NOW + first),
                "lastProbeTime": timestamp(NOW + released),
            }
        ]
    }


@pytest.mark.parametrize(
    ("first", "released", "waits"),
    [
        # Never released: no wait. Then as long again as it has tried, from 10 to 300 seconds.
        (-50, -50, False),
        (-15, -5, True),
        (-60, -45, False),
        (-1000, -200, True),
        (-9000, -700, False),
    ],
)
def test_released_job_waits_as_long_again_as_it_has_tried(
    first: float, released: float, *, waits: bool
) -> None:
    one = decoded.job(refused(first, released), parallelism=2, completions=2)
    plan = plan_sync(JobSnapshot(JobPods(one, ()), NOW, gang_size=2))
    assert (len(plan.pods_to_create), plan.requeue_after is not None) == (0 if waits else 2, waits)


def test_quota_condition_ends_with_the_job() -> None:
    one = decoded.job(refused(-50, -50), backoffLimit=0)
    failed = decoded.pod("a", "Failed", of=one)
    plan = plan_sync(JobSnapshot(JobPods(one, [failed]), NOW, gang_size=1))
    conditions = plan.build_status_update(SyncResult()).status["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {
        "QuotaExceeded": "False",
        "FailureTarget": "True",
    }
