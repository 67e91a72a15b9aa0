"""The Job controller with crashes, missed events and stale caches: the end is always the same."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import JOB, POD, POD_GROUP, RESOURCE_QUOTA, WORKLOAD
from phalanx.api.meta import Key
from phalanx.builder.ownership import GROUP_TEMPLATE
from tests.controllers.fault_trials import Fault, Scenario, compare_trials, crashes, gaps, run_trial
from tests.controllers.jobs.job_controller_harness import (
    garbage_collectors,
    group,
    indexed,
    job,
    workload,
)
from tests.controllers.jobs.job_controller_harness import job_controller as job_controller
from tests.controllers.jobs.job_invariants import JobInvariants
from tests.controllers.trial_cluster import TrialCluster, kubelets

KINDS = (JOB, POD, WORKLOAD, POD_GROUP)

controller = job_controller()


async def completes(cluster: TrialCluster) -> None:
    await cluster.create(job(gang=True, parallelism=2, completions=4))
    for _ in range(2):
        await cluster.wait_until_idle()
        await cluster.finish("Succeeded")


async def fails_and_is_replaced(cluster: TrialCluster) -> None:
    await cluster.create(indexed(3, gang=True))
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded", indexes=[0])
    await cluster.finish("Failed", indexes=[1])
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def fails(cluster: TrialCluster) -> None:
    await cluster.create(job(parallelism=3, completions=3, backoffLimit=0))
    await cluster.wait_until_idle()
    await cluster.patch(JOB, "train", {"spec": {"parallelism": 2}})
    await cluster.wait_until_idle()
    await cluster.finish("Failed")


async def fails_an_index(cluster: TrialCluster) -> None:
    await cluster.create(indexed(2, backoffLimitPerIndex=1))
    await cluster.wait_until_idle()
    await cluster.finish("Failed", indexes=[0])
    await cluster.wait_until_idle()
    await cluster.finish("Failed", indexes=[0])
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def is_suspended_and_resumed(cluster: TrialCluster) -> None:
    await cluster.create(job(gang=True, parallelism=3, completions=3, suspend=True))
    await cluster.wait_until_idle()
    await cluster.patch(JOB, "train", {"spec": {"suspend": False}})
    await cluster.wait_until_idle()
    await cluster.patch(JOB, "train", {"spec": {"suspend": True}})
    await cluster.wait_until_idle()
    await cluster.patch(JOB, "train", {"spec": {"suspend": False}})


async def meets_its_success_policy(cluster: TrialCluster) -> None:
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await cluster.create(indexed(3, successPolicy=policy))
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded", indexes=[0])


async def grows_and_shrinks(cluster: TrialCluster) -> None:
    await cluster.create(indexed(2, gang=True))
    await cluster.wait_until_idle()
    for count in (5, 1):
        await cluster.patch(JOB, "train", {"spec": {"parallelism": count, "completions": count}})
        await cluster.wait_until_idle()


async def loses_its_objects(cluster: TrialCluster) -> None:
    await cluster.create(job(gang=True, parallelism=2, completions=6))
    await cluster.wait_until_idle()
    (workload,) = (await cluster.client.list(WORKLOAD)).items
    await cluster.delete(WORKLOAD, workload["metadata"]["name"])
    await cluster.wait_until_idle()
    await cluster.patch(JOB, "train", {"spec": {"parallelism": 3}})


async def uses_a_workload_of_the_user(cluster: TrialCluster) -> None:
    await cluster.create(workload("mine", 2))
    await cluster.create(job(parallelism=3, completions=3))


async def uses_a_group_of_the_user(cluster: TrialCluster) -> None:
    await cluster.create(workload("mine", 2), group("group", "mine", 2))
    await cluster.create(job(parallelism=2, completions=2))


async def is_a_child(cluster: TrialCluster) -> None:
    parent = {"apiVersion": "example.com/v1", "kind": "Training", "name": "llm", "uid": "u"}
    await cluster.create(workload("whole", 2, target=("example.com", "Training", "llm")))
    meta = {
        "ownerReferences": [{**parent, "controller": True}],
        "annotations": {GROUP_TEMPLATE: "workers-0"},
    }
    await cluster.create(job(parallelism=2, completions=2, meta=meta))


async def is_deleted(cluster: TrialCluster, propagation: str) -> None:
    await cluster.create(job(gang=True, parallelism=2, completions=2))
    await cluster.wait_until_idle()
    await cluster.delete(JOB, "train", propagation)


async def is_deleted_in_the_background(cluster: TrialCluster) -> None:
    await is_deleted(cluster, "Background")


async def is_deleted_in_the_foreground(cluster: TrialCluster) -> None:
    await is_deleted(cluster, "Foreground")


async def is_created_again_while_its_orphans_run(cluster: TrialCluster) -> None:
    await is_deleted(cluster, "Orphan")
    await cluster.wait_until_idle()
    await cluster.create(job(gang=True, parallelism=1, completions=1))


async def waits_for_a_quota(cluster: TrialCluster) -> None:
    meta = {"name": "few", "namespace": "default"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta}
    await cluster.create({**quota, "spec": {"hard": {"pods": "2"}}})
    await cluster.create(job(gang=True, parallelism=3, completions=3))
    await cluster.wait_until_idle()
    await cluster.patch(RESOURCE_QUOTA, "few", {"spec": {"hard": {"pods": "3"}}})


async def is_restarted(cluster: TrialCluster) -> None:
    meta = {"annotations": {"phalanx.dev/on-degraded": "Restart"}}
    await cluster.create(indexed(3, gang=True, meta=meta, backoffLimit=0))
    await cluster.wait_until_idle()
    for pod in await cluster.list_objects(POD):
        path = POD.url_path("default", pod["metadata"]["name"], "binding")
        await cluster.client.post(path, {"target": {"kind": "Node", "name": "n"}})
    degraded = {
        "type": "Degraded",
        "status": "True",
        "reason": "ReplacementUnschedulable",
        "message": "the rack is full",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    group = await cluster.get_only(POD_GROUP)
    key = Key("default", group["metadata"]["name"])
    change = {"status": {"conditions": [degraded]}}
    await cluster.client.patch(POD_GROUP, key, change, subresource="status")
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


async def is_evicted(cluster: TrialCluster) -> None:
    await cluster.create(indexed(3, gang=True, backoffLimit=0))
    await cluster.wait_until_idle()
    for pod in (await cluster.list_objects(POD))[:2]:
        path = POD.url_path("default", pod["metadata"]["name"], "eviction")
        await cluster.client.post(path, {"apiVersion": "policy/v1", "kind": "Eviction"})
    await cluster.wait_until_idle()
    await cluster.finish("Succeeded")


SCENARIOS = [
    Scenario(act.__name__, act, KINDS, (kubelets, garbage_collectors), JobInvariants)
    for act in (
        completes,
        fails_and_is_replaced,
        fails,
        fails_an_index,
        is_suspended_and_resumed,
        meets_its_success_policy,
        grows_and_shrinks,
        loses_its_objects,
        uses_a_workload_of_the_user,
        uses_a_group_of_the_user,
        is_a_child,
        is_deleted_in_the_background,
        is_deleted_in_the_foreground,
        is_created_again_while_its_orphans_run,
        waits_for_a_quota,
        is_restarted,
        is_evicted,
    )
]
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)


@pytest.mark.slow
@EACH
def test_crash_after_any_write_leads_to_the_same_end(scenario: Scenario) -> None:
    undisturbed = run_trial(scenario, controller)
    assert (undisturbed.violations, undisturbed.late_writes) == ([], [])
    assert compare_trials(scenario, controller, crashes(undisturbed, most=15), undisturbed) == []


@pytest.mark.slow
@EACH
def test_successor_may_start_with_a_stale_cache(scenario: Scenario) -> None:
    undisturbed = run_trial(scenario, controller)
    for past in (1, 4, 12):
        assert (
            compare_trials(
                scenario, controller, crashes(undisturbed, past=past, most=4), undisturbed
            )
            == []
        )


@pytest.mark.slow
@EACH
def test_missed_events_do_not_change_the_end(scenario: Scenario) -> None:
    undisturbed = run_trial(scenario, controller)
    assert compare_trials(scenario, controller, gaps(undisturbed, most=10), undisturbed) == []


@pytest.mark.mostly_slow(quick_every=3)
@EACH
def test_repeated_and_reordered_events_do_not_change_the_end(scenario: Scenario) -> None:
    assert (
        compare_trials(
            scenario, controller, [Fault(repeats_events=True)], run_trial(scenario, controller)
        )
        == []
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
@EACH
def test_fault_at_every_write_and_every_event_leads_to_the_same_end(scenario: Scenario) -> None:
    undisturbed = run_trial(scenario, controller)
    for past in (0, 1, 2, 3, 5, 8):
        assert (
            compare_trials(
                scenario, controller, crashes(undisturbed, past=past, most=999), undisturbed
            )
            == []
        )
    assert compare_trials(scenario, controller, gaps(undisturbed, most=999), undisturbed) == []
