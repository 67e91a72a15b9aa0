"""The lookup of the Workload and the PodGroup of a Job, and what the builder reads of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.scheduling import MANAGED_BY_ANNOTATION, PodGroup, Workload
from phalanx.api.wire import Object
from phalanx.builder import jobs as job_builder
from phalanx.builder.discovery import ObjectFound, ObjectMissing, ObjectUnusable
from phalanx.builder.ensure import workload_object
from phalanx.controllers.jobs.scheduling_intent import (
    find_parent_workload,
    find_pod_group,
    find_workload,
    job_object,
)
from tests.controllers.jobs import job_controller_harness as harness
from tests.controllers.jobs.job_builders import job

DELETED = "2027-01-15T08:00:00Z"
MANAGED_BY = {MANAGED_BY_ANNOTATION: "job-controller"}


def owned_by(uid: str, *, controller: bool = True) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}
    return {"ownerReferences": [{**owner, "controller": controller}]}


def workload(name: str = "w", *sizes: int, **meta: Any) -> Workload:
    return msgspec.convert(harness.workload(name, *(sizes or (2,)), meta=meta), Workload)


def group(name: str = "g", **meta: Any) -> PodGroup:
    return msgspec.convert(harness.group(name, "w", 2, meta=meta), PodGroup)


@pytest.mark.parametrize(
    ("meta", "owner"),
    [
        (owned_by("uid-train"), "the controller"),
        ({**owned_by("uid-train"), "annotations": MANAGED_BY}, "the controller"),
        ({}, "the user"),
        ({"annotations": {"note": "mine"}}, "the user"),
        (owned_by("uid-train", controller=False), "the user"),
        ({"annotations": MANAGED_BY}, "none"),
        (owned_by("uid-before"), "none"),
        ({**owned_by("uid-before"), "annotations": MANAGED_BY}, "none"),
    ],
)
def test_ownership_of_an_object_follows_from_its_controller_and_annotation(
    meta: Object, owner: str
) -> None:
    is_owned = {"the controller": True, "the user": False}
    results = find_workload(job(), [workload(**meta)]), find_pod_group(job(), [group(**meta)])
    for found in results:
        if owner == "none":
            assert found == ObjectMissing()
        else:
            assert isinstance(found, ObjectFound)
            assert found.is_owned is is_owned[owner]


def test_deleted_workload_is_ignored_and_a_deleted_group_is_used() -> None:
    meta = {**owned_by("uid-train"), "deletionTimestamp": DELETED}
    assert find_workload(job(), [workload(**meta)]) == ObjectMissing()
    assert isinstance(find_pod_group(job(), [group(**meta)]), ObjectFound)


def test_two_objects_are_ambiguous_and_both_are_named() -> None:
    found = find_workload(job(), [workload("b"), workload("a")])
    assert isinstance(found, ObjectUnusable)
    assert found.fallback.reason == "AmbiguousWorkload"
    assert found.fallback.message.startswith("2 Workloads refer to the Job: a, b")
    groups = find_pod_group(job(), [group("g"), group("h")])
    assert isinstance(groups, ObjectUnusable)
    assert groups.fallback.reason == "AmbiguousPodGroup"


def test_own_object_is_redundant_if_the_only_other_is_the_users() -> None:
    own, users = workload("own", **owned_by("uid-train")), workload("users")
    found = find_workload(job(), [own, users])
    assert isinstance(found, ObjectUnusable)
    assert found.redundant is own
    for more in ([own, users, workload("third")], [users, workload("third")]):
        ambiguous = find_workload(job(), more)
        assert isinstance(ambiguous, ObjectUnusable)
        assert ambiguous.redundant is None


@pytest.mark.parametrize("sizes", [(2, 2), (0, 3, 4)])
def test_workload_with_more_than_one_template_is_malformed(sizes: tuple[int, ...]) -> None:
    found = find_workload(job(), [workload("w", *sizes)])
    assert isinstance(found, ObjectUnusable)
    assert found.fallback.reason == "MalformedWorkload"


def test_parent_workload_is_found_by_the_uid_of_the_parent() -> None:
    meta: Object = {
        "ownerReferences": [
            {"apiVersion": "x/v1", "kind": "P", "name": "p", "uid": "u", "controller": True}
        ]
    }
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
def test_gang_is_inferred_from_the_shape_only_if_enabled(spec: Object, size: int | None) -> None:
    assert job_builder.gang_size(job_object(job(**spec), infer_gang=True)) == size
    plain = job_builder.gang_size(job_object(job(**spec)))
    assert plain == (size if "schedulingPolicy" in spec.get("scheduling", {}) else None)


def test_gang_policy_counts_only_if_enabled() -> None:
    one = job(parallelism=3, completions=3, gangPolicy={"policy": "JobAsGang"})
    assert job_builder.gang_size(job_object(one)) == 3
    assert job_builder.gang_size(job_object(one, use_gang_policy=False)) is None


def test_pod_group_is_built_from_a_decoded_workload() -> None:
    built = job_builder.build_pod_group(job_object(job()), workload_object(workload("w", 3)))
    assert built["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert built["spec"]["workloadRef"] == {"workloadName": "w", "templateName": "workers-0"}
