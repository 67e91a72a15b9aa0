"""One look at a Job: what is made, deleted, counted and said."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import Sync, sync
from tests.controllers.jobs.making import FAILURES, NOW, job, names, pod


def look(one: Job, *pods: Pod) -> Sync:
    return sync(one, pods, NOW)


def said(due: Sync) -> dict[str, tuple[str, str]]:
    """The conditions that a sync leaves behind."""
    assert due.status is not None
    return {c["type"]: (c["status"], c["reason"]) for c in due.status["conditions"]}


def status(due: Sync, *fields: str) -> list[Any]:
    assert due.status is not None
    return [due.status[field] for field in fields]


def condition(kind: str, reason: str = "r") -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": "m"}


def test_a_new_job_begins_and_gets_as_many_pods_as_may_run_at_once() -> None:
    due = look(job({"startTime": None}, parallelism=3, completions=5))
    assert len(due.make) == 3
    assert status(due, "startTime", "active") == [timestamp(NOW), 3]


def test_no_more_pods_than_completions_are_left_to_do() -> None:
    due = look(job({"succeeded": 4}, parallelism=3, completions=5))
    assert len(due.make) == 1


def test_a_quiet_job_is_left_alone() -> None:
    one = job({"active": 1, "uncountedTerminatedPods": {}})
    assert look(one, pod("a")) == Sync()


def test_a_queue_of_work_gets_no_more_pods_after_the_first_success() -> None:
    one = job({"succeeded": 1}, parallelism=3, completions=None)
    assert look(one, pod("a")).make == ()
    assert "SuccessCriteriaMet" in said(look(one))


def test_pods_that_are_too_many_are_dismissed_the_least_useful_first() -> None:
    one = job(parallelism=1, completions=3)
    due = look(one, pod("running"), pod("pending", "Pending"))
    assert (names(due.dismiss), due.delete) == (["pending"], ())


def test_a_success_is_written_down_before_the_pod_may_go_and_then_counted() -> None:
    one = job(parallelism=2, completions=2)
    due = look(one, pod("a", "Succeeded"), pod("b"))
    assert names(due.release) == ["a"]
    assert status(due, "uncountedTerminatedPods", "succeeded") == [
        {"succeeded": ["uid-a"], "failed": []}, 0,
    ]  # fmt: skip
    one = job({"uncountedTerminatedPods": {"succeeded": ["uid-a"]}}, parallelism=2, completions=2)
    due = look(one, pod("a", "Succeeded", tracked=False), pod("b"))
    assert status(due, "uncountedTerminatedPods", "succeeded") == [
        {"succeeded": [], "failed": []}, 1,
    ]  # fmt: skip


def test_a_pod_is_never_counted_twice() -> None:
    counted = {"uncountedTerminatedPods": {"failed": ["uid-a"]}}
    due = look(job(counted, parallelism=1, completions=1), pod("a", "Failed", ended=-5))
    assert (due.status, names(due.release)) == (None, ["a"])


def test_an_indexed_success_is_an_index_and_no_uid() -> None:
    one = job(parallelism=3, completions=3, completionMode="Indexed")
    due = look(one, *(pod(f"p{i}", "Succeeded", of=one, index=i) for i in (0, 2)))
    assert status(due, "completedIndexes", "succeeded") == ["0,2", 2]
    assert [order.index for order in due.make] == [1]


def test_indexes_are_made_from_the_lowest_free_one() -> None:
    one = job({"completedIndexes": "1"}, parallelism=3, completions=6, completionMode="Indexed")
    due = look(one, pod("p2", of=one, index=2))
    assert [order.index for order in due.make] == [0, 3]


def test_doubled_and_too_high_indexes_are_dismissed() -> None:
    one = job(parallelism=2, completions=2, completionMode="Indexed")
    due = look(
        one, pod("a", of=one, index=0), pod("b", "Pending", of=one, index=0),
        pod("c", of=one, index=5),
    )  # fmt: skip
    assert names(due.dismiss) == ["b", "c"]


def test_a_failed_pod_is_replaced_after_a_pause_that_grows() -> None:
    one = job({"failed": 0}, parallelism=1, completions=1)
    due = look(one, pod("a", "Failed", ended=-4))
    assert (due.make, due.again) == ((), 6.0)
    assert len(look(one, pod("a", "Failed", ended=-10)).make) == 1
    due = look(one, pod("a", "Failed", ended=-50), pod("b", "Failed", ended=-5))
    assert due.again == 15.0


def test_a_success_ends_the_pauses() -> None:
    one = job(parallelism=2, completions=5)
    due = look(one, pod("a", "Failed", ended=-2), pod("b", "Succeeded", ended=-1))
    assert len(due.make) == 2


def test_a_job_that_failed_too_often_deletes_what_runs_and_counts_it_as_failed() -> None:
    one = job(parallelism=2, completions=2, backoffLimit=0)
    due = look(one, pod("a", "Failed"), pod("b"))
    assert said(due) == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    assert (names(due.delete), due.dismiss) == (["b"], ())
    again = job({"conditions": [condition("FailureTarget", "BackoffLimitExceeded")], "failed": 1})
    due = look(again, pod("b", leaving=True))
    assert status(due, "uncountedTerminatedPods") == [{"succeeded": [], "failed": ["uid-b"]}]


def test_restarts_count_where_containers_are_restarted() -> None:
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "main"}]}}
    one = job(template=template, backoffLimit=2)
    assert said(look(one, pod("a", restarts=2)))["FailureTarget"][1] == "BackoffLimitExceeded"
    assert (
        look(job({"active": 1}, template=template, backoffLimit=2), pod("a", restarts=1)) == Sync()
    )


def test_a_job_that_took_too_long_fails_and_is_looked_at_in_time() -> None:
    one = job({"active": 1}, activeDeadlineSeconds=130)
    assert look(one, pod("a")).again == 30.0
    due = look(job(activeDeadlineSeconds=100), pod("a"))
    assert said(due) == {"FailureTarget": ("True", "DeadlineExceeded")}


def test_the_end_is_said_only_when_all_is_counted_and_gone() -> None:
    target = [condition("SuccessCriteriaMet", "CompletionsReached")]
    one = job({"conditions": target, "succeeded": 1})
    assert "Complete" not in said(look(one, pod("b", leaving=True)))
    due = look(one)
    assert said(due)["Complete"] == ("True", "CompletionsReached")
    assert [remark.reason for remark in due.remarks] == ["Completed"]
    assert status(due, "completionTime") == [timestamp(NOW)]


def test_a_job_that_is_over_only_lets_its_pods_go() -> None:
    one = job({"conditions": [condition("Complete")]})
    due = look(one, pod("a", "Succeeded"))
    assert (names(due.release), due.status, due.make) == (["a"], None, ())


def test_suspending_dismisses_pods_and_resuming_begins_anew() -> None:
    due = look(job(suspend=True), pod("a"))
    assert (names(due.dismiss), said(due)) == (["a"], {"Suspended": ("True", "JobSuspended")})
    assert status(due, "startTime") == [None]
    assert [remark.reason for remark in due.remarks] == ["Suspended"]
    rested = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    due = look(job(rested))
    assert said(due) == {"Suspended": ("False", "JobResumed")}
    assert (len(due.make), status(due, "startTime")) == (1, [timestamp(NOW)])


def test_a_job_that_is_being_deleted_makes_no_pods() -> None:
    due = look(job(meta={"deletionTimestamp": timestamp(NOW)}, parallelism=2, completions=2))
    assert due.make == ()


@pytest.mark.parametrize(("policy", "made"), [("TerminatingOrFailed", 1), ("Failed", 0)])
def test_when_a_leaving_pod_is_replaced_is_a_matter_of_policy(policy: str, made: int) -> None:
    due = look(job(podReplacementPolicy=policy, backoffLimit=9), pod("a", leaving=True, ended=-60))
    assert len(due.make) + bool(due.again) == made


def rule(action: str, **more: Any) -> Object:
    return {"rules": [{"action": action, **more}]}


CODES = {"onExitCodes": {"operator": "In", "values": [42]}}
DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def test_a_policy_fails_the_job_on_an_exit_code() -> None:
    one = job(podFailurePolicy=rule("FailJob", **CODES))
    due = look(one, pod("a", "Failed", code=42))
    assert said(due) == {"FailureTarget": ("True", "PodFailurePolicy")}
    assert due.status is not None
    assert due.status["conditions"][0]["message"] == (
        "Container main for pod default/a failed with exit code 42 matching FailJob rule at index 0"
    )
    assert "FailureTarget" not in said(look(one, pod("a", "Failed", code=1)))


def test_a_policy_ignores_pods_that_were_disrupted() -> None:
    one = job(podFailurePolicy=rule("Ignore", **DISRUPTED), backoffLimit=0)
    evicted = pod("a", "Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}])
    due = look(one, evicted)
    assert "FailureTarget" not in said(due)
    assert status(due, "uncountedTerminatedPods") == [{"succeeded": [], "failed": []}]
    assert names(due.release) == ["a"]


def per_index(**more: Any) -> Job:
    return job(
        parallelism=2, completions=2, completionMode="Indexed", backoffLimitPerIndex=1,
        backoffLimit=2**31 - 1, **more,
    )  # fmt: skip


def test_each_index_has_failures_of_its_own() -> None:
    one = per_index()
    due = look(one, pod("a", "Failed", of=one, index=0, failures=0), pod("b", of=one, index=1))
    (order,) = due.make
    assert (order.index, dict(order.marks)) == (0, {FAILURES: "1"})
    assert due.release == ()
    due = look(one, pod("a", "Failed", of=one, index=0, failures=1), pod("b", of=one, index=1))
    assert (due.make, status(due, "failedIndexes"), names(due.release)) == ((), ["0"], ["a"])


def test_a_job_with_a_failed_index_fails_when_the_others_are_done() -> None:
    one = per_index()
    due = look(
        one, pod("a", "Failed", of=one, index=0, failures=1),
        pod("b", "Succeeded", of=one, index=1),
    )  # fmt: skip
    assert said(due) == {"FailureTarget": ("True", "FailedIndexes")}


def test_too_many_failed_indexes_fail_the_job_at_once() -> None:
    one = per_index(maxFailedIndexes=0)
    due = look(one, pod("a", "Failed", of=one, index=0, failures=1), pod("b", of=one, index=1))
    assert said(due) == {"FailureTarget": ("True", "MaxFailedIndexesExceeded")}


def test_a_success_policy_ends_the_job_and_spares_the_rest() -> None:
    one = job(
        parallelism=3, completions=3, completionMode="Indexed",
        successPolicy={"rules": [{"succeededIndexes": "0"}]},
    )  # fmt: skip
    due = look(one, pod("a", "Succeeded", of=one, index=0), pod("b", of=one, index=1))
    assert said(due) == {"SuccessCriteriaMet": ("True", "SuccessPolicy")}
    assert names(due.delete) == ["b"]
    met = {
        "conditions": [condition("SuccessCriteriaMet", "SuccessPolicy")],
        "completedIndexes": "0",
    }
    due = look(job(met, parallelism=3, completions=3, completionMode="Indexed"),
               pod("b", of=one, index=1, leaving=True))  # fmt: skip
    assert (names(due.release), status(due, "failed")) == (["b"], [0])
