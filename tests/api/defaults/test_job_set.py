"""Defaults of JobSets."""

from __future__ import annotations

from phalanx.api.kinds import JOB_SET
from phalanx.api.wire import Object
from tests.api.stored_objects import make_stored

PODS: Object = {"spec": {"containers": [{"name": "main", "image": "app:1"}]}}


def job_set(**spec: object) -> Object:
    jobs = [{"name": "workers", "template": {"spec": {"template": PODS}}}]
    found: Object = make_stored(JOB_SET, {"spec": {"replicatedJobs": jobs, **spec}})["spec"]
    return found


def test_a_job_set_has_all_its_jobs_succeed_in_any_order_and_reach_each_other() -> None:
    spec = job_set()
    assert spec["successPolicy"] == {"operator": "All"}
    assert spec["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert not {"suspend", "failurePolicy", "scheduling"} & set(spec)


def test_explicit_values_are_kept() -> None:
    spec = job_set(
        network={"enableDNSHostnames": False, "subdomain": "s"},
        successPolicy={"operator": "Any", "targetReplicatedJobs": ["workers"]},
        startupPolicy={"startupPolicyOrder": "InOrder"},
    )
    assert spec["successPolicy"]["operator"] == "Any"
    assert spec["startupPolicy"]["startupPolicyOrder"] == "InOrder"
    assert spec["network"] == {
        "enableDNSHostnames": False, "publishNotReadyAddresses": True, "subdomain": "s",
    }  # fmt: skip


def test_there_is_one_job_of_a_sort_in_the_default_group() -> None:
    (job,) = job_set()["replicatedJobs"]
    assert (job["replicas"], job["groupName"]) == (1, "default")


def test_the_jobs_are_indexed_and_have_what_jobs_and_pods_have() -> None:
    spec = job_set()["replicatedJobs"][0]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 1, 1)
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (6, "TerminatingOrFailed")
    pods = spec["template"]["spec"]
    assert (pods["restartPolicy"], pods["schedulerName"]) == ("OnFailure", "default-scheduler")
    assert pods["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_rules_are_named_by_their_numbers() -> None:
    rules = [{"action": "FailJobSet"}, {"action": "RestartJobSet", "name": "again"}]
    policy = job_set(failurePolicy={"rules": rules})["failurePolicy"]
    assert [rule["name"] for rule in policy["rules"]] == ["failurePolicyRule0", "again"]
    assert policy["restartStrategy"] == "Recreate"


def test_shared_claims_go_with_the_job_set() -> None:
    (policy,) = job_set(volumeClaimPolicies=[{"templates": [{"metadata": {"name": "c"}}]}])[
        "volumeClaimPolicies"
    ]
    assert policy["retentionPolicy"] == {"whenDeleted": "Delete"}
    assert policy["templates"][0]["spec"]["volumeMode"] == "Filesystem"


def test_new_job_set_has_no_status() -> None:
    new = make_stored(JOB_SET, {"spec": {}, "status": {"restarts": 3, "terminalState": "Failed"}})
    assert "status" not in new
