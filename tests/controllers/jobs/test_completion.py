"""The outcome of a Job: when it completes or fails, and with which reason."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.batch import Job
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from tests.controllers.jobs.job_builders import NOW, START, condition, job, pod, run_sync

ON_FAILURE = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "main"}]}}
CODES = {"onExitCodes": {"operator": "In", "values": [42]}}


def rules(action: str, **more: Any) -> Object:
    return {"rules": [{"action": action, **more}]}


def indexed(status: Object | None = None, **more: Any) -> Job:
    spec: Object = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    return job(status, **{**spec, **more})


def test_job_over_its_backoff_limit_gets_failure_target() -> None:
    one = job(parallelism=2, completions=2, backoffLimit=0)
    run = run_sync(one, pod("a", "Failed"), pod("b"))
    assert run.conditions == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    assert "FailureTarget" not in run_sync(job(backoffLimit=1), pod("a", "Failed")).conditions


def test_deleted_job_does_not_fail() -> None:
    deleted = {"deletionTimestamp": timestamp(NOW)}
    one = job(meta=deleted, parallelism=2, completions=2, backoffLimit=0)
    run = run_sync(one, pod("a", "Pending", terminating=True), pod("b", "Failed"))
    assert (run.conditions, run.events) == ({}, ())
    announced = {"conditions": [condition("FailureTarget", "BackoffLimitExceeded")]}
    ended = run_sync(job(announced, meta=deleted, backoffLimit=0))
    assert "Failed" in ended.conditions


def test_uncounted_failures_count_towards_the_backoff_limit() -> None:
    known = {"failed": 1, "uncountedTerminatedPods": {"failed": ["uid-a"]}}
    run = run_sync(job(known, backoffLimit=2), pod("a", "Failed"), pod("b", "Failed"))
    assert "FailureTarget" in run.conditions


@pytest.mark.parametrize(
    ("limit", "restarts", "is_over"),
    [
        (2, 1, False),
        (2, 2, True),
        (0, 0, False),
        (0, 1, True),
    ],
)
def test_container_restarts_count_towards_the_limit_with_restart_policy_on_failure(
    limit: int, restarts: int, is_over: bool
) -> None:
    one = job(template=ON_FAILURE, backoffLimit=limit)
    assert ("FailureTarget" in run_sync(one, pod("a", restarts=restarts)).conditions) == is_over
    never = job(backoffLimit=limit)
    assert "FailureTarget" not in run_sync(never, pod("a", restarts=restarts)).conditions


def test_job_fails_at_its_deadline_and_is_requeued_for_it() -> None:
    one = job({"active": 1}, activeDeadlineSeconds=130)
    assert run_sync(one, pod("a")).plan.requeue_after == 30.0
    run = run_sync(job(activeDeadlineSeconds=100), pod("a"))
    assert run.conditions == {"FailureTarget": ("True", "DeadlineExceeded")}


def test_deadline_does_not_pass_while_a_job_is_suspended() -> None:
    suspended = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    run = run_sync(job(suspended, suspend=True, activeDeadlineSeconds=1))
    assert (run.conditions, run.plan.requeue_after) == ({}, None)
    run = run_sync(job(suspended, activeDeadlineSeconds=1))
    assert run.conditions == {"Suspended": ("False", "JobResumed")}
    assert run.changes["startTime"] == timestamp(NOW)


def test_pod_failure_policy_fails_the_job_on_an_exit_code() -> None:
    one = job(podFailurePolicy=rules("FailJob", **CODES))
    run = run_sync(one, pod("a", "Failed", code=42))
    assert run.conditions == {"FailureTarget": ("True", "PodFailurePolicy")}
    assert run.changes["conditions"][0]["message"] == (
        "Container main for pod default/a failed with exit code 42 matching FailJob rule at index 0"
    )
    assert "FailureTarget" not in run_sync(one, pod("a", "Failed", code=1)).conditions


def test_pod_failure_policy_takes_precedence_over_the_backoff_limit() -> None:
    one = job(podFailurePolicy=rules("FailJob", **CODES), backoffLimit=0)
    run = run_sync(one, pod("a", "Failed", code=42))
    assert run.conditions["FailureTarget"][1] == "PodFailurePolicy"


def test_failure_does_not_undo_success_criteria_met() -> None:
    met = {"conditions": [condition("SuccessCriteriaMet", "SuccessPolicy")]}
    one = indexed(met, backoffLimit=0)
    assert "FailureTarget" not in run_sync(one, pod("a", "Failed", of=one, index=0)).conditions


def test_job_completes_when_completions_are_reached_and_no_pod_is_active() -> None:
    one = job({"succeeded": 1}, parallelism=2, completions=2)
    assert run_sync(one, pod("a", "Succeeded"), pod("b")).conditions == {}
    run = run_sync(one, pod("a", "Succeeded"))
    assert run.conditions == {"SuccessCriteriaMet": ("True", "CompletionsReached")}


def test_work_queue_job_completes_after_one_success_when_no_pod_is_active() -> None:
    one = job(parallelism=3, completions=None)
    assert run_sync(one, pod("a", "Succeeded"), pod("b")).conditions == {}
    assert "SuccessCriteriaMet" in run_sync(one, pod("a", "Succeeded")).conditions


def test_more_successes_than_completions_are_recorded_as_event() -> None:
    run = run_sync(job(), pod("a", "Succeeded"), pod("b", "Succeeded"))
    assert run.event_reasons == ["TooManySucceededPods"]


@pytest.mark.parametrize(
    ("rule", "succeeded", "is_met"),
    [
        ({"succeededIndexes": "0"}, [0], True),
        ({"succeededIndexes": "0,2"}, [0], False),
        ({"succeededIndexes": "0,2"}, [0, 2], True),
        ({"succeededCount": 2}, [1], False),
        ({"succeededCount": 2}, [0, 1], True),
        ({"succeededIndexes": "0-2", "succeededCount": 1}, [1], True),
        ({"succeededIndexes": "0", "succeededCount": 1}, [1], False),
        ({"succeededIndexes": "7"}, [], False),
    ],
)
def test_success_policy_is_met_by_indexes_and_counts(
    rule: Object, succeeded: list[int], is_met: bool
) -> None:
    one = indexed(successPolicy={"rules": [{"succeededIndexes": "9"}, rule]})
    done = [pod(f"p{i}", "Succeeded", of=one, index=i) for i in succeeded]
    run = run_sync(one, *done, pod("last", of=one, index=9))
    assert ("SuccessCriteriaMet" in run.conditions) == is_met
    if is_met:
        (target,) = run.changes["conditions"]
        assert (target["reason"], target["message"]) == (
            "SuccessPolicy",
            "Matched rules at index 1",
        )


def test_job_with_a_failed_index_fails_when_the_other_indexes_are_finished() -> None:
    one = indexed(parallelism=2, completions=2, backoffLimitPerIndex=1)
    run = run_sync(
        one,
        pod("a", "Failed", of=one, index=0, failures=1),
        pod("b", "Succeeded", of=one, index=1),
    )
    assert run.conditions == {"FailureTarget": ("True", "FailedIndexes")}


def test_job_fails_at_once_over_max_failed_indexes() -> None:
    one = indexed(backoffLimitPerIndex=1, maxFailedIndexes=0)
    run = run_sync(one, pod("a", "Failed", of=one, index=0, failures=1), pod("b", of=one, index=1))
    assert run.conditions == {"FailureTarget": ("True", "MaxFailedIndexesExceeded")}


def test_job_without_start_time_does_not_fail_at_its_deadline() -> None:
    run = run_sync(job({"startTime": None}, activeDeadlineSeconds=0))
    assert run.conditions == {}
    assert run_sync(job({"startTime": START}, activeDeadlineSeconds=0)).conditions
