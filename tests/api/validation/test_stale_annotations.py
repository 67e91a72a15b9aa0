"""Annotations about another group than the one that a pod names."""

from __future__ import annotations

import copy

import pytest

from phalanx.api.conversion.workload_references import TEMPLATE_ANNOTATION, WORKLOAD_ANNOTATION
from phalanx.api.kinds import CONFIG_MAP, CRON_JOB, JOB_SET, POD, Kind
from phalanx.api.validation.pod_template import drop_stale_workload_annotations
from phalanx.api.wire import Object

MARKS = {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}


def with_workload_annotations(group: str, **annotations: str) -> Object:
    """A pod, or a template of pods, with marks."""
    spec = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {"metadata": {"annotations": {**MARKS, **annotations}}, "spec": spec}


def cron_job(template: Object) -> Object:
    return {"spec": {"jobTemplate": {"spec": {"template": template}}}}


def job_set(template: Object) -> Object:
    other = {"name": "other", "template": {"spec": {}}}
    return {"spec": {"replicatedJobs": [other, {"template": {"spec": {"template": template}}}]}}


def drop_annotations(kind: Kind, obj: Object) -> Object:
    result = copy.deepcopy(obj)
    drop_stale_workload_annotations(kind.schema, result)
    return result


@pytest.mark.parametrize("group", ["w-t", "w-t-1"])
def test_marks_stay_on_pods_of_the_group_that_is_made_from_them(group: str) -> None:
    for kind, obj in (
        (POD, with_workload_annotations(group)),
        (CRON_JOB, cron_job(with_workload_annotations(group))),
        (JOB_SET, job_set(with_workload_annotations(group))),
    ):
        assert drop_annotations(kind, obj) == obj


@pytest.mark.parametrize("group", ["other", "w-tt", ""])
def test_marks_go_where_pods_are_of_another_group_or_none(group: str) -> None:
    bare = {**with_workload_annotations(group), "metadata": {}}
    assert drop_annotations(POD, with_workload_annotations(group)) == bare
    assert drop_annotations(CRON_JOB, cron_job(with_workload_annotations(group))) == cron_job(bare)
    assert drop_annotations(JOB_SET, job_set(with_workload_annotations(group))) == job_set(bare)
    kept = drop_annotations(POD, with_workload_annotations(group, a="b"))
    assert kept["metadata"] == {"annotations": {"a": "b"}}


def test_half_a_mark_goes_too() -> None:
    half = with_workload_annotations("w-t")
    del half["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    assert drop_annotations(POD, half)["metadata"] == {}


@pytest.mark.parametrize("obj", [{}, {"metadata": {}}, {"metadata": {"annotations": {"a": "b"}}}])
def test_what_has_no_marks_is_left_alone(obj: Object) -> None:
    assert drop_annotations(POD, obj) == obj
    assert drop_annotations(CRON_JOB, cron_job(obj)) == cron_job(obj)


def test_what_is_no_pod_may_have_any_annotation() -> None:
    obj = {"metadata": {"annotations": dict(MARKS)}}
    assert drop_annotations(CONFIG_MAP, obj) == obj
