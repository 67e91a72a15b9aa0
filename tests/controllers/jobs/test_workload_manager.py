"""What of a Job's scheduling is looked after, by gates and options."""

from __future__ import annotations

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.controllers.jobs.workload_manager import (
    LONG_QUEUE,
    JobSchedulingOptions,
    options_from_gates,
)
from tests.builders import in_virtual_time
from tests.controllers.jobs.job_controller_harness import (
    groups_of,
    indexed,
    job,
    job_controller,
    running_job_controller,
)
from tests.controllers.trial_cluster import TrialCluster, kubelets, running_parts


def test_gates_say_what_is_looked_after() -> None:
    assert options_from_gates(resolve_gates({})) == JobSchedulingOptions(
        include_basic=True, use_gang_policy=True, infer_gang=False, release_groups=False
    )
    assert options_from_gates(resolve_gates({}), include_basic=False) == JobSchedulingOptions(
        include_basic=False
    )
    assert options_from_gates(resolve_gates({"WorkloadWithJob": False})) is None
    assert options_from_gates(resolve_gates({"GenericWorkload": False})) is None
    on = resolve_gates(
        {"JobGangInference": True, "JobReleaseScheduling": True, "JobGangPolicy": False}
    )
    assert options_from_gates(on) == JobSchedulingOptions(
        use_gang_policy=False, infer_gang=True, release_groups=True
    )


@in_virtual_time
async def test_a_word_is_not_heeded_while_its_gate_is_off() -> None:
    async with running_job_controller(JobSchedulingOptions(use_gang_policy=False)) as stage:
        await stage.create(job(gangPolicy={"policy": "JobAsGang"}, parallelism=2))
        await stage.wait_until_idle()
        assert (await stage.get_only(POD_GROUP))["spec"]["schedulingPolicy"] == {"basic": {}}


@in_virtual_time
async def test_a_job_that_rests_gives_its_group_back_and_gets_another_where_that_is_asked_for(
) -> None:  # fmt: skip
    async with running_job_controller(JobSchedulingOptions(release_groups=True)) as stage:
        await stage.create(job(gang=True, parallelism=2, completions=2))
        await stage.wait_until_idle()
        made, of = await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)
        await stage.patch(JOB, "train", {"spec": {"suspend": True}})
        await stage.wait_until_idle()
        assert (await stage.get_only(WORKLOAD), await stage.list_objects(POD_GROUP)) == (made, [])
        await stage.patch(JOB, "train", {"spec": {"suspend": False}})
        await stage.wait_until_idle()
        again = await stage.get_only(POD_GROUP)
        assert again["metadata"]["uid"] != of["metadata"]["uid"]
        assert groups_of(await stage.list_objects(POD)) == [again["metadata"]["name"]] * 2
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        assert await stage.list_objects(POD_GROUP) == []


@in_virtual_time
async def test_when_many_jobs_come_at_once_each_gets_its_workload_before_any_gets_more() -> None:
    stage = TrialCluster()
    await stage.server.start()
    many = [f"train-{n}" for n in range(2 * LONG_QUEUE)]
    await stage.create(*map(job, many))
    order: list[str] = []
    stage.store.subscribe(lambda changes: order.extend(
        change.key.split("/")[2] for change in changes if change.before is None
    ))  # fmt: skip
    async with running_parts(stage, job_controller(), kubelets):
        await stage.wait_until_idle()
    assert order.count("pods") == order.count("podgroups") == len(many)
    assert order[: order.index("podgroups")].count("workloads") >= LONG_QUEUE


@in_virtual_time
async def test_otherwise_a_job_that_rests_or_has_ended_keeps_its_group() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(gang=True))
        await stage.wait_until_idle()
        uid = (await stage.get_only(POD_GROUP))["metadata"]["uid"]
        for suspend in (True, False):
            await stage.patch(JOB, "train", {"spec": {"suspend": suspend}})
            await stage.wait_until_idle()
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        assert (await stage.get_only(POD_GROUP))["metadata"]["uid"] == uid


@in_virtual_time
async def test_a_job_is_a_gang_by_its_shape_and_keeps_it_where_that_is_asked_for() -> None:
    gates = resolve_gates({"JobGangInference": True})
    async with running_job_controller(options_from_gates(gates), gates=gates) as stage:
        await stage.create(indexed(3))
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert of["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        with pytest.raises(Invalid) as refused:
            await stage.patch(JOB, "train", {"spec": {"parallelism": 4, "completions": 4}})
        assert [cause.field for cause in refused.value.causes] == ["spec.parallelism"]
        # What is no gang by its shape then may change; the group goes on with what will still run.
        await stage.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await stage.wait_until_idle()
        of = await stage.get_only(POD_GROUP)
        assert of["metadata"]["annotations"]["phalanx.dev/members-to-run"] == "2"


@in_virtual_time
async def test_without_that_shape_says_nothing_and_may_change() -> None:
    async with running_job_controller() as stage:
        await stage.create(indexed(3))
        await stage.wait_until_idle()
        assert (await stage.get_only(POD_GROUP))["spec"]["schedulingPolicy"] == {"basic": {}}
        await stage.patch(JOB, "train", {"spec": {"parallelism": 4, "completions": 4}})
