"""Failure rules, success and startup order as pure functions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.batch import Job
from phalanx.api.job_sets import (
    EXCLUSIVE_TOPOLOGY,
    JobSet,
    JobSetStatus,
    ReplicatedJobStatus,
)
from phalanx.api.kinds import WORKLOAD
from phalanx.builder import ObservedObjects
from phalanx.controllers.job_sets.child_jobs import classify_jobs
from phalanx.controllers.job_sets.policies import (
    JobSetFailed,
    JobSetRestart,
    apply_failure_policy,
    startable_roles,
)
from phalanx.controllers.job_sets.scheduling import JobSetTrees
from phalanx.controllers.job_sets.sync import JobSetState, plan_sync
from tests.controllers.job_sets.job_set_harness import job_set, role

PREFIX = "jobset.sigs.k8s.io/"


def decode(*roles: Any, status: Any = None, **spec: Any) -> JobSet:
    return msgspec.convert({**job_set(*roles, **spec), "status": status or {}}, JobSet)


def failed(role: str, index: int = 0, *, at: int = 0, attempt: str = "0", **condition: str) -> Job:
    labels = {
        f"{PREFIX}replicatedjob-name": role,
        f"{PREFIX}job-index": str(index),
        f"{PREFIX}restart-attempt": attempt,
    }
    failure = {
        "type": "Failed",
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "lastTransitionTime": f"2027-01-15T08:00:{at:02}Z",
        **condition,
    }
    return msgspec.convert(
        {
            "metadata": {"name": f"train-{role}-{index}", "labels": labels},
            "status": {"conditions": [failure]},
        },
        Job,
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"targetReplicatedJobs": ["a"]}, True),
        ({"targetReplicatedJobs": ["b"]}, False),
        ({"onJobFailureReasons": ["DeadlineExceeded"]}, True),
        ({"onJobFailureReasons": ["FailedIndexes"]}, False),
        ({"onJobFailureMessagePatterns": ["no match", "out of m.m"]}, True),
        ({"onJobFailureMessagePatterns": ["^memory"]}, False),
        ({"onJobFailureMessagePatterns": ["["]}, False),
        ({"onJobFailureReasons": ["DeadlineExceeded"], "targetReplicatedJobs": ["b"]}, False),
    ],
)
def test_rule_matches_by_target_reason_and_message(rule: Any, expected: bool) -> None:
    policy = {"maxRestarts": 5, "rules": [{"name": "r", "action": "FailJobSet", **rule}]}
    one = failed("a", reason="DeadlineExceeded", message="out of memory")
    outcome = apply_failure_policy(decode(role("a"), role("b"), failurePolicy=policy), [one])
    assert isinstance(outcome, JobSetFailed) is expected


def test_earliest_failure_is_named() -> None:
    jobs = [failed("a", 0, at=9), failed("a", 1, at=3), failed("b", 0, at=3)]
    outcome = apply_failure_policy(decode(role("a", 2), role("b")), jobs)
    assert outcome.message.endswith("(first failed job: train-a-1)")


@pytest.mark.parametrize(
    ("action", "restarts", "counted"),
    [("RestartJobSet", 3, 2), ("RestartJobSetAndIgnoreMaxRestarts", 3, 1)],
)
def test_restart_counts_towards_the_maximum_unless_it_ignores_it(
    action: str, restarts: int, counted: int
) -> None:
    policy = {"maxRestarts": 2, "rules": [{"name": "r", "action": action}]}
    before = {"restarts": 2, "restartsCountTowardsMax": 1}
    one = decode(role("a"), failurePolicy=policy, status=before)
    outcome = apply_failure_policy(one, [failed("a", attempt="2")])
    assert isinstance(outcome, JobSetRestart)
    assert outcome.status.restarts == restarts
    assert outcome.status.restarts_count_towards_max == counted


@pytest.mark.parametrize("action", ["RestartJob", "RestartJobSet"])
@pytest.mark.parametrize("counted", [[1, 0], [1, 1]])
def test_restarts_of_the_set_and_of_all_single_jobs_share_one_maximum(
    action: str, counted: list[int]
) -> None:
    policy = {"maxRestarts": 3, "rules": [{"name": "r", "action": action}]}
    alone = {"name": "a", "jobRestarts": [5, 5], "jobRestartsCountTowardsMax": counted}
    before = {"restarts": 4, "restartsCountTowardsMax": 1, "replicatedJobsStatus": [alone]}
    one = decode(role("a", 2), role("b"), failurePolicy=policy, status=before)
    outcome = apply_failure_policy(one, [failed("b", attempt="4")])
    assert isinstance(outcome, JobSetFailed) is (sum(counted) + 1 >= 3)


def test_jobs_of_earlier_attempts_count_for_nothing() -> None:
    one = decode(role("a", 2), status={"restarts": 2})
    jobs = [failed("a", 0, attempt="1"), failed("a", 1, attempt="2"), failed("a", 1, attempt="x")]
    found = classify_jobs(one, jobs)
    assert [job.metadata.name for job in found.failed] == ["train-a-1"]
    assert len(found.previous) == 2


def test_order_stops_at_the_first_role_that_has_not_started() -> None:
    order = {"startupPolicyOrder": "InOrder"}
    one = decode(role("a", 2), role("b"), role("c"), startupPolicy=order)
    counts = [ReplicatedJobStatus("a", ready=1, succeeded=1), ReplicatedJobStatus("b")]
    started, waits = startable_roles(one, counts)
    assert ([one.name for one in started], waits) == (["a", "b"], True)
    counts[1] = ReplicatedJobStatus("b", ready=1)
    counts.append(ReplicatedJobStatus("c", failed=1))
    started, waits = startable_roles(one, counts)
    assert ([one.name for one in started], waits) == (["a", "b", "c"], False)


def test_status_has_no_counts_before_there_is_something_to_count() -> None:
    new = decode(role("a"), role("b"), meta={"uid": "u"})
    assert plan_sync(JobSetState(new, [], ObservedObjects(), 0.0)).status == new.status
    suspended = decode(role("a"), role("b"), meta={"uid": "u"}, suspend=True)
    state = JobSetState(suspended, [], ObservedObjects(), 0.0, missing_kind=WORKLOAD)
    counts = plan_sync(state).status.replicated_jobs_status
    assert [one.name for one in counts] == ["a", "b"]


def test_tree_is_built_again_when_a_field_that_it_depends_on_changes() -> None:
    trees, first = JobSetTrees(), decode(role("a"), role("b"))
    tree = trees.get(first)
    assert trees.get(msgspec.structs.replace(first, status=JobSetStatus(restarts=1))) is tree
    metadata = msgspec.structs.replace(first.metadata, annotations={EXCLUSIVE_TOPOLOGY: "rack"})
    exclusive = trees.get(msgspec.structs.replace(first, metadata=metadata))
    assert [one.default.topology for one in exclusive.root.children] == [("rack",), ("rack",)]
    metadata = msgspec.structs.replace(first.metadata, generation=2)
    smaller = msgspec.structs.replace(decode(role("a")), metadata=metadata)
    assert [one.name for one in trees.get(smaller).grouped] == ["a"]
