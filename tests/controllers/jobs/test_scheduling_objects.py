"""Whose are the Workload and the PodGroup of a Job?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.scheduling import MANAGED_BY_ANNOTATION, PodGroup, Workload
from phalanx.api.wire import Object
from phalanx.builder import jobs as building
from phalanx.controllers.jobs.scheduling_intent import (
    ObjectFound,
    ObjectMissing,
    ObjectUnusable,
    find_parent_workload,
    find_pod_group,
    find_workload,
    job_object,
    workload_object,
)
from tests.controllers.jobs import job_controller_harness as work
from tests.controllers.jobs.job_builders import job

DELETED = "2027-01-15T08:00:00Z"
MARK = {MANAGED_BY_ANNOTATION: "job-controller"}


def owned_by(uid: str, *, controller: bool = True) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}
    return {"ownerReferences": [{**owner, "controller": controller}]}


def workload(name: str = "w", *sizes: int, **meta: Any) -> Workload:
    return msgspec.convert(work.workload(name, *(sizes or (2,)), meta=meta), Workload)


def group(name: str = "g", **meta: Any) -> PodGroup:
    return msgspec.convert(work.group(name, "w", 2, meta=meta), PodGroup)


@pytest.mark.parametrize(
    ("meta", "whose"),
    [
        (owned_by("uid-train"), "ours"),
        ({**owned_by("uid-train"), "annotations": MARK}, "ours"),
        ({}, "the user's"),
        ({"annotations": {"note": "mine"}}, "the user's"),
        (owned_by("uid-train", controller=False), "the user's"),
        ({"annotations": MARK}, "nobody's"),
        (owned_by("uid-before"), "nobody's"),
        ({**owned_by("uid-before"), "annotations": MARK}, "nobody's"),
    ],
)
def test_whose_an_object_is_follows_from_its_controller_and_its_mark(
    meta: Object, whose: str
) -> None:
    wanted = {"ours": True, "the user's": False}
    searches = find_workload(job(), [workload(**meta)]), find_pod_group(job(), [group(**meta)])
    for found in searches:
        if whose == "nobody's":
            assert found == ObjectMissing()
        else:
            assert isinstance(found, ObjectFound)
            assert found.is_owned is wanted[whose]


def test_a_workload_on_its_way_out_is_none_but_a_group_stays_with_its_members() -> None:
    meta = {**owned_by("uid-train"), "deletionTimestamp": DELETED}
    assert find_workload(job(), [workload(**meta)]) == ObjectMissing()
    assert isinstance(find_pod_group(job(), [group(**meta)]), ObjectFound)


def test_of_two_none_is_used_and_both_are_named() -> None:
    found = find_workload(job(), [workload("b"), workload("a")])
    assert isinstance(found, ObjectUnusable)
    assert found.event.reason == "AmbiguousWorkload"
    assert found.event.message.startswith("2 Workloads are about the Job: a, b; ")
    groups = find_pod_group(job(), [group("g"), group("h")])
    assert isinstance(groups, ObjectUnusable)
    assert groups.event.reason == "AmbiguousPodGroup"


def test_ours_beside_the_one_of_the_user_can_be_spared() -> None:
    ours, theirs = workload("ours", **owned_by("uid-train")), workload("theirs")
    found = find_workload(job(), [ours, theirs])
    assert isinstance(found, ObjectUnusable)
    assert found.redundant is ours
    for more in ([ours, theirs, workload("third")], [theirs, workload("third")]):
        doubt = find_workload(job(), more)
        assert isinstance(doubt, ObjectUnusable)
        assert doubt.redundant is None


@pytest.mark.parametrize("sizes", [(2, 2), (0, 3, 4)])
def test_a_workload_with_more_than_one_template_is_malformed(sizes: tuple[int, ...]) -> None:
    found = find_workload(job(), [workload("w", *sizes)])
    assert isinstance(found, ObjectUnusable)
    assert found.event.reason == "MalformedWorkload"


def test_the_workload_of_a_parent_is_that_of_the_very_parent() -> None:
    meta: Object = {"ownerReferences": [{"apiVersion": "x/v1", "kind": "P", "name": "p", "uid": "u",
                                 "controller": True}]}  # fmt: skip
    (owner,) = job(meta=meta).metadata.owner_references
    assert isinstance(find_parent_workload(owner, [workload(**meta)]), ObjectFound)
    assert find_parent_workload(owner, [workload(**owned_by("uid-before"))]) == ObjectMissing()


SHAPE = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (SHAPE, 4),
        ({**SHAPE, "parallelism": 1, "completions": 1}, None),
        ({**SHAPE, "completions": 5}, None),
        ({**SHAPE, "completionMode": "NonIndexed"}, None),
        ({**SHAPE, "completions": None}, None),
        ({**SHAPE, "scheduling": {"schedulingPolicy": {"basic": {}}}}, None),
        ({**SHAPE, "scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}}}, 2),
        ({**SHAPE, "scheduling": {"schedulingConstraints": {"topology": [{"key": "k"}]}}}, 4),
        ({**SHAPE, "gangPolicy": {"policy": "NoGang"}}, None),
    ],
)
def test_a_job_is_taken_for_a_gang_by_its_shape_only_where_that_is_asked_for(
    spec: Object, size: int | None
) -> None:
    assert building.gang_size(job_object(job(**spec), infer_gang=True)) == size
    plain = building.gang_size(job_object(job(**spec)))
    assert plain == (size if "schedulingPolicy" in spec.get("scheduling", {}) else None)


def test_one_word_counts_only_where_words_do() -> None:
    one = job(parallelism=3, completions=3, gangPolicy={"policy": "JobAsGang"})
    assert building.gang_size(job_object(one)) == 3
    assert building.gang_size(job_object(one, use_gang_policy=False)) is None


def test_groups_can_be_made_of_what_is_read_of_a_workload() -> None:
    made = building.pod_group(job_object(job()), workload_object(workload("w", 3)))
    assert made["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert made["spec"]["workloadRef"] == {"workloadName": "w", "templateName": "workers-0"}
