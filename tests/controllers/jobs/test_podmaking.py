"""The pods of a Job: its template, filled in."""

from __future__ import annotations

from phalanx.api.wire import Object
from phalanx.controllers.jobs.podmaking import new_pod
from phalanx.controllers.jobs.roll import FAILURES, INDEX, TRACKING
from phalanx.controllers.jobs.staffing import Order
from tests.controllers.jobs.making import job

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
    made = new_pod(job(template=TEMPLATE), Order(), "")
    meta = made["metadata"]
    assert (meta["generateName"], meta["labels"]) == ("train-", {"app": "a"})
    assert meta["finalizers"] == ["x.io/f", TRACKING]
    assert [(o["uid"], o["controller"]) for o in meta["ownerReferences"]] == [("uid-train", True)]
    assert made["spec"] == TEMPLATE["spec"]


def test_a_numbered_pod_is_told_its_number_unless_it_is_told_otherwise() -> None:
    made = new_pod(job(template=TEMPLATE), Order(3, ((FAILURES, "2"),)), "")
    meta, spec = made["metadata"], made["spec"]
    assert meta["annotations"] == {"n": "1", INDEX: "3", FAILURES: "2"}
    assert (meta["labels"][INDEX], spec["hostname"]) == ("3", "train-3")
    told = [[one["name"] for one in c.get("env", [])] for c in spec["containers"]]
    assert told == [["A", "JOB_COMPLETION_INDEX"], ["JOB_COMPLETION_INDEX"]]
    assert spec["initContainers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    # The Job's own template stays as it is.
    assert TEMPLATE["spec"]["initContainers"] == [{"name": "before"}]


def test_the_name_of_a_numbered_pod_leaves_room_for_what_is_added() -> None:
    made = new_pod(job(name="j" * 60, template=TEMPLATE), Order(12), "")
    assert len(made["metadata"]["generateName"]) == 58


def test_a_pod_is_in_the_group_of_its_job_unless_its_template_names_another() -> None:
    assert new_pod(job(), Order(), "g")["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    template: Object = {"spec": {"schedulingGroup": {"podGroupName": "own"}}}
    made = new_pod(job(template=template), Order(), "g")
    assert made["spec"]["schedulingGroup"] == {"podGroupName": "own"}
