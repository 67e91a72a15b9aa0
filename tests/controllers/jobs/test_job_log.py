"""The log lines of the Job controller."""

from __future__ import annotations

import logging

import pytest

from phalanx.api.kinds import JOB, POD, POD_GROUP, RESOURCE_QUOTA, WORKLOAD
from tests.builders import in_virtual_time
from tests.controllers.jobs.job_controller_harness import job, running_job_controller, workload
from tests.recording_log import LogLine, captured_lines

KEY = {"kind": "Job", "key": "default/train"}


@pytest.fixture(autouse=True)
def _debug_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="phalanx")


def job_lines(caplog: pytest.LogCaptureFixture, level: str) -> list[LogLine]:
    lines = [line for line in captured_lines(caplog, "job-controller") if line.level == level]
    assert all({**line.fields, **KEY} == line.fields for line in lines)
    return lines


@in_virtual_time
async def test_state_changes_of_a_job_are_logged_once_at_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(parallelism=2, completions=2))
        for suspend in (True, False):
            await cluster.wait_until_idle()
            await cluster.patch(JOB, "train", {"spec": {"suspend": suspend}})
        await cluster.wait_until_idle()
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
    lines = job_lines(caplog, "INFO")
    assert [(line.message, line.fields["reason"]) for line in lines] == [
        ("Job suspended", "JobSuspended"),
        ("Job resumed", "JobResumed"),
        ("Job completed", "CompletionsReached"),
    ]


@in_virtual_time
async def test_failure_is_logged_with_reason_and_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(backoffLimit=0))
        await cluster.wait_until_idle()
        await cluster.finish("Failed")
        await cluster.wait_until_idle()
    (line,) = job_lines(caplog, "INFO")
    assert (line.message, line.fields["reason"]) == ("Job failed", "BackoffLimitExceeded")
    assert line.fields["detail"] == "Job has reached the specified backoff limit"


@in_virtual_time
async def test_fallback_and_its_end_are_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(workload("one", 2), workload("two", 2), job(parallelism=2))
        await cluster.wait_until_idle()
        await cluster.delete(WORKLOAD, "two")
        await cluster.wait_until_idle()
    assert [(line.message, line.fields["reason"]) for line in job_lines(caplog, "INFO")] == [
        ("Job falls back to pods without a PodGroup", "AmbiguousWorkload"),
        ("Job uses its PodGroup again", "SchedulingRestored"),
    ]


@in_virtual_time
async def test_every_created_object_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True, parallelism=2, completions=2))
        await cluster.wait_until_idle()
        names = {
            kind.name: {one["metadata"]["name"] for one in await cluster.list_objects(kind)}
            for kind in (WORKLOAD, POD_GROUP, POD)
        }
    lines = job_lines(caplog, "DEBUG")
    logged = {
        "Workload": {one.fields["object"] for one in lines if one.message == "Workload created"},
        "PodGroup": {one.fields["object"] for one in lines if one.message == "PodGroup created"},
        "Pod": {one.fields["pod"] for one in lines if one.message == "Pod created"},
    }
    assert logged == names


@in_virtual_time
async def test_removed_finalizers_and_deleted_pods_are_logged_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(parallelism=2, completions=2))
        await cluster.wait_until_idle()
        await cluster.patch(JOB, "train", {"spec": {"suspend": True}})
        await cluster.wait_until_idle()
    messages = [line.message for line in job_lines(caplog, "DEBUG")]
    assert messages.count("Finalizer removed") == messages.count("Pod deleted") == 2


@in_virtual_time
async def test_retry_is_logged_as_warning_with_its_error_attempt_and_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quota = {
        "apiVersion": RESOURCE_QUOTA.api_version,
        "kind": RESOURCE_QUOTA.name,
        "metadata": {"name": "none", "namespace": "default"},
        "spec": {"hard": {"pods": "0"}},
    }
    async with running_job_controller() as cluster:
        await cluster.create(quota, job())
        await cluster.wait(10)
    warnings = [line for line in captured_lines(caplog, "controllers") if line.level == "WARNING"]
    jobs = [line for line in warnings if line.fields["key"] == KEY["key"]]
    attempts = [int(line.fields["attempt"]) for line in jobs]
    assert attempts[0] == 1
    assert attempts == sorted(set(attempts))
    assert len(attempts) > 3
    assert all("exceeded quota" in line.fields["reason"] for line in jobs)
    backoffs = [float(line.fields["backoff"]) for line in jobs]
    assert backoffs == sorted(backoffs)
