"""Who is counted, when, and as what."""

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
def test_a_result_is_written_down_before_the_pod_may_go_and_then_counted(result: str) -> None:
    side = result.lower()
    size: dict[str, Any] = {"parallelism": 2, "completions": 2}
    written = uncounted(**{side: ["uid-a"]})
    seen = run_sync(job(**size), pod("a", result), pod("b"))
    assert (seen.released, "succeeded" in seen.changes) == (["a"], False)
    assert seen.changes["uncountedTerminatedPods"] == written["uncountedTerminatedPods"]
    seen = run_sync(job(written, **size), pod("a", result, tracked=False), pod("b"))
    assert (seen.changes[side], seen.released) == (1, [])
    assert seen.changes["uncountedTerminatedPods"] == {"succeeded": [], "failed": []}


def test_a_pod_that_is_gone_turns_into_its_number() -> None:
    seen = run_sync(job(uncounted(failed=["uid-a", "uid-b"])), pod("b", "Failed"), pod("c"))
    assert seen.changes["failed"] == 1
    assert seen.changes["uncountedTerminatedPods"]["failed"] == ["uid-b"]


def test_a_pod_is_never_counted_twice() -> None:
    counted = {"active": 0, **uncounted(failed=["uid-a"])}
    seen = run_sync(job(counted), pod("a", "Failed", ended=-5))
    assert (seen.changes, seen.released) == ({}, ["a"])


def test_a_pod_that_counted_as_failed_does_not_succeed_afterwards() -> None:
    for one in (job(uncounted(failed=["uid-a"])), indexed(uncounted(failed=["uid-a"]))):
        seen = run_sync(one, pod("a", "Succeeded", of=one, index=0, leaving=True))
        assert "succeeded" not in seen.changes
        assert "completedIndexes" not in seen.changes
        assert seen.released == ["a"]


def test_an_indexed_success_is_an_index_and_no_uid() -> None:
    one = indexed()
    seen = run_sync(one, *(pod(f"p{i}", "Succeeded", of=one, index=i) for i in (0, 2)))
    assert (seen.changes["completedIndexes"], seen.changes["succeeded"]) == ("0,2", 2)
    assert "uncountedTerminatedPods" not in seen.changes
    assert seen.created == [1]


def test_an_index_succeeds_once() -> None:
    one = indexed({"completedIndexes": "0", "succeeded": 1})
    seen = run_sync(one, pod("again", "Succeeded", of=one, index=0))
    assert ("succeeded" in seen.changes, seen.released) == (False, ["again"])


def test_an_index_that_was_given_up_stays_so() -> None:
    one = indexed({"failedIndexes": "0"}, backoffLimitPerIndex=1)
    seen = run_sync(one, pod("late", "Succeeded", of=one, index=0))
    assert "completedIndexes" not in seen.changes
    assert seen.released == ["late"]


def test_what_has_no_index_or_too_high_a_one_counts_as_nothing() -> None:
    one = indexed()
    seen = run_sync(
        one, pod("high", "Succeeded", of=one, index=7), pod("none", "Succeeded"),
        pod("bad", "Failed", of=one, index=9),
    )  # fmt: skip
    assert seen.released == ["bad", "high", "none"]
    assert not {"succeeded", "completedIndexes", "uncountedTerminatedPods"} & {*seen.changes}


def test_no_more_than_so_many_wait_to_be_counted() -> None:
    pods = [pod(f"p{i:03}", "Failed") for i in range(MAX_UNCOUNTED_PODS + 20)]
    one = job(backoffLimit=9999, parallelism=0)
    seen = run_sync(one, *pods)
    assert len(seen.released) == MAX_UNCOUNTED_PODS
    waiting = seen.changes["uncountedTerminatedPods"]["failed"]
    assert len(waiting) == MAX_UNCOUNTED_PODS
    # Those that are written down already may go, however many there are.
    again = run_sync(job(uncounted(failed=waiting), backoffLimit=9999, parallelism=0), *pods)
    assert (again.changes, len(again.released)) == ({}, MAX_UNCOUNTED_PODS)


def test_indexed_successes_are_taken_in_some_at_a_time() -> None:
    one = indexed(parallelism=700, completions=700)
    seen = run_sync(one, *(pod(f"p{i}", "Succeeded", of=one, index=i) for i in range(700)))
    assert (seen.changes["succeeded"], len(seen.released)) == (
        MAX_UNCOUNTED_PODS,
        MAX_UNCOUNTED_PODS,
    )
    assert "Complete" not in seen.conditions


def test_a_job_that_shrinks_forgets_the_indexes_beyond() -> None:
    done = {"completedIndexes": "0-4", "succeeded": 5}
    seen = run_sync(indexed(done, parallelism=2, completions=2))
    assert (seen.changes["completedIndexes"], seen.changes["succeeded"]) == ("0,1", 2)
    # Where the number may not go down it stays, whatever the indexes say.
    seen = run_sync(indexed(done, parallelism=1, completions=2))
    assert (seen.changes["completedIndexes"], "succeeded" in seen.changes) == ("0,1", False)


def test_a_job_that_shrinks_forgets_the_failed_indexes_beyond() -> None:
    one = indexed({"failedIndexes": "1,4"}, backoffLimitPerIndex=1, parallelism=3, completions=3)
    assert run_sync(one).changes["failedIndexes"] == "1"


def test_pods_that_a_failed_job_leaves_behind_count_as_failed() -> None:
    one = job(parallelism=2, completions=2, backoffLimit=0)
    seen = run_sync(one, pod("a", "Failed"), pod("b"))
    assert (seen.deleted, seen.discarded) == (["b"], [])
    target = {"conditions": [condition("FailureTarget", "BackoffLimitExceeded")], "failed": 1}
    for policy in ("TerminatingOrFailed", "Failed"):
        seen = run_sync(job(target, podReplacementPolicy=policy), pod("b", leaving=True))
        assert seen.changes["uncountedTerminatedPods"] == {"succeeded": [], "failed": ["uid-b"]}


def test_pods_that_a_success_leaves_behind_count_as_nothing() -> None:
    one = indexed(successPolicy={"rules": [{"succeededIndexes": "0"}]})
    seen = run_sync(one, pod("a", "Succeeded", of=one, index=0), pod("b", of=one, index=1))
    assert (seen.deleted, seen.discarded) == ([], ["b"])
    met = {"conditions": [condition("SuccessCriteriaMet", "SuccessPolicy")]}
    one = indexed({"completedIndexes": "0", "succeeded": 1, **met})
    for phase in ("Running", "Failed"):
        seen = run_sync(one, pod("b", phase, of=one, index=1, leaving=True))
        assert (seen.released, "uncountedTerminatedPods" in seen.changes) == (["b"], False)
    # What had failed by itself had failed.
    seen = run_sync(one, pod("c", "Failed", of=one, index=2))
    assert seen.changes["uncountedTerminatedPods"]["failed"] == ["uid-c"]


def test_a_job_that_is_deleted_holds_no_pod_that_goes() -> None:
    one = job(meta={"deletionTimestamp": "2027-01-15T08:00:00Z"}, parallelism=3, completions=3)
    seen = run_sync(one, pod("a", leaving=True), pod("b", "Succeeded"), pod("c"))
    assert (seen.released, seen.created, seen.deleted) == (["a", "b"], [], [])
