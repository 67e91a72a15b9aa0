"""The number of pods: which to create, and which to delete."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.batch import Job
from phalanx.api.meta import timestamp
from phalanx.controllers.jobs.replicas import MAX_PODS_PER_SYNC
from tests.controllers.jobs.job_builders import NOW, condition, job, pod, run_sync


def indexed(**more: Any) -> Job:
    return job(completionMode="Indexed", **{"parallelism": 3, "completions": 6, **more})


def test_pods_are_created_up_to_parallelism() -> None:
    assert len(run_sync(job(parallelism=3, completions=5)).created) == 3


def test_pods_are_created_up_to_the_remaining_completions() -> None:
    assert len(run_sync(job({"succeeded": 4}, parallelism=3, completions=5)).created) == 1


def test_number_of_pods_per_sync_is_limited() -> None:
    assert len(run_sync(job(parallelism=2000, completions=2000)).created) == MAX_PODS_PER_SYNC
    pods = [pod(f"p{i}") for i in range(MAX_PODS_PER_SYNC + 9)]
    assert len(run_sync(job(parallelism=0, completions=9999), *pods).discarded) == MAX_PODS_PER_SYNC


def test_work_queue_job_gets_no_pods_after_the_first_success() -> None:
    one = job({"succeeded": 1}, parallelism=3, completions=None)
    assert run_sync(one, pod("a")).created == []
    assert len(run_sync(job(parallelism=3, completions=None), pod("a")).created) == 2


def test_surplus_pods_are_deleted_lowest_rank_first() -> None:
    one = job(parallelism=1, completions=9)
    ready = [{"type": "Ready", "status": "True"}]
    order = [
        pod("unbound", "Pending"),
        pod("bound", "Pending", node="n"),
        pod("running", node="n"),
        pod("ready", node="n", conditions=ready),
    ]
    for count in range(1, 4):
        run = run_sync(one, *order[: count + 1])
        assert run.discarded == sorted(p.metadata.name for p in order[:count])


def test_deleted_pods_are_not_replaced_in_the_same_sync() -> None:
    one = indexed(parallelism=2, completions=4)
    run = run_sync(one, pod("a", of=one, index=0), pod("b", of=one, index=0))
    assert (run.discarded, run.created) == (["a"], [])


def test_lowest_free_indexes_are_created_first() -> None:
    one = job({"completedIndexes": "1"}, parallelism=3, completions=6, completionMode="Indexed")
    assert run_sync(one, pod("p2", of=one, index=2)).created == [0, 3]


def test_pods_with_duplicate_or_invalid_indexes_are_deleted() -> None:
    one = indexed(parallelism=2, completions=2)
    run = run_sync(
        one,
        pod("a", of=one, index=0),
        pod("b", "Pending", of=one, index=0),
        pod("c", of=one, index=5),
        pod("d"),
    )
    assert run.discarded == ["b", "c", "d"]


def test_pod_with_the_higher_failure_count_of_an_index_is_kept() -> None:
    one = indexed(backoffLimitPerIndex=3, parallelism=1)
    run = run_sync(
        one, pod("a", of=one, index=0, failures=1), pod("b", of=one, index=0, failures=0, node="n")
    )
    assert run.discarded == ["b"]


def test_pod_of_a_finished_index_is_deleted() -> None:
    one = job(
        {"completedIndexes": "0", "succeeded": 1},
        parallelism=2,
        completions=2,
        completionMode="Indexed",
    )
    run = run_sync(one, pod("a", of=one, index=0), pod("b", of=one, index=1))
    assert run.discarded == ["a"]


def test_failed_pod_is_replaced_after_a_growing_backoff() -> None:
    one = job()
    run = run_sync(one, pod("a", "Failed", finished=-4))
    assert (run.created, run.plan.requeue_after) == ([], 6.0)
    assert len(run_sync(one, pod("a", "Failed", finished=-10)).created) == 1
    run = run_sync(one, pod("a", "Failed", finished=-50), pod("b", "Failed", finished=-5))
    assert run.plan.requeue_after == 15.0


def test_backoff_is_limited() -> None:
    pods = [pod(f"p{i}", "Failed", finished=-1) for i in range(9)]
    assert run_sync(job(backoffLimit=99), *pods).plan.requeue_after == 599.0


def test_success_resets_the_backoff() -> None:
    one = job(parallelism=2, completions=5)
    run = run_sync(one, pod("a", "Failed", finished=-2), pod("b", "Succeeded", finished=-1))
    assert len(run.created) == 2


def test_failed_pod_without_a_finish_time_is_replaced() -> None:
    failed = pod("a", "Failed")
    bare = type(failed)(failed.metadata, failed.spec, type(failed.status)(phase="Failed"))
    assert len(run_sync(job(), bare).created) == 1


def test_discarded_pod_causes_no_backoff() -> None:
    suspended = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    for phase in ("Running", "Failed"):
        discarded = pod("a", phase, terminating=True, tracked=False, finished=0)
        assert len(run_sync(job(suspended), discarded).created) == 1


@pytest.mark.parametrize(("policy", "created"), [("TerminatingOrFailed", 1), ("Failed", 0)])
def test_replacement_policy_decides_when_a_terminating_pod_is_replaced(
    policy: str, created: int
) -> None:
    one = job(podReplacementPolicy=policy, backoffLimit=9)
    assert len(run_sync(one, pod("a", terminating=True), now=NOW + 60).created) == created


def test_index_of_a_terminating_pod_is_not_free_with_replacement_policy_failed() -> None:
    one = indexed(parallelism=2, completions=2, podReplacementPolicy="Failed")
    run = run_sync(one, pod("a", of=one, index=0, terminating=True))
    assert run.created == [1]


def test_each_index_has_its_own_backoff() -> None:
    one = indexed(parallelism=3, completions=3, backoffLimitPerIndex=5, backoffLimit=99)
    run = run_sync(
        one,
        pod("a", "Failed", of=one, index=0, failures=0, finished=-4),
        pod("b", "Failed", of=one, index=1, failures=1, finished=-15),
        pod("c", of=one, index=2),
    )
    assert (run.created, run.plan.requeue_after) == ([], 5.0)
    run = run_sync(
        one,
        pod("a", "Failed", of=one, index=0, failures=0, finished=-4),
        pod("b", "Failed", of=one, index=1, failures=1, finished=-20),
        pod("c", of=one, index=2),
    )
    assert (run.created, run.plan.requeue_after) == ([1], 6.0)


def test_deleted_pod_counts_as_failed_from_its_deletion() -> None:
    gone = pod("a", terminating=True)
    meta = type(gone.metadata)(
        name="a",
        uid="uid-a",
        finalizers=gone.metadata.finalizers,
        deletion_timestamp=timestamp(NOW + 26),
        deletion_grace_period_seconds=30,
    )
    run = run_sync(job(), type(gone)(meta, gone.spec, type(gone.status)(phase="Running")))
    assert run.plan.requeue_after == 6.0
