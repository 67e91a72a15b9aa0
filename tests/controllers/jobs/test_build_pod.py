"""The pods of a Job: its template, filled in."""

from __future__ import annotations

from phalanx.api.wire import Object
from phalanx.controllers.jobs.job_pods import COMPLETION_INDEX, FAILURE_COUNT, TRACKING_FINALIZER
from phalanx.controllers.jobs.pod_operations import build_pod
from phalanx.controllers.jobs.replicas import PodToCreate
from tests.controllers.jobs.job_builders import job

TEMPLATE: Object = {
    "metadata": {"labels": {"app": "a"}, "annotations": {"n": "1"}, "finalizers": ["x.io/f"]},
    "spec": {
        "restartPolicy": "Never",
        "initContainers": [{"name": "before"}],
        "containers": [
            {"name": "main", "env": [{"name": "A", "value": "b"}]},
            {"name": "own", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]},
        ],
    },
}


def test_a_pod_is_what_the_template_says_and_the_jobs() -> None:
    made = build_pod(job(template=TEMPLATE), PodToCreate(), "")
    meta = made["metadata"]
    assert (meta["generateName"], meta["labels"]) == ("train-", {"app": "a"})
    assert meta["finalizers"] == ["x.io/f", TRACKING_FINALIZER]
    assert [(o["uid"], o["controller"]) for o in meta["ownerReferences"]] == [("uid-train", True)]
    assert made["spec"] == TEMPLATE["spec"]


def test_a_numbered_pod_is_told_its_number_unless_it_is_told_otherwise() -> None:
    made = build_pod(job(template=TEMPLATE), PodToCreate(3, ((FAILURE_COUNT, "2"),)), "")
    meta, spec = made["metadata"], made["spec"]
    assert meta["annotations"] == {"n": "1", COMPLETION_INDEX: "3", FAILURE_COUNT: "2"}
    assert (meta["labels"][COMPLETION_INDEX], spec["hostname"]) == ("3", "train-3")
    told = [[one["name"] for one in c.get("env", [])] for c in spec["containers"]]
    assert told == [["A", "JOB_COMPLETION_INDEX"], ["JOB_COMPLETION_INDEX"]]
    assert spec["initContainers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    # The Job's own template stays as it is.
    assert TEMPLATE["spec"]["initContainers"] == [{"name": "before"}]


def test_the_name_of_a_numbered_pod_leaves_room_for_what_is_added() -> None:
    made = build_pod(job(name="j" * 60, template=TEMPLATE), PodToCreate(12), "")
    assert len(made["metadata"]["generateName"]) == 58


def test_a_pod_is_in_the_group_of_its_job_unless_its_template_names_another() -> None:
    assert build_pod(job(), PodToCreate(), "g")["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    template: Object = {"spec": {"schedulingGroup": {"podGroupName": "own"}}}
    made = build_pod(job(template=template), PodToCreate(), "g")
    assert made["spec"]["schedulingGroup"] == {"podGroupName": "own"}
