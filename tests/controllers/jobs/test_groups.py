"""What of a Job's scheduling is looked after, by gates and options."""

from __future__ import annotations

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.gates import gated
from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.controllers.jobs.groups import MANY, Settings, by_gates
from tests.builders import in_virtual_time
from tests.controllers.jobs.work import at_work, groups_of, indexed, job, subject
from tests.controllers.trialstage import Stage, acting, kubelets


def test_gates_say_what_is_looked_after() -> None:
    assert by_gates(gated({})) == Settings(basic=True, words=True, infer=False, release=False)
    assert by_gates(gated({}), basic=False) == Settings(basic=False)
    assert by_gates(gated({"WorkloadWithJob": False})) is None
    assert by_gates(gated({"GenericWorkload": False})) is None
    on = gated({"JobGangInference": True, "JobReleaseScheduling": True, "JobGangPolicy": False})
    assert by_gates(on) == Settings(words=False, infer=True, release=True)


@in_virtual_time
async def test_a_word_is_not_heeded_while_its_gate_is_off() -> None:
    async with at_work(Settings(words=False)) as stage:
        await stage.create(job(gangPolicy={"policy": "JobAsGang"}, parallelism=2))
        await stage.rest()
        assert (await stage.one(POD_GROUP))["spec"]["schedulingPolicy"] == {"basic": {}}


@in_virtual_time
async def test_a_job_that_rests_gives_its_group_back_and_gets_another_where_that_is_asked_for(
) -> None:  # fmt: skip
    async with at_work(Settings(release=True)) as stage:
        await stage.create(job(gang=True, parallelism=2, completions=2))
        await stage.rest()
        made, of = await stage.one(WORKLOAD), await stage.one(POD_GROUP)
        await stage.patch(JOB, "train", {"spec": {"suspend": True}})
        await stage.rest()
        assert (await stage.one(WORKLOAD), await stage.all(POD_GROUP)) == (made, [])
        await stage.patch(JOB, "train", {"spec": {"suspend": False}})
        await stage.rest()
        again = await stage.one(POD_GROUP)
        assert again["metadata"]["uid"] != of["metadata"]["uid"]
        assert groups_of(await stage.all(POD)) == [again["metadata"]["name"]] * 2
        await stage.finish("Succeeded")
        await stage.rest()
        assert await stage.all(POD_GROUP) == []


@in_virtual_time
async def test_when_many_jobs_come_at_once_each_gets_its_workload_before_any_gets_more() -> None:
    stage = Stage()
    await stage.server.start()
    many = [f"train-{n}" for n in range(2 * MANY)]
    await stage.create(*map(job, many))
    order: list[str] = []
    stage.store.follow(lambda changes: order.extend(
        change.key.split("/")[2] for change in changes if change.before is None
    ))  # fmt: skip
    async with acting(stage, subject(), kubelets):
        await stage.rest()
    assert order.count("pods") == order.count("podgroups") == len(many)
    assert order[: order.index("podgroups")].count("workloads") >= MANY


@in_virtual_time
async def test_otherwise_a_job_that_rests_or_has_ended_keeps_its_group() -> None:
    async with at_work() as stage:
        await stage.create(job(gang=True))
        await stage.rest()
        uid = (await stage.one(POD_GROUP))["metadata"]["uid"]
        for suspend in (True, False):
            await stage.patch(JOB, "train", {"spec": {"suspend": suspend}})
            await stage.rest()
        await stage.finish("Succeeded")
        await stage.rest()
        assert (await stage.one(POD_GROUP))["metadata"]["uid"] == uid


@in_virtual_time
async def test_a_job_is_a_gang_by_its_shape_and_keeps_it_where_that_is_asked_for() -> None:
    gates = gated({"JobGangInference": True})
    async with at_work(by_gates(gates), gates=gates) as stage:
        await stage.create(indexed(3))
        await stage.rest()
        of = await stage.one(POD_GROUP)
        assert of["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        with pytest.raises(Invalid) as refused:
            await stage.patch(JOB, "train", {"spec": {"parallelism": 4, "completions": 4}})
        assert [cause.field for cause in refused.value.causes] == ["spec.parallelism"]
        # What is no gang by its shape then may change; the group goes on with what will still run.
        await stage.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await stage.rest()
        of = await stage.one(POD_GROUP)
        assert of["metadata"]["annotations"]["phalanx.dev/members-to-run"] == "2"


@in_virtual_time
async def test_without_that_shape_says_nothing_and_may_change() -> None:
    async with at_work() as stage:
        await stage.create(indexed(3))
        await stage.rest()
        assert (await stage.one(POD_GROUP))["spec"]["schedulingPolicy"] == {"basic": {}}
        await stage.patch(JOB, "train", {"spec": {"parallelism": 4, "completions": 4}})
