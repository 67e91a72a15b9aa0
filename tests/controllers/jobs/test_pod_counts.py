"""Counting terminated pods: which, when, and as what."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.batch import Job
from phalanx.api.wire import Object
from phalanx.controllers.jobs.sync import MAX_UNCOUNTED_PODS
from tests.controllers.jobs.job_builders import condition, job, pod, run_sync


def uncounted(succeeded: list[str] | None = None, failed: list[str] | None = None) -> Object:
    return {"uncountedTerminatedPods": {"succeeded": succeeded or [], "failed": failed or []}}


def indexed(status: Object | None = None, **more: Any) -> Job:
    spec: Object = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    return job(status, **{**spec, **more})


@pytest.mark.parametrize("result", ["Succeeded", "Failed"])
def test_uid_is_recorded_before_the_finalizer_is_removed_and_counted_afterwards(
    result: str,
) -> None:
    side = result.lower()
    size: dict[str, Any] = {"parallelism": 2, "completions": 2}
    written = uncounted(**{side: ["uid-a"]})
    run = run_sync(job(**size), pod("a", result), pod("b"))
    assert (run.untracked, "succeeded" in run.changes) == (["a"], False)
    assert run.changes["uncountedTerminatedPods"] == written["uncountedTerminatedPods"]
    run = run_sync(job(written, **size), pod("a", result, tracked=False), pod("b"))
    assert (run.changes[side], run.untracked) == (1, [])
    assert run.changes["uncountedTerminatedPods"] == {"succeeded": [], "failed": []}


def test_uid_of_a_removed_pod_moves_to_the_total() -> None:
    run = run_sync(job(uncounted(failed=["uid-a", "uid-b"])), pod("b", "Failed"), pod("c"))
    assert run.changes["failed"] == 1
    assert run.changes["uncountedTerminatedPods"]["failed"] == ["uid-b"]


def test_pod_is_never_counted_twice() -> None:
    counted = {"active": 0, **uncounted(failed=["uid-a"])}
    run = run_sync(job(counted), pod("a", "Failed", finished=-5))
    assert (run.changes, run.untracked) == ({}, ["a"])


def test_pod_that_counted_as_failed_does_not_count_as_succeeded_later() -> None:
    for one in (job(uncounted(failed=["uid-a"])), indexed(uncounted(failed=["uid-a"]))):
        run = run_sync(one, pod("a", "Succeeded", of=one, index=0, terminating=True))
        assert "succeeded" not in run.changes
        assert "completedIndexes" not in run.changes
        assert run.untracked == ["a"]


def test_success_of_an_indexed_job_is_recorded_as_index_without_uid() -> None:
    one = indexed()
    run = run_sync(one, *(pod(f"p{i}", "Succeeded", of=one, index=i) for i in (0, 2)))
    assert (run.changes["completedIndexes"], run.changes["succeeded"]) == ("0,2", 2)
    assert "uncountedTerminatedPods" not in run.changes
    assert run.created == [1]


def test_index_succeeds_once() -> None:
    one = indexed({"completedIndexes": "0", "succeeded": 1})
    run = run_sync(one, pod("again", "Succeeded", of=one, index=0))
    assert ("succeeded" in run.changes, run.untracked) == (False, ["again"])


def test_failed_index_stays_failed() -> None:
    one = indexed({"failedIndexes": "0"}, backoffLimitPerIndex=1)
    run = run_sync(one, pod("late", "Succeeded", of=one, index=0))
    assert "completedIndexes" not in run.changes
    assert run.untracked == ["late"]


def test_pod_without_a_valid_index_is_not_counted() -> None:
    one = indexed()
    run = run_sync(
        one,
        pod("high", "Succeeded", of=one, index=7),
        pod("none", "Succeeded"),
        pod("bad", "Failed", of=one, index=9),
    )
    assert run.untracked == ["bad", "high", "none"]
    assert not {"succeeded", "completedIndexes", "uncountedTerminatedPods"} & {*run.changes}


def test_number_of_uncounted_uids_is_limited() -> None:
    pods = [pod(f"p{i:03}", "Failed") for i in range(MAX_UNCOUNTED_PODS + 20)]
    one = job(backoffLimit=9999, parallelism=0)
    run = run_sync(one, *pods)
    assert len(run.untracked) == MAX_UNCOUNTED_PODS
    waiting = run.changes["uncountedTerminatedPods"]["failed"]
    assert len(waiting) == MAX_UNCOUNTED_PODS
    # Pods that are already recorded are untracked, however many there are.
    again = run_sync(job(uncounted(failed=waiting), backoffLimit=9999, parallelism=0), *pods)
    assert (again.changes, len(again.untracked)) == ({}, MAX_UNCOUNTED_PODS)


def test_number_of_indexed_successes_per_sync_is_limited() -> None:
    one = indexed(parallelism=700, completions=700)
    run = run_sync(one, *(pod(f"p{i}", "Succeeded", of=one, index=i) for i in range(700)))
    assert (run.changes["succeeded"], len(run.untracked)) == (
        MAX_UNCOUNTED_PODS,
        MAX_UNCOUNTED_PODS,
    )
    assert "Complete" not in run.conditions


def test_shrinking_job_drops_succeeded_indexes_beyond_completions() -> None:
    done = {"completedIndexes": "0-4", "succeeded": 5}
    run = run_sync(indexed(done, parallelism=2, completions=2))
    assert (run.changes["completedIndexes"], run.changes["succeeded"]) == ("0,1", 2)
    # Without elastic indexes the total never decreases.
    run = run_sync(indexed(done, parallelism=1, completions=2))
    assert (run.changes["completedIndexes"], "succeeded" in run.changes) == ("0,1", False)


def test_shrinking_job_drops_failed_indexes_beyond_completions() -> None:
    one = indexed({"failedIndexes": "1,4"}, backoffLimitPerIndex=1, parallelism=3, completions=3)
    assert run_sync(one).changes["failedIndexes"] == "1"


def test_active_pods_of_a_failed_job_count_as_failed() -> None:
    one = job(parallelism=2, completions=2, backoffLimit=0)
    run = run_sync(one, pod("a", "Failed"), pod("b"))
    assert (run.deleted, run.discarded) == (["b"], [])
    target = {"conditions": [condition("FailureTarget", "BackoffLimitExceeded")], "failed": 1}
    for policy in ("TerminatingOrFailed", "Failed"):
        run = run_sync(job(target, podReplacementPolicy=policy), pod("b", terminating=True))
        assert run.changes["uncountedTerminatedPods"] == {"succeeded": [], "failed": ["uid-b"]}


def test_pods_superseded_by_the_success_policy_are_not_counted() -> None:
    one = indexed(successPolicy={"rules": [{"succeededIndexes": "0"}]})
    run = run_sync(one, pod("a", "Succeeded", of=one, index=0), pod("b", of=one, index=1))
    assert (run.deleted, run.discarded) == ([], ["b"])
    met = {"conditions": [condition("SuccessCriteriaMet", "SuccessPolicy")]}
    one = indexed({"completedIndexes": "0", "succeeded": 1, **met})
    for phase in ("Running", "Failed"):
        run = run_sync(one, pod("b", phase, of=one, index=1, terminating=True))
        assert (run.untracked, "uncountedTerminatedPods" in run.changes) == (["b"], False)
    # A pod that failed on its own is counted.
    run = run_sync(one, pod("c", "Failed", of=one, index=2))
    assert run.changes["uncountedTerminatedPods"]["failed"] == ["uid-c"]


def test_deleted_job_untracks_terminating_pods() -> None:
    one = job(meta={"deletionTimestamp": "2027-01-15T08:00:00Z"}, parallelism=3, completions=3)
    run = run_sync(one, pod("a", terminating=True), pod("b", "Succeeded"), pod("c"))
    assert (run.untracked, run.created, run.deleted) == (["a", "b"], [], [])
