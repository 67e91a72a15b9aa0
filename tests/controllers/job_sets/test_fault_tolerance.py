"""The JobSet controller with crashes, missed events and stale caches: the end stays the same."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    JOB,
    JOB_SET,
    POD,
    POD_GROUP,
    SERVICE,
    WORKLOAD,
)
from tests.controllers.fault_trials import Fault, Scenario, compare_trials, crashes, gaps, run_trial
from tests.controllers.job_sets.job_set_harness import job_set, job_set_controller, role
from tests.controllers.jobs.job_controller_harness import garbage_collectors, job_controller
from tests.controllers.trial_cluster import TrialCluster, kubelets

KINDS = (JOB_SET, JOB, POD, WORKLOAD, POD_GROUP, COMPOSITE_POD_GROUP, SERVICE)
PARTS = (job_controller(), garbage_collectors, kubelets)


async def completes(cluster: TrialCluster) -> None:
    await cluster.create(job_set(role("driver"), role("workers", 2, 2)))
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def restarts_and_fails(cluster: TrialCluster) -> None:
    # Only the pods of the worker have an index: the same Job is always the first that fails.
    driver = role("driver", job={"completionMode": "NonIndexed"})
    await cluster.create(job_set(driver, role("workers"), failurePolicy={"maxRestarts": 1}))
    for _ in range(2):
        await cluster.wait_until_idle()
        await cluster.finish("Failed", indexes=[0])


async def restarts_one_job(cluster: TrialCluster) -> None:
    rules = [{"name": "alone", "action": "RestartJob", "targetReplicatedJobs": ["workers"]}]
    driver = role("driver", job={"completionMode": "NonIndexed"})
    policy = {"maxRestarts": 1, "rules": rules}
    await cluster.create(job_set(driver, role("workers"), failurePolicy=policy))
    await cluster.wait_until_idle()
    await cluster.finish("Failed", indexes=[0])
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def starts_in_order(cluster: TrialCluster) -> None:
    order = {"startupPolicyOrder": "InOrder"}
    await cluster.create(job_set(role("driver"), role("workers", 2), startupPolicy=order))
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def is_suspended_and_resumed(cluster: TrialCluster) -> None:
    await cluster.create(job_set(role("workers", 2), suspend=True))
    for suspend in (False, True, False):
        await cluster.wait_until_idle()
        await cluster.patch(JOB_SET, "train", {"spec": {"suspend": suspend}})
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def is_resized(cluster: TrialCluster) -> None:
    for pods in (2, 3, 1):
        roles = [role("driver"), role("workers", 1, pods)]
        if pods == 2:
            await cluster.create(job_set(*roles))
        else:
            await cluster.patch(JOB_SET, "train", {"spec": {"replicatedJobs": roles}})
        await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


SCENARIOS = [
    Scenario(run.__name__, run, KINDS, PARTS)
    for run in (
        completes,
        restarts_and_fails,
        restarts_one_job,
        starts_in_order,
        is_suspended_and_resumed,
        is_resized,
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_result_is_the_same_with_every_fault(scenario: Scenario) -> None:
    calm = run_trial(scenario, job_set_controller)
    assert calm.violations == []
    assert calm.late_writes == []
    faults = [
        *crashes(calm, most=12),
        *crashes(calm, past=6, most=8),
        *gaps(calm, most=8),
        Fault(repeats_events=True),
    ]
    assert compare_trials(scenario, job_set_controller, faults, calm) == []


@pytest.mark.parametrize("scenario", SCENARIOS[:2], ids=lambda one: one.name)
def test_settled_set_is_not_written_again_in_ten_further_syncs(scenario: Scenario) -> None:
    calm = run_trial(scenario, job_set_controller)
    assert calm.late_writes == []
