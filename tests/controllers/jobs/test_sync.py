"""One sync of a Job: start, suspension, end, status and conditions."""

from __future__ import annotations

import pytest

from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import JobEvent, SyncResult, plan_sync
from tests.controllers.jobs.job_builders import NOW, START, condition, job, pod, run_sync, snapshot

READY = [{"type": "Ready", "status": "True"}]
DELETED = {"deletionTimestamp": timestamp(NOW)}


def test_new_job_starts() -> None:
    run = run_sync(job({"startTime": None}, parallelism=3, completions=5))
    assert (run.changes["startTime"], run.changes["active"]) == (timestamp(NOW), 3)


def test_unchanged_job_needs_no_action() -> None:
    one = job({"active": 1, "uncountedTerminatedPods": {}})
    assert run_sync(one, pod("a")).is_noop


def test_only_changed_status_fields_are_written() -> None:
    run = run_sync(job({"active": 1}), pod("a", conditions=READY))
    assert run.changes == {"ready": 1}


def test_status_counts_only_performed_actions() -> None:
    plan = plan_sync(snapshot(job(parallelism=3, completions=3)))
    assert plan.build_status_update(SyncResult(created=1)).status["active"] == 1
    surplus = plan_sync(
        snapshot(job({"active": 2}, parallelism=0, completions=9), pod("a"), pod("b"))
    )
    update = surplus.build_status_update(SyncResult(deleted=surplus.pods_to_discard[:1]))
    assert (update.status["active"], update.status["terminating"]) == (1, 1)


def test_deleted_pods_count_as_terminating_and_not_as_ready() -> None:
    one = job({"active": 2, "ready": 2}, parallelism=0, completions=9)
    run = run_sync(one, pod("a", conditions=READY), pod("b", conditions=READY, terminating=True))
    assert [run.changes[name] for name in ("active", "ready", "terminating")] == [0, 0, 2]


@pytest.mark.parametrize(
    ("target", "final", "event_reason"),
    [
        ("SuccessCriteriaMet", "Complete", "Completed"),
        ("FailureTarget", "Failed", "Because"),
    ],
)
def test_final_condition_is_set_only_when_all_pods_are_counted_and_gone(
    target: str, final: str, event_reason: str
) -> None:
    one = job({"conditions": [condition(target, "Because")], "succeeded": 1})
    waiting = {"uncountedTerminatedPods": {"failed": ["uid-z"]}}
    for pods in ([pod("b", terminating=True)], [pod("b", "Failed")], [pod("b")]):
        assert final not in run_sync(one, *pods).conditions
    last = job({"conditions": [condition(target, "Because")], **waiting})
    assert final not in run_sync(last, pod("z", "Failed")).conditions
    run = run_sync(one)
    assert (run.conditions[final], run.event_reasons) == (("True", "Because"), [event_reason])


def test_only_a_complete_job_has_a_completion_time() -> None:
    one = job({"conditions": [condition("SuccessCriteriaMet")]})
    assert run_sync(one).changes["completionTime"] == timestamp(NOW)
    assert (
        "completionTime" not in run_sync(job({"conditions": [condition("FailureTarget")]})).changes
    )


def test_completion_time_is_never_before_start_time() -> None:
    one = job({"conditions": [condition("SuccessCriteriaMet")]})
    assert run_sync(one, now=NOW - 3600).changes["completionTime"] == START


def test_suspended_job_that_fails_gets_a_start_time() -> None:
    target = {"conditions": [condition("FailureTarget")]}
    assert "startTime" not in run_sync(job(target, suspend=True)).changes
    run = run_sync(job({**target, "startTime": None}, suspend=True))
    assert run.changes["startTime"] == timestamp(NOW)
    assert "Suspended" not in run.conditions


def test_suspending_discards_pods() -> None:
    run = run_sync(job(suspend=True), pod("a"))
    assert (run.discarded, run.deleted) == (["a"], [])
    assert (run.conditions, run.event_reasons) == (
        {"Suspended": ("True", "JobSuspended")},
        ["Suspended"],
    )
    assert run.changes["startTime"] is None


def test_resuming_sets_a_new_start_time() -> None:
    suspended = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    run = run_sync(job(suspended))
    assert (run.conditions, run.event_reasons) == (
        {"Suspended": ("False", "JobResumed")},
        ["Resumed"],
    )
    assert (len(run.created), run.changes["startTime"]) == (1, timestamp(NOW))


def test_job_that_was_never_suspended_has_no_suspended_condition() -> None:
    assert "conditions" not in run_sync(job()).changes


def test_deleted_job_neither_creates_nor_deletes_pods() -> None:
    assert run_sync(job(meta=DELETED, parallelism=2, completions=2)).created == []
    run = run_sync(job(meta=DELETED, suspend=True), pod("a"))
    assert (run.discarded, run.conditions) == ([], {})
    assert run_sync(job(meta=DELETED, parallelism=0, completions=2), pod("a")).discarded == []


def test_fallback_is_recorded_once_and_reset() -> None:
    fallback = JobEvent("AmbiguousWorkload", "two", "Warning")
    run = run_sync(job(), fallback=fallback)
    assert run.conditions == {"SchedulingFallback": ("True", "AmbiguousWorkload")}
    assert run.events == (fallback,)
    condition_set = {
        "type": "SchedulingFallback",
        "status": "True",
        "reason": fallback.reason,
        "message": "two",
    }
    assert run_sync(
        job({"conditions": [condition_set], "active": 1}), pod("a"), fallback=fallback
    ).is_noop
    run = run_sync(job({"conditions": [condition_set]}))
    assert run.conditions == {"SchedulingFallback": ("False", "SchedulingRestored")}
    unknown = plan_sync(snapshot(job({"conditions": [condition_set]}))).build_status_update(
        SyncResult(is_group_known=False)
    )
    assert "conditions" not in unknown.status


def test_conditions_of_other_writers_are_kept() -> None:
    other = {**condition("Mine"), "lastProbeTime": START, "lastTransitionTime": timestamp(NOW)}
    run = run_sync(job({"conditions": [other]}, suspend=True))
    assert run.changes["conditions"][0] == other


def test_failed_indexes_are_set_with_backoff_limit_per_index_even_if_empty() -> None:
    spec: Object = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    assert run_sync(job(**spec, backoffLimitPerIndex=1)).changes["failedIndexes"] == ""
    assert "failedIndexes" not in run_sync(job(**spec)).changes
