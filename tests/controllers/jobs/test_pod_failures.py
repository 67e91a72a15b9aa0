"""Failed pods under the pod failure policy and the back-off limit per index."""

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
def test_rule_matches_exit_codes_by_operator(
    code: int, operator: str, values: list[int], action: str
) -> None:
    rule = {"onExitCodes": {"operator": operator, "values": values}}
    assert policy_action(rules(("FailJob", rule)), code) == action


def test_rule_may_name_one_container() -> None:
    def about(name: str) -> Object:
        codes = {"operator": "In", "values": [42], "containerName": name}
        return rules(("FailJob", {"onExitCodes": codes}))

    assert policy_action(about("main"), 42) == "FailJob"
    assert policy_action(about("other"), 42) == "Count"


def test_first_matching_rule_decides() -> None:
    policy = rules(("Ignore", DISRUPTED), ("FailJob", CODES))
    assert policy_action(policy, 42, TARGET) == "Ignore"
    assert policy_action(policy, 42) == "FailJob"


def test_fail_index_rule_has_no_effect_without_backoff_limit_per_index() -> None:
    assert policy_action(rules(("FailIndex", CODES)), 42) == "Count"


def test_policy_ignores_disrupted_pods() -> None:
    one = job(podFailurePolicy=rules(("Ignore", DISRUPTED)), backoffLimit=0)
    run = run_sync(one, pod("a", "Failed", conditions=TARGET))
    assert "FailureTarget" not in run.conditions
    assert "uncountedTerminatedPods" not in run.changes
    assert run.untracked == ["a"]


def test_each_index_has_its_own_failure_count() -> None:
    one = per_index()
    run = run_sync(one, pod("a", "Failed", of=one, index=0, failures=0), pod("b", of=one, index=1))
    (new,) = run.plan.pods_to_create
    assert (new.index, dict(new.annotations)) == (0, {FAILURE_COUNT: "1"})
    assert run.untracked == []
    run = run_sync(one, pod("a", "Failed", of=one, index=0, failures=1), pod("b", of=one, index=1))
    assert (run.created, run.changes["failedIndexes"], run.untracked) == ([], "0", ["a"])


def test_last_failed_pod_of_an_index_is_tracked_until_its_replacement_exists() -> None:
    one = per_index(backoffLimitPerIndex=5)
    first = pod("a", "Failed", of=one, index=0, failures=0)
    assert run_sync(one, first, pod("b", of=one, index=1)).untracked == []
    successor = pod("c", of=one, index=0, failures=1)
    assert run_sync(one, first, pod("b", of=one, index=1), successor).untracked == ["a"]


def test_pod_with_a_stale_failure_count_is_no_replacement() -> None:
    one = per_index(backoffLimitPerIndex=5)
    failed = pod("a", "Failed", of=one, index=0, failures=1)
    unaware = pod("c", of=one, index=0, failures=0)
    run = run_sync(one, failed, unaware, pod("b", of=one, index=1))
    assert (run.discarded, run.untracked) == (["c"], [])


def test_ignored_failures_are_counted_separately() -> None:
    one = per_index(podFailurePolicy=rules(("Ignore", DISRUPTED)))
    gone = pod("a", "Failed", of=one, index=0, failures=1, ignored=2, conditions=TARGET)
    (new,) = run_sync(one, gone, pod("b", of=one, index=1), now=NOW_MUCH_LATER).plan.pods_to_create
    assert dict(new.annotations) == {FAILURE_COUNT: "1", IGNORED_FAILURE_COUNT: "3"}
    successor = pod("c", of=one, index=0, failures=1, ignored=3)
    assert run_sync(one, gone, successor, pod("b", of=one, index=1)).untracked == ["a"]


NOW_MUCH_LATER = 1_800_009_999.0


def test_fail_index_rule_fails_the_index_at_once() -> None:
    one = per_index(backoffLimitPerIndex=9, podFailurePolicy=rules(("FailIndex", CODES)))
    run = run_sync(
        one, pod("a", "Failed", of=one, index=0, failures=0, code=42), pod("b", of=one, index=1)
    )
    assert (run.changes["failedIndexes"], run.untracked, run.created) == ("0", ["a"], [])


def test_failed_pod_without_a_valid_index_is_untracked() -> None:
    one = per_index()
    run = run_sync(one, pod("a", "Failed", of=one, index=9, failures=0), pod("b", "Failed"))
    assert run.untracked == ["a", "b"]


def test_succeeded_index_does_not_fail() -> None:
    one = per_index()
    run = run_sync(
        one,
        pod("a", "Failed", of=one, index=0, failures=1),
        pod("b", "Succeeded", of=one, index=0, failures=1),
    )
    assert (run.changes["completedIndexes"], run.changes["failedIndexes"]) == ("0", "")
