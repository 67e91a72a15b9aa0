"""Marks that are about another group than the one that a pod names."""

from __future__ import annotations

import copy

import pytest

from phalanx.api.kinds import CONFIG_MAP, CRON_JOB, JOB_SET, POD, Kind
from phalanx.api.podlinks import TEMPLATE_MARK, WORKLOAD_MARK
from phalanx.api.rules.podmarks import drop_stale_marks
from phalanx.api.wire import Object

MARKS = {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"}


def marked(group: str, **annotations: str) -> Object:
    """A pod, or a template of pods, with marks."""
    spec = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {"metadata": {"annotations": {**MARKS, **annotations}}, "spec": spec}


def cron_job(template: Object) -> Object:
    return {"spec": {"jobTemplate": {"spec": {"template": template}}}}


def job_set(template: Object) -> Object:
    other = {"name": "other", "template": {"spec": {}}}
    return {"spec": {"replicatedJobs": [other, {"template": {"spec": {"template": template}}}]}}


def tidied(kind: Kind, obj: Object) -> Object:
    result = copy.deepcopy(obj)
    drop_stale_marks(kind.schema, result)
    return result


@pytest.mark.parametrize("group", ["w-t", "w-t-1"])
def test_marks_stay_on_pods_of_the_group_that_is_made_from_them(group: str) -> None:
    for kind, obj in (
        (POD, marked(group)),
        (CRON_JOB, cron_job(marked(group))),
        (JOB_SET, job_set(marked(group))),
    ):
        assert tidied(kind, obj) == obj


@pytest.mark.parametrize("group", ["other", "w-tt", ""])
def test_marks_go_where_pods_are_of_another_group_or_none(group: str) -> None:
    bare = {**marked(group), "metadata": {}}
    assert tidied(POD, marked(group)) == bare
    assert tidied(CRON_JOB, cron_job(marked(group))) == cron_job(bare)
    assert tidied(JOB_SET, job_set(marked(group))) == job_set(bare)
    kept = tidied(POD, marked(group, a="b"))
    assert kept["metadata"] == {"annotations": {"a": "b"}}


def test_half_a_mark_goes_too() -> None:
    half = marked("w-t")
    del half["metadata"]["annotations"][TEMPLATE_MARK]
    assert tidied(POD, half)["metadata"] == {}


@pytest.mark.parametrize("obj", [{}, {"metadata": {}}, {"metadata": {"annotations": {"a": "b"}}}])
def test_what_has_no_marks_is_left_alone(obj: Object) -> None:
    assert tidied(POD, obj) == obj
    assert tidied(CRON_JOB, cron_job(obj)) == cron_job(obj)


def test_what_is_no_pod_may_have_any_annotation() -> None:
    obj = {"metadata": {"annotations": dict(MARKS)}}
    assert tidied(CONFIG_MAP, obj) == obj
