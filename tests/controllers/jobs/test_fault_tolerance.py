"""The Job controller in trouble: killed, blind, misled, and always with the same end."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
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

subject = job_controller()


async def completes(stage: TrialCluster) -> None:
    await stage.create(job(gang=True, parallelism=2, completions=4))
    for _ in range(2):
        await stage.wait_until_idle()
        await stage.finish("Succeeded")


async def fails_and_is_replaced(stage: TrialCluster) -> None:
    await stage.create(indexed(3, gang=True))
    await stage.wait_until_idle()
    await stage.finish("Succeeded", indexes=[0])
    await stage.finish("Failed", indexes=[1])
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


async def gives_up(stage: TrialCluster) -> None:
    await stage.create(job(parallelism=3, completions=3, backoffLimit=0))
    await stage.wait_until_idle()
    await stage.patch(JOB, "train", {"spec": {"parallelism": 2}})
    await stage.wait_until_idle()
    await stage.finish("Failed")


async def gives_up_an_index(stage: TrialCluster) -> None:
    await stage.create(indexed(2, backoffLimitPerIndex=1))
    await stage.wait_until_idle()
    await stage.finish("Failed", indexes=[0])
    await stage.wait_until_idle()
    await stage.finish("Failed", indexes=[0])
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


async def rests_and_goes_on(stage: TrialCluster) -> None:
    await stage.create(job(gang=True, parallelism=3, completions=3, suspend=True))
    await stage.wait_until_idle()
    await stage.patch(JOB, "train", {"spec": {"suspend": False}})
    await stage.wait_until_idle()
    await stage.patch(JOB, "train", {"spec": {"suspend": True}})
    await stage.wait_until_idle()
    await stage.patch(JOB, "train", {"spec": {"suspend": False}})


async def is_met_early(stage: TrialCluster) -> None:
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await stage.create(indexed(3, successPolicy=policy))
    await stage.wait_until_idle()
    await stage.finish("Succeeded", indexes=[0])


async def grows_and_shrinks(stage: TrialCluster) -> None:
    await stage.create(indexed(2, gang=True))
    await stage.wait_until_idle()
    for count in (5, 1):
        await stage.patch(JOB, "train", {"spec": {"parallelism": count, "completions": count}})
        await stage.wait_until_idle()


async def loses_its_objects(stage: TrialCluster) -> None:
    await stage.create(job(gang=True, parallelism=2, completions=6))
    await stage.wait_until_idle()
    (workload,) = (await stage.client.list(WORKLOAD)).items
    await stage.delete(WORKLOAD, workload["metadata"]["name"])
    await stage.wait_until_idle()
    await stage.patch(JOB, "train", {"spec": {"parallelism": 3}})


async def brings_its_own(stage: TrialCluster) -> None:
    await stage.create(workload("mine", 2))
    await stage.create(job(parallelism=3, completions=3))


async def brings_its_own_group(stage: TrialCluster) -> None:
    await stage.create(workload("mine", 2), group("group", "mine", 2))
    await stage.create(job(parallelism=2, completions=2))


async def is_a_part(stage: TrialCluster) -> None:
    parent = {"apiVersion": "example.com/v1", "kind": "Training", "name": "llm", "uid": "u"}
    await stage.create(workload("whole", 2, about=("example.com", "Training", "llm")))
    meta = {
        "ownerReferences": [{**parent, "controller": True}],
        "annotations": {GROUP_TEMPLATE: "workers-0"},
    }
    await stage.create(job(parallelism=2, completions=2, meta=meta))


async def is_deleted(stage: TrialCluster, propagation: str) -> None:
    await stage.create(job(gang=True, parallelism=2, completions=2))
    await stage.wait_until_idle()
    await stage.delete(JOB, "train", propagation)


async def is_deleted_in_the_background(stage: TrialCluster) -> None:
    await is_deleted(stage, "Background")


async def is_deleted_in_the_foreground(stage: TrialCluster) -> None:
    await is_deleted(stage, "Foreground")


async def is_made_again_while_its_orphans_run(stage: TrialCluster) -> None:
    await is_deleted(stage, "Orphan")
    await stage.wait_until_idle()
    await stage.create(job(gang=True, parallelism=1, completions=1))


SCENARIOS = [
    Scenario(act.__name__, act, KINDS, (kubelets, garbage_collectors), JobInvariants)
    for act in (
        completes, fails_and_is_replaced, gives_up, gives_up_an_index, rests_and_goes_on,
        is_met_early, grows_and_shrinks, loses_its_objects, brings_its_own,
        brings_its_own_group, is_a_part,
        is_deleted_in_the_background, is_deleted_in_the_foreground,
        is_made_again_while_its_orphans_run,
    )
]  # fmt: skip
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)


@EACH
def test_whatever_write_it_is_killed_after_the_end_is_the_same(scenario: Scenario) -> None:
    calm = run_trial(scenario, subject)
    assert (calm.violations, calm.late_writes) == ([], [])
    assert compare_trials(scenario, subject, crashes(calm, most=15), calm) == []


@EACH
def test_whoever_takes_over_may_at_first_see_the_past(scenario: Scenario) -> None:
    calm = run_trial(scenario, subject)
    for past in (1, 4, 12):
        assert compare_trials(scenario, subject, crashes(calm, past=past, most=4), calm) == []


@EACH
def test_what_was_never_seen_does_not_matter(scenario: Scenario) -> None:
    calm = run_trial(scenario, subject)
    assert compare_trials(scenario, subject, gaps(calm, most=10), calm) == []


@EACH
def test_events_may_come_twice_and_out_of_order(scenario: Scenario) -> None:
    assert (
        compare_trials(
            scenario, subject, [Fault(repeats_events=True)], run_trial(scenario, subject)
        )
        == []
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
@EACH
def test_every_write_and_every_event_may_be_the_one(scenario: Scenario) -> None:
    calm = run_trial(scenario, subject)
    for past in (0, 1, 2, 3, 5, 8):
        assert compare_trials(scenario, subject, crashes(calm, past=past, most=999), calm) == []
    assert compare_trials(scenario, subject, gaps(calm, most=999), calm) == []
