"""The Job controller in trouble: killed, blind, misled, and always with the same end."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.builder.links import GROUP_TEMPLATE
from tests.controllers.jobs.laws import Laws
from tests.controllers.jobs.work import collectors, group, indexed, job, workload
from tests.controllers.jobs.work import subject as job_controller
from tests.controllers.trials import Scenario, Trouble, crashes, gaps, judge, play
from tests.controllers.trialstage import Stage, kubelets

KINDS = (JOB, POD, WORKLOAD, POD_GROUP)

subject = job_controller()


async def completes(stage: Stage) -> None:
    await stage.create(job(gang=True, parallelism=2, completions=4))
    for _ in range(2):
        await stage.rest()
        await stage.finish("Succeeded")


async def fails_and_is_replaced(stage: Stage) -> None:
    await stage.create(indexed(3, gang=True))
    await stage.rest()
    await stage.finish("Succeeded", indexes=[0])
    await stage.finish("Failed", indexes=[1])
    await stage.rest()
    await stage.finish("Succeeded")


async def gives_up(stage: Stage) -> None:
    await stage.create(job(parallelism=3, completions=3, backoffLimit=0))
    await stage.rest()
    await stage.patch(JOB, "train", {"spec": {"parallelism": 2}})
    await stage.rest()
    await stage.finish("Failed")


async def gives_up_an_index(stage: Stage) -> None:
    await stage.create(indexed(2, backoffLimitPerIndex=1))
    await stage.rest()
    await stage.finish("Failed", indexes=[0])
    await stage.rest()
    await stage.finish("Failed", indexes=[0])
    await stage.rest()
    await stage.finish("Succeeded")


async def rests_and_goes_on(stage: Stage) -> None:
    await stage.create(job(gang=True, parallelism=3, completions=3, suspend=True))
    await stage.rest()
    await stage.patch(JOB, "train", {"spec": {"suspend": False}})
    await stage.rest()
    await stage.patch(JOB, "train", {"spec": {"suspend": True}})
    await stage.rest()
    await stage.patch(JOB, "train", {"spec": {"suspend": False}})


async def is_met_early(stage: Stage) -> None:
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await stage.create(indexed(3, successPolicy=policy))
    await stage.rest()
    await stage.finish("Succeeded", indexes=[0])


async def grows_and_shrinks(stage: Stage) -> None:
    await stage.create(indexed(2, gang=True))
    await stage.rest()
    for count in (5, 1):
        await stage.patch(JOB, "train", {"spec": {"parallelism": count, "completions": count}})
        await stage.rest()


async def loses_its_objects(stage: Stage) -> None:
    await stage.create(job(gang=True, parallelism=2, completions=6))
    await stage.rest()
    (workload,) = (await stage.client.list(WORKLOAD)).items
    await stage.delete(WORKLOAD, workload["metadata"]["name"])
    await stage.rest()
    await stage.patch(JOB, "train", {"spec": {"parallelism": 3}})


async def brings_its_own(stage: Stage) -> None:
    await stage.create(workload("mine", 2))
    await stage.create(job(parallelism=3, completions=3))


async def brings_its_own_group(stage: Stage) -> None:
    await stage.create(workload("mine", 2), group("group", "mine", 2))
    await stage.create(job(parallelism=2, completions=2))


async def is_a_part(stage: Stage) -> None:
    parent = {"apiVersion": "example.com/v1", "kind": "Training", "name": "llm", "uid": "u"}
    await stage.create(workload("whole", 2, about=("example.com", "Training", "llm")))
    meta = {
        "ownerReferences": [{**parent, "controller": True}],
        "annotations": {GROUP_TEMPLATE: "workers-0"},
    }
    await stage.create(job(parallelism=2, completions=2, meta=meta))


async def is_deleted(stage: Stage, propagation: str) -> None:
    await stage.create(job(gang=True, parallelism=2, completions=2))
    await stage.rest()
    await stage.delete(JOB, "train", propagation)


async def is_deleted_in_the_background(stage: Stage) -> None:
    await is_deleted(stage, "Background")


async def is_deleted_in_the_foreground(stage: Stage) -> None:
    await is_deleted(stage, "Foreground")


async def is_made_again_while_its_orphans_run(stage: Stage) -> None:
    await is_deleted(stage, "Orphan")
    await stage.rest()
    await stage.create(job(gang=True, parallelism=1, completions=1))


SCENARIOS = [
    Scenario(act.__name__, act, KINDS, (kubelets, collectors), Laws)
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
    calm = play(scenario, subject)
    assert (calm.wrongs, calm.unrest) == ([], [])
    assert judge(scenario, subject, crashes(calm, most=15), calm) == []


@EACH
def test_whoever_takes_over_may_at_first_see_the_past(scenario: Scenario) -> None:
    calm = play(scenario, subject)
    for past in (1, 4, 12):
        assert judge(scenario, subject, crashes(calm, past=past, most=4), calm) == []


@EACH
def test_what_was_never_seen_does_not_matter(scenario: Scenario) -> None:
    calm = play(scenario, subject)
    assert judge(scenario, subject, gaps(calm, most=10), calm) == []


@EACH
def test_events_may_come_twice_and_out_of_order(scenario: Scenario) -> None:
    assert judge(scenario, subject, [Trouble(babbles=True)], play(scenario, subject)) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@EACH
def test_every_write_and_every_event_may_be_the_one(scenario: Scenario) -> None:
    calm = play(scenario, subject)
    for past in (0, 1, 2, 3, 5, 8):
        assert judge(scenario, subject, crashes(calm, past=past, most=999), calm) == []
    assert judge(scenario, subject, gaps(calm, most=999), calm) == []
