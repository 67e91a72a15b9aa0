"""How many pods run: whom to make, and whom to delete."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.batch import Job
from phalanx.api.meta import timestamp
from phalanx.controllers.jobs.replicas import MAX_PODS_PER_SYNC
from tests.controllers.jobs.job_builders import NOW, condition, job, pod, run_sync


def indexed(**more: Any) -> Job:
    return job(completionMode="Indexed", **{"parallelism": 3, "completions": 6, **more})


def test_as_many_pods_are_made_as_may_run_at_once() -> None:
    assert len(run_sync(job(parallelism=3, completions=5)).created) == 3


def test_no_more_pods_than_completions_are_left_to_do() -> None:
    assert len(run_sync(job({"succeeded": 4}, parallelism=3, completions=5)).created) == 1


def test_no_more_than_so_many_are_made_or_deleted_at_a_time() -> None:
    assert len(run_sync(job(parallelism=2000, completions=2000)).created) == MAX_PODS_PER_SYNC
    pods = [pod(f"p{i}") for i in range(MAX_PODS_PER_SYNC + 9)]
    assert len(run_sync(job(parallelism=0, completions=9999), *pods).discarded) == MAX_PODS_PER_SYNC


def test_a_queue_of_work_gets_no_more_pods_after_the_first_success() -> None:
    one = job({"succeeded": 1}, parallelism=3, completions=None)
    assert run_sync(one, pod("a")).created == []
    assert len(run_sync(job(parallelism=3, completions=None), pod("a")).created) == 2


def test_pods_that_are_too_many_are_dismissed_the_least_useful_first() -> None:
    one = job(parallelism=1, completions=9)
    ready = [{"type": "Ready", "status": "True"}]
    order = [
        pod("unbound", "Pending"), pod("bound", "Pending", node="n"), pod("running", node="n"),
        pod("ready", node="n", conditions=ready),
    ]  # fmt: skip
    for count in range(1, 4):
        seen = run_sync(one, *order[: count + 1])
        assert seen.discarded == sorted(p.metadata.name for p in order[:count])


def test_who_is_deleted_is_not_replaced_in_the_same_breath() -> None:
    one = indexed(parallelism=2, completions=4)
    seen = run_sync(one, pod("a", of=one, index=0), pod("b", of=one, index=0))
    assert (seen.discarded, seen.created) == (["a"], [])


def test_indexes_are_made_from_the_lowest_free_one() -> None:
    one = job({"completedIndexes": "1"}, parallelism=3, completions=6, completionMode="Indexed")
    assert run_sync(one, pod("p2", of=one, index=2)).created == [0, 3]


def test_doubled_and_too_high_indexes_are_dismissed() -> None:
    one = indexed(parallelism=2, completions=2)
    seen = run_sync(
        one, pod("a", of=one, index=0), pod("b", "Pending", of=one, index=0),
        pod("c", of=one, index=5), pod("d"),
    )  # fmt: skip
    assert seen.discarded == ["b", "c", "d"]


def test_of_two_pods_of_an_index_the_one_is_kept_that_knows_of_more_failures() -> None:
    one = indexed(backoffLimitPerIndex=3, parallelism=1)
    seen = run_sync(
        one, pod("a", of=one, index=0, failures=1), pod("b", of=one, index=0, failures=0, node="n")
    )
    assert seen.discarded == ["b"]


def test_a_pod_whose_index_is_done_is_dismissed() -> None:
    one = job(
        {"completedIndexes": "0", "succeeded": 1}, parallelism=2, completions=2,
        completionMode="Indexed",
    )  # fmt: skip
    seen = run_sync(one, pod("a", of=one, index=0), pod("b", of=one, index=1))
    assert seen.discarded == ["a"]


def test_a_failed_pod_is_replaced_after_a_pause_that_grows() -> None:
    one = job()
    seen = run_sync(one, pod("a", "Failed", ended=-4))
    assert (seen.created, seen.plan.requeue_after) == ([], 6.0)
    assert len(run_sync(one, pod("a", "Failed", ended=-10)).created) == 1
    seen = run_sync(one, pod("a", "Failed", ended=-50), pod("b", "Failed", ended=-5))
    assert seen.plan.requeue_after == 15.0


def test_a_pause_has_a_longest() -> None:
    pods = [pod(f"p{i}", "Failed", ended=-1) for i in range(9)]
    assert run_sync(job(backoffLimit=99), *pods).plan.requeue_after == 599.0


def test_a_success_ends_the_pauses() -> None:
    one = job(parallelism=2, completions=5)
    seen = run_sync(one, pod("a", "Failed", ended=-2), pod("b", "Succeeded", ended=-1))
    assert len(seen.created) == 2


def test_a_pod_of_which_it_is_not_known_when_it_ended_does_not_put_off_its_successor_for_ever(
) -> None:  # fmt: skip
    lost = pod("a", "Failed")
    silent = type(lost)(lost.metadata, lost.spec, type(lost.status)(phase="Failed"))
    assert len(run_sync(job(), silent).created) == 1


def test_a_pod_that_was_dismissed_puts_nobody_off() -> None:
    rested = {"conditions": [condition("Suspended", "JobSuspended")], "startTime": None}
    for phase in ("Running", "Failed"):
        gone = pod("a", phase, leaving=True, tracked=False, ended=0)
        assert len(run_sync(job(rested), gone).created) == 1


@pytest.mark.parametrize(("policy", "made"), [("TerminatingOrFailed", 1), ("Failed", 0)])
def test_when_a_leaving_pod_is_replaced_is_a_matter_of_policy(policy: str, made: int) -> None:
    one = job(podReplacementPolicy=policy, backoffLimit=9)
    assert len(run_sync(one, pod("a", leaving=True), now=NOW + 60).created) == made


def test_an_index_is_not_given_to_two_while_the_first_has_not_ended() -> None:
    one = indexed(parallelism=2, completions=2, podReplacementPolicy="Failed")
    seen = run_sync(one, pod("a", of=one, index=0, leaving=True))
    assert seen.created == [1]


def test_each_index_waits_for_itself() -> None:
    one = indexed(parallelism=3, completions=3, backoffLimitPerIndex=5, backoffLimit=99)
    seen = run_sync(
        one, pod("a", "Failed", of=one, index=0, failures=0, ended=-4),
        pod("b", "Failed", of=one, index=1, failures=1, ended=-15), pod("c", of=one, index=2),
    )  # fmt: skip
    assert (seen.created, seen.plan.requeue_after) == ([], 5.0)
    seen = run_sync(
        one, pod("a", "Failed", of=one, index=0, failures=0, ended=-4),
        pod("b", "Failed", of=one, index=1, failures=1, ended=-20), pod("c", of=one, index=2),
    )  # fmt: skip
    assert (seen.created, seen.plan.requeue_after) == ([1], 6.0)


def test_a_pod_that_was_told_to_go_failed_when_it_was_told() -> None:
    gone = pod("a", leaving=True)
    meta = type(gone.metadata)(
        name="a", uid="uid-a", finalizers=gone.metadata.finalizers,
        deletion_timestamp=timestamp(NOW + 26), deletion_grace_period_seconds=30,
    )  # fmt: skip
    seen = run_sync(job(), type(gone)(meta, gone.spec, type(gone.status)(phase="Running")))
    assert seen.plan.requeue_after == 6.0
