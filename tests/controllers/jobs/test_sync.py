"""One look at a Job: what it says, and in which order things come about."""

from __future__ import annotations

import pytest

from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import Done, Remark, sync
from tests.controllers.jobs.making import NOW, START, condition, job, look, pod, situation

READY = [{"type": "Ready", "status": "True"}]
DELETED = {"deletionTimestamp": timestamp(NOW)}


def test_a_new_job_begins() -> None:
    seen = look(job({"startTime": None}, parallelism=3, completions=5))
    assert (seen.changes["startTime"], seen.changes["active"]) == (timestamp(NOW), 3)


def test_a_quiet_job_is_left_alone() -> None:
    one = job({"active": 1, "uncountedTerminatedPods": {}})
    assert look(one, pod("a")).is_nothing


def test_only_what_changes_is_written() -> None:
    seen = look(job({"active": 1}), pod("a", conditions=READY))
    assert seen.changes == {"ready": 1}


def test_what_was_not_done_is_not_said() -> None:
    due = sync(situation(job(parallelism=3, completions=3)))
    assert due.report(Done(made=1)).status["active"] == 1
    surplus = sync(situation(job({"active": 2}, parallelism=0, completions=9), pod("a"), pod("b")))
    report = surplus.report(Done(gone=surplus.dismiss[:1]))
    assert (report.status["active"], report.status["terminating"]) == (1, 1)


def test_pods_on_their_way_out_are_terminating_and_not_ready() -> None:
    one = job({"active": 2, "ready": 2}, parallelism=0, completions=9)
    seen = look(one, pod("a", conditions=READY), pod("b", conditions=READY, leaving=True))
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
        assert final not in look(one, *pods).said
    last = job({"conditions": [condition(target, "Because")], **waiting})
    assert final not in look(last, pod("z", "Failed")).said
    seen = look(one)
    assert (seen.said[final], seen.told) == (("True", "Because"), [told])


def test_only_a_complete_job_says_when_it_was_complete() -> None:
    one = job({"conditions": [condition("SuccessCriteriaMet")]})
    assert look(one).changes["completionTime"] == timestamp(NOW)
    assert "completionTime" not in look(job({"conditions": [condition("FailureTarget")]})).changes


def test_no_job_is_complete_before_it_began_whatever_the_clock_says() -> None:
    one = job({"conditions": [condition("SuccessCriteriaMet")]})
    assert look(one, now=NOW - 3600).changes["completionTime"] == START


def test_a_job_that_ends_while_it_rests_has_begun_at_some_time() -> None:
    target = {"conditions": [condition("FailureTarget")]}
    assert "startTime" not in look(job(target, suspend=True)).changes
    seen = look(job({**target, "startTime": None}, suspend=True))
    assert seen.changes["startTime"] == timestamp(NOW)
    assert "Suspended" not in seen.said


def test_suspending_dismisses_pods() -> None:
    seen = look(job(suspend=True), pod("a"))
    assert (seen.dismissed, seen.deleted) == (["a"], [])
    assert (seen.said, seen.told) == ({"Suspended": ("True", "JobSuspended")}, ["Suspended"])
    assert seen.changes["startTime"] is None


def test_resuming_begins_anew() -> None:
    rested = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    seen = look(job(rested))
    assert (seen.said, seen.told) == ({"Suspended": ("False", "JobResumed")}, ["Resumed"])
    assert (len(seen.made), seen.changes["startTime"]) == (1, timestamp(NOW))


def test_a_job_that_never_rested_does_not_say_that_it_was_resumed() -> None:
    assert "conditions" not in look(job()).changes


def test_a_job_that_is_being_deleted_neither_makes_nor_dismisses_pods() -> None:
    assert look(job(meta=DELETED, parallelism=2, completions=2)).made == []
    seen = look(job(meta=DELETED, suspend=True), pod("a"))
    assert (seen.dismissed, seen.said) == ([], {})
    assert look(job(meta=DELETED, parallelism=0, completions=2), pod("a")).dismissed == []


def test_why_pods_are_in_no_group_is_said_and_told_once_and_taken_back() -> None:
    why = Remark("AmbiguousWorkload", "two", "Warning")
    seen = look(job(), fallback=why)
    assert seen.said == {"SchedulingFallback": ("True", "AmbiguousWorkload")}
    assert seen.remarks == (why,)
    told = {"type": "SchedulingFallback", "status": "True", "reason": why.reason, "message": "two"}
    assert look(job({"conditions": [told], "active": 1}), pod("a"), fallback=why).is_nothing
    seen = look(job({"conditions": [told]}))
    assert seen.said == {"SchedulingFallback": ("False", "SchedulingRestored")}
    unknown = sync(situation(job({"conditions": [told]}))).report(Done(is_placed=False))
    assert "conditions" not in unknown.status


def test_what_others_say_of_a_job_stays_as_it_is() -> None:
    other = {**condition("Mine"), "lastProbeTime": START, "lastTransitionTime": timestamp(NOW)}
    seen = look(job({"conditions": [other]}, suspend=True))
    assert seen.changes["conditions"][0] == other


def test_a_job_with_limits_per_index_says_which_have_failed_even_if_none_has() -> None:
    spec: Object = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    assert look(job(**spec, backoffLimitPerIndex=1)).changes["failedIndexes"] == ""
    assert "failedIndexes" not in look(job(**spec)).changes
