"""Rules of JobSets, of the names that they make, and of what may change."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.kinds import JOB_SET
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

PODS: Object = {"containers": [{"name": "main", "image": "app:1"}]}


def job(name: str = "workers", replicas: int = 1, pods: Object = PODS, **spec: Any) -> Object:
    made_of = {"template": {"spec": copy.deepcopy(pods)}, **spec}
    return {"name": name, "replicas": replicas, "template": {"spec": made_of}}


def dependent_job(name: str, other: str, status: str = "Ready") -> Object:
    return {**job(name), "dependsOn": [{"name": other, "status": status}]}


def spec(*jobs: Object, **fields: Any) -> Object:
    return {"replicatedJobs": list(jobs) or [job("driver"), job()], **fields}


def rule(**fields: Any) -> Object:
    return {"failurePolicy": {"rules": [{"action": "FailJobSet", **fields}]}}


def create_causes(*jobs: Object, name: str = "x", **fields: Any) -> CauseSummaries:
    return creation_causes(JOB_SET, {"metadata": {"name": name}, "spec": spec(*jobs, **fields)})


# ---- what it says --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"replicatedJobs": []}, []),
        ({"ttlSecondsAfterFinished": 0, "managedBy": "example.com/c"}, []),
        ({"ttlSecondsAfterFinished": -1}, ["ttlSecondsAfterFinished: Invalid"]),
        ({"managedBy": "unknown"}, ["managedBy: Invalid"]),
        ({"network": {"subdomain": "s"}}, []),
        ({"network": {"subdomain": "1st"}}, ["network.subdomain: Invalid"]),
        ({"network": {"subdomain": "a.b"}}, ["network.subdomain: Invalid"]),
        ({"network": {"subdomain": "s" * 64}}, ["network.subdomain: Invalid"]),
        ({"successPolicy": {"operator": "Any", "targetReplicatedJobs": ["workers"]}}, []),
        ({"successPolicy": {"operator": "Most"}}, ["successPolicy.operator: NotSupported"]),
        ({"successPolicy": {}}, ["successPolicy.operator: Required"]),
        (
            {"successPolicy": {"operator": "All", "targetReplicatedJobs": ["driver", "unknown"]}},
            ["successPolicy.targetReplicatedJobs[1]: Invalid"],
        ),
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, []),
        (
            {"startupPolicy": {"startupPolicyOrder": "Backwards"}},
            ["startupPolicy.startupPolicyOrder: NotSupported"],
        ),
    ],
)
def test_startup_and_success_policies_are_validated(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(**fields) == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        (rule(), []),
        (rule(name="a_b,c:d1", onJobFailureReasons=["DeadlineExceeded"]), []),
        (rule(onJobFailureMessagePatterns=["^Job .* failed$"]), []),
        (rule(targetReplicatedJobs=["driver"]), []),
        (rule(name="not this"), ["rules[0].name: Invalid"]),
        (rule(name="a" * 129), ["rules[0].name: TooLong"]),
        (rule(action="Explode"), ["rules[0].action: NotSupported"]),
        (rule(action=""), ["rules[0].action: Required"]),
        (rule(onJobFailureReasons=["Boredom"]), ["rules[0].onJobFailureReasons[0]: NotSupported"]),
        (rule(onJobFailureMessagePatterns=["("]),
         ["rules[0].onJobFailureMessagePatterns[0]: Invalid"]),
        (rule(targetReplicatedJobs=["unknown"]), ["rules[0].targetReplicatedJobs[0]: Invalid"]),
        ({"failurePolicy": {"maxRestarts": -1}}, ["maxRestarts: Invalid"]),
        ({"failurePolicy": {"restartStrategy": "Hope"}}, ["restartStrategy: NotSupported"]),
        (
            {"failurePolicy": {"rules": [{"name": "a", "action": "FailJobSet"}] * 2}},
            ["rules[1].name: Duplicate"],
        ),
    ],
)  # fmt: skip
def test_failure_policy_is_validated(fields: Object, causes: CauseSummaries) -> None:
    assert sorted(create_causes(**fields)) == sorted(prefix_summaries("spec.failurePolicy", causes))


def test_jobs_that_are_restarted_one_by_one_are_counted() -> None:
    rules = rule(action="RestartJob")
    assert create_causes(job(replicas=1024), **rules) == []
    assert create_causes(job(replicas=1025), **rules) == [
        "spec.replicatedJobs[0].replicas: Invalid"
    ]


def test_where_pods_are_restarted_in_place_no_job_fails() -> None:
    in_place: Object = {"failurePolicy": {"restartStrategy": "InPlaceRestart"}}
    lasting = job(backoffLimit=2**31 - 1, podReplacementPolicy="Failed", completions=2,
                  parallelism=2)  # fmt: skip
    assert create_causes(lasting, **in_place) == []
    assert create_causes(job(parallelism=2, completions=4), **in_place) == [
        f"spec.replicatedJobs[0].template.spec.{field}: Invalid"
        for field in ("backoffLimit", "podReplacementPolicy", "completions")
    ]


# ---- replicated jobs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "causes"),
    [
        ([job(replicas=0)], []),
        ([job(replicas=-1)], ["[0].replicas: Invalid"]),
        ([job(""), job("b")], ["[0].name: Required"]),
        ([job("a"), job("b"), job("a")], ["[2]: Duplicate"]),
        ([{**job(), "groupName": "Group"}], ["[0].groupName: Invalid"]),
        ([{**job(), "groupName": "g" * 64}], ["[0].groupName: Invalid"]),
        ([job(replicas=2**20, parallelism=2**12, completions=2**12)], ["[0].replicas: Invalid"]),
        ([job(parallelism=-1, completions=1)], ["[0].template.spec.parallelism: Invalid"]),
        ([job(parallelism=2)], ["[0].template.spec.completions: Required"]),
        ([job(selector={"matchLabels": {"a": "b"}})], ["[0].template.spec.selector: Invalid"]),
        ([job(manualSelector=True)], ["[0].template.spec.manualSelector: NotSupported"]),
        ([job(pods={})], ["[0].template.spec.template.spec.containers: Required"]),
        (
            [job(pods={**PODS, "restartPolicy": "Always"})],
            ["[0].template.spec.template.spec.restartPolicy: Required"],
        ),
        (
            [job(pods={"containers": [{"name": "Main", "image": "app:1"}]})],
            ["[0].template.spec.template.spec.containers[0].name: Invalid"],
        ),
    ],
)
def test_replicated_jobs_have_unique_names_and_valid_job_specs(
    jobs: list[Object], causes: CauseSummaries
) -> None:
    assert create_causes(*jobs) == prefix_summaries("spec.replicatedJobs", causes)


@pytest.mark.parametrize(
    ("jobs", "causes"),
    [
        ([job("a"), dependent_job("b", "a"), dependent_job("c", "b", "Complete")], []),
        ([dependent_job("a", "b"), job("b")], ["[0].dependsOn: Forbidden"]),
        ([job("a"), dependent_job("b", "b")], ["[1].dependsOn[0].name: Invalid"]),
        ([job("a"), dependent_job("b", "c"), job("c")], ["[1].dependsOn[0].name: Invalid"]),
        ([job("a"), dependent_job("b", "a", "Lively")], ["[1].dependsOn[0].status: NotSupported"]),
        (
            [job("a"), {**job("b"), "dependsOn": [{"name": "a", "status": "Ready"}] * 2}],
            ["[1].dependsOn[1]: Duplicate"],
        ),
        (
            [job("a"), {**job("b"), "dependsOn": [
                {"name": f"a{at}", "status": "Ready"} for at in range(6)
            ]}],
            ["[1].dependsOn: TooMany", *(f"[1].dependsOn[{at}].name: Invalid" for at in range(6))],
        ),
    ],
)  # fmt: skip
def test_jobs_wait_for_those_before_them(jobs: list[Object], causes: CauseSummaries) -> None:
    assert create_causes(*jobs) == prefix_summaries("spec.replicatedJobs", causes)


def test_jobs_wait_in_one_way_only() -> None:
    in_order: Object = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert create_causes(job("a"), dependent_job("b", "a"), **in_order) == ["spec: Invalid"]


@pytest.mark.parametrize(
    ("name", "jobs", "causes"),
    [
        ("x" * 51, [job("w")], []),
        ("x" * 52, [job("w")], ["spec.replicatedJobs[0].name: Invalid"]),
        ("x" * 59, [job("w", completionMode="NonIndexed")], []),
        ("x" * 60, [job("w")], ["spec.replicatedJobs[0].name: Invalid"]),
        ("x" * 59, [job("w", 11, completionMode="NonIndexed")],
         ["spec.replicatedJobs[0].name: Invalid"]),
        ("x" * 50, [job("w", completions=11, parallelism=1)], []),
        ("x" * 51, [job("w", completions=11, parallelism=1)],
         ["spec.replicatedJobs[0].name: Invalid"]),
        ("1st", [job("w")], ["spec.replicatedJobs[0].name: Invalid"]),
        ("a.b", [job("w")], ["spec.replicatedJobs[0].name: Invalid"]),
    ],
)  # fmt: skip
def test_the_names_of_jobs_and_pods_can_be_made(
    name: str, jobs: list[Object], causes: CauseSummaries
) -> None:
    assert create_causes(*jobs, name=name) == causes


@pytest.mark.parametrize(
    ("wanted", "causes"),
    [
        ({"replicatedJob": "driver"}, []),
        ({"replicatedJob": "workers", "jobIndex": 1, "podIndex": 3}, []),
        ({"replicatedJob": "unknown"}, ["replicatedJob: Invalid"]),
        ({"replicatedJob": "driver", "jobIndex": 1}, ["jobIndex: Invalid"]),
        ({"replicatedJob": "driver", "podIndex": -1}, ["podIndex: Invalid"]),
        ({"replicatedJob": "workers", "podIndex": 4}, ["podIndex: Invalid"]),
        ({"replicatedJob": "loose"}, ["replicatedJob: Invalid"]),
    ],
)
def test_the_coordinator_is_a_pod_that_there_will_be(
    wanted: Object, causes: CauseSummaries
) -> None:
    jobs = [
        job("driver"), job("workers", 2, completions=4, parallelism=4),
        job("loose", completionMode="NonIndexed", parallelism=1),
    ]  # fmt: skip
    assert create_causes(*jobs, coordinator=wanted) == prefix_summaries("spec.coordinator", causes)


def test_where_the_coordinator_is_found_fits_into_a_label() -> None:
    wanted = {"replicatedJob": "driver"}
    assert create_causes(job("driver"), name="x" * 25, coordinator=wanted) == []
    assert create_causes(job("driver"), name="x" * 30, coordinator=wanted) == [
        "spec.coordinator: Invalid"
    ]


# ---- changes -------------------------------------------------------------------------------------


def make_job_set(**fields: Any) -> Object:
    return make_stored(JOB_SET, {"spec": spec(job("driver"), job(), **fields)})


def update_causes(old: Object, **fields: Any) -> CauseSummaries:
    new = change_stored(JOB_SET, old, spec={**old["spec"], **fields})
    return find_causes(JOB_SET, new, old)


def jobs_with_pod_fields(old: Object, **fields: Any) -> list[Object]:
    """The replicated jobs with other fields in the pods of the second."""
    jobs: list[Object] = copy.deepcopy(old["spec"]["replicatedJobs"])
    jobs[1]["template"]["spec"]["template"]["spec"].update(fields)
    return jobs


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"suspend": True}, []),
        ({"ttlSecondsAfterFinished": 5}, []),
        ({"coordinator": {"replicatedJob": "driver"}}, []),
        ({"failurePolicy": {"maxRestarts": 3}}, []),
        ({"network": {"enableDNSHostnames": False}}, ["network: Invalid"]),
        ({"successPolicy": {"operator": "Any"}}, ["successPolicy: Invalid"]),
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, ["startupPolicy: Invalid"]),
        ({"managedBy": "example.com/c"}, ["managedBy: Invalid"]),
        ({"replicatedJobs": [job("driver")]}, ["replicatedJobs: Invalid"]),
        ({"replicatedJobs": [job("driver"), job(), job("more")]}, ["replicatedJobs: Invalid"]),
        ({"replicatedJobs": [job("driver"), job(replicas=2)]}, ["replicatedJobs: Invalid"]),
    ],
)
def test_a_job_set_is_what_it_was_made_as(fields: Object, causes: CauseSummaries) -> None:
    assert update_causes(make_job_set(), **fields) == prefix_summaries("spec", causes)


def test_failure_policy_is_immutable() -> None:
    old = make_job_set(failurePolicy={"maxRestarts": 3})
    assert update_causes(old, failurePolicy={"maxRestarts": 4}) == ["spec.failurePolicy: Invalid"]


def test_pods_may_be_sent_elsewhere_while_the_job_set_is_suspended() -> None:
    running, resting = make_job_set(), make_job_set(suspend=True)
    for field, value in (
        ("nodeSelector", {"zone": "a"}),
        ("tolerations", [{"key": "k", "operator": "Exists"}]),
        ("schedulingGates", [{"name": "example.com/gate"}]),
    ):
        jobs = jobs_with_pod_fields(running, **{field: value})
        assert update_causes(running, replicatedJobs=jobs) == ["spec.replicatedJobs: Invalid"]
        assert update_causes(running, replicatedJobs=jobs, suspend=True) == []
        assert update_causes(resting, replicatedJobs=jobs) == []
        assert update_causes(resting, replicatedJobs=jobs, suspend=False) == []
    labelled = jobs_with_pod_fields(resting)
    labelled[0]["template"]["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
    assert update_causes(resting, replicatedJobs=labelled) == []
    heavier = jobs_with_pod_fields(resting, priorityClassName="high")
    assert update_causes(resting, replicatedJobs=heavier) == ["spec.replicatedJobs: Invalid"]


@pytest.mark.parametrize(
    ("counts", "causes"),
    [
        ({"parallelism": 4, "completions": 4}, []),
        ({"parallelism": 1, "completions": 1}, []),
        ({"parallelism": 4, "completions": 2}, [".completions: Invalid"]),
        ({"parallelism": 0, "completions": 0},
         [".parallelism: Invalid", ".completions: Invalid"]),
    ],
)  # fmt: skip
def test_number_of_pods_of_indexed_jobs_may_change(counts: Object, causes: CauseSummaries) -> None:
    place = "spec.replicatedJobs[0].template.spec"
    old = make_job_set(replicatedJobs=[job(parallelism=2, completions=2)])
    assert update_causes(old, replicatedJobs=[job(**counts)]) == [place + one for one in causes]
    loose = [job(parallelism=2, completions=2, completionMode="NonIndexed")]
    other = [job(**counts, completionMode="NonIndexed")]
    refused = update_causes(make_job_set(replicatedJobs=loose), replicatedJobs=other)
    assert refused == ["spec.replicatedJobs: Invalid"]


def test_number_of_pods_of_a_job_set_that_has_ended_is_fixed() -> None:
    old = make_job_set(replicatedJobs=[job(parallelism=2, completions=2)])
    old["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    new = [job(parallelism=3, completions=3)]
    assert update_causes(old, replicatedJobs=new) == [
        "spec.replicatedJobs[0].template.spec: Forbidden"
    ]


def test_what_may_change_must_still_be_right() -> None:
    old = make_job_set(suspend=True)
    jobs = jobs_with_pod_fields(old, nodeSelector={"no key": "a"})
    (cause,) = update_causes(old, replicatedJobs=jobs)
    assert cause.startswith("spec.replicatedJobs[1].template.spec.template.spec.nodeSelector")


# ---- status --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        ({}, []),
        ({"restarts": 1, "terminalState": "Completed"}, []),
        ({"restarts": -1}, ["status.restarts: Invalid"]),
        ({"currentInPlaceRestartAttempt": -1}, ["status.currentInPlaceRestartAttempt: Invalid"]),
        ({"replicatedJobsStatus": [{"name": "workers", "ready": 1}]}, []),
        ({"replicatedJobsStatus": [{"name": "a"}, {"name": "a"}]},
         ["status.replicatedJobsStatus[1]: Duplicate"]),
        ({"replicatedJobsStatus": [{"name": "a", "failed": -1}]},
         ["status.replicatedJobsStatus[0].failed: Invalid"]),
        ({"conditions": [{"type": "Completed", "status": "Sure", "reason": "R",
                          "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
         ["status.conditions[0].status: NotSupported"]),
    ],
)  # fmt: skip
def test_a_status_counts_jobs(status: Object, causes: CauseSummaries) -> None:
    old = make_job_set()
    assert find_causes(JOB_SET, change_stored(JOB_SET, old, status=status), old, "status") == causes
