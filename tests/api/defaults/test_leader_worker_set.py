"""Defaults of LeaderWorkerSets."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import LEADER_WORKER_SET
from phalanx.api.wire import Object
from tests.api.stored_objects import make_stored

PODS: Object = {"spec": {"containers": [{"name": "main", "image": "app:1"}]}}


def spec(group: Object | None = None, **fields: object) -> Object:
    template = {"workerTemplate": PODS, **(group or {})}
    body = {"spec": {"leaderWorkerTemplate": template, **fields}}
    found: Object = make_stored(LEADER_WORKER_SET, body)["spec"]
    return found


def test_a_set_is_one_group_of_one_pod_that_is_made_anew_as_a_whole() -> None:
    found = spec()
    assert (found["replicas"], found["startupPolicy"]) == (1, "LeaderCreated")
    group = found["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (1, "RecreateGroupOnPodRestart")
    assert found["networkConfig"] == {"subdomainPolicy": "Shared"}
    assert "leaderTemplate" not in group
    assert "scheduling" not in found


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (None, {"maxUnavailable": 1, "maxSurge": 0, "partition": 0}),
        ({"maxSurge": "50%"}, {"maxUnavailable": 1, "maxSurge": "50%", "partition": 0}),
        (
            {"maxUnavailable": 2, "maxSurge": 2},
            {"maxUnavailable": 2, "maxSurge": 2, "partition": 0},
        ),
    ],
)
def test_groups_roll_out_one_by_one(said: Object | None, stored: Object) -> None:
    strategy = {} if said is None else {"rollingUpdateConfiguration": said}
    assert spec(rolloutStrategy=strategy)["rolloutStrategy"] == {
        "type": "RollingUpdate", "rollingUpdateConfiguration": stored,
    }  # fmt: skip


def test_both_templates_have_what_pods_have() -> None:
    group = spec({"leaderTemplate": PODS})["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        pods = group[name]["spec"]
        assert (pods["restartPolicy"], pods["dnsPolicy"]) == ("Always", "ClusterFirst")


def test_an_old_name_of_a_policy_is_stored_as_the_new_one() -> None:
    assert spec({"restartPolicy": "Default"})["leaderWorkerTemplate"]["restartPolicy"] == "None"


def test_subgroup_type_defaults_to_leader_worker() -> None:
    group = spec({"size": 4, "subGroupPolicy": {"subGroupSize": 2}})["leaderWorkerTemplate"]
    assert group["subGroupPolicy"] == {"subGroupPolicyType": "LeaderWorker", "subGroupSize": 2}


def test_new_leader_worker_set_has_no_status() -> None:
    body = {"spec": {"leaderWorkerTemplate": {"workerTemplate": PODS}}, "status": {"replicas": 3}}
    assert "status" not in make_stored(LEADER_WORKER_SET, body)
