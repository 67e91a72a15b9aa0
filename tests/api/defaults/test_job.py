"""Defaults of Jobs and CronJobs, and the selector of a new Job."""

from __future__ import annotations

from typing import Any

from phalanx.api.kinds import CRON_JOB, JOB, POD_TEMPLATE
from phalanx.api.wire import Object
from tests.api.stored_objects import UID, change_stored, make_stored

POD: Object = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
LABELS = {
    "batch.kubernetes.io/controller-uid": UID,
    "batch.kubernetes.io/job-name": "x",
    "controller-uid": UID,
    "job-name": "x",
}


def job(labels: Object | None = None, meta: Object | None = None, **spec: Any) -> Object:
    template = {"metadata": {"labels": labels or {}}, "spec": POD}
    return make_stored(JOB, {"metadata": meta or {}, "spec": {"template": template, **spec}})


def test_a_small_job_gets_its_defaults() -> None:
    new = job()
    template = new["spec"].pop("template")
    assert new["spec"] == {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": UID}},
        "manualSelector": False,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    }
    assert template["spec"]["schedulerName"] == "default-scheduler"
    assert template["metadata"]["labels"] == new["metadata"]["labels"] == LABELS


def test_completions_stay_unset_if_only_parallelism_is_set() -> None:
    assert "completions" not in job(parallelism=3)["spec"]
    assert job(completions=3)["spec"]["parallelism"] == 1


def test_limits_and_policies_depend_on_each_other() -> None:
    assert job(backoffLimitPerIndex=1)["spec"]["backoffLimit"] == 2**31 - 1
    assert job(podFailurePolicy={"rules": []})["spec"]["podReplacementPolicy"] == "Failed"


def test_a_pattern_of_pod_conditions_is_for_those_that_hold() -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = job(podFailurePolicy={"rules": [rule]})["spec"]
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"] == [
        {"type": "DisruptionTarget", "status": "True"}
    ]


def test_a_new_job_forgets_the_status_that_it_came_with() -> None:
    new = make_stored(JOB, {"spec": {"template": {"spec": POD}}, "status": {"active": 3}})
    assert new["status"] == {}


def test_labels_of_pods_are_kept_beside_those_of_the_job() -> None:
    new = job({"app": "a"})
    assert new["spec"]["template"]["metadata"]["labels"] == {"app": "a", **LABELS}
    assert new["metadata"]["labels"] == {"app": "a", **LABELS}


def test_a_job_with_labels_of_its_own_keeps_them() -> None:
    assert job({"app": "a"}, {"labels": {"mine": "1"}})["metadata"]["labels"] == {"mine": "1"}


def test_a_job_that_selects_by_hand_is_left_alone() -> None:
    new = job({"a": "b"}, manualSelector=True, selector={"matchLabels": {"a": "b"}})
    assert new["spec"]["selector"] == {"matchLabels": {"a": "b"}}
    assert new["metadata"]["labels"] == {"a": "b"}


def test_an_update_brings_no_new_labels() -> None:
    old = job({"app": "a"}, {"labels": {"mine": "1"}})
    assert change_stored(JOB, old, spec=old["spec"]) == old


def test_a_cron_job_gets_its_defaults_and_its_jobs_none() -> None:
    new = make_stored(CRON_JOB, {"spec": {"jobTemplate": {"spec": {"template": {"spec": POD}}}}})
    template = new["spec"].pop("jobTemplate")
    assert new["spec"] == {
        "schedule": "",
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    }
    assert list(template["spec"]) == ["template"]
    assert template["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"


def test_a_pod_template_gets_the_defaults_of_a_pod() -> None:
    new = make_stored(POD_TEMPLATE, {"template": {"spec": POD}})
    assert new["template"]["spec"]["terminationGracePeriodSeconds"] == 30
