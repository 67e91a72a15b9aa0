"""The lookup of the Workload and the PodGroup of a Job, and what the builder reads of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.kinds import WORKLOAD
from phalanx.api.scheduling import MANAGED_BY_ANNOTATION, PodGroup, Workload, WorkloadReference
from phalanx.api.wire import Object
from phalanx.builder import jobs as job_builder
from phalanx.builder.discovery import (
    LookupResult,
    ObjectFound,
    ObjectMissing,
    ObjectUnusable,
    find_usable,
)
from phalanx.builder.ensure import find_own_workload, find_workload, workload_object
from phalanx.builder.ensure_plan import DeleteObject, EnsurePlan, GroupInstance, ObservedObjects
from phalanx.controllers.jobs.scheduling_intent import job_object
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


def plan(workloads: list[Workload], groups: list[PodGroup], **options: Any) -> EnsurePlan:
    observed = ObservedObjects(workloads, groups)
    encoded = job_object(job())
    builder = job_builder.new_builder(encoded)
    return builder.ensure(encoded, observed, [GroupInstance()], **options)


def own_workload(*candidates: Workload) -> LookupResult[Workload]:
    return find_own_workload(job_object(job()), candidates)


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
    groups = find_usable([group(**meta)], "uid-train", plural="PodGroups", owner_kind="Job")
    for found in (own_workload(workload(**meta)), groups):
        if owner == "none":
            assert found == ObjectMissing()
        else:
            assert isinstance(found, ObjectFound)
            assert found.is_owned is is_owned[owner]


def test_deleted_workload_is_ignored_and_a_deleted_group_is_used() -> None:
    meta = {**owned_by("uid-train"), "deletionTimestamp": DELETED}
    assert own_workload(workload(**meta)) == ObjectMissing()
    planned = plan([workload(**owned_by("uid-train"))], [group(**meta)])
    assert [one.metadata.name for one in planned.groups.values()] == ["g"]
    assert not planned.is_ready


def test_two_objects_are_ambiguous_and_both_are_named() -> None:
    found = own_workload(workload("b"), workload("a"))
    assert isinstance(found, ObjectUnusable)
    assert found.fallback.reason == "AmbiguousWorkload"
    assert found.fallback.message.startswith("2 Workloads refer to the Job: a, b")
    groups = plan([workload()], [group("g"), group("h")]).fallback
    assert groups is not None
    assert groups.reason == "AmbiguousPodGroup"


def test_own_object_is_redundant_if_the_only_other_is_the_users() -> None:
    own, users = workload("own", **owned_by("uid-train")), workload("users")
    assert plan([own, users], []).operations == (DeleteObject(WORKLOAD, own.metadata),)
    assert plan([own, users], [], is_started=True).operations == ()
    for more in ([own, users, workload("third")], [users, workload("third")]):
        ambiguous = plan(more, [])
        assert ambiguous.fallback is not None
        assert ambiguous.operations == ()


def test_group_of_a_single_template_is_found_whatever_template_it_names() -> None:
    other = msgspec.structs.replace(
        group(),
        spec=msgspec.structs.replace(group().spec, workload_ref=WorkloadReference("w", "other")),
    )
    assert [*plan([workload()], [other]).groups.values()] == [other]


@pytest.mark.parametrize("sizes", [(2, 2), (0, 3, 4)])
def test_workload_with_more_than_one_template_is_malformed(sizes: tuple[int, ...]) -> None:
    found = plan([workload("w", *sizes)], []).fallback
    assert found is not None
    assert found.reason == "MalformedWorkload"
    assert found.message == f"Workload w has {len(sizes)} PodGroupTemplates, a Job needs exactly 1"


def test_parent_workload_is_found_by_the_uid_of_the_parent() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"}
    meta: Object = {"ownerReferences": [{**owner, "controller": True}]}
    assert isinstance(find_workload(owner, "default", [workload(**meta)]), ObjectFound)
    before = workload(**owned_by("uid-before"))
    assert find_workload(owner, "default", [before]) == ObjectMissing()


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
