"""A Job that is a part of something: its PodGroup is one of its parent's Workload."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD, POD_GROUP, WORKLOAD
from tests.builders import in_virtual_time
from tests.controllers.jobs.work import (
    ABOUT,
    PARENT,
    at_work,
    fallback,
    groups_of,
    job,
    linked,
    policy,
    sizes,
    workload,
)


@pytest.mark.parametrize("spelling", ["parent-composite-podgroup", "parent-compositepodgroup"])
@in_virtual_time
async def test_a_part_gets_a_group_of_its_parents_workload(spelling: str) -> None:
    async with at_work() as stage:
        meta = linked("workers-1", **{f"scheduling.k8s.io/{spelling}": "root"})
        await stage.create(workload("parent", 0, 2, about=ABOUT), job(meta=meta))
        before = await stage.one(WORKLOAD)
        await stage.rest()
        of = await stage.one(POD_GROUP)
        assert await stage.one(WORKLOAD) == before
        assert of["spec"]["workloadRef"] == {"workloadName": "parent", "templateName": "workers-1"}
        assert of["spec"]["parentCompositePodGroupName"] == "root"
        assert [one["kind"] for one in of["metadata"]["ownerReferences"]] == ["Job"]
        assert groups_of(await stage.all(POD)) == [of["metadata"]["name"]]


@in_virtual_time
async def test_parts_of_one_template_have_groups_of_their_own() -> None:
    async with at_work() as stage:
        parts = [job(f"part-{n}", meta=linked("")) for n in range(3)]
        await stage.create(workload("parent", 1, about=ABOUT), *parts)
        await stage.rest()
        assert len({*groups_of(await stage.all(POD))}) == len(await stage.all(POD_GROUP)) == 3


@in_virtual_time
async def test_the_group_of_a_part_follows_the_template_of_its_parent() -> None:
    async with at_work() as stage:
        await stage.create(workload("parent", 4, about=ABOUT), job(parallelism=7, meta=linked()))
        await stage.rest()
        assert await sizes(stage) == (4, 4)
        gang = {"name": "workers-0", "schedulingPolicy": {"gang": {"minCount": 7}}}
        await stage.patch(WORKLOAD, "parent", {"spec": {"podGroupTemplates": [gang]}})
        await stage.rest()
        assert await sizes(stage) == (7, 7)


@in_virtual_time
async def test_a_part_without_a_parent_or_a_template_says_so() -> None:
    async with at_work() as stage:
        await stage.create(job(meta=linked()))
        await stage.rest()
        assert await fallback(stage) == ("True", "ParentWorkloadNotFound")
        assert groups_of(await stage.all(POD)) == [""]
        assert len(await stage.events("ParentWorkloadNotFound")) == 1
        await stage.create(workload("parent", 1, about=ABOUT))
        await stage.rest()
        # Its pods are not retrofitted, but that is no mistake any more.
        assert await fallback(stage) == ("False", "SchedulingRestored")
    async with at_work() as stage:
        await stage.create(workload("parent", 1, about=ABOUT), job(meta=linked("nobody")))
        await stage.rest()
        assert await fallback(stage) == ("True", "TemplateNotFound")


@in_virtual_time
async def test_the_workload_of_an_earlier_parent_of_that_name_is_not_used() -> None:
    before = {"ownerReferences": [{**PARENT, "uid": "before"}]}
    async with at_work() as stage:
        await stage.create(workload("parent", 1, about=ABOUT, meta=before), job(meta=linked()))
        await stage.rest()
        assert await fallback(stage) == ("True", "ParentWorkloadNotFound")


@in_virtual_time
async def test_of_two_workloads_of_a_parent_none_is_used() -> None:
    async with at_work() as stage:
        two = [workload(name, 1, about=ABOUT) for name in ("one", "two")]
        await stage.create(*two, job(meta=linked()))
        await stage.rest()
        assert await fallback(stage) == ("True", "AmbiguousWorkload")


@in_virtual_time
async def test_a_part_may_be_of_a_template_below_another() -> None:
    parent = workload("parent", 2, about=ABOUT)
    leaves = parent["spec"].pop("podGroupTemplates")
    root = {"name": "root", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": leaves}
    parent["spec"]["compositePodGroupTemplates"] = [root]
    async with at_work() as stage:
        await stage.create(parent, job(parallelism=2, meta=linked()))
        await stage.rest()
        of = await stage.one(POD_GROUP)
        assert policy(of) == {"gang": {"minCount": 2}}
        assert of["spec"]["parentCompositePodGroupName"].startswith("parent-root-")
