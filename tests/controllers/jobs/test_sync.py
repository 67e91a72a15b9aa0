"""One look at a Job: what it says, and in which order things come about."""

from __future__ import annotations

import pytest

from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import JobEvent, SyncResult, plan_sync
from tests.controllers.jobs.job_builders import NOW, START, condition, job, pod, run_sync, situation

READY = [{"type": "Ready", "status": "True"}]
DELETED = {"deletionTimestamp": timestamp(NOW)}


def test_a_new_job_begins() -> None:
    seen = run_sync(job({"startTime": None}, parallelism=3, completions=5))
    assert (seen.changes["startTime"], seen.changes["active"]) == (timestamp(NOW), 3)


def test_a_quiet_job_is_left_alone() -> None:
    one = job({"active": 1, "uncountedTerminatedPods": {}})
    assert run_sync(one, pod("a")).is_noop


def test_only_what_changes_is_written() -> None:
    seen = run_sync(job({"active": 1}), pod("a", conditions=READY))
    assert seen.changes == {"ready": 1}


def test_what_was_not_done_is_not_said() -> None:
    due = plan_sync(situation(job(parallelism=3, completions=3)))
    assert due.build_status_update(SyncResult(created=1)).status["active"] == 1
    surplus = plan_sync(
        situation(job({"active": 2}, parallelism=0, completions=9), pod("a"), pod("b"))
    )
    report = surplus.build_status_update(SyncResult(deleted=surplus.pods_to_discard[:1]))
    assert (report.status["active"], report.status["terminating"]) == (1, 1)


def test_pods_on_their_way_out_are_terminating_and_not_ready() -> None:
    one = job({"active": 2, "ready": 2}, parallelism=0, completions=9)
    seen = run_sync(one, pod("a", conditions=READY), pod("b", conditions=READY, leaving=True))
    assert [seen.changes[name] for name in ("active", "ready", "terminating")] == [0, 0, 2]


@pytest.mark.parametrize(("target", "final", "told"), [
    ("SuccessCriteriaMet", "Complete", "Completed"), ("FailureTarget", "Failed", "Because"),
])  # fmt: skip
def test_the_end_is_said_only_when_all_is_counted_and_gone(
    target: str, final: str, told: str
) -> None:
    one = job({"conditions": [condition(target, "Because")], "succeeded": 1})
    waiting = {"uncountedTerminatedPods": {"failed": ["uid-z"]}}
    for pods in ([pod("b", leaving=True)], [pod("b", "Failed")], [pod("b")]):
        assert final not in run_sync(one, *pods).conditions
    last = job({"conditions": [condition(target, "Because")], **waiting})
    assert final not in run_sync(last, pod("z", "Failed")).conditions
    seen = run_sync(one)
    assert (seen.conditions[final], seen.event_reasons) == (("True", "Because"), [told])


def test_only_a_complete_job_says_when_it_was_complete() -> None:
    one = job({"conditions": [condition("SuccessCriteriaMet")]})
    assert run_sync(one).changes["completionTime"] == timestamp(NOW)
    assert (
        "completionTime" not in run_sync(job({"conditions": [condition("FailureTarget")]})).changes
    )


def test_no_job_is_complete_before_it_began_whatever_the_clock_says() -> None:
    one = job({"conditions": [condition("SuccessCriteriaMet")]})
    assert run_sync(one, now=NOW - 3600).changes["completionTime"] == START


def test_a_job_that_ends_while_it_rests_has_begun_at_some_time() -> None:
    target = {"conditions": [condition("FailureTarget")]}
    assert "startTime" not in run_sync(job(target, suspend=True)).changes
    seen = run_sync(job({**target, "startTime": None}, suspend=True))
    assert seen.changes["startTime"] == timestamp(NOW)
    assert "Suspended" not in seen.conditions


def test_suspending_dismisses_pods() -> None:
    seen = run_sync(job(suspend=True), pod("a"))
    assert (seen.discarded, seen.deleted) == (["a"], [])
    assert (seen.conditions, seen.event_reasons) == (
        {"Suspended": ("True", "JobSuspended")},
        ["Suspended"],
    )
    assert seen.changes["startTime"] is None


def test_resuming_begins_anew() -> None:
    rested = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    seen = run_sync(job(rested))
    assert (seen.conditions, seen.event_reasons) == (
        {"Suspended": ("False", "JobResumed")},
        ["Resumed"],
    )
    assert (len(seen.created), seen.changes["startTime"]) == (1, timestamp(NOW))


def test_a_job_that_never_rested_does_not_say_that_it_was_resumed() -> None:
    assert "conditions" not in run_sync(job()).changes


def test_a_job_that_is_being_deleted_neither_makes_nor_dismisses_pods() -> None:
    assert run_sync(job(meta=DELETED, parallelism=2, completions=2)).created == []
    seen = run_sync(job(meta=DELETED, suspend=True), pod("a"))
    assert (seen.discarded, seen.conditions) == ([], {})
    assert run_sync(job(meta=DELETED, parallelism=0, completions=2), pod("a")).discarded == []


def test_why_pods_are_in_no_group_is_said_and_told_once_and_taken_back() -> None:
    why = JobEvent("AmbiguousWorkload", "two", "Warning")
    seen = run_sync(job(), fallback=why)
    assert seen.conditions == {"SchedulingFallback": ("True", "AmbiguousWorkload")}
    assert seen.events == (why,)
    told = {"type": "SchedulingFallback", "status": "True", "reason": why.reason, "message": "two"}
    assert run_sync(job({"conditions": [told], "active": 1}), pod("a"), fallback=why).is_noop
    seen = run_sync(job({"conditions": [told]}))
    assert seen.conditions == {"SchedulingFallback": ("False", "SchedulingRestored")}
    unknown = plan_sync(situation(job({"conditions": [told]}))).build_status_update(
        SyncResult(is_group_known=False)
    )
    assert "conditions" not in unknown.status


def test_what_others_say_of_a_job_stays_as_it_is() -> None:
    other = {**condition("Mine"), "lastProbeTime": START, "lastTransitionTime": timestamp(NOW)}
    seen = run_sync(job({"conditions": [other]}, suspend=True))
    assert seen.changes["conditions"][0] == other


def test_a_job_with_limits_per_index_says_which_have_failed_even_if_none_has() -> None:
    spec: Object = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    assert run_sync(job(**spec, backoffLimitPerIndex=1)).changes["failedIndexes"] == ""
    assert "failedIndexes" not in run_sync(job(**spec)).changes
