"""Is a Job over, and why?"""

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


def test_a_job_that_failed_too_often_says_so() -> None:
    one = job(parallelism=2, completions=2, backoffLimit=0)
    seen = run_sync(one, pod("a", "Failed"), pod("b"))
    assert seen.conditions == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    assert "FailureTarget" not in run_sync(job(backoffLimit=1), pod("a", "Failed")).conditions


def test_failures_that_wait_to_be_counted_count_towards_the_limit() -> None:
    known = {"failed": 1, "uncountedTerminatedPods": {"failed": ["uid-a"]}}
    seen = run_sync(job(known, backoffLimit=2), pod("a", "Failed"), pod("b", "Failed"))
    assert "FailureTarget" in seen.conditions


@pytest.mark.parametrize(("limit", "restarts", "is_over"), [
    (2, 1, False), (2, 2, True), (0, 0, False), (0, 1, True),
])  # fmt: skip
def test_restarts_count_where_containers_are_restarted(
    limit: int, restarts: int, is_over: bool
) -> None:
    one = job(template=ON_FAILURE, backoffLimit=limit)
    assert ("FailureTarget" in run_sync(one, pod("a", restarts=restarts)).conditions) == is_over
    never = job(backoffLimit=limit)
    assert "FailureTarget" not in run_sync(never, pod("a", restarts=restarts)).conditions


def test_a_job_that_took_too_long_fails_and_is_looked_at_in_time() -> None:
    one = job({"active": 1}, activeDeadlineSeconds=130)
    assert run_sync(one, pod("a")).plan.requeue_after == 30.0
    seen = run_sync(job(activeDeadlineSeconds=100), pod("a"))
    assert seen.conditions == {"FailureTarget": ("True", "DeadlineExceeded")}


def test_no_deadline_passes_while_a_job_rests() -> None:
    rested = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    seen = run_sync(job(rested, suspend=True, activeDeadlineSeconds=1))
    assert (seen.conditions, seen.plan.requeue_after) == ({}, None)
    seen = run_sync(job(rested, activeDeadlineSeconds=1))
    assert seen.conditions == {"Suspended": ("False", "JobResumed")}
    assert seen.changes["startTime"] == timestamp(NOW)


def test_a_policy_fails_the_job_on_an_exit_code() -> None:
    one = job(podFailurePolicy=rules("FailJob", **CODES))
    seen = run_sync(one, pod("a", "Failed", code=42))
    assert seen.conditions == {"FailureTarget": ("True", "PodFailurePolicy")}
    assert seen.changes["conditions"][0]["message"] == (
        "Container main for pod default/a failed with exit code 42 matching FailJob rule at index 0"
    )
    assert "FailureTarget" not in run_sync(one, pod("a", "Failed", code=1)).conditions


def test_the_failure_policy_speaks_before_the_limit() -> None:
    one = job(podFailurePolicy=rules("FailJob", **CODES), backoffLimit=0)
    seen = run_sync(one, pod("a", "Failed", code=42))
    assert seen.conditions["FailureTarget"][1] == "PodFailurePolicy"


def test_an_announced_success_is_not_undone_by_a_failure() -> None:
    met = {"conditions": [condition("SuccessCriteriaMet", "SuccessPolicy")]}
    one = indexed(met, backoffLimit=0)
    assert "FailureTarget" not in run_sync(one, pod("a", "Failed", of=one, index=0)).conditions


def test_a_job_ends_when_enough_have_succeeded_and_none_runs() -> None:
    one = job({"succeeded": 1}, parallelism=2, completions=2)
    assert run_sync(one, pod("a", "Succeeded"), pod("b")).conditions == {}
    seen = run_sync(one, pod("a", "Succeeded"))
    assert seen.conditions == {"SuccessCriteriaMet": ("True", "CompletionsReached")}


def test_a_queue_of_work_ends_when_one_has_succeeded_and_none_runs() -> None:
    one = job(parallelism=3, completions=None)
    assert run_sync(one, pod("a", "Succeeded"), pod("b")).conditions == {}
    assert "SuccessCriteriaMet" in run_sync(one, pod("a", "Succeeded")).conditions


def test_more_successes_than_were_asked_for_are_told() -> None:
    seen = run_sync(job(), pod("a", "Succeeded"), pod("b", "Succeeded"))
    assert seen.event_reasons == ["TooManySucceededPods"]


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
def test_a_success_policy_is_met(rule: Object, succeeded: list[int], is_met: bool) -> None:
    one = indexed(successPolicy={"rules": [{"succeededIndexes": "9"}, rule]})
    done = [pod(f"p{i}", "Succeeded", of=one, index=i) for i in succeeded]
    seen = run_sync(one, *done, pod("last", of=one, index=9))
    assert ("SuccessCriteriaMet" in seen.conditions) == is_met
    if is_met:
        (said,) = seen.changes["conditions"]
        assert (said["reason"], said["message"]) == ("SuccessPolicy", "Matched rules at index 1")


def test_a_job_with_a_failed_index_fails_when_the_others_are_done() -> None:
    one = indexed(parallelism=2, completions=2, backoffLimitPerIndex=1)
    seen = run_sync(
        one, pod("a", "Failed", of=one, index=0, failures=1),
        pod("b", "Succeeded", of=one, index=1),
    )  # fmt: skip
    assert seen.conditions == {"FailureTarget": ("True", "FailedIndexes")}


def test_too_many_failed_indexes_fail_the_job_at_once() -> None:
    one = indexed(backoffLimitPerIndex=1, maxFailedIndexes=0)
    seen = run_sync(one, pod("a", "Failed", of=one, index=0, failures=1), pod("b", of=one, index=1))
    assert seen.conditions == {"FailureTarget": ("True", "MaxFailedIndexesExceeded")}


def test_a_job_that_began_never_fails_by_its_deadline() -> None:
    seen = run_sync(job({"startTime": None}, activeDeadlineSeconds=0))
    assert seen.conditions == {}
    assert run_sync(job({"startTime": START}, activeDeadlineSeconds=0)).conditions
