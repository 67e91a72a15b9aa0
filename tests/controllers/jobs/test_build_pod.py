"""Building pods of a Job from its pod template."""

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


def test_pod_has_the_fields_of_the_template_and_is_controlled_by_the_job() -> None:
    built = build_pod(job(template=TEMPLATE), PodToCreate(), "")
    meta = built["metadata"]
    assert (meta["generateName"], meta["labels"]) == ("train-", {"app": "a"})
    assert meta["finalizers"] == ["x.io/f", TRACKING_FINALIZER]
    assert [(o["uid"], o["controller"]) for o in meta["ownerReferences"]] == [("uid-train", True)]
    assert built["spec"] == TEMPLATE["spec"]


def test_indexed_pod_gets_its_index_as_environment_variable_unless_the_container_sets_it() -> None:
    built = build_pod(job(template=TEMPLATE), PodToCreate(3, ((FAILURE_COUNT, "2"),)), "")
    meta, spec = built["metadata"], built["spec"]
    assert meta["annotations"] == {"n": "1", COMPLETION_INDEX: "3", FAILURE_COUNT: "2"}
    assert (meta["labels"][COMPLETION_INDEX], spec["hostname"]) == ("3", "train-3")
    env_names = [[one["name"] for one in c.get("env", [])] for c in spec["containers"]]
    assert env_names == [["A", "JOB_COMPLETION_INDEX"], ["JOB_COMPLETION_INDEX"]]
    assert spec["initContainers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    # The template of the Job is not changed.
    assert TEMPLATE["spec"]["initContainers"] == [{"name": "before"}]


def test_name_prefix_of_an_indexed_pod_is_truncated_for_the_random_suffix() -> None:
    built = build_pod(job(name="j" * 60, template=TEMPLATE), PodToCreate(12), "")
    assert len(built["metadata"]["generateName"]) == 58


def test_pod_joins_the_group_of_its_job_unless_its_template_names_another() -> None:
    assert build_pod(job(), PodToCreate(), "g")["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    template: Object = {"spec": {"schedulingGroup": {"podGroupName": "own"}}}
    built = build_pod(job(template=template), PodToCreate(), "g")
    assert built["spec"]["schedulingGroup"] == {"podGroupName": "own"}
