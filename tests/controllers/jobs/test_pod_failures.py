"""What becomes of failed pods: the Job's policy, and the limits of each index."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.batch import Job
from phalanx.api.wire import Object
from phalanx.controllers.jobs.completion import PodFailures
from phalanx.controllers.jobs.job_pods import JobPods
from tests.controllers.jobs.job_builders import (
    FAILURE_COUNT,
    IGNORED_FAILURE_COUNT,
    job,
    pod,
    run_sync,
)

CODES = {"onExitCodes": {"operator": "In", "values": [42]}}
DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
TARGET = [{"type": "DisruptionTarget", "status": "True"}]


def rules(*listed: tuple[str, Object]) -> Object:
    return {"rules": [{"action": action, **more} for action, more in listed]}


def per_index(**more: Any) -> Job:
    spec = {"parallelism": 2, "completions": 2, "backoffLimitPerIndex": 1, **more}
    return job(completionMode="Indexed", backoffLimit=2**31 - 1, **spec)


def policy_action(policy: Object, code: int = 1, conditions: list[Object] | None = None) -> str:
    one = job(podFailurePolicy=policy)
    failed = pod("a", "Failed", code=code, conditions=conditions)
    return PodFailures(JobPods(one, [failed])).match_policy(failed).action


@pytest.mark.parametrize(
    ("code", "operator", "values", "action"),
    [
        (42, "In", [42], "FailJob"),
        (1, "In", [42], "Count"),
        (1, "NotIn", [42], "FailJob"),
        (42, "NotIn", [42], "Count"),
        (0, "NotIn", [42], "Count"),
    ],
)
def test_an_exit_code_falls_under_a_rule(
    code: int, operator: str, values: list[int], action: str
) -> None:
    rule = {"onExitCodes": {"operator": operator, "values": values}}
    assert policy_action(rules(("FailJob", rule)), code) == action


def test_a_rule_may_be_about_one_container() -> None:
    def about(name: str) -> Object:
        codes = {"operator": "In", "values": [42], "containerName": name}
        return rules(("FailJob", {"onExitCodes": codes}))

    assert policy_action(about("main"), 42) == "FailJob"
    assert policy_action(about("other"), 42) == "Count"


def test_the_first_rule_that_fits_counts() -> None:
    policy = rules(("Ignore", DISRUPTED), ("FailJob", CODES))
    assert policy_action(policy, 42, TARGET) == "Ignore"
    assert policy_action(policy, 42) == "FailJob"


def test_an_index_cannot_be_failed_where_none_has_a_limit() -> None:
    assert policy_action(rules(("FailIndex", CODES)), 42) == "Count"


def test_a_policy_ignores_pods_that_were_disrupted() -> None:
    one = job(podFailurePolicy=rules(("Ignore", DISRUPTED)), backoffLimit=0)
    seen = run_sync(one, pod("a", "Failed", conditions=TARGET))
    assert "FailureTarget" not in seen.conditions
    assert "uncountedTerminatedPods" not in seen.changes
    assert seen.released == ["a"]


def test_each_index_has_failures_of_its_own() -> None:
    one = per_index()
    seen = run_sync(one, pod("a", "Failed", of=one, index=0, failures=0), pod("b", of=one, index=1))
    (order,) = seen.plan.pods_to_create
    assert (order.index, dict(order.annotations)) == (0, {FAILURE_COUNT: "1"})
    assert seen.released == []
    seen = run_sync(one, pod("a", "Failed", of=one, index=0, failures=1), pod("b", of=one, index=1))
    assert (seen.created, seen.changes["failedIndexes"], seen.released) == ([], "0", ["a"])


def test_the_last_failed_pod_of_an_index_stays_until_its_successor_is_there() -> None:
    one = per_index(backoffLimitPerIndex=5)
    first = pod("a", "Failed", of=one, index=0, failures=0)
    assert run_sync(one, first, pod("b", of=one, index=1)).released == []
    successor = pod("c", of=one, index=0, failures=1)
    assert run_sync(one, first, pod("b", of=one, index=1), successor).released == ["a"]


def test_a_pod_that_does_not_know_of_a_failure_of_its_index_is_no_successor() -> None:
    one = per_index(backoffLimitPerIndex=5)
    failed = pod("a", "Failed", of=one, index=0, failures=1)
    unaware = pod("c", of=one, index=0, failures=0)
    seen = run_sync(one, failed, unaware, pod("b", of=one, index=1))
    assert (seen.discarded, seen.released) == (["c"], [])


def test_an_ignored_failure_is_carried_on_beside_the_others() -> None:
    one = per_index(podFailurePolicy=rules(("Ignore", DISRUPTED)))
    gone = pod("a", "Failed", of=one, index=0, failures=1, ignored=2, conditions=TARGET)
    (order,) = run_sync(
        one, gone, pod("b", of=one, index=1), now=NOW_MUCH_LATER
    ).plan.pods_to_create
    assert dict(order.annotations) == {FAILURE_COUNT: "1", IGNORED_FAILURE_COUNT: "3"}
    successor = pod("c", of=one, index=0, failures=1, ignored=3)
    assert run_sync(one, gone, successor, pod("b", of=one, index=1)).released == ["a"]


NOW_MUCH_LATER = 1_800_009_999.0


def test_a_policy_fails_an_index_at_once() -> None:
    one = per_index(backoffLimitPerIndex=9, podFailurePolicy=rules(("FailIndex", CODES)))
    seen = run_sync(
        one, pod("a", "Failed", of=one, index=0, failures=0, code=42), pod("b", of=one, index=1)
    )
    assert (seen.changes["failedIndexes"], seen.released, seen.created) == ("0", ["a"], [])


def test_a_failed_pod_without_a_proper_index_is_let_go() -> None:
    one = per_index()
    seen = run_sync(one, pod("a", "Failed", of=one, index=9, failures=0), pod("b", "Failed"))
    assert seen.released == ["a", "b"]


def test_an_index_that_succeeded_is_not_given_up() -> None:
    one = per_index()
    seen = run_sync(
        one, pod("a", "Failed", of=one, index=0, failures=1),
        pod("b", "Succeeded", of=one, index=0, failures=1),
    )  # fmt: skip
    assert (seen.changes["completedIndexes"], seen.changes["failedIndexes"]) == ("0", "")
