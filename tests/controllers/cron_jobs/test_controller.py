"""The CronJob controller in virtual time: start times, concurrency, history and events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.kinds import CRON_JOB, JOB, POD, POD_GROUP, RESOURCE_QUOTA, WORKLOAD
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.cron_jobs.controller import CronJobController
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time
from tests.controllers.cluster import EPOCH, Cluster, cluster, lagging_client, simulated_nodes
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

KEY = Key("default", "tick")
MINUTE = int(EPOCH // 60)


def with_recorder(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(client, c.clock, SeededRandom(4), component="cronjob-controller")
    return [recorder.run, CronJobController(client, informers, c.clock, record=recorder.record).run]


def without_recorder(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """Build the controller without an event recorder."""
    return [CronJobController(client, informers, c.clock).run]


def cron_job(schedule: str = "* * * * *", template: Object | None = None, **spec: object) -> Object:
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}
    job: Object = {"spec": {"template": {"spec": pod_spec}}, **(template or {})}
    return {
        "apiVersion": CRON_JOB.api_version,
        "kind": CRON_JOB.name,
        "metadata": {"name": "tick", "namespace": "default"},
        "spec": {"schedule": schedule, "jobTemplate": job, **spec},
    }


async def jobs(c: Cluster) -> dict[str, Object]:
    found = (await c.client.list(JOB)).items
    return {job["metadata"]["name"]: job for job in found}


async def starts(c: Cluster) -> list[int]:
    """Return the start times of the existing Jobs, in minutes after the epoch."""
    names = [name for name in await jobs(c) if name.startswith("tick-")]
    return sorted(int(name.removeprefix("tick-")) - MINUTE for name in names)


async def status(c: Cluster) -> Object:
    found: Object = (await c.client.get(CRON_JOB, KEY)).get("status", {})
    return found


async def active(c: Cluster) -> list[int]:
    """Return the start times of the Jobs in `status.active`, in minutes after the epoch."""
    found = (await status(c)).get("active", [])
    return [int(one["name"].removeprefix("tick-")) - MINUTE for one in found]


async def finish(
    c: Cluster, minute: int, condition: str = "Complete", *, duration: float = 1.0
) -> None:
    """Finish a Job as the Job controller would."""
    target = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[condition]
    now = timestamp(c.clock.now())
    conditions = [
        {"type": one, "status": "True", "lastTransitionTime": now} for one in (target, condition)
    ]
    status: Object = {
        "conditions": conditions,
        "startTime": timestamp(c.clock.now() - duration),
    }
    if condition == "Complete":
        status |= {"completionTime": now, "succeeded": 1}
    key = Key("default", f"tick-{MINUTE + minute}")
    await c.client.patch(JOB, key, {"status": status}, subresource="status")


async def change(c: Cluster, **spec: object) -> None:
    await c.client.patch(CRON_JOB, KEY, {"spec": spec})


async def event_messages(c: Cluster, reason: str) -> list[str]:
    return [message for _, message in await c.events(reason)]


# ---- start times ---------------------------------------------------------------------------------


@in_virtual_time
async def test_job_is_created_at_each_time_of_the_schedule() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("*/2 * * * *"))
        await asyncio.sleep(119)
        assert await starts(c) == []
        await asyncio.sleep(1.1)
        assert await starts(c) == [2]
        await asyncio.sleep(240)
        assert await starts(c) == [2, 4, 6]
        assert (await status(c))["lastScheduleTime"] == timestamp(EPOCH + 360)
        created = [f"Created job tick-{MINUTE + minute}" for minute in (2, 4, 6)]
        assert await event_messages(c, "SuccessfulCreate") == created


@in_virtual_time
async def test_job_has_the_fields_of_the_template_and_is_controlled_by_the_cron_job() -> None:
    async with bare_cluster(with_recorder) as c:
        meta = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
        await c.create(cron_job("@hourly", {"metadata": meta}))
        await asyncio.sleep(3601)
        (job,) = (await jobs(c)).values()
        owner = (await c.client.get(CRON_JOB, KEY))["metadata"]["uid"]
        found = job["metadata"]
        assert found["name"] == f"tick-{MINUTE + 60}"
        assert found["labels"]["a"] == "b"
        assert found["annotations"] == {
            "c": "d",
            "batch.kubernetes.io/cronjob-scheduled-timestamp": "2027-01-15T09:00:00Z",
        }
        assert found["ownerReferences"] == [
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "name": "tick",
                "uid": owner,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        reference = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": "default",
            "name": found["name"],
            "uid": found["uid"],
            "resourceVersion": found["resourceVersion"],
        }
        assert (await status(c))["active"] == [reference]


@in_virtual_time
async def test_schedule_is_in_the_time_zone_of_the_cron_job() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("30 14 * * *", timeZone="Asia/Kolkata"))
        await asyncio.sleep(3601)
        (job,) = (await jobs(c)).values()
        annotation = "batch.kubernetes.io/cronjob-scheduled-timestamp"
        assert job["metadata"]["annotations"][annotation] == "2027-01-15T14:30:00+05:30"


@in_virtual_time
async def test_suspended_cron_job_creates_no_job_and_resuming_creates_the_latest_missed_one() -> (
    None
):
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("*/10 * * * *", suspend=True))
        await asyncio.sleep(3500)
        assert await starts(c) == []
        await change(c, suspend=False)
        await asyncio.sleep(1)
        assert await starts(c) == [50]


@in_virtual_time
async def test_changed_schedule_takes_effect_at_once() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("0 0 1 1 *"))
        await asyncio.sleep(100)
        await change(c, schedule="*/5 * * * *")
        await asyncio.sleep(210)
        assert await starts(c) == [5]


@in_virtual_time
async def test_start_time_beyond_the_deadline_creates_no_job() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("0 * * * *", suspend=True, startingDeadlineSeconds=60))
        await asyncio.sleep(3700)
        await change(c, suspend=False)
        await asyncio.sleep(10)
        assert await starts(c) == []
        missed = "Missed scheduled time to start a job: Fri, 15 Jan 2027 09:00:00 +0000"
        assert await event_messages(c, "MissSchedule") == [missed]
        await asyncio.sleep(3600)
        assert await starts(c) == [120]


@pytest.mark.parametrize(("missed", "is_over_limit"), [(100, False), (101, True)])
@in_virtual_time
async def test_too_many_missed_start_times_are_recorded_and_the_latest_is_started(
    missed: int, is_over_limit: bool
) -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("* * * * *", suspend=True))
        await asyncio.sleep(60 * missed + 5)
        await change(c, suspend=False)
        await asyncio.sleep(1)
        assert await starts(c) == [missed]
        assert len(await event_messages(c, "TooManyMissedTimes")) == is_over_limit


@in_virtual_time
async def test_schedule_that_never_occurs_is_recorded_once() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("59 23 31 2 *"))
        await asyncio.sleep(1)
        await c.client.patch(CRON_JOB, KEY, {"metadata": {"labels": {"a": "b"}}})
        # Less than an hour: the Event expires then.
        await asyncio.sleep(3000)
        why = "time difference between two schedules is less than 1 second"
        assert await event_messages(c, "InvalidSchedule") == [
            f"invalid schedule: 59 23 31 2 * : {why}"
        ]


@in_virtual_time
async def test_unknown_time_zone_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("phalanx.api.validation.job._known_time_zones", frozenset)
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job(timeZone="Nowhere/Land"))
        await asyncio.sleep(300)
        assert await starts(c) == []
        expected = 'invalid timeZone: "Nowhere/Land": unknown time zone Nowhere/Land'
        assert await event_messages(c, "UnknownTimeZone") == [expected]


@in_virtual_time
async def test_interval_schedule_counts_from_the_last_start() -> None:
    async with bare_cluster(with_recorder) as c:
        await asyncio.sleep(7)
        await c.create(cron_job("@every 90s"))
        await asyncio.sleep(280)
        assert await starts(c) == [1, 3, 4]
        assert (await status(c))["lastScheduleTime"] == timestamp(EPOCH + 7 + 270)


@in_virtual_time
async def test_absurd_last_schedule_time_is_tolerated() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job())
        for time in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"):
            change = {"status": {"lastScheduleTime": time}}
            await c.client.patch(CRON_JOB, KEY, change, subresource="status")
            await asyncio.sleep(85)
        assert await starts(c) == [1, 2]


# ---- concurrency ---------------------------------------------------------------------------------


@in_virtual_time
async def test_policy_allow_runs_jobs_concurrently() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job())
        await asyncio.sleep(181)
        assert (await starts(c), await active(c)) == ([1, 2, 3], [1, 2, 3])


@in_virtual_time
async def test_policy_forbid_waits_until_the_running_job_finishes() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job(concurrencyPolicy="Forbid"))
        await asyncio.sleep(200)
        assert await starts(c) == [1]
        (message,) = set(await event_messages(c, "JobAlreadyActive"))
        assert message.startswith("Not starting job because prior execution is running")
        await finish(c, 1)
        await asyncio.sleep(1)
        assert await starts(c) == [1, 3]


@in_virtual_time
async def test_policy_replace_deletes_the_running_job_with_its_pods() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(cron_job(concurrencyPolicy="Replace"))
        await asyncio.sleep(90)
        (first,) = await c.pods()
        await asyncio.sleep(60)
        assert (await starts(c), await active(c)) == ([2], [2])
        (second,) = await c.pods()
        assert first != second
        assert await event_messages(c, "SuccessfulDelete") == [f"Deleted job tick-{MINUTE + 1}"]
        assert await event_messages(c, "MissingJob") == []


# ---- history -------------------------------------------------------------------------------------


@in_virtual_time
async def test_finished_jobs_are_recorded_and_the_oldest_deleted() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=1))
        for minute in range(1, 7):
            await asyncio.sleep(60.5 if minute == 1 else 60)
            await finish(c, minute, "Failed" if minute % 2 else "Complete")
        await change(c, suspend=True)
        await asyncio.sleep(5)
        assert (await starts(c), await active(c)) == ([4, 5, 6], [])
        assert (await status(c))["lastSuccessfulTime"] == timestamp(EPOCH + 360)
        assert len(await event_messages(c, "SawCompletedJob")) == 6
        message = f"Saw completed job: tick-{MINUTE + 6}, condition: Complete"
        assert message in await event_messages(c, "SawCompletedJob")
        messages = [f"Deleted job tick-{MINUTE + minute}" for minute in (1, 2, 3)]
        assert await event_messages(c, "SuccessfulDelete") == messages


@in_virtual_time
async def test_history_limit_zero_keeps_no_job() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job(successfulJobsHistoryLimit=0))
        await asyncio.sleep(61)
        await finish(c, 1)
        await asyncio.sleep(1)
        assert (await starts(c), await active(c)) == ([], [])


@in_virtual_time
async def test_deleted_job_is_recorded_as_missing_and_not_created_again() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("0 * * * *"))
        await asyncio.sleep(3601)
        await c.client.delete(JOB, Key("default", f"tick-{MINUTE + 60}"), propagation="Background")
        await asyncio.sleep(5)
        assert (await starts(c), await active(c)) == ([], [])
        assert await event_messages(c, "MissingJob") == [
            f"Active job went missing: tick-{MINUTE + 60}"
        ]


@in_virtual_time
async def test_job_that_a_user_creates_for_the_cron_job_is_recorded_once_and_not_changed() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job("0 0 1 1 *"))
        found = await c.client.get(CRON_JOB, KEY)
        owner = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": "tick",
            "controller": True,
            "uid": found["metadata"]["uid"],
        }
        meta = {"name": "manual", "namespace": "default", "ownerReferences": [owner]}
        spec = found["spec"]["jobTemplate"]["spec"]
        await c.client.create(JOB, {"metadata": meta, "spec": spec})
        await asyncio.sleep(1300)
        assert await active(c) == []
        text = "Saw a job that the controller did not create or forgot: manual"
        assert await event_messages(c, "UnexpectedJob") == [text]


@in_virtual_time
async def test_deleted_cron_job_creates_no_job() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(cron_job())
        await c.client.patch(CRON_JOB, KEY, {"metadata": {"finalizers": ["example.com/stay"]}})
        await c.client.delete(CRON_JOB, KEY)
        await asyncio.sleep(200)
        assert await starts(c) == []


@in_virtual_time
async def test_failed_creation_is_recorded_and_retried() -> None:
    async with bare_cluster(with_recorder) as c:
        hard = {"hard": {"count/jobs.batch": "0"}}
        meta = {"name": "none", "namespace": "default"}
        await c.client.create(RESOURCE_QUOTA, {"metadata": meta, "spec": hard})
        await c.create(cron_job("0 * * * *"))
        await asyncio.sleep(3610)
        assert await starts(c) == []
        (message,) = await event_messages(c, "FailedCreate")
        assert message.startswith(
            f'Error creating job: jobs.batch "tick-{MINUTE + 60}" is forbidden'
        )
        await c.client.delete(RESOURCE_QUOTA, Key("default", "none"))
        await asyncio.sleep(120)
        assert await starts(c) == [60]


@in_virtual_time
async def test_job_runs_and_is_deleted_by_the_whole_control_plane() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        pod_meta = {"annotations": {RUN_SECONDS: "20"}}
        pod_spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}
        template = {"metadata": pod_meta, "spec": pod_spec}
        job = {"spec": {"template": template, "ttlSecondsAfterFinished": 10}}
        await c.create(cron_job("*/10 * * * *", job))
        await asyncio.sleep(605)
        assert (await starts(c), await active(c)) == ([10], [10])
        for kind in (WORKLOAD, POD_GROUP):
            (made,) = (await c.client.list(kind)).items
            assert made["metadata"]["ownerReferences"][0]["name"] == f"tick-{MINUTE + 10}"
        await asyncio.sleep(40)
        assert (await starts(c), await active(c)) == ([], [])
        assert (await status(c))["lastSuccessfulTime"] >= timestamp(EPOCH + 620)
        for kind in (POD, POD_GROUP, WORKLOAD):
            assert (await c.client.list(kind)).items == []


# ---- crashes and stale caches --------------------------------------------------------------------


async def a_day(c: Cluster) -> object:
    """Create, replace, finish and delete Jobs."""
    await c.create(cron_job("*/10 * * * *", concurrencyPolicy="Replace", failedJobsHistoryLimit=0))
    await asyncio.sleep(602)
    await finish(c, 10)
    await asyncio.sleep(1205)
    await finish(c, 30, "Failed")
    await asyncio.sleep(595)
    await change(c, suspend=True)
    await asyncio.sleep(5)
    last = await status(c)
    return await starts(c), await active(c), last["lastScheduleTime"], "lastSuccessfulTime" in last


def test_crash_after_any_write_leads_to_the_same_end() -> None:
    assert assert_survives_every_crash(without_recorder, a_day) >= 10


@pytest.mark.slow
def test_repeated_late_and_missed_events_lead_to_the_same_end() -> None:
    assert_survives_bad_watches(without_recorder, a_day)


@in_virtual_time
async def test_nothing_is_written_when_nothing_is_due() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, with_recorder):
            await a_day(c)
        await assert_quiet(c, with_recorder)


@in_virtual_time
async def test_job_that_was_deleted_before_the_cache_showed_it_is_not_created_again() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(cron_job("0 * * * *"))
        _, lagging = lagging_client(c, 5.0)
        async with running_controller(c, without_recorder, lagging):
            await asyncio.sleep(3601)
            await c.client.delete(
                JOB, Key("default", f"tick-{MINUTE + 60}"), propagation="Background"
            )
            await asyncio.sleep(60)
            assert (await starts(c), await active(c)) == ([], [])


def test_invalid_job_template_is_rejected() -> None:
    @in_virtual_time
    async def create() -> None:
        async with cluster(without=SERVER_ONLY) as c:
            await c.create(cron_job(template={"spec": {}}))

    with pytest.raises(ExceptionGroup) as caught:
        create()
    assert caught.group_contains(Invalid)
